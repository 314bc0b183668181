//! The tables of a recipe.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use toml::Table;

use super::draft::Places;
use super::{EvaluatorKind, EvolutionSpec, GateSpec};
use crate::domain::TrainingMode;

/// A complete recipe: what experience it takes, how it learns from it, and what it takes to be released.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Recipe {
    /// The version of this format; 1.
    pub format: u32,
    /// Its name in status, verdicts and provenance.
    pub name: String,
    /// What it does, in a sentence.
    #[serde(default)]
    pub summary: String,
    /// What may start a step, until a person says otherwise.
    #[serde(default)]
    pub training_mode: TrainingMode,
    /// How stored experience becomes samples.
    #[serde(default)]
    pub processor: ProcessorSpec,
    /// When samples become a batch.
    #[serde(default)]
    pub batch: BatchSpec,
    /// What a step optimizes.
    #[serde(default)]
    pub objective: ObjectiveSpec,
    /// Who makes the step.
    #[serde(default)]
    pub trainer: TrainerSpec,
    /// What a candidate must show.
    #[serde(default)]
    pub gate: GateSpec,
    /// What a release delivers.
    #[serde(default)]
    pub surface: SurfaceSpec,
    /// What automatic steps may cost.
    #[serde(default)]
    pub budget: BudgetSpec,
    /// How a harness tree is changed.
    #[serde(default)]
    pub evolution: EvolutionSpec,
    /// The directory relative paths start at; `None` for a built-in recipe.
    #[serde(skip)]
    pub directory: Option<PathBuf>,
    /// Where its values stand.
    #[serde(skip)]
    pub(super) places: Places,
}

/// A rule that a value breaks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Broken {
    /// The key, dotted.
    pub key: String,
    /// Other keys that the rule is about.
    pub related: &'static [&'static str],
    /// What must be.
    pub rule: &'static str,
}

/// Which processor.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProcessorKind {
    /// Nothing trains; traffic is only recorded.
    #[default]
    None,
    /// One scored report, one sample.
    Reported,
    /// Scored reports in groups of answers to the same question.
    Grouped,
    /// The following request of a session grades the answer before it.
    Computed,
    /// Every finished exchange is a demonstration.
    Demonstration,
}

/// What becomes of an answer cut off by its token limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Truncated {
    /// It trains like any other; the flag stays with the sample.
    #[default]
    Keep,
    /// It does not train.
    Drop,
}

/// `[processor]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct ProcessorSpec {
    /// Which one.
    pub kind: ProcessorKind,
    /// Whether samples need the exact tokens of the engine that sampled them. Off for trainers that read text.
    pub tokens: bool,
    /// Whether answers that were not drawn from the model's own distribution (temperature 0, top-p, top-k, min-p, penalties,
    /// a bias, a grammar) may train an objective that weighs by the sampler's log-probabilities.
    pub any_sampling: bool,
    /// Whether a report may cite several turns of one conversation.
    pub multi_turn: bool,
    /// Tokens a chat template may drop before a response when it renders the conversation again.
    pub scaffold_tolerance: usize,
    /// How far a later prompt may rewrite the end of the transcript.
    pub realign_threshold: usize,
    /// Whether an exchange may be graded by one report only; the first one wins.
    pub exclusive_sources: bool,
    /// Whether a batch of equal scores is passed over, because it teaches nothing.
    pub skip_equal_scores: bool,
    /// Lowest score that trains.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub minimum_score: Option<f64>,
    /// Highest score that trains.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub maximum_score: Option<f64>,
    /// What becomes of answers cut off by their token limit.
    pub truncated: Truncated,
    /// `computed`: an idle session ends after this; its last answer never trains.
    pub session_ttl_s: f64,
    /// `computed`: the program that grades an answer by what followed (JSON lines).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// `computed`: seconds the program may take for one answer.
    pub timeout_s: f64,
}

impl Default for ProcessorSpec {
    fn default() -> Self {
        Self {
            kind: ProcessorKind::None,
            tokens: true,
            any_sampling: false,
            multi_turn: true,
            scaffold_tolerance: 0,
            realign_threshold: 1024,
            exclusive_sources: true,
            skip_equal_scores: false,
            minimum_score: None,
            maximum_score: None,
            truncated: Truncated::Keep,
            session_ttl_s: 900.0,
            command: Vec::new(),
            timeout_s: 120.0,
        }
    }
}

/// `[batch]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct BatchSpec {
    /// Units of a batch: samples, or groups of a grouped processor.
    pub size: usize,
    /// Samples of a group.
    pub group_size: usize,
    /// A batch is sealed with fewer units once its oldest sample has waited this long; 0 waits for ever.
    pub max_wait_s: f64,
    /// How many loads behind the served one a sample may be, or releases where the engine gives no loads; 0 means the
    /// same weights.
    pub max_staleness: u64,
    /// Whether imported experience may train, of which nobody knows what produced it. It has no age.
    pub accept_imported: bool,
    /// Share of sessions kept out of training, for the gate.
    pub holdout: f64,
    /// Samples that may wait; beyond it the oldest are dropped and counted.
    pub maximum_pending: usize,
}

impl Default for BatchSpec {
    fn default() -> Self {
        Self {
            size: 1,
            group_size: 2,
            max_wait_s: 0.0,
            max_staleness: 0,
            accept_imported: false,
            holdout: 0.0,
            maximum_pending: 10_000,
        }
    }
}

/// `[objective]`
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct ObjectiveSpec {
    /// The loss family: `sao`, `grpo`, `sft`, …
    pub family: String,
    /// Settings of the family, checked by the trainer.
    #[serde(skip_serializing_if = "Table::is_empty")]
    pub settings: Table,
}

/// Who makes the step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TrainerKind {
    /// Nobody.
    #[default]
    None,
    /// The embedded trainer.
    Torch,
    /// An external program.
    Program,
    /// A proposer, which changes a harness tree by `[evolution]`.
    Proposer,
}

/// `[trainer]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct TrainerSpec {
    /// Who.
    pub backend: TrainerKind,
    /// Program and arguments of `program`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// Seconds a step may take.
    pub timeout_s: f64,
    /// Whether the next step goes on from a candidate that the gate could not decide on, so that small gains add up
    /// until they show. What is served stays as it is, and every candidate is judged against it.
    pub carry_undecided: bool,
    /// Optimizer settings, checked by the trainer.
    #[serde(skip_serializing_if = "Table::is_empty")]
    pub optimizer: Table,
    /// LoRA settings, checked by the trainer.
    #[serde(skip_serializing_if = "Table::is_empty")]
    pub lora: Table,
    /// Anything else the trainer understands.
    #[serde(skip_serializing_if = "Table::is_empty")]
    pub settings: Table,
}

impl Default for TrainerSpec {
    fn default() -> Self {
        Self {
            backend: TrainerKind::None,
            command: Vec::new(),
            timeout_s: 3600.0,
            carry_undecided: false,
            optimizer: Table::new(),
            lora: Table::new(),
            settings: Table::new(),
        }
    }
}

/// What a release delivers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SurfaceKind {
    /// Nothing: the recipe only records.
    #[default]
    None,
    /// A PEFT adapter on the served base model.
    LoraAdapter,
    /// A whole model.
    Checkpoint,
    /// Files of an agent's harness.
    Harness,
}

/// `[surface]`
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct SurfaceSpec {
    /// What kind.
    pub kind: SurfaceKind,
}

/// `[budget]`: stops automatic steps only; an instruction always runs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct BudgetSpec {
    /// Steps of the scenario in all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub maximum_steps: Option<u64>,
    /// Steps within any hour.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps_per_hour: Option<u64>,
    /// Trained tokens within any hour.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens_per_hour: Option<u64>,
    /// Steps in a row without a release.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure_streak: Option<u64>,
}

impl Recipe {
    /// Every rule that a value breaks.
    pub fn faults(&self) -> Vec<Broken> {
        let (processor, batch) = (&self.processor, &self.batch);
        let trains = processor.kind != ProcessorKind::None;
        let window = match (processor.minimum_score, processor.maximum_score) {
            (Some(low), Some(high)) => !(low.is_finite() && high.is_finite() && low <= high),
            (one, other) => one.or(other).is_some_and(|score| !score.is_finite()),
        };
        let faults = [
            (self.format != 1, "format", "must be 1"),
            (
                self.name.is_empty()
                    || !self
                        .name
                        .bytes()
                        .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.')),
                "name",
                "must be letters, digits, '-', '_' or '.'",
            ),
            (
                batch.size == 0 || batch.size > 100_000,
                "batch.size",
                "must be between 1 and 100000",
            ),
            (
                processor.kind == ProcessorKind::Grouped && !(2..=10_000).contains(&batch.group_size),
                "batch.group-size",
                "must be between 2 and 10000",
            ),
            (
                !(batch.max_wait_s >= 0.0 && batch.max_wait_s.is_finite()),
                "batch.max-wait-s",
                "must be a finite number, 0 or more",
            ),
            (
                !(0.0..=0.9).contains(&batch.holdout),
                "batch.holdout",
                "must be between 0 and 0.9",
            ),
            (
                batch.maximum_pending < batch.size.saturating_mul(self.unit_size()),
                "batch.maximum-pending",
                "must hold at least one whole batch",
            ),
            (
                window,
                "processor.minimum-score",
                "must be a finite number, and not above processor.maximum-score",
            ),
            (
                !(processor.session_ttl_s > 0.0 && processor.session_ttl_s.is_finite()),
                "processor.session-ttl-s",
                "must be a finite number above 0",
            ),
            (
                !(processor.timeout_s > 0.0 && processor.timeout_s <= 86_400.0),
                "processor.timeout-s",
                "must be above 0 and at most 86400",
            ),
            (
                processor.kind == ProcessorKind::Computed && processor.command.is_empty(),
                "processor.command",
                "is needed when kind is computed: the program that grades an answer by what followed it",
            ),
            (
                trains && self.trainer.backend == TrainerKind::None,
                "trainer.backend",
                "is needed: use torch or program",
            ),
            (
                trains && self.trainer.backend == TrainerKind::Torch && self.objective.family.is_empty(),
                "objective.family",
                "is needed by the embedded trainer",
            ),
            (
                self.trainer.backend == TrainerKind::Program && self.trainer.command.is_empty(),
                "trainer.command",
                "is needed when trainer.backend is program",
            ),
            (
                !(self.trainer.timeout_s > 0.0 && self.trainer.timeout_s <= 604_800.0),
                "trainer.timeout-s",
                "must be above 0 and at most 604800",
            ),
            (
                trains && self.surface.kind == SurfaceKind::None,
                "surface.kind",
                "is needed: lora-adapter, checkpoint or harness",
            ),
            (
                (self.trainer.backend == TrainerKind::Proposer) != (self.surface.kind == SurfaceKind::Harness)
                    && self.trainer.backend != TrainerKind::Program,
                "trainer.backend",
                "proposer goes with surface.kind harness, and with nothing else",
            ),
            (
                self.gate.evaluator == EvaluatorKind::Episodes && self.surface.kind != SurfaceKind::Harness,
                "gate.evaluator",
                "episodes measures harness trees only (surface.kind harness)",
            ),
        ];
        let related = |key: &str| -> &'static [&'static str] {
            match key {
                "batch.maximum-pending" => &["batch.size", "batch.group-size"],
                "processor.minimum-score" => &["processor.maximum-score"],
                "processor.command" => &["processor.kind"],
                "trainer.backend" => &["surface.kind", "processor.kind"],
                "objective.family" | "trainer.command" => &["trainer.backend"],
                "surface.kind" => &["processor.kind"],
                "gate.evaluator" => &["surface.kind"],
                _ => &[],
            }
        };
        let own = faults
            .into_iter()
            .map(|(broken, key, rule)| (broken, key.to_owned(), related(key), rule));
        let gate = self.gate.rules().into_iter();
        let gate = gate.map(|(broken, key, related, rule)| (broken, format!("gate.{key}"), related, rule));
        let evolution = self.evolution.rules().into_iter();
        let evolution =
            evolution.map(|(broken, key, related, rule)| (broken, format!("evolution.{key}"), related, rule));
        own.chain(gate)
            .chain(evolution)
            .filter(|(broken, ..)| *broken)
            .map(|(_, key, related, rule)| Broken { key, related, rule })
            .collect()
    }

    /// Samples of one unit of a batch.
    pub fn unit_size(&self) -> usize {
        if self.processor.kind == ProcessorKind::Grouped {
            self.batch.group_size
        } else {
            1
        }
    }

    /// Whether samples must be drawn from the model's own distribution: the recorded log-probabilities are then those of the
    /// policy that sampled, which importance ratios and corrections assume.
    pub fn wants_plain_sampling(&self) -> bool {
        self.processor.tokens
            && !self.processor.any_sampling
            && self.trainer.backend == TrainerKind::Torch
            && self.objective.family != "sft"
    }

    /// Whether traffic can start a step.
    pub fn learns(&self) -> bool {
        self.processor.kind != ProcessorKind::None
    }
}
