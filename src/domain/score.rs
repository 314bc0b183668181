//! What a score may be.

/// The largest size of a score. Sums, squares and spreads of as many scores as a store holds stay finite, in the single
/// precision of training too.
pub const LARGEST_SCORE: f64 = 1e12;

/// The rule, for messages.
pub const SCORE_RULE: &str = "a score is a number from -1e12 to 1e12";

/// Whether a number can be a score; no infinity and no NaN can.
pub fn is_score(number: f64) -> bool {
    number.abs() <= LARGEST_SCORE
}

/// The mean of scores by their sum and count. Older stores took any finite number, of which the sum may have overflowed;
/// then there is no mean to tell.
pub fn mean_score(sum: f64, count: u64) -> Option<f64> {
    (count > 0).then(|| sum / count as f64).filter(|mean| mean.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_can_be_summed_is_a_score() {
        assert!(is_score(0.5) && is_score(-LARGEST_SCORE));
        for wrong in [1e308, -1.1e12, f64::INFINITY, f64::NAN] {
            assert!(!is_score(wrong), "{wrong}");
        }
        assert_eq!(mean_score(3.0, 2), Some(1.5));
        assert_eq!((mean_score(0.0, 0), mean_score(f64::INFINITY, 2)), (None, None));
        assert_eq!(mean_score(f64::NAN, 2), None);
    }
}
