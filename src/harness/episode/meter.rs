//! What episodes and proposers cost, counted where it happens.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::experience::Spend;

/// What a model costs, per million tokens, in whatever currency the deployment counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Price {
    /// A million tokens in.
    pub input: f64,
    /// A million tokens out.
    pub output: f64,
}

/// Prices by model; `*` is every other model.
pub type Prices = BTreeMap<String, Price>;

/// A running count.
#[derive(Debug, Default)]
pub struct Meter {
    prices: Prices,
    calls: AtomicU64,
    tokens: AtomicU64,
    episodes: AtomicU64,
    cost: Mutex<f64>,
}

impl Meter {
    /// A count that begins at nothing.
    pub fn new(prices: Prices) -> Self {
        Self {
            prices,
            ..Self::default()
        }
    }

    /// Counts one call of a model.
    pub fn call(&self, model: &str, input: u64, output: u64) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.tokens.fetch_add(input + output, Ordering::Relaxed);
        if let Some(price) = self.prices.get(model).or_else(|| self.prices.get("*")) {
            *self.cost.lock() += (price.input * input as f64 + price.output * output as f64) / 1e6;
        }
    }

    /// Counts one episode.
    pub fn episode(&self) {
        self.episodes.fetch_add(1, Ordering::Relaxed);
    }

    /// What it has come to.
    pub fn spent(&self) -> Spend {
        Spend {
            calls: self.calls.load(Ordering::Relaxed),
            tokens: self.tokens.load(Ordering::Relaxed),
            episodes: self.episodes.load(Ordering::Relaxed),
            cost: *self.cost.lock(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_priced_by_model() {
        let prices = Prices::from([
            (
                "small".to_owned(),
                Price {
                    input: 1.0,
                    output: 2.0,
                },
            ),
            (
                "*".to_owned(),
                Price {
                    input: 10.0,
                    output: 0.0,
                },
            ),
        ]);
        let meter = Meter::new(prices);
        meter.call("small", 1_000_000, 500_000);
        meter.call("other", 100_000, 7);
        meter.episode();
        let spent = meter.spent();
        assert_eq!((spent.calls, spent.tokens, spent.episodes), (2, 1_600_007, 1));
        assert!((spent.cost - 3.0).abs() < 1e-9, "{}", spent.cost);
    }
}
