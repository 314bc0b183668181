//! Answers that come later: what was asked is kept until the request that fetches the answer comes, and an answer that is
//! fetched again keeps the receipt it has. Bounded, and in memory: what was asked before a restart is not known after it,
//! and the record of such an answer holds the answer alone.

use bytes::Bytes;
use indexmap::IndexMap;
use parking_lot::Mutex;
use sha2::{Digest, Sha256};

use crate::domain::{FrozenRelease, RecordId, Route, ScenarioName, Tags};

const MOST: usize = 10_000;
const MOST_BYTES: usize = 64 * 1024 * 1024;

/// What was asked.
#[derive(Debug, Clone)]
pub(super) struct Asked {
    pub(super) request: Bytes,
    pub(super) release: FrozenRelease,
    pub(super) tags: Tags,
}

#[derive(Debug, Clone)]
enum Known {
    Waiting(Box<Asked>),
    Recorded(RecordId),
}

/// Answers by the provider's id of them, oldest first.
#[derive(Debug, Default)]
pub(super) struct Answers(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    known: IndexMap<(ScenarioName, String), Known>,
    bytes: usize,
}

impl Answers {
    /// The provider will have the answer later.
    pub(super) fn wait(&self, scenario: &ScenarioName, response: &str, asked: Asked) {
        self.put(scenario, response, Known::Waiting(Box::new(asked)));
    }

    /// The answer has its record.
    pub(super) fn recorded(&self, scenario: &ScenarioName, response: &str, id: &RecordId) {
        self.put(scenario, response, Known::Recorded(id.clone()));
    }

    /// The record the answer has.
    pub(super) fn receipt(&self, scenario: &ScenarioName, response: &str) -> Option<RecordId> {
        match self.0.lock().known.get(&key(scenario, response))? {
            Known::Recorded(id) => Some(id.clone()),
            Known::Waiting(_) => None,
        }
    }

    /// What was asked for the answer.
    pub(super) fn asked(&self, scenario: &ScenarioName, response: &str) -> Option<Asked> {
        match self.0.lock().known.get(&key(scenario, response))? {
            Known::Waiting(asked) => Some((**asked).clone()),
            Known::Recorded(_) => None,
        }
    }

    /// Forgets what was asked: there will be no answer. Says whether it waited.
    pub(super) fn give_up(&self, scenario: &ScenarioName, response: &str) -> bool {
        self.0.lock().take(&key(scenario, response))
    }

    fn put(&self, scenario: &ScenarioName, response: &str, known: Known) {
        self.0.lock().put(key(scenario, response), known);
    }
}

fn key(scenario: &ScenarioName, response: &str) -> (ScenarioName, String) {
    (scenario.clone(), response.to_owned())
}

impl Kept {
    fn put(&mut self, key: (ScenarioName, String), known: Known) {
        self.take(&key);
        self.bytes += known.bytes();
        self.known.insert(key, known);
        while self.known.len() > MOST || self.bytes > MOST_BYTES {
            let Some((_, oldest)) = self.known.shift_remove_index(0) else {
                return;
            };
            self.bytes -= oldest.bytes();
        }
    }

    fn take(&mut self, key: &(ScenarioName, String)) -> bool {
        let taken = self.known.shift_remove(key);
        self.bytes -= taken.as_ref().map_or(0, Known::bytes);
        taken.is_some()
    }
}

impl Known {
    fn bytes(&self) -> usize {
        match self {
            Self::Waiting(asked) => asked.request.len() + 512,
            Self::Recorded(_) => 256,
        }
    }
}

/// What an answer is known by: providers number the answers of each route on their own.
pub(super) fn known_as(route: Route, id: &str) -> String {
    format!("{} {id}", route.path())
}

/// The id of the record of an answer that is fetched: the same however often that happens, and after a restart.
pub(super) fn record_id(scenario: &ScenarioName, response: &str) -> Option<RecordId> {
    let digest = Sha256::new()
        .chain_update(scenario.as_str())
        .chain_update([0])
        .chain_update(response)
        .finalize();
    RecordId::new(format!("fetched-{}", &hex::encode(digest)[..32])).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(bytes: usize) -> Asked {
        Asked {
            request: Bytes::from(vec![0; bytes]),
            release: FrozenRelease {
                kind: crate::domain::ContentKind::Artifact,
                release_id: "abc".parse().unwrap(),
                content_id: format!("sha256:{}", "0".repeat(64)).parse().unwrap(),
                parent_release_id: None,
                runtime_load_id: None,
            },
            tags: Tags::new(),
        }
    }

    #[test]
    fn an_answer_waits_and_then_keeps_its_receipt() {
        let answers = Answers::default();
        let (a, b) = (ScenarioName::new("a").unwrap(), ScenarioName::new("b").unwrap());
        answers.wait(&a, "r1", asked(10));
        assert!(answers.asked(&a, "r1").is_some() && answers.asked(&b, "r1").is_none());
        assert_eq!(answers.receipt(&a, "r1"), None);
        let id = record_id(&a, "r1").unwrap();
        answers.recorded(&a, "r1", &id);
        assert_eq!(answers.receipt(&a, "r1"), Some(id.clone()));
        assert!(answers.asked(&a, "r1").is_none());
        assert_ne!(record_id(&b, "r1").unwrap(), id);
        assert!(answers.give_up(&a, "r1") && !answers.give_up(&a, "r1"));
        assert_eq!(answers.0.lock().bytes, 0);
    }

    #[test]
    fn it_is_bounded_and_the_oldest_goes_first() {
        let answers = Answers::default();
        let a = ScenarioName::new("a").unwrap();
        for n in 0..10 {
            answers.wait(&a, &format!("r{n}"), asked(10 << 20));
        }
        assert!(answers.asked(&a, "r0").is_none() && answers.asked(&a, "r9").is_some());
        assert!(answers.0.lock().bytes <= MOST_BYTES);
        for n in 0..MOST + 50 {
            answers.recorded(&a, &format!("x{n}"), &RecordId::new("r").unwrap());
        }
        assert!(answers.0.lock().known.len() <= MOST);
    }
}
