//! Law: the words of the project as types. Owns validation of names and ids; never does input or output, never reads
//! a clock. Door: everything public here. State: none. Fails with [`InvalidName`].

mod capture;
mod content;
mod dialect;
mod ids;
mod mode;
mod paths;
mod record;
mod release;
mod score;
mod turn;
mod verdict;

pub use capture::{LoadSpan, Sampler, TokenCapture, TopKToken};
pub use content::{Content, readable};
pub use dialect::{Dialect, Route};
pub use ids::{BatchId, ContentId, InvalidName, RecordId, ReleaseId, RuntimeLoadId, ScenarioName};
pub use mode::TrainingMode;
pub use paths::{LONGEST_PATH, name_fault, path_fault};
pub use record::{FrozenRelease, NewExchange, NewReport, RequestType, Tags, Timings};
pub use release::{ContentKind, Operation};
pub use score::{LARGEST_SCORE, SCORE_RULE, is_score, mean_score};
pub use turn::{ToolCall, Turn, Usage};
pub use verdict::{Outcome, PairedScore, Verdict};
