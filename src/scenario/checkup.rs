//! Whether the chains of the repository and the store's knowledge of them go together, told from outside while others
//! publish, archive and make scenarios anew. What a moment's difference explains is waited out, never reported.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use super::publish_error::PublishError;
use crate::domain::{ReleaseId, ScenarioName};
use crate::experience::{ChainEnds, Experience};
use crate::release::{ReleaseError, Repository};

/// A publication settles, and a service follows, sooner than this.
pub const SETTLES_WITHIN: Duration = Duration::from_secs(5);
const BETWEEN_LOOKS: Duration = Duration::from_millis(50);

/// What is wrong with a chain.
#[derive(Debug)]
pub enum Ailment {
    /// The store knows it, and the repository has not got it.
    Lost {
        /// Where it ended.
        last: ReleaseId,
    },
    /// Its head is not what the store knows, nor anything that came after it.
    Elsewhere {
        /// What the store knows.
        last: ReleaseId,
        /// Where it ends in the repository.
        head: ReleaseId,
    },
    /// A release that it ends in is not what it says.
    Unreadable(ReleaseError),
    /// A file of the newest release is not here.
    Incomplete {
        /// The release.
        head: ReleaseId,
        /// The file.
        file: String,
    },
    /// The store does not learn of its newest releases.
    Unseen,
}

/// What is wrong with which chain, and the heads that were compared.
pub type CheckUp = (Vec<(ScenarioName, Ailment)>, BTreeMap<ScenarioName, ReleaseId>);

/// Looks at every chain. Gives what is wrong, with the heads that were compared. Blocking.
pub fn check_up(repository: &Repository, experience: &Experience) -> Result<CheckUp, PublishError> {
    // In this order: a head moves before the store learns of it.
    let known = experience.chain_ends(None)?;
    let heads: BTreeMap<ScenarioName, ReleaseId> = repository.scenarios()?.into_iter().collect();
    let mut found = Vec::new();
    let mut ahead = Vec::new();
    for ends in &known {
        let name = &ends.scenario;
        let looked = match heads.get(name) {
            None => lost(repository, experience, ends),
            Some(head) => look(repository, experience, ends, head).map(|look| match look {
                Look::Whole => None,
                Look::Ahead => {
                    ahead.push((name.clone(), head.clone()));
                    None
                }
                Look::Ails(ailment) => Some(ailment),
            }),
        };
        match looked {
            Ok(ailment) => found.extend(ailment.map(|ailment| (name.clone(), ailment))),
            Err(PublishError::Release(error)) => found.push((name.clone(), Ailment::Unreadable(error))),
            Err(error) => return Err(error),
        }
    }
    for (name, head) in &heads {
        if !known.iter().any(|ends| ends.scenario == *name) {
            ahead.push((name.clone(), head.clone()));
        }
    }
    let deadline = Instant::now() + SETTLES_WITHIN;
    for (name, head) in ahead {
        if !within(deadline, || settled(repository, experience, &name, &head))? {
            found.push((name, Ailment::Unseen));
        }
    }
    Ok((found, heads))
}

/// Asks until it is so, or until the time is over; at least once.
pub fn within<E>(deadline: Instant, mut is_so: impl FnMut() -> Result<bool, E>) -> Result<bool, E> {
    loop {
        if is_so()? {
            return Ok(true);
        }
        if Instant::now() >= deadline {
            return Ok(false);
        }
        thread::sleep(BETWEEN_LOOKS);
    }
}

enum Look {
    Whole,
    Ahead,
    Ails(Ailment),
}

fn look(
    repository: &Repository,
    experience: &Experience,
    ends: &ChainEnds,
    head: &ReleaseId,
) -> Result<Look, PublishError> {
    if !repository.is_ancestor(&ends.head, head)? {
        // It may have been put away and made anew since the store was read.
        return Ok(match lost(repository, experience, ends)? {
            None => Look::Whole,
            Some(_) => Look::Ails(Ailment::Elsewhere {
                last: ends.head.clone(),
                head: head.clone(),
            }),
        });
    }
    // The oldest first: what is built on a bad release may be bad for its sake.
    for commit in repository.chain(head, Some(&ends.head), usize::MAX)?.into_iter().rev() {
        repository.examine(&commit.release_id)?;
    }
    repository.examine(head)?;
    if let Some(file) = repository.missing_object(head)? {
        return Ok(Look::Ails(Ailment::Incomplete {
            head: head.clone(),
            file: file.path,
        }));
    }
    Ok(if *head == ends.head { Look::Whole } else { Look::Ahead })
}

/// Whether the repository has lost a chain that the store knows. One that was archived is not lost, nor one that the
/// store does not know any more.
fn lost(repository: &Repository, experience: &Experience, ends: &ChainEnds) -> Result<Option<Ailment>, PublishError> {
    let name = &ends.scenario;
    if let Some(head) = repository.head(name)?
        && repository.is_ancestor(&ends.head, &head)?
    {
        return Ok(None);
    }
    if repository.archived_holds(name, &ends.head)? {
        return Ok(None);
    }
    let still = experience.chain_ends(Some(name))?;
    let same = still.iter().any(|now| now.creation == ends.creation);
    Ok(same.then(|| Ailment::Lost {
        last: ends.head.clone(),
    }))
}

/// Whether the store knows a head, or one that came after it, or the repository has none of that name any more.
fn settled(
    repository: &Repository,
    experience: &Experience,
    name: &ScenarioName,
    head: &ReleaseId,
) -> Result<bool, PublishError> {
    if let Some(known) = experience.indexed_head(name)?
        && repository.is_ancestor(head, &known)?
    {
        return Ok(true);
    }
    Ok(match repository.head(name)? {
        None => true,
        Some(now) => !repository.is_ancestor(head, &now)?,
    })
}
