//! The scenarios this process knows, and the release each serves: read without a lock by every request.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use arc_swap::ArcSwap;
use serde_json::Map;
use tokio::sync::Mutex;

use crate::domain::{ContentId, ContentKind, FrozenRelease, InvalidName, ReleaseId, ScenarioName, TrainingMode};
use crate::experience::{Experience, Scenario as StoredScenario, StoreError};

/// What to do with a name nobody has used yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnMissing {
    /// Create the scenario.
    Create,
    /// Refuse the request.
    Refuse,
}

/// A scenario in use.
#[derive(Debug)]
pub struct ScenarioHandle {
    name: ScenarioName,
    base: ReleaseId,
    created_us: i64,
    mode: AtomicU8,
    served: ArcSwap<FrozenRelease>,
}

impl ScenarioHandle {
    /// Its name.
    pub fn name(&self) -> &ScenarioName {
        &self.name
    }

    /// The release it was bound to at creation.
    pub fn base(&self) -> &ReleaseId {
        &self.base
    }

    /// When it was created, microseconds since the Unix epoch.
    pub fn created_us(&self) -> i64 {
        self.created_us
    }

    /// The release to freeze for a request admitted now.
    pub fn served(&self) -> Arc<FrozenRelease> {
        self.served.load_full()
    }

    /// What may start a training step.
    pub fn mode(&self) -> TrainingMode {
        match self.mode.load(Ordering::Relaxed) {
            1 => TrainingMode::Manual,
            2 => TrainingMode::Hybrid,
            _ => TrainingMode::Auto,
        }
    }

    /// Serves `release` from the next admission on.
    pub fn serve_release(&self, release: FrozenRelease) {
        self.served.store(Arc::new(release));
    }

    fn note_mode(&self, mode: TrainingMode) {
        let code = match mode {
            TrainingMode::Auto => 0,
            TrainingMode::Manual => 1,
            TrainingMode::Hybrid => 2,
        };
        self.mode.store(code, Ordering::Relaxed);
    }
}

/// Why a scenario cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// It does not exist and may not be created by use.
    #[error("there is no scenario {name}; create it with `reef scenario create {name}` or POST /reef/scenarios")]
    Unknown {
        /// The name.
        name: ScenarioName,
    },
    /// It exists on another base.
    #[error(
        "scenario {name} is bound to base release {bound}, not {asked}; leave out x-reef-release-id or use another scenario"
    )]
    OtherBase {
        /// The name.
        name: ScenarioName,
        /// The base it has.
        bound: ReleaseId,
        /// The base asked for.
        asked: ReleaseId,
    },
    /// A new scenario cannot start from a release that does not exist.
    #[error("there is no release {asked} to start scenario {name} from")]
    UnknownRelease {
        /// The name.
        name: ScenarioName,
        /// The release asked for.
        asked: ReleaseId,
    },
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A word of the base release is not valid; a fault of Reef.
    #[error(transparent)]
    Name(#[from] InvalidName),
    /// The process is ending.
    #[error("the store's reader was stopped")]
    Stopped,
}

/// A change copies one shard; many scenarios made in a row stay cheap.
const SHARDS: usize = 64;

/// All scenarios of this process.
#[derive(Debug)]
pub struct Directory {
    experience: Experience,
    base: FrozenRelease,
    mode: TrainingMode,
    known: [ArcSwap<HashMap<ScenarioName, Arc<ScenarioHandle>>>; SHARDS],
    /// Held while `known` changes; never while a request reads it.
    changing: Mutex<()>,
}

impl Directory {
    /// Reads the scenarios of the store. New ones start in `mode`.
    pub async fn open(experience: Experience, mode: TrainingMode) -> Result<Self, DirectoryError> {
        let directory = Self {
            base: base_release()?,
            experience,
            mode,
            known: std::array::from_fn(|_| ArcSwap::default()),
            changing: Mutex::new(()),
        };
        for stored in directory.read(|experience| experience.scenarios(false)).await? {
            directory.remember(&stored);
        }
        Ok(directory)
    }

    /// A scenario already in use. This is what a request does first; it takes no lock.
    pub fn get(&self, name: &ScenarioName) -> Option<Arc<ScenarioHandle>> {
        self.shard(name).load().get(name).cloned()
    }

    /// The scenario of that name, created if missing and allowed. `base` is the release a client believes it is bound
    /// to: for a new scenario the one to start from, for an existing one a check.
    pub async fn resolve(
        &self,
        name: &ScenarioName,
        on_missing: OnMissing,
        base: Option<&ReleaseId>,
    ) -> Result<Arc<ScenarioHandle>, DirectoryError> {
        if let Some(handle) = self.get(name) {
            return check_base(handle, base);
        }
        let wanted = name.clone();
        if let Some(stored) = self.read(move |experience| experience.scenario(&wanted)).await? {
            let _changing = self.changing.lock().await;
            return check_base(self.remember(&stored), base);
        }
        match on_missing {
            OnMissing::Create => Ok(self.create(name, base).await?.0),
            OnMissing::Refuse => Err(DirectoryError::Unknown { name: name.clone() }),
        }
    }

    /// Creates a scenario, or returns the one of that name; the flag says which.
    pub async fn create(
        &self,
        name: &ScenarioName,
        base: Option<&ReleaseId>,
    ) -> Result<(Arc<ScenarioHandle>, bool), DirectoryError> {
        let _changing = self.changing.lock().await;
        if let Some(handle) = self.get(name) {
            return Ok((check_base(handle, base)?, false));
        }
        if let Some(asked) = base.filter(|asked| **asked != self.base.release_id) {
            return Err(DirectoryError::UnknownRelease {
                name: name.clone(),
                asked: asked.clone(),
            });
        }
        let made = self
            .experience
            .scenario_create(name.clone(), self.mode, Map::new())
            .await?;
        Ok((check_base(self.remember(&made.scenario), base)?, made.created))
    }

    /// Changes what may start a training step in a scenario.
    pub async fn set_mode(&self, handle: &ScenarioHandle, mode: TrainingMode) -> Result<(), DirectoryError> {
        self.experience.scenario_set_mode(handle.name.clone(), mode).await?;
        handle.note_mode(mode);
        Ok(())
    }

    /// Archives a scenario and frees its name.
    pub async fn archive(&self, name: &ScenarioName) -> Result<(), DirectoryError> {
        let _changing = self.changing.lock().await;
        self.experience.scenario_archive(name.clone()).await?;
        self.forget_locked(name);
        Ok(())
    }

    /// Forgets a scenario that another process has archived; the next use reads the store again.
    pub async fn forget(&self, name: &ScenarioName) {
        let _changing = self.changing.lock().await;
        self.forget_locked(name);
    }

    /// Every scenario of the store, by name, those made by other processes included.
    pub async fn list(&self) -> Result<Vec<Arc<ScenarioHandle>>, DirectoryError> {
        let stored = self.read(|experience| experience.scenarios(false)).await?;
        let _changing = self.changing.lock().await;
        Ok(stored.iter().map(|scenario| self.remember(scenario)).collect())
    }

    /// The scenarios in use, oldest first.
    pub fn in_use(&self) -> Vec<Arc<ScenarioHandle>> {
        let mut handles: Vec<Arc<ScenarioHandle>> = Vec::new();
        for shard in &self.known {
            handles.extend(shard.load().values().cloned());
        }
        handles.sort_by(|a, b| (a.created_us, &a.name).cmp(&(b.created_us, &b.name)));
        handles
    }

    fn remember(&self, stored: &StoredScenario) -> Arc<ScenarioHandle> {
        if let Some(handle) = self.get(&stored.name)
            && handle.created_us == stored.created_us
        {
            handle.note_mode(stored.mode);
            return handle;
        }
        let handle = Arc::new(ScenarioHandle {
            name: stored.name.clone(),
            base: self.base.release_id.clone(),
            created_us: stored.created_us,
            mode: AtomicU8::new(0),
            served: ArcSwap::from_pointee(stored.served.clone().unwrap_or_else(|| self.base.clone())),
        });
        handle.note_mode(stored.mode);
        let shard = self.shard(&stored.name);
        let mut known = HashMap::clone(&shard.load());
        known.insert(stored.name.clone(), Arc::clone(&handle));
        shard.store(Arc::new(known));
        handle
    }

    fn forget_locked(&self, name: &ScenarioName) {
        let shard = self.shard(name);
        let mut known = HashMap::clone(&shard.load());
        known.remove(name);
        shard.store(Arc::new(known));
    }

    fn shard(&self, name: &ScenarioName) -> &ArcSwap<HashMap<ScenarioName, Arc<ScenarioHandle>>> {
        let mut hasher = DefaultHasher::new();
        name.hash(&mut hasher);
        &self.known[hasher.finish() as usize % SHARDS]
    }

    async fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Experience) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, DirectoryError> {
        let experience = self.experience.clone();
        tokio::task::spawn_blocking(move || work(&experience))
            .await
            .map_err(|_| DirectoryError::Stopped)?
            .map_err(DirectoryError::Store)
    }
}

fn check_base(handle: Arc<ScenarioHandle>, asked: Option<&ReleaseId>) -> Result<Arc<ScenarioHandle>, DirectoryError> {
    match asked {
        Some(asked) if *asked != handle.base => Err(DirectoryError::OtherBase {
            name: handle.name.clone(),
            bound: handle.base.clone(),
            asked: asked.clone(),
        }),
        _ => Ok(handle),
    }
}

/// What a scenario serves before anything was released: nothing of its own, hence the digest of no bytes.
fn base_release() -> Result<FrozenRelease, InvalidName> {
    Ok(FrozenRelease {
        kind: ContentKind::Artifact,
        release_id: ReleaseId::new("base")?,
        content_id: ContentId::new("sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855")?,
        parent_release_id: None,
        runtime_load_id: None,
    })
}
