//! Who may use the files. Whoever reads them reads prompts and answers; whoever can write them changes what is served.

use std::path::Path;

use super::{Finding, bad, good, warning};
use crate::cli::Context;
use crate::config::Settings;
use crate::harness::client::{Home, exposed};
use crate::sys::access::{self, Access, Open};

/// The files of this deployment.
pub(super) fn deployment(settings: &Settings, fix: bool) -> Option<Finding> {
    let check = "permissions";
    let (dir, who) = (&settings.storage.dir, settings.storage.who());
    if !dir.exists() {
        return None;
    }
    let open = match access::look(dir, who) {
        Ok(open) => open,
        Err(error) => return Some(unreadable(check, dir, &error)),
    };
    if let Some((path, user)) = open.foreign.first() {
        let owner = rustix::process::geteuid().as_raw();
        return Some(warning(
            check,
            format!("{} belongs to user {user}, this is user {owner}", path.display()),
            format!("run as that user, or chown -R {owner} {}", dir.display()),
        ));
    }
    let whom = match who {
        Access::Owner => "only this user may use the files",
        Access::Group => "only this user and the group of the directory may use the files",
    };
    Some(found(check, &open, who, fix, whom))
}

/// What installed agents keep: tokens, and what was said in their runs.
pub(super) fn installations(context: &Context, fix: bool) -> Option<Finding> {
    let check = "agents' files";
    // Without a home nothing is installed.
    let home = Home::new(context.env("HOME"), context.env("XDG_DATA_HOME")).ok()?;
    match exposed(&home) {
        Ok(open) if open.paths.is_empty() => None,
        Ok(open) => Some(found(check, &open, Access::Owner, fix, "")),
        Err(error) => Some(unreadable(check, &home.data, &error)),
    }
}

fn found(check: &'static str, open: &Open, who: Access, fix: bool, closed: &str) -> Finding {
    let Some((first, mode)) = open.paths.first() else {
        return good(check, closed);
    };
    let count = open.paths.len();
    let files = if count == 1 {
        "1 file".to_owned()
    } else {
        format!("{count} files")
    };
    let first = format!("first {} (mode {mode:o})", first.display());
    if fix {
        return match access::close(open, who) {
            Ok(()) => good(check, format!("{files} got the mode of storage.access, {first}")),
            Err(error) => bad(
                check,
                format!("the mode of a file cannot be changed: {error}"),
                "run reef doctor --fix as the user the files belong to",
            ),
        };
    }
    if open.paths.iter().any(|(_, mode)| mode & who.denied() != 0) {
        return bad(
            check,
            format!("other users of this machine may use {files}, {first}"),
            "reef doctor --fix closes them",
        );
    }
    warning(
        check,
        format!("the group may not use {files}, {first}"),
        "reef doctor --fix opens them to the group; or set storage.access to owner",
    )
}

fn unreadable(check: &'static str, dir: &Path, error: &std::io::Error) -> Finding {
    warning(
        check,
        format!("cannot look through {}: {error}", dir.display()),
        "run as the user the files belong to",
    )
}
