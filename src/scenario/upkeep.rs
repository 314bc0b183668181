//! What is done to chains as a whole: verification, moving between repositories. The index learns of content after it came.

use std::collections::HashSet;

use super::publish::Publisher;
use super::publish_error::PublishError;
use crate::domain::{ReleaseId, ScenarioName};
use crate::experience::{ReleaseState, ReleasesWhere};
use crate::release::{Indexed, Objects, ReleaseError, Remote, Scope, Transfer, Verified};
use crate::sys::task;

impl Publisher {
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
