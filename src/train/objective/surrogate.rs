//! Policy losses per token. With `r = exp(ℓ_p − ℓ_o)`, `A` the advantage and `sg` a stop-gradient; sources in
//! `docs/design/objectives.md`. Each returns a loss to *minimise* and never mixes positions, GSPO excepted.

use tch::{Kind, Tensor};

use super::Surrogate;
use super::tensor::{self, LOG_RATIO_LIMIT, TensorResult};

/// What a surrogate says of each token.
pub struct TokenLoss {
    /// Loss per token; 0 where the mask is 0.
    pub loss: Tensor,
    /// The importance ratio (detached).
    pub ratio: Tensor,
    /// 1 where the bound took effect (detached).
    pub clipped: Tensor,
}

impl Surrogate {
    /// The loss per token from log-probabilities under the current policy (`current`, with gradient) and under the old
    /// one, advantages and the loss mask, all of one shape `[rows, positions]`.
    pub fn token_loss(
        &self,
        current: &Tensor,
        old: &Tensor,
        advantage: &Tensor,
        mask: &Tensor,
    ) -> TensorResult<TokenLoss> {
        let never = || mask.f_zeros_like();
        // Padding may hold anything; it must not reach the arithmetic, where NaN would survive a mask.
        let advantage = tensor::masked(advantage, mask)?;
        let current = tensor::masked(current, mask)?;
        let out = match *self {
            Self::Sft => TokenLoss {
                loss: current.f_neg()?,
                ratio: mask.f_ones_like()?,
                clipped: never()?,
            },
            Self::Reinforce => TokenLoss {
                loss: current.f_mul(&advantage)?.f_neg()?,
                ratio: mask.f_ones_like()?,
                clipped: never()?,
            },
            Self::ImportanceSampling => {
                let ratio = tensor::ratio(&current, old, mask)?;
                TokenLoss {
                    loss: ratio.f_mul(&advantage)?.f_neg()?,
                    clipped: never()?,
                    ratio,
                }
            }
            Self::Ppo { low, high, dual_clip } => {
                let ratio = tensor::ratio(&current, old, mask)?;
                clipped_objective(ratio, &advantage, low, high, dual_clip)?
            }
            Self::Gspo { low, high } => {
                let log_ratio = tensor::log_ratio(&current, old, mask)?;
                let sequence = tensor::row_mean(&log_ratio, mask)?
                    .f_clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)?
                    .f_exp()?
                    .f_unsqueeze(-1)?
                    .f_expand_as(mask)?;
                clipped_objective(sequence, &advantage, low, high, None)?
            }
            Self::Cispo { low, high } => {
                let ratio = tensor::ratio(&current, old, mask)?.f_detach()?;
                let kept = ratio.f_clamp(1.0 - low, 1.0 + high)?;
                TokenLoss {
                    loss: kept.f_mul(&advantage)?.f_mul(&current)?.f_neg()?,
                    clipped: kept.f_ne_tensor(&ratio)?.f_to_kind(mask.kind())?,
                    ratio,
                }
            }
            Self::Dis { low, high } => {
                let ratio = tensor::ratio(&current, old, mask)?.f_detach()?;
                let inside = in_band(&ratio, 1.0 - low, 1.0 + high)?.f_to_kind(mask.kind())?;
                TokenLoss {
                    loss: ratio.f_mul(&inside)?.f_mul(&advantage)?.f_mul(&current)?.f_neg()?,
                    clipped: inside.f_neg()?.f_add_scalar(1.0)?,
                    ratio,
                }
            }
        };
        Ok(TokenLoss {
            loss: tensor::masked(&out.loss, mask)?,
            ratio: out.ratio.f_detach()?,
            clipped: tensor::masked(&out.clipped.f_detach()?, mask)?,
        })
    }
}

/// `1[lower < r < upper]`, strict on both sides.
fn in_band(ratio: &Tensor, lower: f64, upper: f64) -> TensorResult {
    ratio.f_gt(lower)?.f_logical_and(&ratio.f_lt(upper)?)
}

fn clipped_objective(
    ratio: Tensor,
    advantage: &Tensor,
    low: f64,
    high: f64,
    dual_clip: Option<f64>,
) -> TensorResult<TokenLoss> {
    let plain = ratio.f_mul(advantage)?.f_neg()?;
    let bounded = ratio.f_clamp(1.0 - low, 1.0 + high)?.f_mul(advantage)?.f_neg()?;
    let mut loss = plain.f_maximum(&bounded)?;
    let mut clipped = bounded.f_gt_tensor(&plain)?;
    if let Some(c) = dual_clip {
        let cap = advantage.f_mul_scalar(-c)?;
        let capped = advantage.f_lt(0.0)?.f_logical_and(&loss.f_gt_tensor(&cap)?)?;
        loss = loss.f_where_self(&capped.f_logical_not()?, &cap)?;
        clipped = clipped.f_logical_or(&capped)?;
    }
    let clipped = clipped.f_to_kind(ratio.kind())?;
    Ok(TokenLoss { loss, ratio, clipped })
}

/// OPSM: 0 for a sequence whose advantage is negative and whose policy has already moved away,
/// `mean_t(ℓ_o − ℓ_p) > threshold`; 1 otherwise. `advantage` is one number per row.
pub fn off_policy_sequence_mask(
    current: &Tensor,
    old: &Tensor,
    advantage: &Tensor,
    mask: &Tensor,
    threshold: f64,
) -> TensorResult {
    let moved = tensor::row_mean(&tensor::log_ratio(old, current, mask)?, mask)?.f_detach()?;
    let drop = advantage.f_lt(0.0)?.f_logical_and(&moved.f_gt(threshold)?)?;
    drop.f_logical_not()?.f_to_kind(mask.kind())
}

/// Slime-form value loss without the factor ½: `max((v − ret)², (v_old + clamp(v − v_old, ±clip) − ret)²)`.
pub fn value_loss(value: &Tensor, old_value: &Tensor, returns: &Tensor, clip: Option<f64>) -> TensorResult {
    let plain = value.f_sub(returns)?.f_square()?;
    let Some(clip) = clip else { return Ok(plain) };
    let step = value.f_sub(old_value)?.f_clamp(-clip, clip)?;
    plain.f_maximum(&old_value.f_add(&step)?.f_sub(returns)?.f_square()?)
}

/// Share of the variance of `returns` that `values` explain: `1 − var(ret − v)/var(ret)` over set positions.
pub fn explained_variance(values: &Tensor, returns: &Tensor, mask: &Tensor) -> TensorResult<Option<f64>> {
    let chosen = mask.f_ne(0.0)?;
    let returns = returns.f_masked_select(&chosen)?;
    if returns.numel() < 2 {
        return Ok(None);
    }
    let total = f64::try_from(returns.f_var(true)?.f_to_kind(Kind::Double)?)?;
    if total == 0.0 {
        return Ok(None);
    }
    let left = f64::try_from(
        returns
            .f_sub(&values.f_masked_select(&chosen)?)?
            .f_var(true)?
            .f_to_kind(Kind::Double)?,
    )?;
    Ok(Some(1.0 - left / total))
}
