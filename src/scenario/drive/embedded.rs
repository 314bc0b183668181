//! A step by the embedded trainer.

use std::sync::Arc;

use serde_json::Map;
use tokio_util::sync::CancellationToken;

use super::trainer::{StepMade, StepOrder, Watch};
use super::{Driver, LoopError};
use crate::experience::Job;
use crate::scenario::drive::samples;
use crate::scenario::drive::seal::Manifest;
use crate::sys::task;
use crate::train::{Control, StepEvent, StepJob, StepOutcome, TrainBatch, TrainError, TrainRow};

impl Driver {
    /// Makes the step in this process, or in a child of it.
    pub(super) async fn train_embedded(
        &self,
        job: &Job,
        manifest: &Manifest,
        order: &StepOrder,
        cancel: &CancellationToken,
        watch: Watch<'_>,
    ) -> Result<StepMade, LoopError> {
        let embedded = self.inner.hands.embedded()?;
        let step = StepJob {
            step: order.step,
            batch: self.rows(job, manifest).await?,
            base: embedded.base.clone(),
            base_name: embedded.base_name.clone(),
            parent: order.parent.clone(),
            output: order.output.clone(),
            settings: embedded.settings.clone(),
        };
        let control = Control::default();
        let (events, mut heard) = tokio::sync::mpsc::channel(64);
        let (backend, held) = (Arc::clone(&embedded.backend), control.clone());
        let mut work = task::blocking("a training step", move || {
            let mut tell = |event: StepEvent| {
                // Nobody has to hear how far it is.
                let _missed = events.try_send(event);
            };
            backend.run(&step, &held, &mut tell)
        });
        // Stops the step also when this future is dropped.
        let _stop = StopOnDrop(control.clone());
        let mut of = 1;
        let result = loop {
            tokio::select! {
                result = &mut work => break result,
                () = cancel.cancelled() => control.cancel(),
                event = heard.recv() => match event {
                    Some(StepEvent::Started { micro_batches, .. }) => of = micro_batches.max(1),
                    Some(StepEvent::MicroBatch { done }) => watch(done as f64 / of as f64, "micro-batches"),
                    Some(StepEvent::Update { .. }) => {}
                    Some(StepEvent::Saving) => watch(1.0, "saving"),
                    None => {}
                },
            }
            if cancel.is_cancelled() {
                // The trainer looks at its next micro-batch; nothing else is to be done meanwhile.
                break work.await;
            }
        };
        match result? {
            Ok(StepOutcome::Trained(result)) => Ok(StepMade::Trained {
                metrics: result
                    .metrics
                    .into_iter()
                    .map(|(name, value)| (name, serde_json::json!(value)))
                    .collect(),
            }),
            Ok(StepOutcome::Skipped { skip }) => Ok(StepMade::Skipped {
                reason: skip.reason().to_owned(),
                metrics: Map::new(),
            }),
            Err(TrainError::Cancelled) => Err(LoopError::Stopped),
            Err(error) => Err(LoopError::Trainer {
                reason: super::settle::chain_of(&error),
            }),
        }
    }

    async fn rows(&self, job: &Job, manifest: &Manifest) -> Result<TrainBatch, LoopError> {
        let (experience, scenario) = (self.experience().clone(), job.scenario.clone());
        let (recipe, train, batch) = (self.inner.recipe.clone(), manifest.train.clone(), job.batch.clone());
        self.blocking(move || {
            let mut rows = Vec::with_capacity(train.len());
            for sample in &train {
                let unusable = |why: &str| LoopError::Trainer {
                    reason: format!("record {} of the batch is not usable: {why}", sample.sources[0]),
                };
                let loaded =
                    samples::load(&experience, &scenario, &recipe, sample)?.map_err(|why| unusable(why.as_str()))?;
                let tokens = loaded.tokens.ok_or_else(|| unusable("no tokens were captured"))?;
                rows.push(TrainRow {
                    sources: sample.sources.clone(),
                    prompt: tokens.prompt,
                    response: tokens.response,
                    loss_mask: tokens.loss_mask,
                    action_mask: None,
                    log_probs: Some(tokens.log_probs),
                    temperature: tokens.temperature,
                    reward: sample.reward,
                    group: sample.group.clone(),
                    spans: tokens.spans,
                    truncated: sample.truncated,
                });
            }
            Ok(TrainBatch {
                id: batch,
                scenario,
                rows,
            })
        })
        .await
    }
}

struct StopOnDrop(Control);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}
