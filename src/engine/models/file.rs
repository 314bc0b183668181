//! Small files of a model directory, read with a bound.

use std::io::Read;
use std::path::Path;

use serde_json::Value;

use super::error::ModelError;
use crate::sys::{lfs, regular};

/// Config files are kilobytes; anything larger is not one.
const MAX_CONFIG_BYTES: u64 = 4 << 20;
const BOM: &[u8] = b"\xef\xbb\xbf";

pub(crate) fn read_json(path: &Path) -> Result<Value, ModelError> {
    let bytes = read_bounded(path, MAX_CONFIG_BYTES)?;
    serde_json::from_slice(&bytes).map_err(|e| ModelError::malformed(path, format!("not JSON: {e}")))
}

/// `None` if the file is not there.
pub(crate) fn read_optional_json(path: &Path) -> Result<Option<Value>, ModelError> {
    if path.exists() {
        read_json(path).map(Some)
    } else {
        Ok(None)
    }
}

/// Reads at most `most` bytes and refuses a larger file before allocating for it.
pub(crate) fn read_bounded(path: &Path, most: u64) -> Result<Vec<u8>, ModelError> {
    let io = |e| ModelError::io(path, e);
    let mut file = regular::open(path).map_err(io)?;
    let len = file.metadata().map_err(io)?.len();
    if len > most {
        return Err(ModelError::malformed(
            path,
            format!("it has {len} bytes where at most {most} are expected"),
        ));
    }
    let mut bytes = Vec::with_capacity(usize::try_from(len).unwrap_or(0));
    file.by_ref().take(most).read_to_end(&mut bytes).map_err(io)?;
    if lfs::begins_pointer(&bytes) {
        return Err(ModelError::malformed(path, lfs::POINTER));
    }
    // Editors of some systems put a byte order mark before the text.
    if bytes.starts_with(BOM) {
        bytes.drain(..BOM.len());
    }
    Ok(bytes)
}

/// The same for a text.
pub(crate) fn read_text(path: &Path, most: u64) -> Result<String, ModelError> {
    String::from_utf8(read_bounded(path, most)?).map_err(|_| ModelError::malformed(path, "it is not UTF-8"))
}
