//! Law: what a recipe is made of (processor, objective, gate, surface), read from TOML, and the registry of built-in
//! ones. Decides nothing at run time, holds no tensors, does no I/O but reading recipe files. State: none. Fails with
//! faults that name file, line and key.

mod draft;
mod evolution;
mod gate;
mod model;
mod registry;
mod resolve;

#[cfg(test)]
mod tests;

pub use evolution::{EpisodeSpec, EvolutionBudget, EvolutionSpec, IsolationRule, PriceSpec, ProposerKind, PublishMode};
pub use gate::{EvaluatorKind, GateSpec, SelectorKind, Spending};
pub use model::{
    BatchSpec, BudgetSpec, ObjectiveSpec, ProcessorKind, ProcessorSpec, Recipe, SurfaceKind, SurfaceSpec, TrainerKind,
    TrainerSpec, Truncated,
};

/// The tables whose keys belong to the embedded trainer, with those it knows.
#[cfg(test)]
pub(crate) fn trainer_tables() -> Vec<(&'static str, &'static [&'static str])> {
    let own = ["trainer.optimizer", "trainer.lora", "trainer.settings"];
    let tables = crate::config::RECIPE_TABLES
        .iter()
        .filter(|(table, _)| own.contains(table));
    tables.copied().collect()
}
