//! The words of an objective as data, without tensors: which loss, which reduction, which correction.

use serde::{Deserialize, Serialize};

/// The family of the policy loss with its bounds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "family", deny_unknown_fields)]
pub enum Surrogate {
    /// Negative log-likelihood of demonstrations: `−ℓ_p`. No advantage, no ratio.
    Sft,
    /// `−A ℓ_p` (Williams 1992).
    Reinforce,
    /// `−r A`, no clip: TTT-Discover.
    ImportanceSampling,
    /// `max(−r A, −clip(r, 1−low, 1+high) A)` (arXiv 1707.06347; DAPO, arXiv 2503.14476, for `high > low`). With
    /// `dual_clip = c > 1` a token of negative advantage loses at most `−c A` (arXiv 1912.09729).
    Ppo {
        /// ε below 1.
        low: f64,
        /// ε above 1.
        high: f64,
        /// Bound for negative advantages.
        #[serde(default)]
        dual_clip: Option<f64>,
    },
    /// `−sg(clip(r, 1−low, 1+high)) A ℓ_p` (CISPO, arXiv 2506.13585): every token keeps a gradient.
    Cispo {
        /// ε below 1; 1 or more leaves the lower side open.
        low: f64,
        /// ε above 1.
        high: f64,
    },
    /// `−sg(r · 1[1−low < r < 1+high]) A ℓ_p` (SAO's double-sided hard mask, arXiv 2607.07508): a token outside the
    /// band loses its gradient whatever the sign of A. Both sides are strict.
    Dis {
        /// ε below 1.
        low: f64,
        /// ε above 1.
        high: f64,
    },
    /// PPO with one ratio for the sequence, `exp(mean_t(ℓ_p − ℓ_o))`, on each token (GSPO, arXiv 2507.18071).
    Gspo {
        /// ε below 1.
        low: f64,
        /// ε above 1.
        high: f64,
    },
}

/// How losses per token become the loss of a step. B = sequences of the step, n_i = set positions of row i.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "kind", deny_unknown_fields)]
pub enum Reduction {
    /// `(1/B) Σ_i (1/n_i) Σ_t m x`: each sequence counts the same (GRPO, SAO, GSPO).
    SeqMeanTokenMean,
    /// `Σ_i Σ_t m x / Σ_i n_i`: each token counts the same (DAPO).
    TokenMean,
    /// `(1/B) Σ_i Σ_t m x`.
    SeqMeanTokenSum,
    /// `(1/B) Σ_i Σ_t m x / length` with a constant length (Dr. GRPO).
    SeqMeanTokenSumNorm {
        /// The constant, usually the longest response allowed.
        length: f64,
    },
    /// `Σ_i Σ_t x` over every response position, trained or not, without division (TTT-Discover).
    Sum,
}

/// How the mismatch of two policies is corrected.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "kind", deny_unknown_fields)]
pub enum Correction {
    /// No weight.
    #[default]
    None,
    /// TIS per token: `clamp(w_t, low, high)` (Yao et al. 2025).
    Token {
        /// Lower bound, usually 0.
        low: f64,
        /// Upper bound, usually 2.
        high: f64,
    },
    /// IcePop (Ling team 2025): `w_t` where `low ≤ w_t ≤ high`, else 0.
    IcePop {
        /// Lower bound, usually 0.5.
        low: f64,
        /// Upper bound, usually 2.
        high: f64,
    },
    /// One weight per sequence, the product of its tokens', at most `high`.
    Sequence {
        /// Upper bound; none leaves it unbiased and of high variance.
        high: Option<f64>,
    },
    /// A sequence counts, with weight 1, if `low ≤ measure ≤ high`; else it is dropped. A token whose ratio falls
    /// below `veto` drops its sequence too.
    SequenceMask {
        /// What is compared.
        measure: SequenceMeasure,
        /// Lower bound.
        low: f64,
        /// Upper bound.
        high: f64,
        /// Catastrophic ratio of a single token, usually 1e-4.
        #[serde(default)]
        veto: Option<f64>,
    },
}

/// One ratio for a whole sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SequenceMeasure {
    /// `Π w_t`
    Product,
    /// `(Π w_t)^(1/n)`
    Geometric,
}

/// Estimators of KL(p ‖ ref) from the sampled token alone, with `x = ℓ_p − ℓ_ref` (Schulman 2020).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum KlEstimator {
    /// `x`: unbiased as a value; as a loss its expected gradient is zero on policy, so use it for rewards only.
    K1,
    /// `x²/2`: biased, its gradient is that of the KL.
    K2,
    /// `e^{−x} − 1 + x`: unbiased, never negative, of low variance; kept within ±10.
    K3,
}

impl Surrogate {
    /// Whether the loss needs the log-probabilities of the policy that sampled.
    pub fn needs_old(&self) -> bool {
        !matches!(self, Self::Sft | Self::Reinforce)
    }

    /// Whether rewards play a part.
    pub fn needs_advantage(&self) -> bool {
        !matches!(self, Self::Sft)
    }
}
