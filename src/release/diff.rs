//! What changed between two releases: files, lines of text, tensors.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Cursor, Read, Seek};

use similar::TextDiff;

use super::error::io_at;
use super::materialise::{Blob, blob};
use super::tensors::{self, TensorChange};
use super::{FileEntry, ReleaseError, Repository};
use crate::domain::ReleaseId;

/// Text files larger than this are named, not compared line by line.
const LARGEST_TEXT: u64 = 1 << 20;

/// One file that differs.
#[derive(Debug, Clone)]
pub struct FileChange {
    /// Its path.
    pub path: String,
    /// What it was; none when it is new.
    pub old: Option<FileEntry>,
    /// What it is; none when it is gone.
    pub new: Option<FileEntry>,
    /// How its content differs.
    pub content: ContentChange,
}

/// How the content of a file differs.
#[derive(Debug, Clone)]
pub enum ContentChange {
    /// Only whether it may be executed.
    Mode,
    /// A unified diff.
    Text(String),
    /// Tensor by tensor; those that are equal are counted, not listed.
    Tensors {
        /// Tensors that differ.
        changed: Vec<TensorChange>,
        /// Tensors that are equal.
        equal: usize,
    },
    /// Bytes of no known kind.
    Binary,
}

impl Repository {
    /// The files that differ between two releases, by path.
    pub fn diff(&self, old: &ReleaseId, new: &ReleaseId) -> Result<Vec<FileChange>, ReleaseError> {
        let by_path = |release: &ReleaseId| -> Result<BTreeMap<String, FileEntry>, ReleaseError> {
            let files = self.manifest(release)?.content.files;
            Ok(files.into_iter().map(|f| (f.path.clone(), f)).collect())
        };
        let mut before = by_path(old)?;
        let mut changes = Vec::new();
        for (path, now) in by_path(new)? {
            match before.remove(&path) {
                Some(was) if was == now => {}
                was => changes.push((path, was, Some(now))),
            }
        }
        changes.extend(before.into_iter().map(|(path, was)| (path, Some(was), None)));
        changes.sort_by(|a, b| a.0.cmp(&b.0));
        changes
            .into_iter()
            .map(|(path, was, now)| {
                let content = match (&was, &now) {
                    (Some(was), Some(now)) if was.sha256 == now.sha256 => ContentChange::Mode,
                    _ => self.content_change(&path, (old, was.as_ref()), (new, now.as_ref()))?,
                };
                Ok(FileChange {
                    path,
                    old: was,
                    new: now,
                    content,
                })
            })
            .collect()
    }

    fn content_change(
        &self,
        path: &str,
        (old, was): (&ReleaseId, Option<&FileEntry>),
        (new, now): (&ReleaseId, Option<&FileEntry>),
    ) -> Result<ContentChange, ReleaseError> {
        if path.ends_with(".safetensors") {
            let before = was.map(|was| self.open_file(old, was)).transpose()?;
            let after = now.map(|now| self.open_file(new, now)).transpose()?;
            // A file that only has the name of tensors is compared as bytes.
            return Ok(match tensors::compare(before, after) {
                Ok((changed, equal)) => ContentChange::Tensors { changed, equal },
                Err(_) => ContentChange::Binary,
            });
        }
        let (Some(before), Some(after)) = (self.text(old, was)?, self.text(new, now)?) else {
            return Ok(ContentChange::Binary);
        };
        let name = |entry: Option<&FileEntry>, side: char| match entry {
            Some(_) => format!("{side}/{path}"),
            None => "/dev/null".to_owned(),
        };
        let diff = TextDiff::from_lines(&before, &after);
        let text = diff
            .unified_diff()
            .context_radius(3)
            .header(&name(was, 'a'), &name(now, 'b'))
            .to_string();
        Ok(ContentChange::Text(text))
    }

    /// The text of a file; an absent file is empty, one that is no text gives nothing.
    fn text(&self, release: &ReleaseId, entry: Option<&FileEntry>) -> Result<Option<String>, ReleaseError> {
        let Some(entry) = entry else {
            return Ok(Some(String::new()));
        };
        if entry.size > LARGEST_TEXT {
            return Ok(None);
        }
        let mut bytes = Vec::new();
        self.open_file(release, entry)?
            .read_to_end(&mut bytes)
            .map_err(io_at("read", self.path()))?;
        Ok(String::from_utf8(bytes).ok().filter(|text| !text.contains('\0')))
    }

    fn open_file(&self, release: &ReleaseId, entry: &FileEntry) -> Result<Box<dyn ReadSeek>, ReleaseError> {
        let git = self.git()?;
        let tree = self.tree(&git, release)?;
        Ok(match blob(&tree, &git, release, entry)? {
            Blob::Plain(bytes) => Box::new(Cursor::new(bytes)),
            Blob::Large(pointer) => {
                let path = self.lfs.path(&pointer.oid);
                Box::new(File::open(&path).map_err(|_| self.absent(release, &entry.path, &pointer))?)
            }
        })
    }
}

/// Something to read from any place.
pub(super) trait ReadSeek: Read + Seek {}
impl<T: Read + Seek> ReadSeek for T {}
