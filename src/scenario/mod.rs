//! Law: the loop itself. Owns which scenarios exist, what each serves, and the order of every commit: it is the only
//! publisher. One driver per scenario under a lease. State: rows in the store, refs in the repository, the live map in
//! memory. Fails with a typed error; every window between two durable states is repaired at the next start.

mod catalog;
mod checkup;
mod decisions;
mod directory;
mod drive;
mod live;
mod owner;
pub mod processor;
mod proposals;
mod publication;
mod publish;
mod publish_error;
mod publish_recovery;
mod room;
mod seed;
mod supervisor;
mod upkeep;
mod watch;

pub use catalog::{CatalogRow, catalog_row, commit_row};
pub use checkup::{Ailment, SETTLES_WITHIN, check_up, within};
pub use directory::{Directory, DirectoryError, HeadSync, OnMissing, ScenarioHandle};
pub use drive::{
    Answering, Ask, BaseModel, CONSUMER, Driver, Dropped, Ended, Hands, Lease, Live, LoopError, LoopEvent, Turn, Watch,
    Workshop, driver_of, drop_step,
};
pub use live::{TorchLive, files_of};
pub use proposals::{Answer, Inbox, Offer, OfferError};
pub use publish::{BaseSeed, Candidate, Published, Publisher};
pub use publish_error::PublishError;
pub use room::{Collected, Room, Thorough, survey};
pub use seed::{Seed, harness_component};
pub use supervisor::{LastStep, LoopBoard, LoopCounters, LoopState, Supervisor, supports};
pub use watch::{Activate, ServeAsIs};
