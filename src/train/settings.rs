//! What a deployment may say about training, beside the objective.

use serde::{Deserialize, Serialize};

use super::TrainError;
use super::objective::ObjectiveSettings;
use super::optim::OptimizerSettings;

/// Everything a step needs to know besides its batch. A change here makes another step of the same batch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrainSettings {
    /// The loss.
    pub objective: ObjectiveSettings,
    /// The optimizer of the policy.
    #[serde(default)]
    pub optimizer: OptimizerSettings,
    /// Which parameters move.
    #[serde(default)]
    pub method: Method,
    /// The kind of the frozen weights and of activations.
    #[serde(default)]
    pub precision: Precision,
    /// How the work is cut up.
    #[serde(default)]
    pub limits: Limits,
}

/// Which parameters move.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "kind", deny_unknown_fields)]
pub enum Method {
    /// A low-rank adapter beside frozen weights (arXiv 2106.09685), kept in f32.
    Lora {
        /// Rank.
        #[serde(default = "rank")]
        rank: usize,
        /// The update is scaled by `alpha / rank`.
        #[serde(default = "alpha")]
        alpha: f64,
        /// Projections to adapt, by their names in checkpoints.
        #[serde(default = "targets")]
        targets: Vec<String>,
        /// Seed of the first adapter's random factor.
        #[serde(default)]
        seed: u64,
    },
    /// Every weight.
    Full,
}

fn rank() -> usize {
    32
}

fn alpha() -> f64 {
    32.0
}

fn targets() -> Vec<String> {
    [
        "q_proj",
        "k_proj",
        "v_proj",
        "o_proj",
        "gate_proj",
        "up_proj",
        "down_proj",
    ]
    .map(str::to_owned)
    .to_vec()
}

impl Default for Method {
    fn default() -> Self {
        Self::Lora {
            rank: rank(),
            alpha: alpha(),
            targets: targets(),
            seed: 0,
        }
    }
}

/// Kind of frozen weights and activations. An adapter and all optimizer state are f32 either way.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Precision {
    /// 32 bits.
    #[default]
    F32,
    /// 16 bits: half the memory, faster where the processor has bf16 arithmetic. Adapters only.
    Bf16,
}

/// How the work is cut up. These change speed and memory, and the result only by rounding.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Tokens, padding included, that run through the model together.
    pub token_budget: usize,
    /// Trained tokens whose logits are held at once.
    pub head_chunk: usize,
    /// Forget activations and compute them again in the backward pass: about a third more time for a fraction of
    /// the memory.
    pub recompute: bool,
    /// A step estimated above this is refused before it starts.
    pub memory_mib: Option<u64>,
    /// Threads of the training thread; 0 leaves libtorch's default.
    pub threads: usize,
    /// How much the training threads give way to serving: 0 not at all, 19 the most. Linux only.
    pub niceness: u8,
    /// A row longer than this is an error.
    pub max_tokens: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            token_budget: 1024,
            head_chunk: 1024,
            recompute: false,
            memory_mib: None,
            threads: 0,
            niceness: 10,
            max_tokens: 8192,
        }
    }
}

impl TrainSettings {
    /// The objective with everything else at its default.
    pub fn new(objective: ObjectiveSettings) -> Self {
        Self {
            objective,
            optimizer: OptimizerSettings::default(),
            method: Method::default(),
            precision: Precision::default(),
            limits: Limits::default(),
        }
    }

    /// Refuses what cannot be trained.
    pub fn check(&self) -> Result<(), TrainError> {
        self.objective.check()?;
        self.optimizer.check()?;
        let fault = match &self.method {
            Method::Full if self.precision == Precision::Bf16 => Some((
                "precision",
                "full fine-tuning needs precision = \"f32\": a bf16 weight is too coarse for small updates",
            )),
            Method::Lora { rank, .. } if *rank == 0 => Some(("method.rank", "must be at least 1")),
            Method::Lora { alpha, .. } if !alpha.is_finite() => Some(("method.alpha", "must be a finite number")),
            Method::Lora { targets, .. } if targets.is_empty() => Some(("method.targets", "must name a projection")),
            _ if self.limits.token_budget == 0 => Some(("limits.token_budget", "must be at least 1")),
            _ if self.limits.head_chunk == 0 => Some(("limits.head_chunk", "must be at least 1")),
            _ => None,
        };
        fault.map_or(Ok(()), |(key, fault)| Err(TrainError::setting(key, fault)))
    }
}
