//! Advantage estimators: how much better than expected a rollout, or one of its tokens, turned out. Plain f64
//! arithmetic over rewards and values; no tensors, no state. Formulas and sources: `docs/design/objectives.md`.

/// Added to a standard deviation before dividing (GRPO, arXiv 2402.03300 as implemented by the reference trainers).
pub const GROUP_STD_EPSILON: f64 = 1e-6;
/// Added to the variance before whitening a batch (REINFORCE++, arXiv 2501.03262).
pub const WHITEN_EPSILON: f64 = 1e-8;
/// Floor of the leave-one-out mean of the entropic estimator (TTT-Discover, arXiv 2601.16175).
pub const ENTROPIC_EPSILON: f64 = 1e-12;
/// The first power of two at or above 1e6: where the search for β stops.
pub const ENTROPIC_BETA_CAP: f64 = 1_048_576.0;

fn mean(xs: &[f64]) -> f64 {
    xs.iter().sum::<f64>() / xs.len().max(1) as f64
}

/// Unbiased standard deviation (n − 1); `None` for fewer than two values, where it does not exist.
pub fn sample_std(xs: &[f64]) -> Option<f64> {
    if xs.len() < 2 {
        return None;
    }
    let m = mean(xs);
    let ss: f64 = xs.iter().map(|x| (x - m) * (x - m)).sum();
    Some((ss / (xs.len() - 1) as f64).sqrt())
}

/// Whether a group carries no signal: fewer than two rewards, or all the same.
pub fn is_uniform(rewards: &[f64]) -> bool {
    rewards.len() < 2 || rewards.iter().all(|r| *r == rewards[0])
}

/// GRPO: `(r − mean) / (std + 1e-6)` with the unbiased std. A group of one has no std; its advantage is 0.
pub fn grpo(rewards: &[f64]) -> Vec<f64> {
    let m = mean(rewards);
    match sample_std(rewards) {
        Some(std) => rewards.iter().map(|r| (r - m) / (std + GROUP_STD_EPSILON)).collect(),
        None => vec![0.0; rewards.len()],
    }
}

/// Dr. GRPO (arXiv 2503.20783): `r − mean`, without the division that weighs easy and hard prompts up.
pub fn mean_centred(rewards: &[f64]) -> Vec<f64> {
    let m = mean(rewards);
    rewards.iter().map(|r| r - m).collect()
}

/// RLOO (arXiv 2402.14740): `r − mean of the others = n/(n−1) · (r − mean)`. A group of one has advantage 0.
pub fn rloo(rewards: &[f64]) -> Vec<f64> {
    let n = rewards.len();
    if n < 2 {
        return vec![0.0; n];
    }
    let scale = n as f64 / (n - 1) as f64;
    mean_centred(rewards).into_iter().map(|a| a * scale).collect()
}

/// OPO (arXiv 2505.23585): `r − Σ l·r / Σ l`, the baseline weighted by response length.
pub fn opo(rewards: &[f64], lengths: &[f64]) -> Vec<f64> {
    let total: f64 = lengths.iter().sum();
    let baseline = rewards.iter().zip(lengths).map(|(r, l)| r * l).sum::<f64>() / total.max(1.0);
    rewards.iter().map(|r| r - baseline).collect()
}

/// The entropic leave-one-out estimator with adaptive β: TTT-Discover (arXiv 2601.16175).
///
/// β is the temperature at which the softmax of `β·r` lies log 2 from uniform; `A_i = e_i / (mean of the others' e +
/// 1e-12) − 1` with `e_i = exp(β (r_i − max))`. Two distinct rewards alone give (−1, 1e12): use three or more.
/// Returns β, for orientation only, and the advantages.
pub fn entropic(rewards: &[f64]) -> (f64, Vec<f64>) {
    let k = rewards.len();
    let beta = if k < 2 { 0.0 } else { entropic_beta(rewards) };
    let max = rewards.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let e: Vec<f64> = rewards.iter().map(|r| (beta * (r - max)).exp()).collect();
    let sum: f64 = e.iter().sum();
    let advantages = e
        .iter()
        .map(|e_i| {
            let others = if k > 1 { (sum - e_i) / (k - 1) as f64 } else { *e_i };
            e_i / (others + ENTROPIC_EPSILON) - 1.0
        })
        .collect();
    (beta, advantages)
}

fn entropic_beta(rewards: &[f64]) -> f64 {
    let target = std::f64::consts::LN_2;
    let mut lo = 0.0;
    let mut hi = 1.0;
    while tilt_divergence(rewards, hi) < target && hi < 1e6 {
        hi *= 2.0;
    }
    if tilt_divergence(rewards, hi) < target {
        return hi;
    }
    for _ in 0..60 {
        let mid = 0.5 * (lo + hi);
        if tilt_divergence(rewards, mid) < target {
            lo = mid;
        } else {
            hi = mid;
        }
    }
    hi
}

/// KL of `softmax(β r)` from the uniform distribution.
fn tilt_divergence(rewards: &[f64], beta: f64) -> f64 {
    let max = rewards.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let logits: Vec<f64> = rewards.iter().map(|r| beta * (r - max)).collect();
    let log_z = logits.iter().map(|l| l.exp()).sum::<f64>().ln();
    let log_k = (rewards.len() as f64).ln();
    logits
        .iter()
        .map(|l| {
            let log_q = l - log_z;
            log_q.exp() * (log_q + log_k)
        })
        .sum()
}

/// The actor's length-adaptive λ of SAO (arXiv 2607.07508): `clamp(1 − 1/(α·length), 0, 1)`, where `length` is the whole
/// response with its observation tokens.
pub fn adaptive_lambda(alpha: f64, response_length: usize) -> f64 {
    if response_length == 0 {
        return 0.0;
    }
    (1.0 - 1.0 / (alpha * response_length as f64)).clamp(0.0, 1.0)
}

/// Advantages and value targets of one response.
#[derive(Debug, Clone, PartialEq)]
pub struct Gae {
    /// Â, one per response position; 0 where the mask is 0.
    pub advantages: Vec<f64>,
    /// Â + V; 0 where the mask is 0.
    pub returns: Vec<f64>,
}

/// Generalised advantage estimation (arXiv 1506.02438) that skips observations (SAO §3): only positions whose
/// `action_mask` is set take part, each followed by the next such position. The outcome reward belongs to the last of
/// them. `token_rewards`, if given, adds a reward per position (a KL penalty, say). With a mask of ones it is the
/// ordinary estimator.
pub fn gae(
    values: &[f64],
    action_mask: &[bool],
    outcome: f64,
    token_rewards: Option<&[f64]>,
    gamma: f64,
    lambda: f64,
) -> Gae {
    let n = values.len();
    let mut out = Gae {
        advantages: vec![0.0; n],
        returns: vec![0.0; n],
    };
    let mut next_value = 0.0;
    let mut running = 0.0;
    let mut last = true;
    for t in (0..n).rev().filter(|t| action_mask[*t]) {
        let mut reward = token_rewards.map_or(0.0, |r| r[t]);
        if last {
            reward += outcome;
            last = false;
        }
        let delta = reward + gamma * next_value - values[t];
        running = delta + gamma * lambda * running;
        out.advantages[t] = running;
        out.returns[t] = running + values[t];
        next_value = values[t];
    }
    out
}

/// Discounted return of token rewards over the positions of `mask`, as REINFORCE++ has it; 0 elsewhere.
pub fn discounted_returns(token_rewards: &[f64], mask: &[bool], gamma: f64) -> Vec<f64> {
    let mut out = vec![0.0; token_rewards.len()];
    let mut running = 0.0;
    for t in (0..token_rewards.len()).rev().filter(|t| mask[*t]) {
        running = token_rewards[t] + gamma * running;
        out[t] = running;
    }
    out
}

/// REINFORCE++ (arXiv 2501.03262): the outcome at the last trained token, minus `kl_coef` times a KL estimate at each,
/// discounted, then whitened over every trained token of the batch. `baselines`, one per row, is subtracted from the
/// outcome first (the group mean in the baseline variant; zeros otherwise).
pub fn reinforce_plus_plus(
    outcomes: &[f64],
    baselines: &[f64],
    masks: &[Vec<bool>],
    token_kl: Option<&[Vec<f64>]>,
    kl_coef: f64,
    gamma: f64,
) -> Vec<Vec<f64>> {
    let mut rows: Vec<Vec<f64>> = masks
        .iter()
        .enumerate()
        .map(|(i, mask)| {
            let mut rewards: Vec<f64> = match token_kl {
                Some(kl) => kl[i].iter().map(|k| -kl_coef * k).collect(),
                None => vec![0.0; mask.len()],
            };
            if let Some(last) = mask.iter().rposition(|m| *m) {
                rewards[last] += outcomes[i] - baselines[i];
            }
            discounted_returns(&rewards, mask, gamma)
        })
        .collect();
    whiten(&mut rows, masks, true);
    rows
}

/// Gives the masked entries variance 1, and mean 0 if `shift`: `(x − mean) / sqrt(var + 1e-8)` with the unbiased
/// variance. Entries outside the mask become 0. Fewer than two entries, or equal ones, are only shifted.
pub fn whiten(rows: &mut [Vec<f64>], masks: &[Vec<bool>], shift: bool) {
    let all: Vec<f64> = rows
        .iter()
        .zip(masks)
        .flat_map(|(row, mask)| row.iter().zip(mask).filter(|(_, m)| **m).map(|(x, _)| *x))
        .collect();
    let m = mean(&all);
    let scale = sample_std(&all).map_or(1.0, |std| 1.0 / (std * std + WHITEN_EPSILON).sqrt());
    for (row, mask) in rows.iter_mut().zip(masks) {
        for (x, keep) in row.iter_mut().zip(mask) {
            *x = match (keep, shift) {
                (false, _) => 0.0,
                (true, true) => (*x - m) * scale,
                (true, false) => (*x - m) * scale + m,
            };
        }
    }
}

/// Base-KL shaping of TTT-Discover: `Ã_it = A_i + coef · m_it · (d̄ − d_it)` with `d = (ℓ_q − ℓ_base)·m` and `d̄` the
/// masked mean of the whole batch. `None` when the mask is empty everywhere.
pub fn centred_kl_shaping(
    advantages: &[f64],
    sampled: &[Vec<f64>],
    base: &[Vec<f64>],
    masks: &[Vec<bool>],
    coef: f64,
) -> Option<Vec<Vec<f64>>> {
    let gap = |i: usize, t: usize| sampled[i][t] - base[i][t];
    let mut total = 0.0;
    let mut count = 0usize;
    for (i, mask) in masks.iter().enumerate() {
        for t in (0..mask.len()).filter(|t| mask[*t]) {
            total += gap(i, t);
            count += 1;
        }
    }
    if count == 0 {
        return None;
    }
    let centre = total / count as f64;
    let shaped = masks
        .iter()
        .enumerate()
        .map(|(i, mask)| {
            let shift = |t: usize| if mask[t] { coef * (centre - gap(i, t)) } else { 0.0 };
            (0..mask.len()).map(|t| advantages[i] + shift(t)).collect()
        })
        .collect();
    Some(shaped)
}

#[cfg(test)]
#[path = "advantage_tests.rs"]
mod tests;
