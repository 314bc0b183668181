//! Why something about a release did not work.

use std::io;
use std::path::{Path, PathBuf};

use crate::domain::{ReleaseId, ScenarioName};

/// A failure of the release chain. It is rendered once, at the edge.
#[derive(Debug, thiserror::Error)]
pub enum ReleaseError {
    /// The head is not what the publisher built on.
    #[error("the head of scenario {scenario} moved: expected {}, found {}", shown(.expected.as_ref()), shown(.actual.as_ref()))]
    Conflict {
        /// The scenario.
        scenario: ScenarioName,
        /// What the publisher built on.
        expected: Option<ReleaseId>,
        /// What is there.
        actual: Option<ReleaseId>,
    },
    /// Two repositories went on from one release in different ways.
    #[error("{remote} has release {found} of scenario {scenario}, which is not a continuation of the chain here")]
    Diverged {
        /// The scenario.
        scenario: ScenarioName,
        /// The other repository.
        remote: String,
        /// Its head.
        found: ReleaseId,
    },
    /// No such release or scenario.
    #[error("{what} is not in this repository")]
    NotFound {
        /// What was asked for, with its kind.
        what: String,
    },
    /// A short id fits several releases.
    #[error("release id {prefix} fits more than one release: write more of it")]
    Ambiguous {
        /// What was written.
        prefix: String,
    },
    /// Its content is gone by retention, or was never saved.
    #[error("release {release} cannot be restored: {reason}")]
    NotRestorable {
        /// The release.
        release: ReleaseId,
        /// Why, and what would bring it back.
        reason: String,
    },
    /// A directory that cannot become an artifact.
    #[error("{} cannot be part of an artifact: {problem}", .path.display())]
    BadContent {
        /// The file or directory at fault.
        path: PathBuf,
        /// The rule it breaks.
        problem: String,
    },
    /// What is stored is not what was released.
    #[error("release {release} is damaged: {problem}")]
    Damaged {
        /// The release.
        release: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A program Reef needs is not there.
    #[error("{program} is needed for releases and cannot be run ({problem}): {fix}")]
    Program {
        /// Its name.
        program: &'static str,
        /// What happened.
        problem: String,
        /// How to get it.
        fix: &'static str,
    },
    /// A program ran and failed.
    #[error("`{command}` failed ({status}): {output}")]
    Command {
        /// The command, without credentials.
        command: String,
        /// How it ended.
        status: String,
        /// The end of what it said.
        output: String,
    },
    /// Another process has held a lock for too long.
    #[error("{} is locked by another process: try again, or look for a git command that hangs", .path.display())]
    Locked {
        /// The lock.
        path: PathBuf,
    },
    /// A file could not be read or written.
    #[error("cannot {action} {}", .path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// libgit2 refused.
    #[error("cannot {action} in the artifact repository")]
    Git {
        /// What was tried.
        action: &'static str,
        /// The cause.
        #[source]
        source: git2::Error,
    },
}

fn shown(release: Option<&ReleaseId>) -> &str {
    release.map_or("no release", ReleaseId::as_str)
}

/// `map_err(io_at("read", path))`
pub(super) fn io_at(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ReleaseError {
    let path = path.to_path_buf();
    move |source| ReleaseError::Io { action, path, source }
}

/// `map_err(git_at("write a blob"))`
pub(super) fn git_at(action: &'static str) -> impl FnOnce(git2::Error) -> ReleaseError {
    move |source| ReleaseError::Git { action, source }
}
