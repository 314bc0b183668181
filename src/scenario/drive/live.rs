//! What the engine serves, and how a new release gets into it.

use std::path::Path;

use crate::domain::{ReleaseId, RuntimeLoadId, ScenarioName};

/// The engine, as far as the loop is concerned.
#[derive(Debug, Clone, Default)]
pub enum Live {
    /// No engine runs in this process, or one without weights of its own: a release is live when its head has moved.
    #[default]
    Detached,
}

impl Live {
    /// The load that serves a scenario now.
    pub(super) fn load_of(&self, _scenario: &ScenarioName) -> Option<RuntimeLoadId> {
        match self {
            Self::Detached => None,
        }
    }

    /// Loads a release beside the one that serves, and swaps. `None` for an engine without loads.
    pub(super) async fn load(
        &self,
        _scenario: &ScenarioName,
        _release: &ReleaseId,
        _dir: Option<&Path>,
    ) -> Result<Option<RuntimeLoadId>, String> {
        match self {
            Self::Detached => Ok(None),
        }
    }
}
