//! The embedded engine on libtorch. `model` is the network and its files; `serving` answers requests with it. Without
//! the feature `torch` the same small door stands, and starting says how to rebuild.

#[cfg(feature = "torch")]
pub mod model;
mod options;
#[cfg(feature = "torch")]
mod serving;

#[cfg(not(feature = "torch"))]
mod disabled;

#[cfg(not(feature = "torch"))]
pub use disabled::{TorchEngine, TorchHandle, bench_model};
#[cfg(feature = "torch")]
pub use model::bench_model;
pub use options::{
    ComputeDevice, Dtype, OnSwap, Residency, SamplingDefaults, ToolCallFormat, TorchError, TorchOptions, TorchStatus,
};
#[cfg(feature = "torch")]
pub use serving::{TorchEngine, TorchHandle};
