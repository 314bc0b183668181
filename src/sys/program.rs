//! An external program that speaks JSON lines: one object a line on its standard input, one on its standard output. What
//! it says on standard error, and whatever else it prints, is kept for the error message. It runs in a process group of its own, and all of it ends
//! when its time is up or the work is cancelled.

use std::io;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio_util::sync::CancellationToken;

use super::launch::Launch;
use super::task::{self, Task};

/// The longest line a program may write.
const MAX_LINE: u64 = 16 * 1024 * 1024;
/// What is kept of its standard error, and of what else it prints.
const LAST_WORDS: usize = 2000;

/// A running program.
#[derive(Debug)]
pub struct Program {
    name: String,
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
    stderr: Option<Task<String>>,
    /// What it printed beside its objects: a library that greets, a forgotten `print`.
    printed: String,
    deadline: tokio::time::Instant,
    cancel: CancellationToken,
}

impl Program {
    /// Starts `command` in `directory`. Everything must be over within `limit`.
    pub fn start(
        command: &[String],
        directory: Option<&Path>,
        limit: Duration,
        cancel: &CancellationToken,
    ) -> io::Result<Self> {
        let (program, arguments) = command.split_first().ok_or_else(|| other("the command is empty"))?;
        let mut spawn = Command::new(program);
        spawn
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true);
        if let Some(directory) = directory {
            spawn.current_dir(directory);
        }
        let mut child = spawn
            .launch()
            .map_err(|error| io::Error::new(error.kind(), format!("`{program}` cannot be started: {error}")))?;
        let stdout = child.stdout.take().ok_or_else(|| other("it has no standard output"))?;
        let stderr = child.stderr.take().map(|mut stderr| {
            task::spawn("hearing a program out", async move {
                let mut last = Vec::new();
                let mut chunk = [0; 4096];
                while let Ok(n) = stderr.read(&mut chunk).await {
                    if n == 0 {
                        break;
                    }
                    last.extend_from_slice(&chunk[..n]);
                    if last.len() > 4 * LAST_WORDS {
                        last.drain(..last.len() - LAST_WORDS);
                    }
                }
                let text = String::from_utf8_lossy(&last);
                let skip = text.chars().count().saturating_sub(LAST_WORDS);
                text.chars().skip(skip).collect::<String>().trim().to_owned()
            })
        });
        Ok(Self {
            name: program.clone(),
            stdin: child.stdin.take(),
            child,
            stdout: BufReader::new(stdout),
            stderr,
            printed: String::new(),
            deadline: tokio::time::Instant::now() + limit,
            cancel: cancel.clone(),
        })
    }

    /// Sends one object.
    pub async fn send(&mut self, value: &Value) -> io::Result<()> {
        let mut line = value.to_string();
        line.push('\n');
        let Some(stdin) = self.stdin.as_mut() else {
            return Err(other(format!("`{}` is no longer listening", self.name)));
        };
        let write = async {
            stdin.write_all(line.as_bytes()).await?;
            stdin.flush().await
        };
        let result = tokio::select! {
            result = tokio::time::timeout_at(self.deadline, write) => result,
            () = self.cancel.cancelled() => return Err(cancelled()),
        };
        match result {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => {
                let fate = self.fate().await;
                Err(other(format!("`{}` stopped listening ({error}); {fate}", self.name)))
            }
            Err(_) => Err(late(format!("`{}` did not read its input in time", self.name))),
        }
    }

    /// Gives it `limit` from now for whatever comes next.
    pub fn allow(&mut self, limit: Duration) {
        self.deadline = tokio::time::Instant::now() + limit;
    }

    /// Says that nothing more comes.
    pub fn close_input(&mut self) {
        self.stdin = None;
    }

    /// The next object it writes; `None` at the end of its output.
    pub async fn receive(&mut self) -> io::Result<Option<Value>> {
        loop {
            let mut line = Vec::new();
            let mut bounded = (&mut self.stdout).take(MAX_LINE);
            let read = tokio::select! {
                read = tokio::time::timeout_at(self.deadline, bounded.read_until(b'\n', &mut line)) => read,
                () = self.cancel.cancelled() => return Err(cancelled()),
            };
            match read {
                Err(_) => return Err(late(format!("`{}` took too long", self.name))),
                Ok(Err(error)) => return Err(error),
                Ok(Ok(0)) => return Ok(None),
                Ok(Ok(_)) => {}
            }
            if line.len() as u64 == MAX_LINE {
                return Err(other(format!(
                    "`{}` wrote a line of {MAX_LINE} bytes or more",
                    self.name
                )));
            }
            if let Ok(value @ Value::Object(_)) = super::json::read(&line) {
                return Ok(Some(value));
            }
            self.note_print(&line);
        }
    }

    /// Keeps the end of what it prints. What it says is for whoever wrote it, and may repeat a prompt: no log has it.
    fn note_print(&mut self, line: &[u8]) {
        let line = String::from_utf8_lossy(line);
        let line = line.trim();
        if line.is_empty() {
            return;
        }
        if !self.printed.is_empty() {
            self.printed.push('\n');
        }
        self.printed.push_str(line);
        let surplus = self.printed.chars().count().saturating_sub(LAST_WORDS);
        self.printed = self.printed.chars().skip(surplus).collect();
    }

    /// How it ended, with its last words.
    pub async fn fate(&mut self) -> String {
        let status = match tokio::time::timeout(Duration::from_secs(2), self.child.wait()).await {
            Ok(Ok(status)) => status.to_string(),
            Ok(Err(error)) => error.to_string(),
            Err(_) => "it is still running".to_owned(),
        };
        self.kill_group();
        let words = match self.stderr.take() {
            Some(task) => tokio::time::timeout(Duration::from_secs(2), task)
                .await
                .ok()
                .and_then(Result::ok)
                .unwrap_or_default(),
            None => String::new(),
        };
        let mut fate = status;
        for (what, words) in [
            ("it said", &words),
            ("it printed, which is no JSON object", &self.printed),
        ] {
            if !words.is_empty() {
                fate.push_str(&format!("; {what}: {words}"));
            }
        }
        fate
    }

    fn kill_group(&self) {
        if let Some(pid) = self
            .child
            .id()
            .and_then(|id| i32::try_from(id).ok())
            .and_then(rustix::process::Pid::from_raw)
        {
            // Gone already is as good as killed.
            let _gone = rustix::process::kill_process_group(pid, rustix::process::Signal::KILL);
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.kill_group();
    }
}

fn other(message: impl Into<String>) -> io::Error {
    io::Error::other(message.into())
}

fn late(message: String) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, message)
}

fn cancelled() -> io::Error {
    io::Error::new(io::ErrorKind::Interrupted, "cancelled")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn shell(script: &str, seconds: f64) -> Program {
        let command: Vec<String> = ["sh", "-c", script].iter().map(|&part| part.to_owned()).collect();
        Program::start(
            &command,
            None,
            Duration::from_secs_f64(seconds),
            &CancellationToken::new(),
        )
        .unwrap()
    }

    #[tokio::test]
    async fn objects_go_in_and_come_out() {
        let mut program = shell("while read -r line; do echo \"$line\"; done", 30.0);
        program.send(&json!({"a": 1})).await.unwrap();
        assert_eq!(program.receive().await.unwrap(), Some(json!({"a": 1})));
        program.close_input();
        assert_eq!(program.receive().await.unwrap(), None);
        assert!(program.fate().await.contains("exit status: 0"));
    }

    #[tokio::test]
    async fn a_crash_is_told_with_its_last_words() {
        let mut program = shell("echo no such model >&2; exit 7", 30.0);
        assert_eq!(program.receive().await.unwrap(), None);
        let fate = program.fate().await;
        assert!(fate.contains('7') && fate.contains("no such model"), "{fate}");
    }

    #[tokio::test]
    async fn what_it_prints_beside_its_objects_is_kept_for_its_fate() {
        let mut program = shell(
            "echo loading; echo; echo \"{'loss': 1}\"; echo 7; echo '{\"a\":1}'; echo bye",
            30.0,
        );
        assert_eq!(program.receive().await.unwrap(), Some(json!({"a": 1})));
        assert_eq!(program.receive().await.unwrap(), None);
        let fate = program.fate().await;
        assert!(fate.contains("loading\n{'loss': 1}\n7\nbye"), "{fate}");
    }

    #[tokio::test]
    async fn silence_and_a_missing_program_are_errors() {
        assert!(
            shell("sleep 30", 0.2)
                .receive()
                .await
                .unwrap_err()
                .to_string()
                .contains("too long")
        );
        let missing = Program::start(
            &["/no/such/program".to_owned()],
            None,
            Duration::from_secs(1),
            &CancellationToken::new(),
        );
        assert!(missing.unwrap_err().to_string().contains("/no/such/program"));
    }

    #[tokio::test]
    async fn cancelling_ends_the_whole_group() {
        let cancel = CancellationToken::new();
        let dir = tempfile::tempdir().unwrap();
        let script = format!("sleep 60 & echo $! > {0}/pid; echo '{{}}'; wait", dir.path().display());
        let command: Vec<String> = ["sh".to_owned(), "-c".to_owned(), script].to_vec();
        let mut program = Program::start(&command, None, Duration::from_secs(60), &cancel).unwrap();
        program.receive().await.unwrap();
        cancel.cancel();
        assert_eq!(program.receive().await.unwrap_err().to_string(), "cancelled");
        drop(program);
        let pid: u32 = std::fs::read_to_string(dir.path().join("pid"))
            .unwrap()
            .trim()
            .parse()
            .unwrap();
        // The grandchild is gone, or a zombie that nobody has collected yet.
        for _ in 0..100 {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            if stat.is_empty() || stat.contains(") Z") {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("process {pid} outlived its group");
    }
}
