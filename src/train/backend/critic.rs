//! The value model of SAO and PPO: a small head on the policy's frozen hidden states, with its own optimizer. It starts
//! at zero, so the first advantages are the rewards themselves.
//!
//! The last layer sees features whose absolute values sum to 1. One step of Adam moves each weight by about the learning
//! rate, so without that it would move a value by the rate times the norm of the hidden state: 0.84 for a rate of 1e-3 on a
//! model of width 576, the whole range of a reward. The values that make the advantages are those before any update on the
//! batch: a critic that has just seen the outcome predicts it, and what is left of the advantage is noise of either sign.

use std::path::Path;

use tch::{Device, Kind, TchError, Tensor, no_grad};

use crate::train::error::Doing;
use crate::train::objective::CriticSettings;
use crate::train::objective::advantage::{Gae, gae};
use crate::train::objective::surrogate::{explained_variance, value_loss};
use crate::train::optim::AdamW;
use crate::train::{TrainError, checkpoint, tensors};

/// The value model.
pub(super) struct Critic {
    settings: CriticSettings,
    parameters: Vec<(String, Tensor)>,
    optimizer: AdamW,
    /// The rewards seen so far, and 0. A value outside predicts what cannot come.
    range: (f64, f64),
}

/// The tensor that keeps the range of rewards.
const RANGE: &str = "reward_range";

/// The action positions of one row and what is known of it.
pub(super) struct Episode {
    /// Hidden states at the action positions, `[n, hidden]` f32, without a trace.
    pub(super) hidden: Tensor,
    /// Which response positions those are.
    pub(super) actions: Vec<bool>,
    /// The outcome.
    pub(super) reward: f64,
    /// Reward per response token, such as a KL penalty.
    pub(super) token_rewards: Option<Vec<f64>>,
}

/// What training the critic on a batch gave.
pub(super) struct Judged {
    /// Values per row and response position, from before any update.
    pub(super) values: Vec<Vec<f64>>,
    /// Mean value loss of the first pass.
    pub(super) loss: f64,
    /// Share of the returns' variance explained before learning, if there was any.
    pub(super) explained: Option<f64>,
    /// Share of the values that lay outside the range of the rewards.
    pub(super) outside: f64,
}

/// Features whose absolute values sum to 1.
fn scaled(features: &Tensor) -> Result<Tensor, TchError> {
    let norm = features
        .f_abs()?
        .f_sum_dim_intlist(&[-1i64][..], true, None::<Kind>)?
        .f_clamp_min(1e-6)?;
    features.f_div(&norm)
}

impl Critic {
    /// A fresh critic for hidden states of this width, or the incumbent's.
    pub(super) fn new(settings: &CriticSettings, width: i64, parent: Option<&Path>) -> Result<Self, TrainError> {
        let cpu = (Kind::Float, Device::Cpu);
        let make = || -> Result<Vec<(&str, Tensor)>, TchError> {
            let hidden = settings.hidden as i64;
            if hidden == 0 {
                return Ok(vec![
                    ("value.weight", Tensor::f_zeros([1, width], cpu)?),
                    ("value.bias", Tensor::f_zeros([1], cpu)?),
                ]);
            }
            // A fixed pattern in place of random numbers: the same job gives the same critic.
            let bound = 1.0 / (width as f64).sqrt();
            let first = Tensor::f_arange(hidden * width, cpu)?
                .f_mul_scalar(0.618_033_988_749_895)?
                .f_frac()?
                .f_mul_scalar(2.0 * bound)?
                .f_sub_scalar(bound)?
                .f_reshape([hidden, width])?;
            Ok(vec![
                ("value.inner.weight", first),
                ("value.inner.bias", Tensor::f_zeros([hidden], cpu)?),
                ("value.weight", Tensor::f_zeros([1, hidden], cpu)?),
                ("value.bias", Tensor::f_zeros([1], cpu)?),
            ])
        };
        let mut parameters = Vec::new();
        for (name, tensor) in make().doing("making a critic")? {
            parameters.push((name.to_owned(), tensor));
        }
        let known = |name: &str| parent.map(|dir| dir.join(name)).filter(|path| path.is_file());
        let mut range = (0.0, 0.0);
        let mut old_form = false;
        if let Some(path) = known(checkpoint::CRITIC) {
            let mut file = tensors::read(&path)?;
            // The first version had no scaled features; its weights mean nothing here.
            old_form = file.tensors.contains_key("value_head.weight");
            if let Some(saved) = file.tensors.remove(RANGE) {
                let ends = Vec::<f64>::try_from(saved.f_to_kind(Kind::Double).doing("restoring the critic")?)
                    .doing("restoring the critic")?;
                if let [low, high] = ends[..] {
                    range = (low, high);
                }
            }
            if old_form {
                tracing::warn!(path = %path.display(), "the critic is of an older form and starts anew");
                file.tensors.clear();
            }
            for (name, tensor) in parameters.iter_mut().filter(|_| !old_form) {
                let saved = file
                    .tensors
                    .remove(name)
                    .filter(|t| t.size() == tensor.size())
                    .ok_or_else(|| {
                        TrainError::checkpoint(
                            &path,
                            "restoring the critic",
                            format!("{name} is missing or of another shape"),
                        )
                    })?;
                *tensor = saved;
            }
        }
        for (_, tensor) in &mut parameters {
            *tensor = tensor.f_set_requires_grad(true).doing("making a critic")?;
        }
        let mut optimizer = AdamW::new(settings.optimizer.clone(), &parameters)?;
        if let Some(path) = known(checkpoint::CRITIC_OPTIMIZER).filter(|_| !old_form) {
            optimizer.restore(&path)?;
        }
        Ok(Self {
            settings: settings.clone(),
            parameters,
            optimizer,
            range,
        })
    }

    /// Writes the critic and its optimizer.
    pub(super) fn save(&self, dir: &Path) -> Result<(), TrainError> {
        let range = Tensor::f_from_slice(&[self.range.0 as f32, self.range.1 as f32]).doing("saving the critic")?;
        let mut all: Vec<(String, Tensor)> = self
            .parameters
            .iter()
            .map(|(name, tensor)| (name.clone(), tensor.shallow_clone()))
            .collect();
        all.push((RANGE.to_owned(), range));
        tensors::write(&dir.join(checkpoint::CRITIC), &all, &[])?;
        self.optimizer.save(&dir.join(checkpoint::CRITIC_OPTIMIZER))
    }

    fn value(&self, hidden: &Tensor) -> Result<Tensor, TchError> {
        let p = |i: usize| &self.parameters[i].1;
        let out = if self.settings.hidden == 0 {
            scaled(hidden)?.f_linear(p(0), Some(p(1)))?
        } else {
            let width = hidden.size().last().copied().unwrap_or(1) as f64;
            let even = scaled(hidden)?.f_mul_scalar(width)?;
            scaled(&even.f_linear(p(0), Some(p(1)))?.f_silu()?)?.f_linear(p(2), Some(p(3)))?
        };
        out.f_squeeze_dim(-1)
    }

    /// Makes the configured number of updates on these episodes. The targets are those of the critic's own λ; the
    /// values handed on are those before the first update, within the range of the rewards seen.
    pub(super) fn learn(&mut self, episodes: &[Episode], gamma: f64) -> Result<Option<Judged>, TrainError> {
        let hidden: Vec<&Tensor> = episodes.iter().map(|e| &e.hidden).collect();
        let hidden = Tensor::f_cat(&hidden, 0).doing("running the critic")?;
        let counts: Vec<i64> = episodes.iter().map(|e| e.hidden.size()[0]).collect();
        let weights: Vec<f32> = counts
            .iter()
            .flat_map(|n| std::iter::repeat_n(1.0 / (*n as f32 * episodes.len() as f32), *n as usize))
            .collect();
        let weights = Tensor::f_from_slice(&weights).doing("running the critic")?;
        for episode in episodes {
            self.range.0 = self.range.0.min(episode.reward);
            self.range.1 = self.range.1.max(episode.reward);
        }
        let mut judged: Option<Judged> = None;
        let mut first_values: Option<Tensor> = None;
        for _ in 0..self.settings.steps.max(1) {
            let value = self.value(&hidden).doing("running the critic")?;
            let old = first_values.get_or_insert_with(|| value.detach()).shallow_clone();
            let values = self.spread(&value, episodes).doing("reading values")?;
            let lambda = self.settings.lambda;
            let targets: Vec<f32> = episodes
                .iter()
                .zip(&values)
                .flat_map(|(e, v)| {
                    let Gae { returns, .. } = gae(v, &e.actions, e.reward, e.token_rewards.as_deref(), gamma, lambda);
                    (0..v.len())
                        .filter(|t| e.actions[*t])
                        .map(|t| returns[t] as f32)
                        .collect::<Vec<_>>()
                })
                .collect();
            let targets = Tensor::f_from_slice(&targets).doing("running the critic")?;
            let loss = value_loss(&value, &old, &targets, self.settings.clip)
                .and_then(|l| l.f_mul(&weights)?.f_sum(None::<Kind>))
                .doing("computing the value loss")?;
            loss.f_backward().doing("training the critic")?;
            if !self.optimizer.step()?.applied {
                return Ok(None);
            }
            if judged.is_none() {
                let (low, high) = self.range;
                let all = values
                    .iter()
                    .zip(episodes)
                    .flat_map(|(values, episode)| values.iter().zip(&episode.actions));
                let acted: Vec<f64> = all.filter(|(_, acts)| **acts).map(|(value, _)| *value).collect();
                let outside = acted.iter().filter(|value| !(low..=high).contains(*value)).count();
                judged = Some(Judged {
                    values: values
                        .into_iter()
                        .map(|row| row.into_iter().map(|value| value.clamp(low, high)).collect())
                        .collect(),
                    loss: f64::try_from(&loss).doing("reading the value loss")?,
                    explained: no_grad(|| explained_variance(&value, &targets, &targets.f_ones_like()?))
                        .doing("judging the critic")?,
                    outside: outside as f64 / acted.len().max(1) as f64,
                });
            }
        }
        Ok(judged)
    }

    fn spread(&self, value: &Tensor, episodes: &[Episode]) -> Result<Vec<Vec<f64>>, TchError> {
        let flat = Vec::<f64>::try_from(value.f_detach()?.f_to_kind(Kind::Double)?)?;
        let mut flat = flat.into_iter();
        Ok(episodes
            .iter()
            .map(|e| {
                e.actions
                    .iter()
                    .map(|action| if *action { flat.next().unwrap_or(0.0) } else { 0.0 })
                    .collect()
            })
            .collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn episode(features: &[f32], actions: &[bool], reward: f64) -> Episode {
        let n = actions.iter().filter(|a| **a).count() as i64;
        Episode {
            hidden: Tensor::from_slice(features).reshape([n, -1]),
            actions: actions.to_vec(),
            reward,
            token_rewards: None,
        }
    }

    /// Hidden states as they come out of the final norm of a model of this width: their absolute values sum to about 840.
    fn wide(seed: u64, tokens: i64) -> Vec<f32> {
        let width = 576;
        let raw = crate::train::testing::normal(seed, &[tokens, width], Kind::Float);
        Vec::<f32>::try_from((raw * 1.83).flatten(0, -1)).unwrap()
    }

    fn advantages_of(rewards: &[f64]) -> Vec<f64> {
        let settings = CriticSettings::default();
        let mut critic = Critic::new(&settings, 576, None).unwrap();
        rewards
            .iter()
            .enumerate()
            .map(|(step, reward)| {
                // Prompts of one kind: mostly the same states, with something of their own.
                let (shared, own) = (wide(1, 12), wide(100 + step as u64, 12));
                let mixed: Vec<f32> = shared.iter().zip(&own).map(|(a, b)| 0.9 * a + 0.4 * b).collect();
                let judged = critic
                    .learn(&[episode(&mixed, &[true; 12], *reward)], 1.0)
                    .unwrap()
                    .unwrap();
                let values = &judged.values[0];
                reward - values.iter().sum::<f64>() / values.len() as f64
            })
            .collect()
    }

    #[test]
    fn at_the_width_of_a_real_model_no_rewarded_answer_is_pushed_down() {
        // With features as they come, a rate of 1e-3 and values read after an update, four of the first seven answers of
        // reward 1 got a negative advantage, and an answer of reward 0 one of +0.9.
        let always = advantages_of(&[1.0; 150]);
        assert!(always.iter().all(|a| *a >= 0.0), "{always:?}");
        assert!(always[149] < 0.2, "the critic learns: {}", always[149]);
        let rewards: Vec<f64> = (0..150).map(|step| f64::from(step % 2 == 0)).collect();
        for (step, advantage) in advantages_of(&rewards).iter().enumerate() {
            let right = if rewards[step] > 0.5 {
                *advantage > 0.0
            } else {
                *advantage <= 0.0
            };
            assert!(right, "step {step}: reward {} has advantage {advantage}", rewards[step]);
        }
    }

    #[test]
    fn the_values_are_those_before_the_update() {
        let settings = CriticSettings {
            steps: 5,
            ..CriticSettings::default()
        };
        let mut critic = Critic::new(&settings, 576, None).unwrap();
        let judged = critic
            .learn(&[episode(&wide(1, 3), &[true; 3], 1.0)], 1.0)
            .unwrap()
            .unwrap();
        assert_eq!(judged.values[0], [0.0, 0.0, 0.0], "a fresh critic expects nothing");
    }

    #[test]
    fn it_learns_which_states_pay_and_survives_a_restart() {
        for hidden in [0, 8] {
            let settings = CriticSettings {
                hidden,
                clip: None,
                ..CriticSettings::default()
            };
            let mut settings = settings;
            settings.optimizer.learning_rate = 0.05;
            let episodes = [
                episode(&[1.0, 0.0, 1.0, 0.0], &[true, false, true], 1.0),
                episode(&[0.0, 1.0], &[true], 0.0),
            ];
            let mut critic = Critic::new(&settings, 2, None).unwrap();
            let first = critic.learn(&episodes, 1.0).unwrap().unwrap();
            // The head starts at zero: of the one mean of squares, half the rows are 1.
            assert!((first.loss - 0.5).abs() < 1e-6, "{}", first.loss);
            for _ in 0..100 {
                critic.learn(&episodes, 1.0).unwrap();
            }
            let dir = tempfile::tempdir().unwrap();
            std::fs::create_dir(dir.path().join("training")).unwrap();
            critic.save(dir.path()).unwrap();
            let mut again = Critic::new(&settings, 2, Some(dir.path())).unwrap();
            let judged = again.learn(&episodes, 1.0).unwrap().unwrap();
            assert!(
                judged.values[0][0] > 0.9 && judged.values[1][0] < 0.1,
                "{:?}",
                judged.values
            );
            assert_eq!(judged.values[0][1], 0.0);
            assert!(judged.explained.unwrap() > 0.95);
            let same = critic.learn(&episodes, 1.0).unwrap().unwrap();
            assert_eq!(same.values, judged.values);
        }
    }
}
