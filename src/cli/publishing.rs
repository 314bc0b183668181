//! How the release chain speaks to the command line: where its files are, and how its failures exit.

use std::time::Duration;

use crate::config::{OlderReleases, Settings};
use crate::harness::client::Home;
use crate::release::{Keep, Older, ReleaseError, Remote, Repository, RepositoryOptions, Trouble};
use crate::scenario::{BaseSeed, PublishError, Publisher, Room};

use super::context::{Store, read_only};
use super::error::disk_step;
use super::{CliError, Context, Exit, harness};

impl Context {
    /// The publisher on the configured files.
    pub(crate) fn publisher(&self, missing: Store) -> Result<Publisher, CliError> {
        self.publisher_of(self.settings()?, missing)
    }

    /// The same with settings of a command's own.
    pub(crate) fn publisher_of(&self, settings: &Settings, missing: Store) -> Result<Publisher, CliError> {
        let storage = &settings.storage;
        if missing != Store::Create && !storage.artifacts_git().join("HEAD").is_file() {
            return Err(CliError::new(
                Exit::Usage,
                format!(
                    "there is no artifact repository at {}",
                    storage.artifacts_git().display()
                ),
            )
            .hint(
                "reef serve and reef scenario create make it; or name the directory that holds it with --dir or -c",
            ));
        }
        self.claim(settings);
        let release = &settings.release;
        let options = RepositoryOptions {
            lfs_threshold: release.lfs_threshold.0,
            git_settings: release
                .git_settings
                .iter()
                .map(|setting| setting.expose().to_owned())
                .collect(),
            git_timeout: release.git_timeout_s,
            proxies: settings.proxies()?,
        };
        if missing == Store::Shown && read_only(settings) {
            let experience = self.store_of(settings, missing)?;
            let (repository, cache) = (storage.artifacts_git(), storage.cache_dir());
            return Ok(Publisher::open_read_only(&repository, &cache, experience, options)?);
        }
        let experience = self.store_of(settings, Store::Create)?;
        let mirror = mirror(settings)?;
        let publisher = Publisher::open(
            &storage.artifacts_git(),
            &storage.cache_dir(),
            &storage.run_dir(),
            experience,
            options,
        )?;
        if let Some(mirror) = mirror {
            publisher.push_everything_to(mirror);
        }
        if missing == Store::Create
            && let Some(trees) = harness::trees(settings)?
        {
            publisher.start_scenarios_with(trees.seed()?);
        }
        Ok(publisher)
    }
}

/// The remote that every release is pushed to, as configured.
fn mirror(settings: &Settings) -> Result<Option<Remote>, CliError> {
    let release = &settings.release;
    match &release.remote {
        Some(url) if release.push => {
            let remote = Remote::new(url, release.lfs_url.clone());
            let remote = remote.map_err(|error| CliError::from(error).of_setting(settings, "release.remote"))?;
            Ok(Some(remote.that_follows()))
        }
        None if release.push => Err(settings
            .fault("release.push", "is on and release.remote is not set")
            .hint("set release.remote to the git remote to push to, or release.push to false")
            .into()),
        _ => Ok(None),
    }
}

/// Whether releases can be published and pushed as configured, and new scenarios can begin; gives where they are pushed.
pub(crate) fn check(settings: &Settings) -> Result<Option<String>, CliError> {
    let mirror = mirror(settings)?;
    let storage = &settings.storage;
    if let Some(dir) = &settings.release.base {
        let options = RepositoryOptions::default();
        // A repository that has its base needs the directory no more. What is wrong with a repository is told elsewhere.
        let based = Repository::open_existing(&storage.artifacts_git(), &storage.cache_dir(), options)
            .and_then(|repository| repository.base())
            .is_ok_and(|base| base.is_some());
        if !based {
            Repository::check_directory(dir, None).map_err(|error| {
                CliError::from_error(Exit::Usage, error)
                    .of_setting(settings, "release.base")
                    .hint("name a directory whose files every new scenario starts with, or leave release.base out")
            })?;
        }
    }
    Ok(mirror.map(|remote| format!("pushed to {}", remote.shown())))
}

/// How much room releases may take, as configured.
pub(crate) fn room(context: &Context, settings: &Settings) -> Room {
    let release = &settings.release;
    let count = |n: u32| (n > 0).then_some(n as usize);
    Room {
        keep: Keep {
            contents: count(release.retention),
            older: match release.retention_older {
                OlderReleases::Doubling => Older::Doubling,
                OlderReleases::Daily => Older::Daily,
                OlderReleases::Nothing => Older::Nothing,
            },
            states: count(release.retention_states),
            max_bytes: Some(release.retention_max_bytes.0),
        },
        grace: Duration::try_from_secs_f64(release.gc_grace_h * 3600.0).unwrap_or(Duration::MAX),
        min_free: settings.storage.min_free.0,
        // Without a home nothing is installed.
        home: Home::new(context.env("HOME"), context.env("XDG_DATA_HOME")).ok(),
    }
}

/// What new scenarios begin with, as configured.
pub(crate) fn base_seed(settings: &Settings) -> BaseSeed {
    match &settings.release.base {
        Some(dir) => BaseSeed::Directory(dir.clone()),
        None => BaseSeed::Empty,
    }
}

impl From<ReleaseError> for CliError {
    fn from(error: ReleaseError) -> Self {
        let (exit, hint) = match &error {
            ReleaseError::Conflict { .. } => (
                Exit::Conflict,
                Some("somebody released in the meantime: look at reef release log, judge again, then repeat"),
            ),
            ReleaseError::Diverged { .. } => (
                Exit::Conflict,
                Some(
                    "one of the two must give way: reef release push --force puts the chain of here there; reef scenario \
                     delete, which archives the chain of here, and then reef release pull bring the one from there. \
                     reef release export and import carry a release over",
                ),
            ),
            ReleaseError::NotFound { .. } => (Exit::Usage, Some("reef release list shows what there is")),
            ReleaseError::Ambiguous { .. }
            | ReleaseError::BadContent { .. }
            | ReleaseError::Unreadable { .. }
            | ReleaseError::Program { .. }
            | ReleaseError::FileGone { .. } => (Exit::Usage, None),
            ReleaseError::NotRestorable { .. } => (
                Exit::Usage,
                Some(
                    "reef release list shows which are whole; release.retention and reef release pin say what stays so",
                ),
            ),
            ReleaseError::Damaged { .. } => (
                Exit::Store,
                Some("reef release verify names everything that is damaged"),
            ),
            ReleaseError::Refused { .. } => (
                Exit::Store,
                Some("nothing moved here; run reef release verify where it was pushed from"),
            ),
            ReleaseError::BadRemote { .. } => (Exit::Usage, None),
            ReleaseError::Command { .. } => match error.trouble() {
                Some(Trouble::Unreachable) => (Exit::Unavailable, None),
                Some(Trouble::NoRepository) => (
                    Exit::Usage,
                    Some("name a bare git repository with LFS: git init --bare makes one"),
                ),
                Some(Trouble::Other) | None => (Exit::Store, Some("reef release verify names what is damaged here")),
            },
            ReleaseError::Io { source, .. } => (Exit::Store, disk_step(source.kind())),
            ReleaseError::Locked { .. } | ReleaseError::Git { .. } => (Exit::Store, None),
        };
        let failure = Self::from_error(exit, error);
        match hint {
            Some(hint) => failure.hint(hint),
            None => failure,
        }
    }
}

impl From<PublishError> for CliError {
    fn from(error: PublishError) -> Self {
        match error {
            PublishError::Release(error) => error.into(),
            PublishError::Store(error) => error.into(),
            PublishError::UnknownScenario { .. } | PublishError::NotHeld { .. } | PublishError::NeverServed { .. } => {
                Self::from_error(Exit::Usage, error)
            }
            PublishError::ChainGone { ref name, .. } => {
                let hints = [
                    "reef release pull brings the chain back from a remote that has it".to_owned(),
                    format!("reef scenario delete {name} --yes gives it up and frees the name"),
                ];
                let failure = Self::from_error(Exit::Store, error);
                hints.into_iter().fold(failure, Self::hint)
            }
            PublishError::Panicked(_) => Self::from_error(Exit::Unexpected, error),
            PublishError::Unsettled { .. } | PublishError::Restless { .. } => Self::from_error(Exit::Store, error),
            PublishError::ReadOnly { .. } => {
                Self::from_error(Exit::Store, error).hint("run it as the user that the directory belongs to")
            }
            PublishError::Stopped => Self::from_error(Exit::Interrupted, error),
        }
    }
}
