//! Score centring (arXiv 2609.20807): an additive term that removes the drift which a bounded importance weight causes
//! even when every reward is equal.

use serde::{Deserialize, Serialize};
use tch::{Kind, Tensor};

use super::tensor::TensorResult;

/// The weight f of the family's loss `−A sg[f(p/q)] ℓ_p`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "kind", deny_unknown_fields)]
pub enum RatioWeight {
    /// `f = 1`
    Plain,
    /// `f = min(r, upper)`
    Truncated {
        /// Upper bound.
        upper: f64,
    },
    /// `f = r · 1[lower < r < upper]`
    Masked {
        /// Lower bound, exclusive.
        lower: f64,
        /// Upper bound, exclusive.
        upper: f64,
    },
}

impl RatioWeight {
    fn apply(self, ratio: &Tensor) -> TensorResult {
        match self {
            Self::Plain => ratio.f_ones_like(),
            Self::Truncated { upper } => ratio.f_clamp_max(upper),
            Self::Masked { lower, upper } => {
                let inside = ratio.f_gt(lower)?.f_logical_and(&ratio.f_lt(upper)?)?;
                ratio.f_mul(&inside.f_to_kind(ratio.kind())?)
            }
        }
    }
}

/// `A · Σ_{v∈H} sg[q_v f(p_v/q_v) − α p_v] log p_v` per position, where H are the sampler's recorded top tokens,
/// `ρ = max(1−q(H), ε)/max(1−p(H), ε)` and `α = ρ f(1/ρ)`.
///
/// `head_current` (with gradient) and `head_sampler` are log-probabilities of the tokens of H under the full vocabulary
/// of each policy, shape `[…, K]`; `advantage` has shape `[…]`.
pub fn centering_term(
    head_current: &Tensor,
    head_sampler: &Tensor,
    advantage: &Tensor,
    weight: RatioWeight,
    min_tail_mass: f64,
) -> TensorResult {
    let p = head_current.f_detach()?.f_exp()?;
    let q = head_sampler.f_exp()?;
    let tail = |mass: &Tensor| -> TensorResult {
        mass.f_sum_dim_intlist(&[-1i64][..], true, None::<Kind>)?
            .f_neg()?
            .f_add_scalar(1.0)?
            .f_clamp_min(min_tail_mass)
    };
    let rho = tail(&q)?.f_div(&tail(&p)?)?;
    let alpha = rho.f_mul(&weight.apply(&rho.f_reciprocal()?)?)?;
    let coefficient = q.f_mul(&weight.apply(&p.f_div(&q)?)?)?.f_sub(&alpha.f_mul(&p)?)?;
    coefficient
        .f_mul(head_current)?
        .f_sum_dim_intlist(&[-1i64][..], false, None::<Kind>)?
        .f_mul(advantage)
}
