//! Law: agents' harness trees and their life on a user's machine. Owns entries, rendering, installing, proposals and
//! episodes; never moves a release head. State: install roots on the user's machine, `work/episodes`. Fails with one
//! line that says what was not changed.

pub mod adapter;
pub mod client;
pub mod episode;
pub mod evolve;
pub mod manifest;
pub mod pages;
pub mod sandbox;
pub mod tree;
