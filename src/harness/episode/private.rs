//! What no agent is to see of this machine: homes, and what a deployment keeps.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Places of this machine that no agent is to see.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Private {
    homes: BTreeSet<PathBuf>,
    hidden: BTreeSet<PathBuf>,
}

impl Private {
    /// The homes of this machine's users, `home` (that of whoever runs Reef), and what a deployment keeps.
    pub fn new(home: Option<&Path>, kept: impl IntoIterator<Item = PathBuf>) -> Self {
        let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
        let me = rustix::process::getuid().as_raw().to_string();
        let mut private = Self::default();
        for line in users.lines() {
            let fields: Vec<&str> = line.split(':').collect();
            let [_, _, id, _, _, dir, ..] = fields[..] else {
                continue;
            };
            private.homes.extend(spellings(Path::new(dir)));
            if id == me {
                private.hide(Path::new(dir));
            }
        }
        if let Some(home) = home {
            private.homes.extend(spellings(home));
            private.hide(home);
        }
        for path in kept {
            private.hide(&path);
        }
        // Homes of accounts without one.
        private.homes.retain(|dir| !is_of_the_system(dir));
        private
    }

    /// As this, with more that is kept.
    #[must_use]
    pub fn with(mut self, kept: impl IntoIterator<Item = PathBuf>) -> Self {
        for path in kept {
            self.hide(&path);
        }
        self
    }

    /// What is covered where something above it is shown.
    pub fn hidden(&self) -> Vec<PathBuf> {
        self.hidden
            .iter()
            .filter(|path| !is_of_the_system(path))
            .cloned()
            .collect()
    }

    fn hide(&mut self, path: &Path) {
        self.hidden.extend(spellings(path));
    }

    pub(super) fn is_home(&self, dir: &Path) -> bool {
        let below = |top: &str| dir.parent() == Some(Path::new(top));
        self.homes.contains(dir) || dir == Path::new("/root") || below("/home") || below("/Users")
    }

    /// Whether a directory is a home, holds one, or holds what is kept.
    pub(super) fn holds_private(&self, dir: &Path) -> bool {
        let tops = ["/root", "/home", "/Users"].map(Path::new);
        self.is_home(dir)
            || tops.iter().any(|top| top.starts_with(dir))
            || self.homes.iter().chain(&self.hidden).any(|kept| kept.starts_with(dir))
    }

    /// Whether it is a directory of settings in a home, as `~/.local`.
    pub(super) fn is_dot_directory(&self, dir: &Path) -> bool {
        dir.file_name()
            .is_some_and(|name| name.as_encoded_bytes().starts_with(b"."))
            && dir.parent().is_some_and(|home| self.is_home(home))
    }
}

/// A path as it was written, and as it is.
fn spellings(path: &Path) -> impl Iterator<Item = PathBuf> {
    let written = std::path::absolute(path).ok();
    let real = path.canonicalize().ok();
    written.into_iter().chain(real)
}

/// Directories of every machine of this kind, which hold nothing of a deployment's own.
pub(super) fn is_of_the_system(dir: &Path) -> bool {
    const TOPS: [&str; 6] = ["/opt", "/srv", "/var", "/mnt", "/tmp", "/usr/local"];
    let in_order: Vec<_> = dir.components().collect();
    let (system, local) = (dir.starts_with("/usr"), dir.starts_with("/usr/local"));
    let known = [
        "bin", "etc", "games", "include", "lib", "lib64", "libexec", "sbin", "share", "src", "man",
    ];
    let name = dir.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    in_order.len() < 2
        || TOPS.iter().any(|top| dir == Path::new(top))
        || (system && !local && in_order.len() <= 3 && name != "home")
        || (local && in_order.len() <= 4 && known.contains(&name))
        || ["/bin", "/sbin", "/lib", "/lib64", "/dev", "/proc", "/sys", "/run"]
            .iter()
            .any(|top| dir.starts_with(top))
}
