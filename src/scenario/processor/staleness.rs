//! How old a sample may be. Lag is counted in loads of this scenario within one incarnation of the engine (an engine
//! numbers the loads of each scenario by themselves), bounds exact; where the engine gives no loads, in releases.

use serde::{Deserialize, Serialize};

use crate::domain::{ReleaseId, RuntimeLoadId};
use crate::recipe::BatchSpec;

/// What produced one turn of a sample, as frozen at its admission.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Produced {
    /// The load, where the engine has loads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load: Option<RuntimeLoadId>,
    /// The release.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub release: Option<ReleaseId>,
}

/// What is served now, against which age is measured.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Serving {
    /// The load that serves the scenario; `None` for an engine without loads.
    pub load: Option<RuntimeLoadId>,
    /// The scenario's releases, oldest first, up to the served one.
    pub releases: Vec<ReleaseId>,
}

/// Why a sample is outside the window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum StaleReason {
    /// Nothing says what produced it.
    MissingLoad,
    /// Another process of the engine produced it.
    CrossIncarnation,
    /// Its loads do not follow each other.
    NonMonotonic,
    /// It claims a load that is not served yet.
    Future,
    /// It is more loads behind than allowed.
    LagExceeded,
    /// The release that produced it is not on the scenario's chain.
    ForeignRelease,
}

impl StaleReason {
    /// The word it is counted under.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::MissingLoad => "missing_producing_runtime_load_id",
            Self::CrossIncarnation => "cross_incarnation",
            Self::NonMonotonic => "non_monotonic_producing_runtime_load_ids",
            Self::Future => "future_producing_runtime_load_id",
            Self::LagExceeded => "policy_lag_exceeded",
            Self::ForeignRelease => "foreign_release",
        }
    }
}

impl Serving {
    /// The lag of the oldest part of a sample, if it is inside the window of the recipe.
    pub fn admit(&self, produced: &[Produced], batch: &BatchSpec) -> Result<u64, StaleReason> {
        let imported = !produced.is_empty()
            && produced
                .iter()
                .all(|part| part.load.is_none() && part.release.is_none());
        if imported && batch.accept_imported {
            return Ok(0);
        }
        self.within(produced, batch.max_staleness)
    }

    fn within(&self, produced: &[Produced], max_staleness: u64) -> Result<u64, StaleReason> {
        let lag = match &self.load {
            Some(serving) => self.load_lag(serving, produced)?,
            None => self.release_lag(produced)?,
        };
        if lag > max_staleness {
            Err(StaleReason::LagExceeded)
        } else {
            Ok(lag)
        }
    }

    fn load_lag(&self, serving: &RuntimeLoadId, produced: &[Produced]) -> Result<u64, StaleReason> {
        let mut previous: Option<u64> = None;
        let mut oldest = 0;
        for part in produced {
            let load = part.load.as_ref().ok_or(StaleReason::MissingLoad)?;
            if load.incarnation() != serving.incarnation() {
                return Err(StaleReason::CrossIncarnation);
            }
            let sequence = load.sequence();
            if sequence > serving.sequence() {
                return Err(StaleReason::Future);
            }
            if previous.is_some_and(|before| sequence < before) {
                return Err(StaleReason::NonMonotonic);
            }
            previous = Some(sequence);
            oldest = oldest.max(serving.sequence() - sequence);
        }
        if previous.is_none() {
            Err(StaleReason::MissingLoad)
        } else {
            Ok(oldest)
        }
    }

    fn release_lag(&self, produced: &[Produced]) -> Result<u64, StaleReason> {
        let mut oldest = None;
        for part in produced {
            let release = part.release.as_ref().ok_or(StaleReason::MissingLoad)?;
            let behind = self
                .releases
                .iter()
                .rev()
                .position(|known| known == release)
                .ok_or(StaleReason::ForeignRelease)?;
            oldest = oldest.max(Some(behind as u64));
        }
        oldest.ok_or(StaleReason::MissingLoad)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(incarnation: &str, sequence: u64) -> Produced {
        Produced {
            load: Some(RuntimeLoadId::new(incarnation, sequence).unwrap()),
            release: None,
        }
    }

    fn serving() -> Serving {
        Serving {
            load: Some(RuntimeLoadId::new("ab", 9).unwrap()),
            releases: vec![],
        }
    }

    #[test]
    fn every_bound_is_exact() {
        let serving = serving();
        for (window, sequence, inside) in [
            (0, 9, true),
            (0, 8, false),
            (1, 8, true),
            (1, 7, false),
            (2, 7, true),
            (2, 6, false),
            (3, 6, true),
        ] {
            let verdict = serving.within(&[load("ab", sequence)], window);
            assert_eq!(verdict.is_ok(), inside, "window {window}, load {sequence}: {verdict:?}");
        }
    }

    #[test]
    fn every_reason_is_told_apart() {
        let serving = serving();
        let none = Produced {
            load: None,
            release: None,
        };
        for (produced, reason) in [
            (vec![], StaleReason::MissingLoad),
            (vec![none], StaleReason::MissingLoad),
            (vec![load("cd", 9)], StaleReason::CrossIncarnation),
            (vec![load("ab", 10)], StaleReason::Future),
            (vec![load("ab", 9), load("ab", 8)], StaleReason::NonMonotonic),
            (vec![load("ab", 3)], StaleReason::LagExceeded),
        ] {
            assert_eq!(serving.within(&produced, 2), Err(reason));
        }
    }

    #[test]
    fn the_oldest_turn_decides() {
        assert_eq!(serving().within(&[load("ab", 7), load("ab", 9)], 2), Ok(2));
        assert_eq!(
            serving().within(&[load("ab", 7), load("ab", 9)], 1),
            Err(StaleReason::LagExceeded)
        );
        assert_eq!(serving().within(&[load("ab", 9), load("ab", 9)], 0), Ok(0));
    }

    #[test]
    fn an_engine_without_loads_is_measured_in_releases() {
        let id = |name: &str| ReleaseId::new(name).unwrap();
        let from = |name: &str| {
            vec![Produced {
                load: None,
                release: Some(id(name)),
            }]
        };
        let serving = Serving {
            load: None,
            releases: vec![id("a"), id("b"), id("c")],
        };
        assert_eq!(serving.within(&from("c"), 0), Ok(0));
        assert_eq!(serving.within(&from("b"), 0), Err(StaleReason::LagExceeded));
        assert_eq!(serving.within(&from("b"), 1), Ok(1));
        assert_eq!(serving.within(&from("a"), 1), Err(StaleReason::LagExceeded));
        assert_eq!(serving.within(&from("x"), 9), Err(StaleReason::ForeignRelease));
    }

    #[test]
    fn imported_experience_trains_only_where_the_recipe_says_so() {
        let unknown = [Produced {
            load: None,
            release: None,
        }];
        let strict = BatchSpec::default();
        let open = BatchSpec {
            accept_imported: true,
            ..BatchSpec::default()
        };
        assert_eq!(serving().admit(&unknown, &strict), Err(StaleReason::MissingLoad));
        assert_eq!(serving().admit(&unknown, &open), Ok(0));
        assert_eq!(serving().admit(&[load("ab", 3)], &open), Err(StaleReason::LagExceeded));
    }
}
