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
mod holds;
mod incoming;
mod inspect;
mod large;
mod ledger;
mod lfs;
mod lock;
mod manifest;
#[cfg(test)]
mod manifest_tests;
mod materialise;
mod objects;
mod pointer;
mod remote;
mod repository;
mod retention;
mod tensors;
mod verify;
mod weights;

pub use commit::{Draft, Staged};
pub use diff::{ContentChange, FileChange};
pub use error::{Missing, ReleaseError, Trouble, Why};
pub use gc::{GcPlan, GcPolicy, Usage};
pub use heads::HeadStamp;
pub use history::{Commit, Selector};
pub use holds::Hold;
pub use large::TrainingState;
pub use manifest::{ArtifactKind, Component, Content, FileEntry, MANIFEST_NAME, Manifest, Provenance, Source};
pub use remote::{Moved, Objects, Remote, Transfer};
pub use repository::{LFS_THRESHOLD, Repository, RepositoryOptions};
pub use retention::{Keep, Older};
pub use tensors::TensorChange;
pub use verify::{Damage, Indexed, Scope, Verified};
