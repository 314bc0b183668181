//! Law: the HTTP service: routes, authentication, the streaming tee, error bodies in the caller's dialect. Owns no
//! durable state and no domain rule. Door: [`Server`], told by [`ServeOptions`], stopped by [`Shutdown`]. A receipt
//! leaves only after its record is durable. Fails a request, never the process.

mod admission;
mod answers;
mod api;
mod auth;
mod cors;
mod decode;
mod error;
mod exchange;
mod fetch;
mod harness;
mod headers;
mod import;
mod inference;
mod local;
mod metrics;
mod models;
mod options;
mod pass;
mod query;
mod receipt;
mod receive;
mod records;
mod relay;
mod releases;
mod reply;
mod report;
mod route;
mod scenarios;
mod server;
mod shutdown;
mod sniff;
mod state;
mod status;
mod stream;
mod train;

pub use api::provider_routes;
pub use harness::HarnessOptions;
pub use options::{OnStoreFailure, ServeOptions, StreamReceipt};
pub use server::{ServeError, Server, Stopped};
pub use shutdown::{LAST, Shutdown};

/// Largest body of the routes that take a few fields or imported records.
const SMALL_BODY: usize = 1024 * 1024;
