//! Law: owns the SQLite file with everything served and said about it, and is the only code that speaks SQL. One writer
//! thread with group commit, a pool of readers. Never serves HTTP, never touches git. A write is acknowledged only after
//! its transaction is on disk. Door: [`Experience`], what it takes and returns, [`StoreError`]. State: `experience.db`.
//! Fails with a typed store error; a full or unwritable disk is an error to the caller, never a panic and never a silent
//! loss.
//!
//! Writes are `async` and cancel-safe: dropping the future before the write is queued stores nothing, dropping it later
//! changes nothing. Reads are plain functions that block on the disk: call them off the asynchronous threads.

mod append;
mod attempts;
mod body;
mod canonical;
mod chat;
mod checkpoint;
mod consumption;
mod envelope;
mod error;
mod export;
mod filter;
mod health;
mod interruptions;
mod jobs;
mod moves;
mod naming;
mod pending;
mod pool;
mod proposals;
mod publications;
mod records;
mod releases;
mod retention;
mod scenarios;
mod schema;
mod store;
mod stories;
mod tally;
mod writer;

pub use append::{Appended, Insertion, NewInstruction};
pub use attempts::{Attempt, AttemptChange, AttemptEvent, NewAttempt, Spend};
pub use body::Bodies;
pub use chat::Repeats;
pub use consumption::{Consumed, Consumption};
pub use envelope::{Envelope, EnvelopeItem, MAX_IMPORT, parse_report};
pub use error::{ErrorClass, ReferenceFault, StoreError};
pub use filter::{Gist, RecordFilter};
pub use health::{Health, StoreMetrics};
pub use interruptions::{Interruption, InterruptionReason};
pub use jobs::{Job, JobStage, NewJob, Progress};
pub use moves::{AttemptState, ProposalState};
pub use naming::Named;
pub use pending::{LoopFacts, OpenFact, StepFact};
pub use proposals::{NewProposal, Proposal};
pub use publications::{Adopted, BatchUse, ChainState, OpenIntent, Settlement, UnreleasedStep};
pub use records::{Order, Record, RecordQuery, RecordRow};
pub use releases::{ChainEnds, ReleaseRow, ReleaseState, ReleasesWhere, StepQuery, StepRow};
pub use retention::{Pruned, Retention};
pub use scenarios::{Scenario, ScenarioCreated};
pub use store::{Experience, StoreOptions};
pub use stories::{AttemptStory, Failure, RequestStory};
pub use tally::Stats;
