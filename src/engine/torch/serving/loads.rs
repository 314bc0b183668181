//! Which loads are resident, who serves what, and when a load may go.
//!
//! Every scenario counts its own loads: `<incarnation>:<n>`, where the incarnation is fresh for each process and
//! scenario. So the distance between two loads of a scenario is the number of updates between them, whatever other
//! scenarios do. Load 1 of every scenario is the base model.

use std::cell::Cell;
use std::collections::HashMap;
use std::rc::Rc;

use sha2::{Digest, Sha256};

use super::slots::CacheKey;
use crate::domain::{RuntimeLoadId, ScenarioName};
use crate::engine::torch::Residency;

/// One load: an identity and what it serves with.
#[derive(Debug)]
pub(crate) struct Load<P> {
    pub(crate) id: RuntimeLoadId,
    pub(crate) key: CacheKey,
    /// Whether it is more than the base model.
    own: bool,
    /// Whether another load took its place.
    replaced: Cell<bool>,
    pub(crate) payload: P,
}

impl<P> Load<P> {
    /// Whether another load took its place.
    pub(crate) fn is_replaced(&self) -> bool {
        self.replaced.get()
    }
}

/// Why a load cannot be had.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LoadRefusal {
    /// The load is gone, or never was.
    NotResident,
    /// Everything resident is in use.
    NoRoom { resident: usize },
}

#[derive(Debug)]
struct OfScenario<P> {
    sequence: u64,
    current: Rc<Load<P>>,
    /// Replaced loads that requests still use, and the newest of them for requests frozen just before the swap.
    older: Vec<Rc<Load<P>>>,
}

/// The resident loads. A request holds its load by an [`Rc`]: that is its lease.
#[derive(Debug)]
pub(crate) struct Loads<P> {
    process: String,
    base: P,
    capacity: usize,
    next_key: u64,
    scenarios: HashMap<ScenarioName, OfScenario<P>>,
}

/// The id of a scenario's `sequence`-th load in the process named `process`.
pub(crate) fn load_id(process: &str, scenario: &ScenarioName, sequence: u64) -> Option<RuntimeLoadId> {
    let digest = Sha256::new()
        .chain_update(process)
        .chain_update(":")
        .chain_update(scenario.as_str())
        .finalize();
    RuntimeLoadId::new(hex::encode(&digest[..8]), sequence).ok()
}

impl<P: Clone> Loads<P> {
    /// `process` is a fresh random token; `base` what a scenario without an own load is served with.
    pub(crate) fn new(process: String, base: P, capacity: usize) -> Self {
        Self {
            process,
            base,
            capacity,
            next_key: 1,
            scenarios: HashMap::new(),
        }
    }

    /// The load for a request: the one frozen for it, or the scenario's current one.
    pub(crate) fn lease(
        &mut self,
        scenario: &ScenarioName,
        frozen: Option<&RuntimeLoadId>,
    ) -> Result<Rc<Load<P>>, LoadRefusal> {
        if !self.scenarios.contains_key(scenario) {
            let first = self.make(scenario, 1, None).ok_or(LoadRefusal::NotResident)?;
            self.scenarios.insert(
                scenario.clone(),
                OfScenario {
                    sequence: 1,
                    current: first,
                    older: Vec::new(),
                },
            );
        }
        let of = self.scenarios.get(scenario).ok_or(LoadRefusal::NotResident)?;
        let found = match frozen {
            None => Some(&of.current),
            Some(id) if of.current.id == *id => Some(&of.current),
            Some(id) => of.older.iter().find(|load| load.id == *id),
        };
        found.cloned().ok_or(LoadRefusal::NotResident)
    }

    fn make(&mut self, scenario: &ScenarioName, sequence: u64, payload: Option<P>) -> Option<Rc<Load<P>>> {
        let own = payload.is_some();
        let key = if own {
            self.next_key += 1;
            CacheKey(self.next_key)
        } else {
            CacheKey(0)
        };
        Some(Rc::new(Load {
            id: load_id(&self.process, scenario, sequence)?,
            key,
            own,
            replaced: Cell::new(false),
            payload: payload.unwrap_or_else(|| self.base.clone()),
        }))
    }

    /// Makes room for one more load, or says why there is none. Gives the keys of the loads that went.
    pub(crate) fn make_room(&mut self) -> Result<Vec<CacheKey>, LoadRefusal> {
        let mut gone = self.sweep();
        while self.residency().resident >= self.capacity {
            // What was kept only for late arrivals goes first.
            let spare = self.scenarios.values_mut().find_map(|of| {
                let at = of
                    .older
                    .iter()
                    .position(|load| load.own && Rc::strong_count(load) == 1)?;
                Some(of.older.remove(at).key)
            });
            match spare {
                Some(key) => gone.push(key),
                None => {
                    return Err(LoadRefusal::NoRoom {
                        resident: self.residency().resident,
                    });
                }
            }
        }
        Ok(gone)
    }

    /// Makes `payload` (the base model if none) what new requests of the scenario are served with.
    pub(crate) fn install(&mut self, scenario: &ScenarioName, payload: Option<P>) -> Result<Rc<Load<P>>, LoadRefusal> {
        let sequence = self.scenarios.get(scenario).map_or(1, |of| of.sequence) + 1;
        let new = self.make(scenario, sequence, payload).ok_or(LoadRefusal::NotResident)?;
        match self.scenarios.get_mut(scenario) {
            Some(of) => {
                let old = std::mem::replace(&mut of.current, Rc::clone(&new));
                old.replaced.set(true);
                of.older.push(old);
                of.sequence = sequence;
            }
            None => {
                let first = self.make(scenario, 1, None).ok_or(LoadRefusal::NotResident)?;
                first.replaced.set(true);
                self.scenarios.insert(
                    scenario.clone(),
                    OfScenario {
                        sequence,
                        current: Rc::clone(&new),
                        older: vec![first],
                    },
                );
            }
        }
        Ok(new)
    }

    /// Lets go of replaced loads that nobody uses, the newest of each scenario excepted. Gives their keys.
    pub(crate) fn sweep(&mut self) -> Vec<CacheKey> {
        let mut gone = Vec::new();
        for of in self.scenarios.values_mut() {
            let newest = of.older.last().map(|load| load.id.clone());
            of.older.retain(|load| {
                let keep = Rc::strong_count(load) > 1 || Some(&load.id) == newest.as_ref();
                if !keep && load.own {
                    gone.push(load.key);
                }
                keep
            });
        }
        gone
    }

    pub(crate) fn residency(&self) -> Residency {
        let mut residency = Residency {
            capacity: self.capacity,
            ..Residency::default()
        };
        for of in self.scenarios.values() {
            residency.resident += usize::from(of.current.own);
            for load in of.older.iter().filter(|load| load.own) {
                residency.resident += 1;
                residency.draining += usize::from(Rc::strong_count(load) > 1);
            }
        }
        residency
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scenario(name: &str) -> ScenarioName {
        ScenarioName::new(name).unwrap()
    }

    fn loads(capacity: usize) -> Loads<&'static str> {
        Loads::new("process".to_owned(), "base", capacity)
    }

    #[test]
    fn a_scenario_counts_its_own_loads_from_the_base_on() {
        let mut loads = loads(8);
        let (a, b) = (scenario("a"), scenario("b"));
        let base = loads.lease(&a, None).unwrap();
        assert_eq!((base.id.sequence(), base.payload, base.key), (1, "base", CacheKey(0)));
        let first = loads.install(&a, Some("a1")).unwrap();
        assert_eq!(base.id.lag_behind(&first.id), Some(1));
        loads.install(&b, Some("b1")).unwrap();
        loads.install(&b, Some("b2")).unwrap();
        assert_eq!(loads.lease(&a, None).unwrap().id, first.id);
        let back = loads.install(&a, None).unwrap();
        assert_eq!((back.id.sequence(), back.payload, back.key), (3, "base", CacheKey(0)));
        assert_eq!(first.id.lag_behind(&loads.lease(&b, None).unwrap().id), None);
        assert_eq!(load_id("process", &a, 3), Some(back.id.clone()));
        assert_ne!(load_id("other", &a, 3), Some(back.id.clone()));
    }

    #[test]
    fn a_request_keeps_its_load_and_one_frozen_just_before_a_swap_still_gets_it() {
        let mut loads = loads(8);
        let a = scenario("a");
        let first = loads.install(&a, Some("a1")).unwrap();
        loads.install(&a, Some("a2")).unwrap();
        assert_eq!(loads.lease(&a, Some(&first.id)).unwrap().payload, "a1");
        loads.install(&a, Some("a3")).unwrap();
        loads.sweep();
        assert_eq!(
            loads.lease(&a, Some(&first.id)).unwrap().payload,
            "a1",
            "leased by this test"
        );
        let id = first.id.clone();
        drop(first);
        assert_eq!(loads.sweep().len(), 1);
        assert_eq!(loads.lease(&a, Some(&id)).unwrap_err(), LoadRefusal::NotResident);
    }

    #[test]
    fn sixty_updates_never_hold_more_than_the_capacity() {
        let mut loads = loads(3);
        let a = scenario("a");
        for _ in 0..60 {
            loads.make_room().unwrap();
            loads.install(&a, Some("x")).unwrap();
            loads.sweep();
            assert!(loads.residency().resident <= 3, "{:?}", loads.residency());
        }
    }

    #[test]
    fn no_room_is_said_before_anything_is_taken_away() {
        let mut loads = loads(2);
        let (a, b) = (scenario("a"), scenario("b"));
        let held = loads.install(&a, Some("a1")).unwrap();
        loads.install(&a, Some("a2")).unwrap();
        assert_eq!(loads.make_room(), Err(LoadRefusal::NoRoom { resident: 2 }));
        assert_eq!(loads.lease(&a, None).unwrap().payload, "a2");
        assert_eq!(loads.residency().draining, 1);
        let key = held.key;
        drop(held);
        assert_eq!(loads.make_room(), Ok(vec![key]));
        loads.install(&b, Some("b1")).unwrap();
        assert_eq!(
            loads.residency(),
            Residency {
                resident: 2,
                capacity: 2,
                draining: 0
            }
        );
    }
}
