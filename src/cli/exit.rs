//! Exit codes: an API for scripts.

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// Done.
    Ok,
    /// A fault of Reef itself, or one nobody foresaw.
    Unexpected,
    /// Wrong usage or configuration.
    Usage,
    /// Nothing to do.
    Nothing,
    /// Done in part.
    Partial,
    /// The gate rejected the candidate.
    Rejected,
    /// The gate could not decide.
    Inconclusive,
    /// Too much could not be measured to say anything.
    Invalid,
    /// The head moved, or an id is taken by other content.
    Conflict,
    /// Published, but the engine still serves the old release.
    NotLive,
    /// The upstream or the server cannot be reached.
    Unavailable,
    /// The store failed.
    Store,
    /// Another process holds the lease.
    LeaseHeld,
    /// This build lacks the feature.
    NotCompiled,
    /// Interrupted.
    Interrupted,
    /// As the agent that was run ended.
    Agent(u8),
}

/// Every exit with its code and meaning, in the order of the reference.
pub const EXIT_CODES: [(Exit, u8, &str); 15] = [
    (Exit::Ok, 0, "done"),
    (Exit::Unexpected, 1, "unexpected error"),
    (Exit::Usage, 2, "wrong usage or configuration"),
    (Exit::Nothing, 3, "nothing to do"),
    (
        Exit::Partial,
        4,
        "done in part: some of the input was refused, each piece by name",
    ),
    (Exit::Rejected, 10, "the gate rejected the candidate"),
    (Exit::Inconclusive, 11, "the gate could not decide"),
    (
        Exit::Invalid,
        12,
        "the measurement is invalid: graders, tasks or the engine failed, which says nothing of the candidate",
    ),
    (
        Exit::Conflict,
        20,
        "conflict: the head moved, or the same id is stored with other content",
    ),
    (Exit::NotLive, 21, "published, but not yet served"),
    (Exit::Unavailable, 30, "the upstream or the server cannot be reached"),
    (Exit::Store, 40, "the store failed"),
    (Exit::LeaseHeld, 50, "another process holds the lease"),
    (Exit::NotCompiled, 60, "this build lacks the feature"),
    (Exit::Interrupted, 130, "interrupted"),
];

impl Exit {
    /// One word for JSON output.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Unexpected => "unexpected",
            Self::Usage => "usage",
            Self::Nothing => "nothing",
            Self::Partial => "partial",
            Self::Rejected => "rejected",
            Self::Inconclusive => "inconclusive",
            Self::Invalid => "invalid",
            Self::Conflict => "conflict",
            Self::NotLive => "not_live",
            Self::Unavailable => "unavailable",
            Self::Store => "store",
            Self::LeaseHeld => "lease_held",
            Self::NotCompiled => "not_compiled",
            Self::Interrupted => "interrupted",
            Self::Agent(_) => "agent",
        }
    }

    /// The process exit code.
    pub fn code(self) -> u8 {
        if let Self::Agent(code) = self {
            return code;
        }
        EXIT_CODES
            .iter()
            .find(|(exit, _, _)| *exit == self)
            .map_or(1, |(_, code, _)| *code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_listed_once() {
        let mut codes: Vec<u8> = EXIT_CODES.iter().map(|(_, code, _)| *code).collect();
        codes.sort_unstable();
        codes.dedup();
        assert_eq!(codes.len(), EXIT_CODES.len());
        assert_eq!(Exit::Conflict.code(), 20);
    }
}
