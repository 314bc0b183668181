//! Agents on a user's machine: installing a served tree, running the real agent on it through a loopback proxy that
//! keeps the token, and reporting how a run went.
//!
//! Everything of one installation is below one directory, `<data>/harness/<adapter>/<scenario>`:
//!
//! ```text
//! install.json      where it came from and how to run it; no secret
//! token             the service's token, mode 0600
//! env               variables that `setup` was told, mode 0600
//! setup.json        which requirements were checked off
//! <release>/        the files of one release, read-only, with their checksums; the last three are kept
//! current           a link to the release in use; changing it is the whole of an update
//! state/            what the agent itself keeps: sessions, settings, onboarding
//! root-<n>/         what the n-th session at the same time runs on: the release, the model, the agent's own files
//! runs/             one file for each run with its receipts; reports that wait for the service
//! ```

mod agent;
mod error;
mod exposure;
mod files;
mod install;
mod layout;
mod manifest;
mod mount;
mod proxy;
mod receipt;
mod release;
mod remove;
mod report;
mod requirement;
mod run;
mod service;
mod signals;
mod spool;
mod stub;

pub use agent::{AgentProgram, AgentSource, TOKEN_VARIABLE, obtain};
pub use error::{ClientError, Kind};
pub use exposure::exposed;
pub use install::{Installed, Request, install, refuse, rollback};
pub use layout::{Home, Place, Record, installations};
pub use manifest::{Manifest, Requirement};
pub use release::{Version, check_release, versions};
pub use remove::{Removed, uninstall};
pub use report::{Grade, Grades, Reported, flush, grades, report};
pub use requirement::{Check, CheckOffs, set_env, stored_env};
pub use run::{Finished, RunOptions, effective_token, program_help, requirements, run, unmet};
pub use service::{Known, Service};
pub use spool::{Run, Spool, Turn};
