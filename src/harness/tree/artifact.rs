//! A tree as the files of a release: what was rendered, and beside it the entries it was rendered from.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::document::{TREE_FILE, Tree, TreeError};
use super::render::Rendered;

/// Writes a release into an empty directory, which is to become an artifact. Blocking.
pub fn write(dir: &Path, tree: &Tree, rendered: &Rendered) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    let put = |path: &str, bytes: &[u8], mode: u32| -> io::Result<()> {
        let path = dir.join(path);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
        file.write_all(bytes)?;
        file.sync_all()
    };
    for (path, content) in &rendered.files {
        let mode = if rendered.executable.contains(path) {
            0o755
        } else {
            0o644
        };
        put(path, content.as_bytes(), mode)?;
    }
    put(TREE_FILE, tree.to_text().as_bytes(), 0o644)
}

/// The tree of a release's directory; `None` where it holds none, as a directory imported by a person. Blocking.
pub fn read(dir: &Path) -> Result<Option<Tree>, TreeError> {
    let path = dir.join(TREE_FILE);
    if !path.is_file() {
        return Ok(None);
    }
    Tree::read(&path).map(Some)
}
