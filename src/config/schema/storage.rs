//! `storage`

use std::path::PathBuf;

use crate::config::{Size, choice, section};
use crate::sys::access::Access;

choice! {
    /// What happens to a request whose record cannot be stored.
    pub OnFailure {
        /// It is answered, without a receipt and with `x-reef-recorded: false`.
        Serve = "serve",
        /// It gets 503.
        Refuse = "refuse",
    }
}

choice! {
    /// Who may use Reef's files.
    pub FileAccess {
        /// The user who runs Reef.
        Owner = "owner",
        /// The group of the directory, too.
        Group = "group",
    }
}

section! {
    /// Where Reef keeps its files, and for how long.
    pub Storage in "storage" {
        /// Directory of everything Reef keeps: `experience.db`, `artifacts.git`, `work`, `cache`, `run`, `logs`.
        dir: PathBuf = ".reef", env "REEF_DIR";
        /// Who may read and write these files, whatever the umask: `owner` is the user who runs Reef, `group` also the group
        /// that the directory belongs to. `reef doctor --fix` brings files that exist in line.
        access: FileAccess = "owner";
        /// What happens to a request whose record cannot be stored: `serve` answers it without a receipt, `refuse` gives
        /// 503.
        on_failure: OnFailure = "serve";
        /// Bodies of records are dropped, oldest first, while they take more than this; ids and digests stay for ever.
        retention_max_bytes: Size = "20GiB";
        /// Bodies of records older than this many days are dropped.
        retention_days: Option<f64>, min 0.0;
        /// With less than this free on the disk no training step begins, and releases are thinned; requests are answered and
        /// recorded as before. 0 looks at nothing.
        min_free: Size = "1GiB";
        /// The recorded part of one request or response; what is beyond passes through unrecorded.
        max_recorded_body: Size = "64MiB";
        /// Records waiting to be written; a further one waits for its turn.
        write_queue: u32 = 4096, min 1.0;
    }
}

impl Storage {
    /// Who may use the files.
    pub fn who(&self) -> Access {
        match self.access {
            FileAccess::Owner => Access::Owner,
            FileAccess::Group => Access::Group,
        }
    }

    /// The store of experience.
    pub fn experience_db(&self) -> PathBuf {
        self.dir.join("experience.db")
    }

    /// The repository of releases.
    pub fn artifacts_git(&self) -> PathBuf {
        self.dir.join("artifacts.git")
    }

    /// Scratch space for work in progress.
    pub fn work_dir(&self) -> PathBuf {
        self.dir.join("work")
    }

    /// What can be made again.
    pub fn cache_dir(&self) -> PathBuf {
        self.dir.join("cache")
    }

    /// Process ids and sockets.
    pub fn run_dir(&self) -> PathBuf {
        self.dir.join("run")
    }

    /// Logs.
    pub fn log_dir(&self) -> PathBuf {
        self.dir.join("logs")
    }
}
