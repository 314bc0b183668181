//! The release chain: what stock git and git-lfs see of it, races, crashes, hostile configuration.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failed test may panic"
)]

#[path = "release/again.rs"]
mod again;
#[path = "release/backup.rs"]
mod backup;
#[path = "release/bench.rs"]
mod bench;
#[path = "release/chain.rs"]
mod chain;
#[path = "release/crash.rs"]
mod crash;
#[path = "release/import.rs"]
mod import;
#[path = "release/lost.rs"]
mod lost;
#[path = "release/publish.rs"]
mod publish;
#[path = "release/race.rs"]
mod race;
#[path = "release/refs.rs"]
mod refs;
#[path = "release/remote.rs"]
mod remote;
#[path = "release/rig.rs"]
mod rig;
#[path = "release/room.rs"]
mod room;
#[path = "release/service.rs"]
mod service;
#[path = "release/upkeep.rs"]
mod upkeep;
