//! Tensors by name out of a folder's safetensors files, mapped into memory.

use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use memmap2::Mmap;
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, Metadata};
use tch::{Device, Kind, Tensor};

use super::tensor::{Doing, Tensors, size};
use crate::engine::models::ModelError;

struct Shard {
    path: PathBuf,
    map: Mmap,
    /// Where the data begins.
    data: usize,
    header: Metadata,
}

/// The tensors of one or more safetensors files. Names must not repeat.
pub(super) struct TensorFiles {
    shards: Vec<Shard>,
    places: HashMap<String, usize>,
    first: PathBuf,
}

impl TensorFiles {
    pub(super) fn open(paths: &[PathBuf]) -> Tensors<Self> {
        let mut shards = Vec::new();
        let mut places = HashMap::new();
        for (i, path) in paths.iter().enumerate() {
            let file = File::open(path).map_err(|e| ModelError::io(path, e))?;
            let map = map(&file).map_err(|e| ModelError::io(path, e))?;
            let (n, header) = SafeTensors::read_metadata(&map)
                .map_err(|e| ModelError::malformed(path, format!("not a whole safetensors file: {e}")))?;
            for name in header.tensors().into_keys() {
                if let Some(other) = places.insert(name.clone(), i) {
                    let other: &Shard = &shards[other];
                    return Err(ModelError::malformed(
                        path,
                        format!("tensor {name} is also in {}", other.path.display()),
                    ));
                }
            }
            shards.push(Shard {
                path: path.clone(),
                map,
                data: n + 8,
                header,
            });
        }
        Ok(Self {
            shards,
            places,
            first: paths.first().cloned().unwrap_or_default(),
        })
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.places.contains_key(name)
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.places.keys().map(String::as_str)
    }

    pub(super) fn path(&self) -> &Path {
        &self.first
    }

    /// A copy of a tensor of known shape, converted.
    pub(super) fn get(&self, name: &str, shape: &[usize], kind: Kind, device: Device) -> Tensors<Tensor> {
        let missing = || ModelError::MissingTensor {
            name: name.to_owned(),
            path: self.first.clone(),
        };
        let shard = &self.shards[*self.places.get(name).ok_or_else(missing)?];
        let info = shard.header.info(name).ok_or_else(missing)?;
        if info.shape != shape {
            return Err(ModelError::Shape {
                name: name.to_owned(),
                expected: shape.to_vec(),
                found: info.shape.clone(),
            });
        }
        let stored = match info.dtype {
            Dtype::F32 => Kind::Float,
            Dtype::F16 => Kind::Half,
            Dtype::BF16 => Kind::BFloat16,
            Dtype::F64 => Kind::Double,
            other => {
                return Err(ModelError::unsupported(
                    format!("the storage type {other:?} of tensor {name}"),
                    "convert the weights to F32, F16 or BF16",
                ));
            }
        };
        let (start, end) = info.data_offsets;
        // The header was checked against the length of the file when it was read.
        let bytes = shard
            .map
            .get(shard.data + start..shard.data + end)
            .ok_or_else(missing)?;
        let dims: Vec<i64> = shape.iter().map(|&n| size(n)).collect();
        Tensor::f_from_data_size(bytes, &dims, stored)
            .and_then(|t| t.f_to_kind(kind))
            .and_then(|t| t.f_to_device(device))
            .doing("reading weights")
    }
}

#[allow(unsafe_code, reason = "a file mapping has no safe form")]
fn map(file: &File) -> std::io::Result<Mmap> {
    // SAFETY: the mapping is read only. The files of an imported model and of a published adapter are written once,
    // under another name, and never changed in place; a foreign process that truncates one would end this process.
    unsafe { Mmap::map(file) }
}
