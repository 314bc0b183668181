//! The vendor's program an adapter wraps: one that is there already in the checked version, or a private copy from the
//! package registry. Reef itself never hands out a program's bytes.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;

use super::error::{ClientError, Kind, at};
use super::files::remove_tree;
use super::layout::Home;
use crate::harness::adapter::{Adapter, Channel, Install};
use crate::sys::launch::Launch;
use crate::sys::random;

/// Holds the service's token in the environment of the program; nothing that it starts is to see it.
pub const TOKEN_VARIABLE: &str = "REEF_TOKEN";
/// The Node.js that is installed beside an agent where the machine's own is too old.
const NODE: &str = "node@24";
/// Longest time a program may take to say its version.
const VERSION_TIME: Duration = Duration::from_secs(120);
/// Longest time a registry may take.
const INSTALL_TIME: Duration = Duration::from_secs(1800);

/// Where the program may come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AgentSource {
    /// The checked version wherever it is, else from its registry.
    Any,
    /// Only what is on this machine.
    Present,
    /// This program, in whatever version it is.
    Program(PathBuf),
}

/// A program that was seen to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentProgram {
    /// Absolute path.
    pub program: PathBuf,
    /// What it said its version is.
    pub version: String,
    /// Directories to put first into `PATH`.
    pub path: Vec<PathBuf>,
}

/// Finds the program or installs it. `path` is the `PATH` to look in; `say` is told before anything slow begins.
pub async fn obtain(
    home: &Home,
    adapter: &Adapter,
    source: &AgentSource,
    path: &OsStr,
    say: &(dyn Fn(&str) + Sync),
) -> Result<AgentProgram, ClientError> {
    if let AgentSource::Program(program) = source {
        let program = std::path::absolute(program).map_err(at("find", program))?;
        let helpers = node_dir(path).into_iter().collect();
        return probe(adapter, program, helpers, path).await.map_err(|fault| {
            ClientError::new(Kind::Machine, format!("{fault}; nothing was changed"))
                .hint("--agent-program has to name the agent's own program")
        });
    }
    let Some(install) = &adapter.install else {
        return Err(ClientError::new(
            Kind::Usage,
            format!(
                "the adapter {} has no installer; name its program with --agent-program",
                adapter.name
            ),
        ));
    };
    let prefix = home.agents().join(&adapter.name).join(&install.version);
    let mut helpers = helper_dirs(&prefix);
    helpers.extend(node_dir(path));
    let private = prefix.join(&install.binary_path);
    if private.exists()
        && let Ok(found) = probe(adapter, private, helpers, path).await
    {
        return Ok(found);
    }
    if let Some(program) = on_path(path, &adapter.binary) {
        let helpers = node_dir(path).into_iter().collect();
        if let Ok(found) = probe(adapter, program, helpers, path).await
            && says_version(&found.version, &install.version)
        {
            return Ok(found);
        }
    }
    let missing = |reason: &str| {
        ClientError::new(
            Kind::Machine,
            format!(
                "{} {} is not on this machine and {reason}; nothing was changed",
                adapter.title, install.version
            ),
        )
    };
    if *source == AgentSource::Present {
        return Err(missing("--no-agent-install was given")
            .hint("leave that flag out, or name the program with --agent-program"));
    }
    match install.kind {
        Channel::Npm => from_npm(home, adapter, install, &prefix, path, say).await,
        Channel::Pypi => Err(missing("reef cannot install it from PyPI").hint(format!(
            "install {} {} yourself and name its program with --agent-program",
            install.package, install.version
        ))),
    }
}

async fn from_npm(
    home: &Home,
    adapter: &Adapter,
    install: &Install,
    prefix: &Path,
    path: &OsStr,
    say: &(dyn Fn(&str) + Sync),
) -> Result<AgentProgram, ClientError> {
    let Some(npm) = on_path(path, "npm") else {
        return Err(ClientError::new(
            Kind::Machine,
            format!(
                "{} {} comes from the npm registry and there is no npm on PATH; nothing was changed",
                adapter.title, install.version
            ),
        )
        .hint("install Node.js with npm, or name the agent's program with --agent-program"));
    };
    let mut packages = vec![format!("{}@{}", install.package, install.version)];
    if let Some(needed) = &install.node
        && !node_is(path, needed).await
    {
        packages.insert(0, NODE.to_owned());
    }
    say(&format!(
        "installing {} from the npm registry into {}",
        packages.join(" and "),
        prefix.display()
    ));
    let parent = prefix.parent().unwrap_or(prefix);
    fs::create_dir_all(parent).map_err(at("create", parent))?;
    let part = parent.join(format!(".{}.part-{}", install.version, random::hex_token()));
    let result = fill_prefix(&npm, &packages, &part, path).await.and_then(|()| {
        remove_tree(prefix)?;
        fs::rename(&part, prefix).map_err(at("create", prefix))
    });
    if let Err(error) = result {
        // The first error matters.
        let _ignored = remove_tree(&part);
        for dir in [parent, &home.agents(), &home.data] {
            let _only_if_empty = fs::remove_dir(dir);
        }
        return Err(error);
    }
    let mut helpers = helper_dirs(prefix);
    helpers.extend(node_dir(path));
    let found = probe(adapter, prefix.join(&install.binary_path), helpers, path).await;
    found.map_err(|fault| {
        let _ignored = remove_tree(prefix);
        ClientError::new(Kind::Machine, format!("{fault}; nothing was changed"))
            .hint("run the agent's own installation, then name its program with --agent-program")
    })
}

async fn fill_prefix(npm: &Path, packages: &[String], part: &Path, path: &OsStr) -> Result<(), ClientError> {
    fs::create_dir_all(part).map_err(at("create", part))?;
    let mut command = tokio::process::Command::new(npm);
    command
        .args([
            "install",
            "--no-progress",
            "--no-audit",
            "--no-fund",
            "--no-update-notifier",
            "--loglevel",
            "error",
            "--fetch-retries",
            "1",
            "--prefix",
        ])
        .arg(part)
        .args(packages)
        .env("PATH", path)
        .env_remove(TOKEN_VARIABLE)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    let output = tokio::time::timeout(INSTALL_TIME, output_of(&mut command)).await;
    let output = match output {
        Err(_) => {
            return Err(ClientError::new(
                Kind::Unavailable,
                "the npm registry took too long; nothing was changed",
            ));
        }
        Ok(output) => output.map_err(at("run", npm))?,
    };
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let last: Vec<&str> = said.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let last = last.iter().rev().take(3).rev().copied().collect::<Vec<_>>().join(" | ");
    Err(ClientError::new(
        Kind::Unavailable,
        format!(
            "npm could not install {}: {last}; nothing was changed",
            packages.join(" and ")
        ),
    )
    .hint("can this machine reach the npm registry? npm config get registry says which one"))
}

/// Asks a program its version. It gets a directory of its own to write into, so that asking leaves no trace.
async fn probe(
    adapter: &Adapter,
    program: PathBuf,
    path: Vec<PathBuf>,
    search: &OsStr,
) -> Result<AgentProgram, String> {
    let scratch = std::env::temp_dir().join(format!("reef-probe-{}", random::hex_token()));
    fs::create_dir_all(&scratch).map_err(|error| format!("no temporary directory can be made: {error}"))?;
    let root = scratch.display().to_string();
    let mut command = tokio::process::Command::new(&program);
    command
        .arg("--version")
        .envs(adapter.environment(&root, &root))
        .env("PATH", joined(&path, search))
        .env_remove(TOKEN_VARIABLE)
        .current_dir(&scratch)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true);
    let output = tokio::time::timeout(VERSION_TIME, output_of(&mut command)).await;
    // What the program left there is of no use to anybody.
    let _ignored = remove_tree(&scratch);
    let shown = program.display();
    let output = match output {
        Err(_) => {
            return Err(format!(
                "{shown} --version did not end within {} s",
                VERSION_TIME.as_secs()
            ));
        }
        Ok(Err(error)) => return Err(format!("{shown} cannot be run: {error}")),
        Ok(Ok(output)) => output,
    };
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    if !output.status.success() {
        let said: String = err
            .lines()
            .rfind(|line| !line.trim().is_empty())
            .unwrap_or("")
            .chars()
            .take(200)
            .collect();
        return Err(format!("{shown} --version failed with {}: {said}", output.status));
    }
    let version = out
        .lines()
        .chain(err.lines())
        .map(str::trim)
        .find(|line| line.bytes().any(|b| b.is_ascii_digit()))
        .unwrap_or("unknown")
        .chars()
        .take(80)
        .collect();
    Ok(AgentProgram { program, version, path })
}

async fn output_of(command: &mut tokio::process::Command) -> std::io::Result<Output> {
    command.launch()?.wait_with_output().await
}

/// Whether what a program says holds the version as a word of its own.
pub(super) fn says_version(said: &str, version: &str) -> bool {
    said.split(|c: char| c.is_whitespace() || matches!(c, '(' | ')' | ',' | '/'))
        .any(|word| word.trim_start_matches('v') == version)
}

fn helper_dirs(prefix: &Path) -> Vec<PathBuf> {
    let dirs = [prefix.join("node_modules/node/bin"), prefix.join("node_modules/.bin")];
    dirs.into_iter().filter(|dir| dir.is_dir()).collect()
}

/// The directory of Node.js, because a wrapper may be started from a shell that does not know it.
fn node_dir(path: &OsStr) -> Option<PathBuf> {
    on_path(path, "node")?.parent().map(Path::to_path_buf)
}

async fn node_is(path: &OsStr, needed: &str) -> bool {
    let Some(node) = on_path(path, "node") else {
        return false;
    };
    let mut command = tokio::process::Command::new(node);
    command
        .arg("--version")
        .env_remove(TOKEN_VARIABLE)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let output = output_of(&mut command).await;
    output.is_ok_and(|output| at_least(String::from_utf8_lossy(&output.stdout).trim(), needed))
}

/// Whether `v22.3.0` satisfies `>=22.19`.
fn at_least(version: &str, needed: &str) -> bool {
    let numbers = |text: &str| -> Vec<u64> {
        text.trim_start_matches(|c: char| !c.is_ascii_digit())
            .split('.')
            .map(|part| part.parse().unwrap_or(0))
            .collect()
    };
    numbers(version) >= numbers(needed)
}

fn on_path(path: &OsStr, name: &str) -> Option<PathBuf> {
    use std::os::unix::fs::PermissionsExt;
    std::env::split_paths(path)
        .filter(|dir| dir.is_absolute())
        .map(|dir| dir.join(name))
        .find(|file| fs::metadata(file).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0))
}

/// `PATH` with these directories first.
pub(super) fn joined(first: &[PathBuf], path: &OsStr) -> std::ffi::OsString {
    let all = first.iter().cloned().chain(std::env::split_paths(path));
    // Fails only for a directory with a colon in its name, which PATH cannot hold.
    std::env::join_paths(all).unwrap_or_else(|_| path.to_os_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_by_number_and_found_as_words() {
        assert!(at_least("v24.1.0", ">=22.19") && at_least("v22.19.0", ">=22.19") && at_least("22.20", ">=22.19"));
        assert!(!at_least("v22.3.0", ">=22.19") && !at_least("v20.20.2", ">=22.19") && !at_least("", ">=22.19"));
        assert!(says_version("2.1.332 (Claude Code)", "2.1.332"));
        assert!(says_version("codex-cli 0.171.0", "0.171.0") && says_version("v1.2", "1.2"));
        assert!(!says_version("10.171.0", "0.171.0") && !says_version("0.171.01", "0.171.0"));
    }
}
