//! Law: shows, never decides. Reads the store and the chain read-only, or a server's status over HTTP; holds no write
//! lock; what a person decides is done by whoever it was given, as `reef release` does it. Door: [`run`] with a
//! [`Source`]: [`Files`] or [`Remote`]. State: the screen. The terminal is restored on every way out.

mod app;
mod changes;
mod cursor;
mod event;
mod evolution;
mod files;
mod history;
mod input;
mod keys;
mod page;
mod pages;
mod plain;
mod read;
mod remote;
mod rows;
mod run;
mod series;
mod snapshot;
mod source;
mod terminal;
mod text;
mod theme;
mod view;

pub use files::{Files, FilesAt, Outside, Running, record_facts};
pub use pages::{chain_page, records_page, training_page};
pub use plain::plain_lines;
pub use remote::{Fetch, Remote};
pub use run::{DashError, DashOptions, run};
pub use snapshot::{Evidence, Focus, RecordFacts, Snapshot};
pub use source::{Choice, Decision, Fault, Source, Want};
pub use theme::Theme;

#[cfg(test)]
mod edges_tests;
#[cfg(test)]
mod pictures;
#[cfg(test)]
mod sample;
#[cfg(test)]
mod screens_tests;
