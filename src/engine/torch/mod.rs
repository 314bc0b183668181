//! The embedded engine on libtorch. `model` is the network and its files; the parts beside it answer requests.

pub mod model;
mod serving;

pub use serving::{Dtype, OnSwap, Residency, TorchEngine, TorchError, TorchHandle, TorchOptions, TorchStatus};
