//! A release that once was better need not stay so: the model behind it may have changed, or the suite. From time to time
//! the tree that a release replaced is judged against it, and comes back if it wins.

use serde_json::{Map, Value, json};

use super::attempt::Journal;
use super::tree_in;
use crate::domain::{Operation, ReleaseId, ScenarioName};
use crate::experience::{AttemptChange, AttemptState, Job, StepQuery};
use crate::harness::adapter::Adapter;
use crate::harness::tree::{check, write_release};
use crate::scenario::LoopError;
use crate::scenario::drive::trainer::{StepMade, StepOrder};
use crate::scenario::drive::{Driver, now_us};

/// How many steps back the last comparison is looked for.
const LOOK_BACK: u32 = 2000;

/// A comparison whose time has come.
pub(in crate::scenario::drive) struct Due {
    /// Names the step.
    pub(in crate::scenario::drive) batch: String,
    /// What is compared with the served release.
    pub(in crate::scenario::drive) target: ReleaseId,
}

impl Driver {
    /// Whether the served tree is to be compared with the one it replaced.
    pub(in crate::scenario::drive) async fn recheck_due(
        &self,
        scenario: &ScenarioName,
        head: &ReleaseId,
    ) -> Result<Option<Due>, LoopError> {
        let every = self.inner.recipe.evolution.recheck_every;
        if every == 0 {
            return Ok(None);
        }
        let (name, release) = (scenario.clone(), head.clone());
        let (behind, steps) = self
            .read(move |experience| {
                let query = StepQuery {
                    limit: Some(LOOK_BACK),
                    ..StepQuery::default()
                };
                Ok((
                    experience.attempt_behind(&name, &release)?,
                    experience.steps(&name, &query)?,
                ))
            })
            .await?;
        // Only what an attempt made has something it replaced; what came back must not go back and forth.
        let Some(attempt) = behind.filter(|attempt| attempt.source != "recheck") else {
            return Ok(None);
        };
        let since = steps
            .iter()
            .take_while(|step| step.metrics.get("recheck").is_none())
            .filter(|step| step.operation == Operation::Training)
            .count() as u64;
        let newest = steps.first().map_or(0, |step| step.step);
        Ok((since >= every).then(|| Due {
            batch: format!("recheck:{newest}:{head}"),
            target: attempt.base,
        }))
    }

    /// The tree that was replaced, as a candidate.
    pub(super) async fn earlier(
        &self,
        target: &ReleaseId,
        adapter: &Adapter,
        order: &StepOrder,
        journal: &Journal,
    ) -> Result<StepMade, LoopError> {
        let files = self.files_of(target).await?;
        let policy = self.inner.hands.workshop()?.policy.clone();
        let (output, adapter) = (order.output.clone(), adapter.clone());
        let refused = self
            .blocking(move || {
                let mut tree = tree_in(files.as_deref())?;
                tree.adapter = Some(adapter.name.clone());
                match check(&tree, &adapter, &policy, now_us()) {
                    Ok(rendered) => write_release(&output, &tree, &rendered)
                        .map(|()| None)
                        .map_err(|source| LoopError::Work {
                            path: output.clone(),
                            doing: "writing an earlier tree",
                            source,
                        }),
                    Err(refusal) => Ok(Some(refusal.to_string())),
                }
            })
            .await?;
        let mut metrics: Map<String, Value> = Map::new();
        metrics.insert("recheck".into(), json!(true));
        metrics.insert("rollback_target_release_id".into(), json!(target));
        journal.note(
            "check",
            format!("release {target} is compared with what is served"),
            false,
        );
        Ok(match refused {
            None => StepMade::Trained { metrics },
            Some(reason) => StepMade::Skipped {
                reason: format!("the earlier tree is not admitted any more: {reason}"),
                metrics,
            },
        })
    }

    /// The attempt whose release went back.
    pub(super) async fn mark_rolled_back(&self, job: &Job) -> Result<(), LoopError> {
        let (name, base) = (job.scenario.clone(), job.base.clone());
        let behind = self
            .read(move |experience| experience.attempt_behind(&name, &base))
            .await?;
        if let Some(attempt) = behind {
            let change = AttemptChange {
                state: Some(AttemptState::RolledBack),
                outcome: Some("the tree it replaced proved better later".to_owned()),
                ..AttemptChange::default()
            };
            self.experience().attempt_change(attempt.id, change).await?;
        }
        Ok(())
    }
}
