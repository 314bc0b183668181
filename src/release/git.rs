//! The `git` and `git-lfs` programs, shut off from the configuration of whoever runs Reef: no system or global file, no
//! hooks, no templates, no filters, no signing. What a deployment needs of git is said in Reef's own settings.

use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use super::{ReleaseError, RepositoryOptions};
use crate::sys::launch::Launch;
use crate::sys::net::Proxies;
use crate::sys::task;

/// Variables of git and git-lfs that would point it elsewhere or change what it does. Ways of giving credentials
/// (`GIT_ASKPASS`, `GIT_SSH_COMMAND`, `SSH_AUTH_SOCK`) are kept; proxies are those of the deployment.
const REMOVED: [&str; 33] = [
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_COMMON_DIR",
    "GIT_INDEX_FILE",
    "GIT_OBJECT_DIRECTORY",
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_NAMESPACE",
    "GIT_CONFIG",
    "GIT_CONFIG_SYSTEM",
    "GIT_CONFIG_PARAMETERS",
    "GIT_CONFIG_COUNT",
    "GIT_TEMPLATE_DIR",
    "GIT_ATTR_NOSYSTEM",
    "GIT_ATTR_SOURCE",
    "GIT_SHALLOW_FILE",
    "GIT_GRAFT_FILE",
    "GIT_REPLACE_REF_BASE",
    "GIT_NO_REPLACE_OBJECTS",
    "GIT_QUARANTINE_PATH",
    "GIT_DEFAULT_HASH",
    "GIT_DEFAULT_REF_FORMAT",
    "GIT_REF_FORMAT",
    "GIT_EXTERNAL_DIFF",
    "GIT_LITERAL_PATHSPECS",
    "GIT_ALLOW_PROTOCOL",
    "GIT_PROTOCOL_FROM_USER",
    "GIT_LFS_SKIP_SMUDGE",
    "GIT_LFS_SKIP_PUSH",
    "GIT_LFS_SET_LOCKABLE_READONLY",
    "GIT_TRACE",
    "GIT_TRACE_CURL",
    "GIT_CURL_VERBOSE",
    "XDG_CONFIG_HOME",
];

/// The tail of a program's output that an error shows.
const SHOWN_BYTES: usize = 2_000;

/// Runs git in one repository.
#[derive(Debug, Clone)]
pub(super) struct Git {
    repository: PathBuf,
    /// Extra `key=value` settings of the deployment, passed as `-c`.
    settings: Vec<String>,
    timeout: Duration,
    proxies: Proxies,
}

impl Git {
    pub(super) fn new(repository: &Path, options: &RepositoryOptions) -> Self {
        Self {
            repository: repository.to_path_buf(),
            settings: options.git_settings.clone(),
            timeout: options.git_timeout,
            proxies: options.proxies.clone(),
        }
    }

    /// Runs `git ARGS` and gives its standard output. It is killed when it takes longer than the timeout.
    pub(super) fn run<S: AsRef<OsStr>>(&self, args: &[S]) -> Result<String, ReleaseError> {
        self.run_with_input(args, None)
    }

    /// As [`Self::run`], with `input` on standard input.
    pub(super) fn run_with_input<S: AsRef<OsStr>>(
        &self,
        args: &[S],
        input: Option<&str>,
    ) -> Result<String, ReleaseError> {
        let mut command = self.command();
        for setting in &self.settings {
            command.arg("-c").arg(setting);
        }
        command.args(args);
        let addresses = args.iter().filter_map(|arg| address_in(arg.as_ref().to_str()?));
        for (name, value) in self.proxies.variables(addresses) {
            if value.is_empty() {
                command.env_remove(name);
            } else {
                command.env(name, value);
            }
        }
        let shown = shown(args);
        command
            .stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() })
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.launch().map_err(|e| missing("git", &e))?;
        if let (Some(text), Some(mut stdin)) = (input, child.stdin.take()) {
            // A program that does not read all of its input says so by its exit status.
            let _closed_early = stdin.write_all(text.as_bytes());
        }
        let output = collect(child, self.timeout).map_err(|e| ReleaseError::Command {
            command: shown.clone(),
            status: "no result".to_owned(),
            output: e.to_string(),
        })?;
        let Some(output) = output else {
            return Err(ReleaseError::Command {
                command: shown,
                status: format!("killed after {} s", self.timeout.as_secs()),
                output: "no answer in time".to_owned(),
            });
        };
        if output.success {
            return Ok(output.stdout);
        }
        let lfs_missing =
            args.first().is_some_and(|a| a.as_ref() == "lfs") && output.stderr.contains("is not a git command");
        if lfs_missing {
            return Err(missing("git-lfs", &io::Error::from(io::ErrorKind::NotFound)));
        }
        Err(ReleaseError::Command {
            command: shown,
            status: output.status,
            output: tail(&output.stderr),
        })
    }

    fn command(&self) -> Command {
        let mut command = Command::new("git");
        for name in REMOVED {
            command.env_remove(name);
        }
        command
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env("GIT_ATTR_NOSYSTEM", "1")
            .env("GIT_TERMINAL_PROMPT", "0")
            .env("GIT_OPTIONAL_LOCKS", "0")
            .env("LC_ALL", "C")
            // git-lfs and credential helpers look here; ssh asks the password database instead.
            .env("HOME", self.repository.join("reef-home"))
            .arg("--git-dir")
            .arg(&self.repository)
            .current_dir(&self.repository);
        for setting in [
            "core.hooksPath=/dev/null",
            "core.fsmonitor=false",
            "core.autocrlf=false",
            "core.attributesFile=/dev/null",
            "core.excludesFile=/dev/null",
            "init.templateDir=",
            "commit.gpgSign=false",
            "push.gpgSign=false",
            "protocol.ext.allow=never",
            "gc.auto=0",
            "maintenance.auto=false",
        ] {
            command.arg("-c").arg(setting);
        }
        command
    }
}

/// The address in an argument: itself, or the value of a setting.
fn address_in(arg: &str) -> Option<&str> {
    let at = arg.find("http://").or_else(|| arg.find("https://"))?;
    (at == 0 || arg[..at].ends_with('=')).then(|| &arg[at..])
}

/// Holds that git and git-lfs can be run; one clear line if not.
pub(super) fn check_programs() -> Result<(), ReleaseError> {
    let git = Command::new("git")
        .arg("--version")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .launch()
        .and_then(Child::wait_with_output)
        .map_err(|e| missing("git", &e))?;
    if !git.status.success() {
        return Err(missing(
            "git",
            &io::Error::other(tail(&String::from_utf8_lossy(&git.stderr))),
        ));
    }
    let lfs = Command::new("git-lfs")
        .arg("version")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .launch()
        .and_then(Child::wait_with_output);
    match lfs {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(missing(
            "git-lfs",
            &io::Error::other(tail(&String::from_utf8_lossy(&output.stderr))),
        )),
        Err(error) => Err(missing("git-lfs", &error)),
    }
}

fn missing(program: &'static str, error: &io::Error) -> ReleaseError {
    let problem = if error.kind() == io::ErrorKind::NotFound {
        "not found on PATH".to_owned()
    } else {
        error.to_string()
    };
    let fix = if program == "git" {
        "install it (apt-get install git, brew install git)"
    } else {
        "install it (apt-get install git-lfs, brew install git-lfs)"
    };
    ReleaseError::Program { program, problem, fix }
}

struct Output {
    success: bool,
    status: String,
    stdout: String,
    stderr: String,
}

/// Waits for a child with both pipes drained; `None` when it had to be killed.
fn collect(mut child: Child, timeout: Duration) -> io::Result<Option<Output>> {
    let read = |pipe: Option<Box<dyn Read + Send>>| -> io::Result<_> {
        let (tx, rx) = mpsc::channel();
        let _reading = task::thread("reef-git", move || {
            let mut bytes = Vec::new();
            if let Some(mut pipe) = pipe {
                // What was read before a failure is still the best there is.
                let _partial = pipe.read_to_end(&mut bytes);
            }
            // The receiver is gone only when the command was given up.
            let _given_up = tx.send(String::from_utf8_lossy(&bytes).into_owned());
        })?;
        Ok(rx)
    };
    let stdout = read(child.stdout.take().map(|p| Box::new(p) as Box<dyn Read + Send>))?;
    let stderr = read(child.stderr.take().map(|p| Box::new(p) as Box<dyn Read + Send>))?;
    let deadline = Instant::now() + timeout;
    let mut pause = Duration::from_millis(1);
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if Instant::now() >= deadline {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(50));
    };
    // A grandchild may keep a pipe open after its parent has ended; its words are not waited for.
    let grace = Duration::from_secs(2);
    Ok(Some(Output {
        success: status.success(),
        status: status.to_string(),
        stdout: stdout.recv_timeout(grace).unwrap_or_default(),
        stderr: stderr.recv_timeout(grace).unwrap_or_default(),
    }))
}

fn tail(text: &str) -> String {
    let text = text.trim();
    let mut start = text.len().saturating_sub(SHOWN_BYTES);
    while !text.is_char_boundary(start) {
        start += 1;
    }
    without_credentials(&text[start..])
}

fn shown<S: AsRef<OsStr>>(args: &[S]) -> String {
    let mut words = vec!["git".to_owned()];
    words.extend(
        args.iter()
            .take(6)
            .map(|a| without_credentials(&a.as_ref().to_string_lossy())),
    );
    if args.len() > 6 {
        words.push("…".to_owned());
    }
    words.join(" ")
}

/// Hides `user:password@` of URLs.
pub(super) fn without_credentials(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + 3);
        out.push_str(before);
        let authority = after.find(['/', ' ', '\n', '\'', '"']).unwrap_or(after.len());
        match after[..authority].rfind('@') {
            Some(end) => {
                out.push_str("***");
                rest = &after[end..];
            }
            None => rest = after,
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_not_shown() {
        assert_eq!(
            without_credentials("fatal: https://me:secret@host/x.git and ssh://git@h/y"),
            "fatal: https://***@host/x.git and ssh://***@h/y"
        );
        assert_eq!(without_credentials("file:///a/b@c"), "file:///a/b@c");
    }
}
