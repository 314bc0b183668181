//! `release`

use std::path::PathBuf;
use std::time::Duration;

use crate::config::{Secret, Size, section};

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
        /// Releases of each scenario whose content `reef release gc` keeps beside the served one; 0 keeps all.
        retention: u32 = 0;
        /// How long content without a release is kept before it is collected, in hours.
        gc_grace_h: f64 = 24.0, min 0.0;
    }
}
