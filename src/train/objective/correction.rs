//! Importance corrections: the trainer's own recomputed log-probabilities ℓ_o and the sampling engine's ℓ_q differ (other
//! kernels, other precision, another load); a weight `w = exp(ℓ_o − ℓ_q)`, always detached, multiplies the loss.
//! Truncating or masking it trades bias for variance: only `Sequence` without a cap is unbiased.

use tch::Tensor;

use super::tensor::{self, LOG_RATIO_LIMIT, TensorResult};
use super::{Correction, SequenceMeasure};

impl Correction {
    /// The weight per token, shape of `mask`, 0 outside it; `None` where there is nothing to weigh.
    pub fn weights(&self, trainer: &Tensor, sampler: &Tensor, mask: &Tensor) -> TensorResult<Option<Tensor>> {
        let trainer = trainer.f_detach()?;
        let weight = match *self {
            Self::None => return Ok(None),
            Self::Token { low, high } => tensor::ratio(&trainer, sampler, mask)?.f_clamp(low, high)?,
            Self::IcePop { low, high } => {
                let w = tensor::ratio(&trainer, sampler, mask)?;
                w.f_mul(&within(&w, low, high)?)?
            }
            Self::Sequence { high } => {
                let w = sequence_ratio(&trainer, sampler, mask, SequenceMeasure::Product)?;
                let w = match high {
                    Some(high) => w.f_clamp_max(high)?,
                    None => w,
                };
                w.f_unsqueeze(-1)?.f_expand_as(mask)?
            }
            Self::SequenceMask {
                measure,
                low,
                high,
                veto,
            } => {
                let w = sequence_ratio(&trainer, sampler, mask, measure)?;
                let mut keep = within(&w, low, high)?;
                if let Some(veto) = veto {
                    let worst = tensor::ratio(&trainer, sampler, mask)?.f_amin(&[-1i64][..], false)?;
                    keep = keep.f_mul(&worst.f_ge(veto)?.f_to_kind(mask.kind())?)?;
                }
                keep.f_unsqueeze(-1)?.f_expand_as(mask)?
            }
        };
        Ok(Some(tensor::masked(&weight, mask)?))
    }
}

/// `1[low ≤ w ≤ high]`, both sides inclusive.
fn within(w: &Tensor, low: f64, high: f64) -> TensorResult {
    w.f_ge(low)?.f_logical_and(&w.f_le(high)?)?.f_to_kind(w.kind())
}

/// One importance ratio per row.
pub fn sequence_ratio(trainer: &Tensor, sampler: &Tensor, mask: &Tensor, measure: SequenceMeasure) -> TensorResult {
    let log_ratio = tensor::log_ratio(trainer, sampler, mask)?;
    match measure {
        SequenceMeasure::Product => tensor::row_sum(&log_ratio, mask)?,
        SequenceMeasure::Geometric => tensor::row_mean(&log_ratio, mask)?,
    }
    .f_clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)?
    .f_exp()
}

/// The weight of a distillation loss, `min(exp(ℓ_p − ℓ_q), cap)`: one per token, or, for `per_sequence`, the
/// arithmetic mean of the capped token ratios on every token of the row.
pub fn distillation_weights(
    current: &Tensor,
    sampler: &Tensor,
    mask: &Tensor,
    cap: f64,
    per_sequence: bool,
) -> TensorResult {
    let token = tensor::ratio(&current.f_detach()?, sampler, mask)?.f_clamp_max(cap)?;
    let weight = if per_sequence {
        tensor::row_mean(&token, mask)?.f_unsqueeze(-1)?.f_expand_as(mask)?
    } else {
        token
    };
    tensor::masked(&weight, mask)
}
