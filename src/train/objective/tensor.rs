//! Small tensor helpers shared by the objectives.

use tch::{Kind, TchError, Tensor};

/// A result of tensor arithmetic.
pub type TensorResult<T = Tensor> = Result<T, TchError>;

/// Log-ratios are kept within ±20 before they are exponentiated, so that one wild token gives a large number and not
/// an infinite one.
pub const LOG_RATIO_LIMIT: f64 = 20.0;

/// `exp(clamp(a − b, ±20))`, with 1 where `mask` is 0 so that padding can hold anything, even NaN.
pub fn ratio(a: &Tensor, b: &Tensor, mask: &Tensor) -> TensorResult {
    log_ratio(a, b, mask)?
        .f_clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)?
        .f_exp()
}

/// `a − b`, with 0 where `mask` is 0.
pub fn log_ratio(a: &Tensor, b: &Tensor, mask: &Tensor) -> TensorResult {
    masked(&a.f_sub(b)?, mask)
}

/// `x` where `mask` is set and 0 elsewhere; unlike multiplication it also removes NaN, in the gradient too.
pub fn masked(x: &Tensor, mask: &Tensor) -> TensorResult {
    x.f_masked_fill(&mask.f_eq(0.0)?, 0.0)
}

/// Σ over the last dimension of `x` where `mask` is set.
pub fn row_sum(x: &Tensor, mask: &Tensor) -> TensorResult {
    masked(x, mask)?.f_sum_dim_intlist(&[-1i64][..], false, None::<Kind>)
}

/// Number of set positions per row, at least 1.
pub fn row_count(mask: &Tensor) -> TensorResult {
    mask.f_sum_dim_intlist(&[-1i64][..], false, None::<Kind>)?
        .f_clamp_min(1.0)
}

/// Mean over the last dimension of `x` where `mask` is set; 0 for a row without any.
pub fn row_mean(x: &Tensor, mask: &Tensor) -> TensorResult {
    row_sum(x, mask)?.f_div(&row_count(mask)?)
}

/// Mean over every set position; 0 if there is none.
pub fn masked_mean(x: &Tensor, mask: &Tensor) -> TensorResult {
    let count = mask.f_sum(None::<Kind>)?.f_clamp_min(1.0)?;
    masked(x, mask)?.f_sum(None::<Kind>)?.f_div(&count)
}

/// Log-probabilities of `targets` under `logits` (last dimension: vocabulary) at `temperature`:
/// `ℓ = z_y/τ − log Σ exp(z/τ)`.
pub fn token_log_probs(logits: &Tensor, targets: &Tensor, temperature: f64) -> TensorResult {
    let scaled = at_temperature(logits, temperature)?;
    let picked = scaled
        .f_gather(-1, &targets.f_unsqueeze(-1)?, false)?
        .f_squeeze_dim(-1)?;
    picked.f_sub(&scaled.f_logsumexp(&[-1i64][..], false)?)
}

/// Entropy of the distribution at each position, `H = log Σ exp z − Σ p z` in nats.
pub fn entropy(logits: &Tensor, temperature: f64) -> TensorResult {
    let scaled = at_temperature(logits, temperature)?;
    let log_z = scaled.f_logsumexp(&[-1i64][..], false)?;
    let p = scaled.f_softmax(-1, None::<Kind>)?;
    log_z.f_sub(&p.f_mul(&scaled)?.f_sum_dim_intlist(&[-1i64][..], false, None::<Kind>)?)
}

/// `logits / temperature`; temperature 0 (greedy sampling) counts as 1, as the capture has it.
pub fn at_temperature(logits: &Tensor, temperature: f64) -> TensorResult {
    if temperature == 1.0 || temperature == 0.0 {
        return Ok(logits.shallow_clone());
    }
    logits.f_div_scalar(temperature)
}
