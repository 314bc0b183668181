//! Which figures of steps are drawn, and how they are found.

use super::snapshot::StepFacts;

/// One line of a chart.
pub(super) struct Figure {
    /// What it is called.
    pub(super) name: &'static str,
    /// The names a step may give it, the best first.
    keys: &'static [&'static str],
}

/// The figures drawn. Trainers name them alike; an external one may give any of them.
pub(super) const FIGURES: [Figure; 6] = [
    Figure {
        name: "reward",
        keys: &["reward_mean"],
    },
    Figure {
        name: "loss",
        keys: &["loss"],
    },
    Figure {
        name: "KL",
        keys: &["kl", "policy_shift"],
    },
    Figure {
        name: "gradient norm",
        keys: &["grad_norm"],
    },
    Figure {
        name: "tokens/s",
        keys: &["tokens_per_second"],
    },
    Figure {
        name: "lag of samples",
        keys: &["staleness/lag_mean"],
    },
];

impl Figure {
    /// Its value in one step.
    pub(super) fn of(&self, step: &StepFacts) -> Option<f64> {
        let given = self.keys.iter().find_map(|key| step.metrics.get(*key).copied());
        given
            .or_else(|| {
                // Seldom given, but its parts are.
                let tokens = step.metrics.get("tokens").filter(|_| self.name == "tokens/s")?;
                let seconds = step
                    .metrics
                    .get("seconds")
                    .or_else(|| step.metrics.get("train_seconds"))?;
                (*seconds > 0.0).then(|| tokens / seconds)
            })
            .filter(|value| drawable(*value))
    }
}

/// Whether a chart can show a number: beyond this the distance of two is no number any more.
pub(super) fn drawable(value: f64) -> bool {
    value.abs() <= 1e300
}

/// A range for an axis: the same if it has a width that shows, else a little wider, however large its numbers are.
pub(super) fn widened(low: f64, high: f64) -> (f64, f64) {
    let size = low.abs().max(high.abs());
    if high - low > f64::EPSILON * size.max(1.0) {
        return (low, high);
    }
    let more = if size < 1e12 { 0.5 } else { size * 1e-3 };
    (low - more, high + more)
}

/// The values of a figure by step, oldest first: the last `count` steps, after leaving out the newest `back`. `steps` is
/// newest first.
pub(super) fn series(steps: &[StepFacts], figure: &Figure, count: usize, back: usize) -> Vec<(f64, f64)> {
    let mut points: Vec<(f64, f64)> = steps
        .iter()
        .skip(back)
        .take(count)
        .filter_map(|step| Some((step.step as f64, figure.of(step)?)))
        .collect();
    points.reverse();
    points
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(number: u64, metrics: &[(&str, f64)]) -> StepFacts {
        StepFacts {
            step: number,
            metrics: metrics
                .iter()
                .map(|(name, value)| ((*name).to_owned(), *value))
                .collect(),
            ..StepFacts::default()
        }
    }

    #[test]
    fn a_window_of_steps_oldest_first_without_those_that_lack_the_figure() {
        let steps = [
            step(4, &[("loss", 1.0)]),
            step(3, &[]),
            step(2, &[("loss", f64::NAN)]),
            step(1, &[("loss", 4.0)]),
        ];
        assert_eq!(series(&steps, &FIGURES[1], 10, 0), [(1.0, 4.0), (4.0, 1.0)]);
        assert_eq!(series(&steps, &FIGURES[1], 2, 0), [(4.0, 1.0)]);
        assert_eq!(series(&steps, &FIGURES[1], 10, 1), [(1.0, 4.0)]);
    }

    #[test]
    fn numbers_of_any_size_have_an_axis() {
        for value in [0.0, 7.0, -1e20, 1e300] {
            let (low, high) = widened(value, value);
            assert!(low < value && value < high && (high - low).is_finite(), "{value}");
        }
        assert_eq!(widened(1.0, 2.0), (1.0, 2.0));
        assert!(!drawable(1e308) && !drawable(f64::NAN));
    }

    #[test]
    fn tokens_a_second_come_from_their_parts_and_kl_from_its_stand_in() {
        let step = step(1, &[("tokens", 600.0), ("seconds", 3.0), ("policy_shift", 0.1)]);
        assert_eq!(FIGURES[4].of(&step), Some(200.0));
        assert_eq!(FIGURES[2].of(&step), Some(0.1));
        assert_eq!(FIGURES[0].of(&step), None);
    }
}
