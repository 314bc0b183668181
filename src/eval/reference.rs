//! A candidate against a reference: the served release measured once, many times, and every candidate measured alone.
//!
//! Let `mu_s` and `mu_c` be the mean scores of both over the tasks of the suite, scaled to [0, 1]. For each value `m` two
//! gamblers bet: one against "the served mean is at least `m`" with the runs of the reference, one against "the candidate's
//! mean is at most `m`" with the runs of the candidate. Each capital is a non-negative martingale of its own
//! ([`super::betting`]), so for the true `m = mu_s` the product of both is one under the hypothesis `mu_c <= mu_s`. The
//! smallest product over all `m` is therefore an e-value for that hypothesis, whatever the true means are. No level is set
//! aside for the error of the reference: its capital carries it.
//!
//! The first factor never falls and the second never rises with `m`, so a product of neighbouring grid points bounds every
//! product between them from below, and a grid is exact enough without an approximation.
//!
//! Runs are drawn from the tasks uniformly. What is bet on is `score - c_t + mean(c)`, with `c_t` a running mean of the
//! served release's scores on the task: its expectation is the same, because the drawn task is uniform, and the variance
//! between tasks is gone (a control variate; the value used for a run is fixed before the run is seen).

use parking_lot::Mutex;

/// Runs of the served release: task and score, each of a run of its own.
#[derive(Debug, Default)]
pub struct Reference {
    known: Vec<(String, f64)>,
    fresh: Mutex<Vec<(String, f64)>>,
}

impl Reference {
    /// With the runs that are known from earlier trials.
    pub fn new(known: Vec<(String, f64)>) -> Self {
        Self {
            known,
            fresh: Mutex::default(),
        }
    }

    pub(super) fn known(&self) -> Vec<(String, f64)> {
        let mut runs = self.known.clone();
        runs.extend(self.fresh.lock().iter().cloned());
        runs
    }

    pub(super) fn add(&self, runs: &[(String, f64)]) {
        self.fresh.lock().extend_from_slice(runs);
    }

    /// How many runs were known before.
    pub fn known_runs(&self) -> usize {
        self.known.len()
    }

    /// The runs that were added.
    pub fn fresh(&self) -> Vec<(String, f64)> {
        self.fresh.lock().clone()
    }
}

/// Cells between 0 and 1 for the unknown served mean.
const CELLS: usize = 160;
/// Stakes of the mixture, spread evenly on a logarithmic scale between these shares of the largest possible stake.
const STAKES: usize = 12;
const SMALLEST_STAKE: f64 = 0.03;
const LARGEST_STAKE: f64 = 0.9;
/// The share of the capital that is never staked. It keeps the product from vanishing where one of the factors is idle.
const IDLE: f64 = 0.1;
/// The least distance used as the bound of a bet, so that a stake stays finite where nothing can be lost.
const LEAST_BOUND: f64 = 0.05;

/// Mixtures of gamblers on one mean, one for each grid value and direction.
#[derive(Debug, Clone)]
struct Gamblers {
    /// Against "the mean is at most the grid value".
    above: Vec<[f64; STAKES]>,
    /// Against "the mean is at least the grid value".
    below: Vec<[f64; STAKES]>,
}

impl Gamblers {
    fn new() -> Self {
        Self {
            above: vec![[0.0; STAKES]; CELLS + 1],
            below: vec![[0.0; STAKES]; CELLS + 1],
        }
    }

    /// Takes an observation that lies between `low` and `high`. Only the gamblers of the named directions bet on it.
    fn observe(&mut self, z: f64, low: f64, high: f64, above: bool, below: bool) {
        for cell in 0..=CELLS {
            let m = grid(cell);
            if above {
                bet(&mut self.above[cell], (z - m) / (m - low).max(LEAST_BOUND));
            }
            if below {
                bet(&mut self.below[cell], (m - z) / (high - m).max(LEAST_BOUND));
            }
        }
    }

    fn log_above(&self, cell: usize) -> f64 {
        log_capital(&self.above[cell])
    }

    fn log_below(&self, cell: usize) -> f64 {
        log_capital(&self.below[cell])
    }
}

fn served_logs(served: &Gamblers) -> Vec<(f64, f64)> {
    (0..=CELLS)
        .map(|cell| (served.log_above(cell), served.log_below(cell)))
        .collect()
}

fn grid(cell: usize) -> f64 {
    cell as f64 / CELLS as f64
}

fn stake(j: usize) -> f64 {
    let share = j as f64 / (STAKES - 1) as f64;
    SMALLEST_STAKE * (LARGEST_STAKE / SMALLEST_STAKE).powf(share)
}

fn bet(capital: &mut [f64; STAKES], x: f64) {
    for (j, log) in capital.iter_mut().enumerate() {
        *log += (stake(j) * x.max(-1.0)).ln_1p();
    }
}

fn log_capital(logs: &[f64; STAKES]) -> f64 {
    let top = logs.iter().copied().fold(0.0, f64::max);
    let sum: f64 = logs.iter().map(|log| (log - top).exp()).sum();
    top + (IDLE * (-top).exp() + (1.0 - IDLE) * sum / STAKES as f64).ln()
}

/// Running sums of a mean and its variance.
#[derive(Debug, Clone, Copy, Default)]
struct Moments {
    n: u64,
    sum: f64,
    squares: f64,
}

impl Moments {
    fn add(&mut self, z: f64) {
        self.n += 1;
        self.sum += z;
        self.squares += z * z;
    }

    fn mean(&self) -> f64 {
        self.sum / self.n.max(1) as f64
    }

    /// The variance, never quite zero: as if one observation had come out half the range away.
    fn variance(&self) -> f64 {
        let n = self.n.max(1) as f64;
        (self.squares / n - self.mean().powi(2)).max(0.0) + 0.25 / n
    }
}

/// The served release, and one candidate against it.
#[derive(Debug, Clone)]
pub(super) struct TwoSample {
    runs: Vec<f64>,
    sums: Vec<f64>,
    served: Gamblers,
    candidate: Gamblers,
    served_moments: Moments,
    candidate_moments: Moments,
    /// The served gamblers' capital above and below each grid value, once the reference is complete.
    complete: Option<Vec<(f64, f64)>>,
}

impl TwoSample {
    pub(super) fn new(tasks: usize) -> Self {
        Self {
            // As if each task had been passed once and failed once.
            runs: vec![2.0; tasks],
            sums: vec![1.0; tasks],
            served: Gamblers::new(),
            candidate: Gamblers::new(),
            served_moments: Moments::default(),
            candidate_moments: Moments::default(),
            complete: None,
        }
    }

    /// The observation to bet on, and what it lies between.
    fn centred(&self, task: usize, score: f64) -> (f64, f64, f64) {
        let (mut least, mut most, mut sum) = (f64::INFINITY, f64::NEG_INFINITY, 0.0);
        for (total, n) in self.sums.iter().zip(&self.runs) {
            let mean = total / n;
            least = least.min(mean);
            most = most.max(mean);
            sum += mean;
        }
        let all = sum / self.runs.len() as f64;
        let own = self.sums[task] / self.runs[task];
        (score - own + all, all - most, 1.0 - least + all)
    }

    /// Takes a run of the served release. All of them come before the candidate's.
    pub(super) fn observe_served(&mut self, task: usize, score: f64) {
        self.complete = None;
        let (z, low, high) = self.centred(task, score);
        self.served.observe(z, low, high, true, true);
        self.served_moments.add(z);
        self.sums[task] += score;
        self.runs[task] += 1.0;
    }

    /// Takes a run of the candidate.
    pub(super) fn observe_candidate(&mut self, task: usize, score: f64) {
        let (z, low, high) = self.centred(task, score);
        self.complete.get_or_insert_with(|| served_logs(&self.served));
        self.candidate.observe(z, low, high, true, true);
        self.candidate_moments.add(z);
    }

    /// A run of the candidate without a measurement: for its gain it counts as the lowest score, against it not at all.
    pub(super) fn observe_unmeasured(&mut self, task: usize) {
        let (z, low, high) = self.centred(task, 0.0);
        self.candidate.observe(z, low, high, true, false);
    }

    /// Runs of the served release.
    pub(super) fn served_runs(&self) -> u64 {
        self.served_moments.n
    }

    /// Measured runs of the candidate.
    pub(super) fn candidate_runs(&self) -> u64 {
        self.candidate_moments.n
    }

    /// The estimated mean of the served release.
    pub(super) fn served_mean(&self) -> f64 {
        self.served_moments.mean()
    }

    /// The estimated gain.
    pub(super) fn gain(&self) -> f64 {
        self.candidate_moments.mean() - self.served_moments.mean()
    }

    /// Logarithm of the evidence against "the candidate is not better".
    pub(super) fn log_gain(&self) -> f64 {
        self.smallest(CELLS, |cell, served| {
            served(cell).1 + self.candidate.log_above(cell + 1)
        })
    }

    /// Logarithm of the evidence against "the candidate is better by at least `effect`".
    pub(super) fn log_no_gain(&self, effect: f64) -> f64 {
        let shift = (effect * CELLS as f64).floor() as usize;
        self.smallest((CELLS + 1).saturating_sub(shift).min(CELLS), |cell, served| {
            served(cell + 1).0 + self.candidate.log_below(cell + shift)
        })
    }

    /// The smallest product over the first cells. The other gambler never falls below his idle capital, so neither does
    /// the product where his hypothesis is far from true.
    fn smallest(&self, cells: usize, product: impl Fn(usize, &dyn Fn(usize) -> (f64, f64)) -> f64) -> f64 {
        let computed;
        let logs = match &self.complete {
            Some(logs) => logs,
            None => {
                computed = served_logs(&self.served);
                &computed
            }
        };
        let served = |cell: usize| logs[cell];
        (0..cells)
            .map(|cell| product(cell, &served))
            .fold(f64::INFINITY, f64::min)
    }

    /// The evidence there would be after `runs` runs of the candidate if the gain were as large as two standard errors
    /// above the estimate allow. An optimistic guess, for giving up only.
    pub(super) fn projected(&self, runs: u64) -> f64 {
        let (served, candidate) = (&self.served_moments, &self.candidate_moments);
        let variance = |of: &Moments, n: u64| of.variance() / n.max(1) as f64;
        let now = variance(served, served.n) + variance(candidate, candidate.n);
        let then = variance(served, served.n) + variance(candidate, runs);
        let gain = self.gain() + 2.0 * now.sqrt();
        if gain <= 0.0 { 0.0 } else { gain * gain / (2.0 * then) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All outcomes of small samples of coin flips on one task, each with its probability.
    fn expected_evidence(n: usize, served: f64, candidate: f64) -> f64 {
        let mut total = 0.0;
        for bits in 0u32..(1 << (2 * n)) {
            let mut pair = TwoSample::new(1);
            let mut chance = 1.0;
            for i in 0..2 * n {
                let up = bits >> i & 1 == 1;
                let rate = if i < n { served } else { candidate };
                chance *= if up { rate } else { 1.0 - rate };
                if i < n {
                    pair.observe_served(0, f64::from(u8::from(up)));
                } else {
                    pair.observe_candidate(0, f64::from(u8::from(up)));
                }
            }
            total += chance * pair.log_gain().exp();
        }
        total
    }

    #[test]
    fn the_expected_evidence_of_an_equal_candidate_is_at_most_one() {
        // Exact over all outcomes of four runs a side, for several true means.
        for rate in [0.1, 0.4, 0.5, 0.8] {
            let expected = expected_evidence(4, rate, rate);
            assert!(expected <= 1.0 + 1e-9, "{rate}: {expected}");
        }
        assert!(
            expected_evidence(4, 0.1, 0.9) > 1.5,
            "the test must be able to gather evidence"
        );
    }

    #[test]
    fn evidence_grows_with_a_gain_and_turns_against_a_loss() {
        let mut pair = TwoSample::new(4);
        for i in 0..800 {
            pair.observe_served(i % 4, f64::from(u8::from(i / 4 % 2 == 0)));
        }
        let mut worse = pair.clone();
        for i in 0..400 {
            pair.observe_candidate(i % 4, f64::from(u8::from(i / 4 % 10 < 7)));
            worse.observe_candidate(i % 4, f64::from(u8::from(i / 4 % 10 < 3)));
        }
        assert!((pair.gain() - 0.2).abs() < 0.02, "{}", pair.gain());
        assert!(pair.log_gain() > 6.0, "{}", pair.log_gain());
        assert!(
            worse.log_gain() < 0.0 && worse.log_no_gain(0.0) > 6.0,
            "{}",
            worse.log_no_gain(0.0)
        );
        assert!(pair.log_no_gain(0.4) > 6.0, "a gain of 40 points is ruled out");
    }

    #[test]
    fn an_unmeasured_run_never_helps_the_candidate_and_never_counts_against_it() {
        let mut pair = TwoSample::new(2);
        for i in 0..200 {
            pair.observe_served(i % 2, f64::from(u8::from(i % 4 < 2)));
        }
        for i in 0..50 {
            pair.observe_candidate(i % 2, 1.0);
        }
        let (gain, no_gain) = (pair.log_gain(), pair.log_no_gain(0.1));
        pair.observe_unmeasured(0);
        assert!(pair.log_gain() < gain);
        assert!((pair.log_no_gain(0.1) - no_gain).abs() < 1e-12);
    }
}
