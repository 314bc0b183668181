//! Law: owns the artifact repository: content, manifests, chains, heads moved by compare-and-swap. Never opens the
//! database, never serves HTTP; git runs with a hermetic configuration. Door: [`Repository`] and the types below. State:
//! `artifacts.git`, `cache/`. Fails with [`ReleaseError`]; a stale publisher gets a conflict that names the expected and
//! the actual head.

mod attributes;
mod commit;
mod content;
mod diff;
mod error;
mod gc;
mod git;
mod heads;
mod history;
mod incoming;
mod inspect;
mod lfs;
mod lock;
mod manifest;
mod materialise;
mod objects;
mod pointer;
mod remote;
mod repository;
mod tensors;
mod verify;
mod weights;

pub use commit::{Draft, Staged};
pub use diff::{ContentChange, FileChange};
pub use error::{ReleaseError, Trouble};
pub use gc::{GcPlan, GcPolicy};
pub use heads::HeadStamp;
pub use history::{Commit, Selector};
pub use manifest::{ArtifactKind, Component, Content, FileEntry, MANIFEST_NAME, Manifest, Provenance, Source};
pub use remote::{Moved, Objects, Remote, Transfer};
pub use repository::{LFS_THRESHOLD, Repository, RepositoryOptions};
pub use tensors::TensorChange;
pub use verify::{Damage, Indexed, Scope, Verified};
