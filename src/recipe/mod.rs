//! Law: what a recipe is made of (processor, objective, gate, surface), read from TOML, and the registry of built-in
//! ones. Decides nothing at run time, holds no tensors, does no I/O but reading recipe files. State: none. Fails with an
//! error that names the recipe file and key.

mod gate;

pub use gate::{EvaluatorKind, GateSpec, SelectorKind, Spending};
