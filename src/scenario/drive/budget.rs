//! What automatic steps may cost. An instruction always runs.

use crate::recipe::BudgetSpec;

/// One step of the past, newest first in a list.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Spent {
    pub at_us: i64,
    pub tokens: u64,
    pub released: bool,
    /// A training step, not a rollback or a promote.
    pub training: bool,
}

/// Why no automatic step may begin now; `None` when one may.
pub(super) fn exhausted(budget: &BudgetSpec, steps: &[Spent], now_us: i64) -> Option<String> {
    let training = || steps.iter().filter(|step| step.training);
    let hour = || training().filter(|step| now_us - step.at_us < 3_600_000_000);
    let total = training().count() as u64;
    if let Some(limit) = budget.maximum_steps.filter(|limit| total >= *limit) {
        return Some(format!("budget.maximum-steps of {limit} is spent"));
    }
    if let Some(limit) = budget.steps_per_hour.filter(|limit| hour().count() as u64 >= *limit) {
        return Some(format!("budget.steps-per-hour of {limit} is spent"));
    }
    if let Some(limit) = budget
        .tokens_per_hour
        .filter(|limit| hour().map(|step| step.tokens).sum::<u64>() >= *limit)
    {
        return Some(format!("budget.tokens-per-hour of {limit} is spent"));
    }
    let streak = training().take_while(|step| !step.released).count() as u64;
    if let Some(limit) = budget.failure_streak.filter(|limit| streak >= *limit) {
        return Some(format!(
            "the last {limit} steps released nothing (budget.failure-streak)"
        ));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: i64 = 60_000_000;

    fn step(minutes_ago: i64, released: bool) -> Spent {
        Spent {
            at_us: 1000 * MINUTE - minutes_ago * MINUTE,
            tokens: 100,
            released,
            training: true,
        }
    }

    #[test]
    fn each_limit_is_exact() {
        let now = 1000 * MINUTE;
        let steps = [step(1, false), step(30, false), step(59, true), step(61, true)];
        let spent = |budget: BudgetSpec| exhausted(&budget, &steps, now);
        assert_eq!(spent(BudgetSpec::default()), None);
        assert!(
            spent(BudgetSpec {
                maximum_steps: Some(4),
                ..BudgetSpec::default()
            })
            .is_some()
        );
        assert!(
            spent(BudgetSpec {
                maximum_steps: Some(5),
                ..BudgetSpec::default()
            })
            .is_none()
        );
        assert!(
            spent(BudgetSpec {
                steps_per_hour: Some(3),
                ..BudgetSpec::default()
            })
            .is_some()
        );
        assert!(
            spent(BudgetSpec {
                steps_per_hour: Some(4),
                ..BudgetSpec::default()
            })
            .is_none()
        );
        assert!(
            spent(BudgetSpec {
                tokens_per_hour: Some(300),
                ..BudgetSpec::default()
            })
            .is_some()
        );
        assert!(
            spent(BudgetSpec {
                tokens_per_hour: Some(301),
                ..BudgetSpec::default()
            })
            .is_none()
        );
        assert!(
            spent(BudgetSpec {
                failure_streak: Some(2),
                ..BudgetSpec::default()
            })
            .is_some()
        );
        assert!(
            spent(BudgetSpec {
                failure_streak: Some(3),
                ..BudgetSpec::default()
            })
            .is_none()
        );
    }

    #[test]
    fn rollbacks_are_not_steps() {
        let rollback = Spent {
            training: false,
            ..step(1, true)
        };
        let budget = BudgetSpec {
            maximum_steps: Some(1),
            ..BudgetSpec::default()
        };
        assert_eq!(exhausted(&budget, &[rollback], 1000 * MINUTE), None);
    }
}
