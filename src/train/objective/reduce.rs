//! From losses per token to one number. The wrong reduction changes the effective learning rate by orders of
//! magnitude, so each is named, and its denominators belong to the whole step, not to the micro-batch.

use serde::{Deserialize, Serialize};
use tch::{Kind, Tensor};

use super::Reduction;
use super::tensor::{self, TensorResult};

/// The denominators of a whole optimizer step.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct StepTotals {
    /// B: sequences, or comparison sets when rows share one.
    pub sequences: f64,
    /// Σ n_i: trained tokens.
    pub tokens: f64,
}

impl StepTotals {
    /// Counts a mask that holds the whole step.
    pub fn of(mask: &Tensor) -> TensorResult<Self> {
        Ok(Self {
            sequences: mask.size().first().copied().unwrap_or(0) as f64,
            tokens: f64::try_from(mask.f_sum(Kind::Double)?)?,
        })
    }
}

impl Reduction {
    /// The contribution of these rows (a micro-batch or all) to the loss of a step with `totals`. `row_tokens`
    /// replaces n_i where rows of one comparison set share a denominator.
    ///
    /// A step without a single trained token gives `0 · Σ x`, so that gradients exist and are zero.
    pub fn apply(
        &self,
        losses: &Tensor,
        mask: &Tensor,
        totals: StepTotals,
        row_tokens: Option<&Tensor>,
    ) -> TensorResult {
        let sequences = totals.sequences.max(1.0);
        match *self {
            Self::SeqMeanTokenMean => {
                let count = match row_tokens {
                    Some(n) => n.f_clamp_min(1.0)?,
                    None => tensor::row_count(mask)?,
                };
                tensor::row_sum(losses, mask)?
                    .f_div(&count)?
                    .f_sum(None::<Kind>)?
                    .f_div_scalar(sequences)
            }
            Self::TokenMean => total(losses, mask)?.f_div_scalar(totals.tokens.max(1.0)),
            Self::SeqMeanTokenSum => total(losses, mask)?.f_div_scalar(sequences),
            Self::SeqMeanTokenSumNorm { length } => total(losses, mask)?.f_div_scalar(sequences * length),
            Self::Sum => losses.f_sum(None::<Kind>),
        }
    }
}

fn total(losses: &Tensor, mask: &Tensor) -> TensorResult {
    tensor::masked(losses, mask)?.f_sum(None::<Kind>)
}
