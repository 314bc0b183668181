//! The large files of a release, sorted into its content and its training state. A released adapter or model loads without
//! the second; only training that goes on from it misses it.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::error::Missing;
use super::ledger::Ledger;
use super::materialise::{Blob, blob};
use super::pointer::Pointer;
use super::{ArtifactKind, Content, ReleaseError, Repository};
use crate::domain::ReleaseId;

/// Where a trainer leaves what it carries from step to step, inside a component.
const STATE: &str = "training";

impl Content {
    /// The directories of training state: optimizer, critic, state of the algorithm. Each ends with a slash.
    pub(super) fn state_dirs(&self) -> impl Iterator<Item = String> {
        let trained = |kind| matches!(kind, ArtifactKind::LoraAdapter | ArtifactKind::Checkpoint);
        self.components
            .values()
            .filter(move |component| trained(component.kind))
            .map(|component| match component.path.as_str() {
                "" => format!("{STATE}/"),
                path => format!("{path}/{STATE}/"),
            })
    }

    /// Whether a file is training state.
    pub fn is_state(&self, path: &str) -> bool {
        self.state_dirs().any(|dir| path.starts_with(&dir))
    }
}

/// One large file.
#[derive(Debug, Clone)]
pub(super) struct LargeFile {
    pub path: String,
    pub pointer: Pointer,
}

/// The large files of one release. They never change.
#[derive(Debug)]
pub(super) struct Large {
    pub content: Vec<LargeFile>,
    pub state: Vec<LargeFile>,
    /// Whether it was released with training state, of whatever size.
    pub had_state: bool,
    /// Its name in the cache.
    pub copy: String,
    /// The directories of training state in it.
    pub state_dirs: Vec<String>,
}

/// What was read of releases before; shared by the clones of a repository.
pub(super) type Known = Arc<Mutex<HashMap<ReleaseId, Arc<Large>>>>;

/// What there is of a release's training state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TrainingState {
    /// It never had any.
    None,
    /// All of it is here.
    Whole,
    /// Some or all of it is not here. What is left of it is not used.
    Gone {
        /// Retention took it; otherwise it was never brought here, or is lost.
        thinned: bool,
    },
}

impl TrainingState {
    /// The word shown.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Whole => "whole",
            Self::Gone { thinned: true } => "thinned",
            Self::Gone { thinned: false } => "absent",
        }
    }
}

impl Repository {
    /// The large files of a release.
    pub(super) fn large(&self, release: &ReleaseId) -> Result<Arc<Large>, ReleaseError> {
        if let Some(known) = self.known.lock().get(release) {
            return Ok(Arc::clone(known));
        }
        let manifest = self.manifest(release)?;
        let git = self.git()?;
        let tree = self.tree(&git, release)?;
        let (mut content, mut state) = (Vec::new(), Vec::new());
        for entry in &manifest.content.files {
            if let Blob::Large(pointer) = blob(&tree, &git, release, entry)? {
                let of = if manifest.content.is_state(&entry.path) {
                    &mut state
                } else {
                    &mut content
                };
                of.push(LargeFile {
                    path: entry.path.clone(),
                    pointer,
                });
            }
        }
        let large = Arc::new(Large {
            had_state: manifest
                .content
                .files
                .iter()
                .any(|f| manifest.content.is_state(&f.path)),
            content,
            state,
            copy: super::materialise::copy_name(&manifest),
            state_dirs: manifest.content.state_dirs().collect(),
        });
        self.known.lock().insert(release.clone(), Arc::clone(&large));
        Ok(large)
    }

    /// What there is of a release's training state.
    pub fn training_state(&self, release: &ReleaseId) -> Result<TrainingState, ReleaseError> {
        let large = self.large(release)?;
        if !large.had_state {
            return Ok(TrainingState::None);
        }
        match large.state.iter().find(|file| !self.lfs.has(&file.pointer)) {
            None => Ok(TrainingState::Whole),
            Some(file) => Ok(TrainingState::Gone {
                thinned: self.ledger()?.thinned(&file.pointer.oid),
            }),
        }
    }

    /// The first large file of a release's content that is not here. Training state does not count: a release is whole
    /// without it.
    pub fn missing_object(&self, release: &ReleaseId) -> Result<Option<Missing>, ReleaseError> {
        let large = self.large(release)?;
        match large.content.iter().find(|file| !self.lfs.has(&file.pointer)) {
            None => Ok(None),
            Some(file) => Ok(Some(self.ledger()?.missing(&file.path, &file.pointer))),
        }
    }

    /// The objects of a release's training state that are not here.
    pub fn missing_state(&self, release: &ReleaseId) -> Result<Vec<String>, ReleaseError> {
        let large = self.large(release)?;
        let gone = large.state.iter().filter(|file| !self.lfs.has(&file.pointer));
        Ok(gone.map(|file| file.pointer.oid.clone()).collect())
    }

    /// Holds that the content of a release is here.
    pub fn check_restorable(&self, release: &ReleaseId) -> Result<(), ReleaseError> {
        match self.missing_object(release)? {
            None => Ok(()),
            Some(missing) => Err(ReleaseError::NotRestorable {
                release: release.clone(),
                missing,
            }),
        }
    }

    /// Holds that one file of a release is here.
    pub fn check_file(&self, release: &ReleaseId, path: &str) -> Result<(), ReleaseError> {
        let large = self.large(release)?;
        // Training state is handed out as a whole or not at all, its small files too.
        let file = if large.state_dirs.iter().any(|dir| path.starts_with(dir)) {
            large.state.iter().find(|file| !self.lfs.has(&file.pointer))
        } else {
            large.content.iter().find(|file| file.path == path)
        };
        match file.filter(|file| !self.lfs.has(&file.pointer)) {
            Some(file) => Err(self.absent(release, &file.path, &file.pointer)),
            None => Ok(()),
        }
    }

    /// One file of a release is not here.
    pub(super) fn absent(&self, release: &ReleaseId, path: &str, pointer: &Pointer) -> ReleaseError {
        // Where the ledger cannot be read nothing is known to be thinned.
        let missing = self
            .ledger()
            .unwrap_or_else(|_| Ledger::default())
            .missing(path, pointer);
        ReleaseError::FileGone {
            release: release.clone(),
            missing,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::release::Component;

    #[test]
    fn only_what_a_trainer_left_is_training_state() {
        let content = |kind, path: &str| Content {
            components: BTreeMap::from([(
                "x".to_owned(),
                Component {
                    kind,
                    path: path.to_owned(),
                },
            )]),
            files: Vec::new(),
        };
        let root = content(ArtifactKind::LoraAdapter, "");
        assert!(root.is_state("training/optimizer.safetensors"));
        assert!(!root.is_state("adapter_model.safetensors") && !root.is_state("training.safetensors"));
        let deep = content(ArtifactKind::Checkpoint, "model");
        assert!(deep.is_state("model/training/critic.safetensors") && !deep.is_state("training/x"));
        // A tree may call a directory what it likes.
        assert!(!content(ArtifactKind::HarnessTree, "").is_state("training/x"));
    }
}
