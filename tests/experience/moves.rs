//! The states of attempts and proposals in the store: whatever is written in whatever order, only the moves of the table
//! happen, and what ended stays as it ended.

use proptest::prelude::*;
use reef::domain::ReleaseId;
use reef::experience::{AttemptChange, AttemptState, NewAttempt, NewProposal, ProposalState};
use serde_json::json;

use super::{open, scenario, store_with};

fn base() -> ReleaseId {
    ReleaseId::new("r-1").unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn attempts_move_by_the_table_alone(
        words in prop::collection::vec(prop_oneof![9 => (0..9_usize).prop_map(Some), 1 => Just(None)], 1..24)
    ) {
        let dir = tempfile::tempdir().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut store = store_with(dir.path(), &["s"]).await;
            let begin = || NewAttempt {
                id: "b-1".into(),
                scenario: scenario("s"),
                source: "failures",
                request: None,
                base: base(),
            };
            store.attempt_begin(begin()).await.unwrap();
            let mut now = AttemptState::Queued;
            for (n, word) in words.into_iter().enumerate() {
                let Some(word) = word else {
                    // What a process that takes over does first.
                    drop(store);
                    store = open(dir.path());
                    store.attempt_begin(begin()).await.unwrap();
                    continue;
                };
                let to = AttemptState::ALL[word];
                let change = AttemptChange {
                    state: Some(to),
                    outcome: Some(format!("write {n}")),
                    ..AttemptChange::default()
                };
                let written = store.attempt_change("b-1".into(), change).await;
                let allowed = to == now || now.next().contains(&to);
                prop_assert_eq!(written.is_ok(), allowed, "{:?} to {:?}: {:?}", now, to, written);
                let stored = store.attempts(&scenario("s"), 5).unwrap().remove(0);
                if allowed {
                    now = to;
                } else {
                    prop_assert_ne!(stored.outcome, Some(format!("write {n}")), "a refused write changes nothing");
                }
                prop_assert_eq!(stored.state, now);
            }
            Ok(())
        })?;
    }

    #[test]
    fn proposals_move_by_the_table_alone(refused in any::<bool>(), words in prop::collection::vec(0..4_usize, 1..16)) {
        let dir = tempfile::tempdir().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let store = store_with(dir.path(), &["s"]).await;
            let new = NewProposal {
                id: "p-1".into(),
                scenario: scenario("s"),
                mutations: json!([]),
                reason: "why".into(),
                session: String::new(),
                client_release: String::new(),
                head: base(),
                refused: refused.then(|| "not admitted".to_owned()),
                most_waiting: 5,
            };
            prop_assert!(store.proposal_add(new).await.unwrap());
            let mut now = if refused { ProposalState::Refused } else { ProposalState::Waiting };
            for (n, word) in words.into_iter().enumerate() {
                let to = ProposalState::ALL[word];
                let written = store.proposal_set("p-1".into(), to, Some(format!("write {n}"))).await;
                let allowed = to == now || now.next().contains(&to);
                prop_assert_eq!(written.is_ok(), allowed, "{:?} to {:?}: {:?}", now, to, written);
                if allowed {
                    now = to;
                }
                let stored = store.proposal("p-1").unwrap().unwrap();
                prop_assert_eq!(stored.state, now);
                let waits = matches!(now, ProposalState::Waiting | ProposalState::Claimed);
                prop_assert_eq!(store.proposal_next(&scenario("s")).unwrap().is_some(), waits);
            }
            Ok(())
        })?;
    }
}
