//! The child's side of a step in another process, and the lines both sides speak.
//!
//! The parent writes the job as one JSON line, then `pause`, `resume` or `cancel` lines; the end of its pipe means that it
//! is gone, and cancels. The child answers with one JSON line per event and a last one with the result or the error.

use std::io::{BufRead, Write};

use serde::{Deserialize, Serialize};

use super::{Trainer, on_own_thread};
use crate::sys::task;
use crate::train::{Control, StepEvent, StepJob, StepOutcome, TrainError};

/// What the child says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Said {
    Event(StepEvent),
    Outcome(StepOutcome),
    Cancelled,
    Error(String),
}

/// Words of the parent after the job.
pub(super) const PAUSE: &str = "pause";
pub(super) const RESUME: &str = "resume";
pub(super) const CANCEL: &str = "cancel";

/// Makes the one step described on `input` and reports on `output`. An error of the step is reported there; only a
/// broken pipe or a job that cannot be read is an error here.
pub fn serve_child(mut input: impl BufRead + Send, mut output: impl Write + Send) -> std::io::Result<()> {
    let mut line = String::new();
    input.read_line(&mut line)?;
    let job: StepJob =
        serde_json::from_str(&line).map_err(|e| std::io::Error::new(std::io::ErrorKind::InvalidData, e))?;
    let control = Control::default();
    let trainer = Trainer::new();
    let mut broken = None;
    let result = std::thread::scope(|scope| {
        // Ends with the parent's pipe; the process does not wait for it.
        let listener = control.clone();
        let _listening = task::scoped(scope, "reef-parent", move || listen(input, &listener))?;
        let mut say = |said: &Said| {
            let sent = serde_json::to_string(said)
                .map_err(std::io::Error::other)
                .and_then(|text| writeln!(output, "{text}"))
                .and_then(|()| output.flush());
            if let Err(error) = sent {
                control.cancel();
                broken.get_or_insert(error);
            }
        };
        let outcome = on_own_thread(&job, || {
            trainer.run(&job, &control, &mut |event| say(&Said::Event(event)))
        });
        say(&match outcome {
            Ok(outcome) => Said::Outcome(outcome),
            Err(TrainError::Cancelled) => Said::Cancelled,
            Err(error) => Said::Error(whole_story(&error)),
        });
        Ok(())
    });
    result.and(broken.map_or(Ok(()), Err))
}

fn listen(input: impl BufRead, control: &Control) {
    for line in input.lines() {
        match line.as_deref().map(str::trim) {
            Ok(PAUSE) => control.pause(),
            Ok(RESUME) => control.resume(),
            Ok(CANCEL) | Err(_) => break,
            Ok(_) => {}
        }
    }
    control.cancel();
}

/// An error with its causes, for the other process to pass on.
fn whole_story(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        text.push_str(": ");
        text.push_str(&next.to_string());
        cause = next.source();
    }
    text
}
