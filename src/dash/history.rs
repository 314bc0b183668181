//! What only shows over time: rates, from counts seen one after the other.

use std::collections::VecDeque;

use super::snapshot::Snapshot;

/// Looks kept.
const KEPT: usize = 600;

#[derive(Debug, Clone, Copy, PartialEq)]
struct Sample {
    at_us: i64,
    exchanges: u64,
    reports: u64,
}

/// Counts of all scenarios together, over time.
#[derive(Debug, Default)]
pub(super) struct History {
    samples: VecDeque<Sample>,
}

impl History {
    pub(super) fn push(&mut self, snapshot: &Snapshot) {
        let sum = |count: fn(&super::snapshot::ScenarioFacts) -> u64| snapshot.scenarios.iter().map(count).sum();
        self.samples.push_back(Sample {
            at_us: snapshot.at_us,
            exchanges: sum(|scenario| scenario.exchanges),
            reports: sum(|scenario| scenario.reports),
        });
        if self.samples.len() > KEPT {
            self.samples.pop_front();
        }
    }

    /// Exchanges a second between the looks, oldest first. A count that fell (a scenario was archived) is no rate.
    pub(super) fn exchange_rates(&self) -> Vec<f64> {
        self.rates(|sample| sample.exchanges)
    }

    /// Reports a second between the looks, oldest first.
    pub(super) fn report_rates(&self) -> Vec<f64> {
        self.rates(|sample| sample.reports)
    }

    fn rates(&self, count: impl Fn(&Sample) -> u64) -> Vec<f64> {
        let pairs = self.samples.iter().zip(self.samples.iter().skip(1));
        pairs
            .filter_map(|(before, after)| {
                let seconds = (after.at_us - before.at_us) as f64 / 1e6;
                (seconds > 0.0).then(|| count(after).saturating_sub(count(before)) as f64 / seconds)
            })
            .collect()
    }
}

/// The mean of the last few.
pub(super) fn recent(rates: &[f64]) -> f64 {
    let last = &rates[rates.len().saturating_sub(5)..];
    if last.is_empty() {
        return 0.0;
    }
    last.iter().sum::<f64>() / last.len() as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dash::snapshot::ScenarioFacts;

    fn at(seconds: i64, exchanges: u64) -> Snapshot {
        Snapshot {
            at_us: seconds * 1_000_000,
            scenarios: vec![ScenarioFacts {
                exchanges,
                ..ScenarioFacts::default()
            }],
            ..Snapshot::default()
        }
    }

    #[test]
    fn rates_are_per_second_and_never_negative() {
        let mut history = History::default();
        for (seconds, exchanges) in [(0, 10), (2, 30), (3, 5), (3, 6), (4, 7)] {
            history.push(&at(seconds, exchanges));
        }
        assert_eq!(history.exchange_rates(), [10.0, 0.0, 1.0]);
        assert_eq!(recent(&history.exchange_rates()), 11.0 / 3.0);
        assert_eq!(recent(&[]), 0.0);
    }
}
