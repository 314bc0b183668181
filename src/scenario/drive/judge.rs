//! The candidate before the gate.

use serde_json::Value;
use sha2::{Digest, Sha256};
use tokio_util::sync::CancellationToken;

use super::{Driver, LoopError, LoopEvent, Watch};
use crate::domain::Verdict;
use crate::eval::{self, Compared, Draw, EvalError, Grading, Question, Reference, Suite, Terms, Trial};
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
                let (questions, draw, digest) = self.questions(job).await?;
                let conditions = self.reference_conditions(job, &digest);
                let reference = self.reference(job, &conditions).await?;
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
                    reference: reference.as_ref(),
                };
                let verdict = self
                    .inner
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
                    .await;
                if let Some(reference) = &reference {
                    self.keep_reference(job, conditions, reference).await?;
                }
                verdict?
            }
        };
        let mut verdict = verdict;
        verdict.figures.insert("judged_before".into(), Value::from(judged));
        verdict.figures.insert("released_before".into(), Value::from(released));
        Ok(verdict)
    }

    /// What decides a score of the served release: runs compare only where all of it is equal.
    fn reference_conditions(&self, job: &Job, suite_digest: &str) -> String {
        let model = self.inner.hands.model();
        let text = serde_json::json!([
            "reference",
            suite_digest,
            job.base,
            model,
            self.inner.recipe.gate.score_range
        ]);
        hex::encode(Sha256::digest(text.to_string()))
    }

    async fn reference(&self, job: &Job, conditions: &str) -> Result<Option<Reference>, LoopError> {
        if self.inner.recipe.gate.reference == 0 {
            return Ok(None);
        }
        let (name, wanted) = (job.scenario.clone(), conditions.to_owned());
        let known = self
            .read(move |experience| experience.baseline(&name, &wanted, 0))
            .await?;
        Ok(Some(Reference::new(
            known.into_iter().map(|(task, _, score)| (task, score)).collect(),
        )))
    }

    async fn keep_reference(&self, job: &Job, conditions: String, reference: &Reference) -> Result<(), LoopError> {
        // A run is kept under a number that no other run of the reference has.
        let first = u32::try_from(reference.known_runs()).unwrap_or(u32::MAX);
        let fresh = reference.fresh();
        if fresh.is_empty() {
            return Ok(());
        }
        let runs = fresh
            .into_iter()
            .zip(first..)
            .map(|((task, score), number)| (task, number, score))
            .collect();
        self.experience()
            .keep_baseline(job.scenario.clone(), conditions, runs)
            .await?;
        Ok(())
    }

    /// What both sides are asked, how it is drawn, and the digest of the suite.
    async fn questions(&self, job: &Job) -> Result<(Vec<Question>, Draw, String), LoopError> {
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
                    Ok((eval::suite_questions(&suite), Draw::Repeated, suite.digest))
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
            Ok((questions, Draw::Once, String::new()))
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
