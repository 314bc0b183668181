//! Reading a directory that is to become an artifact.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::error::unreadable;
use super::{ArtifactKind, Component, MANIFEST_NAME, Manifest, ReleaseError};
use crate::domain::path_fault;
use crate::sys::regular;

/// More files than this are a mistake, such as a virtual environment inside a harness tree.
pub(super) const MAX_FILES: usize = 100_000;

/// Files by which a harness tree is known: its own document, and what agents look for.
const AGENT_FILES: [&str; 7] = [
    "reef-tree.json",
    "AGENTS.md",
    "CLAUDE.md",
    "GEMINI.md",
    "QWEN.md",
    "SKILL.md",
    "SOUL.md",
];

/// One file found.
#[derive(Debug)]
pub(super) struct Found {
    /// Relative path with `/`.
    pub path: String,
    /// Where it is.
    pub absolute: PathBuf,
    /// Its size.
    pub size: u64,
    /// Whether its owner may execute it.
    pub executable: bool,
}

/// Every file below `dir`, sorted by path. Links, sockets, names git would read as its own, and names that are not
/// UTF-8 are refused: an artifact is exactly what it shows.
pub(super) fn scan(dir: &Path) -> Result<Vec<Found>, ReleaseError> {
    let mut found = Vec::new();
    if !fs::metadata(dir).map_err(unreadable(dir))?.is_dir() {
        return Err(ReleaseError::BadContent {
            path: dir.to_path_buf(),
            problem: "it is not a directory".to_owned(),
        });
    }
    walk(dir, "", &mut found)?;
    found.sort_by(|a, b| a.path.as_bytes().cmp(b.path.as_bytes()));
    Ok(found)
}

fn walk(dir: &Path, prefix: &str, found: &mut Vec<Found>) -> Result<(), ReleaseError> {
    for entry in fs::read_dir(dir).map_err(unreadable(dir))? {
        let entry = entry.map_err(unreadable(dir))?;
        let absolute = entry.path();
        let bad = |problem: &str| ReleaseError::BadContent {
            path: absolute.clone(),
            problem: problem.to_owned(),
        };
        let name = entry.file_name();
        let name = name.to_str().ok_or_else(|| bad("its name is not UTF-8"))?;
        if prefix.is_empty() && name == MANIFEST_NAME {
            // An exported release brought back: the manifest is made anew. Anything else of this name would be lost.
            manifest_of(dir)?;
            continue;
        }
        let path = if prefix.is_empty() {
            name.to_owned()
        } else {
            format!("{prefix}/{name}")
        };
        if let Some(problem) = path_fault(&path) {
            return Err(bad(problem));
        }
        let metadata = fs::symlink_metadata(&absolute).map_err(unreadable(&absolute))?;
        if metadata.is_dir() {
            walk(&absolute, &path, found)?;
        } else if metadata.is_file() {
            if found.len() >= MAX_FILES {
                return Err(bad("there are more than 100,000 files"));
            }
            found.push(Found {
                path,
                size: metadata.len(),
                executable: metadata.permissions().mode() & 0o100 != 0,
                absolute,
            });
        } else if metadata.is_symlink() {
            return Err(bad("it is a symbolic link: put the file itself there"));
        } else {
            let kind = regular::name_of(metadata.file_type());
            return Err(bad(&format!("it is {kind}, and not a file or a directory")));
        }
    }
    Ok(())
}

/// The manifest that an export left in a directory.
fn manifest_of(dir: &Path) -> Result<Option<Manifest>, ReleaseError> {
    let path = dir.join(MANIFEST_NAME);
    let bytes = match regular::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(unreadable(&path)(error)),
    };
    match Manifest::parse("(exported)", &bytes) {
        Ok(manifest) => Ok(Some(manifest)),
        Err(error) => Err(ReleaseError::BadContent {
            path,
            problem: format!(
                "a release keeps its own manifest under this name, and this file is none ({}): give it another name",
                match error {
                    ReleaseError::Damaged { problem, .. } => problem,
                    other => other.to_string(),
                }
            ),
        }),
    }
}

/// What a directory holds that somebody offers without saying so: as its manifest has it, if it was exported, else by its
/// look, if that is clear.
pub(super) fn recognise(dir: &Path) -> Result<BTreeMap<String, Component>, ReleaseError> {
    let found = scan(dir)?;
    if let Some(manifest) = manifest_of(dir)?
        && !manifest.content.components.is_empty()
    {
        return Ok(manifest.content.components);
    }
    let paths: Vec<&str> = found.iter().map(|file| file.path.as_str()).collect();
    let components = detect(&paths);
    let unknown = components
        .values()
        .any(|component| component.kind == ArtifactKind::Files);
    if components.is_empty() || unknown {
        return Err(ReleaseError::BadContent {
            path: dir.to_path_buf(),
            problem: "nothing in it tells what it is: no adapter_config.json of an adapter, no config.json beside the \
                      weights of a model, no reef-tree.json and no file that an agent reads (AGENTS.md, CLAUDE.md, \
                      SKILL.md); say so with --kind"
                .to_owned(),
        });
    }
    Ok(components)
}

/// The component a directory is by its look: a PEFT adapter, a Hugging Face checkpoint, routing rules, what an agent reads,
/// or files of no kind known here.
pub(super) fn detect(paths: &[&str]) -> BTreeMap<String, Component> {
    let has = |name: &str| paths.contains(&name);
    let read_by_an_agent = |path: &&str| AGENT_FILES.contains(&path.rsplit('/').next().unwrap_or(path));
    let (name, kind) = if has("adapter_config.json") {
        ("adapter", ArtifactKind::LoraAdapter)
    } else if has("config.json") && paths.iter().any(|p| p.ends_with(".safetensors") || p.ends_with(".bin")) {
        ("model", ArtifactKind::Checkpoint)
    } else if has("routing.toml") || has("routing.json") {
        ("routing", ArtifactKind::RoutingPolicy)
    } else if paths.is_empty() {
        return BTreeMap::new();
    } else if paths.iter().any(read_by_an_agent) {
        ("harness", ArtifactKind::HarnessTree)
    } else {
        ("files", ArtifactKind::Files)
    };
    let component = Component {
        kind,
        path: String::new(),
    };
    BTreeMap::from([(name.to_owned(), component)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::release::Content;
    use crate::release::manifest::tests::of_creation;

    #[test]
    fn a_directory_is_read_in_order_and_its_own_manifest_left_out() {
        let dir = tempfile::tempdir().unwrap();
        for path in ["b.txt", "a/z.txt", "a.txt", "a/reef-artifact.json"] {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, b"x").unwrap();
        }
        let own = dir.path().join("reef-artifact.json");
        fs::write(&own, exported(ArtifactKind::RoutingPolicy)).unwrap();
        let found = scan(dir.path()).unwrap();
        let paths: Vec<&str> = found.iter().map(|f| f.path.as_str()).collect();
        assert_eq!(paths, ["a.txt", "a/reef-artifact.json", "a/z.txt", "b.txt"]);
        let known = recognise(dir.path()).unwrap();
        assert_eq!(known["x"].kind, ArtifactKind::RoutingPolicy);
        // A file of the user's own by that name is not lost.
        fs::write(&own, b"{\"format\": \"mine\"}").unwrap();
        let error = scan(dir.path()).unwrap_err().to_string();
        assert!(error.contains("give it another name"), "{error}");
    }

    /// The manifest of an export with one component.
    fn exported(kind: ArtifactKind) -> String {
        let component = Component {
            kind,
            path: String::new(),
        };
        let content = Content {
            components: BTreeMap::from([("x".to_owned(), component)]),
            files: Vec::new(),
        };
        of_creation(content).to_text().unwrap()
    }

    #[test]
    fn a_directory_of_no_known_kind_is_recognised_as_none() {
        let dir = tempfile::tempdir().unwrap();
        for known in [false, true] {
            let found = recognise(dir.path());
            assert_eq!(found.is_ok(), known);
            if let Err(error) = found {
                assert!(error.to_string().contains("--kind"), "{error}");
            }
            fs::write(dir.path().join("holiday.jpg"), b"x").unwrap();
            assert!(known || recognise(dir.path()).is_err());
            fs::write(dir.path().join("CLAUDE.md"), b"x").unwrap();
        }
    }

    #[test]
    fn links_and_gits_own_names_are_refused() {
        for name in [".git", "git~1", ".GITATTRIBUTES", ".lfsconfig.", "a\nb", "a\\b"] {
            let dir = tempfile::tempdir().unwrap();
            fs::create_dir(dir.path().join(name)).unwrap();
            fs::write(dir.path().join(name).join("x"), b"x").unwrap();
            assert!(
                matches!(scan(dir.path()), Err(ReleaseError::BadContent { .. })),
                "{name:?}"
            );
        }
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/etc/passwd", dir.path().join("x")).unwrap();
        let error = scan(dir.path()).unwrap_err().to_string();
        assert!(error.contains("symbolic link") && error.contains("/x"), "{error}");
    }

    #[test]
    fn kinds_are_told_by_their_files() {
        let kind = |paths: &[&str]| detect(paths).into_values().next().map(|c| c.kind);
        assert_eq!(
            kind(&["adapter_config.json", "adapter_model.safetensors"]),
            Some(ArtifactKind::LoraAdapter)
        );
        assert_eq!(
            kind(&["config.json", "model.safetensors"]),
            Some(ArtifactKind::Checkpoint)
        );
        assert_eq!(kind(&["AGENTS.md"]), Some(ArtifactKind::HarnessTree));
        assert_eq!(kind(&[]), None);
    }
}
