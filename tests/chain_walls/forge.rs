//! Makes releases that no Reef would make, object by object, as whoever holds a remote can.

use std::collections::BTreeMap;
use std::path::Path;

use git2::{ObjectType, Oid, Repository};
use reef::domain::ReleaseId;
use reef::release::Content;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// One thing that is not as Reef would have it. An empty list of them makes a sound release.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Edit {
    /// A file more, or another one in its place.
    File {
        path: String,
        #[serde(default)]
        text: String,
        #[serde(default = "plain")]
        mode: u32,
        /// In the manifest.
        #[serde(default = "yes")]
        listed: bool,
        /// In the tree.
        #[serde(default = "yes")]
        stored: bool,
    },
    /// A file less.
    Forget {
        path: String,
        #[serde(default = "yes")]
        listed: bool,
        #[serde(default = "yes")]
        stored: bool,
    },
    /// The manifest's list of files in the order they came, or turned round.
    Reverse,
    /// The first file of the manifest twice.
    Double,
    /// The same name twice in the tree.
    DoubleEntry { name: String },
    /// A value of the manifest.
    Set { at: String, to: Value },
    /// A trailer of the message; null takes it out.
    Trailer { name: String, to: Option<String> },
    /// A line at the end of the message.
    Line { text: String },
    /// The attributes of the tree.
    Attributes { text: String },
    /// More parents, all of them the head.
    Parents { more: usize },
    /// The content id stays what it was.
    StaleId,
    /// One byte of the manifest's text.
    Byte { at: usize, to: u8 },
}

fn plain() -> u32 {
    0o100_644
}

fn yes() -> bool {
    true
}

struct Entry {
    mode: u32,
    oid: Oid,
}

/// Writes a release on top of `head` into the repository at `path`, edited. No ref moves.
pub fn forge(path: &Path, head: &ReleaseId, edits: &[Edit]) -> ReleaseId {
    let git = Repository::open_bare(path).unwrap();
    let parent = git.find_commit(Oid::from_str(head.as_str()).unwrap()).unwrap();
    let (mut manifest, mut files) = read(&git, &parent);
    let content_id = manifest["content_id"].clone();
    manifest["parent_release_id"] = json!(head);
    manifest["sequence"] = json!(manifest["sequence"].as_u64().unwrap().wrapping_add(1));
    manifest["operation"] = json!("import");
    manifest["source"] = json!({"kind": "import", "from": "elsewhere"});
    let fields = manifest.as_object_mut().unwrap();
    fields.remove("target_release_id");
    fields.remove("held");
    let (mut trailers, mut lines) = (Vec::new(), Vec::new());
    let (mut parents, mut stale, mut bytes, mut doubled) = (vec![parent.id()], false, Vec::new(), None);
    for edit in edits {
        match edit {
            Edit::File {
                path,
                text,
                mode,
                listed,
                stored,
            } => {
                if *listed {
                    list(&mut manifest, path, Some((text, *mode)));
                }
                if *stored {
                    let oid = git.blob(text.as_bytes()).unwrap();
                    let oid = if *mode == 0o160_000 { parent.id() } else { oid };
                    files.insert(path.clone(), Entry { mode: *mode, oid });
                }
            }
            Edit::Forget { path, listed, stored } => {
                if *listed {
                    list(&mut manifest, path, None);
                }
                if *stored {
                    files.remove(path);
                }
            }
            Edit::Reverse => {
                if let Some(listed) = listed_files(&mut manifest) {
                    listed.reverse();
                }
            }
            Edit::Double => {
                if let Some(listed) = listed_files(&mut manifest)
                    && let Some(first) = listed.first().cloned()
                {
                    listed.insert(0, first);
                }
            }
            Edit::DoubleEntry { name } => doubled = Some(name.clone()),
            Edit::Set { at, to } => {
                if let Some(value) = manifest.pointer_mut(at) {
                    *value = to.clone();
                } else if let Some((above, key)) = at.rsplit_once('/')
                    && let Some(Value::Object(fields)) = manifest.pointer_mut(above)
                {
                    fields.insert(key.to_owned(), to.clone());
                }
            }
            Edit::Trailer { name, to } => trailers.push((name.clone(), to.clone())),
            Edit::Line { text } => lines.push(text.clone()),
            Edit::Attributes { text } => {
                let oid = git.blob(text.as_bytes()).unwrap();
                files.insert(".gitattributes".to_owned(), Entry { mode: plain(), oid });
            }
            Edit::Parents { more } => parents.extend(std::iter::repeat_n(parent.id(), *more)),
            Edit::StaleId => stale = true,
            Edit::Byte { at, to } => bytes.push((*at, *to)),
        }
    }
    let content: Option<Content> = serde_json::from_value(manifest["content"].clone()).ok();
    if let Some(content) = content.as_ref().filter(|_| !stale) {
        manifest["content_id"] = json!(content.id().unwrap());
    } else {
        manifest["content_id"] = content_id;
    }
    let message = message(&manifest, content.as_ref(), trailers, &lines);
    let mut text = format!("{manifest:#}\n").into_bytes();
    for (at, to) in bytes {
        let at = at % text.len();
        text[at] = to;
    }
    let oid = git.blob(&text).unwrap();
    files.insert("reef-artifact.json".to_owned(), Entry { mode: plain(), oid });
    let tree = tree(&git, files, doubled.as_deref());
    commit(&git, tree, &parents, &message)
}

/// The manifest of a commit, and every entry of its tree by path.
fn read(git: &Repository, commit: &git2::Commit<'_>) -> (Value, BTreeMap<String, Entry>) {
    let mut files = BTreeMap::new();
    let tree = commit.tree().unwrap();
    tree.walk(git2::TreeWalkMode::PreOrder, |dir, entry| {
        if entry.kind() == Some(ObjectType::Blob) {
            let path = format!("{dir}{}", entry.name().unwrap());
            let mode = u32::try_from(entry.filemode()).unwrap();
            files.insert(path, Entry { mode, oid: entry.id() });
        }
        git2::TreeWalkResult::Ok
    })
    .unwrap();
    let blob = git.find_blob(files["reef-artifact.json"].oid).unwrap();
    (serde_json::from_slice(blob.content()).unwrap(), files)
}

/// The files of a manifest, unless an edit before made something else of them.
fn listed_files(manifest: &mut Value) -> Option<&mut Vec<Value>> {
    manifest.pointer_mut("/content/files")?.as_array_mut()
}

fn list(manifest: &mut Value, path: &str, file: Option<(&String, u32)>) {
    let Some(listed) = listed_files(manifest) else { return };
    listed.retain(|entry| entry["path"] != path);
    if let Some((text, mode)) = file {
        let sha256 = hex::encode(Sha256::digest(text.as_bytes()));
        let mut entry = json!({"path": path, "sha256": sha256, "size": text.len()});
        if mode == 0o100_755 {
            entry["executable"] = json!(true);
        }
        listed.push(entry);
    }
    listed.sort_by(|a, b| a["path"].as_str().cmp(&b["path"].as_str()));
}

fn message(
    manifest: &Value,
    content: Option<&Content>,
    trailers: Vec<(String, Option<String>)>,
    lines: &[String],
) -> String {
    let shown = |value: &Value| match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let mut all = vec![
        ("Operation".to_owned(), shown(&manifest["operation"])),
        ("Scenario".to_owned(), shown(&manifest["scenario"])),
        ("Sequence".to_owned(), shown(&manifest["sequence"])),
        ("Content".to_owned(), shown(&manifest["content_id"])),
        ("Kind".to_owned(), content.map_or("files", Content::kind).to_owned()),
        ("Bytes".to_owned(), content.map_or(0, Content::total_bytes).to_string()),
    ];
    if let Some(target) = manifest["target_release_id"].as_str() {
        all.push(("Target".to_owned(), target.to_owned()));
    }
    if manifest["held"] == true {
        all.push(("Held".to_owned(), "true".to_owned()));
    }
    all.push(("At".to_owned(), "1790000000000000".to_owned()));
    all.push(("Intent".to_owned(), "forged".to_owned()));
    for (name, to) in trailers {
        all.retain(|(known, _)| *known != name);
        all.extend(to.map(|to| (name, to)));
    }
    let mut text = String::from("s: import\n\n");
    for (name, value) in all {
        text.push_str(&format!("Reef-{name}: {value}\n"));
    }
    for line in lines {
        text.push_str(&format!("{line}\n"));
    }
    text
}

/// Trees written byte by byte: git2 would refuse what is tried here.
fn tree(git: &Repository, files: BTreeMap<String, Entry>, doubled: Option<&str>) -> Oid {
    let mut dirs: BTreeMap<String, BTreeMap<String, Entry>> = BTreeMap::new();
    let mut here: Vec<(String, Entry)> = Vec::new();
    for (path, entry) in files {
        match path.split_once('/') {
            Some((dir, rest)) => {
                dirs.entry(dir.to_owned()).or_default().insert(rest.to_owned(), entry);
            }
            None => here.push((path, entry)),
        }
    }
    for (name, below) in dirs {
        let oid = tree(git, below, None);
        here.push((name, Entry { mode: 0o40_000, oid }));
    }
    let key = |(name, entry): &(String, Entry)| {
        let mut key = name.clone().into_bytes();
        if entry.mode == 0o40_000 {
            key.push(b'/');
        }
        key
    };
    here.sort_by_key(key);
    let mut bytes = Vec::new();
    for (name, entry) in &here {
        for _ in 0..if doubled == Some(name) { 2 } else { 1 } {
            bytes.extend(format!("{:o} {name}\0", entry.mode).into_bytes());
            bytes.extend(entry.oid.as_bytes());
        }
    }
    git.odb().unwrap().write(ObjectType::Tree, &bytes).unwrap()
}

fn commit(git: &Repository, tree: Oid, parents: &[Oid], message: &str) -> ReleaseId {
    let mut text = format!("tree {tree}\n");
    for parent in parents {
        text.push_str(&format!("parent {parent}\n"));
    }
    let who = "Reef <reef@localhost> 1790000000 +0000";
    text.push_str(&format!("author {who}\ncommitter {who}\n\n{message}"));
    let oid = git.odb().unwrap().write(ObjectType::Commit, text.as_bytes()).unwrap();
    ReleaseId::new(oid.to_string()).unwrap()
}

/// Points a scenario's chain at a release, by both of the names it has on a remote.
pub fn point_chain(path: &Path, scenario: &str, release: &ReleaseId) {
    point(path, &format!("refs/heads/{scenario}"), release);
    let alias = format!("refs/reef/scenarios/{scenario}/head");
    let git = Repository::open_bare(path).unwrap();
    let symbolic = git.find_reference(&alias).is_ok_and(|found| found.target().is_none());
    if !symbolic {
        point(path, &alias, release);
    }
}

/// Points a ref at a release, whatever it was at before.
pub fn point(path: &Path, name: &str, release: &ReleaseId) {
    let git = Repository::open_bare(path).unwrap();
    let oid = Oid::from_str(release.as_str()).unwrap();
    git.reference(name, oid, true, "forged").unwrap();
}
