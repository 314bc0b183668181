//! Whether weight files are what their component says, before they can become a release: an adapter that no loader
//! would accept must be refused where it is offered, not found out when it should be served.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use safetensors::tensor::{Metadata, TensorInfo};
use serde_json::Value;

use super::content::Found;
use super::{ArtifactKind, Component, ReleaseError};
use crate::sys::lfs;

/// A header larger than this is no header.
pub(super) const LARGEST_HEADER: u64 = 100 << 20;
const ADAPTER_CONFIG: &str = "adapter_config.json";
const ADAPTER_WEIGHTS: &str = "adapter_model.safetensors";
/// A configuration is a page of text.
const LARGEST_CONFIG: u64 = 1 << 20;

/// Checks the weights of every component.
pub(super) fn check(dir: &Path, components: &BTreeMap<String, Component>, found: &[Found]) -> Result<(), ReleaseError> {
    for component in components.values() {
        let inside =
            |file: &&Found| component.path.is_empty() || file.path.starts_with(&format!("{}/", component.path));
        let files = || found.iter().filter(inside);
        if matches!(component.kind, ArtifactKind::LoraAdapter | ArtifactKind::Checkpoint) {
            files().try_for_each(|file| no_pointer(&file.absolute))?;
        }
        match component.kind {
            ArtifactKind::LoraAdapter => adapter(&dir.join(&component.path))?,
            ArtifactKind::Checkpoint => {
                for file in files().filter(|file| file.path.ends_with(".safetensors")) {
                    tensors(&file.absolute).map_err(at(&file.absolute))?;
                }
            }
            ArtifactKind::HarnessTree | ArtifactKind::RoutingPolicy | ArtifactKind::Files => {}
        }
    }
    Ok(())
}

fn at(path: &Path) -> impl Fn(String) -> ReleaseError {
    move |problem| ReleaseError::BadContent {
        path: path.to_path_buf(),
        problem,
    }
}

/// Weights or a tokenizer that were never brought would be found out when they should be served.
fn no_pointer(path: &Path) -> Result<(), ReleaseError> {
    let found = File::open(path).and_then(|mut file| lfs::is_pointer(&mut file));
    match found.map_err(|error| at(path)(error.to_string()))? {
        true => Err(at(path)(lfs::POINTER.to_owned())),
        false => Ok(()),
    }
}

/// A folder in the layout of `peft`: `adapter_config.json`, and beside it pairs of factors of the rank it names.
fn adapter(dir: &Path) -> Result<(), ReleaseError> {
    let path = dir.join(ADAPTER_CONFIG);
    let config = configuration(&path).map_err(at(&path))?;
    let weights = dir.join(ADAPTER_WEIGHTS);
    let tensors = tensors(&weights).map_err(at(&weights))?;
    pairs(&config, &tensors).map_err(at(&weights))
}

fn configuration(path: &Path) -> Result<Value, String> {
    let mut text = String::new();
    File::open(path)
        .and_then(|file| file.take(LARGEST_CONFIG).read_to_string(&mut text))
        .map_err(|error| format!("an adapter needs it, and it cannot be read: {error}"))?;
    let config: Value = serde_json::from_str(&text).map_err(|error| format!("it is not JSON: {error}"))?;
    match config["peft_type"].as_str() {
        Some("LORA") => {}
        other => {
            return Err(format!(
                "its peft_type is {}: only LORA adapters can be released",
                other.unwrap_or("missing")
            ));
        }
    }
    match config["r"].as_u64() {
        Some(1..) => Ok(config),
        _ => Err("its rank `r` is not a whole number above zero".to_owned()),
    }
}

/// The tensors of a file by name, once its header is sound and the file ends where the header says.
fn tensors(path: &Path) -> Result<BTreeMap<String, TensorInfo>, String> {
    let read = || -> io::Result<(Metadata, u64)> {
        let mut file = File::open(path)?;
        let size = file.metadata()?.len();
        let mut length = [0; 8];
        file.read_exact(&mut length)?;
        let length = u64::from_le_bytes(length);
        if length > LARGEST_HEADER.min(size) {
            return Err(io::Error::other("its header would be longer than the file"));
        }
        let mut header = Vec::new();
        file.take(length).read_to_end(&mut header)?;
        Ok((serde_json::from_slice(&header)?, size.saturating_sub(8 + length)))
    };
    let (metadata, data) = read().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => "its weights are missing".to_owned(),
        _ => format!("it is not a safetensors file: {error}"),
    })?;
    let stated = metadata.data_len() as u64;
    if stated != data {
        return Err(format!(
            "its header speaks of {stated} bytes of tensors, and {data} are there"
        ));
    }
    let tensors = metadata.tensors().into_iter();
    Ok(tensors.map(|(name, info)| (name, info.clone())).collect())
}

fn pairs(config: &Value, tensors: &BTreeMap<String, TensorInfo>) -> Result<(), String> {
    // Ranks may differ by module, as written in this table.
    let uniform = config["rank_pattern"].as_object().is_none_or(serde_json::Map::is_empty);
    let mut any = false;
    for (name, a) in tensors.iter().filter(|(name, _)| name.contains(".lora_A.")) {
        let other = name.replace(".lora_A.", ".lora_B.");
        let b = tensors.get(&other).ok_or_else(|| format!("{name} has no {other}"))?;
        let (&[rank, _], &[_, same]) = (a.shape.as_slice(), b.shape.as_slice()) else {
            return Err(format!("{name} and {other} are not matrices"));
        };
        if rank != same || (uniform && Some(rank as u64) != config["r"].as_u64()) {
            return Err(format!(
                "{name} has rank {rank}, {other} has rank {same}, and {ADAPTER_CONFIG} says {}",
                config["r"]
            ));
        }
        any = true;
    }
    if let Some(name) = tensors
        .keys()
        .find(|name| name.contains(".lora_B.") && !tensors.contains_key(&name.replace(".lora_B.", ".lora_A.")))
    {
        return Err(format!("{name} has no lora_A beside it"));
    }
    if any {
        Ok(())
    } else {
        Err("it holds no pair of lora_A and lora_B".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn file(tensors: &[(&str, &[usize])]) -> Vec<u8> {
        let mut header = serde_json::Map::new();
        let mut end = 0;
        for (name, shape) in tensors {
            let size: usize = shape.iter().product();
            header.insert(
                (*name).to_owned(),
                serde_json::json!({"dtype": "U8", "shape": shape, "data_offsets": [end, end + size]}),
            );
            end += size;
        }
        let header = Value::Object(header).to_string();
        [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &vec![0; end]].concat()
    }

    fn verdict(config: &str, weights: Option<&[u8]>) -> String {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(ADAPTER_CONFIG), config).unwrap();
        if let Some(weights) = weights {
            fs::write(dir.path().join(ADAPTER_WEIGHTS), weights).unwrap();
        }
        adapter(dir.path()).map_or_else(|error| error.to_string(), |()| "ok".to_owned())
    }

    #[test]
    fn an_adapter_is_what_peft_would_load() {
        let config = r#"{"peft_type": "LORA", "r": 2}"#;
        let good = file(&[("m.q.lora_A.weight", &[2, 3]), ("m.q.lora_B.weight", &[4, 2])]);
        assert_eq!(verdict(config, Some(&good)), "ok");
        let odd = file(&[("m.q.lora_A.weight", &[1, 3]), ("m.q.lora_B.weight", &[4, 1])]);
        assert_eq!(
            verdict(r#"{"peft_type": "LORA", "r": 2, "rank_pattern": {"q": 1}}"#, Some(&odd)),
            "ok"
        );
        for (config, weights, problem) in [
            ("{", Some(&good), "not JSON"),
            (r#"{"peft_type": "IA3", "r": 2}"#, Some(&good), "peft_type is IA3"),
            (r#"{"peft_type": "LORA", "r": 0}"#, Some(&good), "rank `r`"),
            (config, None, "weights are missing"),
            (
                config,
                Some(&good[..good.len() - 1].to_vec()),
                "14 bytes of tensors, and 13 are there",
            ),
            (config, Some(&vec![7; 100]), "not a safetensors file"),
            (config, Some(&vec![0; 4]), "not a safetensors file"),
            (config, Some(&odd), "has rank 1"),
            (
                config,
                Some(&file(&[("m.q.lora_A.weight", &[2, 3])])),
                "has no m.q.lora_B.weight",
            ),
            (config, Some(&file(&[("m.q.lora_B.weight", &[3, 2])])), "has no lora_A"),
            (config, Some(&file(&[("m.q.weight", &[2, 2])])), "no pair"),
        ] {
            let said = verdict(config, weights.map(Vec::as_slice));
            assert!(said.contains(problem), "{problem}: {said}");
        }
    }
}
