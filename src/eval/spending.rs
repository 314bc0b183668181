//! How the error probability is spent over the candidates of one scenario.
//!
//! e-LOND (Xu and Ramdas, "Online multiple testing with e-values", AISTATS 2024): candidate `k` is tested at
//! `alpha * gamma_k * (released before k + 1)` with `sum gamma_k <= 1`. Its evidence is an e-value, so the expected share
//! of useless releases among all releases is at most `alpha` at every time, under any dependence between candidates; as
//! long as nothing was released it is the chance of any false release at all. A release earns level back, so a scenario
//! that improves can go on for ever.

use crate::recipe::Spending;

/// Exponent of the spending sequence: `gamma_k = k^-1.6 / zeta(1.6)`. It falls slowly enough that the fiftieth candidate
/// can still be released and fast enough that the first ones get most.
const EXPONENT: f64 = 1.6;
/// The Riemann zeta function at 1.6, rounded up so that the sum stays below 1.
const ZETA: f64 = 2.285_765_7;

/// The level at which the next candidate is tested.
///
/// `judged` counts the earlier candidates of the scenario that this rule decided (invalid measurements are not
/// counted), `released` those of them it released.
pub fn level(spending: Spending, alpha: f64, judged: u64, released: u64) -> f64 {
    match spending {
        Spending::Candidate => alpha,
        Spending::Scenario => {
            let k = judged.saturating_add(1) as f64;
            let released = released.min(judged) as f64;
            alpha * (k.powf(-EXPONENT) / ZETA) * (released + 1.0)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_spending_sequence_sums_to_at_most_one() {
        let n = 2_000_000u64;
        let head: f64 = (0..n).map(|judged| level(Spending::Scenario, 1.0, judged, 0)).sum();
        // The rest of the sum lies below the integral of x^-1.6 from n.
        let tail = (n as f64).powf(1.0 - EXPONENT) / (EXPONENT - 1.0) / ZETA;
        assert!(head + tail <= 1.0 + 1e-6, "{}", head + tail);
        assert!(head + tail > 0.999);
    }

    #[test]
    fn a_release_earns_level_back_and_a_level_never_exceeds_alpha() {
        let alpha = 0.05;
        assert!(level(Spending::Scenario, alpha, 10, 3) > 3.9 * level(Spending::Scenario, alpha, 10, 0));
        for judged in 0..1000 {
            let best = level(Spending::Scenario, alpha, judged, judged);
            assert!(best <= alpha, "{judged}: {best}");
        }
        assert_eq!(level(Spending::Candidate, alpha, 500, 0), alpha);
    }
}
