//! What new scenarios of a deployment that serves harness trees start with.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::harness::tree::{Rendered, Tree, write_release};
use crate::release::{ArtifactKind, Component, ReleaseError};
use crate::sys::random;

/// A tree and its files, published as the first release of every new scenario.
#[derive(Debug, Clone)]
pub struct Seed {
    tree: Tree,
    rendered: Rendered,
}

/// The component that a release with a harness tree consists of.
pub fn harness_component() -> BTreeMap<String, Component> {
    let component = Component {
        kind: ArtifactKind::HarnessTree,
        path: String::new(),
    };
    BTreeMap::from([("harness".to_owned(), component)])
}

impl Seed {
    /// An admitted tree with what it rendered to.
    pub fn new(tree: Tree, rendered: Rendered) -> Self {
        Self { tree, rendered }
    }

    /// Writes the files where they can be staged. Blocking.
    pub(super) fn stage(&self, cache: &Path) -> Result<Staging, ReleaseError> {
        let staging = Staging(cache.join(format!(".part-{}", random::hex_token())));
        write_release(&staging.0, &self.tree, &self.rendered).map_err(|source| ReleaseError::Io {
            action: "write",
            path: staging.0.clone(),
            source,
        })?;
        Ok(staging)
    }
}

/// Files that are gone once they were published.
#[derive(Debug)]
pub(super) struct Staging(PathBuf);

impl Staging {
    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // What is left behind is collected with the other parts.
        let _left_over = std::fs::remove_dir_all(&self.0);
    }
}
