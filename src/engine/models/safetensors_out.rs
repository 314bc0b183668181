//! Writes a safetensors file tensor by tensor, so that a conversion needs memory for one tensor only.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use half::bf16;
use serde_json::{Map, Value, json};

use super::error::ModelError;

/// Storage type of converted weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoredDtype {
    /// 4 bytes, exact for every GGUF encoding.
    F32,
    /// 2 bytes.
    Bf16,
}

impl StoredDtype {
    fn word(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::Bf16 => "BF16",
        }
    }

    fn size(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 => 2,
        }
    }

    /// The `torch_dtype` word of config.json.
    pub(crate) fn torch_word(self) -> &'static str {
        match self {
            Self::F32 => "float32",
            Self::Bf16 => "bfloat16",
        }
    }
}

/// An open file whose header is written; the tensors follow in the announced order.
pub(crate) struct SafetensorsOut {
    path: PathBuf,
    out: BufWriter<File>,
    dtype: StoredDtype,
}

impl SafetensorsOut {
    pub(crate) fn create(
        path: &Path,
        dtype: StoredDtype,
        tensors: &[(String, Vec<usize>)],
    ) -> Result<Self, ModelError> {
        let mut header = Map::new();
        header.insert("__metadata__".to_owned(), json!({ "format": "pt" }));
        let mut offset = 0;
        for (name, shape) in tensors {
            let end = offset + shape.iter().product::<usize>() * dtype.size();
            header.insert(
                name.clone(),
                json!({ "dtype": dtype.word(), "shape": shape, "data_offsets": [offset, end] }),
            );
            offset = end;
        }
        let mut text = Value::Object(header).to_string();
        // The data must begin at a multiple of 8.
        text.extend(std::iter::repeat_n(' ', text.len().next_multiple_of(8) - text.len()));
        let io = |e| ModelError::io(path, e);
        let mut out = BufWriter::with_capacity(1 << 20, File::create(path).map_err(io)?);
        out.write_all(&(text.len() as u64).to_le_bytes()).map_err(io)?;
        out.write_all(text.as_bytes()).map_err(io)?;
        Ok(Self {
            path: path.to_owned(),
            out,
            dtype,
        })
    }

    pub(crate) fn write(&mut self, values: &[f32]) -> Result<(), ModelError> {
        let written = match self.dtype {
            StoredDtype::F32 => values.iter().try_for_each(|v| self.out.write_all(&v.to_le_bytes())),
            StoredDtype::Bf16 => values
                .iter()
                .try_for_each(|&v| self.out.write_all(&bf16::from_f32(v).to_le_bytes())),
        };
        written.map_err(|e| ModelError::io(&self.path, e))
    }

    /// Makes the file durable.
    pub(crate) fn finish(self) -> Result<(), ModelError> {
        let io = |e| ModelError::io(&self.path, e);
        let file = self.out.into_inner().map_err(|e| io(e.into_error()))?;
        file.sync_all().map_err(io)
    }
}
