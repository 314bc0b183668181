//! One sample: what was answered, how it was graded, and whether it may train.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::staleness::{Produced, StaleReason};
use crate::domain::{RecordId, RequestType, Route, is_score};
use crate::experience::{Record, RecordRow};
use crate::recipe::{ProcessorKind, ProcessorSpec, Truncated};

/// Why something that was reported or answered does not train. It is final, counted, and visible in status.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Exclusion {
    /// The report cites no exchange.
    NoReferences,
    /// The report said `metadata.training.eligible: false`.
    NotEligible,
    /// The report has no score. Absent is not zero.
    NoScore,
    /// The score lies outside the recipe's window.
    ScoreOutsideWindow,
    /// The report cites several turns and the recipe takes single ones.
    SeveralTurns,
    /// A cited exchange has trained already.
    SourceTrained,
    /// A cited exchange is graded by an earlier report.
    SourceGraded,
    /// Retention dropped a cited body before it could train.
    SourcePruned,
    /// The engine gave no tokens and the recipe needs them.
    NoTokens,
    /// The exchange failed, or is not an answer.
    NotAnAnswer,
    /// The answer was cut off and the recipe drops such answers.
    TruncatedAnswer,
    /// A grouped recipe and nothing that names the group.
    NoGroup,
    /// Another report took this place in its group.
    SlotTaken,
    /// Its group stayed incomplete for too long.
    GroupIncomplete,
    /// All scores of its group are equal: nothing to learn from.
    EqualScores,
    /// The turns do not form one conversation.
    Fork,
    /// Turns sampled at different temperatures in one sample.
    MixedTemperatures,
    /// The captured tokens break the rules of training values.
    MalformedTokens,
    /// The answer was not drawn from the model's own distribution, so the recorded log-probabilities are not those of the
    /// policy that sampled.
    OffPolicySampling,
    /// The capture is of a version that did not record the sampler.
    SamplerUnknown,
    /// The members of its group answer different prompts.
    PromptsDiffer,
    /// Too much waited; the oldest went first.
    QueueFull,
    /// Outside the staleness window.
    Stale(StaleReason),
}

impl Exclusion {
    /// The word it is counted under.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NoReferences => "no_references",
            Self::NotEligible => "not_eligible",
            Self::NoScore => "no_score",
            Self::ScoreOutsideWindow => "score_outside_window",
            Self::SeveralTurns => "several_turns",
            Self::SourceTrained => "source_already_trained",
            Self::SourceGraded => "source_already_graded",
            Self::SourcePruned => "source_pruned",
            Self::NoTokens => "no_tokens",
            Self::NotAnAnswer => "not_an_answer",
            Self::TruncatedAnswer => "truncated",
            Self::NoGroup => "no_group",
            Self::SlotTaken => "slot_taken",
            Self::GroupIncomplete => "group_incomplete",
            Self::EqualScores => "equal_scores",
            Self::Fork => "fork",
            Self::MixedTemperatures => "mixed_temperatures",
            Self::MalformedTokens => "malformed_tokens",
            Self::OffPolicySampling => "off_policy_sampling",
            Self::SamplerUnknown => "sampler_unknown",
            Self::PromptsDiffer => "prompts_differ",
            Self::QueueFull => "queue_full",
            Self::Stale(reason) => reason.as_str(),
        }
    }
}

/// One thing to learn from, known by its records; the tokens are read when a batch is sealed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// The report that graded it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub report: Option<RecordId>,
    /// The exchanges it consists of, in order.
    pub sources: Vec<RecordId>,
    /// The session it belongs to; its hash decides between training and holdout.
    pub session: String,
    /// The grade. Absent is not zero.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reward: Option<f64>,
    /// What the reporter said about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub feedback: Option<Value>,
    /// The group it is compared in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Its place in the group; a retry takes the same place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slot: Option<String>,
    /// The answer was cut off by its token limit.
    #[serde(default)]
    pub truncated: bool,
    /// When it became complete, microseconds since the Unix epoch.
    pub arrived_us: i64,
    /// The place of its report (or exchange) in the order of arrival.
    pub sequence: i64,
    /// What produced each turn.
    pub produced: Vec<Produced>,
}

impl Sample {
    /// Every record a batch with this sample uses up.
    pub fn records(&self) -> impl Iterator<Item = &RecordId> {
        self.report.iter().chain(&self.sources)
    }
}

/// Judges one report. `sources` are the exchanges it cites, in its order, `None` for one that is gone; `trained` and
/// `graded` say whether a source has trained or is taken by an earlier report.
pub fn admit_report(
    spec: &ProcessorSpec,
    report: &Record,
    sources: &[Option<RecordRow>],
    trained: impl Fn(&RecordId) -> bool,
    graded: impl Fn(&RecordId) -> bool,
) -> Result<Sample, Exclusion> {
    let row = &report.row;
    if !row.eligible {
        return Err(Exclusion::NotEligible);
    }
    if row.references.is_empty() {
        return Err(Exclusion::NoReferences);
    }
    let score = row.score.ok_or(Exclusion::NoScore)?;
    let below = spec.minimum_score.is_some_and(|low| score < low);
    let above = spec.maximum_score.is_some_and(|high| score > high);
    // Older stores took any finite number.
    if below || above || !is_score(score) {
        return Err(Exclusion::ScoreOutsideWindow);
    }
    if row.references.len() > 1 && !spec.multi_turn {
        return Err(Exclusion::SeveralTurns);
    }
    if row.references.iter().any(trained) {
        return Err(Exclusion::SourceTrained);
    }
    if spec.exclusive_sources && row.references.iter().any(graded) {
        return Err(Exclusion::SourceGraded);
    }
    let sources: Vec<&RecordRow> = sources
        .iter()
        .map(Option::as_ref)
        .collect::<Option<_>>()
        .ok_or(Exclusion::SourcePruned)?;
    let body = report
        .bodies
        .as_ref()
        .and_then(|bodies| crate::sys::json::read(&bodies.request).ok());
    let mut sample = from_sources(spec, &sources)?;
    let text = |value: &Value| match value {
        Value::String(text) if !text.is_empty() => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    };
    let metadata = |key: &str| body.as_ref().and_then(|body| text(&body["metadata"][key]));
    if spec.kind == ProcessorKind::Grouped {
        let tag = |name: &str| sources.iter().find_map(|source| source.tags.get(name).cloned());
        let group = metadata("group")
            .or_else(|| metadata("comparison_set"))
            .or_else(|| tag("group"))
            .ok_or(Exclusion::NoGroup)?;
        // A group belongs to its step where the reporter counts steps, so that the same names can come again.
        let group = match metadata("step") {
            Some(step) => format!("{group}/{step}"),
            None => group,
        };
        // A group is never split between training and holdout.
        sample.session.clone_from(&group);
        sample.group = Some(group);
        sample.slot = metadata("rollout")
            .or_else(|| metadata("slot"))
            .or_else(|| tag("rollout"));
    }
    sample.report = Some(row.id.clone());
    sample.reward = Some(score);
    sample.feedback = body
        .map(|body| body["feedback"].clone())
        .filter(|feedback| !feedback.is_null());
    sample.arrived_us = row.stored_us;
    sample.sequence = row.sequence;
    Ok(sample)
}

/// Judges one exchange as a demonstration.
pub fn admit_demonstration(spec: &ProcessorSpec, exchange: &RecordRow) -> Result<Sample, Exclusion> {
    from_sources(spec, &[exchange])
}

fn from_sources(spec: &ProcessorSpec, sources: &[&RecordRow]) -> Result<Sample, Exclusion> {
    for source in sources {
        let answered = source.kind == RequestType::Inference
            && source.route != Some(Route::CountTokens)
            && source.status.is_none_or(|status| (200..300).contains(&status));
        if !answered {
            return Err(Exclusion::NotAnAnswer);
        }
        if source.pruned_us.is_some() {
            return Err(Exclusion::SourcePruned);
        }
        if spec.tokens && !source.has_capture {
            return Err(Exclusion::NoTokens);
        }
    }
    let truncated = sources
        .last()
        .and_then(|source| source.stop_reason.as_deref())
        .is_some_and(|reason| matches!(reason, "length" | "max_tokens" | "max_output_tokens" | "incomplete"));
    if truncated && spec.truncated == Truncated::Drop {
        return Err(Exclusion::TruncatedAnswer);
    }
    let first = sources.first().ok_or(Exclusion::NoReferences)?;
    Ok(Sample {
        report: None,
        sources: sources.iter().map(|source| source.id.clone()).collect(),
        session: first
            .tags
            .get("session")
            .cloned()
            .unwrap_or_else(|| first.id.to_string()),
        reward: None,
        feedback: None,
        group: None,
        slot: None,
        truncated,
        arrived_us: sources.iter().map(|source| source.stored_us).max().unwrap_or_default(),
        sequence: sources.iter().map(|source| source.sequence).max().unwrap_or_default(),
        produced: sources
            .iter()
            .map(|source| Produced {
                load: source
                    .release
                    .as_ref()
                    .and_then(|release| release.runtime_load_id.clone()),
                release: source.release.as_ref().map(|release| release.release_id.clone()),
            })
            .collect(),
    })
}
