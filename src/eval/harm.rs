//! Whether a protected task got worse. A fall of the mean over a few sampled answers says little: with three repetitions of
//! a task that succeeds four times of five, an identical candidate falls in three cases of ten. So harm is tested, by the
//! same betting as a gain ([`super::betting`]), with the error probability shared over the protected tasks: a candidate
//! that harms none of them is rejected for harm with at most [`HARM_LEVEL`], however often and however long one looks.

use super::betting::Capital;

/// The chance of rejecting a candidate for harm that it does not do, over all protected tasks together.
pub(super) const HARM_LEVEL: f64 = 0.05;

/// The differences seen on one protected task.
#[derive(Debug, Clone)]
pub(super) struct Harm {
    /// The answers cannot come out differently, so one pair tells all.
    exact: bool,
    width: f64,
    tolerance: f64,
    threshold: f64,
    capital: Capital,
    sum: f64,
    pairs: u32,
}

impl Harm {
    /// For one of `protected` tasks. `tolerance` is how much the mean may fall, `width` the width of the scores' range.
    pub(super) fn new(exact: bool, protected: usize, tolerance: f64, width: f64) -> Self {
        Self {
            exact,
            width,
            tolerance,
            threshold: (protected.max(1) as f64 / HARM_LEVEL).ln(),
            capital: Capital::new(),
            sum: 0.0,
            pairs: 0,
        }
    }

    /// Takes the difference candidate - served of one pair, in score units.
    pub(super) fn observe(&mut self, difference: f64) {
        self.sum += difference;
        self.pairs += 1;
        let tolerance = self.tolerance / self.width;
        // Against "the mean change is at least -tolerance", scaled into [-1, 1].
        self.capital
            .observe((-difference / self.width - tolerance) / (1.0 + tolerance));
    }

    pub(super) fn pairs(&self) -> u32 {
        self.pairs
    }

    pub(super) fn mean(&self) -> f64 {
        self.sum / f64::from(self.pairs.max(1))
    }

    /// The mean fell by more than the tolerance so far, which calls for more pairs but proves nothing.
    pub(super) fn suspected(&self) -> bool {
        self.pairs > 0 && self.mean() < -self.tolerance
    }

    /// The task got worse.
    pub(super) fn shown(&self) -> bool {
        self.suspected() && (self.exact || self.capital.log_value() >= self.threshold)
    }

    /// More pairs cannot tell more.
    pub(super) fn settled(&self, maximum: u32) -> bool {
        self.exact || !self.suspected() || self.pairs >= maximum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_that_always_fails_now_is_harmed_after_a_handful_of_pairs() {
        let mut harm = Harm::new(false, 1, 0.0, 1.0);
        let mut pairs = 0;
        while !harm.shown() {
            harm.observe(-1.0);
            pairs += 1;
            assert!(pairs < 10);
        }
        assert!(pairs >= 5, "{pairs}");
    }

    #[test]
    fn one_pair_tells_all_where_answers_cannot_differ() {
        let mut harm = Harm::new(true, 5, 0.0, 1.0);
        harm.observe(-0.5);
        assert!(harm.shown());
        let mut harm = Harm::new(true, 5, 0.5, 1.0);
        harm.observe(-0.5);
        assert!(!harm.shown() && harm.settled(30), "within the tolerance");
    }
}
