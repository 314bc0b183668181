//! What is done to chains as a whole: collection, verification, moving between repositories. The index learns of it
//! before content goes and after it came.

use std::collections::HashSet;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::publish::Publisher;
use super::publish_error::PublishError;
use crate::domain::{ReleaseId, ScenarioName};
use crate::experience::{ReleaseState, ReleasesWhere};
use crate::release::{GcPlan, GcPolicy, Indexed, Objects, ReleaseError, Remote, Scope, Transfer, Verified};
use crate::sys::task;

/// Objects older than this are of no publication that still goes on.
const LONGEST_PUBLICATION: Duration = Duration::from_secs(3600);

/// What a collection did, or would do.
#[derive(Debug, Default)]
pub struct Collected {
    /// Releases that cannot be restored any more.
    pub pruned: Vec<ReleaseId>,
    /// Objects removed.
    pub objects: u64,
    /// Their size.
    pub bytes: u64,
    /// Temporary files and cached copies removed.
    pub copies: u64,
}

impl Publisher {
    /// Takes back space. Releases that lose content are marked before they do; with `dry_run` nothing happens.
    pub async fn collect(
        &self,
        keep: Option<usize>,
        grace: Duration,
        dry_run: bool,
    ) -> Result<Collected, PublishError> {
        self.owner()?;
        self.recover().await?;
        let decided: HashSet<ReleaseId> = self
            .reading(|experience| experience.releases_where(ReleasesWhere::Decided))
            .await?
            .into_iter()
            .collect();
        let policy = GcPolicy { keep, decided, grace };
        let plan: GcPlan = self.blocking(move |repository| repository.plan_gc(&policy)).await?;
        let collected = Collected {
            pruned: plan.pruned.clone(),
            objects: plan.objects,
            bytes: plan.bytes,
            copies: plan.copies,
        };
        if dry_run {
            return Ok(collected);
        }
        self.inner
            .experience
            .mark_restorable(plan.pruned.clone(), false)
            .await?;
        crate::sys::failpoint::hit("release::gc_before_delete").map_err(|source| {
            PublishError::from(ReleaseError::Io {
                action: "collect in",
                path: self.inner.repository.path().to_path_buf(),
                source,
            })
        })?;
        self.blocking(move |repository| {
            repository.collect(&plan)?;
            // Publications may go on while git packs, unless git would take the objects they have just written.
            let quiet = (grace < LONGEST_PUBLICATION).then_some(plan);
            let packed = repository.pack(grace);
            drop(quiet);
            packed
        })
        .await?;
        Ok(collected)
    }

    /// Re-hashes releases. Of everything, what the store knows and the repository has not is damage too. Blocking.
    pub fn verify(&self, scope: &Scope, progress: &mut dyn FnMut(u64, u64)) -> Result<Verified, PublishError> {
        let experience = &self.inner.experience;
        let pruned = || -> Result<HashSet<ReleaseId>, PublishError> {
            Ok(experience
                .releases_where(ReleasesWhere::Unrestorable)?
                .into_iter()
                .collect())
        };
        let ends = experience.chain_ends(None)?;
        let indexed = Indexed {
            heads: ends.into_iter().map(|ends| (ends.scenario, ends.head)).collect(),
            releases: experience.releases_where(ReleasesWhere::Any)?,
            pruned: pruned()?,
        };
        let mut verified = self.inner.repository.verify(scope, &indexed, progress)?;
        if verified.damage.iter().any(|damage| damage.is_missing_object) {
            // Retention may have taken some meanwhile; the store knows before the objects go.
            verified.forgive(&pruned()?);
        }
        Ok(verified)
    }

    /// Sends chains to a remote, with the releases that wait for a decision.
    pub async fn push(&self, remote: Remote, only: Vec<ScenarioName>, force: bool) -> Result<Transfer, PublishError> {
        self.owner()?;
        self.recover().await?;
        let (decided, rejected) = self
            .reading(|experience| {
                let decided = experience.releases_where(ReleasesWhere::Decided)?;
                Ok((decided, experience.releases_where(ReleasesWhere::Rejected)?))
            })
            .await?;
        let decided: HashSet<ReleaseId> = decided.into_iter().collect();
        self.blocking(move |repository| {
            // A refusal that did not reach the repository, because a process died or its Reef was older.
            for release in rejected {
                if repository.has(&release)? && !repository.is_rejected(&release)? {
                    repository.mark_rejected(&release)?;
                }
            }
            let mut scenarios = repository.scenarios()?;
            if let Some(absent) = only
                .iter()
                .find(|name| !scenarios.iter().any(|(found, _)| found == *name))
            {
                return Err(ReleaseError::NotFound {
                    what: format!("scenario {absent}"),
                });
            }
            scenarios.retain(|(name, _)| only.is_empty() || only.contains(name));
            let mut held = Vec::new();
            for release in repository.kept()? {
                let commit = repository.describe(&release)?;
                let of = |(name, _): &&(ScenarioName, ReleaseId)| commit.scenario.as_ref() == Some(name);
                if !decided.contains(&release)
                    && let Some((_, head)) = scenarios.iter().find(of)
                    && repository.is_built_on(&commit, head)?
                {
                    held.push(release);
                }
            }
            repository.push(&remote, &scenarios, &held, force)
        })
        .await
    }

    /// Pushes a chain to the mirror, beside whatever goes on. A push that fails is logged; the next one carries its
    /// releases as well.
    pub(super) fn push_to_mirror(&self, scenario: ScenarioName) {
        let Some(mirror) = self.inner.mirror.get().cloned() else {
            return;
        };
        let publisher = self.clone();
        let _pushing = task::track(&self.inner.pushes, "pushing to the remote", async move {
            let _one_at_a_time = publisher.inner.pushing.lock().await;
            let shown = mirror.shown();
            if let Err(error) = publisher.push(mirror, vec![scenario.clone()], false).await {
                tracing::warn!(%scenario, remote = shown, %error, "a release was not pushed; the next push carries it");
            }
        });
    }

    /// Waits until nothing is being pushed to the mirror.
    pub async fn finish_pushes(&self) {
        self.inner.pushes.close();
        self.inner.pushes.wait().await;
        self.inner.pushes.reopen();
    }

    /// Collects every `interval` until cancelled, where retention says that content may go at all.
    pub async fn keep_collected(
        self,
        keep: Option<usize>,
        grace: Duration,
        interval: Duration,
        stop: CancellationToken,
    ) {
        if keep.is_none() {
            return;
        }
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(interval) => {}
            }
            match self.collect(keep, grace, false).await {
                Ok(collected) => tracing::info!(objects = collected.objects, bytes = collected.bytes, "collected"),
                Err(error) => tracing::warn!(%error, "space could not be taken back"),
            }
        }
    }

    /// Brings chains from a remote and indexes them.
    pub async fn pull(
        &self,
        remote: Remote,
        only: Vec<ScenarioName>,
        objects: Objects,
    ) -> Result<Transfer, PublishError> {
        self.owner()?;
        self.recover().await?;
        let (transfer, _) = self
            .blocking(move |repository| repository.pull(&remote, &only, objects))
            .await?;
        for moved in &transfer.moved {
            self.sync(&moved.scenario).await?;
        }
        self.adopt_held().await?;
        self.notice_restored().await?;
        Ok(transfer)
    }

    /// Brings back the large files of one release.
    pub async fn restore(&self, remote: Remote, release: ReleaseId) -> Result<(), PublishError> {
        self.owner()?;
        self.blocking(move |repository| repository.fetch_objects(&remote, &[release]))
            .await?;
        self.notice_restored().await
    }

    /// Releases marked as gone whose content is here again.
    async fn notice_restored(&self) -> Result<(), PublishError> {
        let gone = self
            .reading(|experience| experience.releases_where(ReleasesWhere::Unrestorable))
            .await?;
        let back: Vec<ReleaseId> = self
            .blocking(move |repository| {
                let mut back = Vec::new();
                for release in gone {
                    if repository.has(&release)? && repository.missing_object(&release)?.is_none() {
                        back.push(release);
                    }
                }
                Ok(back)
            })
            .await?;
        if !back.is_empty() {
            self.inner.experience.mark_restorable(back, true).await?;
        }
        Ok(())
    }

    /// Held releases that came from elsewhere after they were promoted there.
    pub(super) async fn notice_promoted(
        &self,
        scenario: &ScenarioName,
        release: &ReleaseId,
    ) -> Result<(), PublishError> {
        let promoted = self
            .reading(|experience| experience.releases_where(ReleasesWhere::Promoted))
            .await?;
        if promoted.contains(release) {
            self.inner
                .experience
                .decide_held(scenario.clone(), release.clone(), ReleaseState::Promoted, None)
                .await?;
        }
        Ok(())
    }
}
