//! Doing what [`super::state`] decided.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::seal::{Manifest, hit};
use super::settle::{Unreleased, chain_of, seed_of};
use super::state::{self, Effect, Facts};
use super::trainer::{Marker, StepMade, StepOrder, sync_tree, train_by_program};
use super::{Driver, LoopError, LoopEvent, Turn, Watch, now_us, samples};
use crate::domain::{Outcome, Verdict};
use crate::eval::Compared;
use crate::experience::{Job, Progress};
use crate::recipe::TrainerKind;
use crate::release::{ReleaseError, Repository, TrainingState};
use crate::scenario::PublishError;

impl Driver {
    /// One effect of a job. `None` means: look again.
    pub(super) async fn advance(
        &self,
        job: &Job,
        cancel: &CancellationToken,
        watch: Watch<'_>,
    ) -> Result<Option<Turn>, LoopError> {
        let manifest = Manifest::of(job)?;
        let Some(head) = self.inner.publisher.sync(&job.scenario).await? else {
            return Err(LoopError::UnknownScenario(job.scenario.clone()));
        };
        let (name, batch) = (job.scenario.clone(), job.batch.clone());
        let facts = Facts {
            head,
            has_step: self
                .read(move |experience| experience.batch_has_step(&name, &batch))
                .await?,
            stale: self.stale(job, &manifest).await?,
            now_us: now_us(),
        };
        let effect = state::next(job, &facts);
        tracing::debug!(scenario = %job.scenario, step = job.step, batch = %job.batch, ?effect, "loop");
        let done = match effect {
            Effect::Close => {
                self.attempt_recovered(job).await?;
                return self.close(job).await;
            }
            Effect::WaitUntil(until_us) => {
                let error = job.error.clone().unwrap_or_default();
                return Ok(Some(Turn::Waiting { until_us, error }));
            }
            Effect::Rebase(head) => {
                self.discard(job).await?;
                self.progress(job, Progress::Restarted(head)).await
            }
            Effect::DropStale(reason) => return self.drop_stale(job, &manifest, reason).await,
            Effect::Train => match self.train(job, &manifest, cancel, watch).await {
                Ok(Some(skipped)) => return self.record(job, &manifest, skipped, None).await,
                Ok(None) => Ok(()),
                Err(error) => Err(error),
            },
            Effect::Judge => self.judge_candidate(job, cancel, watch).await,
            Effect::Publish { held } => match self.publish(job, &manifest, held).await {
                Ok(turn) => return Ok(Some(turn)),
                Err(LoopError::Publish(error)) if error.is_conflict() => {
                    tracing::warn!(scenario = %job.scenario, %error, "the head moved while a candidate was judged");
                    return Ok(None);
                }
                Err(LoopError::Publish(PublishError::Release(error))) => self.unreleasable(job, error).await,
                Err(error) => Err(error),
            },
            Effect::Refuse => {
                let reason = job
                    .verdict
                    .as_ref()
                    .map(|verdict| verdict.reason.clone())
                    .unwrap_or_default();
                let metrics = self.step_metrics(job, &manifest);
                let refused = Unreleased {
                    rejected: true,
                    outcome: "rejected",
                    reason,
                    metrics,
                };
                return self.record(job, &manifest, refused, None).await;
            }
            Effect::JudgeAgain => {
                let reason = job
                    .verdict
                    .as_ref()
                    .map(|verdict| verdict.reason.clone())
                    .unwrap_or_default();
                self.experience().job_unmeasured(job.id).await?;
                self.progress(job, Progress::Unjudged).await?;
                Err(LoopError::Gate { reason })
            }
            Effect::GiveUpMeasuring => {
                let why = job.error.clone().unwrap_or_default();
                let refused = Unreleased {
                    rejected: true,
                    outcome: "rejected",
                    reason: format!(
                        "{} trials could not be measured; the last one: {why}",
                        job.invalid_trials
                    ),
                    metrics: self.step_metrics(job, &manifest),
                };
                return self.record(job, &manifest, refused, None).await;
            }
            Effect::GiveUp => return self.give_up(job, &manifest).await,
        };
        match done {
            Ok(()) => Ok(None),
            Err(error @ (LoopError::Stopped | LoopError::Store(_) | LoopError::UnknownScenario(_))) => Err(error),
            Err(error) => self.failed(job, &error, watch).await.map(Some),
        }
    }

    /// What to do about a candidate that cannot be a release. Its content would be refused for ever, so the step ends as
    /// rejected; a candidate whose files are gone is made again; anything else is the repository's trouble, and passes.
    async fn unreleasable(&self, job: &Job, error: ReleaseError) -> Result<(), LoopError> {
        let candidate = self.job_dir(job).join("candidate");
        let (path, problem) = match error {
            ReleaseError::BadContent { path, problem } => (path, problem),
            ReleaseError::Unreadable { source, .. } if source.kind() == ErrorKind::NotFound => {
                self.discard(job).await?;
                self.progress(job, Progress::Restarted(job.base.clone())).await?;
                return Err(LoopError::Trainer {
                    reason: "the files of the candidate are gone; the step begins again".to_owned(),
                });
            }
            ReleaseError::Unreadable { path, source } if source.kind() == ErrorKind::PermissionDenied => {
                (path, format!("it cannot be read ({source})"))
            }
            other => return Err(PublishError::from(other).into()),
        };
        let named = path.strip_prefix(&candidate).unwrap_or(&path).display().to_string();
        let reason = if named.is_empty() {
            format!("the candidate cannot be released: {problem}")
        } else {
            format!("the candidate cannot be released: {named:?}: {problem}")
        };
        let mut verdict = job.verdict.clone().unwrap_or_else(|| Verdict {
            outcome: Outcome::Rejected,
            selector: "content".to_owned(),
            reason: String::new(),
            evaluator: "none".to_owned(),
            pairs: Vec::new(),
            figures: serde_json::Map::new(),
        });
        verdict.outcome = Outcome::Rejected;
        let measured = std::mem::replace(&mut verdict.reason, reason);
        if !measured.is_empty() {
            verdict.figures.insert("measured".into(), json!(measured));
        }
        verdict.figures.insert("refused_content".into(), json!(named));
        self.progress(job, Progress::Judged(Box::new(verdict))).await
    }

    pub(super) async fn failed(&self, job: &Job, error: &LoopError, watch: Watch<'_>) -> Result<Turn, LoopError> {
        let until_us = now_us() + state::pause_us(job.attempts);
        let text = chain_of(error);
        tracing::warn!(scenario = %job.scenario, step = job.step, attempts = job.attempts + 1, error = text, "step failed");
        watch(&LoopEvent::Failed { error: text.clone() });
        self.experience().job_failed(job.id, text.clone(), until_us).await?;
        Ok(Turn::Waiting { until_us, error: text })
    }

    async fn progress(&self, job: &Job, progress: Progress) -> Result<(), LoopError> {
        self.experience().job_progress(job.id, progress).await?;
        Ok(())
    }

    /// Makes the candidate; gives the reason when there is nothing to learn.
    async fn train(
        &self,
        job: &Job,
        manifest: &Manifest,
        cancel: &CancellationToken,
        watch: Watch<'_>,
    ) -> Result<Option<Unreleased>, LoopError> {
        let asked = self.evolves()
            && (manifest.instruction.is_some() || manifest.proposal.is_some() || manifest.recheck.is_some());
        if let Some(reason) = self.nothing_to_learn(manifest).filter(|_| !asked) {
            let mut metrics = self.step_metrics(job, manifest);
            metrics.insert("skipped".into(), json!(reason));
            return Ok(Some(Unreleased {
                rejected: false,
                outcome: "skipped",
                reason,
                metrics,
            }));
        }
        let dir = self.job_dir(job);
        let (marker_path, output) = (dir.join("made.json"), dir.join("candidate"));
        let (parent, state) = match self.carried(job) {
            // It never left the work directory.
            Some(carried) => (Some(carried), TrainingState::Whole),
            None => (self.files_of(&job.base).await?, self.state_of(&job.base).await?),
        };
        let wanted = |made: StepMade| Marker {
            batch: job.batch.clone(),
            step: job.step,
            parent: parent.clone(),
            recipe_digest: self.inner.recipe_digest.clone(),
            made,
        };
        let finished = Marker::read(&marker_path).filter(|marker| *marker == wanted(marker.made.clone()));
        let made = match finished {
            Some(marker) => marker.made,
            None => {
                self.clear(&dir).await?;
                let batch_file = self.write_batch(job, manifest, &dir).await?;
                let order = StepOrder {
                    scenario: job.scenario.clone(),
                    step: job.step,
                    batch: job.batch.clone(),
                    batch_file,
                    parent: parent.clone(),
                    state,
                    output: output.clone(),
                    seed: seed_of(job),
                };
                if let TrainingState::Gone { thinned } = state {
                    tracing::warn!(scenario = %job.scenario, release = %job.base, thinned, "a step starts a fresh optimizer: the training state of what it goes on from is not here");
                    watch(&LoopEvent::FreshState {
                        release: job.base.clone(),
                        thinned,
                    });
                }
                hit("loop::before_step")?;
                let begun = Instant::now();
                let mut made = self.make(job, manifest, &order, cancel, watch).await?;
                let (StepMade::Trained { metrics } | StepMade::Skipped { metrics, .. }) = &mut made;
                metrics.insert("train_seconds".into(), json!(begun.elapsed().as_secs_f64()));
                if let TrainingState::Gone { .. } = state {
                    metrics.insert("fresh_training_state".into(), json!(state.as_str()));
                }
                hit("loop::after_step")?;
                let (marker, path, tree) = (wanted(made.clone()), marker_path, output.clone());
                self.blocking(move || {
                    if tree.is_dir() {
                        sync_tree(&tree).map_err(|source| LoopError::Work {
                            path: tree.clone(),
                            doing: "making the candidate durable",
                            source,
                        })?;
                    }
                    marker.write(&path)
                })
                .await?;
                made
            }
        };
        match made {
            StepMade::Trained { metrics } => {
                watch(&LoopEvent::Trained {
                    metrics: metrics.clone(),
                });
                hit("loop::before_trained")?;
                let candidate = json!({"directory": output, "metrics": metrics});
                self.progress(job, Progress::Trained(candidate)).await?;
                hit("loop::after_trained")?;
                Ok(None)
            }
            StepMade::Skipped { reason, metrics } => {
                let mut all = self.step_metrics(job, manifest);
                all.extend(metrics);
                all.insert("skipped".into(), json!(reason));
                Ok(Some(Unreleased {
                    rejected: false,
                    outcome: "skipped",
                    reason,
                    metrics: all,
                }))
            }
        }
    }

    async fn make(
        &self,
        job: &Job,
        manifest: &Manifest,
        order: &StepOrder,
        cancel: &CancellationToken,
        watch: Watch<'_>,
    ) -> Result<StepMade, LoopError> {
        let heard = |fraction: f64, message: &str| {
            watch(&LoopEvent::Training {
                fraction,
                message: message.to_owned(),
            });
        };
        match self.inner.recipe.trainer.backend {
            TrainerKind::Program => train_by_program(&self.inner.recipe, order, cancel, &heard).await,
            TrainerKind::Torch => self.train_embedded(job, manifest, order, cancel, &heard).await,
            TrainerKind::Proposer => self.evolve(job, manifest, order, cancel, &heard).await,
            TrainerKind::None => Err(LoopError::Trainer {
                reason: "the recipe names no trainer".to_owned(),
            }),
        }
    }

    fn nothing_to_learn(&self, manifest: &Manifest) -> Option<String> {
        if manifest.train.is_empty() {
            return Some("no complete sample waits".to_owned());
        }
        let first = manifest.train.first().and_then(|sample| sample.reward);
        let equal = manifest.train.iter().all(|sample| sample.reward == first);
        // Groups of equal scores left the pool before; this is the same for recipes without groups.
        (self.inner.recipe.processor.skip_equal_scores && first.is_some() && equal).then(|| {
            format!(
                "all {} scores are equal ({}): nothing to learn from",
                manifest.train.len(),
                first.unwrap_or_default()
            )
        })
    }

    async fn write_batch(&self, job: &Job, manifest: &Manifest, dir: &Path) -> Result<PathBuf, LoopError> {
        let (experience, scenario) = (self.experience().clone(), job.scenario.clone());
        let (recipe, train) = (self.inner.recipe.clone(), manifest.train.clone());
        let (dir, path) = (dir.to_path_buf(), dir.join("batch.jsonl"));
        self.blocking(move || {
            let mut lines = Vec::with_capacity(train.len());
            for (index, sample) in train.iter().enumerate() {
                let loaded =
                    samples::load(&experience, &scenario, &recipe, sample)?.map_err(|why| LoopError::Trainer {
                        reason: format!(
                            "record {} of the batch is no longer usable: {}",
                            sample.sources[0],
                            why.as_str()
                        ),
                    })?;
                lines.push(samples::line(index, sample, &loaded));
            }
            let io = |source| LoopError::Work {
                path: path.clone(),
                doing: "writing a batch",
                source,
            };
            std::fs::create_dir_all(&dir).map_err(io)?;
            samples::write(&path, &lines).map_err(io)?;
            Ok(path)
        })
        .await
    }

    async fn judge_candidate(&self, job: &Job, cancel: &CancellationToken, watch: Watch<'_>) -> Result<(), LoopError> {
        let compared = Compared {
            candidate: self.job_dir(job).join("candidate"),
            current: self.files_of(&job.base).await?,
        };
        // What no release may hold is not worth measuring.
        let (dir, components) = (compared.candidate.clone(), self.components());
        let checked = self
            .blocking(move || Ok(Repository::check_directory(&dir, components.as_ref())))
            .await?;
        if let Err(error) = checked {
            return self.unreleasable(job, error).await;
        }
        hit("loop::before_judge")?;
        let begun = Instant::now();
        let mut verdict = self.judge(job, &compared, cancel, watch).await?;
        let took = begun.elapsed().as_secs_f64();
        verdict.figures.insert("seconds".into(), json!(took));
        watch(&LoopEvent::Judged {
            outcome: verdict.outcome.as_str(),
            reason: verdict.reason.clone(),
        });
        if verdict.outcome == Outcome::Invalid {
            // Nothing was learnt of the candidate: it waits for a measurement that works. The trial is spent all the same,
            // or trying again until chance helps would be free.
            self.experience().job_unmeasured(job.id).await?;
            return Err(LoopError::Gate { reason: verdict.reason });
        }
        hit("loop::before_judged")?;
        self.progress(job, Progress::Judged(Box::new(verdict))).await?;
        hit("loop::after_judged")
    }
}
