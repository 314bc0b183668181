//! `recipe`

use crate::config::{Table, section};

section! {
    /// How experience becomes updates. Without a recipe Reef only records.
    pub RecipeChoice in "recipe" {
        /// A built-in recipe's name, the dotted reference of one (`recipes.sao.recipe:SAORecipe`), or the path of a
        /// `recipe.toml`. `reef.recipe` is the same setting.
        implementation: Option<String>, env "REEF_RECIPE";
        /// The recipe's own settings. Keys beside `reef.recipe` in the section `reef` count as these.
        config: Table = {};
    }
}

/// Settings of a recipe that may stand flat beside `reef.recipe`, and the keys they stand for.
pub const RECIPE_SHORT: [(&str, &str); 15] = [
    ("batch_size", "batch.size"),
    ("groups_per_step", "batch.size"),
    ("rollouts_per_group", "batch.group-size"),
    ("max_staleness", "batch.max-staleness"),
    ("max_wait_s", "batch.max-wait-s"),
    ("holdout", "batch.holdout"),
    ("training_mode", "training-mode"),
    ("session_ttl_s", "processor.session-ttl-s"),
    ("multi_turn", "processor.multi-turn"),
    ("accept_multi_turn_policy_samples", "processor.multi-turn"),
    ("max_score", "processor.maximum-score"),
    ("selection", "gate.selector"),
    ("alpha", "gate.alpha"),
    ("maximum_pairs", "gate.maximum-pairs"),
    ("max_steps", "budget.maximum-steps"),
];

/// The tables of a recipe with their keys. The room of recipes holds this to what it reads.
pub const RECIPE_TABLES: &[(&str, &[&str])] = &[
    (
        "processor",
        &[
            "kind",
            "tokens",
            "any-sampling",
            "multi-turn",
            "scaffold-tolerance",
            "realign-threshold",
            "exclusive-sources",
            "skip-equal-scores",
            "minimum-score",
            "maximum-score",
            "truncated",
            "session-ttl-s",
            "command",
            "timeout-s",
        ],
    ),
    (
        "batch",
        &[
            "size",
            "group-size",
            "max-wait-s",
            "max-staleness",
            "accept-imported",
            "holdout",
            "maximum-pending",
        ],
    ),
    ("objective", &["family", "settings"]),
    (
        "trainer",
        &[
            "backend",
            "command",
            "timeout-s",
            "carry-undecided",
            "optimizer",
            "lora",
            "settings",
        ],
    ),
    (
        "trainer.optimizer",
        &[
            "learning_rate",
            "beta1",
            "beta2",
            "epsilon",
            "weight_decay",
            "max_grad_norm",
            "schedule",
        ],
    ),
    ("trainer.lora", &["rank", "alpha", "targets", "seed"]),
    (
        "trainer.settings",
        &[
            "precision",
            "placement",
            "token_budget",
            "head_chunk",
            "recompute",
            "memory_mib",
            "threads",
            "niceness",
            "max_tokens",
        ],
    ),
    (
        "gate",
        &[
            "selector",
            "evaluator",
            "suite",
            "command",
            "alpha",
            "spending",
            "minimum-effect",
            "minimum-pairs",
            "maximum-pairs",
            "maximum-invalid",
            "reference",
            "protected-repeats",
            "protected-maximum",
            "protected-tolerance",
            "floor-score",
            "margin",
            "repeats",
            "score-range",
            "timeout-s",
            "parallel",
        ],
    ),
    ("surface", &["kind"]),
    (
        "budget",
        &["maximum-steps", "steps-per-hour", "tokens-per-hour", "failure-streak"],
    ),
    (
        "evolution",
        &[
            "proposer",
            "command",
            "model",
            "timeout-s",
            "kinds",
            "publish",
            "review-kinds",
            "memory",
            "maximum-pending",
            "binary",
            "episode-model",
            "episode",
            "budget",
            "prices",
            "baseline-hours",
            "recheck-every",
            "sentinels",
        ],
    ),
    (
        "evolution.episode",
        &[
            "timeout-s",
            "calls",
            "tokens",
            "disk-mb",
            "memory-mb",
            "processes",
            "cpus",
            "isolation",
        ],
    ),
    (
        "evolution.budget",
        &[
            "proposer-calls",
            "episodes",
            "tokens",
            "cost",
            "episodes-per-day",
            "tokens-per-day",
            "cost-per-day",
        ],
    ),
];

/// Every setting of a recipe by the key that it has below `reef` or `recipe.config`: the short ones, the tables, and
/// what is in them.
pub fn recipe_keys() -> impl Iterator<Item = String> {
    let short = RECIPE_SHORT.iter().map(|(name, _)| (*name).to_owned());
    let tables = RECIPE_TABLES.iter().map(|(table, _)| (*table).to_owned());
    let keys = RECIPE_TABLES
        .iter()
        .flat_map(|(table, keys)| keys.iter().map(move |key| format!("{table}.{key}")));
    short.chain(tables).chain(keys)
}
