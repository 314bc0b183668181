//! Snapshots from the routes of a service on another machine.

use std::collections::HashMap;

use serde_json::{Value, json};
use similar::TextDiff;

use super::evolution::{self, AttemptFacts, Evolution};
use super::read;
use super::snapshot::{
    DiffFile, Evidence, FileFacts, Focus, Newest, RecordDetail, RecordFacts, ScenarioFacts, Service, Snapshot,
    StepFacts, StoreFacts,
};
use super::source::{Choice, Decision, Fault, Source, Want};
use super::text;
use crate::sys::clock;
use crate::telemetry::LogLine;

const RECORDS: usize = 100;
/// Records of one answer.
const PAGE: usize = 100;
const STEPS: usize = 200;
const ATTEMPTS: usize = 40;
const PROPOSALS: usize = 60;
const REQUESTS: usize = 20;
/// Steps behind a sparkline.
const REWARDS: usize = 40;
/// Scenarios that get a sparkline.
const SPARKED: usize = 32;
/// Looks after which the chain is read again although status shows no change: a refusal of an earlier held release shows only there.
const STALE_LOOKS: u32 = 10;
/// Larger files are named, not compared or shown.
const LARGEST_FILE: u64 = 1 << 20;
/// Files compared line by line.
const COMPARED: usize = 50;

/// HTTP, as the command line does it.
pub trait Fetch: Send {
    /// The JSON at a path.
    fn get(&mut self, path: &str) -> Result<Value, Fault>;
    /// The bytes at a path.
    fn bytes(&mut self, path: &str) -> Result<Vec<u8>, Fault>;
    /// Posts JSON to a path.
    fn post(&mut self, path: &str, body: &Value) -> Result<Value, Fault>;
    /// A part of a path, encoded.
    fn segment(&self, text: &str) -> String;
}

/// A service over HTTP.
pub struct Remote<F> {
    url: String,
    fetch: F,
    rewards: HashMap<String, (Option<u64>, Vec<f64>)>,
    seen: Option<Seen>,
    files: Option<(String, Vec<FileFacts>)>,
}

struct Seen {
    scenario: String,
    of: Value,
    most: usize,
    looks: u32,
    focus: Focus,
}

impl<F: Fetch> Remote<F> {
    /// The service at `url`.
    pub fn new(url: String, fetch: F) -> Self {
        Self {
            url,
            fetch,
            rewards: HashMap::new(),
            seen: None,
            files: None,
        }
    }

    fn path(&self, scenario: &str, rest: &str) -> String {
        format!("/reef/scenarios/{}/{rest}", self.fetch.segment(scenario))
    }

    fn steps(&mut self, scenario: &str, limit: usize) -> Result<Vec<StepFacts>, Fault> {
        let page = self
            .fetch
            .get(&self.path(scenario, &format!("releases?limit={limit}")))?;
        Ok(list(&page["releases"]).iter().map(read::step).collect())
    }

    /// The newest records, page by page.
    fn records(&mut self, scenario: &str, most: usize) -> Result<Vec<RecordFacts>, Fault> {
        let mut records: Vec<RecordFacts> = Vec::new();
        let mut before = String::new();
        while records.len() < most {
            let limit = PAGE.min(most - records.len());
            let rest = format!("records?order=newest&limit={limit}&gist={}{before}", text::GIST);
            let page = self.fetch.get(&self.path(scenario, &rest))?;
            records.extend(list(&page["records"]).iter().map(read::record));
            match page["next_before_sequence"].as_i64() {
                Some(next) => before = format!("&before_sequence={next}"),
                None => break,
            }
        }
        Ok(records)
    }

    fn focus(&mut self, scenario: &str, of: &Value, most: usize) -> Result<Focus, Fault> {
        if let Some(seen) = &mut self.seen
            && seen.scenario == scenario
            && same(&seen.of, of)
            && seen.most == most
            && seen.looks < STALE_LOOKS
        {
            seen.looks += 1;
            return Ok(seen.focus.clone());
        }
        let release = read::text(of, "release_id");
        let (records, steps) = (self.records(scenario, most)?, self.steps(scenario, STEPS)?);
        let evolution = self.evolution(scenario)?;
        let focus = Focus {
            scenario: scenario.to_owned(),
            newest: Newest {
                records: records.len() >= most,
                steps: steps.len() >= STEPS,
                attempts: evolution.attempts.len() >= ATTEMPTS,
            },
            records,
            steps,
            jobs: Vec::new(),
            files: release
                .map(|release| self.files(scenario, &release))
                .transpose()?
                .unwrap_or_default(),
            evolution,
        };
        self.seen = Some(Seen {
            scenario: scenario.to_owned(),
            of: of.clone(),
            most,
            looks: 0,
            focus: focus.clone(),
        });
        Ok(focus)
    }

    fn evolution(&mut self, scenario: &str) -> Result<Evolution, Fault> {
        let name = self.fetch.segment(scenario);
        let mut read = |what: &str, limit: usize| {
            let path = format!("/reef/harness/{what}?scenario={name}&limit={limit}");
            self.fetch.get(&path)
        };
        let (attempts, proposals, requests) = (
            read("attempts", ATTEMPTS)?,
            read("proposals", PROPOSALS)?,
            read("requests", REQUESTS)?,
        );
        Ok(Evolution {
            attempts: list(&attempts["attempts"]).iter().map(evolution::attempt).collect(),
            proposals: list(&proposals["proposals"]).iter().map(evolution::proposal).collect(),
            requests: evolution::known(&requests["requests"]),
        })
    }

    fn manifest(&mut self, scenario: &str, release: &str) -> Result<Value, Fault> {
        let part = self.fetch.segment(release);
        let mut found = self.fetch.get(&self.path(scenario, &format!("releases/{part}")))?;
        Ok(found["manifest"].take())
    }

    fn files(&mut self, scenario: &str, release: &str) -> Result<Vec<FileFacts>, Fault> {
        if let Some((of, files)) = &self.files
            && of == release
        {
            return Ok(files.clone());
        }
        let manifest = self.manifest(scenario, release)?;
        let files: Vec<FileFacts> = list(&manifest["content"]["files"])
            .iter()
            .map(|file| FileFacts {
                path: read::text(file, "path").unwrap_or_default(),
                bytes: read::whole(file, "size").unwrap_or(0),
            })
            .collect();
        self.files = Some((release.to_owned(), files.clone()));
        Ok(files)
    }

    fn rewards(&mut self, facts: &ScenarioFacts) -> Result<Vec<f64>, Fault> {
        if let Some((at, rewards)) = self.rewards.get(&facts.name)
            && *at == facts.step
        {
            return Ok(rewards.clone());
        }
        let steps = self.steps(&facts.name, REWARDS)?;
        let mut rewards: Vec<f64> = steps
            .iter()
            .filter_map(|step| step.metrics.get("reward_mean").copied())
            .collect();
        rewards.reverse();
        self.rewards.insert(facts.name.clone(), (facts.step, rewards.clone()));
        Ok(rewards)
    }

    /// The text of a file; nothing for one that is too large or no text.
    fn text(&mut self, scenario: &str, release: &str, path: &str) -> Result<Option<String>, Fault> {
        let (part, file) = (self.fetch.segment(release), self.fetch.segment(path));
        let at = self.path(scenario, &format!("releases/{part}/artifact?path={file}"));
        let bytes = self.fetch.bytes(&at)?;
        Ok(String::from_utf8(bytes).ok().filter(|text| !text.contains('\0')))
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

/// Whether a scenario's status shows no reason to read its records and chain again.
fn same(before: &Value, now: &Value) -> bool {
    // An attempt moves on with the phase of its step; a person decides on a release that was held.
    let phase = |of: &Value| {
        let state = of["last_committed_step"]["state"].clone();
        (of["training"]["phase"].clone(), state)
    };
    let counts = ["last_sequence", "scenario_step", "release_id", "exchanges", "reports"]
        .iter()
        .all(|key| before[key] == now[key]);
    counts && phase(before) == phase(now)
}

impl<F: Fetch> Source for Remote<F> {
    fn snapshot(&mut self, want: &Want) -> Result<Snapshot, Fault> {
        let status = self.fetch.get("/reef/status")?;
        let empty = serde_json::Map::new();
        let all = status["scenarios"].as_object().unwrap_or(&empty);
        let mut scenarios: Vec<ScenarioFacts> = all.iter().map(|(name, of)| read::scenario(name, of)).collect();
        scenarios.sort_by(|a, b| a.name.cmp(&b.name));
        let focused = want
            .scenario
            .as_ref()
            .filter(|name| all.contains_key(*name))
            .or_else(|| scenarios.first().map(|facts| &facts.name))
            .cloned();
        let focus = match &focused {
            Some(name) => Some(self.focus(name, &all[name], want.records.unwrap_or(RECORDS))?),
            None => None,
        };
        for facts in scenarios.iter_mut().take(SPARKED) {
            facts.rewards = self.rewards(facts)?;
        }
        let store = &status["store"];
        Ok(Snapshot {
            at_us: clock::now_us(),
            source: self.url.clone(),
            service: Some(Service {
                url: self.url.clone(),
                pid: None,
                live: Some(read::live(&status)),
            }),
            store: StoreFacts {
                error: read::text(store, "error"),
                file_bytes: None,
                stored_bytes: read::whole(store, "stored_bytes").unwrap_or(0),
                pruned: read::whole(store, "pruned_records").unwrap_or(0),
            },
            scenarios,
            focus,
        })
    }

    fn record(&mut self, scenario: &str, id: &str) -> Result<RecordDetail, Fault> {
        let part = self.fetch.segment(id);
        let record = self.fetch.get(&self.path(scenario, &format!("records/{part}")))?;
        Ok(read::detail(&record))
    }

    fn evidence(&mut self, scenario: &str, step: u64) -> Result<Evidence, Fault> {
        let mut found = self.fetch.get(&self.path(scenario, &format!("steps/{step}/verdict")))?;
        let verdict = serde_json::from_value(found["verdict"].take()).map_err(|error| Fault::of(&error))?;
        Ok(Evidence {
            step,
            verdict,
            failures: Vec::new(),
        })
    }

    fn attempt(&mut self, scenario: &str, id: &str) -> Result<AttemptFacts, Fault> {
        let (name, part) = (self.fetch.segment(scenario), self.fetch.segment(id));
        let found = self
            .fetch
            .get(&format!("/reef/harness/attempts/{part}?scenario={name}"))?;
        Ok(evolution::attempt(&found))
    }

    fn diff(&mut self, scenario: &str, old: &str, new: &str) -> Result<Vec<DiffFile>, Fault> {
        let (before, after) = (self.manifest(scenario, old)?, self.manifest(scenario, new)?);
        let side = |manifest: &Value| -> std::collections::BTreeMap<String, (String, u64)> {
            list(&manifest["content"]["files"])
                .iter()
                .filter_map(|file| {
                    let about = (read::text(file, "sha256")?, read::whole(file, "size")?);
                    Some((read::text(file, "path")?, about))
                })
                .collect()
        };
        let (before, after) = (side(&before), side(&after));
        let mut paths: Vec<&String> = before.keys().chain(after.keys()).collect();
        paths.sort();
        paths.dedup();
        let mut files = Vec::new();
        for path in paths {
            let (was, is) = (before.get(path), after.get(path));
            if was.map(|(sha, _)| sha) == is.map(|(sha, _)| sha) {
                continue;
            }
            let small = |file: Option<&(String, u64)>| file.is_none_or(|(_, size)| *size <= LARGEST_FILE);
            let mut lines = vec![match (was, is) {
                (None, Some((_, size))) => format!("added, {size} bytes"),
                (Some(_), None) => "removed".to_owned(),
                (Some((_, a)), Some((_, b))) => format!("changed, {a} -> {b} bytes"),
                (None, None) => continue,
            }];
            if small(was) && small(is) && files.len() < COMPARED {
                let mut texts = Vec::new();
                for (file, release) in [(was, old), (is, new)] {
                    texts.push(match file {
                        Some(_) => self.text(scenario, release, path)?,
                        None => Some(String::new()),
                    });
                }
                if let [Some(a), Some(b)] = &texts[..] {
                    let diff = TextDiff::from_lines(a.as_str(), b.as_str());
                    let unified = diff.unified_diff().context_radius(3).to_string();
                    lines = unified.lines().map(str::to_owned).collect();
                }
            }
            files.push(DiffFile {
                path: path.clone(),
                lines,
            });
        }
        Ok(files)
    }

    fn file(&mut self, scenario: &str, release: &str, path: &str) -> Result<String, Fault> {
        let size = self
            .files(scenario, release)?
            .iter()
            .find(|file| file.path == path)
            .map(|file| file.bytes);
        if size.is_some_and(|size| size > LARGEST_FILE) {
            return Ok("(too large to show here; reef release export writes it to a directory)".to_owned());
        }
        let text = self.text(scenario, release, path)?;
        Ok(text.unwrap_or_else(|| "(not text)".to_owned()))
    }

    fn logs(&mut self) -> Result<Vec<LogLine>, Fault> {
        Err(Fault::new(
            "the log is on the machine of the service; run reef logs or reef dash there",
        ))
    }

    fn decide(&mut self, choice: &Choice) -> Result<String, Fault> {
        let release = choice.release.as_str();
        let mut body = json!({"release_id": release});
        if !choice.note.is_empty() {
            body["note"] = json!(choice.note);
        }
        if let Some(head) = choice.head.as_ref().filter(|_| choice.decision != Decision::Reject) {
            body["expected_head"] = json!(head);
        }
        let path = self.path(&choice.scenario, choice.decision.as_str());
        let answer = self.fetch.post(&path, &body)?;
        // What was decided shows in the chain, not in status.
        self.seen = None;
        Ok(match (choice.decision, answer["live"].as_bool()) {
            (Decision::Reject, _) => format!("rejected {release}"),
            (_, Some(false)) => format!(
                "published, not live: {}",
                answer["error"].as_str().unwrap_or("the load is under way")
            ),
            _ => format!("now serving {}", answer["release_id"].as_str().unwrap_or(release)),
        })
    }
}
