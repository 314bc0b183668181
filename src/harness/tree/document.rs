//! A whole tree, and the file it is kept in.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::entry::Entry;
use super::layout;
use super::refusal::{Refusal, Rule};
use super::{LARGEST_FILE, LARGEST_TREE, MOST_ENTRIES};
use crate::sys::regular;

/// The file of a release that holds its tree; what is beside it was rendered from it.
pub const TREE_FILE: &str = "reef-tree.json";

const FORMAT: &str = "reef-tree/1";

/// An ordered list of entries, for one adapter.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Tree {
    /// The adapter it was made for, where the file says.
    pub adapter: Option<String>,
    /// The entries; rules and settings take effect in this order.
    pub entries: Vec<Entry>,
}

/// A tree that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TreeError {
    /// The file or directory cannot be read.
    #[error("harness tree {} cannot be read", path.display())]
    Read {
        /// Where.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The text is no JSON or TOML.
    #[error("harness tree {} is not valid: {fault}", path.display())]
    Syntax {
        /// Where.
        path: PathBuf,
        /// What the parser says.
        fault: String,
    },
    /// An entry breaks a rule.
    #[error("harness tree {}: {refusal}", path.display())]
    Refused {
        /// Where.
        path: PathBuf,
        /// Which rule.
        #[source]
        refusal: Refusal,
    },
}

impl Tree {
    /// Reads `{"format", "adapter", "entries"}`, or a bare list of entries.
    pub fn from_json(value: &Value) -> Result<Self, Refusal> {
        let (adapter, items) = match value {
            Value::Array(items) => (None, items),
            Value::Object(fields) => {
                let known = ["format", "adapter", "entries"];
                if let Some(key) = fields.keys().find(|key| !known.contains(&key.as_str())) {
                    return Err(Refusal::new(
                        Rule::Shape,
                        format!(
                            "there is no field \"{}\"; the fields are format, adapter and entries",
                            super::refusal::shown(key)
                        ),
                    ));
                }
                match fields.get("format") {
                    None => {}
                    Some(Value::String(format)) if format == FORMAT => {}
                    Some(other) => {
                        return Err(Refusal::new(
                            Rule::Shape,
                            format!("the format is {other}; this build reads \"{FORMAT}\""),
                        ));
                    }
                }
                let adapter = match fields.get("adapter") {
                    None | Some(Value::Null) => None,
                    Some(Value::String(name)) => Some(name.clone()),
                    Some(_) => return Err(Refusal::new(Rule::Shape, "adapter must be a name")),
                };
                match fields.get("entries") {
                    None => (adapter, &Vec::new()),
                    Some(Value::Array(items)) => (adapter, items),
                    Some(_) => return Err(Refusal::new(Rule::Shape, "entries must be a list")),
                }
            }
            _ => return Err(Refusal::new(Rule::Shape, "a tree is a list of entries")),
        };
        let entries = items.iter().map(Entry::from_json).collect::<Result<Vec<_>, _>>()?;
        let tree = Self { adapter, entries };
        tree.check()?;
        Ok(tree)
    }

    /// Reads a tree from a JSON or TOML file, or from a directory of files (`AGENTS.md`, `rules/`, `commands/`,
    /// `skills/`, `extensions/`, and `tree.json` or `tree.toml` for everything else). Blocking.
    pub fn read(path: &Path) -> Result<Self, TreeError> {
        if path.is_dir() {
            return layout::read(path);
        }
        let text = regular::named_text_at_most(path, LARGEST_FILE).map_err(|source| TreeError::Read {
            path: path.to_path_buf(),
            source,
        })?;
        Self::parse(path, &text)
    }

    pub(super) fn parse(path: &Path, text: &str) -> Result<Self, TreeError> {
        let syntax = |fault: String| TreeError::Syntax {
            path: path.to_path_buf(),
            fault,
        };
        let value: Value = if path.extension().is_some_and(|extension| extension == "toml") {
            toml::from_str(text).map_err(|error| syntax(error.to_string().trim().to_owned()))?
        } else {
            serde_json::from_str(text).map_err(|error| syntax(error.to_string()))?
        };
        Self::from_json(&value).map_err(|refusal| TreeError::Refused {
            path: path.to_path_buf(),
            refusal,
        })
    }

    /// The rules about a tree as a whole.
    pub(super) fn check(&self) -> Result<(), Refusal> {
        if self.entries.len() > MOST_ENTRIES {
            return Err(Refusal::new(
                Rule::TooLarge,
                format!(
                    "there are {} entries; at most {MOST_ENTRIES} are allowed",
                    self.entries.len()
                ),
            ));
        }
        let mut seen = BTreeSet::new();
        if let Some(entry) = self.entries.iter().find(|entry| !seen.insert(entry.id.as_str())) {
            return Err(Refusal::new(Rule::DuplicateId, "the id is given twice").entry(&entry.id));
        }
        let bytes = self.entries_json().to_string().len();
        if bytes > LARGEST_TREE {
            return Err(Refusal::new(
                Rule::TooLarge,
                format!("the tree has {bytes} bytes; at most {LARGEST_TREE} are allowed"),
            ));
        }
        Ok(())
    }

    /// The entry with this id.
    pub fn get(&self, id: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.id == id)
    }

    /// The list of entries in its stored form.
    pub fn entries_json(&self) -> Value {
        self.entries.iter().map(Entry::to_json).collect()
    }

    /// The whole document in its stored form.
    pub fn to_json(&self) -> Value {
        let mut value = json!({"format": FORMAT});
        if let Some(adapter) = &self.adapter {
            value["adapter"] = Value::String(adapter.clone());
        }
        value["entries"] = self.entries_json();
        value
    }

    /// The text of the file.
    pub fn to_text(&self) -> String {
        format!("{:#}\n", self.to_json())
    }

    /// SHA-256 over what the entries say, without who made them: two trees with one digest render the same files.
    pub fn digest(&self) -> String {
        let mut entries = self.entries_json();
        for entry in entries.as_array_mut().into_iter().flatten() {
            if let Some(fields) = entry.as_object_mut() {
                fields.shift_remove("provenance");
            }
        }
        entries.sort_all_objects();
        hex::encode(Sha256::digest(entries.to_string().as_bytes()))
    }
}
