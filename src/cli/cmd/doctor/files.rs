//! What the files say of themselves and of each other: who may change them, whether the clock agrees with them, and
//! whether the chain, the store and the service speak of the same release.

use std::os::unix::fs::MetadataExt;

use super::{Finding, bad, good, warning};
use crate::cli::{client::Client, format, running};
use crate::config::Settings;
use crate::experience::{Experience, StoreOptions};
use crate::release::{Repository, RepositoryOptions};
use crate::sys::clock;

/// A record this far in the future says that the clock was turned back.
const SKEW_US: i64 = 60 * 1_000_000;
/// 2024-01-01: a clock before it was never set.
const NEVER_SET_US: i64 = 1_704_067_200_000_000;

/// Whoever can write here can change what is served.
pub(super) fn permissions(settings: &Settings) -> Option<Finding> {
    let check = "permissions";
    let storage = &settings.storage;
    let owner = rustix::process::geteuid().as_raw();
    let paths = [storage.dir.clone(), storage.experience_db(), storage.artifacts_git()];
    let mut seen = false;
    for path in paths {
        let Ok(metadata) = std::fs::metadata(&path) else {
            continue;
        };
        seen = true;
        if metadata.mode() & 0o002 != 0 {
            return Some(bad(
                check,
                format!("everybody on this machine may write to {}", path.display()),
                format!("chmod -R o-w {}", storage.dir.display()),
            ));
        }
        if metadata.uid() != owner {
            return Some(warning(
                check,
                format!(
                    "{} belongs to user {}, this is user {owner}",
                    path.display(),
                    metadata.uid()
                ),
                format!("run as that user, or chown -R {owner} {}", storage.dir.display()),
            ));
        }
    }
    seen.then(|| {
        good(
            check,
            "the files belong to this user, and nobody else may write to them",
        )
    })
}

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

/// For every scenario: the head of the chain in git, the newest release in the store, and what a running service serves.
pub(super) fn heads(context: &crate::cli::Context, settings: &Settings) -> Vec<Finding> {
    let check = "heads";
    let storage = &settings.storage;
    let Some(store) = read_only(settings) else {
        return Vec::new();
    };
    let opened = Repository::open_existing(
        &storage.artifacts_git(),
        &storage.cache_dir(),
        RepositoryOptions::default(),
    );
    let Ok(repository) = opened else {
        return Vec::new();
    };
    let heads = match repository.scenarios() {
        Ok(heads) => heads,
        Err(error) => {
            return vec![bad(
                check,
                error.to_string(),
                "reef release verify names what is damaged",
            )];
        }
    };
    let status = running::find(settings).and_then(|note| {
        let client = Client::new(context, &note.url).ok()?;
        context.block_on(client.get("/reef/status")).ok()
    });
    let mut findings = Vec::new();
    let count = heads.len();
    for (scenario, head) in heads {
        if store
            .indexed_head(&scenario)
            .ok()
            .flatten()
            .is_some_and(|indexed| indexed != head)
        {
            findings.push(warning(
                check,
                format!("the chain of {scenario} is ahead of the store"),
                format!("reef release list --scenario {scenario} brings the store up to date"),
            ));
        }
        let served = status
            .as_ref()
            .and_then(|status| status["scenarios"][scenario.as_str()]["release_id"].as_str());
        if let Some(served) = served.filter(|served| *served != head.as_str()) {
            findings.push(warning(
                check,
                format!(
                    "the service serves {} of {scenario} and the head is {}",
                    format::short(served),
                    format::short(head.as_str())
                ),
                "reef status --url says why it is not live; reef logs --level warn has the failed load",
            ));
        }
    }
    if findings.is_empty() && count > 0 {
        let with = if status.is_some() {
            "chain, store and service agree"
        } else {
            "chain and store agree"
        };
        findings.push(good(check, format!("{with} on {count} scenarios")));
    }
    findings
}
