//! Measuring: both sides answer the same tasks through the engine that serves them, pairs interleaved.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use http::{HeaderMap, HeaderValue, header};
use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use tokio_util::sync::CancellationToken;

use super::checker::{CheckerSpec, judge_messages, judged, score_by_program};
use super::reference::Reference;
use super::score::{SideScore, Unscored};
use super::{Assignment, Draw, EvalError, Sides, Suite, TaskRef, Trial};
use crate::domain::{FrozenRelease, Route, ScenarioName, Turn, Verdict};
use crate::engine::sse::turn_of_body;
use crate::engine::{Engine, EngineRequest};
use crate::recipe::GateSpec;

/// The longest answer that is read.
const MAX_ANSWER: usize = 8 * 1024 * 1024;

/// One side of a comparison: who answers, as which scenario and release.
#[derive(Clone)]
pub struct Side {
    /// The engine.
    pub engine: Arc<dyn Engine>,
    /// The scenario whose weights answer.
    pub scenario: ScenarioName,
    /// The release that answers.
    pub release: FrozenRelease,
}

/// Both sides, and the judge of rubrics.
#[derive(Clone)]
pub struct Contest {
    /// The candidate.
    pub candidate: Side,
    /// What is served; `None` measures the candidate alone.
    pub current: Option<Side>,
    /// Answers the questions of `judge` checkers.
    pub judge: Option<Side>,
}

/// Something to answer and score.
#[derive(Debug, Clone, PartialEq)]
pub struct Question {
    /// Its id.
    pub id: String,
    /// It may not get worse.
    pub protected: bool,
    /// The route it is sent on.
    pub route: Route,
    /// The body.
    pub request: Map<String, Value>,
    /// How the answer is scored.
    pub grading: Grading,
}

/// How an answer is scored.
#[derive(Debug, Clone, PartialEq)]
pub enum Grading {
    /// By a checker, whose scripts run in this directory.
    Checker(CheckerSpec, PathBuf),
    /// By a program, which also sees what was answered at the time.
    Program {
        /// Program and arguments.
        command: Vec<String>,
        /// Where it runs.
        directory: PathBuf,
        /// The recorded answer.
        recorded: Option<Box<Turn>>,
    },
}

/// Scores of answers that cannot come out differently: sampled greedily by the embedded model and scored by a rule.
/// Repeating such a task would cost time and tell nothing new.
type Known = Mutex<HashMap<(bool, String), f64>>;

/// The questions of a suite.
pub fn suite_questions(suite: &Suite) -> Vec<Question> {
    suite
        .tasks
        .iter()
        // Sealed tasks are not for the gate, and task folders need an agent.
        .filter(|task| !task.sealed && task.harbor.is_none())
        .map(|task| Question {
            id: task.id.clone(),
            protected: task.protected,
            route: Route::ChatCompletions,
            request: task.request.clone(),
            grading: Grading::Checker(task.checker.clone(), suite.directory.clone()),
        })
        .collect()
}

/// How a contest is held.
#[derive(Debug, Clone)]
pub struct Terms<'a> {
    /// The gate.
    pub spec: &'a GateSpec,
    /// The error probability this candidate may use.
    pub level: f64,
    /// Fixes the draws and the seeds of sampling.
    pub seed: &'a str,
    /// How tasks are drawn.
    pub draw: Draw,
    /// What the verdict names as its evaluator.
    pub evaluator: &'a str,
    /// Where answers are kept for somebody who wants to read them.
    pub answers: Option<&'a Answers>,
    /// Earlier runs of the served release, for a gate with a reference.
    pub reference: Option<&'a Reference>,
}

/// The most characters of one answer that are kept.
const KEPT_ANSWER: usize = 16_384;

/// What was answered, by task, repetition and side.
#[derive(Debug, Default)]
pub struct Answers(Mutex<HashMap<(String, bool), BTreeMap<u32, String>>>);

impl Answers {
    fn keep(&self, task: &str, repeat: u32, candidate: bool, turn: &Turn) {
        let mut text = turn.text.clone();
        if text.is_empty() && !turn.tool_calls.is_empty() {
            let calls = turn
                .tool_calls
                .iter()
                .map(|call| format!("{}({})", call.name, call.arguments));
            text = calls.collect::<Vec<_>>().join("\n");
        }
        if let Some((at, _)) = text.char_indices().nth(KEPT_ANSWER) {
            text.truncate(at);
            text.push('…');
        }
        self.0
            .lock()
            .entry((task.to_owned(), candidate))
            .or_default()
            .insert(repeat, text);
    }

    /// An answer. One that cannot come out differently was given once for all repetitions.
    fn of(&self, task: &str, repeat: u32, candidate: bool) -> Option<String> {
        let answers = self.0.lock();
        let given = answers.get(&(task.to_owned(), candidate))?;
        given.get(&repeat).or_else(|| given.values().next()).cloned()
    }

    /// Puts the answers beside their scores.
    pub fn put_into(&self, verdict: &mut Verdict) {
        for pair in &mut verdict.pairs {
            pair.candidate_answer = self.of(&pair.task, pair.repeat, true);
            pair.current_answer = self.of(&pair.task, pair.repeat, false);
        }
    }
}

/// Holds the contest and gives the verdict. `watch` hears how many pairs are in evidence.
pub async fn judge_by_answers(
    terms: &Terms<'_>,
    questions: &[Question],
    contest: &Contest,
    cancel: &CancellationToken,
    watch: &(dyn Fn(usize) + Send + Sync),
) -> Result<Verdict, EvalError> {
    let refs = questions
        .iter()
        .map(|question| TaskRef {
            id: question.id.clone(),
            protected: question.protected,
            exact: is_exact(question, &contest.candidate),
        })
        .collect();
    let known = Known::default();
    let measure = |assignment: Assignment| {
        let question = &questions[assignment.task];
        pair(terms, question, assignment, contest, &known, cancel)
    };
    hold(terms, refs, &measure, &|| false, cancel, watch).await
}

/// Runs what the trial asks for until it knows enough, or until `enough` says so. `measure` measures one pair.
pub(super) async fn hold<F, R>(
    terms: &Terms<'_>,
    refs: Vec<TaskRef>,
    measure: &F,
    enough: &(dyn Fn() -> bool + Sync),
    cancel: &CancellationToken,
    watch: &(dyn Fn(usize) + Send + Sync),
) -> Result<Verdict, EvalError>
where
    F: Fn(Assignment) -> R,
    R: Future<Output = Measured>,
{
    let known = terms.reference.map(Reference::known).unwrap_or_default();
    let mut trial = Trial::new(terms.spec.clone(), refs, terms.draw, terms.level, terms.seed)
        .with_reference(known.iter().map(|(task, score)| (task.as_str(), *score)));
    let mut running = FuturesUnordered::new();
    loop {
        let room = (terms.spec.parallel as usize).saturating_sub(running.len());
        if !trial.is_over() && !enough() {
            for assignment in trial.next(room) {
                running.push(measure(assignment));
            }
        }
        // What is still running when the verdict is known is dropped, which stops it.
        if trial.is_over() || running.is_empty() {
            break;
        }
        let done = tokio::select! {
            done = running.next() => done,
            () = cancel.cancelled() => return Err(EvalError::Stopped),
        };
        if enough() {
            break;
        }
        if let Some((index, candidate, current)) = done {
            trial.record(index, candidate, current);
            watch(trial.pairs());
        }
    }
    if let Some(reference) = terms.reference {
        reference.add(trial.fresh_reference());
    }
    Ok(trial.verdict(terms.evaluator))
}

pub(super) type Measured = (u64, Option<SideScore>, Option<SideScore>);

async fn pair(
    terms: &Terms<'_>,
    question: &Question,
    assignment: Assignment,
    contest: &Contest,
    known: &Known,
    cancel: &CancellationToken,
) -> Measured {
    // Both sides sample with the same seed: what does not depend on the weights cancels out.
    let seed = seed_of(terms.seed, &question.id, assignment.repeat);
    let of = |side: &Side, candidate: bool| {
        let side = side.clone();
        async move {
            let work = score(
                terms,
                question,
                (&side, candidate),
                contest,
                (assignment.repeat, seed),
                cancel,
            );
            remembered(known, candidate, question, &side, work).await
        }
    };
    let candidate = || async {
        match assignment.sides {
            Sides::Both | Sides::CandidateOnly => Some(of(&contest.candidate, true).await),
            Sides::ServedOnly => None,
        }
    };
    let current = || async {
        match (&contest.current, assignment.sides) {
            (Some(side), Sides::Both | Sides::ServedOnly) => Some(of(side, false).await),
            _ => None,
        }
    };
    let (candidate, current) = if assignment.candidate_first {
        let candidate = candidate().await;
        (candidate, current().await)
    } else {
        let current = current().await;
        (candidate().await, current)
    };
    (assignment.index, candidate, current)
}

/// Whether the same question always gets the same score: greedy decoding by weights that this process holds, scored by a
/// rule.
fn is_exact(question: &Question, side: &Side) -> bool {
    let greedy = question.request.get("temperature").and_then(Value::as_f64) == Some(0.0);
    let by_rule = matches!(&question.grading, Grading::Checker(checker, _) if checker.is_rule());
    greedy && by_rule && side.engine.kind() == "torch"
}

async fn remembered(
    known: &Known,
    candidate: bool,
    question: &Question,
    side: &Side,
    work: impl Future<Output = SideScore>,
) -> SideScore {
    if !is_exact(question, side) {
        return work.await;
    }
    let key = (candidate, question.id.clone());
    if let Some(score) = known.lock().get(&key) {
        return Ok(*score);
    }
    let score = work.await?;
    known.lock().insert(key, score);
    Ok(score)
}

async fn score(
    terms: &Terms<'_>,
    question: &Question,
    (side, candidate): (&Side, bool),
    contest: &Contest,
    (repeat, seed): (u32, u64),
    cancel: &CancellationToken,
) -> SideScore {
    let spec = terms.spec;
    let mut body = question.request.clone();
    body.insert("stream".into(), json!(false));
    if side.engine.kind() == "torch" {
        body.entry("seed").or_insert_with(|| json!(seed));
    }
    let limit = Duration::from_secs_f64(spec.timeout_s);
    let turn = answer(side, question.route, &body, limit).await?;
    if let Some(answers) = terms.answers {
        answers.keep(&question.id, repeat, candidate, &turn);
    }
    match &question.grading {
        Grading::Checker(checker, directory) => {
            if let Some(score) = checker.score(&turn) {
                return Ok(score);
            }
            match checker {
                CheckerSpec::Script {
                    command,
                    timeout_s,
                    answer,
                } => {
                    let ask = json!({
                        "version": 1, "task": question.id, "request": question.request, "response": turn, "answer": answer,
                    });
                    score_by_program(command, directory, *timeout_s, &ask, cancel)
                        .await
                        .map_err(Unscored::measurement)
                }
                CheckerSpec::Judge { rubric, answer } => {
                    let judge = contest
                        .judge
                        .as_ref()
                        .ok_or_else(|| Unscored::measurement("no judge is configured"))?;
                    by_judge(judge, rubric, answer, &question.request, &turn, limit)
                        .await
                        .map_err(Unscored::measurement)
                }
                _ => Err(Unscored::measurement("the checker cannot score this answer")),
            }
        }
        Grading::Program {
            command,
            directory,
            recorded,
        } => {
            let ask = json!({
                "version": 1, "task": question.id, "request": question.request, "response": turn, "recorded": recorded,
            });
            score_by_program(command, directory, spec.timeout_s, &ask, cancel)
                .await
                .map_err(Unscored::measurement)
        }
    }
}

pub(super) async fn by_judge(
    judge: &Side,
    rubric: &str,
    right: &Value,
    request: &Map<String, Value>,
    turn: &Turn,
    limit: Duration,
) -> Result<f64, String> {
    let request = Value::Object(request.clone());
    let mut body = Map::new();
    body.insert("messages".into(), judge_messages(rubric, right, &request, &turn.text));
    body.insert("temperature".into(), json!(0));
    body.insert("max_tokens".into(), json!(64));
    body.insert("stream".into(), json!(false));
    let reply = answer(judge, Route::ChatCompletions, &body, limit)
        .await
        .map_err(|why| why.to_string())?;
    judged(&reply.text)
}

/// One answer of one side. One that takes too long or never stops is a failure of the answer; an engine that cannot be
/// reached is a failure of the measurement.
async fn answer(side: &Side, route: Route, body: &Map<String, Value>, limit: Duration) -> Result<Turn, Unscored> {
    let failed = |error: &dyn std::fmt::Display| Unscored::measurement(error.to_string());
    let bytes = serde_json::to_vec(body).map_err(|error| failed(&error))?;
    let mut headers = HeaderMap::new();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    let request = EngineRequest {
        route,
        query: None,
        headers,
        body: Bytes::from(bytes),
        outline: None,
        scenario: side.scenario.clone(),
        release: side.release.clone(),
    };
    let work = async {
        let mut reply = side.engine.call(request).await.map_err(|error| failed(&error))?;
        let mut whole = Vec::new();
        while let Some(chunk) = reply.body.next().await {
            let chunk = chunk.map_err(|error| failed(&error))?;
            if whole.len() + chunk.len() > MAX_ANSWER {
                return Err(Unscored::answer(format!("the answer has more than {MAX_ANSWER} bytes")));
            }
            whole.extend_from_slice(&chunk);
        }
        if !reply.status.is_success() {
            let start: String = String::from_utf8_lossy(&whole).chars().take(200).collect();
            return Err(Unscored::measurement(format!(
                "the engine answered {}: {start}",
                reply.status
            )));
        }
        Ok(turn_of_body(route, &whole))
    };
    tokio::time::timeout(limit, work)
        .await
        .map_err(|_| Unscored::answer(format!("no answer within {} s", limit.as_secs_f64())))?
}

/// The seed of one pair; 31 bits, which every provider accepts.
fn seed_of(seed: &str, task: &str, repeat: u32) -> u64 {
    let mut hash = Sha256::new();
    hash.update(seed);
    hash.update([0]);
    hash.update(task);
    hash.update(repeat.to_le_bytes());
    let digest = hash.finalize();
    u64::from(u32::from_le_bytes([digest[0], digest[1], digest[2], digest[3]]) >> 1)
}

/// Where scripts of a recipe run.
pub fn directory_or_here(directory: Option<&Path>) -> PathBuf {
    directory.map_or_else(|| PathBuf::from("."), Path::to_path_buf)
}
