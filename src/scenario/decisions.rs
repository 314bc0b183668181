//! A person's decisions on releases: roll back, promote, reject.

use super::publish::{Published, Publisher};
use super::publish_error::PublishError;
use crate::domain::{Operation, ReleaseId, ScenarioName};
use crate::experience::{ReleaseRow, ReleaseState};
use crate::release::ReleaseError;

impl Publisher {
    /// Serves an older release of the scenario again, as a new release. The current one is a no-op.
    pub async fn rollback(
        &self,
        scenario: &ScenarioName,
        target: &ReleaseId,
        expect: Option<&ReleaseId>,
        note: Option<String>,
    ) -> Result<Published, PublishError> {
        let (head, row) = self.decidable(scenario, target).await?;
        // A script may repeat itself, with the head it expected the first time.
        if self.made(&head, Operation::Rollback, target).await? {
            return self.existing(head, false).await;
        }
        expected(scenario, expect, &head)?;
        if head == *target {
            return self.existing(head, false).await;
        }
        match row.state {
            ReleaseState::Released => {}
            ReleaseState::Held | ReleaseState::Promoted | ReleaseState::Rejected => {
                return Err(PublishError::NeverServed {
                    release: target.clone(),
                    state: row.state.as_str(),
                });
            }
        }
        self.republish(scenario, head, target, Operation::Rollback, note).await
    }

    /// Serves a held release, as a new release. `expect` refuses when another head is served than the one judged. When
    /// what this would make is the head already, that is given: a script may repeat itself.
    pub async fn promote(
        &self,
        scenario: &ScenarioName,
        target: &ReleaseId,
        expect: Option<&ReleaseId>,
        note: Option<String>,
    ) -> Result<Published, PublishError> {
        let (head, row) = self.decidable(scenario, target).await?;
        if row.state == ReleaseState::Promoted && self.made(&head, Operation::Promote, target).await? {
            return self.existing(head, false).await;
        }
        if row.state != ReleaseState::Held {
            return Err(PublishError::NotHeld {
                release: target.clone(),
                state: row.state.as_str(),
            });
        }
        // The repository may know of a refusal that the store has not recorded.
        let id = target.clone();
        if self.blocking(move |repository| repository.is_rejected(&id)).await? {
            self.note_rejected(scenario, target, None).await?;
            return Err(PublishError::NotHeld {
                release: target.clone(),
                state: ReleaseState::Rejected.as_str(),
            });
        }
        expected(scenario, expect, &head)?;
        self.republish(scenario, head, target, Operation::Promote, note).await
    }

    /// Whether a release is what an operation on `target` made.
    async fn made(&self, release: &ReleaseId, by: Operation, target: &ReleaseId) -> Result<bool, PublishError> {
        let release = release.clone();
        let made = self.blocking(move |repository| repository.describe(&release)).await?;
        Ok(made.operation == by && made.target.as_ref() == Some(target))
    }

    /// Refuses a held release. Its content and evidence stay. One that was refused before stays so.
    pub async fn reject(
        &self,
        scenario: &ScenarioName,
        target: &ReleaseId,
        note: Option<String>,
    ) -> Result<(), PublishError> {
        let (_, row) = self.decidable(scenario, target).await?;
        let decided = match row.state {
            ReleaseState::Rejected => true,
            ReleaseState::Held => self.note_rejected(scenario, target, note).await?,
            ReleaseState::Released | ReleaseState::Promoted => false,
        };
        if !decided {
            return Err(PublishError::NotHeld {
                release: target.clone(),
                state: row.state.as_str(),
            });
        }
        let id = target.clone();
        self.blocking(move |repository| repository.mark_rejected(&id)).await?;
        self.push_to_mirror(scenario.clone());
        Ok(())
    }

    /// Records a refusal in the store; false when the release is not held.
    pub(super) async fn note_rejected(
        &self,
        scenario: &ScenarioName,
        release: &ReleaseId,
        note: Option<String>,
    ) -> Result<bool, PublishError> {
        let (scenario, release) = (scenario.clone(), release.clone());
        let experience = &self.inner.experience;
        Ok(experience
            .decide_held(scenario, release, ReleaseState::Rejected, note)
            .await?)
    }

    async fn decidable(
        &self,
        scenario: &ScenarioName,
        target: &ReleaseId,
    ) -> Result<(ReleaseId, ReleaseRow), PublishError> {
        self.owner()?;
        let head = self.head(scenario).await?;
        let (name, id) = (scenario.clone(), target.clone());
        let row = self.reading(move |experience| experience.release(&name, &id)).await?;
        let row = row.ok_or_else(|| ReleaseError::NotFound {
            what: format!("release {target} of scenario {scenario}"),
        })?;
        Ok((head, row))
    }
}

/// Refuses where a decision was made on another head than the one now served.
fn expected(scenario: &ScenarioName, expect: Option<&ReleaseId>, head: &ReleaseId) -> Result<(), PublishError> {
    match expect {
        Some(expect) if expect != head => Err(ReleaseError::Conflict {
            scenario: scenario.clone(),
            expected: Some(expect.clone()),
            actual: Some(head.clone()),
        }
        .into()),
        _ => Ok(()),
    }
}
