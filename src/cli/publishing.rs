//! How the release chain speaks to the command line: where its files are, and how its failures exit.

use crate::config::Settings;
use crate::release::{ReleaseError, Remote, RepositoryOptions};
use crate::scenario::{BaseSeed, PublishError, Publisher};

use super::context::Store;
use super::{CliError, Context, Exit, harness};

impl Context {
    /// The publisher on the configured files.
    pub(crate) fn publisher(&self, missing: Store) -> Result<Publisher, CliError> {
        self.publisher_of(self.settings()?, missing)
    }

    /// The same with settings of a command's own.
    pub(crate) fn publisher_of(&self, settings: &Settings, missing: Store) -> Result<Publisher, CliError> {
        let storage = &settings.storage;
        if missing == Store::MustExist && !storage.artifacts_git().join("HEAD").is_file() {
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
        let release = &settings.release;
        let options = RepositoryOptions {
            lfs_threshold: release.lfs_threshold.0,
            git_settings: release.git_settings.clone(),
            git_timeout: release.git_timeout_s,
        };
        let experience = self.store_of(settings, Store::Create)?;
        let mirror = match &release.remote {
            Some(url) if release.push => Some(Remote::new(url, release.lfs_url.clone())),
            None if release.push => {
                return Err(
                    CliError::new(Exit::Usage, "release.push is on and release.remote is not set")
                        .hint("set release.remote to the git remote to push to, or release.push to false"),
                );
            }
            _ => None,
        };
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
                Some("reef release pull brings what the other side has; --force replaces it with what is here"),
            ),
            ReleaseError::NotFound { .. } => (Exit::Usage, Some("reef release list shows what there is")),
            ReleaseError::Ambiguous { .. } | ReleaseError::BadContent { .. } | ReleaseError::Program { .. } => {
                (Exit::Usage, None)
            }
            ReleaseError::NotRestorable { .. } => (Exit::Usage, None),
            ReleaseError::Damaged { .. } => (
                Exit::Store,
                Some("reef release verify names everything that is damaged"),
            ),
            ReleaseError::Command { .. } => (Exit::Unavailable, None),
            ReleaseError::Locked { .. } | ReleaseError::Io { .. } | ReleaseError::Git { .. } => (Exit::Store, None),
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
            PublishError::Unsettled { .. } => Self::from_error(Exit::Store, error),
            PublishError::Stopped => Self::from_error(Exit::Interrupted, error),
        }
    }
}
