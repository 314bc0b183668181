//! What serving would refuse, found when a model comes in: weights that are not whole, or numbers that are none; a
//! tokenizer that cannot be read; a chat template that fails or takes more than a prompt is worth.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use safetensors::tensor::{Dtype, Metadata, TensorInfo};
use serde_json::{Map, json};

use super::config::ModelConfig;
use super::error::ModelError;
#[cfg(not(feature = "torch"))]
use super::file;
use super::prompt;
use super::store::weight_files;
use crate::engine::chat::ChatTemplate;
use crate::sys::{lfs, regular};

/// A header longer than this is none.
const MAX_HEADER_BYTES: u64 = 100 << 20;
#[cfg(not(feature = "torch"))]
const MAX_TOKENIZER_BYTES: u64 = 256 << 20;
const CHUNK: usize = 1 << 20;

/// Checks a folder in Hugging Face layout. Reads all of the weights.
pub(super) fn check(dir: &Path) -> Result<(), ModelError> {
    let config = ModelConfig::load(dir)?;
    weights(dir, &config)?;
    tokenizer(dir, &config)?;
    template(dir)
}

fn weights(dir: &Path, config: &ModelConfig) -> Result<(), ModelError> {
    let mut found: BTreeMap<String, (PathBuf, TensorInfo)> = BTreeMap::new();
    for path in weight_files(dir)? {
        let (tensors, data) = header(&path)?;
        for (name, info) in &tensors {
            if let Some((other, _)) = found.insert(name.clone(), (path.clone(), info.clone())) {
                let reason = format!("tensor {name} is also in {}", other.display());
                return Err(ModelError::malformed(&path, reason));
            }
        }
        finite(&path, data, tensors)?;
    }
    for (name, expected) in config.tensors() {
        let Some((_, info)) = found.get(&name) else {
            return Err(ModelError::MissingTensor {
                name,
                path: dir.to_owned(),
            });
        };
        if info.shape != expected {
            return Err(ModelError::Shape {
                name,
                expected,
                found: info.shape.clone(),
            });
        }
        if !matches!(info.dtype, Dtype::F32 | Dtype::F16 | Dtype::BF16 | Dtype::F64) {
            return Err(ModelError::unsupported(
                format!("the storage type {:?} of tensor {name}", info.dtype),
                "convert the weights to F32, F16 or BF16",
            ));
        }
    }
    Ok(())
}

/// The tensors of a file in the order in which they lie, and where they begin.
fn header(path: &Path) -> Result<(Vec<(String, TensorInfo)>, u64), ModelError> {
    let io = |e| ModelError::io(path, e);
    let broken = |reason: String| ModelError::malformed(path, format!("not a whole safetensors file: {reason}"));
    let file = regular::open(path).map_err(io)?;
    let size = file.metadata().map_err(io)?.len();
    let mut file = BufReader::new(file);
    if lfs::is_pointer(file.get_mut()).map_err(io)? {
        return Err(ModelError::malformed(path, lfs::POINTER));
    }
    let mut length = [0; 8];
    file.read_exact(&mut length).map_err(|e| broken(e.to_string()))?;
    let length = u64::from_le_bytes(length);
    if length > MAX_HEADER_BYTES || length.saturating_add(8) > size {
        return Err(broken("its header would be longer than the file".to_owned()));
    }
    let mut header = Vec::new();
    file.take(length).read_to_end(&mut header).map_err(io)?;
    let metadata: Metadata = serde_json::from_slice(&header).map_err(|e| broken(e.to_string()))?;
    let (stated, there) = (metadata.data_len() as u64, size - 8 - length);
    if stated != there {
        return Err(broken(format!(
            "its header speaks of {stated} bytes of tensors, and {there} are there"
        )));
    }
    let mut tensors: Vec<_> = metadata
        .tensors()
        .into_iter()
        .map(|(name, info)| (name, info.clone()))
        .collect();
    tensors.sort_by_key(|(_, info)| info.data_offsets.0);
    Ok((tensors, 8 + length))
}

/// Every weight has to be a number: one that is not makes all of every answer none.
fn finite(path: &Path, data: u64, tensors: Vec<(String, TensorInfo)>) -> Result<(), ModelError> {
    let io = |e| ModelError::io(path, e);
    let mut file = File::open(path).map_err(io)?;
    let mut chunk = vec![0; CHUNK];
    for (name, info) in tensors {
        let (width, is_number): (usize, fn(&[u8]) -> bool) = match info.dtype {
            Dtype::BF16 => (2, |b| u16::from_le_bytes([b[0], b[1]]) & 0x7f80 != 0x7f80),
            Dtype::F16 => (2, |b| u16::from_le_bytes([b[0], b[1]]) & 0x7c00 != 0x7c00),
            Dtype::F32 => (4, |b| b[3] & 0x7f != 0x7f || b[2] & 0x80 == 0),
            Dtype::F64 => (8, |b| b[7] & 0x7f != 0x7f || b[6] & 0xf0 != 0xf0),
            _ => continue,
        };
        let (start, end) = (info.data_offsets.0 as u64, info.data_offsets.1 as u64);
        file.seek(SeekFrom::Start(data + start)).map_err(io)?;
        let mut left = end - start;
        while left > 0 {
            let n = usize::try_from(left).unwrap_or(CHUNK).min(CHUNK);
            file.read_exact(&mut chunk[..n]).map_err(io)?;
            if !chunk[..n].chunks_exact(width).all(is_number) {
                let reason = format!("tensor {name} holds values that are not finite numbers");
                return Err(ModelError::malformed(path, reason));
            }
            left -= n as u64;
        }
    }
    Ok(())
}

/// As serving reads it.
#[cfg(feature = "torch")]
fn tokenizer(dir: &Path, config: &ModelConfig) -> Result<(), ModelError> {
    let tokenizer = crate::engine::torch::model::Tokenizer::load(dir, config)?;
    let tokens = tokenizer.encode(PROBE, false)?;
    let wide = tokens.iter().find(|token| **token as usize >= config.vocab_size);
    match wide {
        Some(token) => Err(ModelError::malformed(
            dir.join("tokenizer.json"),
            format!(
                "it gives token {token}, and config.json speaks of {}",
                config.vocab_size
            ),
        )),
        None if tokens.is_empty() => Err(ModelError::malformed(
            dir.join("tokenizer.json"),
            format!("it makes no tokens of {PROBE:?}"),
        )),
        None => Ok(()),
    }
}

/// Without the library that reads it: that it is one at all.
#[cfg(not(feature = "torch"))]
fn tokenizer(dir: &Path, _config: &ModelConfig) -> Result<(), ModelError> {
    let path = dir.join("tokenizer.json");
    let bytes = file::read_bounded(&path, MAX_TOKENIZER_BYTES)?;
    let value: serde_json::Value =
        serde_json::from_slice(&bytes).map_err(|e| ModelError::malformed(&path, format!("not a tokenizer: {e}")))?;
    if value["model"].is_object() {
        Ok(())
    } else {
        Err(ModelError::malformed(&path, "not a tokenizer: it has no model"))
    }
}

/// What is said to a model that comes in.
const PROBE: &str = "Hello";

fn template(dir: &Path) -> Result<(), ModelError> {
    let (source, special) = prompt::read(dir)?;
    let Some(source) = source else {
        return Err(ModelError::request(format!(
            "the model in {} has no chat template, so it could not answer chats; put one in chat_template.jinja beside \
             config.json",
            dir.display()
        )));
    };
    let refused = |reason: String| ModelError::Template {
        dir: dir.to_owned(),
        reason,
    };
    let template = ChatTemplate::new(&source, special.by_name()).map_err(|error| refused(error.describe()))?;
    let prompt = template
        .render(&[json!({"role": "user", "content": PROBE})], &[], true, &Map::new())
        .map_err(|error| refused(error.describe()))?;
    if prompt.contains(PROBE) {
        Ok(())
    } else {
        Err(refused("its prompt does not hold what is said".to_owned()))
    }
}
