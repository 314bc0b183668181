//! The only way a release comes about: intent, objects, the move of the head, settlement. Whatever happens between
//! them, `publish_recovery` finds out from the repository whether the head moved, and settles or abandons.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use tokio_util::task::TaskTracker;

use super::owner::Owner;
use super::publication::{self, Bytes, Plan, frozen, perform, provenance, published, release_row, settlement};
use super::publish_error::PublishError;
use super::publish_recovery::Standing;
use super::room::Housekeeping;
use super::seed::{Seed, harness_component};
use crate::domain::{ContentId, FrozenRelease, Operation, ReleaseId, ScenarioName, TrainingMode};
use crate::experience::{BatchUse, Experience, StoreError};
use crate::release::{Component, Draft, Provenance, ReleaseError, Remote, Repository, RepositoryOptions, Source};
use crate::sys::{clock, failpoint, random, task};

/// How often an operation is tried again whose scenario others make or put away at the same moment.
const TRIES: u32 = 50;

/// Publishes into one repository and settles in one store. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Publisher {
    pub(super) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) repository: Repository,
    pub(super) experience: Experience,
    /// The mark of this process; none where it only reads.
    pub(super) owner: Option<Owner>,
    /// Publications this process is in the middle of.
    pub(super) in_flight: Mutex<HashSet<String>>,
    /// Where every release is pushed to.
    pub(super) mirror: OnceLock<Remote>,
    /// What new scenarios start with, instead of the base.
    seed: OnceLock<Seed>,
    pub(super) housekeeping: Housekeeping,
    /// Pushes under way.
    pub(super) pushes: TaskTracker,
    /// Held by the push that talks to the mirror.
    pub(super) pushing: tokio::sync::Mutex<()>,
}

impl Inner {
    /// Whether nothing may be written.
    pub(super) fn reads_only(&self) -> bool {
        self.owner.is_none()
    }
}

/// What new scenarios begin with.
#[derive(Debug, Clone)]
pub enum BaseSeed {
    /// Nothing: the engine's model serves as it is.
    Empty,
    /// The files of a directory.
    Directory(PathBuf),
}

/// A directory that is to become a release.
#[derive(Debug, Clone)]
pub struct Candidate {
    /// The scenario.
    pub scenario: ScenarioName,
    /// Its files.
    pub dir: PathBuf,
    /// What they are; without it, their look decides.
    pub components: Option<BTreeMap<String, Component>>,
    /// The head it was built on and judged against.
    pub expected: ReleaseId,
    /// `Training` or `Import`.
    pub operation: Operation,
    /// Wait for a person instead of serving.
    pub held: bool,
    /// Where it came from.
    pub source: Source,
    /// How it came to be; metrics and verdict are recorded with the step as well.
    pub provenance: Provenance,
    /// The batch it used, marked consumed in the transaction that settles the release.
    pub batch: Option<BatchUse>,
}

/// A release that was made, or found to be there already.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Published {
    /// The release.
    pub release_id: ReleaseId,
    /// Its bytes.
    pub content_id: ContentId,
    /// The step that records it.
    pub step: Option<u64>,
    /// Held for review.
    pub held: bool,
    /// False when there was nothing to do.
    pub appended: bool,
}

impl Publisher {
    /// Opens the repository (creating it whole or not at all). Blocking.
    pub fn open(
        repository: &Path,
        cache: &Path,
        run: &Path,
        experience: Experience,
        options: RepositoryOptions,
    ) -> Result<Self, PublishError> {
        let repository = Repository::open(repository, cache, options)?;
        let owner = Owner::new(run).map_err(|source| ReleaseError::Io {
            action: "create",
            path: run.to_path_buf(),
            source,
        })?;
        Ok(Self::with(repository, experience, Some(owner)))
    }

    /// Opens an existing repository for reading alone, beside a store that was opened so. Nothing is settled, adopted or
    /// put back; whatever would write is refused. Blocking.
    pub fn open_read_only(
        repository: &Path,
        cache: &Path,
        experience: Experience,
        options: RepositoryOptions,
    ) -> Result<Self, PublishError> {
        let repository = Repository::open_existing(repository, cache, options)?;
        Ok(Self::with(repository, experience, None))
    }

    fn with(repository: Repository, experience: Experience, owner: Option<Owner>) -> Self {
        Self {
            inner: Arc::new(Inner {
                repository,
                experience,
                owner,
                in_flight: Mutex::new(HashSet::new()),
                mirror: OnceLock::new(),
                seed: OnceLock::new(),
                housekeeping: Housekeeping::default(),
                pushes: TaskTracker::new(),
                pushing: tokio::sync::Mutex::new(()),
            }),
        }
    }

    /// The mark of this process, for whatever writes.
    pub(super) fn owner(&self) -> Result<&Owner, PublishError> {
        self.inner.owner.as_ref().ok_or_else(|| PublishError::ReadOnly {
            path: self.inner.repository.path().to_path_buf(),
        })
    }

    /// From now on every release is pushed to `mirror`. The first one named stays.
    pub fn push_everything_to(&self, mirror: Remote) {
        self.inner.mirror.get_or_init(|| mirror);
    }

    /// From now on new scenarios start with this tree instead of a fork of the base. The first one named stays.
    pub fn start_scenarios_with(&self, seed: Seed) {
        self.inner.seed.get_or_init(|| seed);
    }

    /// The repository, for reading.
    pub fn repository(&self) -> &Repository {
        &self.inner.repository
    }

    /// The store.
    pub fn experience(&self) -> &Experience {
        &self.inner.experience
    }

    /// The base, made from `seed` when there is none: an existing one wins over a changed seed.
    pub async fn ensure_base(&self, seed: BaseSeed) -> Result<ReleaseId, PublishError> {
        self.owner()?;
        self.blocking(move |repository| {
            if let Some(base) = repository.base()? {
                return Ok(base);
            }
            let empty;
            let (dir, source) = match &seed {
                BaseSeed::Directory(dir) => (dir.as_path(), Source::Seed),
                BaseSeed::Empty => {
                    empty = repository.cache().join(format!(".part-{}", random::hex_token()));
                    std::fs::create_dir_all(&empty).map_err(|source| ReleaseError::Io {
                        action: "create",
                        path: empty.clone(),
                        source,
                    })?;
                    (empty.as_path(), Source::Empty)
                }
            };
            let staged = repository.stage_directory(dir, None);
            if matches!(seed, BaseSeed::Empty) {
                // An empty directory in the cache is harmless.
                let _left_over = std::fs::remove_dir(dir);
            }
            let draft = Draft {
                scenario: None,
                operation: Operation::Creation,
                parent: None,
                target: None,
                held: false,
                source,
                provenance: provenance(),
                intent: random::hex_token(),
                at_us: clock::now_us(),
            };
            let base = repository.commit(&staged?, &draft)?;
            repository.set_base(&base)
        })
        .await
    }

    /// Creates a scenario as a fork of `from`, or of the base. One that exists is brought up to date and kept.
    pub async fn create(
        &self,
        scenario: &ScenarioName,
        mode: TrainingMode,
        from: Option<ReleaseId>,
    ) -> Result<Published, PublishError> {
        for _ in 0..TRIES {
            match self.stand(scenario).await? {
                Standing::Head(head) => return self.existing(head, false).await,
                Standing::Never => {}
                // A new chain in the place of a lost one would hide the loss, and git would collect what is left of it.
                Standing::Gone { head } => {
                    let name = scenario.clone();
                    return Err(PublishError::ChainGone { name, head });
                }
            }
            match self.begin(scenario, mode, from.clone()).await {
                // Another process created it, or put it away, at the same moment.
                Err(PublishError::Release(ReleaseError::Conflict { .. }))
                | Err(PublishError::Store(StoreError::UnknownScenario { .. })) => {}
                other => return other,
            }
        }
        Err(PublishError::Restless { name: scenario.clone() })
    }

    /// The first release of a scenario that has none.
    async fn begin(
        &self,
        scenario: &ScenarioName,
        mode: TrainingMode,
        from: Option<ReleaseId>,
    ) -> Result<Published, PublishError> {
        let seed = match &from {
            Some(_) => None,
            None => self.inner.seed.get().cloned(),
        };
        let from = match from {
            Some(from) => from,
            None => self.ensure_base(BaseSeed::Empty).await?,
        };
        // Before the scenario exists: a starting point that is not there must leave nothing behind.
        let id = from.clone();
        let staging = self
            .blocking(move |repository| {
                repository.manifest(&id)?;
                seed.map(|seed| seed.stage(repository.cache())).transpose()
            })
            .await?;
        self.inner
            .experience
            .scenario_create(scenario.clone(), mode, serde_json::Map::new())
            .await?;
        let (bytes, source) = match &staging {
            Some(staging) => (
                Bytes::Directory(staging.path().to_path_buf(), Some(harness_component())),
                Source::Seed,
            ),
            None => (
                Bytes::Release(from.clone()),
                Source::Fork {
                    release_id: from.clone(),
                },
            ),
        };
        let plan = Plan {
            scenario: scenario.clone(),
            bytes,
            settlement: settlement(Operation::Creation, None),
            parent: from,
            source,
            provenance: provenance(),
            target: None,
        };
        self.append(plan).await
    }

    /// Publishes a candidate on top of the head it was built on, or fails with a conflict. A batch that became a release
    /// already, before a crash perhaps, gives that release: no batch is released twice.
    pub async fn publish(&self, candidate: Candidate) -> Result<Published, PublishError> {
        if let Some(batch) = &candidate.batch {
            self.sync(&candidate.scenario).await?;
            let (name, batch) = (candidate.scenario.clone(), batch.batch_id.clone());
            let known = self
                .reading(move |experience| experience.release_of_batch(&name, &batch))
                .await?;
            if let Some((step, release)) = known {
                let found = self.existing(release, candidate.held).await?;
                return Ok(Published {
                    step: Some(step),
                    ..found
                });
            }
        }
        let mut settlement = settlement(candidate.operation, Some(candidate.expected.clone()));
        settlement.held = candidate.held;
        settlement.base_release_id = Some(candidate.expected.clone());
        settlement.batch = candidate.batch;
        settlement.metrics = candidate.provenance.metrics.clone();
        settlement.verdict = candidate.provenance.verdict.clone();
        settlement.note = candidate.provenance.note.clone();
        let mut provenance = candidate.provenance;
        if provenance.code_version.is_none() {
            provenance.code_version = publication::provenance().code_version;
        }
        self.append(Plan {
            scenario: candidate.scenario,
            bytes: Bytes::Directory(candidate.dir, candidate.components),
            settlement,
            parent: candidate.expected,
            source: candidate.source,
            provenance,
            target: None,
        })
        .await
    }

    /// Puts a scenario away and frees its name. The chain stays under `refs/reef/archived/`.
    pub async fn archive(&self, scenario: &ScenarioName) -> Result<(), PublishError> {
        self.owner()?;
        for _ in 0..TRIES {
            let has_chain = match self.stand(scenario).await {
                Ok(standing) => matches!(standing, Standing::Head(_)),
                // A chain that cannot be read can be put away.
                Err(error) if error.is_damage() => true,
                Err(error) => return Err(error),
            };
            let name = scenario.clone();
            let stored = self.reading(move |experience| experience.scenario(&name)).await?;
            // Where the chain is lost there is only the name to free.
            if has_chain || stored.is_none() {
                let name = scenario.clone();
                match self
                    .blocking(move |repository| repository.archive(&name, clock::now_us()))
                    .await
                {
                    Ok(()) => {}
                    // The head moved: what is put away is what is there now.
                    Err(error) if error.is_conflict() => continue,
                    // Another process put it away.
                    Err(PublishError::Release(ReleaseError::NotFound { .. })) if stored.is_some() => {}
                    Err(error) => return Err(error),
                }
            }
            return match stored {
                Some(stored) => self.note_archived(scenario, stored.created_us).await,
                None => Ok(()),
            };
        }
        Err(PublishError::Restless { name: scenario.clone() })
    }

    /// What a scenario serves, by the repository; none when it does not exist. Blocking.
    pub fn served(&self, scenario: &ScenarioName) -> Result<Option<FrozenRelease>, PublishError> {
        let Some(head) = self.inner.repository.head(scenario)? else {
            return Ok(None);
        };
        Ok(Some(frozen(&self.inner.repository.describe(&head)?)))
    }

    /// What a request frozen on a release is served by. Blocking.
    pub(super) fn frozen(&self, release: &ReleaseId) -> Result<FrozenRelease, PublishError> {
        Ok(frozen(&self.inner.repository.describe(release)?))
    }

    pub(super) async fn republish(
        &self,
        scenario: &ScenarioName,
        head: ReleaseId,
        target: &ReleaseId,
        operation: Operation,
        note: Option<String>,
    ) -> Result<Published, PublishError> {
        let mut settlement = settlement(operation, Some(head.clone()));
        settlement.base_release_id = Some(head.clone());
        if operation == Operation::Promote {
            settlement.promotes = Some(target.clone());
        }
        let mut provenance = provenance();
        settlement.note = note.clone();
        provenance.note = note;
        self.append(Plan {
            scenario: scenario.clone(),
            bytes: Bytes::Release(target.clone()),
            settlement,
            parent: head,
            source: Source::Fork {
                release_id: target.clone(),
            },
            provenance,
            target: Some(target.clone()),
        })
        .await
    }

    /// The publication itself, on a task of its own: a caller that goes away does not stop it half-way.
    async fn append(&self, plan: Plan) -> Result<Published, PublishError> {
        let publisher = self.clone();
        task::spawn("publishing", async move { publisher.append_whole(plan).await }).await?
    }

    async fn append_whole(&self, plan: Plan) -> Result<Published, PublishError> {
        let owner = self.owner()?.token().to_owned();
        // Leftovers of others come first: a head that moved without being settled is not built upon blindly.
        let actual = self.sync(&plan.scenario).await?;
        let expected = plan.settlement.expected.clone();
        if actual != expected {
            return Err(ReleaseError::Conflict {
                scenario: plan.scenario,
                expected,
                actual,
            }
            .into());
        }
        let intent = random::hex_token();
        let _flight = Flight::new(&self.inner, intent.clone());
        self.inner
            .experience
            .intent_begin(plan.scenario.clone(), intent.clone(), owner, &plan.settlement)
            .await?;
        let scenario = plan.scenario.clone();
        let held = plan.settlement.held;
        let id = intent.clone();
        let outcome = self.blocking(move |repository| perform(repository, &plan, id)).await;
        let release = match outcome {
            Ok(release) => release,
            Err(error) => {
                // Whether the head moved is for the repository to say; the batch is retried only if it did not.
                let failed = error.to_string();
                return match self.resolve_intent(&scenario, &intent, &failed).await? {
                    Some(row) => Ok(published(&row, None)),
                    None => Err(error),
                };
            }
        };
        let row = self
            .blocking(move |repository| Ok(release_row(&repository.describe(&release)?, held, true)))
            .await?;
        let step = self
            .inner
            .experience
            .intent_settle(intent, row.clone())
            .await
            .map_err(|source| PublishError::Unsettled {
                release: row.release_id.clone(),
                source,
            })?;
        hit("release::after_settle")?;
        self.push_to_mirror(scenario);
        self.made_one(row.bytes);
        Ok(published(&row, Some(step)))
    }

    pub(super) async fn existing(&self, release: ReleaseId, held: bool) -> Result<Published, PublishError> {
        let row = self
            .blocking(move |repository| Ok(release_row(&repository.describe(&release)?, held, true)))
            .await?;
        Ok(Published {
            appended: false,
            ..published(&row, None)
        })
    }

    /// Work on the repository, off the asynchronous threads.
    pub(super) async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Repository) -> Result<T, ReleaseError> + Send + 'static,
    ) -> Result<T, PublishError> {
        let inner = Arc::clone(&self.inner);
        task::blocking("work on the repository", move || work(&inner.repository))
            .await?
            .map_err(PublishError::from)
    }

    /// Reading from the store, off the asynchronous threads.
    pub(super) async fn reading<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Experience) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, PublishError> {
        let inner = Arc::clone(&self.inner);
        task::blocking("reading the store", move || work(&inner.experience))
            .await?
            .map_err(PublishError::from)
    }
}

/// Marks a publication as in progress for as long as it lives.
struct Flight<'a> {
    inner: &'a Inner,
    intent: String,
}

impl<'a> Flight<'a> {
    fn new(inner: &'a Inner, intent: String) -> Self {
        inner.in_flight.lock().insert(intent.clone());
        Self { inner, intent }
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        self.inner.in_flight.lock().remove(&self.intent);
    }
}

fn hit(name: &'static str) -> Result<(), PublishError> {
    failpoint::hit(name).map_err(|source| {
        ReleaseError::Io {
            action: "publish at",
            path: PathBuf::from(name),
            source,
        }
        .into()
    })
}
