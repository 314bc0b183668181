//! The sections of the deployment file, one file each. To add a setting, declare it in its section; reading,
//! `--print-config`, the reference and the JSON Schema follow. After a change run
//! `REEF_UPDATE_DOCS=1 cargo test --test docs`.

mod evaluation;
mod executors;
mod harness;
mod inference;
mod network;
mod observability;
mod recipe;
mod reef;
mod release;
mod storage;
mod training;

pub use evaluation::Evaluation;
pub use executors::Executors;
pub use harness::Harness;
pub use inference::{EngineKind, Fallback, Inference, Precision, SwapPolicy, ToolCallFormat, UpstreamApi};
pub use network::Network;
pub use observability::{LogFormat, Observability};
pub use recipe::{RECIPE_SHORT, RECIPE_TABLES, RecipeChoice, recipe_keys};
pub use reef::{Reef, StreamReceipt};
pub use release::{OlderReleases, Release};
pub use storage::{FileAccess, OnFailure, Storage};
pub use training::{Training, TrainingModeChoice};
