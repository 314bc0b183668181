//! Where attempts and proposals may go from where they are. The tables are the law: every write of a state is checked
//! against them, also what a process does for one that died.

use super::error::StoreError;

/// Where an attempt is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AttemptState {
    /// Waits for its turn.
    Queued,
    /// A proposer thinks.
    Proposing,
    /// Both trees run.
    Evaluating,
    /// The gate found it not better.
    Rejected,
    /// It came to nothing before the gate.
    Skipped,
    /// The gate selected it; it is about to be published.
    Won,
    /// A person decides.
    Held,
    /// It is a release.
    Published,
    /// It was a release and proved worse later.
    RolledBack,
}

/// Where a proposal is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ProposalState {
    /// For a step to take it up.
    Waiting,
    /// A step has it, or had it and is gone.
    Claimed,
    /// An attempt at it ended.
    Settled,
    /// It was not admitted.
    Refused,
}

use AttemptState as A;
use ProposalState as P;

/// From where an attempt may go on to where. A head that moves sends it back to the proposer, a verdict that is void back to
/// the episodes. Writing the same state again is no move.
const ATTEMPT_MOVES: [(A, &[A]); 9] = [
    (A::Queued, &[A::Proposing, A::Skipped]),
    // A gate without episodes decides at once.
    (
        A::Proposing,
        &[A::Evaluating, A::Rejected, A::Skipped, A::Held, A::Published],
    ),
    (A::Evaluating, &[A::Proposing, A::Won, A::Rejected, A::Skipped, A::Held]),
    // What won may still hold what no release may.
    (
        A::Won,
        &[A::Proposing, A::Evaluating, A::Rejected, A::Skipped, A::Published],
    ),
    // Once a person released it, it is what is served.
    (A::Held, &[A::RolledBack]),
    (A::Published, &[A::RolledBack]),
    (A::Rejected, &[]),
    (A::Skipped, &[]),
    (A::RolledBack, &[]),
];

/// The same for a proposal.
const PROPOSAL_MOVES: [(P, &[P]); 4] = [
    (P::Waiting, &[P::Claimed]),
    (P::Claimed, &[P::Settled]),
    (P::Settled, &[]),
    (P::Refused, &[]),
];

fn next<S: Copy + PartialEq>(table: &'static [(S, &'static [S])], from: S) -> &'static [S] {
    table
        .iter()
        .find(|(state, _)| *state == from)
        .map_or(&[][..], |(_, next)| *next)
}

/// Refuses a move that is not in the table.
fn check<S: Copy + PartialEq>(
    table: &'static [(S, &'static [S])],
    (what, id): (&str, &str),
    (from, to): (S, S),
    word: impl Fn(S) -> &'static str,
) -> Result<(), StoreError> {
    if from == to || next(table, from).contains(&to) {
        return Ok(());
    }
    Err(StoreError::Invalid {
        what: format!("{what} {id} is {} and cannot become {}", word(from), word(to)),
    })
}

impl AttemptState {
    /// Every state.
    pub const ALL: [Self; 9] = [
        Self::Queued,
        Self::Proposing,
        Self::Evaluating,
        Self::Rejected,
        Self::Skipped,
        Self::Won,
        Self::Held,
        Self::Published,
        Self::RolledBack,
    ];

    /// The word stored and shown.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Proposing => "proposing",
            Self::Evaluating => "evaluating",
            Self::Rejected => "rejected",
            Self::Skipped => "skipped",
            Self::Won => "won",
            Self::Held => "held",
            Self::Published => "published",
            Self::RolledBack => "rolled_back",
        }
    }

    /// Whether nothing more is done for it.
    pub fn is_settled(self) -> bool {
        matches!(
            self,
            Self::Rejected | Self::Skipped | Self::Held | Self::Published | Self::RolledBack
        )
    }

    /// Where it may go from here.
    pub fn next(self) -> &'static [Self] {
        next(&ATTEMPT_MOVES, self)
    }

    pub(super) fn check_move(self, to: Self, id: &str) -> Result<(), StoreError> {
        check(&ATTEMPT_MOVES, ("attempt", id), (self, to), Self::as_str)
    }

    pub(super) fn parse(text: &str) -> Result<Self, StoreError> {
        Self::ALL
            .into_iter()
            .find(|state| state.as_str() == text)
            .ok_or_else(|| StoreError::damaged(format_args!("attempt state {text}")))
    }
}

impl ProposalState {
    /// Every state.
    pub const ALL: [Self; 4] = [Self::Waiting, Self::Claimed, Self::Settled, Self::Refused];

    /// The word stored and shown.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Claimed => "claimed",
            Self::Settled => "settled",
            Self::Refused => "refused",
        }
    }

    /// Where it may go from here.
    pub fn next(self) -> &'static [Self] {
        next(&PROPOSAL_MOVES, self)
    }

    pub(super) fn check_move(self, to: Self, id: &str) -> Result<(), StoreError> {
        check(&PROPOSAL_MOVES, ("proposal", id), (self, to), Self::as_str)
    }

    pub(super) fn parse(text: &str) -> Result<Self, StoreError> {
        Self::ALL
            .into_iter()
            .find(|state| state.as_str() == text)
            .ok_or_else(|| StoreError::damaged(format_args!("proposal state {text}")))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::hash::Hash;

    use super::*;

    /// Everything that can be reached from a state.
    fn reach<S: Copy + Eq + Hash + 'static>(from: S, next: impl Fn(S) -> &'static [S]) -> HashSet<S> {
        let mut found = HashSet::from([from]);
        let mut open = vec![from];
        while let Some(state) = open.pop() {
            open.extend(next(state).iter().copied().filter(|state| found.insert(*state)));
        }
        found
    }

    #[test]
    fn every_state_is_in_the_table_once_and_is_written_as_it_is_read() {
        for state in A::ALL {
            assert_eq!(ATTEMPT_MOVES.iter().filter(|(from, _)| *from == state).count(), 1);
            assert_eq!(A::parse(state.as_str()).unwrap(), state);
            assert!(!state.next().contains(&state), "{state:?}: staying is no move");
        }
        for state in P::ALL {
            assert_eq!(PROPOSAL_MOVES.iter().filter(|(from, _)| *from == state).count(), 1);
            assert_eq!(P::parse(state.as_str()).unwrap(), state);
        }
        assert!(A::parse("lost").is_err() && P::parse("lost").is_err());
    }

    #[test]
    fn every_attempt_can_end_and_what_ended_stays_so() {
        assert_eq!(
            reach(A::Queued, A::next).len(),
            A::ALL.len(),
            "no state is out of reach"
        );
        for state in A::ALL {
            assert!(
                reach(state, A::next).into_iter().any(A::is_settled),
                "{state:?} can end"
            );
            // A release may go back; nothing else happens to what is settled.
            let allowed: &[A] = match state {
                A::Held | A::Published => &[A::RolledBack],
                _ => &[],
            };
            if state.is_settled() {
                assert_eq!(state.next(), allowed);
            }
        }
        assert_eq!(
            reach(P::Waiting, P::next),
            HashSet::from([P::Waiting, P::Claimed, P::Settled])
        );
        assert!(P::Settled.next().is_empty() && P::Refused.next().is_empty());
    }

    #[test]
    fn a_refused_move_says_what_and_from_where() {
        let error = A::Rejected.check_move(A::Published, "batch-1").unwrap_err();
        assert_eq!(
            error.to_string(),
            "attempt batch-1 is rejected and cannot become published"
        );
        assert!(A::Rejected.check_move(A::Rejected, "batch-1").is_ok());
    }
}
