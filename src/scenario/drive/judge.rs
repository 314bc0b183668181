//! The candidate before the gate.

use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::{Driver, LoopError, LoopEvent, Watch};
use crate::domain::Verdict;
use crate::eval::{self, Compared, Draw, EvalError, Grading, Question, Suite, Terms, Trial};
use crate::experience::Job;
use crate::recipe::EvaluatorKind;
use crate::sys::json::read_object;

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
            EvaluatorKind::Episodes => self.judge_tree(job, compared, level, cancel, &heard).await?,
            EvaluatorKind::Suite | EvaluatorKind::Holdout => {
                let (questions, draw) = self.questions(job).await?;
                let terms = Terms {
                    spec,
                    level,
                    seed,
                    draw,
                    evaluator: if spec.evaluator == EvaluatorKind::Suite {
                        "suite"
                    } else {
                        "holdout"
                    },
                    answers: None,
                };
                self.inner
                    .hands
                    .contest(
                        job.scenario.as_str(),
                        &terms,
                        &questions,
                        Some(&compared.candidate),
                        Some(compared.current.as_deref()),
                        cancel,
                        &heard,
                    )
                    .await?
            }
        };
        let mut verdict = verdict;
        verdict.figures.insert("judged_before".into(), Value::from(judged));
        verdict.figures.insert("released_before".into(), Value::from(released));
        Ok(verdict)
    }

    /// What both sides are asked, and how it is drawn.
    async fn questions(&self, job: &Job) -> Result<(Vec<Question>, Draw), LoopError> {
        let spec = self.inner.recipe.gate.clone();
        let directory = eval::directory_or_here(self.inner.recipe.directory.as_deref());
        let failed = |error: EvalError| LoopError::Gate {
            reason: error.to_string(),
        };
        if spec.evaluator == EvaluatorKind::Suite {
            let path = directory.join(spec.suite.as_deref().unwrap_or_default());
            return self
                .blocking(move || {
                    let suite = Suite::load(&path).map_err(failed)?;
                    Ok((eval::suite_questions(&suite), Draw::Repeated))
                })
                .await;
        }
        let (experience, scenario) = (self.experience().clone(), job.scenario.clone());
        self.blocking(move || {
            let mut questions = Vec::new();
            for id in experience.held_out(&scenario, spec.maximum_pairs)? {
                let Some(record) = experience.record(Some(&scenario), &id)? else {
                    continue;
                };
                let (Some(bodies), Some(route)) = (record.bodies, record.row.route) else {
                    continue;
                };
                let Some(request) = read_object(&bodies.request) else {
                    continue;
                };
                questions.push(Question {
                    id: id.to_string(),
                    protected: false,
                    route,
                    request,
                    grading: Grading::Program {
                        command: spec.command.clone(),
                        directory: directory.clone(),
                        recorded: bodies.turn.map(Box::new),
                    },
                });
            }
            Ok((questions, Draw::Once))
        })
        .await
    }
}

pub(super) fn refused(error: &EvalError, cancel: &CancellationToken) -> LoopError {
    if cancel.is_cancelled() || matches!(error, EvalError::Stopped) {
        LoopError::Stopped
    } else {
        LoopError::Gate {
            reason: error.to_string(),
        }
    }
}
