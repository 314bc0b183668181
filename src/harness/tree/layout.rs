//! A tree as a directory that people edit: one file per rule, command, extension, one directory per skill.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::document::{Tree, TreeError};
use super::entry::Entry;
use super::refusal::{Refusal, Rule};
use super::{LARGEST_TREE, LONGEST_BINARY, LONGEST_CODE};
use crate::domain::Content;
use crate::sys::regular;

/// Deeper than any skill needs.
const DEEPEST: usize = 8;

pub(super) fn read(dir: &Path) -> Result<Tree, TreeError> {
    let mut tree = Tree::default();
    for (path, is_dir) in children(dir)? {
        let name = file_name(&path);
        match (name.as_str(), is_dir) {
            ("AGENTS.md" | "CLAUDE.md" | "RULES.md", false) => {
                let entry = json!({"id": "rules", "name": "rules", "config": {"text": text(&path)?}});
                push(&mut tree, &path, &entry)?;
            }
            ("tree.json" | "tree.toml", false) => {
                let more = Tree::parse(&path, &text(&path)?)?;
                tree.adapter = more.adapter.or(tree.adapter);
                tree.entries.extend(more.entries);
            }
            ("README.md", false) => {}
            ("rules", true) => files(&mut tree, &path, "", "rules", "text", &["md"])?,
            ("commands" | "prompts", true) => {
                files(&mut tree, &path, "command-", "agent_command", "text", &["md"])?;
            }
            ("extensions", true) => {
                let sources = ["ts", "js", "mjs", "py"];
                files(&mut tree, &path, "extension-", "code_extension", "code", &sources)?;
            }
            ("skills", true) => {
                for (skill, is_dir) in children(&path)? {
                    if !is_dir {
                        return Err(unknown(&skill, "a skill is a directory that holds SKILL.md"));
                    }
                    let entry = bundle(&skill)?;
                    push(&mut tree, &skill, &entry)?;
                }
            }
            _ => {
                return Err(unknown(
                    &path,
                    "a tree directory holds AGENTS.md, rules/, commands/, skills/, extensions/ and tree.json or tree.toml",
                ));
            }
        }
    }
    tree.check().map_err(|refusal| TreeError::Refused {
        path: dir.to_path_buf(),
        refusal,
    })?;
    Ok(tree)
}

fn files(
    tree: &mut Tree,
    dir: &Path,
    prefix: &str,
    kind: &str,
    field: &str,
    extensions: &[&str],
) -> Result<(), TreeError> {
    for (path, is_dir) in children(dir)? {
        let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or("");
        if is_dir || !extensions.contains(&extension) {
            let expected = format!("files here end in .{}", extensions.join(", ."));
            return Err(unknown(&path, &expected));
        }
        let stem = path
            .file_stem()
            .map(|stem| stem.to_string_lossy().into_owned())
            .unwrap_or_default();
        let mut config = json!({field: text(&path)?});
        if kind != "rules" {
            config["name"] = Value::String(stem.clone());
        }
        let entry = json!({"id": format!("{prefix}{stem}"), "name": kind, "config": config});
        push(tree, &path, &entry)?;
    }
    Ok(())
}

fn bundle(dir: &Path) -> Result<Value, TreeError> {
    let name = file_name(dir);
    let mut found = BTreeMap::new();
    collect(dir, "", 0, &mut found)?;
    let Some(Content::Text(skill)) = found.remove("SKILL.md") else {
        return Err(unknown(dir, "a skill is a directory that holds SKILL.md, a text"));
    };
    Ok(json!({"id": format!("skill-{name}"), "name": "skill", "config": {"name": name, "text": skill, "files": found}}))
}

fn collect(dir: &Path, prefix: &str, depth: usize, found: &mut BTreeMap<String, Content>) -> Result<(), TreeError> {
    if depth > DEEPEST {
        return Err(unknown(dir, "a skill is nested at most 8 directories deep"));
    }
    for (path, is_dir) in children(dir)? {
        let below = format!("{prefix}{}", file_name(&path));
        if is_dir {
            collect(&path, &format!("{below}/"), depth + 1, found)?;
        } else {
            found.insert(below, content(&path)?);
        }
    }
    Ok(())
}

/// What a directory holds, sorted; hidden files and editors' leavings passed over, anything else than files and directories refused.
fn children(dir: &Path) -> Result<Vec<(PathBuf, bool)>, TreeError> {
    let failed = |source| TreeError::Read {
        path: dir.to_path_buf(),
        source,
    };
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with('.') || name.ends_with('~') {
            continue;
        }
        let kind = entry.file_type().map_err(failed)?;
        if kind.is_symlink() {
            return Err(unknown(
                &entry.path(),
                "a link is not followed; put the file itself there",
            ));
        }
        if !kind.is_file() && !kind.is_dir() {
            let expected = format!("it is {}; a tree holds files and directories", regular::name_of(kind));
            return Err(unknown(&entry.path(), &expected));
        }
        found.push((entry.path(), kind.is_dir()));
    }
    found.sort();
    Ok(found)
}

fn file_name(path: &Path) -> String {
    path.file_name()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default()
}

fn text(path: &Path) -> Result<String, TreeError> {
    regular::read_text_at_most(path, LARGEST_TREE as u64).map_err(|source| TreeError::Read {
        path: path.to_path_buf(),
        source,
    })
}

/// A file of a skill. What is too large for any is not read.
fn content(path: &Path) -> Result<Content, TreeError> {
    let failed = |source| TreeError::Read {
        path: path.to_path_buf(),
        source,
    };
    let bytes = fs::metadata(path).map_err(failed)?.len();
    if bytes > LONGEST_BINARY as u64 {
        return Err(TreeError::Refused {
            path: path.to_path_buf(),
            refusal: Refusal::new(
                Rule::TooLarge,
                format!("has {bytes} bytes; at most {LONGEST_BINARY} are allowed, {LONGEST_CODE} of them in a text"),
            ),
        });
    }
    Ok(Content::from_bytes(regular::read(path).map_err(failed)?))
}

fn push(tree: &mut Tree, path: &Path, entry: &Value) -> Result<(), TreeError> {
    let entry = Entry::from_json(entry).map_err(|refusal| TreeError::Refused {
        path: path.to_path_buf(),
        refusal,
    })?;
    tree.entries.push(entry);
    Ok(())
}

fn unknown(path: &Path, expected: &str) -> TreeError {
    TreeError::Refused {
        path: path.to_path_buf(),
        refusal: Refusal::new(Rule::Shape, format!("does not belong here: {expected}")),
    }
}
