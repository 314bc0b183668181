//! `release`

use std::path::PathBuf;
use std::time::Duration;

use crate::config::{Secret, Size, choice, section};

choice! {
    /// What is kept of releases older than the newest few.
    pub OlderReleases {
        /// One in each doubling of age.
        Doubling = "doubling",
        /// The last of each day.
        Daily = "daily",
        /// Nothing.
        Nothing = "none",
    }
}

section! {
    /// The chain of releases.
    pub Release in "release" {
        /// A git remote that releases are pushed to and pulled from: a path, `ssh://`, `https://`.
        remote: Option<String>;
        /// Push every release to the remote as it is published; a push that fails is logged and made good by the next.
        push: bool = false;
        /// The LFS server of the remote, where it is not the one the remote implies.
        lfs_url: Option<String>;
        /// `key=value` settings for the git program, such as `credential.helper=store`: Reef's git reads no other
        /// configuration.
        git_settings: Vec<Secret> = [];
        /// Seconds after which one run of the git program is given up.
        git_timeout_s: Duration = 3600.0, min 1.0;
        /// A directory whose files are what every new scenario starts with; used once, when the repository is made.
        base: Option<PathBuf>;
        /// Files larger than this are stored as LFS objects; weight files always are.
        lfs_threshold: Size = "256KiB";
        /// Releases of each scenario whose content is kept beside the served one, the newest first; 0 keeps all.
        retention: u32 = 16;
        /// What is kept of older releases: `doubling` keeps one in each doubling of age (of the last 32, of the last 64, and
        /// so on), `daily` the last of each day, `none` nothing.
        retention_older: OlderReleases = "doubling";
        /// Releases of each scenario whose training state (optimizer, critic) is kept beside that of the served one; 0 keeps
        /// all. A release without it serves as before; training that goes on from it starts a fresh optimizer.
        retention_states: u32 = 2;
        /// The large files of all releases go, training state and the oldest first, while they take more than this. What is
        /// served, held, pinned or in use stays; where that alone takes more, no step begins.
        retention_max_bytes: Size = "20GiB";
        /// How long content without a release is kept before it is collected, in hours.
        gc_grace_h: f64 = 24.0, min 0.0;
    }
}
