//! Objectives: the mathematics of learning as pure functions. Advantage estimators and controllers are plain f64
//! arithmetic; losses are functions of tensors of any kind and device. Nothing here holds state, samples or reads a
//! clock. Every formula with its source is in `docs/design/objectives.md`.

pub mod advantage;
pub mod kl_control;

mod kinds;
mod settings;

pub use kinds::{Correction, KlEstimator, Reduction, SequenceMeasure, Surrogate};
pub use settings::{AdvantageSettings, CriticSettings, FAMILIES, KlPlace, KlSettings, ObjectiveSettings, OldPolicy};

#[cfg(feature = "torch")]
pub mod centering;
#[cfg(feature = "torch")]
pub mod correction;
#[cfg(feature = "torch")]
pub mod divergence;
#[cfg(feature = "torch")]
pub mod reduce;
#[cfg(feature = "torch")]
pub mod surrogate;
#[cfg(feature = "torch")]
pub mod tensor;

#[cfg(all(test, feature = "torch"))]
mod enumeration_tests;
#[cfg(all(test, feature = "torch"))]
mod fixture_tests;
#[cfg(all(test, feature = "torch"))]
mod golden_tests;
