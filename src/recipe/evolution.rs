//! The `[evolution]` table: how a harness tree is changed, and what that may cost.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::gate::Rule;

/// Who proposes changes of a tree, besides agents and people.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProposerKind {
    /// A model reflects on what went wrong.
    #[default]
    Reflect,
    /// An external program (JSON lines).
    Program,
    /// Nobody: only proposals of agents and people are tried.
    None,
}

/// What becomes of a candidate the gate selected.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PublishMode {
    /// It is released.
    #[default]
    Auto,
    /// It is held until a person decides.
    Review,
}

/// How episodes are kept apart from this machine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum IsolationRule {
    /// In namespaces, or not at all.
    #[default]
    Required,
    /// In namespaces where the machine gives them; elsewhere only trees that bring no code of their own are run.
    Preferred,
    /// Without namespaces, whatever the tree brings. For machines that are thrown away.
    Off,
}

/// What a model costs, per million tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PriceSpec {
    /// A million tokens in.
    pub input: f64,
    /// A million tokens out.
    pub output: f64,
}

/// What one episode may use.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct EpisodeSpec {
    /// Seconds the agent may take.
    pub timeout_s: f64,
    /// Calls of the model.
    pub calls: u64,
    /// Tokens in and out.
    pub tokens: u64,
    /// Megabytes it may write.
    pub disk_mb: u64,
    /// Megabytes of memory of all its processes.
    pub memory_mb: u64,
    /// Processes and threads at one time.
    pub processes: u64,
    /// Processors that it may keep busy, where control groups can hold that; any number without.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus: Option<f64>,
    /// How it is kept apart.
    pub isolation: IsolationRule,
}

impl Default for EpisodeSpec {
    fn default() -> Self {
        Self {
            timeout_s: 600.0,
            calls: 60,
            tokens: 2_000_000,
            disk_mb: 512,
            memory_mb: 2048,
            processes: 256,
            cpus: None,
            isolation: IsolationRule::Required,
        }
    }
}

/// What evolution may cost. Automatic steps stop at a limit; an instruction still runs within the limits of its step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct EvolutionBudget {
    /// Calls of a proposer's model in one step.
    pub proposer_calls: u64,
    /// Episodes of one step.
    pub episodes: u64,
    /// Tokens of one step, episodes included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// Money of one step, by `prices`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<f64>,
    /// Episodes of one day.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub episodes_per_day: Option<u64>,
    /// Tokens of one day.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens_per_day: Option<u64>,
    /// Money of one day, by `prices`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost_per_day: Option<f64>,
}

impl Default for EvolutionBudget {
    fn default() -> Self {
        Self {
            proposer_calls: 8,
            episodes: 400,
            tokens: None,
            cost: None,
            episodes_per_day: None,
            tokens_per_day: None,
            cost_per_day: None,
        }
    }
}

/// `[evolution]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct EvolutionSpec {
    /// Who proposes.
    pub proposer: ProposerKind,
    /// Program and arguments of `program`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// The model that reflects; the served one without it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Seconds one call of it, or the whole program, may take.
    pub timeout_s: f64,
    /// The kinds of entries a proposer may touch.
    pub kinds: Vec<String>,
    /// What becomes of a selected candidate.
    pub publish: PublishMode,
    /// Kinds whose change a person must approve.
    pub review_kinds: Vec<String>,
    /// Earlier attempts a proposer is told of.
    pub memory: u32,
    /// Proposals of agents and people that may wait.
    pub maximum_pending: u32,
    /// The agent's program on this machine; found on the search path without it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub binary: Option<String>,
    /// The model episodes run with; the served one without it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub episode_model: Option<String>,
    /// What one episode may use.
    pub episode: EpisodeSpec,
    /// What evolution may cost.
    pub budget: EvolutionBudget,
    /// Prices by model; `*` is every other model.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub prices: BTreeMap<String, PriceSpec>,
    /// Hours for which scores of the served tree are used again; 0 measures it anew for every candidate.
    pub baseline_hours: f64,
    /// After so many steps the served tree is compared with the one it replaced, which comes back if it is better now;
    /// 0 never.
    pub recheck_every: u64,
    /// Share of the scores used again that are measured all the same, to notice that the model behind them changed.
    pub sentinels: f64,
}

impl Default for EvolutionSpec {
    fn default() -> Self {
        let words = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect();
        Self {
            proposer: ProposerKind::Reflect,
            command: Vec::new(),
            model: None,
            timeout_s: 600.0,
            kinds: words(&["rules", "skill", "agent_command", "memory"]),
            publish: PublishMode::Auto,
            review_kinds: words(&["code_extension", "hook", "mcp_server"]),
            memory: 25,
            maximum_pending: 8,
            binary: None,
            episode_model: None,
            episode: EpisodeSpec::default(),
            budget: EvolutionBudget::default(),
            prices: BTreeMap::new(),
            baseline_hours: 0.0,
            recheck_every: 0,
            sentinels: 0.2,
        }
    }
}

impl EvolutionSpec {
    /// The rules of this table.
    pub(super) fn rules(&self) -> Vec<Rule> {
        let (episode, budget) = (&self.episode, &self.budget);
        let money = |cost: Option<f64>| cost.is_some_and(|cost| !(cost >= 0.0 && cost.is_finite()));
        let faults = [
            (
                self.proposer == ProposerKind::Program && self.command.is_empty(),
                "command",
                "is needed when evolution.proposer is program",
            ),
            (
                !(self.timeout_s > 0.0 && self.timeout_s <= 86_400.0),
                "timeout-s",
                "must be above 0 and at most 86400",
            ),
            (
                !(episode.timeout_s > 0.0 && episode.timeout_s <= 86_400.0),
                "episode.timeout-s",
                "must be above 0 and at most 86400",
            ),
            (episode.calls == 0, "episode.calls", "must be at least 1"),
            (episode.tokens == 0, "episode.tokens", "must be at least 1"),
            (episode.disk_mb == 0, "episode.disk-mb", "must be at least 1"),
            (episode.memory_mb == 0, "episode.memory-mb", "must be at least 1"),
            (episode.processes < 8, "episode.processes", "must be at least 8"),
            (
                episode.cpus.is_some_and(|cpus| !(0.01..=10_000.0).contains(&cpus)),
                "episode.cpus",
                "must be between 0.01 and 10000",
            ),
            (budget.episodes == 0, "budget.episodes", "must be at least 1"),
            (
                budget.proposer_calls == 0,
                "budget.proposer-calls",
                "must be at least 1",
            ),
            (money(budget.cost), "budget.cost", "must be a finite number, 0 or more"),
            (
                money(budget.cost_per_day),
                "budget.cost-per-day",
                "must be a finite number, 0 or more",
            ),
            (
                self.prices.values().any(|price| {
                    !(price.input >= 0.0 && price.input.is_finite() && price.output >= 0.0 && price.output.is_finite())
                }),
                "prices",
                "must be finite numbers, 0 or more",
            ),
            (
                (budget.cost.is_some() || budget.cost_per_day.is_some()) && self.prices.is_empty(),
                "prices",
                "are needed for a budget of money",
            ),
            (
                !(self.baseline_hours >= 0.0 && self.baseline_hours.is_finite()),
                "baseline-hours",
                "must be a finite number, 0 or more",
            ),
            (
                !(0.0..=1.0).contains(&self.sentinels),
                "sentinels",
                "must be between 0 and 1",
            ),
        ];
        let related = |key: &str| -> &'static [&'static str] {
            match key {
                "command" => &["evolution.proposer"],
                "prices" => &["evolution.budget.cost", "evolution.budget.cost-per-day"],
                _ => &[],
            }
        };
        faults
            .into_iter()
            .map(|(broken, key, rule)| (broken, key, related(key), rule))
            .collect()
    }
}
