//! One step: from prepared rows to moved parameters.

use std::collections::BTreeMap;

use sha2::{Digest, Sha256};
use tch::{Kind, TchError, Tensor, no_grad};

use super::critic::{Critic, Episode};
use super::head::{self, Positions};
use super::policy::{Policy, Weights};
use super::rows::{Rows, packed};
use crate::train::checkpoint::AlgorithmState;
use crate::train::error::Doing;
use crate::train::objective::advantage;
use crate::train::objective::kl_control::KlState;
use crate::train::objective::reduce::StepTotals;
use crate::train::objective::surrogate::off_policy_sequence_mask;
use crate::train::objective::{AdvantageSettings, Correction, KlPlace, OldPolicy, tensor};
use crate::train::optim::AdamW;
use crate::train::signal::group_means;
use crate::train::{Control, MicroBatch, Prepared, Skip, StepEvent, TrainBatch, TrainError, TrainRow, TrainSettings};

/// A step at work.
pub(super) struct Step<'a> {
    pub(super) settings: &'a TrainSettings,
    pub(super) batch: &'a TrainBatch,
    pub(super) prepared: &'a Prepared,
    pub(super) policy: &'a Policy,
    /// The base model, where the policy itself no longer holds it (full fine-tuning after the first step).
    pub(super) reference: Option<&'a Policy>,
    pub(super) control: &'a Control,
    pub(super) state: AlgorithmState,
}

/// Numbers per row and response token.
type Table = Vec<Vec<f64>>;

/// What the losses are computed from, row by row in the order of `Prepared::rows`.
struct Inputs {
    advantages: Table,
    old: Table,
    reference: Option<Table>,
    weights: Option<Table>,
}

#[derive(Default)]
struct Figures {
    loss: f64,
    ratio_sum: f64,
    ratio_max: f64,
    clipped: f64,
    entropy: f64,
    kl: f64,
    shift: f64,
    tokens: f64,
}

/// What a step did to the policy.
pub(super) enum Moved {
    /// The parameters moved; the figures of the step and the algorithm's next state.
    Done(BTreeMap<String, f64>, AlgorithmState),
    /// Nothing may be kept.
    Skipped(Skip),
}

impl<'a> Step<'a> {
    fn rows(&self) -> Vec<&'a TrainRow> {
        let batch = self.batch;
        self.prepared.rows.iter().map(|i| &batch.rows[*i]).collect()
    }

    fn chosen(&self) -> impl Fn(&TrainRow, usize) -> bool + use<> {
        |row, t| row.loss_mask[t]
    }

    fn beta(&self) -> f64 {
        let kl = &self.settings.objective.kl;
        self.state.kl.map_or(kl.coefficient, |s| s.coefficient)
    }

    pub(super) fn run(
        &self,
        optimizer: &mut AdamW,
        critic: Option<&mut Critic>,
        events: &mut dyn FnMut(StepEvent),
    ) -> Result<Moved, TrainError> {
        let rows = self.rows();
        let objective = &self.settings.objective;
        let limits = &self.settings.limits;
        let plan: Vec<(Vec<usize>, Vec<MicroBatch>)> = (0..objective.epochs)
            .flat_map(|epoch| self.mini_batches(epoch))
            .map(|unit| {
                let micro_batches = packed(&rows, &unit, limits.token_budget);
                (unit, micro_batches)
            })
            .collect();
        let n_micro = plan.iter().map(|(_, micro_batches)| micro_batches.len()).sum::<usize>();
        events(StepEvent::Started {
            rows: rows.len(),
            tokens: rows.iter().map(|r| r.len()).sum(),
            micro_batches: n_micro,
        });
        let mut metrics = BTreeMap::new();
        let Some((inputs, actor)) = self.inputs(&rows, critic, &mut metrics)? else {
            return Ok(Moved::Skipped(Skip::NotFinite));
        };
        let mut state = self.state;
        state.steps += 1;
        metrics.insert("rows".into(), rows.len() as f64);
        metrics.insert("actor_updated".into(), f64::from(u8::from(actor)));
        if let Some(mean) = self.prepared.reward_mean {
            metrics.insert("reward_mean".into(), mean);
        }
        metrics.insert("uniform_groups".into(), self.prepared.uniform_groups as f64);
        if !actor {
            return Ok(Moved::Done(metrics, state));
        }
        let mut figures = Figures::default();
        let (mut done, mut updates, mut norms, mut rate) = (0, 0, 0.0f64, 0.0);
        let mut losses = Vec::with_capacity(plan.len());
        for (unit, micro_batches) in &plan {
            let totals = StepTotals {
                sequences: unit.len() as f64,
                tokens: unit.iter().map(|j| rows[*j].trained_tokens()).sum::<usize>() as f64,
            };
            let before = figures.loss;
            for micro in micro_batches {
                self.control.check()?;
                if !self.micro_batch(&rows, micro, &inputs, totals, &mut figures)? {
                    return Ok(Moved::Skipped(Skip::NotFinite));
                }
                done += 1;
                events(StepEvent::MicroBatch { done });
            }
            losses.push(figures.loss - before);
            let update = optimizer.step()?;
            if !update.applied {
                return Ok(Moved::Skipped(Skip::NotFinite));
            }
            updates += 1;
            norms = norms.max(update.grad_norm);
            rate = update.learning_rate;
            events(StepEvent::Update {
                done: updates,
                grad_norm: update.grad_norm,
            });
        }
        let tokens = figures.tokens.max(1.0);
        metrics.extend([
            ("loss".into(), figures.loss / updates.max(1) as f64),
            ("grad_norm".into(), norms),
            ("learning_rate".into(), rate),
            ("updates".into(), updates as f64),
            ("tokens".into(), figures.tokens / f64::from(objective.epochs)),
            ("ratio_mean".into(), figures.ratio_sum / tokens),
            ("ratio_max".into(), figures.ratio_max),
            ("clip_fraction".into(), figures.clipped / tokens),
            ("entropy".into(), figures.entropy / tokens),
            ("policy_shift".into(), figures.shift / tokens),
        ]);
        // The mean over the updates of a step hides what happens within it.
        if let (Some(first), Some(last)) = (losses.first(), losses.last())
            && losses.len() > 1
        {
            metrics.insert("loss_first".into(), *first);
            metrics.insert("loss_last".into(), *last);
        }
        if inputs.reference.is_some() {
            let kl = figures.kl / tokens;
            metrics.insert("kl".into(), kl);
            metrics.insert("kl_coefficient".into(), self.beta());
            let before = state.kl.unwrap_or(KlState {
                coefficient: objective.kl.coefficient,
                average: None,
            });
            state.kl = Some(objective.kl.controller.update(before, kl, rows.len()));
        }
        Ok(Moved::Done(metrics, state))
    }

    /// Rows of each optimizer update of an epoch, in an order of its own; a comparison set is never split.
    fn mini_batches(&self, epoch: u32) -> Vec<Vec<usize>> {
        let n = self.prepared.rows.len();
        let Some(size) = self.settings.objective.mini_batch else {
            return vec![(0..n).collect()];
        };
        let mut sets: Vec<Vec<usize>> = if self.settings.objective.advantage.needs_groups() {
            let mut by_group: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
            for (j, row) in self.rows().iter().enumerate() {
                by_group.entry(row.group.as_deref().unwrap_or("")).or_default().push(j);
            }
            by_group.into_values().collect()
        } else {
            (0..n).map(|j| vec![j]).collect()
        };
        // The batch and the epoch decide the order, so that the same job gives the same candidate.
        sets.sort_by_cached_key(|set| {
            let mut hash = Sha256::new();
            hash.update(self.batch.id.as_str());
            hash.update(self.state.steps.to_le_bytes());
            hash.update(epoch.to_le_bytes());
            hash.update((set.first().copied().unwrap_or(0) as u64).to_le_bytes());
            <[u8; 32]>::from(hash.finalize())
        });
        let mut out: Vec<Vec<usize>> = Vec::new();
        for set in sets {
            match out.last_mut() {
                Some(last) if last.len() + set.len() <= size => last.extend(set),
                _ => out.push(set),
            }
        }
        out
    }

    /// Everything that must be known before the first update. The flag is false while only the critic learns; `None`
    /// when the critic's gradient was not finite.
    fn inputs(
        &self,
        rows: &[&TrainRow],
        critic: Option<&mut Critic>,
        metrics: &mut BTreeMap<String, f64>,
    ) -> Result<Option<(Inputs, bool)>, TrainError> {
        let objective = &self.settings.objective;
        let recorded = || -> Table {
            rows.iter()
                .map(|r| match &r.log_probs {
                    Some(l) => l.iter().map(|x| f64::from(*x)).collect(),
                    None => vec![0.0; r.response.len()],
                })
                .collect()
        };
        let reference = objective
            .needs_reference()
            .then(|| match self.reference {
                Some(base) => self.evaluate(rows, base, Weights::Current),
                None => self.evaluate(rows, self.policy, Weights::Base),
            })
            .transpose()?;
        let own = (objective.old == OldPolicy::Recompute)
            .then(|| self.evaluate(rows, self.policy, Weights::Current))
            .transpose()?;
        let weights = match (&own, objective.correction) {
            (None, _) | (_, Correction::None) => None,
            (Some(own), correction) => Some(weigh(rows, own, &recorded(), correction).doing("weighing samples")?),
        };
        let old = own.unwrap_or_else(recorded);
        let token_rewards = match (&reference, objective.kl.place) {
            (Some(reference), KlPlace::Reward) => Some(self.token_kl(rows, &old, reference)?),
            _ => None,
        };
        let mut actor = true;
        let advantages = match objective.advantage {
            AdvantageSettings::Gae { .. } => {
                let Some(critic) = critic else {
                    return Err(TrainError::settings("advantage.estimator = \"gae\" needs a [critic]"));
                };
                let warmup = objective.critic.as_ref().map_or(0, |c| c.warmup_steps);
                actor = self.state.steps >= warmup;
                match self.judged(rows, critic, token_rewards.as_ref(), metrics)? {
                    Some(advantages) => advantages,
                    None => return Ok(None),
                }
            }
            AdvantageSettings::ReinforcePlusPlus { gamma, group_baseline } => {
                self.returns(rows, token_rewards.as_ref(), gamma, group_baseline)?
            }
            _ => self.prepared.advantages.clone(),
        };
        let advantages = match (&reference, objective.kl.place) {
            (Some(reference), KlPlace::Advantage) => {
                let flat: Vec<f64> = advantages.iter().map(|a| a.first().copied().unwrap_or(0.0)).collect();
                let masks: Vec<Vec<bool>> = rows.iter().map(|r| r.loss_mask.clone()).collect();
                let beta = self.beta();
                advantage::centred_kl_shaping(&flat, &recorded(), reference, &masks, beta).unwrap_or(advantages)
            }
            _ => advantages,
        };
        Ok(Some((
            Inputs {
                advantages,
                old,
                reference,
                weights,
            },
            actor,
        )))
    }

    /// Log-probabilities of the chosen tokens, without gradient; 0 elsewhere.
    fn evaluate(&self, rows: &[&TrainRow], policy: &Policy, weights: Weights) -> Result<Table, TrainError> {
        let every: Vec<usize> = (0..rows.len()).collect();
        let chosen = self.chosen();
        let mut out = vec![Vec::new(); rows.len()];
        for micro in packed(rows, &every, self.settings.limits.token_budget) {
            self.control.check()?;
            let laid = Rows::new(rows, &micro, &chosen, policy.model().device()).doing("laying out rows")?;
            let hidden = policy.hidden(&laid.input, weights)?;
            let pass = head::forward(policy, &hidden, &self.positions(&laid), false).doing("computing logits")?;
            let responses: Vec<usize> = micro.rows.iter().map(|j| rows[*j].response.len()).collect();
            let table = laid
                .grid(&pass.log_probs)
                .and_then(|grid| laid.read(&grid, &responses))
                .doing("reading log-probabilities")?;
            for (j, line) in micro.rows.iter().zip(table) {
                out[*j] = line;
            }
        }
        Ok(out)
    }

    fn positions<'r>(&self, laid: &'r Rows) -> Positions<'r> {
        Positions {
            targets: &laid.targets,
            temperatures: &laid.temperatures,
            chunk: i64::try_from(self.settings.limits.head_chunk).unwrap_or(i64::MAX),
        }
    }

    /// `−β k` per token, with the configured estimator.
    fn token_kl(&self, rows: &[&TrainRow], old: &Table, reference: &Table) -> Result<Table, TrainError> {
        let estimator = self.settings.objective.kl.estimator;
        let beta = self.beta();
        rows.iter()
            .zip(old.iter().zip(reference))
            .map(|(row, (old, reference))| {
                let mask: Vec<f64> = row.loss_mask.iter().map(|m| f64::from(u8::from(*m))).collect();
                let line = |xs: &[f64]| Tensor::f_from_slice(xs);
                let kl = estimator.per_token(&line(old)?, &line(reference)?, &line(&mask)?)?;
                let kl = Vec::<f64>::try_from(kl)?;
                Ok(kl.into_iter().map(|k| -beta * k).collect())
            })
            .collect::<Result<_, TchError>>()
            .doing("computing the KL penalty")
    }

    fn returns(
        &self,
        rows: &[&TrainRow],
        token_rewards: Option<&Table>,
        gamma: f64,
        group_baseline: bool,
    ) -> Result<Table, TrainError> {
        let rewards: Vec<f64> = self.batch.rows.iter().map(|r| r.reward.unwrap_or(0.0)).collect();
        let baselines = if group_baseline {
            group_means(self.batch, &rewards)?
        } else {
            vec![0.0; rewards.len()]
        };
        let of = |all: &[f64]| self.prepared.rows.iter().map(|i| all[*i]).collect::<Vec<f64>>();
        let masks: Vec<Vec<bool>> = rows.iter().map(|r| r.loss_mask.clone()).collect();
        let penalties = token_rewards.map(Vec::as_slice);
        // The penalties already carry −β.
        Ok(advantage::reinforce_plus_plus(
            &of(&rewards),
            &of(&baselines),
            &masks,
            penalties,
            -1.0,
            gamma,
        ))
    }

    /// Lets the critic learn and turns its values into advantages.
    fn judged(
        &self,
        rows: &[&TrainRow],
        critic: &mut Critic,
        token_rewards: Option<&Table>,
        metrics: &mut BTreeMap<String, f64>,
    ) -> Result<Option<Table>, TrainError> {
        let AdvantageSettings::Gae {
            gamma,
            lambda,
            length_alpha,
            whiten,
        } = self.settings.objective.advantage
        else {
            return Ok(None);
        };
        let every: Vec<usize> = (0..rows.len()).collect();
        let mut episodes: Vec<Option<Episode>> = rows.iter().map(|_| None).collect();
        for micro in packed(rows, &every, self.settings.limits.token_budget) {
            self.control.check()?;
            let device = self.policy.model().device();
            let laid = Rows::new(rows, &micro, &|row, t| row.actions()[t], device).doing("laying out rows")?;
            let hidden = self.policy.hidden(&laid.input, Weights::Current)?;
            let hidden = hidden.f_to_kind(Kind::Float).doing("running the critic")?;
            let mut from = 0;
            for j in &micro.rows {
                let n = rows[*j].actions().iter().filter(|a| **a).count() as i64;
                episodes[*j] = Some(Episode {
                    hidden: hidden.f_narrow(0, from, n).doing("running the critic")?,
                    actions: rows[*j].actions().to_vec(),
                    reward: rows[*j].reward.unwrap_or(0.0),
                    token_rewards: token_rewards.map(|t| t[*j].clone()),
                });
                from += n;
            }
        }
        let episodes: Vec<Episode> = episodes.into_iter().flatten().collect();
        let Some(judged) = critic.learn(&episodes, gamma)? else {
            return Ok(None);
        };
        metrics.insert("value_loss".into(), judged.loss);
        metrics.insert("values_outside_rewards".into(), judged.outside);
        if judged.outside > 0.5 {
            tracing::warn!(
                share = judged.outside,
                "most values of the critic lie outside the rewards seen; lower critic.optimizer.learning_rate"
            );
        }
        if let Some(explained) = judged.explained {
            metrics.insert("explained_variance".into(), explained);
        }
        let mut advantages: Table = episodes
            .iter()
            .zip(&judged.values)
            .map(|(e, values)| {
                let lambda = match length_alpha {
                    Some(alpha) => advantage::adaptive_lambda(alpha, e.actions.len()),
                    None => lambda,
                };
                let rewards = e.token_rewards.as_deref();
                advantage::gae(values, &e.actions, e.reward, rewards, gamma, lambda).advantages
            })
            .collect();
        if whiten {
            let masks: Vec<Vec<bool>> = rows.iter().map(|r| r.loss_mask.clone()).collect();
            advantage::whiten(&mut advantages, &masks, true);
        }
        Ok(Some(advantages))
    }

    /// Forward, loss and backward of one micro-batch; false if the loss is not finite.
    fn micro_batch(
        &self,
        rows: &[&TrainRow],
        micro: &MicroBatch,
        inputs: &Inputs,
        totals: StepTotals,
        figures: &mut Figures,
    ) -> Result<bool, TrainError> {
        let chosen = self.chosen();
        let laid = Rows::new(rows, micro, &chosen, self.policy.model().device()).doing("laying out rows")?;
        let positions = self.positions(&laid);
        let mut finite = true;
        let recompute = self.settings.limits.recompute;
        self.policy.forward_backward(&laid.input, recompute, |hidden| {
            let pass = head::forward(self.policy, hidden, &positions, true).doing("computing logits")?;
            let (of_log_probs, of_entropies) = self
                .loss_gradient(rows, micro, &laid, &pass, inputs, totals, figures)
                .doing("computing the loss")?;
            finite = figures.loss.is_finite();
            head::gradient(
                self.policy,
                hidden,
                &positions,
                pass,
                &of_log_probs,
                of_entropies.as_ref(),
            )
            .doing("computing gradients")
        })?;
        Ok(finite)
    }

    /// The gradient of the loss with respect to log-probabilities and entropies of the chosen tokens.
    fn loss_gradient(
        &self,
        rows: &[&TrainRow],
        micro: &MicroBatch,
        laid: &Rows,
        pass: &head::HeadPass,
        inputs: &Inputs,
        totals: StepTotals,
        figures: &mut Figures,
    ) -> Result<(Tensor, Option<Tensor>), TchError> {
        let objective = &self.settings.objective;
        let lengths: Vec<usize> = micro.rows.iter().map(|j| rows[*j].response.len()).collect();
        let grid = |table: &Table| laid.fill(&|r, t| table[micro.rows[r]][t], &lengths);
        let trained = laid.fill(&|r, t| f64::from(u8::from(rows[micro.rows[r]].loss_mask[t])), &lengths)?;
        let mask = trained.shallow_clone();
        let log_probs = pass.log_probs.f_detach()?.f_set_requires_grad(true)?;
        let entropies = pass
            .entropies
            .f_detach()?
            .f_set_requires_grad(objective.entropy != 0.0)?;
        let current = laid.grid(&log_probs)?;
        let old = grid(&inputs.old)?;
        let out = objective
            .surrogate
            .token_loss(&current, &old, &grid(&inputs.advantages)?, &mask)?;
        let mut losses = out.loss;
        if let Some(weights) = &inputs.weights {
            losses = losses.f_mul(&grid(weights)?)?;
        }
        if let Some(threshold) = objective.off_policy_mask {
            let per_row: Vec<f32> = micro
                .rows
                .iter()
                .map(|j| inputs.advantages[*j].iter().sum::<f64>() as f32)
                .collect();
            let sign = Tensor::f_from_slice(&per_row)?.f_to_device(mask.device())?;
            let keep = off_policy_sequence_mask(&current, &old, &sign, &mask, threshold)?;
            losses = losses.f_mul(&keep.f_unsqueeze(-1)?)?;
        }
        let mut loss = objective.reduction.apply(&losses, &mask, totals, None)?;
        if let Some(reference) = &inputs.reference {
            let reference = grid(reference)?;
            let kl = objective.kl.estimator.per_token(&current, &reference, &trained)?;
            figures.kl += read_sum(&tensor::masked(&kl, &trained)?)?;
            if objective.kl.place == KlPlace::Loss {
                // The derivative of a sampled estimate of KL(p‖ref) is not a sample of its gradient: k3's is that of the
                // other direction. Straight-through takes k2's, whose mean is right; off policy it is weighed by the ratio.
                let kl = objective
                    .kl
                    .estimator
                    .straight_through(&current, &reference, &trained)?;
                let kl = if objective.surrogate.needs_old() {
                    kl.f_mul(&out.ratio.f_detach()?)?
                } else {
                    kl
                };
                let term = objective.reduction.apply(&kl, &trained, totals, None)?;
                loss = loss.f_add(&term.f_mul_scalar(self.beta())?)?;
            }
        }
        if objective.entropy != 0.0 {
            let bonus = objective
                .reduction
                .apply(&laid.grid(&entropies)?, &trained, totals, None)?;
            loss = loss.f_sub(&bonus.f_mul_scalar(objective.entropy)?)?;
        }
        no_grad(|| -> Result<(), TchError> {
            figures.loss += f64::try_from(&loss)?;
            figures.tokens += read_sum(&trained)?;
            let ratio = tensor::masked(&out.ratio, &trained)?;
            figures.ratio_sum += read_sum(&ratio)?;
            figures.ratio_max = figures.ratio_max.max(f64::try_from(ratio.f_max()?)?);
            figures.clipped += read_sum(&tensor::masked(&out.clipped, &trained)?)?;
            figures.entropy += read_sum(&tensor::masked(&laid.grid(&pass.entropies)?, &trained)?)?;
            if objective.surrogate.needs_old() {
                figures.shift += read_sum(&tensor::log_ratio(&old, &current, &trained)?)?;
            }
            Ok(())
        })?;
        loss.f_backward()?;
        let of_entropies = (objective.entropy != 0.0).then(|| entropies.f_grad()).transpose()?;
        Ok((log_probs.f_grad()?, of_entropies))
    }
}

fn read_sum(t: &Tensor) -> Result<f64, TchError> {
    f64::try_from(t.f_sum(Kind::Double)?)
}

/// Correction weights per row and token.
fn weigh(rows: &[&TrainRow], own: &Table, sampled: &Table, correction: Correction) -> Result<Table, TchError> {
    rows.iter()
        .zip(own.iter().zip(sampled))
        .map(|(row, (own, sampled))| {
            let mask: Vec<f64> = row.loss_mask.iter().map(|m| f64::from(u8::from(*m))).collect();
            let line = |xs: &[f64]| Tensor::f_from_slice(xs)?.f_reshape([1, -1]);
            match correction.weights(&line(own)?, &line(sampled)?, &line(&mask)?)? {
                Some(w) => Vec::<f64>::try_from(w.f_reshape([-1])?),
                None => Ok(vec![1.0; mask.len()]),
            }
        })
        .collect()
}
