//! Named tensors in safetensors files, with metadata, durable.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::path::Path;

use safetensors::tensor::{Dtype, SafeTensors, View};
use tch::{Kind, Tensor};

use super::TrainError;
use super::error::Doing;

/// A file read back.
pub(crate) struct Named {
    pub(crate) tensors: BTreeMap<String, Tensor>,
    pub(crate) metadata: HashMap<String, String>,
}

struct Bytes {
    dtype: Dtype,
    shape: Vec<usize>,
    data: Vec<u8>,
}

impl View for &Bytes {
    fn dtype(&self) -> Dtype {
        self.dtype
    }
    fn shape(&self) -> &[usize] {
        &self.shape
    }
    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(&self.data)
    }
    fn data_len(&self) -> usize {
        self.data.len()
    }
}

const KINDS: [(Kind, Dtype); 6] = [
    (Kind::Float, Dtype::F32),
    (Kind::Double, Dtype::F64),
    (Kind::BFloat16, Dtype::BF16),
    (Kind::Half, Dtype::F16),
    (Kind::Int64, Dtype::I64),
    (Kind::Int, Dtype::I32),
];

fn bytes(tensor: &Tensor) -> Result<Bytes, TrainError> {
    let kind = tensor.kind();
    let dtype = KINDS
        .iter()
        .find(|(k, _)| *k == kind)
        .map(|(_, d)| *d)
        .ok_or_else(|| TrainError::settings(format!("tensors of kind {kind:?} cannot be saved")))?;
    let flat = tensor
        .f_detach()
        .and_then(|t| t.f_contiguous())
        .doing("saving a tensor")?;
    let numel = flat.numel();
    let mut data = vec![0u8; numel * kind.elt_size_in_bytes()];
    flat.f_copy_data_u8(&mut data, numel).doing("saving a tensor")?;
    Ok(Bytes {
        dtype,
        shape: tensor.size().iter().map(|d| usize::try_from(*d).unwrap_or(0)).collect(),
        data,
    })
}

/// Writes the tensors in the order given; the file is on disk when this returns.
pub(crate) fn write(path: &Path, named: &[(String, Tensor)], metadata: &[(&str, String)]) -> Result<(), TrainError> {
    let views = named
        .iter()
        .map(|(name, tensor)| Ok((name.as_str(), bytes(tensor)?)))
        .collect::<Result<Vec<_>, TrainError>>()?;
    let metadata = metadata.iter().map(|(k, v)| ((*k).to_owned(), v.clone())).collect();
    safetensors::serialize_to_file(views.iter().map(|(n, b)| (*n, b)), Some(metadata), path)
        .map_err(|e| TrainError::checkpoint(path, "writing tensors", e))?;
    File::open(path)
        .and_then(|f| f.sync_all())
        .map_err(|e| TrainError::checkpoint(path, "syncing tensors", e))
}

/// Reads a whole file; the header is checked against the length before anything is allocated for it.
pub(crate) fn read(path: &Path) -> Result<Named, TrainError> {
    let raw = fs::read(path).map_err(|e| TrainError::checkpoint(path, "reading tensors", e))?;
    let bad = |e: safetensors::SafeTensorError| TrainError::checkpoint(path, "reading tensors", e);
    let (_, header) = SafeTensors::read_metadata(&raw).map_err(bad)?;
    let metadata = header.metadata().clone().unwrap_or_default();
    let file = SafeTensors::deserialize(&raw).map_err(bad)?;
    let mut tensors = BTreeMap::new();
    for (name, view) in file.tensors() {
        let kind = KINDS
            .iter()
            .find(|(_, d)| *d == view.dtype())
            .map(|(k, _)| *k)
            .ok_or_else(|| {
                TrainError::checkpoint(path, "reading tensors", format!("{name} has type {:?}", view.dtype()))
            })?;
        let shape: Vec<i64> = view.shape().iter().map(|d| *d as i64).collect();
        let tensor = Tensor::f_from_data_size(view.data(), &shape, kind).doing("reading a tensor")?;
        tensors.insert(name, tensor);
    }
    Ok(Named { tensors, metadata })
}
