//! The walls around the chain: hostile remotes, what an older version let in, names, directories that may only be read,
//! and many processes and clients at once. A corpus of hostile releases is kept in `tests/fixtures/chains`; what a run
//! makes up (`REEF_FUZZ_CASES` of them) and should not have got through belongs there.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failed test may panic"
)]

mod common;

#[path = "chain_walls/forge.rs"]
mod forge;
#[path = "chain_walls/names.rs"]
mod names;
#[path = "chain_walls/pulled.rs"]
mod pulled;
#[path = "chain_walls/read_only.rs"]
mod read_only;
#[path = "release/rig.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod rig;
#[path = "chain_walls/stored.rs"]
mod stored;
#[path = "chain_walls/storm.rs"]
mod storm;
