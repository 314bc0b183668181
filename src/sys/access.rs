//! Who may read what Reef makes. What it keeps is private whatever the umask: the process takes a stricter one before it
//! makes the first file of a deployment, because SQLite, git and git-lfs obey it too. What a person asked for elsewhere
//! (an export, a page) gets the modes their own umask allows.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::Mode;

/// The umask the process was started with; `NOT_YET` until it was replaced.
static GIVEN: AtomicU32 = AtomicU32::new(NOT_YET);
const NOT_YET: u32 = u32::MAX;
/// New files of a directory belong to its group.
const SETGID: u32 = 0o2000;

/// Who may use the files of a deployment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// The user who made them.
    Owner,
    /// Members of the directory's group, too.
    Group,
}

impl Access {
    /// The permissions that nobody has.
    pub fn denied(self) -> u32 {
        match self {
            Self::Owner => 0o077,
            Self::Group => 0o007,
        }
    }

    /// What the mode of a file or directory becomes.
    pub fn mend(self, mode: u32, directory: bool) -> u32 {
        let mode = mode & 0o7777 & !self.denied();
        match self {
            Self::Owner => mode,
            // What the owner may, the group may.
            Self::Group => mode | ((mode & 0o700) >> 3) | if directory { SETGID } else { 0 },
        }
    }
}

/// From now on, whatever this process and the programs it starts make is closed to others.
pub fn keep(access: Access) {
    let before = rustix::process::umask(Mode::from_raw_mode(access.denied()));
    // Only the first one was the user's.
    let _kept = GIVEN.compare_exchange(NOT_YET, before.as_raw_mode(), Ordering::Relaxed, Ordering::Relaxed);
}

/// Takes the user's umask again, for a program that stands in this one's place.
pub fn let_go() {
    rustix::process::umask(Mode::from_raw_mode(given_umask()));
}

/// The umask that the user gave this process.
pub fn given_umask() -> u32 {
    match GIVEN.load(Ordering::Relaxed) {
        NOT_YET => current_umask().unwrap_or(0o022),
        given => given,
    }
}

/// Asking for the umask by setting it would open a moment for other threads.
fn current_umask() -> Option<u32> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("Umask:"))?;
    u32::from_str_radix(line.trim(), 8).ok()
}

/// Gives a directory that was made for a person the modes that their umask allows. Blocking.
pub fn hand_over(path: &Path) -> io::Result<()> {
    let metadata = fs::symlink_metadata(path)?;
    if metadata.is_symlink() {
        return Ok(());
    }
    if metadata.is_dir() {
        for entry in fs::read_dir(path)? {
            hand_over(&entry?.path())?;
        }
    }
    let wide = if metadata.is_dir() || metadata.mode() & 0o100 != 0 {
        0o777
    } else {
        0o666
    };
    fs::set_permissions(path, Permissions::from_mode(wide & !given_umask()))
}

/// Makes the directory of a deployment; those above it, if missing, as the user's umask says. One that exists stays as it
/// is, but that a group gets what its setting promises.
pub fn make_dir(dir: &Path, access: Access) -> io::Result<()> {
    match fs::metadata(dir) {
        Ok(metadata) => {
            let wanted = access.mend(metadata.mode(), true);
            let mine = metadata.uid() == rustix::process::geteuid().as_raw();
            if access == Access::Group && mine && metadata.is_dir() && metadata.mode() & 0o7777 & wanted != wanted {
                return fs::set_permissions(dir, Permissions::from_mode(metadata.mode() & 0o7777 | wanted));
            }
            return Ok(());
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let above = dir.parent().filter(|above| !above.as_os_str().is_empty());
    above.map_or(Ok(()), make_given)?;
    match DirBuilder::new().mode(0o700).create(dir) {
        // Another process was first.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
        Ok(()) => {
            fs::set_permissions(dir, Permissions::from_mode(access.mend(0o700, true)))?;
            super::durable::sync_dir(above.unwrap_or(Path::new(".")))
        }
    }
}

/// Makes a directory and those above it that are missing, as the user's umask says.
pub fn make_given(dir: &Path) -> io::Result<()> {
    let missing: Vec<&Path> = dir
        .ancestors()
        .take_while(|path| !path.as_os_str().is_empty() && !path.exists())
        .collect();
    fs::create_dir_all(dir)?;
    missing
        .iter()
        .try_for_each(|made| fs::set_permissions(made, Permissions::from_mode(0o777 & !given_umask())))
}

/// What others may use below a directory, against its setting.
#[derive(Debug, Default)]
pub struct Open {
    /// What others may read or change (or a group may not, that should), with its mode.
    pub paths: Vec<(PathBuf, u32)>,
    /// What belongs to another user, with that user.
    pub foreign: Vec<(PathBuf, u32)>,
}

impl Open {
    /// Looks at one file or directory. A link says nothing, and what is not there or goes away is left out. Blocking.
    pub fn note(&mut self, path: &Path, access: Access) -> io::Result<()> {
        let Some(metadata) = there(fs::symlink_metadata(path))? else {
            return Ok(());
        };
        if metadata.is_symlink() {
            return Ok(());
        }
        if metadata.uid() != rustix::process::geteuid().as_raw() {
            self.foreign.push((path.to_owned(), metadata.uid()));
        } else if access.mend(metadata.mode(), metadata.is_dir()) != metadata.mode() & 0o7777 {
            self.paths.push((path.to_owned(), metadata.mode() & 0o7777));
        }
        Ok(())
    }

    /// Looks at one and at all below it. Blocking.
    pub fn note_all(&mut self, path: &Path, access: Access) -> io::Result<()> {
        self.note(path, access)?;
        if !fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_dir()) {
            return Ok(());
        }
        for entry in there(fs::read_dir(path))?.into_iter().flatten() {
            self.note_all(&entry?.path(), access)?;
        }
        Ok(())
    }
}

/// Looks at everything below `top`, itself first, and follows no link in it. Blocking.
pub fn look(top: &Path, access: Access) -> io::Result<Open> {
    let mut open = Open::default();
    if let Some(top) = there(fs::canonicalize(top))? {
        open.note_all(&top, access)?;
    }
    Ok(open)
}

fn there<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Closes what is open. The directory comes first, so that nobody changes what lies below it meanwhile. Blocking.
pub fn close(open: &Open, access: Access) -> io::Result<()> {
    for (path, mode) in &open.paths {
        let changed = fs::symlink_metadata(path).and_then(|metadata| {
            let mode = access.mend(*mode, metadata.is_dir());
            fs::set_permissions(path, Permissions::from_mode(mode))
        });
        match changed {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(io::Error::new(error.kind(), format!("{}: {error}", path.display())));
            }
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().mode() & 0o7777
    }

    #[test]
    fn what_is_open_is_found_and_closed_and_links_are_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let (top, elsewhere) = (dir.path().join("top"), dir.path().join("elsewhere"));
        fs::create_dir_all(top.join("below")).unwrap();
        fs::write(&elsewhere, "x").unwrap();
        fs::write(top.join("below/run"), "x").unwrap();
        fs::write(top.join("closed"), "x").unwrap();
        std::os::unix::fs::symlink(&elsewhere, top.join("link")).unwrap();
        for (path, mode) in [("", 0o777), ("below", 0o755), ("below/run", 0o755), ("closed", 0o600)] {
            fs::set_permissions(top.join(path), Permissions::from_mode(mode)).unwrap();
        }
        fs::set_permissions(&elsewhere, Permissions::from_mode(0o666)).unwrap();
        let open = look(&top, Access::Owner).unwrap();
        let found: Vec<_> = open.paths.iter().map(|(path, _)| path.clone()).collect();
        assert_eq!(found.len(), 3, "{found:?}");
        assert_eq!(found[0], top, "the directory is closed before what is in it");
        close(&open, Access::Owner).unwrap();
        assert!(look(&top, Access::Owner).unwrap().paths.is_empty());
        assert_eq!((mode(&top.join("below/run")), mode(&elsewhere)), (0o700, 0o666));
    }

    #[test]
    fn a_group_gets_what_the_owner_has() {
        assert_eq!(Access::Group.mend(0o755, true), 0o2770);
        assert_eq!(Access::Group.mend(0o600, false), 0o660);
        assert_eq!(Access::Group.mend(0o444, false), 0o440);
        assert_eq!(Access::Owner.mend(0o2775, true), 0o2700);
        let dir = tempfile::tempdir().unwrap();
        let (own, shared) = (dir.path().join("own"), dir.path().join("above/shared"));
        make_dir(&own, Access::Owner).unwrap();
        make_dir(&shared, Access::Group).unwrap();
        assert_eq!((mode(&own), mode(&shared)), (0o700, 0o2770));
        make_dir(&own, Access::Group).unwrap();
        assert_eq!(mode(&own), 0o2770, "the setting changed");
    }
}
