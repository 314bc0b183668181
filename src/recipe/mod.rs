//! Law: what a recipe is made of (processor, objective, gate, surface), read from TOML, and the registry of built-in
//! ones. Decides nothing at run time, holds no tensors, does no I/O but reading recipe files. State: none. Fails with an
//! error that names the recipe file and key.

mod error;
mod evolution;
mod gate;
mod model;
mod registry;
mod resolve;

pub use error::RecipeError;
pub use evolution::{EpisodeSpec, EvolutionBudget, EvolutionSpec, IsolationRule, PriceSpec, ProposerKind, PublishMode};
pub use gate::{EvaluatorKind, GateSpec, SelectorKind, Spending};
pub use model::{
    BatchSpec, BudgetSpec, ObjectiveSpec, ProcessorKind, ProcessorSpec, Recipe, SurfaceKind, SurfaceSpec, TrainerKind,
    TrainerSpec, Truncated,
};
