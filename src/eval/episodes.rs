//! Measuring harness trees: the agent itself does the tasks of a suite on both trees, pairs interleaved, and its answers
//! or its files are scored.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio_util::sync::CancellationToken;

use super::baseline::Baseline;
use super::checker::CheckerSpec;
use super::harbor::HarborTask;
use super::measure::{Measured, Side, Terms, by_judge, hold};
use super::score::{SideScore, Unscored};
use super::{Assignment, EvalError, ReadyTask, Sides, Suite, TaskRef};
use crate::domain::{Outcome, Turn, Verdict};
use crate::harness::episode::{Episode, EpisodeOutcome, Stage};
use crate::harness::sandbox::{Ended, Input, Isolation, Job, Output, Phase, SandboxError};
use crate::harness::tree::Rendered;
use crate::sys::random;

/// Both trees and where they run.
pub struct Arena<'a> {
    /// Where and with what agent.
    pub stage: &'a Stage,
    /// The candidate's files.
    pub candidate: &'a Rendered,
    /// The served files; `None` measures the candidate alone.
    pub current: Option<&'a Rendered>,
    /// Answers the questions of `judge` checkers.
    pub judge: Option<Side>,
    /// Scores of the served tree that are known already.
    pub baseline: Option<&'a Baseline>,
    /// Whether more may be spent; the reason when not.
    pub within_budget: &'a (dyn Fn() -> Result<(), String> + Send + Sync),
    /// Hears of every episode.
    pub told: &'a (dyn Fn(EpisodeNote) + Send + Sync),
}

/// One episode, for whoever watches.
#[derive(Debug, Clone, PartialEq)]
pub struct EpisodeNote {
    /// `candidate` or `served`.
    pub side: &'static str,
    /// The task.
    pub task: String,
    /// The score, or why there is none.
    pub score: Result<f64, String>,
    /// Limits that were reached, processes left behind.
    pub notes: Vec<String>,
}

/// Holds the contest and gives the verdict.
pub async fn judge_by_episodes(
    terms: &Terms<'_>,
    suite: &Suite,
    arena: &Arena<'_>,
    cancel: &CancellationToken,
    watch: &(dyn Fn(usize) + Send + Sync),
) -> Result<Verdict, EvalError> {
    let tasks: Vec<&ReadyTask> = suite.tasks.iter().filter(|task| !task.sealed).collect();
    let refs: Vec<TaskRef> = tasks
        .iter()
        .map(|task| TaskRef {
            id: task.id.clone(),
            protected: task.protected,
            exact: false,
        })
        .collect();
    let stopped = parking_lot::Mutex::new(None::<EvalError>);
    let measure = |assignment: Assignment| {
        let (task, stopped) = (tasks[assignment.task], &stopped);
        async move {
            match pair(terms, suite, task, &assignment, arena, cancel).await {
                Ok(measured) => measured,
                Err(error) => {
                    let failed = || Some(Err(Unscored::measurement(error.to_string())));
                    let both = (failed(), failed());
                    stopped.lock().get_or_insert(error);
                    (assignment.index, both.0, both.1)
                }
            }
        }
    };
    let verdict = hold(terms, refs, &measure, &|| stopped.lock().is_some(), cancel, watch).await?;
    match stopped.into_inner() {
        // What ended the contest early is told in the verdict's own words only when it is the budget.
        Some(EvalError::Budget { reason }) => {
            let mut verdict = verdict;
            // Too little was measured to say anything, and measuring it again would cost the same again.
            if verdict.outcome == Outcome::Invalid {
                verdict.outcome = Outcome::Inconclusive;
            }
            verdict.reason = format!("{reason}: {}", verdict.reason);
            verdict.figures.insert("stopped".into(), Value::String(reason));
            Ok(verdict)
        }
        Some(error) => Err(error),
        None => Ok(verdict),
    }
}

/// Scores of the tasks that no gate sees, for the record of a release.
pub async fn sealed_scores(
    suite: &Suite,
    arena: &Arena<'_>,
    timeout_s: f64,
    cancel: &CancellationToken,
) -> Result<Vec<(String, Option<f64>)>, EvalError> {
    let mut scores = Vec::new();
    for task in suite.tasks.iter().filter(|task| task.sealed) {
        if (arena.within_budget)().is_err() {
            break;
        }
        let score = one(suite, task, arena.candidate, arena, "candidate", timeout_s, cancel).await?;
        scores.push((task.id.clone(), score.ok()));
    }
    Ok(scores)
}

async fn pair(
    terms: &Terms<'_>,
    suite: &Suite,
    task: &ReadyTask,
    assignment: &Assignment,
    arena: &Arena<'_>,
    cancel: &CancellationToken,
) -> Result<Measured, EvalError> {
    let candidate = || {
        one(
            suite,
            task,
            arena.candidate,
            arena,
            "candidate",
            terms.spec.timeout_s,
            cancel,
        )
    };
    let current = || async {
        match (arena.current, assignment.sides) {
            (Some(rendered), Sides::Both) => {
                if let Some(known) = arena
                    .baseline
                    .and_then(|baseline| baseline.known(&task.id, assignment.repeat))
                {
                    return Ok(Some(Ok(known)));
                }
                let score = one(suite, task, rendered, arena, "served", terms.spec.timeout_s, cancel).await?;
                if let (Some(baseline), Ok(score)) = (arena.baseline, &score) {
                    baseline.measured(&task.id, assignment.repeat, *score);
                }
                Ok(Some(score))
            }
            _ => Ok::<_, EvalError>(None),
        }
    };
    let (candidate, current) = if assignment.candidate_first {
        let candidate = candidate().await?;
        (candidate, current().await?)
    } else {
        let current = current().await?;
        (candidate().await?, current)
    };
    Ok((assignment.index, Some(candidate), current))
}

/// One episode and its score.
async fn one(
    suite: &Suite,
    task: &ReadyTask,
    rendered: &Rendered,
    arena: &Arena<'_>,
    side: &'static str,
    timeout_s: f64,
    cancel: &CancellationToken,
) -> Result<SideScore, EvalError> {
    (arena.within_budget)().map_err(|reason| EvalError::Budget { reason })?;
    let kept = Kept::new(&arena.stage.work)?;
    let (score, notes) = match run(suite, task, rendered, arena, kept.path(), cancel).await {
        Ok(outcome) => {
            let score = match &outcome.invalid {
                Some(why) => Err(Unscored::measurement(why.clone())),
                None => graded(suite, task, &outcome, arena, kept.path(), timeout_s, cancel).await,
            };
            (score, outcome.notes)
        }
        Err(SandboxError::Stopped) => return Err(EvalError::Stopped),
        // A machine without namespaces has none for the next episode either.
        Err(error @ SandboxError::Unavailable { .. }) => {
            return Err(EvalError::Sandbox {
                reason: error.to_string(),
            });
        }
        Err(error) => (Err(Unscored::measurement(error.to_string())), Vec::new()),
    };
    if cancel.is_cancelled() {
        return Err(EvalError::Stopped);
    }
    (arena.told)(EpisodeNote {
        side,
        task: task.id.clone(),
        score: score.clone().map_err(|why| why.to_string()),
        notes,
    });
    Ok(score)
}

async fn run(
    suite: &Suite,
    task: &ReadyTask,
    rendered: &Rendered,
    arena: &Arena<'_>,
    kept: &Path,
    cancel: &CancellationToken,
) -> Result<EpisodeOutcome, SandboxError> {
    let mut stage = arena.stage.clone();
    if let Some(harbor) = &task.harbor {
        stage.limits.timeout_s = stage.limits.timeout_s.min(harbor.agent_s);
        let episode = Episode {
            rendered,
            prompt: &harbor.instruction,
            workspace: None,
            inputs: harbor.inputs(),
            env: harbor.env.clone(),
            directory: &harbor.workdir,
            before: harbor.setup(&stage.agent.path()),
            after: vec![harbor.verifier(&stage.agent.path())],
            outputs: vec![HarborTask::output(kept.join("verifier"))],
        };
        return stage.run(&episode, cancel).await;
    }
    let workspace = task.workspace.as_ref().map(|path| suite.directory.join(path));
    let prompt = prompt_of(task);
    let keep = matches!(task.checker, CheckerSpec::Script { .. });
    let episode = Episode {
        rendered,
        prompt: &prompt,
        workspace: workspace.as_deref(),
        inputs: Vec::new(),
        env: std::collections::BTreeMap::new(),
        directory: "workspace",
        before: Vec::new(),
        after: Vec::new(),
        outputs: keep
            .then(|| Output {
                from: "workspace".to_owned(),
                to: kept.join("workspace"),
            })
            .into_iter()
            .collect(),
    };
    stage.run(&episode, cancel).await
}

/// What the agent is told: the last message of the user. A system message belongs to the agent's own harness.
fn prompt_of(task: &ReadyTask) -> String {
    let messages = task.request.get("messages").and_then(Value::as_array);
    let last = messages.and_then(|messages| messages.iter().rev().find(|message| message["role"] == "user"));
    match last.map(|message| &message["content"]) {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => parts
            .iter()
            .filter_map(|part| part["text"].as_str())
            .collect::<Vec<_>>()
            .join("\n"),
        _ => String::new(),
    }
}

async fn graded(
    suite: &Suite,
    task: &ReadyTask,
    outcome: &EpisodeOutcome,
    arena: &Arena<'_>,
    kept: &Path,
    timeout_s: f64,
    cancel: &CancellationToken,
) -> SideScore {
    let timed_out = matches!(outcome.agent.ended, Ended::Timeout | Ended::Memory);
    if task.harbor.is_some() {
        // The tests are not run after an agent that had to be stopped: it did not do the task in its time.
        if timed_out {
            return Err(stopped_agent());
        }
        return HarborTask::reward(&kept.join("verifier"), outcome.after.first()).map_err(Unscored::measurement);
    }
    let turn = &outcome.answer;
    if let Some(score) = task.checker.score(turn) {
        return Ok(score);
    }
    match &task.checker {
        CheckerSpec::Script { .. } if timed_out => Err(stopped_agent()),
        CheckerSpec::Script { .. } => by_script(suite, task, turn, arena, kept, cancel)
            .await
            .map_err(Unscored::measurement),
        CheckerSpec::Judge { rubric, answer } => {
            let judge = arena
                .judge
                .as_ref()
                .ok_or_else(|| Unscored::measurement("no judge is configured"))?;
            let limit = Duration::from_secs_f64(timeout_s);
            by_judge(judge, rubric, answer, &task.request, turn, limit)
                .await
                .map_err(Unscored::measurement)
        }
        _ => Err(Unscored::measurement("the checker cannot score this answer")),
    }
}

fn stopped_agent() -> Unscored {
    Unscored::answer("the agent ran out of time or memory")
}

/// Runs a checker's script in a sandbox of its own, on what the agent left: both are code that nobody has read.
async fn by_script(
    suite: &Suite,
    task: &ReadyTask,
    turn: &Turn,
    arena: &Arena<'_>,
    kept: &Path,
    cancel: &CancellationToken,
) -> Result<f64, String> {
    let CheckerSpec::Script {
        command,
        timeout_s,
        answer,
    } = &task.checker
    else {
        return Err("the checker is no script".to_owned());
    };
    let text = |error: std::io::Error| error.to_string();
    let workspace = kept.join("workspace");
    std::fs::create_dir_all(&workspace).map_err(text)?;
    let question = json!({
        "version": 1, "task": task.id, "request": task.request, "response": turn, "answer": answer,
        "workspace": if arena.stage.isolation == Isolation::None { "../../workspace" } else { "/episode/workspace" },
    });
    std::fs::write(kept.join("question.json"), format!("{question}\n")).map_err(text)?;
    let scratch = kept.join("grading");
    std::fs::create_dir_all(&scratch).map_err(text)?;
    let mut argv: Vec<String> = ["/bin/sh", "-c", "exec \"$@\" < ../question.json", "sh"]
        .map(str::to_owned)
        .to_vec();
    argv.extend(command.iter().cloned());
    let input = |from: PathBuf, to: &str| Input {
        from,
        to: to.to_owned(),
    };
    let job = Job {
        isolation: arena.stage.isolation,
        phases: vec![Phase {
            name: "checker".to_owned(),
            argv,
            env: [
                ("PATH", arena.stage.agent.path()),
                ("HOME", "{root}/home".to_owned()),
                ("REEF_WORKSPACE", "{root}/workspace".to_owned()),
            ]
            .map(|(name, value)| (name.to_owned(), value))
            .into(),
            directory: "grading/suite".to_owned(),
            directories: vec!["home".to_owned(), "grading".to_owned()],
            inputs: vec![
                input(suite.directory.clone(), "grading/suite"),
                input(kept.join("question.json"), "grading/question.json"),
                input(workspace, "workspace"),
            ],
            seconds: *timeout_s,
            must_succeed: false,
        }],
        limits: arena.stage.limits.sandbox.clone(),
        ..Job::new(scratch)
    };
    let outcome = arena
        .stage
        .sandbox
        .run(&job, cancel)
        .await
        .map_err(|error| error.to_string())?;
    let phase = outcome.phases.first().ok_or("the checker did not run")?;
    let last = phase.stdout.lines().rev().find(|line| !line.trim().is_empty());
    let said: Value = last
        .and_then(|line| serde_json::from_str(line).ok())
        .unwrap_or(Value::Null);
    if let Some(failure) = said["failure"].as_str() {
        return Err(failure.to_owned());
    }
    said["score"].as_f64().ok_or_else(|| {
        let words: String = format!("{}{}", phase.stdout, phase.stderr).chars().take(200).collect();
        format!(
            "the checker ended with {:?} and no {{\"score\": number}}: {}",
            phase.ended,
            words.trim()
        )
    })
}

/// What decides a score of the served tree: two scores compare only where all of it is equal.
pub fn conditions(suite: &Suite, stage: &Stage, tree_digest: &str) -> String {
    let install = stage.agent.adapter().install.as_ref();
    let text = json!([
        suite.digest,
        tree_digest,
        stage.source.model,
        stage.agent.adapter().name,
        install.map(|install| &install.version),
        stage.limits.timeout_s,
        stage.limits.calls,
        stage.limits.tokens,
    ])
    .to_string();
    hex::encode(Sha256::digest(text))
}

/// Files of one episode that outlive it until it is scored.
struct Kept(PathBuf);

impl Kept {
    fn new(work: &Path) -> Result<Self, EvalError> {
        let path = work.join(format!("kept-{}", random::hex_token()));
        std::fs::create_dir_all(&path).map_err(|source| EvalError::Read {
            path: path.clone(),
            source,
        })?;
        Ok(Self(path))
    }

    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            tracing::warn!(path = %self.0.display(), %error, "the files of an episode stay");
        }
    }
}
