//! What makes a step: the embedded trainer in this process or in a child.

#[cfg(feature = "torch")]
mod critic;
#[cfg(feature = "torch")]
mod head;
#[cfg(feature = "torch")]
mod policy;
#[cfg(feature = "torch")]
mod rows;
#[cfg(feature = "torch")]
mod step;
#[cfg(feature = "torch")]
mod torch;

#[cfg(feature = "torch")]
pub use torch::Trainer;

#[cfg(all(test, feature = "torch"))]
mod learning_tests;
#[cfg(all(test, feature = "torch"))]
mod testing;
#[cfg(all(test, feature = "torch"))]
mod tests;
