//! Scores of the served tree that are known from earlier candidates, and sentinels that notice when they no longer hold.
//!
//! A score is used once per candidate, for the same task and repetition it was measured for, so that the pairs of one
//! candidate stay independent. Some are measured again all the same: when those differ from what was known beyond
//! chance, the model behind them changed, and everything known is void.

use std::collections::HashMap;

use parking_lot::Mutex;
use sha2::{Digest, Sha256};

use super::betting::Capital;

/// The chance of calling scores void that still hold.
const DRIFT_LEVEL: f64 = 0.01;

/// What is known of a served tree.
#[derive(Debug)]
pub struct Baseline {
    known: HashMap<(String, u32), f64>,
    sentinels: f64,
    width: f64,
    seed: String,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    fresh: Vec<(String, u32, f64)>,
    used: u64,
    checked: u64,
    up: Capital,
    down: Capital,
    log_up: f64,
    log_down: f64,
}

impl Baseline {
    /// `known` holds earlier scores; a share of `sentinels` of them is measured again. `seed` decides which.
    pub fn new(known: Vec<(String, u32, f64)>, sentinels: f64, score_range: [f64; 2], seed: &str) -> Self {
        Self {
            known: known
                .into_iter()
                .map(|(task, repeat, score)| ((task, repeat), score))
                .collect(),
            sentinels,
            width: score_range[1] - score_range[0],
            seed: seed.to_owned(),
            state: Mutex::new(State {
                fresh: Vec::new(),
                used: 0,
                checked: 0,
                up: Capital::new(),
                down: Capital::new(),
                log_up: 0.0,
                log_down: 0.0,
            }),
        }
    }

    /// The score of one repetition of a task, unless it is to be measured.
    pub(super) fn known(&self, task: &str, repeat: u32) -> Option<f64> {
        let score = *self.known.get(&(task.to_owned(), repeat))?;
        let digest = Sha256::digest(format!("{}\0{task}\0{repeat}", self.seed));
        let word = u32::from_le_bytes([digest[0], digest[1], digest[2], digest[3]]);
        if f64::from(word) < self.sentinels * f64::from(u32::MAX) {
            return None;
        }
        self.state.lock().used += 1;
        Some(score)
    }

    /// Takes a score that was measured.
    pub(super) fn measured(&self, task: &str, repeat: u32, score: f64) {
        let mut state = self.state.lock();
        if let Some(known) = self.known.get(&(task.to_owned(), repeat)) {
            let difference = (score - known) / self.width;
            state.checked += 1;
            state.up.observe(difference);
            state.down.observe(-difference);
            state.log_up = state.up.log_value().max(state.log_up);
            state.log_down = state.down.log_value().max(state.log_down);
        }
        state.fresh.push((task.to_owned(), repeat, score));
    }

    /// What was measured now.
    pub fn fresh(&self) -> Vec<(String, u32, f64)> {
        self.state.lock().fresh.clone()
    }

    /// How many known scores were used, and how many measured again.
    pub fn counts(&self) -> (u64, u64) {
        let state = self.state.lock();
        (state.used, state.checked)
    }

    /// Whether what was known no longer holds.
    pub fn drifted(&self) -> bool {
        let state = self.state.lock();
        state.log_up.max(state.log_down) >= -(DRIFT_LEVEL / 2.0).ln()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(n: u32, score: impl Fn(u32) -> f64) -> Vec<(String, u32, f64)> {
        (0..n).map(|repeat| ("t".to_owned(), repeat, score(repeat))).collect()
    }

    #[test]
    fn scores_that_hold_are_used_and_a_change_is_noticed() {
        let alternate = |repeat: u32| f64::from(repeat % 2);
        let baseline = Baseline::new(known(200, alternate), 0.3, [0.0, 1.0], "s");
        for repeat in 0..200 {
            if baseline.known("t", repeat).is_none() {
                baseline.measured("t", repeat, alternate(repeat));
            }
        }
        let (used, checked) = baseline.counts();
        assert_eq!(used + checked, 200);
        assert!((30..=90).contains(&checked), "{checked}");
        assert!(!baseline.drifted());
        // The model got worse: what passed half of the time now always fails.
        let baseline = Baseline::new(known(200, alternate), 0.3, [0.0, 1.0], "s");
        for repeat in 0..200 {
            if baseline.known("t", repeat).is_none() {
                baseline.measured("t", repeat, 0.0);
            }
        }
        assert!(baseline.drifted());
        assert_eq!(baseline.known("other", 0), None);
    }
}
