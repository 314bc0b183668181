//! The directory of models: one folder per model in Hugging Face layout. A folder appears whole or not at all.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::check;
use super::config::ModelConfig;
use super::error::ModelError;
use super::file;
use super::gguf;
use super::safetensors_out::StoredDtype;
use crate::sys::regular;

/// What is known of an installed model.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ModelSummary {
    /// Its name: the folder.
    pub name: String,
    /// Where it lies.
    pub path: PathBuf,
    /// The family.
    pub architecture: &'static str,
    /// Number of weights.
    pub parameters: u64,
    /// Decoder layers.
    pub layers: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Rows of the embedding.
    pub vocab_size: usize,
    /// Positions the model was made for.
    pub max_positions: usize,
    /// Bytes of the weight files.
    pub weight_bytes: u64,
    /// Storage type as config.json names it.
    pub dtype: Option<String>,
    /// Whether a chat template comes with it.
    pub chat_template: bool,
}

/// The models under one directory.
#[derive(Debug, Clone)]
pub struct ModelStore {
    dir: PathBuf,
}

impl ModelStore {
    /// The directory need not exist yet.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into() }
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Every model, by name. Folders that hold none are left out.
    pub fn list(&self) -> Result<Vec<ModelSummary>, ModelError> {
        if !self.dir.exists() {
            return Ok(Vec::new());
        }
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.dir).map_err(|e| ModelError::io(&self.dir, e))? {
            let path = entry.map_err(|e| ModelError::io(&self.dir, e))?.path();
            let hidden = path.file_name().is_some_and(|n| n.to_string_lossy().starts_with('.'));
            if !hidden && path.join("config.json").is_file() {
                found.push(summary(&path)?);
            }
        }
        found.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(found)
    }

    /// A model by name, or by the path of its folder.
    pub fn resolve(&self, name: &str) -> Result<PathBuf, ModelError> {
        let candidates = [self.dir.join(name), PathBuf::from(name)];
        candidates
            .into_iter()
            .find(|path| path.join("config.json").is_file())
            .ok_or_else(|| ModelError::NotFound {
                name: name.to_owned(),
                dir: self.dir.clone(),
            })
    }

    /// What is known of one model.
    pub fn show(&self, name: &str) -> Result<ModelSummary, ModelError> {
        summary(&self.resolve(name)?)
    }

    /// Where a new model of this name will lie. Refuses a name that cannot be a folder or is taken.
    pub(crate) fn target(&self, name: &str) -> Result<PathBuf, ModelError> {
        check_name(name)?;
        let target = self.dir.join(name);
        if target.exists() {
            return Err(ModelError::request(format!(
                "a model named {name} is already there; choose another with --name or remove {}",
                target.display()
            )));
        }
        Ok(target)
    }

    /// Brings a GGUF file or a Hugging Face folder in under `name`.
    pub fn import(&self, source: &Path, name: &str, dtype: StoredDtype) -> Result<ModelSummary, ModelError> {
        let target = self.target(name)?;
        fs::create_dir_all(&self.dir).map_err(|e| ModelError::io(&self.dir, e))?;
        let part = self
            .dir
            .join(format!(".{name}.part-{}", crate::sys::random::hex_token()));
        fs::create_dir(&part).map_err(|e| ModelError::io(&part, e))?;
        let filled = if source.is_dir() {
            copy_folder(source, &part)
        } else {
            gguf::import(source, &part, dtype).map(drop)
        };
        // In the words of where it comes from: the folder it is copied to is gone when they are read.
        let sound = filled.and_then(|()| check::check(&part).map_err(|error| error.moved(&part, source)));
        let placed = sound.and_then(|()| {
            fs::rename(&part, &target).map_err(|e| ModelError::io(&target, e))?;
            crate::sys::durable::sync_dir(&self.dir).map_err(|e| ModelError::io(&self.dir, e))
        });
        if let Err(error) = placed {
            // The first error is the one that matters; a folder left behind begins with a dot and is not listed.
            let _ignored = fs::remove_dir_all(&part);
            return Err(error);
        }
        summary(&target)
    }
}

/// A name becomes a folder: no separators, nothing hidden.
fn check_name(name: &str) -> Result<(), ModelError> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if name.is_empty() || name.len() > 128 || name.starts_with('.') || !name.chars().all(plain) {
        return Err(ModelError::request(format!(
            "{name:?} cannot name a model; use letters, digits, '.', '_' and '-'"
        )));
    }
    Ok(())
}

/// Weight files of a Hugging Face folder, by `model.safetensors.index.json` or all of them.
pub(crate) fn weight_files(dir: &Path) -> Result<Vec<PathBuf>, ModelError> {
    let index = dir.join("model.safetensors.index.json");
    if let Some(index_value) = file::read_optional_json(&index)? {
        let map = index_value
            .get("weight_map")
            .and_then(|m| m.as_object())
            .ok_or_else(|| ModelError::malformed(&index, "weight_map is missing"))?;
        let mut names: Vec<&str> = map.values().filter_map(|v| v.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        if names.is_empty() || names.iter().any(|n| n.contains(['/', '\\']) || n.starts_with('.')) {
            return Err(ModelError::malformed(
                &index,
                "weight_map must name files of this folder",
            ));
        }
        return Ok(names.into_iter().map(|n| dir.join(n)).collect());
    }
    let single = dir.join("model.safetensors");
    if single.is_file() {
        return Ok(vec![single]);
    }
    Err(ModelError::unsupported(
        format!("{} without safetensors weights", dir.display()),
        "convert the weights to model.safetensors (pickle files are not read)",
    ))
}

/// The folder's known files, config checked first; nested folders and anything else stay behind.
fn copy_folder(source: &Path, target: &Path) -> Result<(), ModelError> {
    ModelConfig::load(source)?;
    let weights = weight_files(source)?;
    let small = [
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
        "special_tokens_map.json",
        "model.safetensors.index.json",
    ];
    let files = small
        .iter()
        .map(|name| source.join(name))
        .filter(|path| path.is_file())
        .chain(weights);
    for file in files {
        let Some(name) = file.file_name() else { continue };
        let to = target.join(name);
        // A copy, not a link: the source may be rewritten in place.
        regular::open(&file)
            .and_then(|mut from| io::copy(&mut from, &mut fs::File::create(&to)?))
            .map_err(|e| ModelError::io(&file, e))?;
        fs::File::open(&to)
            .and_then(|f| f.sync_all())
            .map_err(|e| ModelError::io(&to, e))?;
    }
    Ok(())
}

fn summary(path: &Path) -> Result<ModelSummary, ModelError> {
    let config = ModelConfig::load(path)?;
    let raw = file::read_json(&path.join("config.json"))?;
    let mut weight_bytes = 0;
    for weights in weight_files(path)? {
        weight_bytes += fs::metadata(&weights).map_err(|e| ModelError::io(&weights, e))?.len();
    }
    let template = path.join("chat_template.jinja").is_file()
        || file::read_optional_json(&path.join("tokenizer_config.json"))?
            .is_some_and(|c| c.get("chat_template").is_some_and(|t| !t.is_null()));
    let dtype = ["torch_dtype", "dtype"]
        .iter()
        .find_map(|key| raw.get(key).and_then(|v| v.as_str()))
        .map(str::to_owned);
    Ok(ModelSummary {
        name: path
            .file_name()
            .map_or_else(String::new, |n| n.to_string_lossy().into_owned()),
        path: path.to_owned(),
        architecture: config.architecture.as_str(),
        parameters: config.n_parameters(),
        layers: config.n_layers,
        hidden_size: config.hidden_size,
        vocab_size: config.vocab_size,
        max_positions: config.max_positions,
        weight_bytes,
        dtype,
        chat_template: template,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_leave_the_directory() {
        for bad in ["", "..", "a/b", ".hidden", "a b", "ü"] {
            assert!(check_name(bad).is_err(), "{bad}");
        }
        assert!(check_name("SmolLM2-135M-Instruct").is_ok());
    }

    #[test]
    fn a_pipe_in_a_folder_is_named_and_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = |name: &str| {
            let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR);
            rustix::fs::mknodat(rustix::fs::CWD, dir.path().join(name), kind, mode, 0).unwrap();
        };
        let store = ModelStore::new(dir.path().join("models"));
        let import = || {
            let error = store.import(dir.path(), "odd", StoredDtype::F32).unwrap_err();
            let source = std::error::Error::source(&error).map(ToString::to_string);
            format!("{error}: {}", source.unwrap_or_default())
        };
        let config = crate::engine::models::synthetic::synthetic_config().to_string();
        fs::write(dir.path().join("config.json"), config).unwrap();
        fs::write(
            dir.path().join("model.safetensors.index.json"),
            r#"{"weight_map": {"w": "part.safetensors"}}"#,
        )
        .unwrap();
        pipe("part.safetensors");
        assert!(import().contains("a named pipe"), "{}", import());
        fs::remove_file(dir.path().join("config.json")).unwrap();
        pipe("config.json");
        assert!(import().contains("a named pipe"), "{}", import());
    }

    #[test]
    fn a_failed_import_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let source = dir.path().join("bad.gguf");
        fs::write(&source, b"GGUX").unwrap();
        let store = ModelStore::new(dir.path().join("models"));
        store.import(&source, "bad", StoredDtype::F32).unwrap_err();
        assert_eq!(fs::read_dir(store.dir()).unwrap().count(), 0);
    }
}
