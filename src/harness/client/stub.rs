//! The wrapper's file in `~/.local/bin`: three lines that start `reef` for one installation. It names everything by
//! absolute path, so that it works in any shell with any environment.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::error::{ClientError, Kind, at};
use super::layout::{Home, Place};
use crate::domain::ScenarioName;
use crate::sys::{durable, regular};

/// How the name of a wrapper begins that is being written.
const PART: &str = ".reef-wrapper-";
const MARK: &str = "# Made by reef for an installation in";

fn text(reef: &Path, place: &Path) -> String {
    format!(
        "#!/bin/sh\n{MARK} {}\nexec {} harness run --place {} -- \"$@\"\n",
        place.display(),
        quoted(reef),
        quoted(place)
    )
}

/// A word for the shell: nothing in it acts.
pub(super) fn quoted(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', "'\\''"))
}

/// Whose wrapper a file is.
#[derive(Debug, PartialEq, Eq)]
enum Owner {
    Nobody,
    Us,
    OtherInstallation,
    Stranger,
}

fn owner(path: &Path, place: &Path) -> Result<Owner, ClientError> {
    let text = match regular::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound && fs::symlink_metadata(path).is_err() => {
            return Ok(Owner::Nobody);
        }
        // Not text, a directory, a dangling link: whatever it is, it is not ours.
        Err(_) => return Ok(Owner::Stranger),
    };
    let marked = text
        .lines()
        .nth(1)
        .and_then(|line| line.strip_prefix(MARK))
        .map(str::trim);
    Ok(match marked {
        Some(named) if Path::new(named) == place => Owner::Us,
        // What it started is gone.
        Some(named) if !Path::new(named).join("install.json").exists() => Owner::Nobody,
        Some(_) => Owner::OtherInstallation,
        None => Owner::Stranger,
    })
}

/// The wrapper's path: the one it has, else `reef-<adapter>` for the first scenario of an agent and
/// `reef-<adapter>@<scenario>` for others.
pub(super) fn choose(
    home: &Home,
    adapter: &str,
    scenario: &ScenarioName,
    place: &Place,
) -> Result<PathBuf, ClientError> {
    if let Ok(record) = place.record()
        && record.wrapper.parent() == Some(home.bin.as_path())
        && owner(&record.wrapper, &place.dir)? == Owner::Us
    {
        return Ok(record.wrapper);
    }
    let mut taken = None;
    for name in [format!("reef-{adapter}"), format!("reef-{adapter}@{scenario}")] {
        let path = home.bin.join(name);
        match owner(&path, &place.dir)? {
            Owner::Nobody | Owner::Us => return Ok(path),
            Owner::OtherInstallation => {}
            Owner::Stranger => taken = Some(path),
        }
        if taken.is_some() {
            break;
        }
    }
    Err(foreign(
        &taken.unwrap_or_else(|| home.bin.join(format!("reef-{adapter}@{scenario}"))),
    ))
}

fn foreign(path: &Path) -> ClientError {
    ClientError::new(
        Kind::Machine,
        format!(
            "{} exists and was not made by reef; nothing was changed",
            path.display()
        ),
    )
    .hint("move it away, then install again")
}

/// Writes the wrapper; gives whether it was another one before.
pub(super) fn write(path: &Path, reef: &Path, place: &Place) -> Result<bool, ClientError> {
    let wanted = text(reef, &place.dir);
    let bin = path.parent().unwrap_or(Path::new("/"));
    for entry in fs::read_dir(bin).into_iter().flatten().flatten() {
        // The lock on the installations is held, so whoever was writing this is gone.
        if entry.file_name().to_string_lossy().starts_with(PART) {
            let _harmless = fs::remove_file(entry.path());
        }
    }
    if regular::read_to_string(path).is_ok_and(|there| there == wanted) {
        return Ok(false);
    }
    fs::create_dir_all(bin).map_err(at("create", bin))?;
    // Somebody may have put a program there since it was chosen.
    if !matches!(owner(path, &place.dir)?, Owner::Nobody | Owner::Us) {
        return Err(foreign(path));
    }
    // The mode is set before the name is, so that a wrapper is never there without being one.
    let part = bin.join(format!("{PART}{}", crate::sys::random::hex_token()));
    let result = fs::write(&part, wanted)
        .and_then(|()| fs::set_permissions(&part, fs::Permissions::from_mode(0o755)))
        .and_then(|()| fs::File::open(&part)?.sync_all())
        .and_then(|()| fs::rename(&part, path))
        .and_then(|()| durable::sync_dir(bin));
    if result.is_err() {
        let _ignored = fs::remove_file(&part);
    }
    result.map_err(at("write", path))?;
    Ok(true)
}

/// Removes the wrapper if it is that of this installation.
pub(super) fn remove(path: &Path, place: &Place) -> Result<bool, ClientError> {
    if owner(path, &place.dir)? != Owner::Us {
        return Ok(false);
    }
    fs::remove_file(path).map_err(at("remove", path))?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_quotes_and_spaces_are_inert() {
        let text = text(Path::new("/opt/o'brien $(x)/reef"), Path::new("/home/a b/`id`"));
        assert_eq!(
            text.lines().nth(2).unwrap(),
            "exec '/opt/o'\\''brien $(x)/reef' harness run --place '/home/a b/`id`' -- \"$@\""
        );
    }

    #[test]
    fn the_second_scenario_gets_its_own_name_and_a_strangers_file_stays() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home {
            data: dir.path().join("data"),
            bin: dir.path().join("bin"),
        };
        let (a, b) = (ScenarioName::new("a").unwrap(), ScenarioName::new("b").unwrap());
        let (place_a, place_b) = (home.place("pi", &a), home.place("pi", &b));
        let first = choose(&home, "pi", &a, &place_a).unwrap();
        assert_eq!(first, home.bin.join("reef-pi"));
        fs::create_dir_all(&place_a.dir).unwrap();
        fs::write(place_a.dir.join("install.json"), "{}").unwrap();
        assert!(write(&first, Path::new("/reef"), &place_a).unwrap());
        assert!(!write(&first, Path::new("/reef"), &place_a).unwrap());
        assert_eq!(choose(&home, "pi", &a, &place_a).unwrap(), first);
        let second = choose(&home, "pi", &b, &place_b).unwrap();
        assert_eq!(second, home.bin.join("reef-pi@b"));
        fs::write(&first, "#!/bin/sh\necho mine\n").unwrap();
        assert!(choose(&home, "pi", &a, &place_a).is_err());
        assert!(!remove(&first, &place_a).unwrap());
        assert!(first.exists());
    }
}
