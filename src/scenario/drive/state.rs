//! What to do next with a step in progress. Pure: the durable facts in, one effect out. Performing an effect changes the
//! facts, so a crash between any two leads back here with the same or newer facts.

use crate::domain::{Outcome, ReleaseId};
use crate::experience::{Job, JobStage};

/// Attempts at the training step before the batch is given up.
pub(super) const MAX_ATTEMPTS: u32 = 10;
/// Trials of one candidate whose measurement may fail before it is given up. With the pauses between them that is about
/// half an hour.
pub(super) const MAX_INVALID_TRIALS: u32 = 12;
const FIRST_PAUSE_S: u64 = 1;
const LONGEST_PAUSE_S: u64 = 300;

/// The facts beside the job itself.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Facts {
    /// What the scenario serves.
    pub head: ReleaseId,
    /// The batch already has its step in the ledger.
    pub has_step: bool,
    /// A sample of the batch is outside the staleness window now; the word of the reason.
    pub stale: Option<&'static str>,
    /// Microseconds since the Unix epoch.
    pub now_us: i64,
}

/// One thing to do.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Effect {
    /// Everything durable is done: close the job.
    Close,
    /// Nothing before this time.
    WaitUntil(i64),
    /// The head is another one than the job builds on: begin again on it.
    Rebase(ReleaseId),
    /// Drop the batch; no step is taken.
    DropStale(&'static str),
    /// Make the step.
    Train,
    /// Put the candidate before the gate.
    Judge,
    /// Release the candidate, or hold it for a person.
    Publish {
        /// Wait for a person.
        held: bool,
    },
    /// Record that the candidate was not released.
    Refuse,
    /// The measurement failed: judge again after a pause.
    JudgeAgain,
    /// The measurement failed too often: the candidate is not released.
    GiveUpMeasuring,
    /// It failed too often: record a skipped step.
    GiveUp,
}

/// The next effect.
pub(super) fn next(job: &Job, facts: &Facts) -> Effect {
    if facts.has_step {
        return Effect::Close;
    }
    if let Some(retry) = job.retry_us.filter(|retry| *retry > facts.now_us) {
        return Effect::WaitUntil(retry);
    }
    // An instruction that fails is not tried again: a person is waiting for an answer.
    let limit = if job.instruction.is_some() { 1 } else { MAX_ATTEMPTS };
    // A finished candidate is not given up for a repository that fails: it will work again.
    if job.stage == JobStage::Sealed && job.attempts >= limit {
        return Effect::GiveUp;
    }
    if job.base != facts.head {
        return Effect::Rebase(facts.head.clone());
    }
    match (job.stage, &job.verdict) {
        (JobStage::Sealed, _) => match facts.stale {
            Some(reason) => Effect::DropStale(reason),
            None => Effect::Train,
        },
        (JobStage::Trained, _) | (JobStage::Judged, None) if job.invalid_trials >= MAX_INVALID_TRIALS => {
            Effect::GiveUpMeasuring
        }
        (JobStage::Trained, _) | (JobStage::Judged, None) => Effect::Judge,
        (JobStage::Judged, Some(verdict)) => match verdict.outcome {
            Outcome::Selected => Effect::Publish { held: false },
            Outcome::Held => Effect::Publish { held: true },
            Outcome::Rejected | Outcome::Inconclusive => Effect::Refuse,
            Outcome::Invalid => Effect::JudgeAgain,
        },
    }
}

/// When to try again after the `attempts`-th failure, in microseconds from then: doubling, at most five minutes.
pub(super) fn pause_us(attempts: u32) -> i64 {
    let seconds = FIRST_PAUSE_S
        .saturating_mul(1_u64.checked_shl(attempts.min(20)).unwrap_or(u64::MAX))
        .min(LONGEST_PAUSE_S);
    i64::try_from(seconds).unwrap_or(i64::MAX).saturating_mul(1_000_000)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::domain::{BatchId, RecordId, ScenarioName, Verdict};

    fn release(name: &str) -> ReleaseId {
        ReleaseId::new(name).unwrap()
    }

    fn job(stage: JobStage, outcome: Option<Outcome>) -> Job {
        Job {
            id: 1,
            scenario: ScenarioName::new("s").unwrap(),
            batch: BatchId::new("b").unwrap(),
            step: 3,
            stage,
            recipe: "sao".into(),
            manifest: json!({}),
            instruction: None,
            base: release("r"),
            candidate: None,
            verdict: outcome.map(|outcome| Verdict {
                outcome,
                selector: "paired".into(),
                reason: String::new(),
                evaluator: "suite".into(),
                pairs: vec![],
                figures: serde_json::Map::new(),
            }),
            attempts: 0,
            invalid_trials: 0,
            error: None,
            retry_us: None,
            outcome: None,
            reason: None,
            sealed_us: 0,
            ended_us: None,
        }
    }

    fn facts() -> Facts {
        Facts {
            head: release("r"),
            has_step: false,
            stale: None,
            now_us: 100,
        }
    }

    #[test]
    fn the_stages_follow_each_other_and_each_outcome_has_its_end() {
        assert_eq!(next(&job(JobStage::Sealed, None), &facts()), Effect::Train);
        assert_eq!(next(&job(JobStage::Trained, None), &facts()), Effect::Judge);
        for (outcome, effect) in [
            (Outcome::Selected, Effect::Publish { held: false }),
            (Outcome::Held, Effect::Publish { held: true }),
            (Outcome::Rejected, Effect::Refuse),
            (Outcome::Inconclusive, Effect::Refuse),
            (Outcome::Invalid, Effect::JudgeAgain),
        ] {
            assert_eq!(next(&job(JobStage::Judged, Some(outcome)), &facts()), effect);
        }
    }

    #[test]
    fn a_moved_head_starts_the_step_again_whatever_the_stage() {
        let moved = Facts {
            head: release("other"),
            ..facts()
        };
        for stage in [JobStage::Sealed, JobStage::Trained, JobStage::Judged] {
            let effect = next(&job(stage, Some(Outcome::Selected)), &moved);
            assert_eq!(effect, Effect::Rebase(release("other")));
        }
    }

    #[test]
    fn staleness_drops_a_batch_before_it_trains_and_never_after() {
        let stale = Facts {
            stale: Some("policy_lag_exceeded"),
            ..facts()
        };
        assert_eq!(
            next(&job(JobStage::Sealed, None), &stale),
            Effect::DropStale("policy_lag_exceeded")
        );
        assert_eq!(next(&job(JobStage::Trained, None), &stale), Effect::Judge);
    }

    #[test]
    fn a_candidate_that_cannot_be_measured_is_given_up_in_the_end() {
        let mut job = job(JobStage::Trained, None);
        job.invalid_trials = MAX_INVALID_TRIALS - 1;
        assert_eq!(next(&job, &facts()), Effect::Judge);
        job.invalid_trials = MAX_INVALID_TRIALS;
        assert_eq!(next(&job, &facts()), Effect::GiveUpMeasuring);
    }

    #[test]
    fn failures_pause_double_and_end() {
        let mut failing = job(JobStage::Sealed, None);
        failing.retry_us = Some(200);
        assert_eq!(next(&failing, &facts()), Effect::WaitUntil(200));
        assert_eq!(next(&failing, &Facts { now_us: 200, ..facts() }), Effect::Train);
        failing.attempts = MAX_ATTEMPTS;
        failing.retry_us = None;
        assert_eq!(next(&failing, &facts()), Effect::GiveUp);
        let mut asked = job(JobStage::Sealed, None);
        asked.instruction = Some(RecordId::new("i").unwrap());
        asked.attempts = 1;
        assert_eq!(
            next(&asked, &facts()),
            Effect::GiveUp,
            "an instruction is not tried twice"
        );
        assert_eq!(
            (pause_us(0), pause_us(3), pause_us(30)),
            (1_000_000, 8_000_000, 300_000_000)
        );
    }

    proptest! {
        /// Once the ledger has the step, nothing else happens: a batch cannot make two steps.
        #[test]
        fn a_batch_with_a_step_is_only_closed(stage in 0usize..3, attempts in 0u32..20, moved in any::<bool>(), stale in any::<bool>()) {
            let stage = [JobStage::Sealed, JobStage::Trained, JobStage::Judged][stage];
            let mut job = job(stage, Some(Outcome::Selected));
            job.attempts = attempts;
            let facts = Facts {
                head: release(if moved { "other" } else { "r" }),
                has_step: true,
                stale: stale.then_some("x"),
                now_us: 0,
            };
            prop_assert_eq!(next(&job, &facts), Effect::Close);
        }

        /// Publishing needs a verdict for it, on the head it was judged against.
        #[test]
        fn nothing_is_published_unjudged(stage in 0usize..3, attempts in 0u32..20, moved in any::<bool>(), judged in prop::option::of(0usize..5)) {
            let stage = [JobStage::Sealed, JobStage::Trained, JobStage::Judged][stage];
            let outcomes = [Outcome::Selected, Outcome::Held, Outcome::Rejected, Outcome::Inconclusive, Outcome::Invalid];
            let outcome = judged.map(|index: usize| outcomes[index]);
            let mut job = job(stage, outcome);
            job.attempts = attempts;
            let facts = Facts { head: release(if moved { "other" } else { "r" }), ..facts() };
            if let Effect::Publish { held } = next(&job, &facts) {
                prop_assert_eq!(stage, JobStage::Judged);
                prop_assert!(!moved);
                prop_assert_eq!(outcome, Some(if held { Outcome::Held } else { Outcome::Selected }));
            }
        }
    }
}
