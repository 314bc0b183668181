//! One token out of one line of logits. Pure: the same line, settings, history and random number give the same token,
//! whatever else is in the batch.

use std::cmp::Ordering;
use std::collections::HashMap;

use crate::domain::{Sampler, TopKToken};

/// How to sample.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Sampling {
    /// 0 takes the most likely token.
    pub(crate) temperature: f32,
    /// Keep the most likely tokens that together reach this probability; 1 keeps all.
    pub(crate) top_p: f32,
    /// Keep this many of the most likely tokens; 0 keeps all.
    pub(crate) top_k: usize,
    /// Keep tokens at least this share as likely as the most likely one; 0 keeps all.
    pub(crate) min_p: f32,
    /// Divides positive and multiplies negative logits of tokens seen in prompt or answer (arXiv 1909.05858); 1 is off.
    pub(crate) repetition_penalty: f32,
    /// Subtracted from the logit of every token of the answer.
    pub(crate) presence_penalty: f32,
    /// Subtracted from it once for each time it occurs in the answer.
    pub(crate) frequency_penalty: f32,
    /// Added to the logits of these tokens.
    pub(crate) logit_bias: Vec<(u32, f32)>,
    /// Where the random numbers start.
    pub(crate) seed: u64,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            seed: 0,
        }
    }
}

impl Sampling {
    /// The temperature that recorded log-probabilities refer to: with greedy sampling the model's own distribution.
    pub(crate) fn recorded_temperature(&self) -> f32 {
        if self.temperature > 0.0 { self.temperature } else { 1.0 }
    }

    /// What is recorded of it. `constrained` says that a grammar or schema takes part.
    pub(crate) fn recorded(&self, constrained: bool) -> Sampler {
        Sampler {
            temperature: self.temperature,
            top_p: self.top_p,
            top_k: u32::try_from(self.top_k).unwrap_or(u32::MAX),
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            biased_tokens: u32::try_from(self.logit_bias.len()).unwrap_or(u32::MAX),
            constrained,
        }
    }

    fn penalises(&self) -> bool {
        self.repetition_penalty != 1.0 || self.presence_penalty != 0.0 || self.frequency_penalty != 0.0
    }
}

/// Which tokens occurred, for the penalties. Empty, and never filled, where none is asked for.
#[derive(Debug, Default)]
pub(crate) struct History {
    wanted: bool,
    /// Occurrences in the answer; 0 for a token of the prompt alone.
    counts: HashMap<u32, u32>,
}

impl History {
    pub(crate) fn new(sampling: &Sampling, prompt: &[u32]) -> Self {
        let wanted = sampling.penalises();
        let seen = if wanted && sampling.repetition_penalty != 1.0 {
            prompt
        } else {
            &[]
        };
        Self {
            wanted,
            counts: seen.iter().map(|&token| (token, 0)).collect(),
        }
    }

    pub(crate) fn push(&mut self, token: u32) {
        if self.wanted {
            *self.counts.entry(token).or_insert(0) += 1;
        }
    }
}

/// A sampled token.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Sampled {
    pub(crate) token: u32,
    /// Over the full vocabulary after temperature, before penalties, biases and filters.
    pub(crate) logprob: f32,
    /// The most likely tokens of the same distribution, if asked for.
    pub(crate) top: Vec<TopKToken>,
}

/// Which tokens may be sampled.
pub(crate) trait Allowed {
    /// Whether this one may be.
    fn allows(&self, token: u32) -> bool;
}

/// Samples from `logits`, which serves as scratch space. `step` numbers the token within its answer. `None` when
/// nothing may be sampled or the logits are not finite numbers.
pub(crate) fn sample(
    logits: &mut [f32],
    sampling: &Sampling,
    history: &History,
    step: u64,
    n_top: usize,
    allowed: Option<&dyn Allowed>,
) -> Option<Sampled> {
    let temperature = sampling.recorded_temperature();
    let normalizer = Normalizer::of(logits, temperature)?;
    let logprob_of = |logit: f32| normalizer.logprob(logit);
    let top = most_likely(logits, n_top, logprob_of);
    let mut originals = Originals(Vec::new());
    adjust(logits, sampling, history, &mut originals);
    if let Some(allowed) = allowed {
        for (token, logit) in (0_u32..).zip(logits.iter_mut()) {
            if !allowed.allows(token) {
                *logit = f32::NEG_INFINITY;
            }
        }
    }
    let token = if sampling.temperature > 0.0 {
        draw(logits, sampling, unit(sampling.seed, step))?
    } else {
        argmax(logits)?
    };
    let logit = originals
        .get(token)
        .unwrap_or_else(|| logits.get(token as usize).copied().unwrap_or(f32::NAN));
    Some(Sampled {
        token,
        logprob: logprob_of(logit),
        top,
    })
}

/// Logits before they were changed. The first entry of a token holds.
struct Originals(Vec<(u32, f32)>);

impl Originals {
    fn keep(&mut self, token: u32, logit: f32) {
        self.0.push((token, logit));
    }

    fn get(&self, token: u32) -> Option<f32> {
        self.0
            .iter()
            .find(|(changed, _)| *changed == token)
            .map(|(_, logit)| *logit)
    }
}

/// Turns logits into log-probabilities. Relative to the greatest logit, so that large ones lose no digits.
struct Normalizer {
    most: f32,
    scale: f32,
    log_sum: f32,
}

impl Normalizer {
    /// `None` where the logits are not numbers with a finite maximum.
    fn of(logits: &[f32], temperature: f32) -> Option<Self> {
        let mut most = f32::NEG_INFINITY;
        let mut is_number = true;
        for &logit in logits {
            is_number &= !logit.is_nan();
            most = most.max(logit);
        }
        if !is_number || !most.is_finite() {
            return None;
        }
        // Eight sums side by side: the order is fixed, and the additions need not wait for each other.
        let mut sums = [0.0_f32; 8];
        let scale = 1.0 / temperature;
        let chunks = logits.chunks_exact(8);
        let rest = chunks.remainder();
        for chunk in chunks {
            for (sum, &logit) in sums.iter_mut().zip(chunk) {
                *sum += ((logit - most) * scale).exp();
            }
        }
        for (sum, &logit) in sums.iter_mut().zip(rest) {
            *sum += ((logit - most) * scale).exp();
        }
        let total: f64 = sums.iter().map(|&sum| f64::from(sum)).sum();
        Some(Self {
            most,
            scale,
            log_sum: total.ln() as f32,
        })
    }

    fn logprob(&self, logit: f32) -> f32 {
        (logit - self.most) * self.scale - self.log_sum
    }
}

/// The `n` most likely tokens, most likely first; of equal ones the lower id.
fn most_likely(logits: &[f32], n: usize, logprob_of: impl Fn(f32) -> f32) -> Vec<TopKToken> {
    if n == 0 {
        return Vec::new();
    }
    let mut tokens: Vec<(u32, f32)> = (0_u32..).zip(logits.iter().copied()).collect();
    keep_most_likely(&mut tokens, n);
    tokens
        .into_iter()
        .map(|(id, logit)| TopKToken {
            id,
            logprob: logprob_of(logit),
        })
        .collect()
}

/// Keeps the `n` greatest, sorted.
fn keep_most_likely(tokens: &mut Vec<(u32, f32)>, n: usize) {
    if n < tokens.len() {
        tokens.select_nth_unstable_by(n, more_likely);
        tokens.truncate(n);
    }
    tokens.sort_unstable_by(more_likely);
}

fn more_likely(a: &(u32, f32), b: &(u32, f32)) -> Ordering {
    b.1.total_cmp(&a.1).then(a.0.cmp(&b.0))
}

fn adjust(logits: &mut [f32], sampling: &Sampling, history: &History, originals: &mut Originals) {
    for (&token, &count) in &history.counts {
        let Some(logit) = logits.get_mut(token as usize) else {
            continue;
        };
        originals.keep(token, *logit);
        if *logit > 0.0 {
            *logit /= sampling.repetition_penalty;
        } else {
            *logit *= sampling.repetition_penalty;
        }
        if count > 0 {
            *logit -= sampling.presence_penalty + sampling.frequency_penalty * count as f32;
        }
    }
    for &(token, bias) in &sampling.logit_bias {
        let Some(logit) = logits.get_mut(token as usize) else {
            continue;
        };
        originals.keep(token, *logit);
        *logit += bias;
    }
}

/// The most likely token; of equal ones the lowest id, as `torch.argmax` on a CPU gives.
fn argmax(logits: &[f32]) -> Option<u32> {
    let mut best = None;
    let mut most = f32::NEG_INFINITY;
    for (token, &logit) in (0_u32..).zip(logits) {
        if logit > most {
            most = logit;
            best = Some(token);
        }
    }
    best
}

/// Draws by the inverse of the distribution function at `unit`.
fn draw(logits: &[f32], sampling: &Sampling, unit: f64) -> Option<u32> {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if !most.is_finite() {
        return None;
    }
    let scale = 1.0 / sampling.temperature;
    let filtered = sampling.top_k > 0 || sampling.top_p < 1.0 || sampling.min_p > 0.0;
    if !filtered {
        let weight = |logit: f32| f64::from(((logit - most) * scale).exp());
        let total: f64 = logits.iter().map(|&logit| weight(logit)).sum();
        let tokens = (0_u32..).zip(logits).map(|(token, &logit)| (token, weight(logit)));
        return pick(tokens, total * unit);
    }
    let kept = filter(logits, most, sampling);
    let total: f64 = kept.iter().map(|(_, weight)| *weight).sum();
    pick(kept.into_iter(), total * unit)
}

/// The tokens that pass the filters with their weights, most likely first.
fn filter(logits: &[f32], most: f32, sampling: &Sampling) -> Vec<(u32, f64)> {
    let scale = 1.0 / sampling.temperature;
    // A token may fall to min-p, and to top-p if all that are so unlikely together weigh less than what top-p drops.
    let min_p = if sampling.min_p > 0.0 {
        sampling.min_p.ln()
    } else {
        f32::NEG_INFINITY
    };
    let mut floor = min_p;
    let mut total_all = None;
    if sampling.top_p < 1.0 {
        let weight = |logit: f32| f64::from(((logit - most) * scale).exp());
        let total: f64 = logits.iter().map(|&logit| weight(logit)).sum();
        total_all = Some(total);
        let dropped = f64::from(1.0 - sampling.top_p) * total / logits.len() as f64;
        floor = floor.max((dropped * 0.5).ln() as f32);
    }
    let mut tokens: Vec<(u32, f32)> = (0_u32..)
        .zip(logits.iter().copied())
        .filter(|(_, logit)| logit.is_finite() && (logit - most) * scale >= floor)
        .collect();
    let n = if sampling.top_k > 0 {
        sampling.top_k.min(tokens.len())
    } else {
        tokens.len()
    };
    keep_most_likely(&mut tokens, n);
    let mut kept: Vec<(u32, f64)> = tokens
        .into_iter()
        .map(|(token, logit)| (token, f64::from(((logit - most) * scale).exp())))
        .collect();
    if let Some(total_all) = total_all {
        // After top-k the nucleus is taken of what top-k left, as `transformers` orders its filters.
        let total = if sampling.top_k > 0 {
            kept.iter().map(|(_, w)| *w).sum()
        } else {
            total_all
        };
        let mut sum = 0.0;
        let enough = f64::from(sampling.top_p) * total;
        let n = kept.iter().position(|(_, weight)| {
            sum += weight;
            sum >= enough
        });
        kept.truncate(n.map_or(kept.len(), |n| n + 1));
    }
    let least = f64::from(min_p).exp();
    kept.retain(|(_, weight)| *weight >= least * (1.0 - 1e-6));
    kept
}

/// The first token at which the running sum exceeds `target`; the last one that weighs anything if rounding leaves none.
fn pick(tokens: impl Iterator<Item = (u32, f64)>, target: f64) -> Option<u32> {
    let mut sum = 0.0;
    let mut last = None;
    for (token, weight) in tokens {
        if weight > 0.0 {
            sum += weight;
            last = Some(token);
            if sum > target {
                break;
            }
        }
    }
    last
}

/// The `step`-th number of a seed's sequence, in [0, 1): SplitMix64 (Steele, Lea, Flood 2014) of a counter, so that
/// no state needs keeping and no other request can shift it.
pub(crate) fn unit(seed: u64, step: u64) -> f64 {
    let bits = mix(mix(seed).wrapping_add(step.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
    (bits >> 11) as f64 / (1_u64 << 53) as f64
}

/// The seed of one of several answers to a request.
pub(crate) fn seed_of_choice(seed: u64, choice: usize) -> u64 {
    if choice == 0 {
        seed
    } else {
        mix(seed ^ mix(choice as u64))
    }
}

fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests;
