//! Serving with the embedded model: requests in, tokens out. One engine thread owns weights and cache behind a bounded
//! queue; deciding (`state`, `slots`, `loads`, `sampler`) is pure and apart from doing (`actor`).

mod actor;
mod constraint;
mod engine;
mod handle;
mod loads;
mod prepare;
mod reply;
mod sampler;
mod sequence;
mod slots;
mod state;
mod vocabulary;

pub use engine::TorchEngine;
pub use handle::TorchHandle;
