//! Grading a run. A report is written to disk before it is sent and carries an id of its own, so that neither a lost
//! answer nor a service that is away makes it count twice or not at all.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::error::{ClientError, Kind, at};
use super::files::{lock, private_dir, read_json, write_json};
use super::layout::Place;
use super::manifest::sha256;
use super::service::{Failed, Service};
use super::spool::{Run, Spool};
use crate::domain::{SCORE_RULE, is_score};
use crate::sys::clock;
use crate::sys::task;

/// How long to wait for another process that sends reports.
const SENDING: Duration = Duration::from_secs(10);

/// What a person says about a run.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Grade {
    /// A number.
    pub score: Option<f64>,
    /// Words.
    pub feedback: Option<String>,
    /// The run; without it the session's, and without one the run with receipts in which something happened last.
    pub run: Option<String>,
    /// The session this is said in, if it is one.
    pub session: Option<String>,
    /// One report for each receipt rather than one for all of them.
    pub per_receipt: bool,
}

/// A report on its way.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Waiting {
    version: u32,
    /// The run it is about.
    pub(super) run: String,
    /// Root of the service that gave the receipts it quotes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    url: Option<String>,
    created_at_us: i64,
    /// What is sent, with its id.
    body: Map<String, Value>,
    /// When the service took it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sent_at_us: Option<i64>,
    /// Why the service will never take it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    refused: Option<String>,
}

/// What came of a grade.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Reported {
    /// The run that was graded.
    pub run: String,
    /// The release it ran on.
    pub release_id: String,
    /// How many receipts the grade is attached to.
    pub receipts: usize,
    /// Ids of the reports the service has.
    pub sent: Vec<String>,
    /// Ids of the reports that wait for the service.
    pub waiting: Vec<String>,
}

impl Waiting {
    fn id(&self) -> &str {
        self.body
            .get("agent_record_id")
            .and_then(Value::as_str)
            .unwrap_or_default()
    }

    fn path(&self, place: &Place) -> PathBuf {
        place.runs().join(format!("{}.{}.report.json", self.run, self.id()))
    }

    fn is_open(&self) -> bool {
        self.sent_at_us.is_none() && self.refused.is_none()
    }

    /// The grade alone, to tell a repetition from a change of mind.
    fn grade(&self) -> (Option<&Value>, Option<&Value>) {
        (self.body.get("score"), self.body.get("feedback"))
    }
}

/// Every report, oldest first. One that cannot be read, or whose name is another one's, holds up nothing; `doctor` names it.
fn all(place: &Place) -> Result<Vec<Waiting>, ClientError> {
    let (mut reports, _) = read(place)?;
    reports.sort_by(|a, b| (a.created_at_us, a.id()).cmp(&(b.created_at_us, b.id())));
    Ok(reports)
}

/// Reports that cannot be read.
pub(super) fn unreadable(place: &Place) -> Result<Vec<PathBuf>, ClientError> {
    Ok(read(place)?.1)
}

fn read(place: &Place) -> Result<(Vec<Waiting>, Vec<PathBuf>), ClientError> {
    let dir = place.runs();
    let (mut reports, mut unreadable) = (Vec::new(), Vec::new());
    for entry in fs::read_dir(&dir).into_iter().flatten() {
        let path = entry.map_err(at("read", &dir))?.path();
        if !path.to_string_lossy().ends_with(".report.json") {
            continue;
        }
        match read_json::<Waiting>(&path) {
            Ok(Some(report)) if report.path(place) == path => reports.push(report),
            // Another process has just removed it.
            Ok(None) => {}
            Ok(Some(_)) | Err(_) => unreadable.push(path),
        }
    }
    Ok((reports, unreadable))
}

/// Reports the service does not have yet.
pub(super) fn waiting(place: &Place) -> Result<Vec<Waiting>, ClientError> {
    Ok(all(place)?.into_iter().filter(Waiting::is_open).collect())
}

/// Grades a run: writes the reports down, then sends what waits.
pub async fn report(place: &Place, service: &Service, grade: &Grade) -> Result<Reported, ClientError> {
    if grade.score.is_none() && grade.feedback.as_deref().is_none_or(|text| text.trim().is_empty()) {
        return Err(ClientError::new(Kind::Usage, "the report says nothing").hint("give --score, --feedback or both"));
    }
    if grade.score.is_some_and(|score| !is_score(score)) {
        return Err(ClientError::new(Kind::Usage, SCORE_RULE));
    }
    let runs = Spool::of(place).runs();
    let run = choose(&runs, grade)?;
    let mut receipts: Vec<&str> = Vec::new();
    for turn in &run.turns {
        if !receipts.contains(&turn.receipt.as_str()) {
            receipts.push(&turn.receipt);
        }
    }
    let groups: Vec<Vec<&str>> = if grade.per_receipt {
        receipts.iter().map(|receipt| vec![*receipt]).collect()
    } else {
        vec![receipts.clone()]
    };
    let reports: Vec<Waiting> = groups
        .into_iter()
        .map(|references| made(place, run, grade, &references))
        .collect();
    let before: Vec<Waiting> = all(place)?
        .into_iter()
        .filter(|report| report.run == run.run && report.refused.is_none())
        .collect();
    let repeated = |report: &Waiting| before.iter().any(|old| old.id() == report.id());
    if grade.run.is_none()
        && let Some(old) = before.first().filter(|_| !reports.iter().all(&repeated))
    {
        let (score, feedback) = old.grade();
        let said = [
            score.map(|score| format!("score {score}")),
            feedback.map(|_| "feedback".to_owned()),
        ];
        let said: Vec<String> = said.into_iter().flatten().collect();
        return Err(ClientError::new(
            Kind::Usage,
            format!(
                "the most recent run, {}, was graded already ({})",
                run.run,
                said.join(" and ")
            ),
        )
        .hint(format!("to grade it again, name it: --run {}", run.run)));
    }
    private_dir(&place.runs())?;
    for report in reports.iter().filter(|report| !repeated(report)) {
        write_json(&report.path(place), report)?;
    }
    flush(place, service).await?;
    let mut reported = Reported {
        run: run.run.clone(),
        release_id: run.release_id.clone(),
        receipts: receipts.len(),
        sent: Vec::new(),
        waiting: Vec::new(),
    };
    for report in all(place)?
        .into_iter()
        .filter(|report| reports.iter().any(|mine| mine.id() == report.id()))
    {
        match (&report.refused, report.sent_at_us) {
            (Some(reason), _) => {
                return Err(ClientError::new(
                    Kind::Usage,
                    format!("the service refused the report on run {}: {reason}", run.run),
                ));
            }
            (None, Some(_)) => reported.sent.push(report.id().to_owned()),
            (None, None) => reported.waiting.push(report.id().to_owned()),
        }
    }
    Ok(reported)
}

/// The same grade of the same run is the same report for ever.
fn made(place: &Place, run: &Run, grade: &Grade, references: &[&str]) -> Waiting {
    let mut body = Map::new();
    if let Some(score) = grade.score {
        body.insert("score".to_owned(), json!(score));
    }
    if let Some(feedback) = &grade.feedback {
        body.insert("feedback".to_owned(), json!(feedback));
    }
    body.insert("references".to_owned(), json!(references));
    body.insert(
        "metadata".to_owned(),
        json!({"client_release": run.release_id, "session": run.run}),
    );
    let identity = format!("{}\n{}\n{}", place.dir.display(), run.run, Value::Object(body.clone()));
    let id = format!("report-{}", &sha256(identity.as_bytes())[..32]);
    body.insert("agent_record_id".to_owned(), json!(id));
    Waiting {
        version: 1,
        run: run.run.clone(),
        url: run.url.clone(),
        created_at_us: clock::now_us(),
        body,
        sent_at_us: None,
        refused: None,
    }
}

fn choose<'a>(runs: &'a [Run], grade: &Grade) -> Result<&'a Run, ClientError> {
    let Some(wanted) = grade.run.as_deref() else {
        let with_receipts = || runs.iter().filter(|run| !run.turns.is_empty());
        let own = grade
            .session
            .as_ref()
            .and_then(|session| with_receipts().find(|run| run.run == *session));
        // Of sessions at the same time, the one that ended last is the one a person has just left.
        return own
            .or_else(|| with_receipts().max_by_key(|run| run.last_us()))
            .ok_or_else(|| {
                ClientError::new(Kind::Nothing, "no run has a receipt, so there is nothing to grade")
                    .hint("run the agent first; `report --list` shows the runs")
            });
    };
    let mut matching = runs.iter().filter(|run| run.run.starts_with(wanted));
    match (matching.next(), matching.next()) {
        (Some(run), None) if run.turns.is_empty() => Err(ClientError::new(
            Kind::Nothing,
            format!("run {} has no receipt, so there is nothing to grade", run.run),
        )),
        (Some(run), None) => Ok(run),
        (None, _) => {
            Err(ClientError::new(Kind::Usage, format!("there is no run {wanted:?}"))
                .hint("`report --list` shows the runs"))
        }
        (Some(_), Some(_)) => Err(
            ClientError::new(Kind::Usage, format!("several runs begin with {wanted:?}"))
                .hint("write more of the id; `report --list` shows them"),
        ),
    }
}

/// Sends what waits, oldest first. Stops where no service answers, and goes on past a report that the service cannot take
/// now; gives the reasons of those refused for good. One process sends at a time: what another one is sending is left to it.
pub async fn flush(place: &Place, service: &Service) -> Result<Vec<String>, ClientError> {
    let mut refused = Vec::new();
    if waiting(place)?.is_empty() {
        return Ok(refused);
    }
    let path = place.runs().join("sending");
    let held = task::blocking("waiting for a lock", move || lock(&path, SENDING)).await;
    let Ok(Some(_held)) = held.unwrap_or(Ok(None)) else {
        return Ok(refused);
    };
    // Again, now that nobody else sends.
    for mut report in waiting(place)? {
        match service.post_report(&Value::Object(report.body.clone())).await {
            Ok(_) => report.sent_at_us = Some(clock::now_us()),
            // A wrong token is set right later; the report waits for that too.
            Err(Failed::Refused(status, _, error) | Failed::Foreign(status, error))
                if matches!(status.as_u16(), 401 | 403) =>
            {
                return Err(error);
            }
            // Another service knows nothing of the receipts it quotes; it waits for the one that gave them.
            Err(Failed::Refused(..)) if report.url.as_deref().is_some_and(|url| url != service.base()) => continue,
            Err(Failed::Refused(_, _, error)) => {
                refused.push(format!("run {}: {error}", report.run));
                report.refused = Some(error.to_string());
            }
            Err(Failed::Broke(_)) => continue,
            Err(Failed::Unavailable(_) | Failed::Foreign(..)) => break,
        }
        write_json(&report.path(place), &report)?;
    }
    Ok(refused)
}

/// What is known of the grades of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Grades {
    /// Reports the service has.
    pub sent: usize,
    /// Reports that wait for it.
    pub waiting: usize,
    /// Reports it will never take.
    pub refused: usize,
}

/// What is known of the grades of a run.
pub fn grades(place: &Place, run: &str) -> Result<Grades, ClientError> {
    let mut grades = Grades::default();
    for report in all(place)?.into_iter().filter(|report| report.run == run) {
        match (report.sent_at_us, &report.refused) {
            (Some(_), _) => grades.sent += 1,
            (None, Some(_)) => grades.refused += 1,
            (None, None) => grades.waiting += 1,
        }
    }
    Ok(grades)
}
