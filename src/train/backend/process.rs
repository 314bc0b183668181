//! The parent's side of a step in another process.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use super::child::{CANCEL, PAUSE, RESUME, Said};
use crate::sys::launch::Launch;
use crate::sys::task;
use crate::train::{Control, StepEvent, StepJob, StepOutcome, TrainError};

/// How long a cancelled child may take to end by itself.
const GRACE: Duration = Duration::from_secs(10);
/// How often the parent looks whether it should pause or cancel.
const LOOK: Duration = Duration::from_millis(100);
/// How much of the child's standard error is kept.
const LAST_WORDS: usize = 4096;

/// Makes the step in a child and passes its events on.
pub(super) fn run(
    program: &Path,
    job: &StepJob,
    control: &Control,
    events: &mut (dyn FnMut(StepEvent) + Send),
) -> Result<StepOutcome, TrainError> {
    if cfg!(not(feature = "torch")) {
        return Err(TrainError::NotCompiledIn);
    }
    control.check()?;
    let mut child = Reaped(
        Command::new(program)
            .arg("__train-step")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .launch()
            .map_err(|e| died(format!("could not be started from {}: {e}", program.display()), ""))?,
    );
    let (stdin, stdout, stderr) = (child.0.stdin.take(), child.0.stdout.take(), child.0.stderr.take());
    let (Some(mut stdin), Some(stdout), Some(stderr)) = (stdin, stdout, stderr) else {
        return Err(died("has no pipes".to_owned(), ""));
    };
    std::thread::scope(|scope| {
        let words = started(task::scoped(scope, "reef-words", move || last_words(stderr)))?;
        let (send, receive) = sync_channel(256);
        let _reading = started(task::scoped(scope, "reef-said", move || {
            for line in BufReader::new(stdout).lines() {
                let Ok(line) = line else { break };
                if send.send(line).is_err() {
                    break;
                }
            }
        }))?;
        let mut text = serde_json::to_vec(job)
            .map_err(|e| TrainError::settings(format!("the job cannot be written as JSON: {e}")))?;
        text.push(b'\n');
        // A child that dies early breaks this pipe; what it said before is the better error.
        let _dead_already = stdin.write_all(&text).and_then(|()| stdin.flush());
        let mut paused = false;
        let mut deadline: Option<Instant> = None;
        let said = loop {
            match receive.recv_timeout(LOOK) {
                Ok(line) => match serde_json::from_str::<Said>(&line) {
                    Ok(Said::Event(event)) => events(event),
                    Ok(last) => break Some(last),
                    // Something else wrote to the pipe, a library say.
                    Err(_) => tracing::debug!(line, "the training process said something unexpected"),
                },
                Err(RecvTimeoutError::Disconnected) => break None,
                Err(RecvTimeoutError::Timeout) => {}
            }
            if control.is_paused() != paused {
                paused = !paused;
                let word = if paused { PAUSE } else { RESUME };
                let _dead_already = writeln!(stdin, "{word}").and_then(|()| stdin.flush());
            }
            match deadline {
                None if control.is_cancelled() => {
                    let _dead_already = writeln!(stdin, "{CANCEL}").and_then(|()| stdin.flush());
                    deadline = Some(Instant::now() + GRACE);
                }
                Some(deadline) if Instant::now() > deadline => {
                    let _gone = child.0.kill();
                    return Err(TrainError::Cancelled);
                }
                _ => {}
            }
        };
        drop(stdin);
        let fate = match said {
            Some(Said::Outcome(outcome)) => return Ok(outcome),
            Some(Said::Cancelled) => return Err(TrainError::Cancelled),
            Some(Said::Error(message)) => return Err(TrainError::Child { message }),
            Some(Said::Event(_)) | None => describe(child.0.wait()),
        };
        if control.is_cancelled() {
            return Err(TrainError::Cancelled);
        }
        Err(died(fate, &words.join().unwrap_or_default()))
    })
}

fn started<T>(thread: io::Result<task::Scoped<'_, T>>) -> Result<task::Scoped<'_, T>, TrainError> {
    thread.map_err(|error| died(format!("could not be listened to: {error}"), ""))
}

/// A child that is not left behind: dropped, it is killed if it still runs, and always waited for.
struct Reaped(Child);

impl Drop for Reaped {
    fn drop(&mut self) {
        let deadline = Instant::now() + Duration::from_secs(2);
        while Instant::now() < deadline {
            if !matches!(self.0.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let _gone = self.0.kill();
        let _reaped = self.0.wait();
    }
}

fn died(fate: String, last_words: &str) -> TrainError {
    let last_words = match last_words.trim() {
        "" => "none".to_owned(),
        words => words.to_owned(),
    };
    TrainError::Process { fate, last_words }
}

fn describe(status: io::Result<ExitStatus>) -> String {
    match status {
        Ok(status) => {
            #[cfg(unix)]
            if let Some(signal) = std::os::unix::process::ExitStatusExt::signal(&status) {
                return format!("was killed by signal {signal}");
            }
            match status.code() {
                Some(code) => format!("exited with code {code} and no result"),
                None => "ended without a result".to_owned(),
            }
        }
        Err(error) => format!("cannot be waited for ({error})"),
    }
}

fn last_words(mut stderr: impl Read) -> String {
    let mut kept = Vec::new();
    let mut buffer = [0u8; 4096];
    while let Ok(n @ 1..) = stderr.read(&mut buffer) {
        kept.extend_from_slice(&buffer[..n]);
        if kept.len() > LAST_WORDS {
            kept.drain(..kept.len() - LAST_WORDS);
        }
    }
    String::from_utf8_lossy(&kept).into_owned()
}
