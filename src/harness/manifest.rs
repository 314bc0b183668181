//! What a service tells an installer about a release: its files with their checksums, and what it needs of a machine.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::io;
use std::path::Path;

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::adapter::WireApi;
use super::tree::{LONGEST_BINARY, TREE_FILE};
use crate::domain::{Content, ContentId, Operation, ReleaseId};
use crate::experience::StepRow;

/// The files of a release as an agent reads them.
#[derive(Debug, Clone, Default)]
pub struct Files {
    /// Content by path.
    pub content: BTreeMap<String, Content>,
    /// Paths that may be executed.
    pub executable: BTreeSet<String>,
}

impl Files {
    /// Reads the named files of a release's directory: `(path, executable)`. The tree they were rendered from is left out,
    /// and so is what is no text and larger than any file of a tree: somebody imported it. Blocking.
    pub fn read<'a>(dir: &Path, paths: impl Iterator<Item = (&'a str, bool)>) -> io::Result<Self> {
        let mut files = Self::default();
        for (path, executable) in paths.filter(|(path, _)| *path != TREE_FILE) {
            let content = Content::from_bytes(std::fs::read(dir.join(path))?);
            if matches!(&content, Content::Binary(bytes) if bytes.len() > LONGEST_BINARY) {
                continue;
            }
            files.content.insert(path.to_owned(), content);
            if executable {
                files.executable.insert(path.to_owned());
            }
        }
        Ok(files)
    }

    /// SHA-256 over every path in order: the path, a newline, the length in bytes, a newline, the bytes.
    pub fn digest(&self) -> String {
        let mut digest = Sha256::new();
        for (path, content) in &self.content {
            let bytes = content.as_bytes();
            digest.update(format!("{path}\n{}\n", bytes.len()).as_bytes());
            digest.update(bytes);
        }
        hex::encode(digest.finalize())
    }
}

/// A release for an installer.
#[derive(Debug, Clone)]
pub struct Manifest<'a> {
    /// The release.
    pub release_id: &'a ReleaseId,
    /// Its content.
    pub content_id: &'a ContentId,
    /// The release before it.
    pub parent: Option<&'a ReleaseId>,
    /// The adapter the files are for.
    pub adapter: &'a str,
    /// Its files.
    pub files: &'a Files,
    /// The steps of its scenario, oldest first.
    pub steps: &'a [StepRow],
    /// The model the service answers with, where it says.
    pub model: Option<&'a str>,
    /// The API the service's engine speaks, where it says.
    pub api: Option<WireApi>,
}

impl Manifest<'_> {
    /// The document sent.
    pub fn to_json(&self) -> Value {
        let checksums: Map<String, Value> = self
            .files
            .content
            .iter()
            .map(|(path, content)| {
                let digest = hex::encode(Sha256::digest(content.as_bytes()));
                (path.clone(), Value::String(digest))
            })
            .collect();
        let evaluation = evaluation(self.steps, self.release_id);
        // Apart, because clients of this format take every value of `files` for the text of a file.
        let (text, binary): (Map<String, Value>, Map<String, Value>) = (
            self.files
                .content
                .iter()
                .filter_map(|(path, content)| Some((path.clone(), content.text()?.into())))
                .collect(),
            self.files
                .content
                .iter()
                .filter(|(_, content)| content.text().is_none())
                .map(|(path, content)| (path.clone(), content.to_base64().into()))
                .collect(),
        );
        json!({
            "release_id": self.release_id,
            "content_id": self.content_id,
            "parent_release_id": self.parent,
            "adapter": self.adapter,
            "files": text,
            "binary_files": binary,
            "executable": self.files.executable,
            "checksums": checksums,
            "digest": self.files.digest(),
            "evaluation": evaluation,
            "gate": evaluation,
            "requires": requires(self.steps, self.release_id),
            "model": self.model,
            "api": self.api,
        })
    }
}

/// The row that made a release: the oldest one that names it and was no rejection.
fn made<'a>(steps: &'a [StepRow], release: &ReleaseId) -> Option<&'a StepRow> {
    steps
        .iter()
        .find(|step| step.release.release_id == *release && matches!(step.outcome.as_str(), "released" | "held"))
}

/// The figures of the training step that made a release.
fn evaluation(steps: &[StepRow], release: &ReleaseId) -> Option<Map<String, Value>> {
    made(steps, release)
        .filter(|step| step.operation == Operation::Training)
        .map(|step| step.metrics.clone())
}

/// What a release needs of a machine: the items of every change on the way to it, by name, the newest definition of each
/// in the place of the oldest.
pub fn requires(steps: &[StepRow], release: &ReleaseId) -> Vec<Value> {
    let mut seen = HashSet::new();
    let mut chain = Vec::new();
    let mut next = Some(release);
    while let Some(step) = next.and_then(|release| made(steps, release)) {
        if !seen.insert(&step.release.release_id) {
            break;
        }
        chain.push(step);
        // A rollback or a promotion goes on from the release whose content it took.
        next = step.release.target.as_ref().or(step.release.parent.as_ref());
    }
    let mut items: Vec<Value> = Vec::new();
    for step in chain.iter().rev() {
        let request = step.metrics.get("training_request");
        let more = request
            .and_then(|request| request.get("requires"))
            .and_then(Value::as_array);
        for item in more.into_iter().flatten() {
            match items.iter_mut().find(|known| known.get("name") == item.get("name")) {
                Some(known) => *known = item.clone(),
                None => items.push(item.clone()),
            }
        }
    }
    items
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experience::{ReleaseRow, ReleaseState};

    fn id(n: u8) -> ReleaseId {
        ReleaseId::new(format!("{n:040x}")).unwrap()
    }

    fn step(n: u8, parent: Option<u8>, target: Option<u8>, outcome: &str, requires: &Value) -> StepRow {
        let operation = if target.is_some() {
            Operation::Rollback
        } else {
            Operation::Training
        };
        StepRow {
            step: u64::from(n),
            release: ReleaseRow {
                release_id: id(n),
                parent: parent.map(id),
                content_id: ContentId::new(format!("sha256:{}", "0".repeat(64))).unwrap(),
                kind: "harness-tree".to_owned(),
                bytes: 1,
                operation,
                sequence: u64::from(n),
                target: target.map(id),
                state: ReleaseState::Released,
                restorable: true,
                at_us: 0,
                note: None,
            },
            operation,
            outcome: outcome.to_owned(),
            batch_id: None,
            base_release_id: None,
            high_water: 0,
            reason: None,
            metrics: json!({"training_request": {"requires": requires}, "n": n})
                .as_object()
                .unwrap()
                .clone(),
            at_us: 0,
        }
    }

    #[test]
    fn needs_add_up_along_the_chain_and_the_newest_definition_wins() {
        let item = |name: &str, check: &str| json!({"name": name, "kind": "env", "check": check});
        let steps = [
            step(1, None, None, "released", &json!([item("a", "1"), item("b", "1")])),
            step(2, Some(1), None, "released", &json!([item("c", "1")])),
            step(3, Some(2), None, "rejected", &json!([item("never", "1")])),
            step(4, Some(2), None, "released", &json!([item("a", "2")])),
            step(5, Some(4), Some(1), "released", &json!([])),
            step(6, Some(5), None, "released", &json!([item("d", "1")])),
        ];
        assert_eq!(
            requires(&steps, &id(4)),
            [item("a", "2"), item("b", "1"), item("c", "1")]
        );
        // A rollback needs what the release it went back to needed.
        assert_eq!(
            requires(&steps, &id(6)),
            [item("a", "1"), item("b", "1"), item("d", "1")]
        );
        assert!(requires(&steps, &id(9)).is_empty());
        assert_eq!(evaluation(&steps, &id(4)).unwrap()["n"], 4);
        assert!(evaluation(&steps, &id(5)).is_none());
    }

    #[test]
    fn the_digest_is_that_of_the_documented_bytes() {
        let mut files = Files::default();
        files.content.insert("b".to_owned(), "ü\n".into());
        files.content.insert("a/c".to_owned(), "".into());
        let expected = hex::encode(Sha256::digest("a/c\n0\nb\n3\nü\n".as_bytes()));
        assert_eq!(files.digest(), expected);
    }
}
