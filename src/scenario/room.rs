//! The room that releases take: what is thinned, when, and whether there is enough left to make another one. Releases that
//! lose content are marked in the store before they do, and what goes is noted beside the repository before it goes.

use std::collections::HashSet;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::publish::Publisher;
use super::publish_error::PublishError;
use crate::domain::ReleaseId;
use crate::experience::{Experience, ReleasesWhere, StoreError};
use crate::harness::client::{Home, installations};
use crate::release::{GcPlan, GcPolicy, Keep, ReleaseError, Repository, Usage};
use crate::sys::{disk, failpoint, format, task};

/// Objects older than this are of no publication that still goes on.
const LONGEST_PUBLICATION: Duration = Duration::from_secs(3600);
/// So many releases are published before the next thinning …
const RELEASES: u64 = 8;
/// … or this part of what all may take, if that comes first.
const SHARE: u64 = 20;
/// While the disk is nearly full, a collection is tried this often.
const AGAIN: Duration = Duration::from_secs(60);

/// How much room releases may take, and what goes first.
#[derive(Debug, Clone)]
pub struct Room {
    /// Which releases keep what.
    pub keep: Keep,
    /// Objects without a release are kept this long.
    pub grace: Duration,
    /// With less than this free, in bytes, no step begins.
    pub min_free: u64,
    /// The directories of the user whose installed agents keep their releases.
    pub home: Option<Home>,
}

/// How thorough a collection is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Thorough {
    /// Nothing happens: what would go.
    Plan,
    /// Files go.
    Thin,
    /// Files go, and git packs what it has.
    Pack,
}

/// What a collection did, or would do.
#[derive(Debug, Clone, Default)]
pub struct Collected {
    /// Releases that cannot be restored any more.
    pub pruned: Vec<ReleaseId>,
    /// Releases that lost their training state alone.
    pub stateless: Vec<ReleaseId>,
    /// Objects removed.
    pub objects: u64,
    /// Their size.
    pub bytes: u64,
    /// Temporary files and cached copies removed.
    pub copies: u64,
    /// What there was before.
    pub usage: Usage,
}

impl Collected {
    fn of(plan: &GcPlan) -> Self {
        Self {
            pruned: plan.pruned.clone(),
            stateless: plan.stateless.clone(),
            objects: plan.objects,
            bytes: plan.bytes,
            copies: plan.copies,
            usage: plan.usage,
        }
    }
}

/// What a publisher does about room by itself.
#[derive(Debug, Default)]
pub(super) struct Housekeeping {
    room: OnceLock<Room>,
    state: Mutex<State>,
    /// Held by the collection that goes on.
    collecting: tokio::sync::Mutex<()>,
    tasks: TaskTracker,
}

#[derive(Debug, Default)]
struct State {
    /// Published since the last collection: releases, and their bytes.
    releases: u64,
    bytes: u64,
    /// As of the last collection.
    usage: Option<Usage>,
    tried: Option<Instant>,
}

impl Publisher {
    /// From now on releases are thinned as they are published, and no step begins where there is no room for it. The first
    /// rule given stays.
    pub fn keep_within(&self, room: Room) {
        self.inner.housekeeping.room.get_or_init(|| room);
    }

    /// Takes back space.
    pub async fn collect(&self, room: &Room, thorough: Thorough) -> Result<Collected, PublishError> {
        self.owner()?;
        let _one_at_a_time = self.inner.housekeeping.collecting.lock().await;
        self.recover().await?;
        let (publisher, wanted) = (self.clone(), room.clone());
        let plan = task::blocking("planning a collection", move || {
            let policy = policy(&publisher.inner.experience, &wanted)?;
            Ok::<_, PublishError>(match thorough {
                Thorough::Plan => publisher.inner.repository.survey(&policy)?,
                Thorough::Thin | Thorough::Pack => publisher.inner.repository.plan_gc(&policy)?,
            })
        });
        let plan = plan.await??;
        let collected = Collected::of(&plan);
        if thorough == Thorough::Plan {
            return Ok(collected);
        }
        let hit = |name| {
            failpoint::hit(name).map_err(|source| {
                PublishError::from(ReleaseError::Io {
                    action: "collect in",
                    path: self.inner.repository.path().to_path_buf(),
                    source,
                })
            })
        };
        let plan = self
            .blocking(move |repository| repository.note_plan(&plan).map(|()| plan))
            .await?;
        hit("release::gc_before_mark")?;
        self.inner
            .experience
            .mark_restorable(plan.pruned.clone(), false)
            .await?;
        hit("release::gc_before_delete")?;
        let grace = room.grace;
        self.blocking(move |repository| {
            repository.collect(&plan)?;
            // Publications may go on while git packs, unless git would take the objects they have just written.
            let quiet = (grace < LONGEST_PUBLICATION).then_some(plan);
            let packed = match thorough {
                Thorough::Pack => repository.pack(grace),
                Thorough::Plan | Thorough::Thin => Ok(()),
            };
            drop(quiet);
            packed
        })
        .await?;
        let mut state = self.inner.housekeeping.state.lock();
        *state = State {
            usage: Some(Usage {
                bytes: collected.usage.bytes.saturating_sub(collected.bytes),
                ..collected.usage
            }),
            tried: state.tried,
            ..State::default()
        };
        Ok(collected)
    }

    /// Collects every `interval` until cancelled, and thins at once: a service may be restarted more often than that.
    pub async fn keep_collected(self, interval: Duration, stop: CancellationToken) {
        let Some(room) = self.inner.housekeeping.room.get() else {
            return;
        };
        let mut thorough = Thorough::Thin;
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                collected = self.collect(room, thorough) => told(collected),
            }
            thorough = Thorough::Pack;
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(interval) => {}
            }
        }
    }

    /// Counts a release that was published, and thins in the background when it is time.
    pub(super) fn made_one(&self, bytes: u64) {
        let housekeeping = &self.inner.housekeeping;
        let Some(room) = housekeeping.room.get() else { return };
        let due = {
            let mut state = housekeeping.state.lock();
            state.releases += 1;
            state.bytes = state.bytes.saturating_add(bytes);
            let most = room.keep.max_bytes.map_or(u64::MAX, |most| most / SHARE);
            let due = state.releases >= RELEASES || state.bytes >= most;
            if due {
                (state.releases, state.bytes) = (0, 0);
            }
            due
        };
        if due {
            let publisher = self.clone();
            let _thinning = task::track(&housekeeping.tasks, "thinning releases", async move {
                if let Some(room) = publisher.inner.housekeeping.room.get() {
                    told(publisher.collect(room, Thorough::Thin).await);
                }
            });
        }
    }

    /// Waits until nothing is being thinned, and thins what was published since. Gives what went.
    pub async fn finish_thinning(&self) -> Result<Option<Collected>, PublishError> {
        let housekeeping = &self.inner.housekeeping;
        let Some(room) = housekeeping.room.get() else {
            return Ok(None);
        };
        housekeeping.tasks.close();
        housekeeping.tasks.wait().await;
        housekeeping.tasks.reopen();
        if housekeeping.state.lock().releases == 0 {
            return Ok(None);
        }
        self.collect(room, Thorough::Thin).await.map(Some)
    }

    /// Why there is no room for another step; `None` when there is. A disk that is nearly full is thinned first.
    pub async fn no_room(&self) -> Result<Option<String>, PublishError> {
        let Some(room) = self.inner.housekeeping.room.get() else {
            return Ok(None);
        };
        let is_full = || {
            let dir = self.inner.repository.path();
            disk::free(dir).is_some_and(|free| free < room.min_free)
        };
        let over = |usage: &Usage| room.keep.max_bytes.is_some_and(|most| usage.pinned_bytes > most);
        let again = {
            let mut state = self.inner.housekeeping.state.lock();
            // What there is is not known before the first look.
            let trouble = is_full() || state.usage.as_ref().is_none_or(over);
            let due = trouble && state.tried.is_none_or(|at| at.elapsed() >= AGAIN);
            if due {
                state.tried = Some(Instant::now());
            }
            due
        };
        if again {
            told(self.collect(room, Thorough::Thin).await);
        }
        let usage = self.inner.housekeeping.state.lock().usage;
        if is_full() {
            return Ok(Some(format!(
                "less than {} is free on the disk (storage.min-free); reef status shows what takes it",
                format::bytes(room.min_free)
            )));
        }
        Ok(usage.filter(over).map(|usage| {
            format!(
                "releases that must stay take {}, and release.retention-max-bytes is {}: decide on held ones \
                 (reef release list --held), unpin some, or raise it",
                format::bytes(usage.pinned_bytes),
                format::bytes(room.keep.max_bytes.unwrap_or_default())
            )
        }))
    }

    /// What releases took when it was last looked at, for status.
    pub fn usage(&self) -> Option<Usage> {
        self.inner.housekeeping.state.lock().usage
    }
}

/// What a collection would do, by what store and repository say now. Blocking.
pub fn survey(repository: &Repository, experience: &Experience, room: &Room) -> Result<Collected, PublishError> {
    let plan = repository.survey(&policy(experience, room)?)?;
    Ok(Collected::of(&plan))
}

fn policy(experience: &Experience, room: &Room) -> Result<GcPolicy, StoreError> {
    let all = |wanted| -> Result<HashSet<ReleaseId>, StoreError> {
        Ok(experience.releases_where(wanted)?.into_iter().collect())
    };
    let mut needed = all(ReleasesWhere::InProgress)?;
    for (place, _) in room.home.as_ref().map(installations).unwrap_or_default() {
        // An installation that cannot be read is its owner's to mend.
        needed.extend(place.current().ok().flatten().and_then(|id| ReleaseId::new(id).ok()));
    }
    Ok(GcPolicy {
        keep: room.keep,
        decided: all(ReleasesWhere::Decided)?,
        needed,
        gone: all(ReleasesWhere::Unrestorable)?,
        grace: room.grace,
    })
}

fn told(collected: Result<Collected, PublishError>) {
    match collected {
        Ok(collected) if collected.objects == 0 && collected.copies == 0 => {}
        Ok(collected) => tracing::info!(
            objects = collected.objects,
            bytes = collected.bytes,
            pruned = collected.pruned.len(),
            stateless = collected.stateless.len(),
            "collected"
        ),
        Err(error) => tracing::warn!(%error, "space could not be taken back"),
    }
}
