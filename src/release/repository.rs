//! The bare repository: its creation, its lock, and the handle every operation opens.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::time::Duration;

use super::ReleaseError;
use super::error::{git_at, io_at};
use super::git::{self, Git};
use super::large::Known;
use super::lfs::LfsStore;
use super::lock::{self, Share};
use crate::sys::net::Proxies;
use crate::sys::{durable, random};

/// Files over this many bytes go through LFS whatever their name.
pub const LFS_THRESHOLD: u64 = 256 * 1024;

/// The configuration stock git sees. Pushes into the repository may only extend chains.
const CONFIG: &str = "\
[core]
\trepositoryformatversion = 0
\tfilemode = true
\tbare = true
\thooksPath = /dev/null
\tautocrlf = false
\tfsync = committed,reference
[gc]
\tauto = 0
[maintenance]
\tauto = false
[receive]
\tdenyNonFastForwards = true
\tdenyDeletes = true
\tautogc = false
[uploadpack]
\tallowReachableSHA1InWant = true
";

/// The configuration libgit2 sees, instead of every other file: write through to the disk.
const OWN_CONFIG: &str = "\
[core]
\trepositoryformatversion = 0
\tbare = true
\tfsyncObjectFiles = true
";
const OWN_CONFIG_NAME: &str = "reef.config";

/// How long a short operation of another process is waited for.
const LOCK_PATIENCE: Duration = Duration::from_secs(20);

/// What a deployment may set.
#[derive(Debug, Clone)]
pub struct RepositoryOptions {
    /// Files over this many bytes go through LFS.
    pub lfs_threshold: u64,
    /// `key=value` settings for the git program, such as a credential helper for a remote.
    pub git_settings: Vec<String>,
    /// How long one run of the git program may take.
    pub git_timeout: Duration,
    /// The proxies on the way to remotes.
    pub proxies: Proxies,
}

impl Default for RepositoryOptions {
    fn default() -> Self {
        Self {
            lfs_threshold: LFS_THRESHOLD,
            git_settings: Vec::new(),
            git_timeout: Duration::from_secs(3600),
            proxies: Proxies::default(),
        }
    }
}

/// The artifact repository with its cache of materialised releases. Cheap to clone; every operation opens git anew, so
/// that it sees what other processes did.
#[derive(Debug, Clone)]
pub struct Repository {
    path: PathBuf,
    cache: PathBuf,
    pub(super) options: RepositoryOptions,
    pub(super) lfs: LfsStore,
    pub(super) known: Known,
}

impl Repository {
    /// Opens the repository at `path`, creating it whole or not at all. `cache` is where releases are materialised.
    /// Blocking, as everything here.
    pub fn open(path: &Path, cache: &Path, options: RepositoryOptions) -> Result<Self, ReleaseError> {
        shut_out_user_configuration();
        let path = std::path::absolute(path).map_err(io_at("resolve", path))?;
        let cache = std::path::absolute(cache).map_err(io_at("resolve", cache))?;
        let exists = path.join("HEAD").is_file();
        if !exists {
            git::check_programs()?;
            create(&path)?;
        }
        let repository = Self {
            lfs: LfsStore::new(&path, &cache),
            path,
            cache,
            options,
            known: Known::default(),
        };
        repository.git()?;
        Ok(repository)
    }

    /// Opens the repository only if there is one.
    pub fn open_existing(path: &Path, cache: &Path, options: RepositoryOptions) -> Result<Self, ReleaseError> {
        if !path.join("HEAD").is_file() {
            return Err(ReleaseError::NotFound {
                what: format!("an artifact repository at {}", path.display()),
            });
        }
        Self::open(path, cache, options)
    }

    /// Holds that git and git-lfs can be run.
    pub fn check_programs() -> Result<(), ReleaseError> {
        git::check_programs()
    }

    /// Where the bare repository is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where releases are materialised.
    pub fn cache(&self) -> &Path {
        &self.cache
    }

    /// A fresh handle that reads no configuration but Reef's own.
    pub(super) fn git(&self) -> Result<git2::Repository, ReleaseError> {
        let repository = git2::Repository::open_bare(&self.path).map_err(git_at("open"))?;
        let own = self.path.join(OWN_CONFIG_NAME);
        let config = match own.is_file() {
            true => git2::Config::open(&own),
            // A repository cloned or copied by hand becomes Reef's on first use.
            false => match durable::write(&own, OWN_CONFIG.as_bytes()) {
                Ok(()) => git2::Config::open(&own),
                // What can only be read needs no settings for writing.
                Err(error)
                    if matches!(
                        error.kind(),
                        ErrorKind::ReadOnlyFilesystem | ErrorKind::PermissionDenied
                    ) =>
                {
                    git2::Config::new()
                }
                Err(error) => return Err(io_at("write", &own)(error)),
            },
        };
        let config = config.map_err(git_at("read the configuration of"))?;
        repository.set_config(&config).map_err(git_at("configure"))?;
        Ok(repository)
    }

    /// The git program on this repository.
    pub(super) fn program(&self) -> Git {
        Git::new(&self.path, &self.options)
    }

    /// The lock around every move of a ref by Reef. It ends with the process that holds it.
    pub(super) fn lock(&self) -> Result<File, ReleaseError> {
        let path = self.path.join("reef.lock");
        lock::take(&path, Share::Alone, LOCK_PATIENCE, Duration::from_millis(20))
    }
}

/// Builds the repository beside its place and renames it there; a second process that does the same loses quietly.
fn create(path: &Path) -> Result<(), ReleaseError> {
    let parent = path.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(parent).map_err(io_at("create", parent))?;
    let part = parent.join(format!(".artifacts.part-{}", random::hex_token()));
    let result = (|| {
        let mut options = git2::RepositoryInitOptions::new();
        options.bare(true).external_template(false).initial_head("main");
        git2::Repository::init_opts(&part, &options).map_err(git_at("create"))?;
        for (name, text) in [
            ("config", CONFIG),
            (OWN_CONFIG_NAME, OWN_CONFIG),
            (
                "description",
                "Releases of Reef. Chains: refs/reef/scenarios/<name>/head.\n",
            ),
        ] {
            let file = part.join(name);
            durable::write(&file, text.as_bytes()).map_err(io_at("write", &file))?;
        }
        for dir in ["lfs/objects", "lfs/tmp", "reef-home"] {
            let dir = part.join(dir);
            fs::create_dir_all(&dir).map_err(io_at("create", &dir))?;
        }
        match fs::rename(&part, path) {
            Ok(()) => durable::sync_dir(parent).map_err(io_at("sync", parent)),
            Err(_) if path.join("HEAD").is_file() => Ok(()),
            Err(error) => Err(io_at("create", path)(error)),
        }
    })();
    if part.exists() {
        // Either it failed, and that error is returned, or another process was first.
        let _left_over = fs::remove_dir_all(&part);
    }
    result
}

/// libgit2 looks for system, global and XDG configuration in directories it is told of: it is told of none.
fn shut_out_user_configuration() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        for level in [
            git2::ConfigLevel::ProgramData,
            git2::ConfigLevel::System,
            git2::ConfigLevel::XDG,
            git2::ConfigLevel::Global,
        ] {
            // SAFETY: the function writes process-wide state of libgit2 and must not run beside another libgit2 call.
            // It runs once, before the first repository is opened, and `Once` makes other openers wait.
            #[allow(unsafe_code)]
            let set = unsafe { git2::opts::set_search_path(level, "") };
            if let Err(error) = set {
                tracing::warn!(%error, "libgit2 keeps looking for user configuration");
            }
        }
        // Whose files these are is for the deployment to say: a group may share them, and who may only read them may look.
        // Nothing in them is run, and their configuration is not read.
        // SAFETY: as above.
        #[allow(unsafe_code)]
        let set = unsafe { git2::opts::set_verify_owner_validation(false) };
        if let Err(error) = set {
            tracing::warn!(%error, "libgit2 opens only what belongs to this user");
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn creation_is_whole_and_repeatable() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deep/artifacts.git");
        for _ in 0..2 {
            Repository::open(&path, &dir.path().join("cache"), RepositoryOptions::default()).unwrap();
        }
        let names: Vec<_> = fs::read_dir(path.parent().unwrap()).unwrap().collect();
        assert_eq!(names.len(), 1, "{names:?}");
        assert!(path.join("config").is_file());
    }

    #[test]
    fn opening_what_is_not_there_creates_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("artifacts.git");
        let error = Repository::open_existing(&path, dir.path(), RepositoryOptions::default()).unwrap_err();
        assert!(matches!(error, ReleaseError::NotFound { .. }));
        assert!(!path.exists());
    }
}
