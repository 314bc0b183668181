//! What the files say of each other: whether the clock agrees with them, and whether the chain, the store and the service speak of the same release.

use super::{Finding, bad, good, warning, with_causes};
use crate::cli::{client::Client, format, running};
use crate::config::Settings;
use crate::domain::{ReleaseId, ScenarioName};
use crate::experience::{ChainEnds, Experience, StoreOptions};
use crate::release::{ReleaseError, Repository, RepositoryOptions};
use crate::scenario::is_lost;
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
            format!("it says {}, which is before Reef existed", format::moment(now)),
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
                format::moment(newest)
            ),
            fix,
        ),
        _ => good(check, format!("{} UTC", format::moment(now))),
    }
}

fn read_only(settings: &Settings) -> Option<Experience> {
    let options = StoreOptions {
        readers: 1,
        ..StoreOptions::default()
    };
    Experience::open_read_only(&settings.storage.experience_db(), options).ok()
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
    let found = match opened.and_then(|repository| Ok((repository.scenarios()?, repository))) {
        Ok((heads, repository)) => Some((repository, heads)),
        Err(ReleaseError::NotFound { .. }) => None,
        Err(error) => return vec![bad(HEADS, with_causes(error), BRING_BACK)],
    };
    if !storage.experience_db().exists() {
        let chains = found.map_or(0, |(_, heads)| heads.len());
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
    let Some(ends) = read_only(settings).and_then(|store| store.chain_ends(None).ok()) else {
        return Vec::new();
    };
    let Some((repository, heads)) = found else {
        let lost = (!ends.is_empty()).then(|| {
            bad(
                HEADS,
                format!(
                    "there is no artifact repository at {}, and the store knows the chains of {} scenarios",
                    storage.artifacts_git().display(),
                    ends.len()
                ),
                BRING_BACK,
            )
        });
        return lost.into_iter().collect();
    };
    let mut findings: Vec<Finding> = ends.iter().filter_map(|ends| chain(&repository, ends)).collect();
    for (scenario, _) in &heads {
        if !ends.iter().any(|ends| ends.scenario == *scenario) {
            findings.push(behind(scenario));
        }
    }
    let status = running::find(settings).and_then(|note| {
        let client = Client::new(context, &note.url).ok()?;
        context.block_on(client.get("/reef/status")).ok()
    });
    if let Some(status) = &status {
        findings.extend(
            heads
                .iter()
                .filter_map(|(scenario, head)| served(status, scenario, head)),
        );
    }
    if findings.is_empty() && !ends.is_empty() {
        let with = if status.is_some() {
            "chain, store and service agree"
        } else {
            "chain and store agree"
        };
        findings.push(good(HEADS, format!("{with} on {} scenarios", ends.len())));
    }
    findings
}

/// What is wrong with the chain of a scenario that the store knows: that it is gone, that its newest release cannot be
/// read, or that the store has not seen it yet.
fn chain(repository: &Repository, ends: &ChainEnds) -> Option<Finding> {
    let scenario = &ends.scenario;
    let unreadable = |error: ReleaseError| {
        let detail = format!("the chain of {scenario} cannot be read: {}", with_causes(error));
        Some(bad(HEADS, detail, BRING_BACK))
    };
    match is_lost(repository, ends) {
        Ok(false) => {}
        Ok(true) => {
            let last = format::short(ends.head.as_str());
            let detail =
                format!("the chain of {scenario}, which ended in {last}, is gone from the artifact repository");
            return Some(bad(HEADS, detail, BRING_BACK));
        }
        Err(error) => return unreadable(error),
    }
    let head = match repository.head(scenario) {
        Ok(head) => head?,
        Err(error) => return unreadable(error),
    };
    match repository.missing_object(&head) {
        Ok(None) if head == ends.head => None,
        Ok(None) => Some(behind(scenario)),
        Ok(Some(file)) => Some(bad(
            HEADS,
            format!(
                "release {} that {scenario} serves lacks its file {}",
                format::short(head.as_str()),
                file.path
            ),
            "reef release pull --objects all brings it from a remote; otherwise restore artifacts.git from a backup",
        )),
        Err(error) => unreadable(error),
    }
}

fn behind(scenario: &ScenarioName) -> Finding {
    warning(
        HEADS,
        format!("the chain of {scenario} is ahead of the store"),
        format!("reef release list --scenario {scenario} brings the store up to date"),
    )
}

fn served(status: &serde_json::Value, scenario: &ScenarioName, head: &ReleaseId) -> Option<Finding> {
    let served = status["scenarios"][scenario.as_str()]["release_id"].as_str()?;
    (served != head.as_str()).then(|| {
        warning(
            HEADS,
            format!(
                "the service serves {} of {scenario} and the head is {}",
                format::short(served),
                format::short(head.as_str())
            ),
            "reef status --url says why it is not live; reef logs --level warn has the failed load",
        )
    })
}
