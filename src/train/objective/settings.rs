//! An objective in words: which estimator, which loss, which reduction, which corrections. Built-in families are
//! starting points that a recipe overrides key by key.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::kl_control::KlController;
use super::{Correction, KlEstimator, Reduction, Surrogate};
use crate::train::TrainError;
use crate::train::optim::OptimizerSettings;

/// Everything that decides the loss of a step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ObjectiveSettings {
    /// The policy loss per token.
    pub surrogate: Surrogate,
    /// Where advantages come from.
    pub advantage: AdvantageSettings,
    /// From tokens to one number.
    pub reduction: Reduction,
    /// Which policy the ratio is taken against.
    #[serde(default)]
    pub old: OldPolicy,
    /// Weight for the mismatch between the trainer's recomputed and the sampler's log-probabilities; needs
    /// `old = "recompute"`.
    #[serde(default)]
    pub correction: Correction,
    /// Distance to the reference policy.
    #[serde(default)]
    pub kl: KlSettings,
    /// Coefficient of the entropy bonus.
    #[serde(default)]
    pub entropy: f64,
    /// Drop sequences of negative advantage that the policy has already left: mean(ℓ_o − ℓ_p) above this (OPSM).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub off_policy_mask: Option<f64>,
    /// Passes over the batch.
    #[serde(default = "one")]
    pub epochs: u32,
    /// Rollouts per optimizer step; the whole batch if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mini_batch: Option<usize>,
    /// The value model, for estimators that need one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub critic: Option<CriticSettings>,
}

fn one() -> u32 {
    1
}

/// How rewards become advantages.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "estimator", deny_unknown_fields)]
pub enum AdvantageSettings {
    /// None: demonstrations.
    None,
    /// The reward itself on every token.
    Reward,
    /// `(r − mean)/(std + 1e-6)` over the whole batch, for traffic without comparison sets.
    Batch,
    /// `(r − mean)/(std + 1e-6)` within the comparison set.
    Grpo,
    /// `r − mean` within the comparison set (Dr. GRPO).
    MeanCentred,
    /// Leave-one-out within the comparison set.
    Rloo,
    /// Length-weighted baseline within the comparison set.
    Opo,
    /// Entropic leave-one-out with adaptive β within the comparison set (TTT-Discover); sets of three or more.
    Entropic,
    /// Discounted return, whitened over the tokens of the batch.
    ReinforcePlusPlus {
        /// Discount.
        #[serde(default = "unit")]
        gamma: f64,
        /// Subtract the mean of the comparison set first.
        #[serde(default)]
        group_baseline: bool,
    },
    /// Generalised advantage estimation with a critic, over the action tokens.
    Gae {
        /// Discount.
        #[serde(default = "unit")]
        gamma: f64,
        /// λ of the actor.
        #[serde(default = "unit")]
        lambda: f64,
        /// SAO: λ = clamp(1 − 1/(α·length), 0, 1) instead of the fixed one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        length_alpha: Option<f64>,
        /// Whiten over the batch (PPO does, SAO does not).
        #[serde(default)]
        whiten: bool,
    },
}

fn unit() -> f64 {
    1.0
}

impl AdvantageSettings {
    /// Whether a critic's values are needed.
    pub fn needs_values(&self) -> bool {
        matches!(self, Self::Gae { .. })
    }

    /// Whether rows are compared within their sets.
    pub fn needs_groups(&self) -> bool {
        match self {
            Self::Grpo | Self::MeanCentred | Self::Rloo | Self::Opo | Self::Entropic => true,
            Self::ReinforcePlusPlus { group_baseline, .. } => *group_baseline,
            _ => false,
        }
    }
}

/// The policy below the ratio.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OldPolicy {
    /// The engine's recorded log-probabilities.
    #[default]
    Rollout,
    /// One pass with the trainer's own weights before the first update.
    Recompute,
}

/// Distance to the frozen base model.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct KlSettings {
    /// β; 0 leaves the reference out altogether.
    pub coefficient: f64,
    /// The estimator.
    pub estimator: KlEstimator,
    /// Where it acts.
    pub place: KlPlace,
    /// What moves β from step to step.
    pub controller: KlController,
}

impl Default for KlSettings {
    fn default() -> Self {
        Self {
            coefficient: 0.0,
            estimator: KlEstimator::K3,
            place: KlPlace::Loss,
            controller: KlController::Fixed,
        }
    }
}

/// Where the KL to the reference acts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum KlPlace {
    /// `+ β · mean KL` in the loss.
    Loss,
    /// Centred shaping of the advantage from the sampler's log-probabilities (TTT-Discover).
    Advantage,
    /// `− β k` on each token's reward (REINFORCE++, PPO).
    Reward,
}

/// The value model: a small head on the policy's hidden states, with its own optimizer. Its features are scaled to a sum
/// of absolute values of 1, so that one step of Adam moves a value by about the learning rate, in units of the reward,
/// whatever the width of the model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CriticSettings {
    /// Width of the head's hidden layer; 0 is a linear head.
    pub hidden: usize,
    /// Updates of the critic per step of the actor.
    pub steps: u32,
    /// First steps in which only the critic learns.
    pub warmup_steps: u64,
    /// λ of the critic's targets.
    pub lambda: f64,
    /// Clip of the value's change; absent leaves it free.
    pub clip: Option<f64>,
    /// Its optimizer.
    pub optimizer: OptimizerSettings,
}

impl Default for CriticSettings {
    fn default() -> Self {
        Self {
            hidden: 0,
            steps: 1,
            warmup_steps: 0,
            lambda: 1.0,
            clip: Some(0.2),
            optimizer: OptimizerSettings {
                learning_rate: 2e-2,
                ..OptimizerSettings::default()
            },
        }
    }
}

/// Names of the built-in families.
pub const FAMILIES: [&str; 12] = [
    "sft",
    "reinforce",
    "reinforce++",
    "grpo",
    "dr-grpo",
    "rloo",
    "ppo",
    "dapo",
    "cispo",
    "gspo",
    "sao",
    "tttd",
];

fn family(name: &str) -> Option<Value> {
    let ppo = |low: f64, high: f64| json!({"family": "ppo", "low": low, "high": high});
    let seq = json!({"kind": "seq-mean-token-mean"});
    let tokens = json!({"kind": "token-mean"});
    let by = |estimator: &str| json!({ "estimator": estimator });
    let (surrogate, advantage, reduction) = match name {
        "sft" => (json!({"family": "sft"}), by("none"), tokens),
        "reinforce" => (json!({"family": "reinforce"}), by("batch"), seq),
        "reinforce++" => (ppo(0.2, 0.2), by("reinforce-plus-plus"), tokens),
        "grpo" => (ppo(0.2, 0.2), by("grpo"), seq),
        "dr-grpo" => (
            ppo(0.2, 0.2),
            by("mean-centred"),
            json!({"kind": "seq-mean-token-sum-norm", "length": 1024.0}),
        ),
        "rloo" => (json!({"family": "importance-sampling"}), by("rloo"), seq),
        "ppo" => (
            ppo(0.2, 0.2),
            json!({"estimator": "gae", "gamma": 1.0, "lambda": 0.95, "whiten": true}),
            tokens,
        ),
        "dapo" => (ppo(0.2, 0.28), by("grpo"), tokens),
        "cispo" => (json!({"family": "cispo", "low": 1.0, "high": 4.0}), by("grpo"), tokens),
        "gspo" => (json!({"family": "gspo", "low": 3e-4, "high": 4e-4}), by("grpo"), seq),
        "sao" => (
            json!({"family": "dis", "low": 0.3, "high": 5.0}),
            json!({"estimator": "gae", "gamma": 1.0, "lambda": 1.0, "length_alpha": 1.5}),
            seq,
        ),
        "tttd" => (
            json!({"family": "importance-sampling"}),
            by("entropic"),
            json!({"kind": "sum"}),
        ),
        _ => return None,
    };
    let mut settings = json!({"surrogate": surrogate, "advantage": advantage, "reduction": reduction});
    match name {
        "tttd" => settings["kl"] = json!({"coefficient": 0.1, "place": "advantage"}),
        "ppo" | "sao" => settings["critic"] = json!({}),
        _ => {}
    }
    Some(settings)
}

impl ObjectiveSettings {
    /// The built-in family `name` with `overrides` merged into it: tables key by key, anything else replaced. A table
    /// that names another variant (`family`, `estimator`, `kind`, `rule`) replaces the whole table.
    pub fn from_family(name: &str, overrides: &Map<String, Value>) -> Result<Self, TrainError> {
        let mut settings = family(name).ok_or_else(|| {
            TrainError::setting(
                "objective.family",
                format!(
                    "there is no objective \"{}\"; known are {}",
                    name.escape_default(),
                    FAMILIES.join(", ")
                ),
            )
        })?;
        for (key, value) in overrides {
            merge(&mut settings[key.as_str()], value);
        }
        let parsed: Self =
            serde_json::from_value(settings).map_err(|e| TrainError::setting("objective.settings", e.to_string()))?;
        parsed.check()?;
        Ok(parsed)
    }

    /// Refuses combinations without a meaning.
    pub fn check(&self) -> Result<(), TrainError> {
        let fault = if self.advantage.needs_values() && self.critic.is_none() {
            Some(("advantage.estimator", "\"gae\" needs a [critic]"))
        } else if self.surrogate.needs_advantage() == matches!(self.advantage, AdvantageSettings::None) {
            Some((
                "surrogate",
                "\"sft\" takes advantage.estimator = \"none\", and every other surrogate takes another one",
            ))
        } else if self.correction != Correction::None && self.old == OldPolicy::Rollout {
            Some((
                "correction",
                "weighs recomputed against recorded log-probabilities: set old = \"recompute\", or correction.kind = \"none\"",
            ))
        } else if !(self.kl.coefficient >= 0.0 && self.kl.coefficient.is_finite()) {
            Some(("kl.coefficient", "must be a finite number, 0 or more"))
        } else if self.kl.place == KlPlace::Reward
            && self.kl.coefficient > 0.0
            && !matches!(
                self.advantage,
                AdvantageSettings::ReinforcePlusPlus { .. } | AdvantageSettings::Gae { .. }
            )
        {
            Some((
                "kl.place",
                "\"reward\" needs an estimator of token rewards: \"reinforce-plus-plus\" or \"gae\"",
            ))
        } else if self.epochs == 0 {
            Some(("epochs", "must be at least 1"))
        } else if self.mini_batch == Some(0) {
            Some(("mini_batch", "must be at least 1"))
        } else {
            None
        };
        if let Some((key, fault)) = fault {
            return Err(TrainError::setting(key, fault));
        }
        self.critic.as_ref().map_or(Ok(()), |critic| critic.optimizer.check())
    }

    /// Whether recorded log-probabilities must be there.
    pub fn needs_rollout_log_probs(&self) -> bool {
        (self.surrogate.needs_old() && self.old == OldPolicy::Rollout)
            || self.correction != Correction::None
            || (self.kl.coefficient > 0.0
                && (self.kl.place == KlPlace::Advantage
                    || (self.kl.place == KlPlace::Reward && self.old == OldPolicy::Rollout)))
    }

    /// Whether the reference policy must be run.
    pub fn needs_reference(&self) -> bool {
        self.kl.coefficient > 0.0
    }
}

const VARIANT_KEYS: [&str; 4] = ["family", "estimator", "kind", "rule"];

fn merge(base: &mut Value, over: &Value) {
    match (base, over) {
        (Value::Object(base), Value::Object(over))
            if !VARIANT_KEYS
                .iter()
                .any(|k| over.get(*k).is_some_and(|v| base.get(*k).is_some_and(|b| b != v))) =>
        {
            for (key, value) in over {
                merge(base.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (base, over) => *base = over.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn over(value: &Value) -> Map<String, Value> {
        value.as_object().unwrap().clone()
    }

    #[test]
    fn every_family_is_complete_and_survives_a_round_trip() {
        for name in FAMILIES {
            let settings = ObjectiveSettings::from_family(name, &Map::new()).unwrap();
            let text = serde_json::to_string(&settings).unwrap();
            assert_eq!(
                serde_json::from_str::<ObjectiveSettings>(&text).unwrap(),
                settings,
                "{name}"
            );
        }
    }

    #[test]
    fn a_key_overrides_a_key_and_a_variant_replaces_its_table() {
        let one = ObjectiveSettings::from_family("grpo", &over(&json!({"surrogate": {"high": 0.28}}))).unwrap();
        assert_eq!(
            one.surrogate,
            Surrogate::Ppo {
                low: 0.2,
                high: 0.28,
                dual_clip: None
            }
        );
        let other = over(&json!({"surrogate": {"family": "reinforce"}, "kl": {"coefficient": 0.01}}));
        let settings = ObjectiveSettings::from_family("grpo", &other).unwrap();
        assert_eq!(settings.surrogate, Surrogate::Reinforce);
        assert_eq!(settings.kl.estimator, KlEstimator::K3);
    }

    #[test]
    fn mistakes_are_named() {
        let error = |name: &str, value: &Value| {
            ObjectiveSettings::from_family(name, &over(value))
                .unwrap_err()
                .to_string()
        };
        assert!(error("gppo", &json!({})).contains("known are sft"));
        assert!(error("grpo", &json!({"clip": 1})).contains("unknown field `clip`"));
        assert!(error("grpo", &json!({"advantage": {"estimator": "gae"}})).contains("[critic]"));
        assert!(error("sft", &json!({"advantage": {"estimator": "grpo"}})).contains("sft"));
        assert!(error("grpo", &json!({"correction": {"kind": "token", "low": 0, "high": 2}})).contains("recompute"));
        assert!(error("grpo", &json!({"epochs": 0})).contains("epochs"));
    }
}
