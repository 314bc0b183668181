//! How one agent program is fed: which files it reads, how it starts, how it is bound to a model. An adapter is a data
//! file; nothing here knows an agent by name.

mod bind;
mod descriptor;
mod document;
mod error;
mod registry;
mod template;

pub use bind::{ModelBinding, WireApi};
pub use descriptor::{
    Adapter, AgentFormat, AgentSpec, Channel, Client, ConfigTarget, ExtraArguments, Files, Forbidden, HookSpec,
    Install, McpSpec, Pinned, StateFile, StateKind, Trajectory, WireModel,
};
pub use document::DocumentFormat;
pub use error::AdapterError;
pub use registry::Adapters;

pub(super) use descriptor::is_safe;
pub(super) use document::{merge, text};
pub(super) use template::fill;
