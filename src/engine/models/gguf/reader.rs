//! The GGUF container: header, metadata and the table of tensors, each length checked against the file before use.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::super::error::ModelError;
use super::dequant::Encoding;
use crate::sys::lfs;

const MAGIC: [u8; 4] = *b"GGUF";
const MAX_ENTRIES: u64 = 1 << 16;
/// Arrays may nest; nothing real does so more than once.
const MAX_DEPTH: u32 = 4;

/// One metadata value.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Meta {
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Bool(bool),
    Text(String),
    Array(Vec<Meta>),
}

impl Meta {
    pub(crate) fn as_u64(&self) -> Option<u64> {
        match *self {
            Self::Unsigned(n) => Some(n),
            Self::Signed(n) => u64::try_from(n).ok(),
            _ => None,
        }
    }

    pub(crate) fn as_f64(&self) -> Option<f64> {
        match *self {
            Self::Float(f) => Some(f),
            Self::Unsigned(n) => Some(n as f64),
            Self::Signed(n) => Some(n as f64),
            _ => None,
        }
    }

    pub(crate) fn as_bool(&self) -> Option<bool> {
        match *self {
            Self::Bool(b) => Some(b),
            _ => None,
        }
    }

    pub(crate) fn as_str(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    pub(crate) fn as_array(&self) -> Option<&[Meta]> {
        match self {
            Self::Array(list) => Some(list),
            _ => None,
        }
    }
}

/// Where a tensor lies and how it is encoded.
#[derive(Debug, Clone)]
pub(crate) struct TensorInfo {
    pub(crate) name: String,
    /// Outermost dimension first, as in safetensors (GGUF stores the reverse).
    pub(crate) shape: Vec<usize>,
    pub(crate) encoding: Encoding,
    pub(crate) n_elements: usize,
    offset: u64,
    n_bytes: usize,
}

/// An open GGUF file.
#[derive(Debug)]
pub(crate) struct Gguf {
    path: PathBuf,
    file: File,
    pub(crate) metadata: HashMap<String, Meta>,
    pub(crate) tensors: Vec<TensorInfo>,
}

impl Gguf {
    pub(crate) fn open(path: &Path) -> Result<Self, ModelError> {
        let file = File::open(path).map_err(|e| ModelError::io(path, e))?;
        let len = file.metadata().map_err(|e| ModelError::io(path, e))?.len();
        let mut cursor = Cursor {
            path,
            input: BufReader::with_capacity(1 << 16, &file),
            at: 0,
            len,
        };
        if lfs::is_pointer(&mut &file).map_err(|e| ModelError::io(path, e))? {
            return Err(ModelError::malformed(path, lfs::POINTER));
        }
        if cursor.bytes::<4>()? != MAGIC {
            return Err(cursor.wrong("it does not begin with GGUF"));
        }
        let version = cursor.u32()?;
        if !(2..=3).contains(&version) {
            return Err(ModelError::unsupported(
                format!("GGUF version {version}"),
                "write the file again with a current converter (version 3)",
            ));
        }
        let (n_tensors, n_entries) = (cursor.u64()?, cursor.u64()?);
        if n_tensors > MAX_ENTRIES || n_entries > MAX_ENTRIES {
            return Err(cursor.wrong(format!("{n_tensors} tensors and {n_entries} metadata entries")));
        }
        let mut metadata = HashMap::new();
        for _ in 0..n_entries {
            let key = cursor.text()?;
            let kind = cursor.u32()?;
            let value = cursor.value(kind, 0)?;
            metadata.insert(key, value);
        }
        let mut tensors = Vec::new();
        for _ in 0..n_tensors {
            tensors.push(cursor.tensor_info()?);
        }
        let alignment = metadata.get("general.alignment").and_then(Meta::as_u64).unwrap_or(32);
        if !alignment.is_power_of_two() || alignment > 1 << 20 {
            return Err(cursor.wrong(format!("general.alignment {alignment}")));
        }
        let data = cursor.at.next_multiple_of(alignment);
        for tensor in &mut tensors {
            let end = data
                .checked_add(tensor.offset)
                .and_then(|start| {
                    tensor.offset = start;
                    start.checked_add(tensor.n_bytes as u64)
                })
                .filter(|&end| end <= len);
            if end.is_none() {
                return Err(ModelError::malformed(
                    path,
                    format!("tensor {} reaches past the end of the file", tensor.name),
                ));
            }
        }
        Ok(Self {
            path: path.to_owned(),
            file,
            metadata,
            tensors,
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn get(&self, key: &str) -> Option<&Meta> {
        self.metadata.get(key)
    }

    /// The values of a tensor in f32.
    pub(crate) fn read(&self, tensor: &TensorInfo) -> Result<Vec<f32>, ModelError> {
        let mut bytes = vec![0; tensor.n_bytes];
        self.file
            .read_exact_at(&mut bytes, tensor.offset)
            .map_err(|e| ModelError::io(&self.path, e))?;
        Ok(tensor.encoding.decode(&bytes, tensor.n_elements))
    }
}

struct Cursor<'a> {
    path: &'a Path,
    input: BufReader<&'a File>,
    at: u64,
    len: u64,
}

impl Cursor<'_> {
    fn wrong(&self, reason: impl Into<String>) -> ModelError {
        ModelError::malformed(self.path, reason)
    }

    fn left(&self) -> u64 {
        self.len.saturating_sub(self.at)
    }

    fn take(&mut self, into: &mut [u8]) -> Result<(), ModelError> {
        if into.len() as u64 > self.left() {
            return Err(self.wrong("it ends inside its header"));
        }
        self.input.read_exact(into).map_err(|e| ModelError::io(self.path, e))?;
        self.at += into.len() as u64;
        Ok(())
    }

    fn bytes<const N: usize>(&mut self) -> Result<[u8; N], ModelError> {
        let mut out = [0; N];
        self.take(&mut out)?;
        Ok(out)
    }

    fn u32(&mut self) -> Result<u32, ModelError> {
        Ok(u32::from_le_bytes(self.bytes()?))
    }

    fn u64(&mut self) -> Result<u64, ModelError> {
        Ok(u64::from_le_bytes(self.bytes()?))
    }

    /// A count of items of at least `size` bytes that the rest of the file could hold.
    fn count(&mut self, size: u64, what: &str) -> Result<usize, ModelError> {
        let n = self.u64()?;
        if n > self.left() / size {
            return Err(self.wrong(format!("{what} of length {n} reaches past the end of the file")));
        }
        usize::try_from(n).map_err(|_| self.wrong(format!("{what} of length {n}")))
    }

    fn text(&mut self) -> Result<String, ModelError> {
        let n = self.count(1, "a string")?;
        let mut bytes = vec![0; n];
        self.take(&mut bytes)?;
        String::from_utf8(bytes).map_err(|_| self.wrong("a string in its header is not UTF-8"))
    }

    fn value(&mut self, kind: u32, depth: u32) -> Result<Meta, ModelError> {
        Ok(match kind {
            0 => Meta::Unsigned(u8::from_le_bytes(self.bytes()?).into()),
            1 => Meta::Signed(i8::from_le_bytes(self.bytes()?).into()),
            2 => Meta::Unsigned(u16::from_le_bytes(self.bytes()?).into()),
            3 => Meta::Signed(i16::from_le_bytes(self.bytes()?).into()),
            4 => Meta::Unsigned(self.u32()?.into()),
            5 => Meta::Signed(i32::from_le_bytes(self.bytes()?).into()),
            6 => Meta::Float(f32::from_le_bytes(self.bytes()?).into()),
            7 => Meta::Bool(self.bytes::<1>()? != [0]),
            8 => Meta::Text(self.text()?),
            9 if depth < MAX_DEPTH => self.array(depth)?,
            10 => Meta::Unsigned(self.u64()?),
            11 => Meta::Signed(i64::from_le_bytes(self.bytes()?)),
            12 => Meta::Float(f64::from_le_bytes(self.bytes()?)),
            other => return Err(self.wrong(format!("a metadata value of type {other}"))),
        })
    }

    fn array(&mut self, depth: u32) -> Result<Meta, ModelError> {
        let kind = self.u32()?;
        let size = match kind {
            0 | 1 | 7 => 1,
            2 | 3 => 2,
            4..=6 => 4,
            9 => 12,
            _ => 8,
        };
        let n = self.count(size, "an array")?;
        let mut list = Vec::new();
        for _ in 0..n {
            list.push(self.value(kind, depth + 1)?);
        }
        Ok(Meta::Array(list))
    }

    fn tensor_info(&mut self) -> Result<TensorInfo, ModelError> {
        let name = self.text()?;
        let n_dims = self.u32()?;
        if n_dims > 4 {
            return Err(self.wrong(format!("tensor {name} has {n_dims} dimensions")));
        }
        let mut shape = Vec::new();
        for _ in 0..n_dims {
            let dim = self.u64()?;
            shape.push(usize::try_from(dim).map_err(|_| self.wrong(format!("tensor {name} has size {dim}")))?);
        }
        let kind = self.u32()?;
        let encoding = Encoding::from_id(kind).ok_or_else(|| {
            ModelError::unsupported(
                format!("the GGUF encoding number {kind} of tensor {name}"),
                "use a file in F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K or Q6_K",
            )
        })?;
        let row = shape.first().copied().unwrap_or(1);
        let n_elements = shape.iter().try_fold(1usize, |n, &dim| n.checked_mul(dim));
        let sizes = n_elements.and_then(|n| Some((n, encoding.n_bytes(n)?)));
        let Some((n_elements, n_bytes)) = sizes.filter(|_| row.is_multiple_of(encoding.block_len())) else {
            return Err(self.wrong(format!("tensor {name} of shape {shape:?} cannot be {encoding:?}")));
        };
        let offset = self.u64()?;
        // Before any buffer of this size is made: the file must hold it.
        if n_bytes as u64 > self.len {
            return Err(self.wrong(format!("tensor {name} reaches past the end of the file")));
        }
        shape.reverse();
        Ok(TensorInfo {
            name,
            shape,
            encoding,
            n_elements,
            offset,
            n_bytes,
        })
    }
}
