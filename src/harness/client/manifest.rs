//! What the service says a release consists of, checked before any of it touches the disk.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::error::{ClientError, Kind};
use crate::domain::{Content, ReleaseId, path_fault};
use crate::harness::adapter::WireApi;

/// Most files of a release.
const MAX_FILES: usize = 4096;
/// Most bytes of a release.
const MAX_BYTES: usize = 16 * 1024 * 1024;

/// Files of Reef's own beside those of a release.
pub(super) const SIDECAR: &str = ".reef-harness-release";

/// Something a release needs on the user's machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Requirement {
    /// Its name.
    pub name: String,
    /// `permission`, `env`, `service` or `binary`.
    pub kind: String,
    /// For `env` the variable, otherwise a shell command that succeeds when it is met.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub check: Option<String>,
    /// What to ask of the person.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
}

/// A release's files and what it needs.
#[derive(Debug, Clone, PartialEq)]
pub struct Manifest {
    /// The release.
    pub release_id: ReleaseId,
    /// Its content.
    pub content_id: Option<String>,
    /// Content by path.
    pub files: BTreeMap<String, Content>,
    /// Paths that may be executed.
    pub executable: BTreeSet<String>,
    /// What it needs.
    pub requires: Vec<Requirement>,
    /// The agent it was rendered for, where the service says.
    pub adapter: Option<String>,
    /// The model the service suggests.
    pub model: Option<String>,
    /// The API the service speaks.
    pub api: Option<WireApi>,
}

#[derive(Deserialize)]
struct Wire {
    release_id: ReleaseId,
    #[serde(default)]
    content_id: Option<String>,
    files: BTreeMap<String, String>,
    /// What is no text, in base64.
    #[serde(default)]
    binary_files: BTreeMap<String, String>,
    #[serde(default)]
    checksums: BTreeMap<String, String>,
    #[serde(default)]
    executable: BTreeSet<String>,
    #[serde(default)]
    requires: Vec<Requirement>,
    #[serde(default)]
    adapter: Option<String>,
    #[serde(default)]
    model: Option<String>,
    #[serde(default)]
    api: Option<WireApi>,
}

impl Manifest {
    /// Reads `GET /reef/harness`.
    pub fn from_json(value: &Value) -> Result<Self, ClientError> {
        let wire = Wire::deserialize(value)
            .map_err(|error| refused(format!("the service's manifest cannot be read: {error}")))?;
        let mut files: BTreeMap<String, Content> = wire
            .files
            .into_iter()
            .map(|(path, text)| (path, Content::Text(text)))
            .collect();
        for (path, data) in wire.binary_files {
            let content = Content::from_base64(&data)
                .map_err(|fault| refused(format!("{} cannot be read: {fault}", shown(&path))))?;
            if files.insert(path.clone(), content).is_some() {
                return Err(refused(format!("the manifest has {} twice", shown(&path))));
            }
        }
        let manifest = Self {
            release_id: wire.release_id,
            content_id: wire.content_id,
            files,
            executable: wire.executable,
            requires: wire.requires,
            adapter: wire.adapter,
            model: wire.model,
            api: wire.api,
        };
        manifest.check_paths()?;
        for (path, expected) in &wire.checksums {
            let Some(content) = manifest.files.get(path) else {
                return Err(refused(format!(
                    "the manifest has a checksum for {} but no such file",
                    shown(path)
                )));
            };
            let expected = expected.strip_prefix("sha256:").unwrap_or(expected);
            if sha256(content.as_bytes()) != expected {
                return Err(refused(format!(
                    "{} does not match its checksum; it was changed on the way",
                    shown(path)
                ))
                .hint("try again; if it happens again, ask whoever runs the service"));
            }
        }
        Ok(manifest)
    }

    fn check_paths(&self) -> Result<(), ClientError> {
        if self.files.len() > MAX_FILES {
            return Err(refused(format!(
                "the release has {} files, at most {MAX_FILES}",
                self.files.len()
            )));
        }
        let bytes: usize = self.files.values().map(|content| content.as_bytes().len()).sum();
        if bytes > MAX_BYTES {
            return Err(refused(format!("the release has {bytes} bytes, at most {MAX_BYTES}")));
        }
        for path in self.files.keys() {
            if !is_plain(path) {
                return Err(refused(format!(
                    "the release has a file named {}, which is not a plain relative path",
                    shown(path)
                )));
            }
        }
        // A path that is a directory of another one cannot be a file too.
        for path in self.files.keys() {
            let mut at = 0;
            while let Some(slash) = path[at..].find('/') {
                at += slash;
                if self.files.contains_key(&path[..at]) {
                    return Err(refused(format!(
                        "the release has {} both as a file and as a directory",
                        shown(&path[..at])
                    )));
                }
                at += 1;
            }
        }
        Ok(())
    }
}

/// A relative path of ordinary names, none of them one of Reef's own.
fn is_plain(path: &str) -> bool {
    path.len() <= 512
        && path_fault(path).is_none()
        && path
            .split('/')
            .all(|part| part.len() <= 200 && !part.starts_with(".reef-"))
}

fn refused(mut message: String) -> ClientError {
    message.push_str("; nothing was changed");
    ClientError::new(Kind::Machine, message)
}

fn shown(path: &str) -> String {
    format!(
        "\"{}\"",
        path.chars().take(80).flat_map(char::escape_default).collect::<String>()
    )
}

/// 64 hex digits.
pub(super) fn sha256(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn with_files(files: &Value) -> Result<Manifest, ClientError> {
        Manifest::from_json(&json!({"release_id": "r1", "files": files}))
    }

    #[test]
    fn hostile_paths_are_refused() {
        assert!(with_files(&json!({"pi-agent/AGENTS.md": "x"})).is_ok());
        for bad in [
            "",
            "/etc/passwd",
            "../x",
            "a/../../x",
            "a//b",
            "./a",
            "a\\b",
            "a\n",
            ".reef-harness-release",
            "a/.reef-x",
            ".git/config",
            "pi-agent/GIT~1/config",
            "a/.g\u{200d}itattributes",
        ] {
            let error = with_files(&json!({bad: "x"})).unwrap_err().to_string();
            assert!(error.contains("nothing was changed"), "{bad:?}: {error}");
        }
        assert!(with_files(&json!({"a": "x", "a/b": "y"})).is_err());
        assert!(with_files(&json!({"a/b": "x", "a/b/c/d": "y"})).is_err());
        assert!(with_files(&json!({"a/b": "x", "a/bc": "y"})).is_ok());
    }

    #[test]
    fn a_checksum_that_does_not_match_is_refused() {
        let good = json!({"release_id": "r", "files": {"a": "x"}, "checksums": {"a": sha256(b"x")}});
        assert!(Manifest::from_json(&good).is_ok());
        for checksums in [json!({"a": sha256(b"y")}), json!({"b": sha256(b"x")})] {
            let bad = json!({"release_id": "r", "files": {"a": "x"}, "checksums": checksums});
            assert!(Manifest::from_json(&bad).is_err());
        }
    }

    #[test]
    fn what_is_no_manifest_is_refused() {
        for bad in [
            json!({}),
            json!({"release_id": 1, "files": {}}),
            json!({"release_id": "r"}),
            json!([]),
        ] {
            assert!(Manifest::from_json(&bad).is_err());
        }
    }
}
