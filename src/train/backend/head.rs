//! The vocabulary projection and its gradient, written out. Logits are the largest tensor of a step: here they exist
//! once, in chunks, only for trained positions, and turn in place into the gradient that autograd would keep three more
//! copies for.

use tch::{Kind, TchError, Tensor, no_grad};

/// A projection from hidden states to logits.
pub(super) trait Projection {
    /// Logits `[n, vocabulary]` of hidden states `[n, hidden]`.
    fn logits(&self, hidden: &Tensor) -> Result<Tensor, TchError>;
    /// The gradient of `hidden` from that of the logits; also adds to the gradient of the projection where it trains.
    fn backward(&self, hidden: &Tensor, gradient: &Tensor) -> Result<Tensor, TchError>;
}

/// What the head says of a set of positions.
pub(super) struct HeadPass {
    /// Log-probability of each target, `[n]` f32, without gradient.
    pub(super) log_probs: Tensor,
    /// Entropy at each position, `[n]` f32, without gradient.
    pub(super) entropies: Tensor,
    /// Softmax per chunk, where memory allows keeping it for the backward pass.
    kept: Vec<Tensor>,
}

/// The positions to read: which tokens follow them, at which temperature they were sampled.
pub(super) struct Positions<'a> {
    /// `[n]` i64.
    pub(super) targets: &'a Tensor,
    /// `[n, 1]` f32.
    pub(super) temperatures: &'a Tensor,
    /// Positions per chunk.
    pub(super) chunk: i64,
}

/// Softmax of one chunk and what was read off it on the way: log-probabilities of the targets and entropies.
fn chunk_pass<P: Projection>(
    head: &P,
    hidden: &Tensor,
    targets: &Tensor,
    temperatures: &Tensor,
) -> Result<(Tensor, Tensor, Tensor), TchError> {
    let mut log_p = head.logits(hidden)?.f_to_kind(Kind::Float)?;
    let _scaled = log_p.f_div_(temperatures)?;
    let log_z = log_p.f_logsumexp(&[-1i64][..], true)?;
    let _normalised = log_p.f_sub_(&log_z)?;
    let picked = log_p
        .f_gather(-1, &targets.f_unsqueeze(-1)?, false)?
        .f_squeeze_dim(-1)?;
    let p = log_p.f_exp()?;
    let entropy = log_p
        .f_mul_(&p)?
        .f_sum_dim_intlist(&[-1i64][..], false, None::<Kind>)?
        .f_neg()?;
    Ok((p, picked, entropy))
}

/// Runs the head over hidden states `[n, hidden]`. With `keep`, and if one chunk holds all, the softmax is kept for
/// [`gradient`]; otherwise it is computed again there.
pub(super) fn forward<P: Projection>(
    head: &P,
    hidden: &Tensor,
    positions: &Positions<'_>,
    keep: bool,
) -> Result<HeadPass, TchError> {
    no_grad(|| {
        let n = positions.targets.size1()?;
        let keep = keep && n <= positions.chunk;
        let (mut log_probs, mut entropies, mut kept) = (Vec::new(), Vec::new(), Vec::new());
        let mut from = 0;
        while from < n {
            let len = positions.chunk.min(n - from);
            let (p, picked, entropy) = chunk_pass(
                head,
                &hidden.f_narrow(0, from, len)?,
                &positions.targets.f_narrow(0, from, len)?,
                &positions.temperatures.f_narrow(0, from, len)?,
            )?;
            log_probs.push(picked);
            entropies.push(entropy);
            if keep {
                kept.push(p);
            }
            from += len;
        }
        Ok(HeadPass {
            log_probs: Tensor::f_cat(&log_probs, 0)?,
            entropies: Tensor::f_cat(&entropies, 0)?,
            kept,
        })
    })
}

/// The gradient of `hidden` from the gradients of the log-probabilities and, if it counts, of the entropies, both `[n]`.
///
/// With z = logits/τ: `∂ℓ_y/∂z = onehot(y) − p` and `∂H/∂z_v = −p_v (log p_v + H)`.
pub(super) fn gradient<P: Projection>(
    head: &P,
    hidden: &Tensor,
    positions: &Positions<'_>,
    pass: HeadPass,
    of_log_probs: &Tensor,
    of_entropies: Option<&Tensor>,
) -> Result<Tensor, TchError> {
    no_grad(|| {
        let n = positions.targets.size1()?;
        let mut kept = pass.kept.into_iter();
        let mut parts = Vec::new();
        let mut from = 0;
        while from < n {
            let len = positions.chunk.min(n - from);
            let hidden = hidden.f_narrow(0, from, len)?;
            let targets = positions.targets.f_narrow(0, from, len)?;
            let temperatures = positions.temperatures.f_narrow(0, from, len)?;
            let mut p = match kept.next() {
                Some(p) => p,
                None => chunk_pass(head, &hidden, &targets, &temperatures)?.0,
            };
            let weight = of_log_probs.f_narrow(0, from, len)?.f_unsqueeze(-1)?;
            let towards_target = weight.f_div(&temperatures)?;
            let away = match of_entropies {
                None => {
                    let _scaled = p.f_mul_(&towards_target.f_neg()?)?;
                    p
                }
                Some(of_entropies) => {
                    let entropy = pass.entropies.f_narrow(0, from, len)?.f_unsqueeze(-1)?;
                    let pull = of_entropies
                        .f_narrow(0, from, len)?
                        .f_unsqueeze(-1)?
                        .f_div(&temperatures)?;
                    // p (log p + H) is 0 where p has underflowed to 0.
                    let mut bracket = p.f_clamp_min(f64::from(f32::MIN_POSITIVE))?.f_log()?;
                    let _sum = bracket.f_add_(&entropy)?.f_mul_(&pull)?.f_add_(&towards_target)?;
                    let _product = p.f_mul_(&bracket)?.f_neg_()?;
                    p
                }
            };
            let mut of_logits = away;
            let _onehot = of_logits.f_scatter_add_(-1, &targets.f_unsqueeze(-1)?, &towards_target)?;
            parts.push(head.backward(&hidden, &of_logits)?);
            from += len;
        }
        Tensor::f_cat(&parts, 0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::train::objective::tensor::{entropy, token_log_probs};
    use crate::train::testing::normal;

    struct Plain {
        weight: Tensor,
    }

    impl Projection for Plain {
        fn logits(&self, hidden: &Tensor) -> Result<Tensor, TchError> {
            hidden.f_linear(&self.weight, None::<&Tensor>)
        }
        fn backward(&self, _hidden: &Tensor, gradient: &Tensor) -> Result<Tensor, TchError> {
            gradient.f_matmul(&self.weight)
        }
    }

    #[test]
    fn the_written_out_gradient_equals_autograd() {
        let head = Plain {
            weight: normal(1, &[11, 5], Kind::Float),
        };
        let hidden = normal(2, &[7, 5], Kind::Float).set_requires_grad(true);
        let targets = Tensor::from_slice(&[0i64, 3, 10, 5, 5, 1, 9]);
        let temperatures = Tensor::from_slice(&[1.0f32, 0.6, 1.3, 1.0, 0.8, 1.0, 2.0]).reshape([7, 1]);
        let of_log_probs = normal(3, &[7], Kind::Float);
        let of_entropies = normal(4, &[7], Kind::Float);
        let scaled = head.logits(&hidden).unwrap() / &temperatures;
        let l = token_log_probs(&scaled, &targets, 1.0).unwrap();
        let h = entropy(&scaled, 1.0).unwrap();
        for with_entropy in [false, true] {
            let mut loss = (&l * &of_log_probs).sum(Kind::Float);
            if with_entropy {
                loss += (&h * &of_entropies).sum(Kind::Float);
            }
            let want = Tensor::run_backward(&[loss], &[&hidden], true, false).remove(0);
            for chunk in [3, 7, 100] {
                let positions = Positions {
                    targets: &targets,
                    temperatures: &temperatures,
                    chunk,
                };
                let leaf = hidden.detach();
                let pass = forward(&head, &leaf, &positions, true).unwrap();
                assert!((&pass.log_probs - &l).abs().max().double_value(&[]) < 1e-5);
                assert!((&pass.entropies - &h).abs().max().double_value(&[]) < 1e-5);
                let of_entropies = with_entropy.then_some(&of_entropies);
                let got = gradient(&head, &leaf, &positions, pass, &of_log_probs, of_entropies).unwrap();
                let error = (&got - &want).abs().max().double_value(&[]);
                assert!(error < 1e-5, "chunk {chunk} entropy {with_entropy}: {error}");
            }
        }
    }
}
