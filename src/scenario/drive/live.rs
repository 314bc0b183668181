//! What the engine serves, and how a new release gets into it.

use std::sync::Arc;

use crate::domain::{RuntimeLoadId, ScenarioName};
use crate::scenario::Directory;

/// The engine, as far as the loop is concerned.
#[derive(Debug, Clone, Default)]
pub enum Live {
    /// Nothing is served from this process: a release is live when its head has moved.
    #[default]
    Detached,
    /// This process serves the scenarios of a directory.
    Serving(Arc<Directory>),
}

impl Live {
    /// The load that serves a scenario now.
    pub(super) fn load_of(&self, scenario: &ScenarioName) -> Option<RuntimeLoadId> {
        match self {
            Self::Detached => None,
            Self::Serving(directory) => directory.get(scenario)?.served().runtime_load_id.clone(),
        }
    }

    /// Brings the head of a scenario into service; the reason when the old release stays.
    pub(super) async fn follow(&self, scenario: &ScenarioName) -> Result<(), String> {
        let Self::Serving(directory) = self else { return Ok(()) };
        let Some(handle) = directory.get(scenario) else {
            return Ok(());
        };
        directory.refresh(&handle).await;
        let sync = handle.head_sync();
        if sync.synchronized {
            return Ok(());
        }
        Err(sync.error.unwrap_or_else(|| "the head moved again".to_owned()))
    }
}
