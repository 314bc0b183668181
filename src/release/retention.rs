//! Which releases keep their content and their training state. Pure: facts in, fates out. The rule only ever lets go: what
//! a longer chain keeps, a shorter one kept as well, so nothing that was taken is wanted back later.

use std::collections::HashMap;

use crate::domain::ReleaseId;

/// Microseconds of a day.
const DAY_US: i64 = 86_400_000_000;

/// What is kept of releases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keep {
    /// Releases of each chain whose content is kept beside the newest one; `None` keeps all.
    pub contents: Option<usize>,
    /// What is kept of older ones.
    pub older: Older,
    /// Releases of each chain whose training state is kept beside that of the newest one; `None` keeps all.
    pub states: Option<usize>,
    /// All large files together, at most so many bytes.
    pub max_bytes: Option<u64>,
}

impl Keep {
    /// Nothing goes.
    pub const ALL: Self = Self {
        contents: None,
        older: Older::Nothing,
        states: None,
        max_bytes: None,
    };
}

/// What is kept of releases older than the newest few.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Older {
    /// One in each doubling of age, counted in releases.
    Doubling,
    /// The last one of each day.
    Daily,
    /// None.
    Nothing,
}

/// What is kept of one release.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Part {
    Nothing,
    /// All but its training state.
    Content,
    Everything,
}

/// What becomes of one release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fate {
    pub kept: Part,
    /// The least that is kept, whatever it takes.
    pub pinned: Part,
    pub at_us: i64,
}

/// What becomes of every release.
#[derive(Debug, Default)]
pub(super) struct Fates(pub HashMap<ReleaseId, Fate>);

impl Fates {
    /// Adds a reason to keep a release.
    pub(super) fn keep(&mut self, release: &ReleaseId, at_us: i64, kept: Part, pinned: Part) {
        let fate = self.0.entry(release.clone()).or_insert(Fate {
            kept: Part::Nothing,
            pinned: Part::Nothing,
            at_us,
        });
        fate.pinned = fate.pinned.max(pinned);
        fate.kept = fate.kept.max(kept).max(fate.pinned);
    }

    /// The fates of a chain in use, newest first. The newest one, the one a rollback would go to, and the first one, which
    /// serves when no other can, are never let go.
    pub(super) fn chain(&mut self, chain: &[(ReleaseId, i64)], keep: &Keep) {
        let mut day = None;
        for (age, (release, at_us)) in chain.iter().enumerate() {
            let place = chain.len() - 1 - age;
            let of_day = at_us.div_euclid(DAY_US);
            let last_of_day = day.replace(of_day) != Some(of_day);
            let content = keep.contents.is_none_or(|newest| {
                age <= newest
                    || match keep.older {
                        Older::Doubling => place.is_multiple_of(1 << age.ilog2()),
                        Older::Daily => last_of_day,
                        Older::Nothing => false,
                    }
            });
            let state = content && keep.states.is_none_or(|newest| age <= newest);
            let kept = match (content, state) {
                (_, true) => Part::Everything,
                (true, false) => Part::Content,
                (false, false) => Part::Nothing,
            };
            let pinned = match age {
                0 => Part::Everything,
                1 => Part::Content,
                _ if place == 0 => Part::Content,
                _ => Part::Nothing,
            };
            self.keep(release, *at_us, kept, pinned);
        }
    }

    /// Lets go of more until what is kept fits `max_bytes`: training state first, then content, the oldest first. `objects`
    /// gives the objects a release needs that are here, with their sizes. Gives what is kept, and of it what is pinned.
    pub(super) fn fit<'o>(
        &mut self,
        max_bytes: Option<u64>,
        objects: impl Fn(&ReleaseId, Part) -> Vec<(&'o str, u64)>,
    ) -> (u64, u64) {
        let mut tally = Tally::default();
        let mut pinned = Tally::default();
        for (release, fate) in &self.0 {
            tally.add(&objects(release, fate.kept));
            pinned.add(&objects(release, fate.pinned));
        }
        let Some(most) = max_bytes else {
            return (tally.bytes, pinned.bytes);
        };
        for (from, to) in [(Part::Everything, Part::Content), (Part::Content, Part::Nothing)] {
            let mut oldest: Vec<(&ReleaseId, &mut Fate)> = self
                .0
                .iter_mut()
                .filter(|(_, fate)| fate.kept == from && fate.pinned <= to)
                .collect();
            // The id decides between equals, so that a plan can be made twice.
            oldest.sort_by(|a, b| (a.1.at_us, a.0).cmp(&(b.1.at_us, b.0)));
            for (release, fate) in oldest {
                if tally.bytes <= most {
                    return (tally.bytes, pinned.bytes);
                }
                tally.remove(&objects(release, from));
                fate.kept = to;
                tally.add(&objects(release, to));
            }
        }
        (tally.bytes, pinned.bytes)
    }
}

/// Objects that several releases may need, each counted once.
#[derive(Default)]
struct Tally<'o> {
    users: HashMap<&'o str, u32>,
    bytes: u64,
}

impl<'o> Tally<'o> {
    fn add(&mut self, objects: &[(&'o str, u64)]) {
        for (oid, size) in objects {
            let users = self.users.entry(oid).or_default();
            if *users == 0 {
                self.bytes += size;
            }
            *users += 1;
        }
    }

    fn remove(&mut self, objects: &[(&'o str, u64)]) {
        for (oid, size) in objects {
            if let Some(users) = self.users.get_mut(oid).filter(|users| **users > 0) {
                *users -= 1;
                if *users == 0 {
                    self.bytes -= size;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    fn id(n: usize) -> ReleaseId {
        ReleaseId::new(format!("{n:040x}")).unwrap()
    }

    /// A chain of `n` releases, one every hour, newest first.
    fn chain(n: usize) -> Vec<(ReleaseId, i64)> {
        (0..n).rev().map(|n| (id(n), n as i64 * DAY_US / 24)).collect()
    }

    fn keep(contents: usize, older: Older, states: usize) -> Keep {
        Keep {
            contents: Some(contents),
            older,
            states: Some(states),
            max_bytes: None,
        }
    }

    /// The places in a chain of `n` of which at least this part is kept, oldest first.
    fn places(n: usize, keep: &Keep, part: Part) -> Vec<usize> {
        let mut fates = Fates::default();
        fates.chain(&chain(n), keep);
        let mut kept: Vec<usize> = (0..n).filter(|place| fates.0[&id(*place)].kept >= part).collect();
        kept.sort_unstable();
        kept
    }

    #[test]
    fn the_newest_are_kept_and_older_ones_thin_out() {
        let rule = keep(3, Older::Doubling, 1);
        assert_eq!(places(100, &rule, Part::Everything), [98, 99]);
        assert_eq!(
            places(100, &rule, Part::Content),
            [0, 64, 80, 88, 92, 96, 97, 98, 99],
            "one between ages 4 and 7, 8 and 15, 16 and 31, 32 and 63; and the first"
        );
        assert_eq!(
            places(100, &keep(3, Older::Nothing, 1), Part::Content),
            [0, 96, 97, 98, 99]
        );
        // Hours 0 to 99: the days end at 23, 47, 71, 95.
        assert_eq!(
            places(100, &keep(1, Older::Daily, 0), Part::Content),
            [0, 23, 47, 71, 95, 98, 99]
        );
        assert_eq!(places(5, &Keep::ALL, Part::Everything), [0, 1, 2, 3, 4]);
        // Content without the newest state, and a rollback's target, stay with the strictest rule there is.
        assert_eq!(places(9, &keep(0, Older::Nothing, 0), Part::Content), [0, 7, 8]);
    }

    #[test]
    fn a_budget_takes_states_first_then_the_oldest_and_never_what_is_pinned() {
        let fit = |max_bytes: u64| {
            let mut fates = Fates::default();
            fates.chain(&chain(6), &Keep::ALL);
            let names: Vec<[String; 2]> = (0..6).map(|n| [format!("c{n}"), format!("s{n}")]).collect();
            // Content of 10 bytes, state of 20; the second and the third have equal content.
            let (kept, pinned) = fates.fit(Some(max_bytes), |release, part| {
                let n = usize::from_str_radix(release.as_str(), 16).unwrap();
                let content = (names[if n == 2 { 1 } else { n }][0].as_str(), 10);
                let state = (names[n][1].as_str(), 20);
                match part {
                    Nothing => vec![],
                    Content => vec![content],
                    Everything => vec![content, state],
                }
            });
            let of = |n| fates.0[&id(n)].kept;
            (kept, pinned, (0..6).map(of).collect::<Vec<_>>())
        };
        use Part::{Content, Everything, Nothing};
        assert_eq!(fit(170), (170, 50, vec![Everything; 6]));
        assert_eq!(
            fit(140),
            (
                130,
                50,
                vec![Content, Content, Everything, Everything, Everything, Everything]
            )
        );
        // Equal content is free only when both let go of it.
        assert_eq!(
            fit(60),
            (60, 50, vec![Content, Nothing, Nothing, Content, Content, Everything])
        );
        assert_eq!(
            fit(0),
            (50, 50, vec![Content, Nothing, Nothing, Nothing, Content, Everything]),
            "the first, the one before the head, the head"
        );
    }

    proptest! {
        /// What a chain keeps when it is longer, it kept when it was shorter; and the kept are few.
        #[test]
        fn nothing_is_wanted_back(n in 2usize..400, contents in 0usize..20, states in 0usize..20) {
            for older in [Older::Doubling, Older::Nothing] {
                let rule = keep(contents, older, states);
                for part in [Part::Content, Part::Everything] {
                    let before: HashSet<usize> = places(n - 1, &rule, part).into_iter().collect();
                    let after = places(n, &rule, part);
                    prop_assert!(after.iter().all(|place| *place == n - 1 || before.contains(place)));
                    prop_assert!(after.len() <= contents.max(1) + 2 + n.ilog2() as usize + 1);
                }
            }
        }
    }
}
