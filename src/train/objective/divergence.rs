//! Distances between policies: sampled KL estimators against a reference, and exact divergences between the student's
//! and a teacher's distributions for distillation.

use serde::{Deserialize, Serialize};
use tch::{Kind, Tensor};

use super::KlEstimator;
use super::tensor::{self, LOG_RATIO_LIMIT, TensorResult};

impl KlEstimator {
    /// The estimate per token; 0 where the mask is 0.
    pub fn per_token(self, current: &Tensor, reference: &Tensor, mask: &Tensor) -> TensorResult {
        let x = tensor::log_ratio(current, reference, mask)?.f_clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)?;
        match self {
            Self::K1 => Ok(x),
            Self::K2 => x.f_square()?.f_mul_scalar(0.5),
            Self::K3 => x.f_neg()?.f_exp()?.f_sub_scalar(1.0)?.f_add(&x)?.f_clamp(-10.0, 10.0),
        }
    }

    /// The value of this estimator with the gradient of `K2` (straight-through): right in both.
    pub fn straight_through(self, current: &Tensor, reference: &Tensor, mask: &Tensor) -> TensorResult {
        let value = self.per_token(current, reference, mask)?.f_detach()?;
        let carrier = Self::K2.per_token(current, reference, mask)?;
        value.f_add(&carrier)?.f_sub(&carrier.f_detach()?)
    }
}

/// A divergence between the student's and the teacher's distributions at one position.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "kind", deny_unknown_fields)]
pub enum Divergence {
    /// `Σ t (log t − log p)`; gradient `p − t`.
    Forward,
    /// `Σ p (log p − log t)`.
    Reverse,
    /// `β KL(t ‖ m) + (1−β) KL(p ‖ m)` with `m = β t + (1−β) p` (arXiv 2306.13649).
    Jsd {
        /// Weight on the teacher.
        beta: f64,
    },
}

impl Divergence {
    /// The divergence along the last dimension, from log-probabilities that sum to one there.
    pub fn between(&self, student: &Tensor, teacher: &Tensor) -> TensorResult {
        let kl = |from: &Tensor, to: &Tensor| -> TensorResult {
            from.f_exp()?
                .f_mul(&from.f_sub(to)?)?
                .f_sum_dim_intlist(&[-1i64][..], false, None::<Kind>)
        };
        match *self {
            Self::Forward => kl(teacher, student),
            Self::Reverse => kl(student, teacher),
            Self::Jsd { beta } => {
                let mixture = teacher
                    .f_add_scalar(beta.ln())?
                    .f_logaddexp(&student.f_add_scalar((1.0 - beta).ln())?)?;
                kl(teacher, &mixture)?
                    .f_mul_scalar(beta)?
                    .f_add(&kl(student, &mixture)?.f_mul_scalar(1.0 - beta)?)
            }
        }
    }
}

/// Restricts log-probabilities to the tokens `ids` and makes them sum to one again.
pub fn renormalized_top_k(log_probs: &Tensor, ids: &Tensor) -> TensorResult {
    log_probs.f_gather(-1, ids, false)?.f_log_softmax(-1, None::<Kind>)
}

/// Restricts log-probabilities to the tokens `ids` and puts everything else into one last bucket,
/// `log(−expm1(min(log Σ, −1e-7)))`.
pub fn top_k_with_tail(log_probs: &Tensor, ids: &Tensor) -> TensorResult {
    let head = log_probs.f_gather(-1, ids, false)?;
    let tail = head
        .f_logsumexp(&[-1i64][..], true)?
        .f_clamp_max(-1e-7)?
        .f_expm1()?
        .f_neg()?
        .f_log()?;
    Tensor::f_cat(&[head, tail], -1)
}

/// The sampled reverse-KL estimator: value `gap·ℓ_p` as a surrogate, with `gap = sg(ℓ_p − ℓ_t)` at the sampled token;
/// its gradient is `gap·∇ℓ_p`, in expectation that of the reverse KL. Returns the surrogate and the gap.
pub fn sampled_reverse(current: &Tensor, teacher: &Tensor, mask: &Tensor) -> TensorResult<(Tensor, Tensor)> {
    let gap = tensor::log_ratio(current, teacher, mask)?.f_detach()?;
    Ok((tensor::masked(&gap.f_mul(current)?, mask)?, gap))
}
