//! `release`

use crate::config::{Size, section};

section! {
    /// The chain of releases.
    pub Release in "release" {
        /// A git remote that releases are pushed to.
        remote: Option<String>;
        /// Push every release to the remote as it is published.
        push: bool = false;
        /// Files of at least this size are stored as LFS objects; weight files always are.
        lfs_threshold: Size = "1MiB";
        /// Releases of each scenario whose content is kept beside the served one; 0 keeps all.
        retention: u32 = 0;
        /// How long content without a release is kept before it is collected, in hours.
        gc_grace_h: f64 = 24.0, min 0.0;
    }
}
