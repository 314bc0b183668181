//! The candidate before the gate.

use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::{Driver, LoopError, LoopEvent, Watch};
use crate::domain::Verdict;
use crate::eval::{self, Compared, Draw, EvalError, Trial};
use crate::experience::Job;
use crate::recipe::EvaluatorKind;

impl Driver {
    /// The verdict on a trained candidate.
    pub(super) async fn judge(
        &self,
        job: &Job,
        compared: &Compared,
        cancel: &CancellationToken,
        watch: Watch<'_>,
    ) -> Result<Verdict, LoopError> {
        let spec = &self.inner.recipe.gate;
        let name = job.scenario.clone();
        let (judged, released) = self.read(move |experience| experience.paired_decisions(&name)).await?;
        let level = eval::level(spec.spending, spec.alpha, judged, released);
        let heard = |pairs: usize| {
            watch(&LoopEvent::Judging {
                pairs,
                of: spec.maximum_pairs as usize,
            });
        };
        let seed = job.batch.as_str();
        let directory = self.inner.recipe.directory.as_deref();
        let verdict = match spec.evaluator {
            EvaluatorKind::None => Trial::new(spec.clone(), Vec::new(), Draw::Once, level, seed).verdict("none"),
            EvaluatorKind::Program => eval::judge_by_program(spec, level, seed, compared, directory, cancel, &heard)
                .await
                .map_err(|error| refused(&error, cancel))?,
            EvaluatorKind::Suite | EvaluatorKind::Holdout => {
                return Err(LoopError::Gate {
                    reason: "no engine is at hand that could answer with the candidate".to_owned(),
                });
            }
        };
        let mut verdict = verdict;
        verdict.figures.insert("judged_before".into(), Value::from(judged));
        verdict.figures.insert("released_before".into(), Value::from(released));
        Ok(verdict)
    }
}

fn refused(error: &EvalError, cancel: &CancellationToken) -> LoopError {
    if cancel.is_cancelled() || matches!(error, EvalError::Stopped) {
        LoopError::Stopped
    } else {
        LoopError::Gate {
            reason: error.to_string(),
        }
    }
}
