//! Pointers of git-lfs: what a repository holds in the place of a large file until `git lfs pull` brings it.

use std::io::{self, Read, Seek, SeekFrom};

/// What a pointer is, for whoever expected the file.
pub const POINTER: &str =
    "it is a git-lfs pointer and not the file itself: run `git lfs pull` where it comes from, then try again";

const BEGINS: &[u8] = b"version https://git-lfs.github.com/spec/";

/// Whether these are the first bytes of a pointer.
pub fn begins_pointer(bytes: &[u8]) -> bool {
    bytes.starts_with(BEGINS)
}

/// Whether a file holds a pointer. Stands at its beginning again afterwards.
pub fn is_pointer(file: &mut (impl Read + Seek)) -> io::Result<bool> {
    let mut first = Vec::with_capacity(BEGINS.len());
    file.by_ref().take(BEGINS.len() as u64).read_to_end(&mut first)?;
    file.seek(SeekFrom::Start(0))?;
    Ok(begins_pointer(&first))
}
