//! The embedded trainer: loads the base once, makes one step after another with it.

use std::path::{Path, PathBuf};
use std::time::Instant;

use parking_lot::Mutex;
use tch::{Device, Kind};

use super::critic::Critic;
use super::policy::Policy;
use super::step::{Moved, Step};
use crate::engine::torch::model::Model;
use crate::train::checkpoint::{self, Draft};
use crate::train::optim::AdamW;
use crate::train::{
    Control, Method, Precision, Prepared, Shape, Signal, StepEvent, StepJob, StepOutcome, StepResult, TrainError,
    prepare,
};

/// Makes steps, one at a time.
#[derive(Default)]
pub struct Trainer {
    base: Mutex<Option<Base>>,
}

struct Base {
    dir: PathBuf,
    kind: Kind,
    model: Model,
}

fn load(dir: &Path, kind: Kind) -> Result<Model, TrainError> {
    Model::load(dir, kind, Device::Cpu).map_err(|e| TrainError::Model {
        doing: "loading weights",
        source: Box::new(e),
    })
}

impl Trainer {
    /// A trainer that loads its base when it first needs it.
    pub fn new() -> Self {
        Self::default()
    }

    /// A trainer of adapters on a base that is loaded already; storage is shared, nothing is copied.
    pub fn with_base(dir: PathBuf, model: Model) -> Self {
        let kind = model.kind();
        Self {
            base: Mutex::new(Some(Base { dir, kind, model })),
        }
    }

    /// Makes one step. Blocks until it is done, cancelled or refused; a second caller waits for the first. It changes
    /// the calling thread's number of compute threads.
    pub(super) fn run(
        &self,
        job: &StepJob,
        control: &Control,
        events: &mut dyn FnMut(StepEvent),
    ) -> Result<StepOutcome, TrainError> {
        let started = Instant::now();
        job.settings.check()?;
        let job_id = job.id()?;
        let target = job.output.clone();
        if let Some(manifest) = checkpoint::finished(&target, &job_id)? {
            return Ok(StepOutcome::Trained(StepResult {
                candidate: target,
                job_id,
                metrics: manifest.metrics,
                reused: true,
            }));
        }
        let prepared = match prepare(&job.batch, &job.settings.objective)? {
            Signal::Train(prepared) => prepared,
            Signal::Skip(skip) => return Ok(StepOutcome::Skipped { skip }),
        };
        let mut base = self.base.lock();
        control.check()?;
        if job.settings.limits.threads > 0 {
            tch::set_num_threads(i32::try_from(job.settings.limits.threads).unwrap_or(i32::MAX));
        }
        let moved = self.step(job, &prepared, &mut base, control, events)?;
        let (draft, mut metrics, state) = match moved {
            Written::Skipped(skip) => return Ok(StepOutcome::Skipped { skip }),
            Written::Draft(draft, metrics, state) => (draft, metrics, state),
        };
        metrics.insert("seconds".into(), started.elapsed().as_secs_f64());
        let candidate = draft.finish(&job_id, job.step, state, &metrics)?;
        Ok(StepOutcome::Trained(StepResult {
            candidate,
            job_id,
            metrics,
            reused: false,
        }))
    }

    fn step(
        &self,
        job: &StepJob,
        prepared: &Prepared,
        base: &mut Option<Base>,
        control: &Control,
        events: &mut dyn FnMut(StepEvent),
    ) -> Result<Written, TrainError> {
        let settings = &job.settings;
        let parent = job.parent.as_deref();
        let (model, reference) = match settings.method {
            Method::Lora { .. } => {
                let kind = match settings.precision {
                    Precision::F32 => Kind::Float,
                    Precision::Bf16 => Kind::BFloat16,
                };
                if base.as_ref().is_none_or(|b| b.dir != job.base || b.kind != kind) {
                    // The old base goes before the new one comes.
                    *base = None;
                    let model = load(&job.base, kind)?;
                    let dir = job.base.clone();
                    *base = Some(Base { dir, kind, model });
                }
                let Some(base) = base.as_ref() else {
                    return Err(TrainError::settings("the base model is not loaded"));
                };
                (base.model.shallow_clone(), None)
            }
            Method::Full => {
                // The weights change in place, so they are never shared with another step.
                *base = None;
                let reference = match parent {
                    Some(_) if settings.objective.needs_reference() => Some(load(&job.base, Kind::Float)?),
                    _ => None,
                };
                (load(parent.unwrap_or(&job.base), Kind::Float)?, reference)
            }
        };
        check_fit(job, prepared, &model)?;
        let frozen = Method::Lora {
            rank: 1,
            alpha: 1.0,
            targets: vec!["q_proj".into()],
            seed: 0,
        };
        let reference = reference.map(|m| Policy::new(m, &frozen, None)).transpose()?;
        let policy = Policy::new(model, &settings.method, parent)?;
        let mut optimizer = AdamW::new(settings.optimizer.clone(), &policy.parameters())?;
        let saved = parent
            .map(|dir| dir.join(checkpoint::OPTIMIZER))
            .filter(|p| p.is_file());
        if let Some(path) = &saved {
            optimizer.restore(path)?;
        }
        let state = match parent {
            Some(dir) => checkpoint::read_manifest(dir)?.map(|m| m.state).unwrap_or_default(),
            None => Default::default(),
        };
        let width = i64::try_from(policy.model().config().hidden_size).unwrap_or(i64::MAX);
        let mut critic = settings
            .objective
            .critic
            .as_ref()
            .filter(|_| settings.objective.advantage.needs_values())
            .map(|c| Critic::new(c, width, parent))
            .transpose()?;
        let step = Step {
            settings,
            batch: &job.batch,
            prepared,
            policy: &policy,
            reference: reference.as_ref(),
            control,
            state,
        };
        let (mut metrics, state) = match step.run(&mut optimizer, critic.as_mut(), events)? {
            Moved::Done(metrics, state) => (metrics, state),
            Moved::Skipped(skip) => return Ok(Written::Skipped(skip)),
        };
        metrics.insert("optimizer_restored".into(), f64::from(u8::from(saved.is_some())));
        control.check()?;
        events(StepEvent::Saving);
        let draft = Draft::begin(&job.output)?;
        policy.save(draft.dir(), &job.base, &job.base_name)?;
        optimizer.save(&draft.dir().join(checkpoint::OPTIMIZER))?;
        if let Some(critic) = &critic {
            critic.save(draft.dir())?;
        }
        Ok(Written::Draft(draft, metrics, state))
    }
}

enum Written {
    Draft(
        Draft,
        std::collections::BTreeMap<String, f64>,
        checkpoint::AlgorithmState,
    ),
    Skipped(crate::train::Skip),
}

/// Refuses rows the model cannot read and steps that would not fit, before anything runs.
fn check_fit(job: &StepJob, prepared: &Prepared, model: &Model) -> Result<(), TrainError> {
    let config = model.config();
    let limits = &job.settings.limits;
    let mut longest = 0;
    for i in &prepared.rows {
        let row = &job.batch.rows[*i];
        longest = longest.max(row.len());
        if row.len() > limits.max_tokens.min(config.max_positions) {
            let most = limits.max_tokens.min(config.max_positions);
            return Err(job
                .batch
                .row_error(*i, format!("it has {} tokens and {most} are allowed", row.len())));
        }
        let beyond = |t: &&u32| **t as usize >= config.vocab_size;
        if let Some(token) = row.prompt.iter().chain(&row.response).find(beyond) {
            return Err(job
                .batch
                .row_error(*i, format!("token {token} is not in the model's vocabulary")));
        }
    }
    let Some(budget_mib) = limits.memory_mib else {
        return Ok(());
    };
    let shape = Shape {
        hidden: config.hidden_size,
        intermediate: config.intermediate_size,
        heads: config.n_heads,
        layers: config.n_layers,
        vocabulary: config.vocab_size,
        element: model.kind().elt_size_in_bytes(),
    };
    let tokens = limits.token_budget.max(longest);
    let mut bytes = shape.step_bytes(tokens, limits.head_chunk, limits.recompute);
    if job.settings.method == Method::Full {
        // Gradient and two moments beside each weight.
        bytes += 3 * 4 * usize::try_from(config.n_parameters()).unwrap_or(usize::MAX / 16);
    }
    let needed_mib = (bytes / (1 << 20)) as u64;
    if needed_mib > budget_mib {
        return Err(TrainError::Memory { needed_mib, budget_mib });
    }
    Ok(())
}
