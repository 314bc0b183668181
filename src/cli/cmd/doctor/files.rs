//! What the files say of each other: whether the clock agrees with them, and whether the chain, the store and the service
//! speak of the same release.

use std::collections::BTreeMap;
use std::time::Instant;

use super::{Finding, bad, good, warning, with_causes};
use crate::cli::{CliError, client::Client, disk::Disk, format, running};
use crate::config::Settings;
use crate::domain::{ReleaseId, ScenarioName};
use crate::experience::{Experience, StoreOptions};
use crate::release::{ReleaseError, Repository, RepositoryOptions};
use crate::scenario::{Ailment, SETTLES_WITHIN, check_up, within};
use crate::sys::clock;

/// A record this far in the future says that the clock was turned back.
const SKEW_US: i64 = 60 * 1_000_000;
/// 2024-01-01: a clock before it was never set.
const NEVER_SET_US: i64 = 1_704_067_200_000_000;

/// The clock, against itself and against what is stored.
pub(super) fn time(settings: &Settings) -> Finding {
    let check = "clock";
    let fix = "set the clock, for example with systemd-timesyncd or chrony";
    let now = clock::now_us();
    if now < NEVER_SET_US {
        return bad(
            check,
            format!("it says {}, which is before Reef existed", format::utc(now)),
            fix,
        );
    }
    let newest = read_only(settings).and_then(|store| {
        let stats = store.stats(None).ok()?;
        stats.values().filter_map(|stats| stats.last_us).max()
    });
    match newest {
        Some(newest) if newest - now > SKEW_US => warning(
            check,
            format!(
                "the newest record is of {}, which is still to come",
                format::utc(newest)
            ),
            fix,
        ),
        _ => good(check, format!("{} UTC", format::utc(now))),
    }
}

fn read_only(settings: &Settings) -> Option<Experience> {
    let options = StoreOptions {
        readers: 1,
        ..StoreOptions::default()
    };
    Experience::open_read_only(&settings.storage.experience_db(), options).ok()
}

/// A step that failed so often does not mend itself.
const OFTEN: u32 = 5;

/// Steps that are tried again and again: nothing behind them is.
pub(super) fn steps(settings: &Settings) -> Vec<Finding> {
    let Some(store) = read_only(settings) else {
        return Vec::new();
    };
    let scenarios = store.scenarios(false).unwrap_or_default();
    let stuck = scenarios
        .iter()
        .filter_map(|scenario| store.open_job(&scenario.name).ok().flatten())
        .filter(|job| job.attempts >= OFTEN);
    stuck
        .map(|job| {
            warning(
                "steps",
                format!(
                    "step {} of {} has failed {} times: {}",
                    job.step,
                    job.scenario,
                    job.attempts,
                    job.error.unwrap_or_default()
                ),
                format!(
                    "mend what it says, or give its batch up: reef train drop --scenario {}",
                    job.scenario
                ),
            )
        })
        .collect()
}

/// What releases and records take, may take, and whether the disk has it.
pub(super) fn room(context: &crate::cli::Context, settings: &Settings) -> Vec<Finding> {
    let check = "room";
    let store = read_only(settings);
    let disk = Disk::of(context, settings, store.as_ref());
    let mut findings = Vec::new();
    if let Some(over) = disk.over() {
        findings.push(bad(
            check,
            over,
            "decide on held releases (reef release list --held), unpin some, or raise release.retention-max-bytes",
        ));
    } else if let Some(said) = disk.sentence() {
        findings.push(good(check, said));
    }
    if let Some((more, left)) = disk.short_of() {
        findings.push(warning(
            check,
            format!(
                "records and releases may take {} more, and {} are free beyond storage.min-free",
                format::bytes(more),
                format::bytes(left)
            ),
            "lower storage.retention-max-bytes and release.retention-max-bytes, or free some space: with less than \
             storage.min-free no training step begins",
        ));
    }
    findings
}

const HEADS: &str = "heads";
const BRING_BACK: &str = "restore artifacts.git from a backup, or bring back what was pushed: reef release pull";

/// For every scenario: the head of the chain in git, the newest release in the store, and what a running service serves.
pub(super) fn heads(context: &crate::cli::Context, settings: &Settings) -> Vec<Finding> {
    let storage = &settings.storage;
    let opened = Repository::open_existing(
        &storage.artifacts_git(),
        &storage.cache_dir(),
        RepositoryOptions::default(),
    );
    let repository = match opened {
        Ok(repository) => Some(repository),
        Err(ReleaseError::NotFound { .. }) => None,
        Err(error) => return vec![bad(HEADS, with_causes(error), BRING_BACK)],
    };
    if !storage.experience_db().exists() {
        let chains = repository.and_then(|repository| repository.scenarios().ok());
        let chains = chains.map_or(0, |heads| heads.len());
        let lost = (chains > 0).then(|| {
            bad(
                HEADS,
                format!(
                    "{} is gone, and the chains of {chains} scenarios are there: reef serve would start without a record",
                    storage.experience_db().display()
                ),
                "restore experience.db from a backup, or start with another --dir",
            )
        });
        return lost.into_iter().collect();
    }
    // A store that cannot be read has its own finding.
    let Some(store) = read_only(settings) else {
        return Vec::new();
    };
    let Some(repository) = repository else {
        let known = store.chain_ends(None).map_or(0, |ends| ends.len());
        let lost = (known > 0).then(|| {
            bad(
                HEADS,
                format!(
                    "there is no artifact repository at {}, and the store knows the chains of {known} scenarios",
                    storage.artifacts_git().display()
                ),
                BRING_BACK,
            )
        });
        return lost.into_iter().collect();
    };
    let (ailments, heads) = match check_up(&repository, &store) {
        Ok(found) => found,
        Err(error) => return vec![bad(HEADS, with_causes(error), BRING_BACK)],
    };
    let mut findings: Vec<Finding> = ailments
        .into_iter()
        .map(|(scenario, ailment)| of_chain(&scenario, ailment))
        .collect();
    let running = running::find(settings).and_then(|note| Client::new(context, &note.local_url).ok());
    let served = running.and_then(|client| served(context, &client, &repository, &heads));
    let asked = served.is_some();
    findings.extend(served.into_iter().flatten());
    if findings.is_empty() && !heads.is_empty() {
        let with = if asked {
            "chain, store and service agree"
        } else {
            "chain and store agree"
        };
        findings.push(good(HEADS, format!("{with} on {} scenarios", heads.len())));
    }
    findings
}

fn of_chain(scenario: &ScenarioName, ailment: Ailment) -> Finding {
    match ailment {
        Ailment::Lost { last } => bad(
            HEADS,
            format!(
                "the chain of {scenario}, which ended in {}, is gone from the artifact repository",
                format::short(last.as_str())
            ),
            BRING_BACK,
        ),
        Ailment::Elsewhere { last, head } => bad(
            HEADS,
            format!(
                "the chain of {scenario} ended in {} and is now at {}, before it or beside it",
                format::short(last.as_str()),
                format::short(head.as_str())
            ),
            BRING_BACK,
        ),
        Ailment::Unreadable(error) => bad(
            HEADS,
            format!("the chain of {scenario} cannot be read: {}", with_causes(error)),
            BRING_BACK,
        ),
        Ailment::Incomplete { head, file } => bad(
            HEADS,
            format!(
                "release {} that {scenario} serves lacks its file {file}",
                format::short(head.as_str()),
            ),
            "reef release pull --objects all brings it from a remote; otherwise restore artifacts.git from a backup",
        ),
        Ailment::Unseen => warning(
            HEADS,
            format!("the chain of {scenario} is ahead of the store"),
            format!("reef release list --scenario {scenario} brings the store up to date"),
        ),
    }
}

/// Scenarios of which a running service goes on serving something older than the head; `None` when it does not answer.
fn served(
    context: &crate::cli::Context,
    client: &Client,
    repository: &Repository,
    heads: &BTreeMap<ScenarioName, ReleaseId>,
) -> Option<Vec<Finding>> {
    let mut behind = Vec::new();
    let deadline = Instant::now() + SETTLES_WITHIN;
    let followed = within(deadline, || {
        let status = context.block_on(client.get("/reef/status"))?;
        behind.clear();
        for (scenario, head) in heads {
            let said = status["scenarios"][scenario.as_str()]["release_id"].as_str();
            let Some(served) = said.and_then(|id| ReleaseId::new(id).ok()) else {
                continue;
            };
            // It may have been put away, or have gone on, since the heads were read.
            let follows = repository.is_ancestor(head, &served).unwrap_or(false);
            let now = repository.head(scenario).ok().flatten();
            let is_current = now.is_some_and(|now| repository.is_ancestor(head, &now).unwrap_or(false));
            if !follows && is_current {
                behind.push((scenario.clone(), head.clone(), served));
            }
        }
        Ok::<bool, CliError>(behind.is_empty())
    });
    followed.ok()?;
    let findings = behind.into_iter().map(|(scenario, head, served)| {
        warning(
            HEADS,
            format!(
                "the service serves {} of {scenario} and the head is {}",
                format::short(served.as_str()),
                format::short(head.as_str())
            ),
            "reef status --url says why it is not live; reef logs --level warn has the failed load",
        )
    });
    Some(findings.collect())
}
