//! Serving with the embedded model: requests in, tokens out. One engine thread owns weights and cache behind a bounded
//! queue; deciding (`state`, `slots`, `loads`, `sampler`) is pure and apart from doing (`actor`).

mod actor;
mod constraint;
mod engine;
mod handle;
mod loads;
mod options;
mod prepare;
mod reply;
mod sampler;
mod sequence;
mod slots;
mod state;
mod vocabulary;

pub use actor::OnSwap;
pub use engine::TorchEngine;
pub use handle::{TorchHandle, TorchStatus};
pub use loads::Residency;
pub use options::{Dtype, TorchError, TorchOptions};
