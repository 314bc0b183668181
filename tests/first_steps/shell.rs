//! A terminal, in which blocks of commands are typed one after the other.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::common::wait_for;

const MARK: &str = "--- the block is over ---";
/// Where a service of the documentation listens.
pub const SERVICE: (&str, u16) = ("127.0.0.1", 8900);

pub struct Shell {
    dir: PathBuf,
    environment: Vec<(String, String)>,
    child: Child,
    /// The first shell leads the group of everything that is started.
    group: u32,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    blocks: usize,
    serving: bool,
}

impl Shell {
    /// Bash in `dir`, with these variables and no others.
    pub fn start(dir: &Path, environment: &[(&str, String)]) -> Self {
        let environment: Vec<(String, String)> = environment
            .iter()
            .map(|(name, value)| ((*name).to_owned(), value.clone()))
            .collect();
        let (child, stdin, stdout) = bash(dir, &environment, 0);
        Self {
            dir: dir.to_owned(),
            environment,
            group: child.id(),
            child,
            stdin,
            stdout,
            blocks: 0,
            serving: false,
        }
    }

    /// Types a block, and gives what it said. A block whose last command is `reef serve` is left running, as the page
    /// says, and is over when the service listens.
    pub fn block(&mut self, text: &str) -> Result<String, String> {
        let lines: Vec<&str> = text.trim_end().lines().collect();
        let serves = lines.last().is_some_and(|line| line.starts_with("reef serve"));
        if serves {
            self.stop_service();
        }
        let typed = match lines.split_last() {
            Some((last, before)) if serves => {
                let log = self.dir.join("service.log");
                format!(
                    "{}\n{{ exec {last}\n}} </dev/null >'{}' 2>&1 &\nwalk_service=$!\n",
                    before.join("\n"),
                    log.display()
                )
            }
            _ => text.to_owned(),
        };
        let said = self.run(&typed)?;
        if serves {
            self.serving = true;
            let log = self.dir.join("service.log");
            wait_for("a service that listens", || {
                let said = fs::read_to_string(&log).unwrap_or_default();
                assert!(!said.contains("error:"), "{said}");
                TcpStream::connect(SERVICE).ok()
            });
        }
        Ok(said)
    }

    fn run(&mut self, text: &str) -> Result<String, String> {
        self.blocks += 1;
        let file = self.dir.join(format!(".block-{}", self.blocks));
        fs::write(&file, text).unwrap();
        let typed = format!(". '{}' </dev/null 2>&1\nprintf '\\n%s\\n' '{MARK}'\n", file.display());
        self.stdin
            .write_all(typed.as_bytes())
            .map_err(|error| error.to_string())?;
        let mut said = String::new();
        loop {
            let mut line = String::new();
            if self.stdout.read_line(&mut line).unwrap() == 0 {
                let status = self.child.wait().unwrap();
                if !status.success() {
                    return Err(format!("{status}\n{said}"));
                }
                // The block ended the shell itself; the next one is typed into another.
                (self.child, self.stdin, self.stdout) =
                    bash(&self.dir, &self.environment, i32::try_from(self.group).unwrap());
                return Ok(said);
            }
            if line.trim_end() == MARK {
                return Ok(said);
            }
            said.push_str(&line);
        }
    }

    /// What a command says, on one line.
    pub fn ask(&mut self, command: &str) -> String {
        let said = self.run(command).unwrap_or_default();
        said.trim().to_owned()
    }

    /// Ctrl-C in the terminal of the service.
    pub fn stop_service(&mut self) {
        if std::mem::take(&mut self.serving) {
            let _gone = self.run("kill \"$walk_service\"; wait \"$walk_service\" || true");
        }
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        self.stop_service();
        // Whatever a block that failed has left behind.
        if let Some(group) = i32::try_from(self.group).ok().and_then(rustix::process::Pid::from_raw) {
            let _gone = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
        let _gone = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// A shell in this process group, or in one of its own for 0.
fn bash(dir: &Path, environment: &[(String, String)], group: i32) -> (Child, ChildStdin, BufReader<ChildStdout>) {
    let mut child = Command::new("bash")
        .args(["--noprofile", "--norc"])
        .current_dir(dir)
        .env_clear()
        .envs(environment.iter().map(|(name, value)| (name, value)))
        .process_group(group)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let stdout = BufReader::new(child.stdout.take().unwrap());
    stdin.write_all(b"set -euo pipefail\n").unwrap();
    (child, stdin, stdout)
}
