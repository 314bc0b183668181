//! A measurement made by an external program, which runs both sides by itself. JSON lines:
//!
//! ```text
//! -> {"event":"begin","version":1,"candidate":DIR,"current":DIR or null,"suite":DIR or null}
//! <- {"event":"tasks","tasks":[{"id":"a","protected":false}, …]}
//! -> {"event":"measure","index":0,"task":"a","repeat":0,"sides":["candidate","current"]}
//! <- {"event":"score","index":0,"candidate":0.5,"current":1.0}      or null for a side without a score, "failure":"why",
//!                                                                   "cause":"answer" or "measurement" (the default)
//! -> {"event":"end"}
//! ```
//!
//! The cause `answer` says that the side itself failed (it ran out of time, it never stopped): alone it counts as the lowest
//! score. `measurement` says that the side could not be measured. `sides` names what to run: both, in this order, or one.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::{Cause, Draw, EvalError, Sides, TaskRef, Trial, Unscored};
use crate::domain::Verdict;
use crate::recipe::GateSpec;
use crate::sys::program::Program;

/// What is compared, on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compared {
    /// The candidate's files.
    pub candidate: PathBuf,
    /// The files of the served release; `None` when it has none of its own.
    pub current: Option<PathBuf>,
}

#[derive(Deserialize)]
#[serde(tag = "event", rename_all = "lowercase")]
enum Said {
    Tasks {
        tasks: Vec<SaidTask>,
    },
    Score {
        index: u64,
        #[serde(default)]
        candidate: Option<f64>,
        #[serde(default)]
        current: Option<f64>,
        #[serde(default)]
        failure: Option<String>,
        #[serde(default)]
        cause: SaidCause,
    },
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum SaidCause {
    Answer,
    #[default]
    Measurement,
}

#[derive(Deserialize)]
struct SaidTask {
    id: String,
    #[serde(default)]
    protected: bool,
}

/// Judges a candidate by a program. `level` is the error probability it may use, `seed` fixes the draws, `directory` is
/// where the program runs, `watch` hears how many pairs are done.
pub async fn judge_by_program(
    spec: &GateSpec,
    level: f64,
    seed: &str,
    compared: &Compared,
    directory: Option<&Path>,
    cancel: &CancellationToken,
    watch: &(dyn Fn(usize) + Send + Sync),
) -> Result<Verdict, EvalError> {
    // Two sides, and some time to say so.
    let limit = Duration::from_secs_f64(2.0 * spec.timeout_s + 10.0);
    let mut program = Program::start(&spec.command, directory, limit, cancel)?;
    let suite = spec
        .suite
        .as_ref()
        .map(|suite| directory.unwrap_or(Path::new(".")).join(suite));
    program
        .send(&json!({
            "event": "begin", "version": 1, "candidate": compared.candidate, "current": compared.current, "suite": suite,
        }))
        .await?;
    let tasks = match receive(&mut program).await? {
        Said::Tasks { tasks } => tasks,
        Said::Score { .. } => return Err(EvalError::program("it gave a score before its tasks")),
    };
    let tasks: Vec<TaskRef> = tasks
        .into_iter()
        .map(|task| TaskRef {
            id: task.id,
            protected: task.protected,
            exact: false,
        })
        .collect();
    let mut trial = Trial::new(spec.clone(), tasks.clone(), Draw::Repeated, level, seed);
    while !trial.is_over() {
        let Some(assignment) = trial.next(1).pop() else { break };
        program.allow(limit);
        let sides: &[&str] = match (assignment.sides, assignment.candidate_first) {
            (Sides::CandidateOnly, _) => &["candidate"],
            (Sides::ServedOnly, _) => &["current"],
            (Sides::Both, true) => &["candidate", "current"],
            (Sides::Both, false) => &["current", "candidate"],
        };
        let ask = json!({
            "event": "measure", "index": assignment.index, "task": tasks[assignment.task].id,
            "repeat": assignment.repeat, "sides": sides,
        });
        program.send(&ask).await?;
        match receive(&mut program).await? {
            Said::Score {
                index,
                candidate,
                current,
                failure,
                cause,
            } if index == assignment.index => {
                let side = |asked: bool, score: Option<f64>| {
                    asked.then(|| score.ok_or_else(|| unscored(cause, failure.as_deref())))
                };
                trial.record(
                    index,
                    side(assignment.sides != Sides::ServedOnly, candidate),
                    side(assignment.sides != Sides::CandidateOnly, current),
                );
                watch(trial.pairs());
            }
            Said::Score { index, .. } => {
                return Err(EvalError::program(format!(
                    "it gave the score of pair {index} when asked for {}",
                    assignment.index
                )));
            }
            Said::Tasks { .. } => return Err(EvalError::program("it gave its tasks twice")),
        }
    }
    // The verdict is known; a program that does not hear the end is no reason to lose it.
    let _unheard = program.send(&json!({"event": "end"})).await;
    Ok(trial.verdict("program"))
}

fn unscored(cause: SaidCause, failure: Option<&str>) -> Unscored {
    Unscored {
        cause: match cause {
            SaidCause::Answer => Cause::Answer,
            SaidCause::Measurement => Cause::Measurement,
        },
        why: failure.unwrap_or("no score and no failure was given").to_owned(),
    }
}

async fn receive(program: &mut Program) -> Result<Said, EvalError> {
    match program.receive().await? {
        Some(value) => parse(value),
        None => Err(EvalError::program(format!("it ended early: {}", program.fate().await))),
    }
}

fn parse(value: Value) -> Result<Said, EvalError> {
    serde_json::from_value(value).map_err(|error| EvalError::program(format!("it wrote something unexpected: {error}")))
}
