//! Law: the machine behind a thin door, so that the other rooms stay testable. Owns time, randomness, durable file
//! writes, fail points, child programs, the way out to the network and what acts on a terminal; knows nothing of Reef's
//! words. It alone starts programs ([`launch`]). State: none. Fails with `std::io::Error`.

pub mod access;
pub mod clock;
pub mod disk;
pub mod durable;
pub mod failpoint;
pub mod first;
pub mod format;
pub mod json;
pub mod launch;
pub mod leave;
pub mod lfs;
pub mod manager;
pub mod net;
pub mod program;
pub mod random;
pub mod regular;
pub mod signals;
pub mod task;
pub mod terminal;
