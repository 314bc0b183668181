//! Reef: an inference server that is also a learner.
//!
//! Agents send their normal OpenAI or Anthropic traffic through it. Reef records every exchange, takes feedback on it,
//! turns the experience into candidate updates, evaluates each candidate, and releases the good ones, hot-updating
//! what it serves.
//!
//! The rooms, in reading order. Each room's first lines state its law: what it owns, what it never does, its door,
//! where its state lives and how it fails. `tests/tidy.rs` holds the rooms to the allowed imports.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

// The vocabulary: ids, records, reports, releases, verdicts. No input or output.
pub mod domain;
// The machine: clock, randomness, files, tasks, fail points.
pub mod sys;
// Logs, metrics and traces.
pub mod telemetry;

// The command line: one file per command, and every exit code.
pub mod cli;
// The deployment file and the command line become settings, each value with its source.
pub mod config;
// The terminal dashboard.
pub mod dash;
// What answers a request: an upstream provider or the embedded model.
pub mod engine;
// Task suites, graders, paired comparison, the gate.
pub mod eval;
// The SQLite store of everything served and said about it.
pub mod experience;
// Agents' harness trees: rendering, installing, evolving.
pub mod harness;
// What a recipe is made of, and the built-in ones.
pub mod recipe;
// The chain of releases in a git repository with LFS.
pub mod release;
// The loop itself: one driver per scenario, the only publisher.
pub mod scenario;
// The HTTP service.
pub mod serve;
// Batches become optimizer steps and candidates.
pub mod train;
