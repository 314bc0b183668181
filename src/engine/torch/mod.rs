//! The embedded engine on libtorch. `model` is the network and its files; the parts beside it answer requests.

pub mod model;
