//! Evidence that a bounded mean lies above a value, valid however long one looks.
//!
//! A gambler who believes in the candidate stakes a fraction `lambda` of the capital on each paired difference `x` in
//! [-1, 1]: the capital becomes `capital * (1 + lambda * x)`. If the conditional mean of `x` is at most 0 the capital is
//! a non-negative supermartingale, so by Ville's inequality it ever reaches `1 / alpha` with probability at most
//! `alpha`, whatever the distribution of the differences and whenever one stops. Averaging the capital over fixed
//! stakes keeps that property and needs no guess of the effect. (Waudby-Smith and Ramdas, "Estimating means of
//! bounded random variables by betting", JRSS B 2024; the mixture is Cover's universal portfolio on a grid.)

/// How many stakes the mixture averages: fifty spread evenly between 0 and 1, and one of nearly everything.
const STAKES: usize = EVEN + 1;
const EVEN: usize = 50;
/// The stake, and the share of the capital, of the gambler who risks nearly everything. Two sides that sample with the same
/// randomness tie on most pairs, and the few that differ mostly point one way: a small stake wastes them.
const BOLD_STAKE: f64 = 0.98;
const BOLD_SHARE: f64 = 0.15;

/// The capital of one mixture of gamblers.
#[derive(Debug, Clone)]
pub(super) struct Capital {
    log_capital: [f64; STAKES],
}

impl Capital {
    /// One unit of capital, spread over the stakes.
    pub(super) fn new() -> Self {
        Self {
            log_capital: [0.0; STAKES],
        }
    }

    /// Takes one observation in [-1, 1]; the caller has scaled it.
    pub(super) fn observe(&mut self, x: f64) {
        let x = x.clamp(-1.0, 1.0);
        for (j, log) in self.log_capital.iter_mut().enumerate() {
            *log += (stake(j) * x).ln_1p();
        }
    }

    /// Natural logarithm of the capital: the evidence against "the mean is at most 0".
    pub(super) fn log_value(&self) -> f64 {
        log_mean(&self.log_capital)
    }

    /// The logarithm of the capital if the next `n` observations were all 1: nothing better can happen.
    pub(super) fn best_after(&self, n: usize) -> f64 {
        let mut best = self.log_capital;
        for (j, log) in best.iter_mut().enumerate() {
            *log += n as f64 * stake(j).ln_1p();
        }
        log_mean(&best)
    }
}

/// Logarithm of the weighted mean of exponentials, without overflow.
fn log_mean(logs: &[f64; STAKES]) -> f64 {
    let top = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let even: f64 = logs[..EVEN].iter().map(|log| (log - top).exp()).sum();
    let bold = (logs[EVEN] - top).exp();
    top + ((1.0 - BOLD_SHARE) * even / EVEN as f64 + BOLD_SHARE * bold).ln()
}

fn stake(j: usize) -> f64 {
    if j == EVEN {
        BOLD_STAKE
    } else {
        (j as f64 + 0.5) / EVEN as f64
    }
}

/// The largest `m` such that "the mean is at most `m`" is refuted at level `alpha` by these observations in [-1, 1];
/// -1 if none is. With the same `alpha` at every time, the bound holds at all times together.
pub(super) fn lower_bound(observations: &[f64], alpha: f64) -> f64 {
    let threshold = -alpha.ln();
    let refuted = |m: f64| {
        let mut capital = Capital::new();
        for x in observations {
            capital.observe((x - m) / (1.0 + m));
        }
        capital.log_value() >= threshold
    };
    // The evidence falls as m grows, so the boundary is found by bisection.
    let (mut low, mut high) = (-1.0 + 1e-9, 1.0);
    if !refuted(low) {
        return -1.0;
    }
    for _ in 0..40 {
        let middle = f64::midpoint(low, high);
        if refuted(middle) {
            low = middle;
        } else {
            high = middle;
        }
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capital_starts_at_one_and_ties_change_nothing() {
        let mut capital = Capital::new();
        assert!(capital.log_value().abs() < 1e-12);
        for _ in 0..1000 {
            capital.observe(0.0);
        }
        assert!(capital.log_value().abs() < 1e-12);
    }

    #[test]
    fn a_fair_coin_keeps_the_expected_capital_at_one() {
        // All 2^12 sequences of ±1: the mean capital is exactly 1, as a martingale demands.
        let n = 12;
        let mut total = 0.0;
        for bits in 0u32..(1 << n) {
            let mut capital = Capital::new();
            for i in 0..n {
                capital.observe(if bits >> i & 1 == 1 { 1.0 } else { -1.0 });
            }
            total += capital.log_value().exp();
        }
        let mean = total / f64::from(1u32 << n);
        assert!((mean - 1.0).abs() < 1e-9, "{mean}");
    }

    #[test]
    fn crossing_is_bounded_by_alpha_over_every_sequence() {
        // Exact: the share of all 2^16 fair sequences whose capital ever reaches 1/alpha.
        let (n, alpha) = (16, 0.05_f64);
        let crossed = (0u32..(1 << n))
            .filter(|bits| {
                let mut capital = Capital::new();
                (0..n).any(|i| {
                    capital.observe(if bits >> i & 1 == 1 { 1.0 } else { -1.0 });
                    capital.log_value() >= -alpha.ln()
                })
            })
            .count();
        let share = crossed as f64 / f64::from(1u32 << n);
        assert!(share <= alpha, "{share}");
        assert!(share > 0.0, "the test must be able to reject");
    }

    #[test]
    fn the_lower_bound_rises_with_evidence_and_stays_below_the_mean() {
        let wins = |n: usize| vec![1.0; n];
        let few = lower_bound(&wins(5), 0.05);
        let many = lower_bound(&wins(100), 0.05);
        assert!(few < many && many < 1.0 && many > 0.8, "{few} {many}");
        assert_eq!(lower_bound(&[], 0.05), -1.0);
        let mixed: Vec<f64> = (0..200).map(|i| if i % 4 == 0 { -1.0 } else { 1.0 }).collect();
        let bound = lower_bound(&mixed, 0.05);
        assert!(bound > 0.2 && bound < 0.5, "{bound}");
    }
}
