//! The gate a recipe names: what is measured and the rule that decides.

use serde::{Deserialize, Serialize};

use crate::domain::is_score;

/// The rule that turns measurements into a verdict.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SelectorKind {
    /// Releases every candidate that could be made; what was measured is kept beside it.
    #[default]
    Always,
    /// Every task must score at least `floor-score`; the served release is not run.
    Floor,
    /// Wins minus losses must exceed `margin`. A count, not a test: it publishes useless candidates often.
    WinMargin,
    /// A sequential exact test on paired differences, with alpha spent over the candidates of the scenario.
    Paired,
    /// A person decides; measurements are kept as evidence.
    Review,
}

impl SelectorKind {
    /// The word in recipes, verdicts and tables.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Always => "always",
            Self::Floor => "floor",
            Self::WinMargin => "win-margin",
            Self::Paired => "paired",
            Self::Review => "review",
        }
    }
}

/// What is measured.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EvaluatorKind {
    /// Nothing: for `always` and `review` only.
    #[default]
    None,
    /// The tasks of the directory named by `suite`, with their checkers.
    Suite,
    /// Prompts of held-out sessions, answered again by both sides and graded by `command`.
    Holdout,
    /// An external program that measures both sides by itself (JSON lines).
    Program,
    /// The tasks of the directory named by `suite`, done by the agent itself on both trees.
    Episodes,
}

/// How the error probability is spread over the candidates of a scenario.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Spending {
    /// `alpha` bounds the expected share of useless releases among all releases of the scenario, for its whole life.
    #[default]
    Scenario,
    /// `alpha` bounds the chance of each single useless candidate.
    Candidate,
}

/// The `[gate]` table of a recipe.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct GateSpec {
    /// The rule.
    pub selector: SelectorKind,
    /// What it looks at.
    pub evaluator: EvaluatorKind,
    /// Directory of a task suite, relative to the recipe.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub suite: Option<String>,
    /// Program and arguments of the grader (`holdout`) or of the whole measurement (`program`).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// Error probability of `paired`.
    pub alpha: f64,
    /// How `alpha` is spread over candidates.
    pub spending: Spending,
    /// `paired`: the smallest mean gain worth a release, in the units of the score.
    pub minimum_effect: f64,
    /// `paired`: never decide for the candidate on fewer valid pairs.
    pub minimum_pairs: u32,
    /// `paired`: stop undecided after this many pairs.
    pub maximum_pairs: u32,
    /// The verdict is `invalid` once more than this share of the measurements is known to fail, beyond chance.
    pub maximum_invalid: f64,
    /// `paired`: how often the served release is measured once and for all; each candidate is then measured alone against
    /// it, with up to twice `maximum-pairs` runs. 0 measures both sides in pairs.
    pub reference: u32,
    /// `paired`: pairs spent on each protected task before anything else.
    pub protected_repeats: u32,
    /// `paired`: pairs that may be spent on a protected task that seems to have got worse.
    pub protected_maximum: u32,
    /// `paired`: how much a protected task's mean may fall.
    pub protected_tolerance: f64,
    /// `floor`: the score each task must reach.
    pub floor_score: f64,
    /// `win-margin`: wins minus losses must exceed this.
    pub margin: i64,
    /// Rules other than `paired`: how often each task is run.
    pub repeats: u32,
    /// The lowest and the highest score a checker can give. A score outside is a failure to measure.
    pub score_range: [f64; 2],
    /// Seconds one side may take on one task.
    pub timeout_s: f64,
    /// Pairs measured at the same time.
    pub parallel: u32,
}

impl Default for GateSpec {
    fn default() -> Self {
        Self {
            selector: SelectorKind::Always,
            evaluator: EvaluatorKind::None,
            suite: None,
            command: Vec::new(),
            alpha: 0.05,
            spending: Spending::Scenario,
            minimum_effect: 0.0,
            minimum_pairs: 8,
            maximum_pairs: 200,
            maximum_invalid: 0.2,
            reference: 0,
            protected_repeats: 3,
            protected_maximum: 30,
            protected_tolerance: 0.0,
            floor_score: 1.0,
            margin: 0,
            repeats: 1,
            score_range: [0.0, 1.0],
            timeout_s: 120.0,
            parallel: 2,
        }
    }
}

/// Whether it is broken, the key within its table, other keys it is about, and the rule in words.
pub(super) type Rule = (bool, &'static str, &'static [&'static str], &'static str);

impl GateSpec {
    /// The first rule that a value of this table breaks, as `(key, rule)`.
    pub fn fault(&self) -> Option<(&'static str, &'static str)> {
        self.rules()
            .into_iter()
            .find(|rule| rule.0)
            .map(|rule| (rule.1, rule.3))
    }

    /// The rules of this table: whether it is broken, the key, other keys it is about, and the rule.
    pub(super) fn rules(&self) -> Vec<Rule> {
        let [low, high] = self.score_range;
        let measured = self.evaluator != EvaluatorKind::None;
        let needs_measurement = !matches!(self.selector, SelectorKind::Always | SelectorKind::Review);
        let width = high - low;
        let faults = [
            (
                !(self.alpha > 0.0 && self.alpha < 1.0),
                "alpha",
                "must lie strictly between 0 and 1",
            ),
            (
                !(is_score(low) && is_score(high) && low < high),
                "score-range",
                "must be two numbers from -1e12 to 1e12, the lower first",
            ),
            (
                !(self.minimum_effect >= 0.0 && self.minimum_effect < width),
                "minimum-effect",
                "must be at least 0 and less than the width of score-range",
            ),
            (
                !(self.protected_tolerance >= 0.0 && self.protected_tolerance < width),
                "protected-tolerance",
                "must be at least 0 and less than the width of score-range",
            ),
            (self.minimum_pairs == 0, "minimum-pairs", "must be at least 1"),
            (
                self.maximum_pairs < self.minimum_pairs || self.maximum_pairs > 100_000,
                "maximum-pairs",
                "must be at least minimum-pairs and at most 100000",
            ),
            (
                !(0.0..1.0).contains(&self.maximum_invalid),
                "maximum-invalid",
                "must be at least 0 and less than 1",
            ),
            (
                self.repeats == 0 || self.repeats > 10_000,
                "repeats",
                "must be between 1 and 10000",
            ),
            (
                self.protected_repeats == 0 || self.protected_repeats > 10_000,
                "protected-repeats",
                "must be between 1 and 10000",
            ),
            (
                self.protected_maximum > 10_000,
                "protected-maximum",
                "must be at most 10000",
            ),
            (self.reference > 1_000_000, "reference", "must be at most 1000000"),
            (
                self.reference > 0
                    && !(self.selector == SelectorKind::Paired
                        && matches!(self.evaluator, EvaluatorKind::Suite | EvaluatorKind::Program)),
                "reference",
                "needs the selector paired and the evaluator suite or program",
            ),
            (!self.floor_score.is_finite(), "floor-score", "must be a finite number"),
            (self.margin < 0, "margin", "must be at least 0"),
            (
                !(self.timeout_s > 0.0 && self.timeout_s <= 86_400.0),
                "timeout-s",
                "must be above 0 and at most 86400",
            ),
            (
                self.parallel == 0 || self.parallel > 256,
                "parallel",
                "must be between 1 and 256",
            ),
            (
                needs_measurement && !measured,
                "evaluator",
                "is needed by this selector: use suite, holdout, episodes or program",
            ),
            (
                matches!(self.evaluator, EvaluatorKind::Suite | EvaluatorKind::Episodes) && self.suite.is_none(),
                "suite",
                "is needed when evaluator is suite or episodes",
            ),
            (
                matches!(self.evaluator, EvaluatorKind::Holdout | EvaluatorKind::Program) && self.command.is_empty(),
                "command",
                "is needed when evaluator is holdout or program",
            ),
        ];
        let related = |key: &str| -> &'static [&'static str] {
            match key {
                "minimum-effect" | "protected-tolerance" => &["gate.score-range"],
                "maximum-pairs" => &["gate.minimum-pairs"],
                "evaluator" => &["gate.selector"],
                "suite" | "command" => &["gate.evaluator"],
                _ => &[],
            }
        };
        faults
            .into_iter()
            .map(|(broken, key, rule)| (broken, key, related(key), rule))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_gate_is_whole_and_each_rule_is_checked() {
        assert_eq!(GateSpec::default().fault(), None);
        let paired = |text: &str| -> GateSpec {
            toml::from_str(&format!(
                "selector = \"paired\"\nevaluator = \"suite\"\nsuite = \"tasks\"\n{text}"
            ))
            .unwrap()
        };
        assert_eq!(paired("").fault(), None);
        for (text, key) in [
            ("alpha = 0.0", "alpha"),
            ("alpha = nan", "alpha"),
            ("score-range = [1.0, 1.0]", "score-range"),
            ("minimum-effect = 1.0", "minimum-effect"),
            ("maximum-pairs = 3", "maximum-pairs"),
            ("maximum-invalid = 1.0", "maximum-invalid"),
            ("timeout-s = 0.0", "timeout-s"),
        ] {
            assert_eq!(paired(text).fault().map(|(k, _)| k), Some(key), "{text}");
        }
        let bare: GateSpec = toml::from_str("selector = \"floor\"").unwrap();
        assert_eq!(bare.fault().map(|(k, _)| k), Some("evaluator"));
    }

    #[test]
    fn an_unknown_key_is_named_with_the_known_ones() {
        let error = toml::from_str::<GateSpec>("alfa = 0.1").unwrap_err().to_string();
        assert!(error.contains("alfa") && error.contains("minimum-effect"), "{error}");
    }
}
