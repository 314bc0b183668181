//! Feedback computed from traffic alone: what a session asks next tells how good the answer before it was. The recipe's
//! program grades every answer once, by what followed it, and the grade is stored as a report on that answer. From there
//! on it is a report like any other: counted, exported, trained once. Its id is made from the answer's, so a crash between
//! the program and the store repeats the question and never the grade.

use std::collections::HashMap;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use tokio_util::sync::CancellationToken;

use super::{Driver, LoopError, now_us};
use crate::domain::{RecordId, RequestType, ScenarioName};
use crate::eval::{ask_program, directory_or_here};
use crate::experience::{Record, RecordQuery, RecordRow, parse_report};
use crate::recipe::ProcessorKind;
use crate::sys::json as loose;

/// Exchanges read at a time; what follows in them is graded before the next page is read.
const PAGE: usize = 64;
/// Programs that grade at the same time.
const AT_ONCE: usize = 4;
/// Attempts at grading one answer before it is left out for good.
const ATTEMPTS: u32 = 3;

/// How far the traffic has been read.
#[derive(Debug, Default)]
pub(super) struct Followed {
    cursor: i64,
    /// The latest answer of each session, and when it was stored.
    open: HashMap<String, (RecordId, i64)>,
    /// Failures to grade, by answer.
    failures: HashMap<RecordId, u32>,
    /// Answers whose grader failed, with what followed; asked again at the next look.
    again: Vec<(RecordId, RecordId)>,
}

impl Followed {
    /// Notes one exchange; gives the answer before it in its session.
    fn note(&mut self, row: &RecordRow, session_ttl_us: i64) -> Option<(RecordId, RecordId)> {
        self.cursor = row.sequence;
        let session = row.tags.get("session")?;
        let answered = row.status.is_none_or(|status| (200..300).contains(&status));
        let before = self.open.remove(session);
        if answered {
            self.open.insert(session.clone(), (row.id.clone(), row.stored_us));
        }
        // Whoever comes back after a long time reacts to something else.
        let (before, at_us) = before?;
        (row.stored_us - at_us <= session_ttl_us).then(|| (before, row.id.clone()))
    }

    /// Forgets sessions that ended.
    fn forget(&mut self, before_us: i64) {
        self.open.retain(|_, (_, at_us)| *at_us >= before_us);
    }
}

/// The id of the report that grades an answer.
fn report_id(answer: &RecordId) -> Result<RecordId, LoopError> {
    let digest = hex::encode(Sha256::digest(answer.as_str().as_bytes()));
    Ok(RecordId::new(format!("computed-{}", &digest[..32]))?)
}

impl Driver {
    /// Grades what has been followed by something since the last look, where the recipe computes its feedback.
    pub(super) async fn grade_what_was_followed(
        &self,
        scenario: &ScenarioName,
        followed: &mut Followed,
        cancel: &CancellationToken,
    ) -> Result<(), LoopError> {
        let spec = &self.inner.recipe.processor;
        if spec.kind != ProcessorKind::Computed {
            return Ok(());
        }
        let ttl_us = i64::try_from(Duration::from_secs_f64(spec.session_ttl_s).as_micros()).unwrap_or(i64::MAX);
        let mut pairs = std::mem::take(&mut followed.again);
        loop {
            let query = RecordQuery {
                scenario: Some(scenario.clone()),
                kind: Some(RequestType::Inference),
                cursor: Some(followed.cursor),
                limit: PAGE,
                ..RecordQuery::default()
            };
            let page = self.read(move |experience| experience.records(&query)).await?;
            pairs.extend(page.iter().filter_map(|row| followed.note(row, ttl_us)));
            self.grade(scenario, std::mem::take(&mut pairs), followed, cancel)
                .await?;
            if page.len() < PAGE {
                followed.forget(now_us().saturating_sub(ttl_us));
                return Ok(());
            }
        }
    }

    async fn grade(
        &self,
        scenario: &ScenarioName,
        pairs: Vec<(RecordId, RecordId)>,
        followed: &mut Followed,
        cancel: &CancellationToken,
    ) -> Result<(), LoopError> {
        let name = scenario.clone();
        let ungraded = self
            .read(move |experience| {
                let mut ungraded = Vec::new();
                for (answer, next) in pairs {
                    // A person's report is worth more than a computed one, and a computed one is made once.
                    if experience.reports_on(&name, &answer)?.is_empty() {
                        let before = experience.record(Some(&name), &answer)?;
                        let after = experience.record(Some(&name), &next)?;
                        if let (Some(before), Some(after)) = (before, after) {
                            ungraded.push((before, after));
                        }
                    }
                }
                Ok(ungraded)
            })
            .await?;
        let mut asked = stream::iter(ungraded.into_iter().map(|(before, after)| async move {
            let grade = self.ask_grader(&before, &after, cancel).await;
            (before, after, grade)
        }))
        // In the order of the traffic, so that what is trained when does not depend on which program was quicker.
        .buffered(AT_ONCE);
        while let Some((before, after, grade)) = asked.next().await {
            if cancel.is_cancelled() {
                return Err(LoopError::Stopped);
            }
            let (answer, next) = (before.row.id, after.row.id);
            let id = report_id(&answer)?;
            let report = |said: &Value| parse_report(id.clone(), scenario.clone(), fields(said, &answer, &next));
            let report = match grade.and_then(|said| report(&said).map_err(|error| error.to_string())) {
                Ok(report) => report,
                Err(error) => {
                    let failures = followed.failures.entry(answer.clone()).or_default();
                    *failures += 1;
                    tracing::warn!(%scenario, record = %answer, attempt = *failures, error, "an answer could not be graded by what followed it");
                    if *failures < ATTEMPTS {
                        followed.again.push((answer, next));
                        continue;
                    }
                    report(&json!({"feedback": format!("could not be graded: {error}")}))?
                }
            };
            followed.failures.remove(&answer);
            self.experience().append_report(report).await?;
        }
        Ok(())
    }

    async fn ask_grader(&self, before: &Record, after: &Record, cancel: &CancellationToken) -> Result<Value, String> {
        let spec = &self.inner.recipe.processor;
        let request = |record: &Record| {
            record.bodies.as_ref().map_or(Value::Null, |bodies| {
                loose::read(&bodies.request).unwrap_or(Value::Null)
            })
        };
        let ask = json!({
            "version": 1,
            "record": before.row.id,
            "request": request(before),
            "response": before.bodies.as_ref().and_then(|bodies| bodies.turn.as_ref()),
            "next": {"record": after.row.id, "request": request(after)},
        });
        let directory = directory_or_here(self.inner.recipe.directory.as_deref());
        let said = ask_program(&spec.command, &directory, spec.timeout_s, &ask, cancel).await?;
        match &said["score"] {
            Value::Null if said["skip"].is_string() => Ok(json!({"feedback": said["skip"]})),
            Value::Number(_) => Ok(said),
            _ => Err(format!(
                "the grader wrote {said}, not {{\"score\": number}} or {{\"skip\": \"why\"}}"
            )),
        }
    }
}

/// What is stored of a grade. Without a score the answer never trains, and the report says why.
fn fields(said: &Value, answer: &RecordId, next: &RecordId) -> Map<String, Value> {
    let mut fields = Map::new();
    let scored = said["score"].is_number();
    for key in ["score", "feedback"] {
        if !said[key].is_null() {
            fields.insert(key.to_owned(), said[key].clone());
        }
    }
    fields.insert("references".to_owned(), json!([answer]));
    fields.insert(
        "metadata".to_owned(),
        json!({"computed_from": next, "training": {"eligible": scored}}),
    );
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grade_without_a_score_never_trains_and_says_why() {
        let (answer, next) = (RecordId::new("a").unwrap(), RecordId::new("b").unwrap());
        let id = report_id(&answer).unwrap();
        let scenario = ScenarioName::new("s").unwrap();
        let scored = fields(&json!({"score": 0.5, "feedback": "thanked"}), &answer, &next);
        let report = parse_report(id.clone(), scenario.clone(), scored).unwrap();
        assert_eq!(
            (report.score, report.metadata["training"]["eligible"].clone()),
            (Some(0.5), json!(true))
        );
        let skipped = parse_report(
            id.clone(),
            scenario,
            fields(&json!({"feedback": "small talk"}), &answer, &next),
        )
        .unwrap();
        assert_eq!(skipped.score, None);
        assert_eq!(skipped.metadata["training"]["eligible"], json!(false));
        assert_eq!(skipped.references, std::slice::from_ref(&answer));
        assert_eq!(
            id,
            report_id(&answer).unwrap(),
            "the same answer is graded under the same id"
        );
    }
}
