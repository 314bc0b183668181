//! `reef-artifact.json`: what a release consists of and where it came from.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use super::ReleaseError;
use super::content::MAX_FILES;
use super::pointer::is_sha256;
use crate::domain::{BatchId, ContentId, Operation, ReleaseId, ScenarioName, Verdict, name_fault, path_fault};

/// The manifest's file name at the root of every release.
pub const MANIFEST_NAME: &str = "reef-artifact.json";

/// The most that a store can count.
pub(super) const LARGEST: u64 = i64::MAX as u64;

/// The format this build writes and reads.
const FORMAT: &str = "reef-artifact/1";

/// What one component of an artifact is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ArtifactKind {
    /// A full model in Hugging Face layout.
    Checkpoint,
    /// A LoRA adapter in PEFT layout.
    LoraAdapter,
    /// Files an agent's harness reads.
    HarnessTree,
    /// Rules that choose a model per request.
    RoutingPolicy,
    /// Files of no kind known to Reef.
    Files,
}

impl ArtifactKind {
    /// The word stored and shown.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Checkpoint => "checkpoint",
            Self::LoraAdapter => "lora-adapter",
            Self::HarnessTree => "harness-tree",
            Self::RoutingPolicy => "routing-policy",
            Self::Files => "files",
        }
    }
}

/// One component: its kind and the directory it lives in (empty: the whole artifact).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Component {
    /// Its kind.
    pub kind: ArtifactKind,
    /// Its directory, relative, without a trailing slash; empty for the root.
    pub path: String,
}

/// One file. The order of the fields is the order of the canonical form.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// Whether it may be executed.
    #[serde(default, skip_serializing_if = "is_false")]
    pub executable: bool,
    /// Relative path with `/`.
    pub path: String,
    /// SHA-256 of its bytes, 64 hex digits.
    pub sha256: String,
    /// Its size in bytes.
    pub size: u64,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_false(value: &bool) -> bool {
    !*value
}

/// The part of a manifest that the content id covers. The order of the fields is the order of the canonical form.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Content {
    /// Components by name.
    pub components: BTreeMap<String, Component>,
    /// Files, sorted by path.
    pub files: Vec<FileEntry>,
}

impl Content {
    /// SHA-256 of the canonical form: JSON without spaces, keys sorted, files sorted by the bytes of their paths.
    pub fn id(&self) -> Result<ContentId, ReleaseError> {
        let bad = |problem: String| ReleaseError::Damaged {
            release: "(content)".to_owned(),
            problem,
        };
        let bytes = serde_json::to_vec(self).map_err(|e| bad(e.to_string()))?;
        ContentId::new(format!("sha256:{}", hex::encode(Sha256::digest(&bytes)))).map_err(|e| bad(e.to_string()))
    }

    /// The sum of the sizes of all files.
    pub fn total_bytes(&self) -> u64 {
        self.files.iter().fold(0, |sum, file| sum.saturating_add(file.size))
    }

    /// The first file or component that no artifact may have, with the reason. Whatever is released, read, brought in or
    /// written out passes here.
    pub(super) fn fault(&self) -> Option<(&str, String)> {
        if self.files.len() > MAX_FILES {
            return Some(("", "there are more than 100,000 files".to_owned()));
        }
        let mut before: Option<&str> = None;
        let mut bytes: u64 = 0;
        for file in &self.files {
            let path = file.path.as_str();
            if let Some(problem) = path_fault(path) {
                return Some((path, problem.to_owned()));
            }
            if path == MANIFEST_NAME {
                return Some((path, "a release keeps its own manifest under this name".to_owned()));
            }
            if before.is_some_and(|before| before.as_bytes() >= path.as_bytes()) {
                return Some((path, "it is named twice, or out of order".to_owned()));
            }
            before = Some(path);
            if !is_sha256(&file.sha256) {
                return Some((path, "its digest is not 64 lower-case hex digits".to_owned()));
            }
            bytes = match bytes.checked_add(file.size).filter(|bytes| *bytes <= LARGEST) {
                Some(bytes) => bytes,
                None => return Some((path, "the sizes of the files add up to more than can be".to_owned())),
            };
        }
        let dirs = self.dirs();
        if let Some(file) = self.files.iter().find(|file| dirs.contains(file.path.as_str())) {
            return Some((&file.path, "it is a file and a directory".to_owned()));
        }
        component_fault(&self.components, &dirs)
    }

    /// Every directory that holds a file.
    pub(super) fn dirs(&self) -> BTreeSet<&str> {
        dirs_of(self.files.iter().map(|file| file.path.as_str()))
    }

    /// The kind, where there is one component: `composite` for several, `empty` for none.
    pub fn kind(&self) -> &'static str {
        let mut kinds = self.components.values().map(|c| c.kind.as_str());
        match (kinds.next(), kinds.next()) {
            (None, _) if self.files.is_empty() => "empty",
            (None, _) => ArtifactKind::Files.as_str(),
            (Some(kind), None) => kind,
            (Some(_), Some(_)) => "composite",
        }
    }
}

/// Every directory on the way to files.
pub(super) fn dirs_of<'p>(paths: impl Iterator<Item = &'p str>) -> BTreeSet<&'p str> {
    let mut dirs = BTreeSet::new();
    for mut path in paths {
        while let Some((above, _)) = path.rsplit_once('/') {
            if !dirs.insert(above) {
                break;
            }
            path = above;
        }
    }
    dirs
}

/// The first component that is not where its files are, with the reason.
pub(super) fn component_fault<'c>(
    components: &'c BTreeMap<String, Component>,
    dirs: &BTreeSet<&str>,
) -> Option<(&'c str, String)> {
    for (name, component) in components {
        let path = component.path.as_str();
        if let Some(problem) = name_fault(name) {
            return Some((path, format!("component {name:?}: {problem}")));
        }
        if path.is_empty() {
            continue;
        }
        if let Some(problem) = path_fault(path) {
            return Some((path, problem.to_owned()));
        }
        if !dirs.contains(path) {
            return Some((path, format!("component {name} should be there and is not")));
        }
    }
    None
}

/// Where the content came from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Source {
    /// Nothing: the engine's own model serves without additions.
    Empty,
    /// A directory given at the start.
    Seed,
    /// The content of another release, unchanged.
    Fork {
        /// That release.
        release_id: ReleaseId,
    },
    /// A step of a recipe.
    Training,
    /// A directory or another repository, brought in by a person.
    Import {
        /// Where it came from, in the person's words.
        from: String,
    },
}

/// How a release came to be. Everything here is evidence, none of it changes the content id.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Provenance {
    /// The batch it was trained on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch_id: Option<BatchId>,
    /// The recipe's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recipe: Option<String>,
    /// SHA-256 of the recipe's resolved settings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recipe_digest: Option<String>,
    /// The training step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
    /// The seed of everything random in the step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// The version of Reef that made it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code_version: Option<String>,
    /// Figures of the step.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub metrics: Map<String, Value>,
    /// The gate's decision with its evidence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<Verdict>,
    /// What a person said about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// The whole manifest.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// The format's name and version.
    pub format: String,
    /// The id of `content`.
    pub content_id: ContentId,
    /// What the release consists of.
    pub content: Content,
    /// The scenario; none for the base.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scenario: Option<ScenarioName>,
    /// Why it was appended.
    pub operation: Operation,
    /// Its place in the chain, the creation being 0.
    pub sequence: u64,
    /// The release before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_release_id: Option<ReleaseId>,
    /// The release whose content a rollback restored or a promote put in service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_release_id: Option<ReleaseId>,
    /// Held for review when it was published.
    #[serde(default, skip_serializing_if = "is_false")]
    pub held: bool,
    /// Where the content came from.
    pub source: Source,
    /// How it came to be.
    pub provenance: Provenance,
}

impl Manifest {
    /// The format this build writes.
    pub(super) fn format_name() -> String {
        FORMAT.to_owned()
    }

    /// The text stored: keys sorted, indented by two, a final newline.
    pub(super) fn to_text(&self) -> Result<String, serde_json::Error> {
        let mut text = serde_json::to_string_pretty(&sorted(serde_json::to_value(self)?))?;
        text.push('\n');
        Ok(text)
    }

    /// Reads a manifest and holds it to its own content id and to what an artifact may hold.
    pub(super) fn parse(release: &str, bytes: &[u8]) -> Result<Self, ReleaseError> {
        let damaged = |problem: String| ReleaseError::Damaged {
            release: release.to_owned(),
            problem,
        };
        #[derive(Deserialize)]
        struct Head {
            format: String,
        }
        let head: Head = serde_json::from_slice(bytes).map_err(|e| damaged(format!("{MANIFEST_NAME}: {e}")))?;
        if head.format != FORMAT {
            return Err(damaged(format!(
                "{MANIFEST_NAME} has the format {:?}; this build reads {FORMAT:?}",
                head.format
            )));
        }
        let manifest: Self = serde_json::from_slice(bytes).map_err(|e| damaged(format!("{MANIFEST_NAME}: {e}")))?;
        if manifest.content.id()? != manifest.content_id {
            return Err(damaged(format!("{MANIFEST_NAME} does not match its own content id")));
        }
        if let Some((path, problem)) = manifest.content.fault() {
            return Err(damaged(format!("{MANIFEST_NAME}: {}: {problem}", path.escape_debug())));
        }
        if manifest.sequence > LARGEST {
            return Err(damaged(format!(
                "{MANIFEST_NAME}: its sequence is {}",
                manifest.sequence
            )));
        }
        Ok(manifest)
    }
}

fn sorted(value: Value) -> Value {
    match value {
        Value::Object(map) => {
            let mut pairs: Vec<(String, Value)> = map.into_iter().map(|(k, v)| (k, sorted(v))).collect();
            pairs.sort_by(|a, b| a.0.cmp(&b.0));
            Value::Object(pairs.into_iter().collect())
        }
        Value::Array(items) => Value::Array(items.into_iter().map(sorted).collect()),
        other => other,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// The manifest of a creation.
    pub(in crate::release) fn of_creation(content: Content) -> Manifest {
        Manifest {
            format: Manifest::format_name(),
            content_id: content.id().unwrap(),
            content,
            scenario: None,
            operation: Operation::Creation,
            sequence: 0,
            parent_release_id: None,
            target_release_id: None,
            held: false,
            source: Source::Seed,
            provenance: Provenance::default(),
        }
    }

    fn content() -> Content {
        Content {
            components: BTreeMap::from([(
                "adapter".to_owned(),
                Component {
                    kind: ArtifactKind::LoraAdapter,
                    path: String::new(),
                },
            )]),
            files: vec![FileEntry {
                executable: false,
                path: "a.txt".to_owned(),
                sha256: "00".repeat(32),
                size: 3,
            }],
        }
    }

    #[test]
    fn the_content_id_is_that_of_the_documented_text() {
        // echo -n '<text>' | sha256sum
        let text = format!(
            r#"{{"components":{{"adapter":{{"kind":"lora-adapter","path":""}}}},"files":[{{"path":"a.txt","sha256":"{}","size":3}}]}}"#,
            "00".repeat(32)
        );
        assert_eq!(serde_json::to_string(&content()).unwrap(), text);
        assert_eq!(
            content().id().unwrap().as_str(),
            format!("sha256:{}", hex::encode(Sha256::digest(text.as_bytes())))
        );
    }

    #[test]
    fn a_manifest_survives_its_text_and_refuses_a_changed_one() {
        let manifest = of_creation(content());
        let text = manifest.to_text().unwrap();
        assert_eq!(Manifest::parse("x", text.as_bytes()).unwrap(), manifest);
        let changed = text.replace("\"size\": 3", "\"size\": 4");
        assert_ne!(changed, text);
        assert!(matches!(
            Manifest::parse("x", changed.as_bytes()),
            Err(ReleaseError::Damaged { .. })
        ));
        let newer = text.replace("reef-artifact/1", "reef-artifact/2");
        assert!(
            Manifest::parse("x", newer.as_bytes())
                .unwrap_err()
                .to_string()
                .contains("reef-artifact/2")
        );
    }
}
