//! The scenarios this process knows, and the release each serves: read without a lock by every request.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use arc_swap::{ArcSwap, ArcSwapOption};
use tokio::sync::Mutex;

use super::publish::{BaseSeed, Publisher};
use super::publish_error::PublishError;
use super::watch::Activate;
use crate::domain::{FrozenRelease, ReleaseId, ScenarioName, TrainingMode};
use crate::experience::{ChainEnds, Experience, Scenario as StoredScenario, StoreError};
use crate::release::{HeadStamp, Hold, ReleaseError};
use crate::sys::task;

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
    /// Its first release and the one that was forked for it.
    ends: [ReleaseId; 2],
    created_us: i64,
    mode: AtomicU8,
    served: ArcSwap<FrozenRelease>,
    /// The newest release of the chain; the served one until an engine has to load it first.
    pub(super) head: ArcSwap<ReleaseId>,
    /// Why the head is not served.
    pub(super) head_error: ArcSwapOption<String>,
    /// Keeps what is served from the collector while it is not the head.
    pub(super) kept: parking_lot::Mutex<Option<Hold>>,
    /// Held while the head is brought into service.
    pub(super) refreshing: Mutex<()>,
    /// What the watcher saw last.
    pub(super) stamp: parking_lot::Mutex<Option<HeadStamp>>,
}

/// How what is served stands to the newest release.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeadSync {
    /// The newest release.
    pub head: ReleaseId,
    /// It is what is served.
    pub synchronized: bool,
    /// Why it is not.
    pub error: Option<String>,
}

impl ScenarioHandle {
    /// Its name.
    pub fn name(&self) -> &ScenarioName {
        &self.name
    }

    /// The release it was bound to at creation.
    pub fn base(&self) -> &ReleaseId {
        &self.ends[1]
    }

    /// Its first release.
    pub(super) fn first(&self) -> &ReleaseId {
        &self.ends[0]
    }

    /// How what is served stands to the newest release.
    pub fn head_sync(&self) -> HeadSync {
        let head = self.head.load();
        HeadSync {
            synchronized: **head == self.served.load().release_id,
            head: ReleaseId::clone(&head),
            error: self.head_error.load().as_deref().cloned(),
        }
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
    /// The chain of releases failed.
    #[error(transparent)]
    Publish(#[from] PublishError),
    /// The process is ending.
    #[error("the store's reader was stopped")]
    Stopped,
}

/// A change copies one shard; many scenarios made in a row stay cheap.
const SHARDS: usize = 64;

/// How often a scenario is created that others put away at the same moment.
const TRIES: u32 = 20;

/// All scenarios of this process.
#[derive(Debug)]
pub struct Directory {
    publisher: Publisher,
    experience: Experience,
    mode: TrainingMode,
    known: [ArcSwap<HashMap<ScenarioName, Arc<ScenarioHandle>>>; SHARDS],
    /// Held while `known` changes; never while a request reads it.
    changing: Mutex<()>,
    /// Held while a scenario is created, so that many first requests create it once.
    creating: [Mutex<()>; SHARDS],
    activate: Arc<dyn Activate>,
}

impl Directory {
    /// Brings store and repository together and reads the scenarios. New ones start in `mode` as forks of the base,
    /// which is made from `seed` if there is none. `activate` brings releases into service.
    pub async fn open(
        publisher: Publisher,
        mode: TrainingMode,
        seed: BaseSeed,
        activate: Arc<dyn Activate>,
    ) -> Result<Self, DirectoryError> {
        let directory = Self {
            experience: publisher.experience().clone(),
            publisher,
            mode,
            known: std::array::from_fn(|_| ArcSwap::default()),
            changing: Mutex::new(()),
            creating: std::array::from_fn(|_| Mutex::new(())),
            activate,
        };
        directory.publisher.ensure_base(seed).await?;
        directory.publisher.recover().await?;
        for chain in directory.chains(None).await? {
            directory.take_in(&chain).await;
        }
        Ok(directory)
    }

    /// The publisher of every chain.
    pub fn publisher(&self) -> &Publisher {
        &self.publisher
    }

    pub(super) fn activate(&self) -> &dyn Activate {
        self.activate.as_ref()
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
        if let Some(handle) = self.look_up(name).await? {
            return check_base(handle, base);
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
        let _creating = self.creating[shard_of(name)].lock().await;
        if let Some(handle) = self.get(name) {
            return Ok((check_base(handle, base)?, false));
        }
        let unknown = |asked: &ReleaseId| DirectoryError::UnknownRelease {
            name: name.clone(),
            asked: asked.clone(),
        };
        for _ in 0..TRIES {
            let made = match self.publisher.create(name, self.mode, base.cloned()).await {
                Ok(made) => made,
                Err(PublishError::Release(ReleaseError::NotFound { .. } | ReleaseError::Damaged { .. }))
                    if base.is_some() =>
                {
                    return Err(base.map_or(DirectoryError::Stopped, unknown));
                }
                Err(error) => return Err(error.into()),
            };
            // Another process may have put it away since.
            let Some(handle) = self.look_up(name).await? else {
                continue;
            };
            let handle = if made.appended {
                handle
            } else {
                check_base(handle, base)?
            };
            return Ok((handle, made.appended));
        }
        Err(PublishError::Restless { name: name.clone() }.into())
    }

    /// Changes what may start a training step in a scenario.
    pub async fn set_mode(&self, handle: &ScenarioHandle, mode: TrainingMode) -> Result<(), DirectoryError> {
        self.experience.scenario_set_mode(handle.name.clone(), mode).await?;
        handle.note_mode(mode);
        Ok(())
    }

    /// Archives a scenario and frees its name.
    pub async fn archive(&self, name: &ScenarioName) -> Result<(), DirectoryError> {
        self.publisher.archive(name).await?;
        self.forget(name).await;
        Ok(())
    }

    /// Forgets a scenario that another process has archived; the next use reads the store again.
    pub async fn forget(&self, name: &ScenarioName) {
        let _changing = self.changing.lock().await;
        self.forget_locked(name);
    }

    /// The same for the scenario of that name that was made at that moment.
    pub(super) async fn forget_made_at(&self, name: &ScenarioName, created_us: i64) {
        let _changing = self.changing.lock().await;
        if self.get(name).is_some_and(|handle| handle.created_us == created_us) {
            self.forget_locked(name);
        }
    }

    /// Every scenario of the store, by name, those made by other processes included.
    pub async fn list(&self) -> Result<Vec<Arc<ScenarioHandle>>, DirectoryError> {
        let chains = self.chains(None).await?;
        let mut handles = Vec::with_capacity(chains.len());
        for chain in &chains {
            handles.push(self.take_in(chain).await);
        }
        Ok(handles)
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

    /// A scenario of the store that this process has not used yet. One without a chain, left by a creation that was cut
    /// short, gets it.
    pub(super) async fn look_up(&self, name: &ScenarioName) -> Result<Option<Arc<ScenarioHandle>>, DirectoryError> {
        let head = match self.publisher.sync(name).await {
            // What the store knows of a chain whose end cannot be read is served; the watcher says what is wrong.
            Err(error) if error.is_damage() => match self.chains(Some(name)).await?.first() {
                Some(chain) => return Ok(Some(self.take_in(chain).await)),
                None => return Err(error.into()),
            },
            other => other?,
        };
        if head.is_none() {
            let wanted = name.clone();
            if self
                .read(move |experience| experience.scenario(&wanted))
                .await?
                .is_none()
            {
                return Ok(None);
            }
            self.publisher.create(name, self.mode, None).await?;
        }
        let chains = self.chains(Some(name)).await?;
        Ok(match chains.first() {
            Some(chain) => Some(self.take_in(chain).await),
            None => None,
        })
    }

    /// Scenarios with both ends of their chains; those that have none yet are left out.
    async fn chains(
        &self,
        name: Option<&ScenarioName>,
    ) -> Result<Vec<(StoredScenario, FrozenRelease, ChainEnds)>, DirectoryError> {
        let name = name.cloned();
        self.read(move |experience| {
            let ends = experience.chain_ends(name.as_ref())?;
            let mut ends: HashMap<ScenarioName, ChainEnds> =
                ends.into_iter().map(|e| (e.scenario.clone(), e)).collect();
            let stored = match &name {
                Some(name) => experience.scenario(name)?.into_iter().collect(),
                None => experience.scenarios(false)?,
            };
            Ok(stored
                .into_iter()
                .filter_map(|stored| {
                    let ends = ends.remove(&stored.name)?;
                    let served = stored.served.clone()?;
                    Some((stored, served, ends))
                })
                .collect())
        })
        .await
    }

    /// The handle of a scenario. A new one is seen by requests only once the engine holds what it serves.
    async fn take_in(&self, chain: &(StoredScenario, FrozenRelease, ChainEnds)) -> Arc<ScenarioHandle> {
        if let Some(handle) = self.known_as(&chain.0) {
            return handle;
        }
        let handle = Arc::new(new_handle(chain));
        self.bring_in(&handle).await;
        let _changing = self.changing.lock().await;
        if let Some(other) = self.known_as(&chain.0) {
            return other;
        }
        let shard = self.shard(&handle.name);
        let mut known = HashMap::clone(&shard.load());
        known.insert(handle.name.clone(), Arc::clone(&handle));
        shard.store(Arc::new(known));
        handle
    }

    fn known_as(&self, stored: &StoredScenario) -> Option<Arc<ScenarioHandle>> {
        let handle = self.get(&stored.name)?;
        (handle.created_us == stored.created_us).then(|| {
            handle.note_mode(stored.mode);
            handle
        })
    }

    fn forget_locked(&self, name: &ScenarioName) {
        let shard = self.shard(name);
        let mut known = HashMap::clone(&shard.load());
        known.remove(name);
        shard.store(Arc::new(known));
    }

    fn shard(&self, name: &ScenarioName) -> &ArcSwap<HashMap<ScenarioName, Arc<ScenarioHandle>>> {
        &self.known[shard_of(name)]
    }

    pub(super) async fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Experience) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, DirectoryError> {
        let experience = self.experience.clone();
        task::blocking("reading the store", move || work(&experience))
            .await
            .map_err(StoreError::from)?
            .map_err(DirectoryError::Store)
    }
}

fn new_handle((stored, served, ends): &(StoredScenario, FrozenRelease, ChainEnds)) -> ScenarioHandle {
    let handle = ScenarioHandle {
        name: stored.name.clone(),
        ends: [
            ends.creation.clone(),
            ends.base.clone().unwrap_or_else(|| ends.creation.clone()),
        ],
        created_us: stored.created_us,
        mode: AtomicU8::new(0),
        head: ArcSwap::from_pointee(served.release_id.clone()),
        served: ArcSwap::from_pointee(served.clone()),
        head_error: ArcSwapOption::empty(),
        kept: parking_lot::Mutex::new(None),
        refreshing: Mutex::new(()),
        // Unset, so that the watcher compares once.
        stamp: parking_lot::Mutex::new(None),
    };
    handle.note_mode(stored.mode);
    handle
}

fn shard_of(name: &ScenarioName) -> usize {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    hasher.finish() as usize % SHARDS
}

fn check_base(handle: Arc<ScenarioHandle>, asked: Option<&ReleaseId>) -> Result<Arc<ScenarioHandle>, DirectoryError> {
    match asked {
        Some(asked) if !handle.ends.contains(asked) => Err(DirectoryError::OtherBase {
            name: handle.name.clone(),
            bound: handle.base().clone(),
            asked: asked.clone(),
        }),
        _ => Ok(handle),
    }
}
