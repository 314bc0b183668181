//! Snapshots from the files of this machine, read-only, and from the status of the service that runs on them.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use serde_json::Value;

use super::evolution::{self, AttemptFacts, Evolution};
use super::read;
use super::snapshot::{
    DiffFile, Evidence, FileFacts, Focus, JobFacts, Newest, RecordDetail, RecordFacts, ScenarioFacts, Service,
    Snapshot, StepFacts, became,
};
use super::source::{Choice, Fault, Source, Want};
use super::text;
use crate::domain::{RecordId, ReleaseId, RequestType, ScenarioName};
use crate::experience::{
    AttemptStory, Experience, Job, LoopFacts, Order, Proposal, Record, RecordQuery, RecordRow, Scenario, Stats,
    StepQuery, StepRow, StoreError, StoreOptions,
};
use crate::release::{ContentChange, FileChange, ReleaseError, Repository, RepositoryOptions};
use crate::sys::{clock, json};
use crate::telemetry::{LogLine, read_tail};

/// Records and steps shown of the scenario in focus; more records when they are asked for.
const RECORDS: usize = 200;
const STEPS: u32 = 400;
const JOBS: u32 = 40;
const ATTEMPTS: u32 = 40;
const PROPOSALS: u32 = 60;
const REQUESTS: u32 = 20;
/// Entries of an attempt's activity on its page.
const ACTIVITY: u32 = 200;
/// Steps behind a sparkline.
const REWARDS: u32 = 40;
/// Scenarios that get a sparkline.
const SPARKED: usize = 64;
/// Lines read back from the log.
const LOG_LINES: usize = 1000;
/// Larger files are named, not shown.
const LARGEST_FILE: u64 = 1 << 20;
/// Graded records looked through for the worst.
const GRADED: usize = 256;
const FAILURES: usize = 5;

/// The service that runs on the files, as its note says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Running {
    /// Where it is reached.
    pub url: String,
    /// Its process.
    pub pid: u32,
}

/// What the files alone cannot do: find and ask the running service, and move releases.
pub trait Outside: Send {
    /// The service on these files.
    fn running(&mut self) -> Option<Running>;
    /// Its status.
    fn status(&mut self) -> Option<Value>;
    /// Does what a person decided, as `reef release` does.
    fn decide(&mut self, choice: &Choice) -> Result<String, Fault>;
}

/// Where the files are.
#[derive(Debug, Clone)]
pub struct FilesAt {
    /// The directory, for the title.
    pub dir: PathBuf,
    /// The store.
    pub database: PathBuf,
    /// The artifact repository.
    pub artifacts: PathBuf,
    /// Its cache.
    pub cache: PathBuf,
    /// The logs.
    pub logs: PathBuf,
}

/// The files of this machine.
pub struct Files<O> {
    at: FilesAt,
    outside: O,
    store: Option<Opened>,
    rewards: HashMap<ScenarioName, (Option<u64>, Vec<f64>)>,
    /// What records say, by sequence: bodies are read once.
    gists: HashMap<i64, String>,
    seen: Option<Seen>,
}

/// The store, and which file it is: another one may take its place under the same name.
struct Opened {
    store: Experience,
    file: (u64, u64),
}

/// What the store said last, and when that is still all it has to say.
struct Seen {
    stamp: i64,
    want: Want,
    snapshot: Snapshot,
}

impl<O: Outside> Files<O> {
    /// Reads from these files.
    pub fn new(at: FilesAt, outside: O) -> Self {
        Self {
            at,
            outside,
            store: None,
            rewards: HashMap::new(),
            gists: HashMap::new(),
            seen: None,
        }
    }

    fn store(&mut self) -> Result<Experience, Fault> {
        // An open file outlives its name: without this a store that was removed or replaced would be shown for ever.
        let file = std::fs::metadata(&self.at.database).map(|of| (of.dev(), of.ino())).ok();
        if let (Some(opened), Some(file)) = (&self.store, file)
            && opened.file == file
        {
            return Ok(opened.store.clone());
        }
        (self.store, self.seen) = (None, None);
        self.rewards.clear();
        self.gists.clear();
        let Some(file) = file else {
            return Err(
                Fault::new(format!("there is no store at {}", self.at.database.display()))
                    .hint("reef serve creates it; or name the directory that holds it with --dir or -c"),
            );
        };
        let options = StoreOptions {
            readers: 1,
            ..StoreOptions::default()
        };
        let store = Experience::open_read_only(&self.at.database, options)?;
        self.store = Some(Opened {
            store: store.clone(),
            file,
        });
        Ok(store)
    }

    /// The size of the store: the file and what waits in its log.
    fn file_bytes(&self) -> u64 {
        let mut log = self.at.database.as_os_str().to_owned();
        log.push("-wal");
        [self.at.database.as_os_str(), &log]
            .iter()
            .filter_map(|path| Some(std::fs::metadata(path).ok()?.len()))
            .sum()
    }

    fn repository(&self) -> Result<Repository, Fault> {
        Ok(Repository::open_existing(
            &self.at.artifacts,
            &self.at.cache,
            RepositoryOptions::default(),
        )?)
    }

    fn rewards(&mut self, store: &Experience, name: &ScenarioName, step: Option<u64>) -> Result<Vec<f64>, StoreError> {
        if let Some((at, rewards)) = self.rewards.get(name)
            && *at == step
        {
            return Ok(rewards.clone());
        }
        let query = StepQuery {
            limit: Some(REWARDS),
            ..StepQuery::default()
        };
        let mut rewards: Vec<f64> = store
            .steps(name, &query)?
            .iter()
            .filter_map(|step| step.metrics.get("reward_mean").and_then(Value::as_f64))
            .collect();
        rewards.reverse();
        self.rewards.insert(name.clone(), (step, rewards.clone()));
        Ok(rewards)
    }

    /// The newest records of a scenario, with what they say.
    fn records(&mut self, store: &Experience, scenario: &ScenarioName, most: usize) -> Result<Vec<RecordFacts>, Fault> {
        let rows = store.records(&RecordQuery {
            scenario: Some(scenario.clone()),
            order: Order::NewestFirst,
            limit: most,
            ..RecordQuery::default()
        })?;
        let mut gists = HashMap::with_capacity(rows.len());
        let mut records = Vec::with_capacity(rows.len());
        for row in &rows {
            let text = match self.gists.remove(&row.sequence) {
                Some(text) => text,
                None => match store.record(Some(scenario), &row.id)? {
                    Some(record) => {
                        let gist = record.gist();
                        text::gist(&gist.asked, &gist.said)
                    }
                    None => String::new(),
                },
            };
            records.push(RecordFacts {
                text: text.clone(),
                ..record_facts(row)
            });
            gists.insert(row.sequence, text);
        }
        self.gists = gists;
        Ok(records)
    }

    fn focus(&mut self, store: &Experience, scenario: &ScenarioName, most: usize) -> Result<Focus, Fault> {
        let query = StepQuery {
            limit: Some(STEPS),
            ..StepQuery::default()
        };
        let steps = store.steps(scenario, &query)?;
        let records = self.records(store, scenario, most)?;
        let head = steps.iter().find(|step| step.outcome == "released");
        let evolution = evolution(store, scenario)?;
        Ok(Focus {
            newest: Newest {
                records: records.len() >= most,
                steps: steps.len() >= STEPS as usize,
                attempts: evolution.attempts.len() >= ATTEMPTS as usize,
            },
            scenario: scenario.to_string(),
            records,
            jobs: store.jobs(scenario, JOBS)?.iter().map(job).collect(),
            files: head
                .map(|step| self.files(&step.release.release_id))
                .unwrap_or_default(),
            steps: steps.iter().map(step).collect(),
            evolution,
        })
    }

    /// What the store says, read again only when somebody wrote to it.
    fn stored(&mut self, want: &Want) -> Result<Snapshot, Fault> {
        let store = self.store()?;
        let stamp = store.change_stamp()?;
        if let Some(seen) = &self.seen
            && seen.stamp == stamp
            && seen.want == *want
        {
            return Ok(seen.snapshot.clone());
        }
        let mut stats = store.stats(None)?;
        let mut facts = store.loop_facts()?;
        let scenarios = store.scenarios(false)?;
        let wanted = scenarios
            .iter()
            .find(|scenario| Some(scenario.name.as_str()) == want.scenario.as_deref())
            .or_else(|| scenarios.first());
        let mut snapshot = Snapshot {
            source: self.at.dir.display().to_string(),
            focus: wanted
                .map(|scenario| self.focus(&store, &scenario.name, want.records.unwrap_or(RECORDS)))
                .transpose()?,
            ..Snapshot::default()
        };
        let mut total = Stats::default();
        for (at, scenario) in scenarios.iter().enumerate() {
            let of = stats.remove(&scenario.name).unwrap_or_default();
            total.add(&of);
            let mut row = scenario_facts(scenario, &of, &facts.remove(&scenario.name).unwrap_or_default());
            if at < SPARKED {
                row.rewards = self.rewards(&store, &scenario.name, row.step)?;
            }
            snapshot.scenarios.push(row);
        }
        snapshot.store.stored_bytes = total.stored_bytes;
        snapshot.store.pruned = total.pruned_records;
        self.seen = Some(Seen {
            stamp,
            want: want.clone(),
            snapshot: snapshot.clone(),
        });
        Ok(snapshot)
    }

    /// The files of a release; none when the repository does not say.
    fn files(&self, release: &ReleaseId) -> Vec<FileFacts> {
        let manifest = self.repository().ok().and_then(|all| all.manifest(release).ok());
        let files = manifest.map(|manifest| manifest.content.files).unwrap_or_default();
        files
            .into_iter()
            .map(|file| FileFacts {
                path: file.path,
                bytes: file.size,
            })
            .collect()
    }
}

impl<O: Outside> Source for Files<O> {
    fn snapshot(&mut self, want: &Want) -> Result<Snapshot, Fault> {
        let stored = self.stored(want);
        if stored.is_err() {
            // The file may have been replaced; begin again with a connection of its own.
            (self.store, self.seen) = (None, None);
        }
        let mut snapshot = stored?;
        let running = self.outside.running();
        let status = running.as_ref().and_then(|_| self.outside.status());
        for row in &mut snapshot.scenarios {
            let live = status.as_ref().map(|status| &status["scenarios"][row.name.as_str()]);
            if let Some(live) = live.filter(|live| live.is_object()) {
                read::add_loop(row, live);
            }
        }
        snapshot.at_us = clock::now_us();
        snapshot.service = running.map(|running| Service {
            url: running.url,
            pid: Some(running.pid),
            live: status.as_ref().map(read::live),
        });
        snapshot.store.error = status.as_ref().and_then(|status| read::text(&status["store"], "error"));
        snapshot.store.file_bytes = Some(self.file_bytes());
        Ok(snapshot)
    }

    fn record(&mut self, scenario: &str, id: &str) -> Result<RecordDetail, Fault> {
        let store = self.store()?;
        let (scenario, id) = (name(scenario)?, RecordId::new(id).map_err(|error| Fault::of(&error))?);
        let record = store
            .record(Some(&scenario), &id)?
            .ok_or_else(|| Fault::new(format!("there is no record {id} any more")))?;
        let reports = store.reports_on(&scenario, &id)?;
        let consumed = store.consumed_by(&scenario, &id)?;
        Ok(record_detail(&record, &reports, &consumed))
    }

    fn evidence(&mut self, scenario: &str, step: u64) -> Result<Evidence, Fault> {
        let store = self.store()?;
        let scenario = name(scenario)?;
        let query = StepQuery {
            before: Some(step + 1),
            limit: Some(1),
            ..StepQuery::default()
        };
        let batch = store.steps(&scenario, &query)?.pop().and_then(|row| row.batch_id);
        let mut failures = Vec::new();
        for id in batch
            .map(|batch| store.batch_records(&batch))
            .transpose()?
            .unwrap_or_default()
            .iter()
            .take(GRADED)
        {
            let Some(record) = store.record(Some(&scenario), id)? else {
                continue;
            };
            if let (RequestType::Report, Some(score)) = (record.row.kind, record.row.score) {
                let payload = record
                    .bodies
                    .as_ref()
                    .and_then(|bodies| json::read(&bodies.request).ok());
                failures.push((id.to_string(), score, read::feedback(&payload.unwrap_or(Value::Null))));
            }
        }
        failures.sort_by(|a, b| a.1.total_cmp(&b.1));
        failures.truncate(FAILURES);
        Ok(Evidence {
            step,
            verdict: store.step_verdict(&scenario, step)?,
            failures,
        })
    }

    fn attempt(&mut self, scenario: &str, id: &str) -> Result<AttemptFacts, Fault> {
        let store = self.store()?;
        let story = store
            .attempt_story(&name(scenario)?, id)?
            .ok_or_else(|| Fault::new(format!("there is no attempt {id} any more")))?;
        let events = store.attempt_events(id, ACTIVITY)?;
        Ok(evolution::attempt(&story.to_json_with(&events)))
    }

    fn diff(&mut self, _scenario: &str, old: &str, new: &str) -> Result<Vec<DiffFile>, Fault> {
        let changes = self.repository()?.diff(&release(old)?, &release(new)?)?;
        Ok(changes.iter().map(diff_file).collect())
    }

    fn file(&mut self, _scenario: &str, of: &str, path: &str) -> Result<String, Fault> {
        let release = release(of)?;
        let repository = self.repository()?;
        let manifest = repository.manifest(&release)?;
        let entry = manifest.content.files.iter().find(|file| file.path == path);
        if entry.is_some_and(|entry| entry.size > LARGEST_FILE) {
            return Ok("(too large to show here; reef release export writes it to a directory)".to_owned());
        }
        let bytes = repository
            .read_file(&release, path)?
            .ok_or_else(|| Fault::new(format!("release {of} has no file {path}")))?;
        Ok(String::from_utf8(bytes).unwrap_or_else(|_| "(not text)".to_owned()))
    }

    fn logs(&mut self) -> Result<Vec<LogLine>, Fault> {
        read_tail(&self.at.logs, LOG_LINES)
            .map_err(|error| Fault::new(format!("cannot read the logs in {}: {error}", self.at.logs.display())))
    }

    fn decide(&mut self, choice: &Choice) -> Result<String, Fault> {
        self.outside.decide(choice)
    }
}

/// The row of a record as the pages draw it.
pub fn record_facts(row: &RecordRow) -> RecordFacts {
    read::record(&row.to_json())
}

/// Read as the remote side reads it, so that both show the same.
fn evolution(store: &Experience, scenario: &ScenarioName) -> Result<Evolution, StoreError> {
    let (attempts, proposals, requests) = (
        store.attempt_stories(scenario, ATTEMPTS)?,
        store.proposals(scenario, PROPOSALS)?,
        store.request_stories(scenario, REQUESTS)?,
    );
    Ok(Evolution {
        attempts: attempts
            .iter()
            .map(AttemptStory::to_json)
            .map(|of| evolution::attempt(&of))
            .collect(),
        proposals: proposals
            .iter()
            .map(Proposal::to_json)
            .map(|of| evolution::proposal(&of))
            .collect(),
        requests,
    })
}

fn name(text: &str) -> Result<ScenarioName, Fault> {
    ScenarioName::new(text).map_err(|error| Fault::of(&error))
}

fn release(text: &str) -> Result<ReleaseId, Fault> {
    ReleaseId::new(text).map_err(|error| Fault::of(&error))
}

fn scenario_facts(scenario: &Scenario, stats: &Stats, facts: &LoopFacts) -> ScenarioFacts {
    let step = facts.step.as_ref();
    let open = facts.open.as_ref();
    ScenarioFacts {
        name: scenario.name.to_string(),
        mode: scenario.mode.as_str().to_owned(),
        release: scenario.served.as_ref().map(|served| served.release_id.to_string()),
        load: scenario
            .served
            .as_ref()
            .and_then(|served| Some(served.runtime_load_id.as_ref()?.to_string())),
        step: step.map(|step| step.step),
        outcome: step.map(|step| became(&step.outcome, step.state.as_deref().unwrap_or_default()).to_owned()),
        step_us: step.map(|step| step.at_us),
        // Without a service the open job is all there is to say.
        phase: open.map(|open| open.stage.clone()).unwrap_or_default(),
        progress: None,
        trouble: open.and_then(|open| open.error.clone()),
        exchanges: stats.exchanges,
        reports: stats.reports,
        interrupted: stats.interrupted.values().sum(),
        consumed: stats.consumed,
        input_tokens: stats.input_tokens,
        output_tokens: stats.output_tokens,
        pending: None,
        instructions: facts.instructions,
        excluded: facts.excluded.clone(),
        mean_score: stats.mean_score(),
        rewards: Vec::new(),
        last_us: stats.last_us,
    }
}

fn step(row: &StepRow) -> StepFacts {
    let release = &row.release;
    StepFacts {
        step: row.step,
        release: release.release_id.to_string(),
        parent: release.parent.as_ref().map(ReleaseId::to_string),
        operation: row.operation.as_str().to_owned(),
        outcome: row.outcome.clone(),
        state: release.state.as_str().to_owned(),
        kind: release.kind.clone(),
        bytes: release.bytes,
        sequence: release.sequence,
        target: release.target.as_ref().map(ReleaseId::to_string),
        restorable: release.restorable,
        note: release.note.clone(),
        reason: row.reason.clone(),
        at_us: row.at_us,
        batch: row.batch_id.as_ref().map(ToString::to_string),
        asked: read::asked(&row.metrics, "text"),
        asked_by: read::asked(&row.metrics, "id"),
        metrics: read::numbers(&row.metrics),
    }
}

fn job(job: &Job) -> JobFacts {
    JobFacts {
        step: job.step,
        stage: job.stage.as_str().to_owned(),
        outcome: job.outcome.clone(),
        attempts: job.attempts,
        error: job.error.clone(),
        sealed_us: job.sealed_us,
        ended_us: job.ended_us,
    }
}

fn record_detail(record: &Record, reports: &[Record], consumed: &[crate::experience::Consumed]) -> RecordDetail {
    let parsed = json::read_or_text;
    // As the service gives it: what is no object stands under `body`.
    let payload = |record: &Record| match record.bodies.as_ref().map(|bodies| parsed(&bodies.request)) {
        None => Value::Null,
        Some(fields @ Value::Object(_)) => fields,
        Some(other) => serde_json::json!({"body": other}),
    };
    let mut json = record.row.to_json();
    json["payload"] = payload(record);
    if let Some(bodies) = &record.bodies {
        if let (Some(response), Some(payload)) = (&bodies.response, json["payload"].as_object_mut()) {
            payload.insert("response".to_owned(), parsed(response));
        }
        json["turn"] = serde_json::to_value(&bodies.turn).unwrap_or(Value::Null);
        json["capture"] = bodies
            .capture
            .as_ref()
            .map_or(Value::Null, crate::domain::TokenCapture::summary);
    }
    json["reports"] = reports
        .iter()
        .map(|report| {
            let mut row = report.row.to_json();
            row["payload"] = payload(report);
            row
        })
        .collect();
    json["consumed"] = consumed.iter().map(crate::experience::Consumed::to_json).collect();
    let mut detail = read::detail(&json);
    if record.bodies.is_none() {
        detail.request = None;
    }
    detail
}

fn diff_file(change: &FileChange) -> DiffFile {
    let lines = match &change.content {
        ContentChange::Text(text) => text.lines().map(str::to_owned).collect(),
        ContentChange::Mode => vec!["only the permission to execute it".to_owned()],
        ContentChange::Binary => vec![match (&change.old, &change.new) {
            (None, _) => "added, not text".to_owned(),
            (_, None) => "removed, not text".to_owned(),
            _ => "changed, not text".to_owned(),
        }],
        ContentChange::Tensors { changed, equal } => {
            let number = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.3e}"));
            let mut lines = vec![format!("{} tensors differ, {equal} are equal", changed.len())];
            lines.extend(changed.iter().map(|tensor| {
                format!(
                    "{} {} {}  |change| {}  relative {}",
                    tensor.name,
                    tensor.dtype,
                    tensor.shape,
                    number(tensor.norm),
                    number(tensor.relative)
                )
            }));
            lines
        }
    };
    DiffFile {
        path: change.path.clone(),
        lines,
    }
}

impl From<StoreError> for Fault {
    fn from(error: StoreError) -> Self {
        Self::of(&error)
    }
}

impl From<ReleaseError> for Fault {
    fn from(error: ReleaseError) -> Self {
        Self::of(&error)
    }
}
