//! Releases into the embedded engine: an adapter or whole weights are loaded beside what serves, probed, and swapped in.

use std::path::{Path, PathBuf};

use super::publish::Publisher;
use super::watch::Activate;
use crate::domain::{FrozenRelease, ReleaseId, RuntimeLoadId, ScenarioName};
use crate::engine::BoxFuture;
use crate::engine::torch::TorchHandle;
use crate::release::ArtifactKind;
use crate::sys::task;

/// Brings releases into the embedded engine.
#[derive(Clone)]
pub struct TorchLive {
    torch: TorchHandle,
    publisher: Publisher,
}

impl std::fmt::Debug for TorchLive {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TorchLive").finish_non_exhaustive()
    }
}

impl TorchLive {
    /// Loads from the releases of `publisher` into `torch`.
    pub fn new(torch: TorchHandle, publisher: Publisher) -> Self {
        Self { torch, publisher }
    }

    async fn bring(&self, scenario: &ScenarioName, release: &ReleaseId) -> Result<RuntimeLoadId, String> {
        let (publisher, release) = (self.publisher.clone(), release.clone());
        let files = task::blocking("reading a release", move || files_of(&publisher, &release))
            .await
            .map_err(|lost| lost.to_string())??;
        load(&self.torch, scenario, files.as_deref()).await
    }
}

impl Activate for TorchLive {
    fn activate(
        &self,
        scenario: &ScenarioName,
        mut release: FrozenRelease,
    ) -> BoxFuture<'_, Result<FrozenRelease, String>> {
        let scenario = scenario.clone();
        Box::pin(async move {
            release.runtime_load_id = Some(self.bring(&scenario, &release.release_id).await?);
            Ok(release)
        })
    }
}

/// The weights of a release; `None` for one without any. Blocking.
pub fn files_of(publisher: &Publisher, release: &ReleaseId) -> Result<Option<PathBuf>, String> {
    let repository = publisher.repository();
    let content = repository.manifest(release).map_err(|error| error.to_string())?.content;
    // A harness tree is read by agents, not by the engine.
    let only_harness = !content.components.is_empty()
        && content
            .components
            .values()
            .all(|component| component.kind == ArtifactKind::HarnessTree);
    if content.total_bytes() == 0 || only_harness {
        return Ok(None);
    }
    repository
        .materialise(release)
        .map(Some)
        .map_err(|error| error.to_string())
}

/// Serves a scenario with these files, or with the bare base model.
pub(super) async fn load(
    torch: &TorchHandle,
    scenario: &ScenarioName,
    files: Option<&Path>,
) -> Result<RuntimeLoadId, String> {
    let loaded = match files {
        // Before anything was loaded for it, a scenario is served with the base model.
        None => match torch.current_load(scenario).filter(|load| load.sequence() == 1) {
            Some(first) => Ok(first),
            None => torch.unload(scenario).await,
        },
        Some(dir) if dir.join("adapter_config.json").is_file() => torch.load_adapter(scenario, dir).await,
        Some(dir) => torch.load_full_weights(scenario, dir).await,
    };
    loaded.map_err(|error| error.to_string())
}
