//! Comparing two safetensors files tensor by tensor, without loading either whole.

use std::collections::BTreeMap;
use std::io::{self, Read, SeekFrom};

use half::{bf16, f16};
use safetensors::tensor::{Dtype, Metadata, TensorInfo};

use super::diff::ReadSeek;
use super::weights::LARGEST_HEADER;

const CHUNK: u64 = 1 << 20;

/// How one tensor differs.
#[derive(Debug, Clone, PartialEq)]
pub struct TensorChange {
    /// Its name.
    pub name: String,
    /// `F32`, `BF16`, …; both when they differ.
    pub dtype: String,
    /// Its shape; both when they differ.
    pub shape: String,
    /// Its size in bytes, in the newer file where it is there.
    pub bytes: u64,
    /// For the two factors of a LoRA update: their rank.
    pub rank: Option<usize>,
    /// Euclidean norm of the difference, `‖new − old‖`; of the tensor itself where only one side has it.
    pub norm: Option<f64>,
    /// `‖new − old‖ / ‖old‖`.
    pub relative: Option<f64>,
    /// Cosine of the angle between old and new.
    pub cosine: Option<f64>,
    /// `added`, `removed` or `changed`.
    pub kind: &'static str,
}

struct Side {
    file: Box<dyn ReadSeek>,
    data_from: u64,
    tensors: BTreeMap<String, TensorInfo>,
}

impl Side {
    fn open(mut file: Box<dyn ReadSeek>) -> io::Result<Self> {
        let mut length = [0; 8];
        file.read_exact(&mut length)?;
        let length = u64::from_le_bytes(length);
        if length > LARGEST_HEADER {
            return Err(io::Error::other("not a safetensors file"));
        }
        let mut header = Vec::new();
        file.by_ref().take(length).read_to_end(&mut header)?;
        let metadata: Metadata = serde_json::from_slice(&header)?;
        let tensors = metadata
            .tensors()
            .into_iter()
            .map(|(name, info)| (name, info.clone()))
            .collect();
        Ok(Self {
            file,
            data_from: 8 + length,
            tensors,
        })
    }

    fn read(&mut self, info: &TensorInfo, from: u64, length: u64) -> io::Result<Vec<u8>> {
        self.file
            .seek(SeekFrom::Start(self.data_from + info.data_offsets.0 as u64 + from))?;
        let mut bytes = vec![0; usize::try_from(length).map_err(io::Error::other)?];
        self.file.read_exact(&mut bytes)?;
        Ok(bytes)
    }
}

/// The tensors that differ, by name, and how many are equal.
pub(super) fn compare(
    old: Option<Box<dyn ReadSeek>>,
    new: Option<Box<dyn ReadSeek>>,
) -> io::Result<(Vec<TensorChange>, usize)> {
    let mut old = old.map(Side::open).transpose()?;
    let mut new = new.map(Side::open).transpose()?;
    let names = |side: &Option<Side>| -> Vec<String> {
        side.as_ref()
            .map(|s| s.tensors.keys().cloned().collect())
            .unwrap_or_default()
    };
    let mut all = names(&old);
    all.extend(names(&new));
    all.sort();
    all.dedup();
    let (mut changed, mut equal) = (Vec::new(), 0);
    for name in all {
        match one(name, old.as_mut(), new.as_mut())? {
            Some(change) => changed.push(change),
            None => equal += 1,
        }
    }
    Ok((changed, equal))
}

/// Sums of squares and products over pairs of numbers.
#[derive(Default)]
struct Sums {
    old: f64,
    new: f64,
    both: f64,
    difference: f64,
}

fn one(name: String, old: Option<&mut Side>, new: Option<&mut Side>) -> io::Result<Option<TensorChange>> {
    let was = old.as_ref().and_then(|side| side.tensors.get(&name)).cloned();
    let now = new.as_ref().and_then(|side| side.tensors.get(&name)).cloned();
    let Some(info) = now.as_ref().or(was.as_ref()) else {
        return Ok(None);
    };
    let both = |of: fn(&TensorInfo) -> String| match (&was, &now) {
        (Some(was), Some(now)) if of(was) != of(now) => format!("{} -> {}", of(was), of(now)),
        _ => of(info),
    };
    let is_lora = name.contains("lora_A") || name.contains("lora_B");
    let mut change = TensorChange {
        dtype: both(|info| format!("{:?}", info.dtype)),
        shape: both(|info| format!("{:?}", info.shape)),
        bytes: (info.data_offsets.1 - info.data_offsets.0) as u64,
        rank: (is_lora && info.shape.len() == 2).then(|| info.shape.iter().copied().min().unwrap_or(0)),
        norm: None,
        relative: None,
        cosine: None,
        kind: match (&was, &now) {
            (None, _) => "added",
            (_, None) => "removed",
            _ => "changed",
        },
        name,
    };
    match (old, was, new, now) {
        (Some(old), Some(was), Some(new), Some(now)) if was.shape == now.shape => {
            let Some((sums, same)) = pair(old, &was, new, &now)? else {
                return Ok(Some(change));
            };
            if same && was.dtype == now.dtype {
                return Ok(None);
            }
            change.norm = Some(sums.difference.sqrt());
            change.relative = (sums.old > 0.0).then(|| (sums.difference / sums.old).sqrt());
            let product = (sums.old * sums.new).sqrt();
            change.cosine = (product > 0.0).then(|| (sums.both / product).clamp(-1.0, 1.0));
        }
        (None | Some(_), None, Some(side), Some(info)) | (Some(side), Some(info), None | Some(_), None) => {
            change.norm = alone(side, &info)?;
        }
        _ => {}
    }
    Ok(Some(change))
}

/// Sums over two tensors of one shape, and whether their bytes are equal; nothing for types that are not numbers.
fn pair(old: &mut Side, was: &TensorInfo, new: &mut Side, now: &TensorInfo) -> io::Result<Option<(Sums, bool)>> {
    let (Some(old_width), Some(new_width)) = (width(was.dtype), width(now.dtype)) else {
        let length = (was.data_offsets.1 - was.data_offsets.0) as u64;
        let same = was.dtype == now.dtype && old.read(was, 0, length)? == new.read(now, 0, length)?;
        return Ok(same.then(|| (Sums::default(), true)));
    };
    let elements = was.shape.iter().product::<usize>() as u64;
    let (mut sums, mut same) = (Sums::default(), true);
    let mut at = 0;
    while at < elements {
        let n = (elements - at).min(CHUNK / 8);
        let a = old.read(was, at * old_width, n * old_width)?;
        let b = new.read(now, at * new_width, n * new_width)?;
        same &= a == b;
        for (a, b) in numbers(was.dtype, &a).zip(numbers(now.dtype, &b)) {
            sums.old += a * a;
            sums.new += b * b;
            sums.both += a * b;
            sums.difference += (b - a) * (b - a);
        }
        at += n;
    }
    Ok(Some((sums, same)))
}

fn alone(side: &mut Side, info: &TensorInfo) -> io::Result<Option<f64>> {
    let Some(width) = width(info.dtype) else {
        return Ok(None);
    };
    let elements = info.shape.iter().product::<usize>() as u64;
    let (mut sum, mut at) = (0.0, 0);
    while at < elements {
        let n = (elements - at).min(CHUNK / 8);
        let bytes = side.read(info, at * width, n * width)?;
        sum += numbers(info.dtype, &bytes).map(|x| x * x).sum::<f64>();
        at += n;
    }
    Ok(Some(sum.sqrt()))
}

fn width(dtype: Dtype) -> Option<u64> {
    match dtype {
        Dtype::F64 => Some(8),
        Dtype::F32 => Some(4),
        Dtype::F16 | Dtype::BF16 => Some(2),
        _ => None,
    }
}

/// The numbers in little-endian bytes.
fn numbers(dtype: Dtype, bytes: &[u8]) -> Box<dyn Iterator<Item = f64> + '_> {
    match dtype {
        Dtype::F64 => Box::new(
            bytes
                .chunks_exact(8)
                .map(|b| f64::from_le_bytes(b.try_into().unwrap_or_default())),
        ),
        Dtype::F32 => Box::new(
            bytes
                .chunks_exact(4)
                .map(|b| f64::from(f32::from_le_bytes(b.try_into().unwrap_or_default()))),
        ),
        Dtype::F16 => Box::new(
            bytes
                .chunks_exact(2)
                .map(|b| f64::from(f16::from_le_bytes(b.try_into().unwrap_or_default()))),
        ),
        _ => Box::new(
            bytes
                .chunks_exact(2)
                .map(|b| f64::from(bf16::from_le_bytes(b.try_into().unwrap_or_default()))),
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::io::Cursor;

    use safetensors::tensor::TensorView;

    use super::*;

    fn file(tensors: &[(&str, &[f32])]) -> Box<dyn ReadSeek> {
        let bytes: Vec<(String, Vec<u8>)> = tensors
            .iter()
            .map(|(name, values)| {
                (
                    (*name).to_owned(),
                    values.iter().flat_map(|v| v.to_le_bytes()).collect(),
                )
            })
            .collect();
        let views: HashMap<String, TensorView<'_>> = bytes
            .iter()
            .map(|(name, bytes)| {
                let shape = vec![1, bytes.len() / 4];
                (name.clone(), TensorView::new(Dtype::F32, shape, bytes).unwrap())
            })
            .collect();
        Box::new(Cursor::new(safetensors::serialize(&views, None).unwrap()))
    }

    #[test]
    fn changes_are_measured_as_by_hand() {
        let old = file(&[("same", &[1.0]), ("x.lora_A.weight", &[3.0, 4.0]), ("gone", &[2.0])]);
        let new = file(&[
            ("same", &[1.0]),
            ("x.lora_A.weight", &[4.0, 3.0]),
            ("fresh", &[0.0, 5.0]),
        ]);
        let (changed, equal) = compare(Some(old), Some(new)).unwrap();
        assert_eq!(equal, 1);
        let by_name: BTreeMap<&str, &TensorChange> = changed.iter().map(|c| (c.name.as_str(), c)).collect();
        let lora = by_name["x.lora_A.weight"];
        // |(1, -1)| = sqrt 2; |(3, 4)| = 5; (3*4 + 4*3) / 25 = 0.96
        assert!((lora.norm.unwrap() - 2f64.sqrt()).abs() < 1e-12);
        assert!((lora.relative.unwrap() - 2f64.sqrt() / 5.0).abs() < 1e-12);
        assert!((lora.cosine.unwrap() - 0.96).abs() < 1e-12);
        assert_eq!((lora.rank, lora.bytes, lora.kind), (Some(1), 8, "changed"));
        assert_eq!((by_name["fresh"].norm, by_name["fresh"].kind), (Some(5.0), "added"));
        assert_eq!((by_name["gone"].norm, by_name["gone"].kind), (Some(2.0), "removed"));
    }

    #[test]
    fn what_is_no_safetensors_file_is_an_error_not_a_panic() {
        for bytes in [&b""[..], b"1234567", &[255; 64], b"\x02\0\0\0\0\0\0\0{}"] {
            let _any = compare(Some(Box::new(Cursor::new(bytes.to_vec()))), None);
        }
    }
}
