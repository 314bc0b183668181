//! Why something about a release did not work.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::domain::{ReleaseId, ScenarioName};
use crate::sys::format;

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
    /// Its content is not here.
    #[error("release {release} cannot be restored: {missing}")]
    NotRestorable {
        /// The release.
        release: ReleaseId,
        /// The first file of its content that is not here.
        missing: Missing,
    },
    /// A file of it is not here.
    #[error("a file of release {release} is not here: {missing}")]
    FileGone {
        /// The release.
        release: ReleaseId,
        /// The file.
        missing: Missing,
    },
    /// A directory that cannot become an artifact.
    #[error("{} cannot be part of an artifact: {problem}", .path.display())]
    BadContent {
        /// The file or directory at fault.
        path: PathBuf,
        /// The rule it breaks.
        problem: String,
    },
    /// A directory that should become an artifact and that its owner's own system will not show.
    #[error("{} cannot be part of an artifact: it cannot be read ({source})", .path.display())]
    Unreadable {
        /// The file or directory.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// What was named as a remote is not one.
    #[error("{url:?} is not a remote: {problem}")]
    BadRemote {
        /// What was written, without credentials.
        url: String,
        /// The rule it breaks.
        problem: &'static str,
    },
    /// What is stored is not what was released.
    #[error("release {release} is damaged: {problem}")]
    Damaged {
        /// The release.
        release: String,
        /// What is wrong with it.
        problem: String,
    },
    /// What a remote sends is not a chain of releases.
    #[error("{remote} sends release {release}, which is not taken in: {problem}")]
    Refused {
        /// The remote, without credentials.
        remote: String,
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

/// A large file that is not here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missing {
    /// The file.
    pub path: String,
    /// Its size.
    pub bytes: u64,
    /// Why it is not here.
    pub why: Why,
}

/// Why a large file is not here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Why {
    /// Retention took it.
    Thinned,
    /// It was never brought here, or it was lost.
    NotHere,
    /// A remote was asked for it, and does not have it.
    NotThere {
        /// The remote, without credentials.
        remote: String,
    },
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (path, size) = (&self.path, format::bytes(self.bytes));
        match &self.why {
            Why::Thinned => write!(
                f,
                "retention took its {path} ({size}); `reef release pull --objects all` brings it back from a remote that \
                 has it"
            ),
            Why::NotHere => write!(
                f,
                "its {path} ({size}) was never brought here, or is lost; `reef release pull --objects all` brings it \
                 from a remote that has it"
            ),
            Why::NotThere { remote } => write!(f, "{remote} does not have its {path} ({size})"),
        }
    }
}

/// What git, git-lfs, curl and ssh say when the other side does not answer, not now or not to us. Everything else they say is about
/// what was asked of them.
const UNREACHABLE: [&str; 31] = [
    "could not resolve",
    "no such host",
    "name or service not known",
    "temporary failure in name resolution",
    "connection refused",
    "connection reset",
    "connection closed",
    "connection timed out",
    "failed to connect",
    "couldn't connect",
    "could not connect",
    "network is unreachable",
    "no route to host",
    "dial tcp",
    "timeout",
    "timed out",
    "broken pipe",
    "unexpected eof",
    "early eof",
    "hung up unexpectedly",
    "ssl ",
    "tls: ",
    "x509",
    "returned error: 5",
    "server error",
    "service unavailable",
    "could not read from remote repository",
    "no answer in time",
    "authentication failed",
    "authorization error",
    "could not read username",
];

/// What they say when there is an answer, and it is that there is no such repository.
const NO_REPOSITORY: [&str; 3] = [
    "does not appear to be a git repository",
    "repository not found",
    "not a git repository",
];

/// Why a program failed, as far as its words tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    /// The other side does not answer, or not now: trying later may help.
    Unreachable,
    /// There is no repository where one was named.
    NoRepository,
    /// Anything else: what is stored, here or there, is not as it should be.
    Other,
}

impl ReleaseError {
    /// Why a program failed; `None` for any other failure.
    pub fn trouble(&self) -> Option<Trouble> {
        let Self::Command { output, .. } = self else {
            return None;
        };
        let said = output.to_ascii_lowercase();
        let says = |words: &[&str]| words.iter().any(|word| said.contains(word));
        Some(if says(&NO_REPOSITORY) {
            Trouble::NoRepository
        } else if says(&UNREACHABLE) {
            Trouble::Unreachable
        } else {
            Trouble::Other
        })
    }
}

fn shown(release: Option<&ReleaseId>) -> &str {
    release.map_or("no release", ReleaseId::as_str)
}

/// `map_err(io_at("read", path))`
pub(super) fn io_at(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ReleaseError {
    let path = path.to_path_buf();
    move |source| ReleaseError::Io { action, path, source }
}

/// `map_err(unreadable(path))`: something offered as content that its owner's own system will not show.
pub(super) fn unreadable(path: &Path) -> impl FnOnce(io::Error) -> ReleaseError {
    let path = path.to_path_buf();
    move |source| ReleaseError::Unreadable { path, source }
}

/// `map_err(git_at("write a blob"))`
pub(super) fn git_at(action: &'static str) -> impl FnOnce(git2::Error) -> ReleaseError {
    move |source| ReleaseError::Git { action, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_program_says_tells_whether_trying_later_helps() {
        for (output, trouble) in [
            (
                "fatal: unable to access 'http://127.0.0.1:9/x.git/': Failed to connect to 127.0.0.1 port 9",
                Trouble::Unreachable,
            ),
            (
                "ssh: connect to host h port 22: Connection refused\nfatal: Could not read from remote repository.",
                Trouble::Unreachable,
            ),
            (
                "batch response: Fatal error: Server error: http://h/objects/batch",
                Trouble::Unreachable,
            ),
            (
                "fatal: '/nonexistent/x.git' does not appear to be a git repository\nfatal: Could not read from remote repository.",
                Trouble::NoRepository,
            ),
            (
                "error transferring \"aa\": [0] remote missing object aa\nerror: failed to fetch some objects from 'file:///x'",
                Trouble::Other,
            ),
            ("expected OID aa, got bb after 7 bytes written", Trouble::Other),
        ] {
            let error = ReleaseError::Command {
                command: "git".to_owned(),
                status: "exit status: 2".to_owned(),
                output: output.to_owned(),
            };
            assert_eq!(error.trouble(), Some(trouble), "{output}");
        }
    }
}
