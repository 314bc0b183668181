//! Sealing: from what waits to a batch that survives a crash.

use std::collections::{HashMap, HashSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::collect::{collect, excluded};
use super::{Ask, CONSUMER, Driver, LoopError, Waiting, budget, now_us, samples};
use crate::domain::{BatchId, RecordId, ReleaseId, RequestType, ScenarioName, TrainingMode};
use crate::experience::{Job, NewJob, ProposalState, Record, RecordQuery, StepQuery};
use crate::recipe::ProcessorKind;
use crate::scenario::processor::{Exclusion, Pool, Sample, Seal, Sealed, Serving};
use crate::sys::failpoint;

/// How many steps back budgets look.
const LOOK_BACK: u32 = 2000;
/// How many releases back lag is counted where there are no loads.
const CHAIN: usize = 1000;

/// What a job keeps of its batch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Manifest {
    pub train: Vec<Sample>,
    pub holdout: Vec<Sample>,
    pub recipe_digest: String,
    pub max_staleness: u64,
    /// Lag of the oldest and of the average sample when the batch was sealed.
    pub lag_max: u64,
    pub lag_mean: f64,
    /// The instruction that asked for it, as sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instruction: Option<Value>,
    /// The proposal of an agent or a person that it tries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proposal: Option<String>,
    /// The earlier release that is compared with what is served now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recheck: Option<ReleaseId>,
}

impl Manifest {
    pub(super) fn of(job: &Job) -> Result<Self, LoopError> {
        serde_json::from_value(job.manifest.clone()).map_err(|error| LoopError::Trainer {
            reason: format!("the manifest of batch {} cannot be read: {error}", job.batch),
        })
    }

    /// Every record the batch uses up, each once.
    pub(super) fn records(&self, instruction: Option<&RecordId>) -> Vec<RecordId> {
        let mut seen = HashSet::new();
        self.train
            .iter()
            .chain(&self.holdout)
            .flat_map(Sample::records)
            .chain(instruction)
            .filter(|id| seen.insert((*id).clone()))
            .cloned()
            .collect()
    }
}

/// Whether there is a batch.
pub(super) enum Sealing {
    /// There is.
    Begun(Box<Job>),
    /// There is none, perhaps for a reason worth telling.
    Nothing(Option<String>),
}

impl Driver {
    /// Looks for something to begin.
    pub(super) async fn seal(
        &self,
        scenario: &ScenarioName,
        ask: Ask,
        waiting: &mut Waiting,
    ) -> Result<Sealing, LoopError> {
        if !self.inner.recipe.learns() {
            return Ok(Sealing::Nothing(Some("the recipe only records".to_owned())));
        }
        let Some(head) = self.inner.publisher.sync(scenario).await? else {
            return Err(LoopError::UnknownScenario(scenario.clone()));
        };
        if let Some(reason) = self.inner.publisher.no_room().await? {
            return Ok(Sealing::Nothing(Some(reason)));
        }
        let serving = self.serving(scenario).await?;
        self.look(scenario, waiting, &serving).await?;
        let mode = self.mode(scenario).await?;
        let instruction = match mode {
            TrainingMode::Auto => None,
            TrainingMode::Manual | TrainingMode::Hybrid => self.next_instruction(scenario).await?,
        };
        let proposal = match instruction {
            None if self.evolves() && mode != TrainingMode::Manual => self.next_proposal(scenario).await?,
            _ => None,
        };
        let recheck = match (&instruction, &proposal, ask) {
            (None, None, Ask::Automatic) if self.evolves() && mode != TrainingMode::Manual => {
                self.recheck_due(scenario, &head).await?
            }
            _ => None,
        };
        let seal = if instruction.is_some() || ask == Ask::Now {
            Seal::Now
        } else {
            Seal::Ready
        };
        if instruction.is_none() && ask == Ask::Automatic {
            if mode == TrainingMode::Manual {
                return Ok(Sealing::Nothing(Some(
                    "manual mode waits for an instruction".to_owned(),
                )));
            }
            if let Some(reason) = self.over_budget(scenario).await? {
                return Ok(Sealing::Nothing(Some(reason)));
            }
        }
        let sealed = match (&proposal, &recheck) {
            // What waits for a batch goes on waiting: the candidate is there already.
            (Some(proposal), _) => Some((empty_batch(format!("proposal:{proposal}"))?, Vec::new())),
            (None, Some(due)) => Some((empty_batch(due.batch.clone())?, Vec::new())),
            (None, None) => {
                self.seal_sound(scenario, seal, waiting, &serving, instruction.as_ref())
                    .await?
            }
        };
        let Some((sealed, lags)) = sealed else {
            return Ok(Sealing::Nothing(None));
        };
        let manifest = Manifest {
            recipe_digest: self.inner.recipe_digest.clone(),
            max_staleness: self.inner.recipe.batch.max_staleness,
            lag_max: lags.iter().copied().max().unwrap_or(0),
            lag_mean: lags.iter().sum::<u64>() as f64 / lags.len().max(1) as f64,
            instruction: instruction
                .as_ref()
                .and_then(|record| crate::sys::json::read(&record.bodies.as_ref()?.request).ok()),
            proposal,
            recheck: recheck.map(|due| due.target),
            train: sealed.train,
            holdout: sealed.holdout,
        };
        let holdout: Vec<(RecordId, String)> = manifest
            .holdout
            .iter()
            .flat_map(|sample| sample.sources.iter().map(|id| (id.clone(), sample.session.clone())))
            .collect();
        if !holdout.is_empty() {
            self.experience().hold_out(scenario.clone(), holdout).await?;
        }
        hit("loop::before_seal")?;
        let job = self
            .experience()
            .job_begin(NewJob {
                scenario: scenario.clone(),
                batch: sealed.id,
                recipe: self.inner.recipe.name.clone(),
                manifest: serde_json::to_value(&manifest).map_err(|error| LoopError::Trainer {
                    reason: error.to_string(),
                })?,
                instruction: instruction.map(|record| record.row.id),
                base: head,
            })
            .await?;
        waiting.pool.remove(manifest.train.iter().chain(&manifest.holdout));
        hit("loop::after_seal")?;
        Ok(Sealing::Begun(Box::new(job)))
    }

    /// Reads what is new and lets go of what is too old.
    async fn look(&self, scenario: &ScenarioName, waiting: &mut Waiting, serving: &Serving) -> Result<(), LoopError> {
        let (experience, recipe) = (self.experience().clone(), self.inner.recipe.clone());
        let (name, cursor) = (scenario.clone(), waiting.cursor);
        let mut pool = std::mem::replace(&mut waiting.pool, Pool::new(&self.inner.recipe));
        let (pool, result) = self
            .blocking(move || {
                let result = collect(&experience, &name, &recipe, CONSUMER, &mut pool, cursor);
                Ok((pool, result))
            })
            .await?;
        waiting.pool = pool;
        let mut found = match result {
            Ok(found) => found,
            Err(error) => {
                // What was read before the error is not known to be complete: begin again from the start.
                waiting.pool = Pool::new(&self.inner.recipe);
                waiting.cursor = 0;
                return Err(error);
            }
        };
        waiting.cursor = found.cursor;
        let expired = waiting.pool.expire(serving, now_us());
        found
            .excluded
            .extend(expired.iter().filter_map(|(sample, why)| excluded(sample, *why)));
        self.exclude(scenario, found.excluded).await
    }

    async fn exclude(&self, scenario: &ScenarioName, records: Vec<(RecordId, &'static str)>) -> Result<(), LoopError> {
        if records.is_empty() {
            return Ok(());
        }
        tracing::info!(%scenario, n_records = records.len(), first_reason = records[0].1, "records excluded from training");
        Ok(self
            .experience()
            .exclude(scenario.clone(), CONSUMER.to_owned(), records)
            .await?)
    }

    /// Seals a batch of which every sample can be read and trained; what cannot is excluded, and the batch filled again.
    async fn seal_sound(
        &self,
        scenario: &ScenarioName,
        seal: Seal,
        waiting: &mut Waiting,
        serving: &Serving,
        instruction: Option<&Record>,
    ) -> Result<Option<(Sealed, Vec<u64>)>, LoopError> {
        loop {
            let sealed = match (waiting.pool.seal(scenario, seal, now_us())?, instruction) {
                (Some(sealed), None) => sealed,
                // An instruction has its own batch id, whatever rides along, and goes ahead with nothing at all.
                (sealed, Some(record)) => {
                    let (train, holdout) =
                        sealed.map_or_else(Default::default, |sealed| (sealed.train, sealed.holdout));
                    Sealed {
                        id: instruction_batch(scenario, &record.row.id)?,
                        train,
                        holdout,
                    }
                }
                (None, None) => return Ok(None),
            };
            let (experience, name) = (self.experience().clone(), scenario.clone());
            let recipe = self.inner.recipe.clone();
            let (sealed, broken) = self
                .blocking(move || {
                    let mut broken = Vec::new();
                    let mut prompts: HashMap<&str, Vec<u32>> = HashMap::new();
                    let mut mixed: HashSet<&str> = HashSet::new();
                    for sample in &sealed.train {
                        match samples::load(&experience, &name, &recipe, sample)? {
                            Err(why) => broken.push((sample.clone(), why)),
                            Ok(loaded) => {
                                if let (Some(group), Some(tokens)) = (sample.group.as_deref(), loaded.tokens) {
                                    let first = prompts.entry(group).or_insert_with(|| tokens.prompt.clone());
                                    if *first != tokens.prompt {
                                        mixed.insert(group);
                                    }
                                }
                            }
                        }
                    }
                    // Rewards of answers to different prompts say nothing of each other.
                    let differ = |sample: &&Sample| sample.group.as_deref().is_some_and(|group| mixed.contains(group));
                    let of_mixed: Vec<_> = sealed.train.iter().filter(differ).cloned().collect();
                    broken.retain(|(sample, _)| !differ(&sample));
                    broken.extend(of_mixed.into_iter().map(|sample| (sample, Exclusion::PromptsDiffer)));
                    Ok((sealed, broken))
                })
                .await?;
            if broken.is_empty() {
                let window = &self.inner.recipe.batch;
                let lags = sealed
                    .train
                    .iter()
                    .filter_map(|sample| serving.admit(&sample.produced, window).ok())
                    .collect();
                return Ok(Some((sealed, lags)));
            }
            waiting.pool.remove(broken.iter().map(|(sample, _)| sample));
            let records = broken
                .iter()
                .filter_map(|(sample, why)| excluded(sample, *why))
                .collect();
            self.exclude(scenario, records).await?;
        }
    }

    /// The oldest instruction nobody has followed yet.
    async fn next_instruction(&self, scenario: &ScenarioName) -> Result<Option<Record>, LoopError> {
        let query = RecordQuery {
            scenario: Some(scenario.clone()),
            kind: Some(RequestType::Train),
            limit: 1,
            not_consumed_by: Some(CONSUMER.to_owned()),
            ..RecordQuery::default()
        };
        Ok(self
            .read(move |experience| experience.full_records(&query))
            .await?
            .pop())
    }

    /// The oldest proposal nobody has tried yet.
    async fn next_proposal(&self, scenario: &ScenarioName) -> Result<Option<String>, LoopError> {
        let name = scenario.clone();
        let next = self.read(move |experience| experience.proposal_next(&name)).await?;
        let Some(proposal) = next else { return Ok(None) };
        self.experience()
            .proposal_set(proposal.id.clone(), ProposalState::Claimed, None)
            .await?;
        Ok(Some(proposal.id))
    }

    async fn over_budget(&self, scenario: &ScenarioName) -> Result<Option<String>, LoopError> {
        if self.evolves() {
            let name = scenario.clone();
            let today = self.read(move |experience| experience.spent_today(&name)).await?;
            if let Err(reason) = super::evolve::day_budget(&self.inner.recipe.evolution, &today) {
                return Ok(Some(reason));
            }
        }
        let limits = &self.inner.recipe.budget;
        if *limits == crate::recipe::BudgetSpec::default() {
            return Ok(None);
        }
        let name = scenario.clone();
        let steps = self
            .read(move |experience| {
                experience.steps(
                    &name,
                    &StepQuery {
                        limit: Some(LOOK_BACK),
                        ..StepQuery::default()
                    },
                )
            })
            .await?;
        let spent: Vec<budget::Spent> = steps
            .iter()
            .map(|step| budget::Spent {
                at_us: step.at_us,
                tokens: step.metrics.get("tokens").and_then(Value::as_u64).unwrap_or(0),
                released: matches!(step.outcome.as_str(), "released" | "held"),
                training: step.operation == crate::domain::Operation::Training,
            })
            .collect();
        Ok(budget::exhausted(limits, &spent, now_us()))
    }

    /// What is served now, for measuring age.
    pub(super) async fn serving(&self, scenario: &ScenarioName) -> Result<Serving, LoopError> {
        let load = self.inner.live.load_of(scenario);
        let name = scenario.clone();
        let publisher = self.inner.publisher.clone();
        self.blocking(move || {
            let releases = match publisher
                .repository()
                .head(&name)
                .map_err(crate::scenario::PublishError::from)?
            {
                Some(head) => publisher
                    .repository()
                    .chain(&head, None, CHAIN)
                    .map_err(crate::scenario::PublishError::from)?
                    .into_iter()
                    .rev()
                    .map(|commit| commit.release_id)
                    .collect(),
                None => Vec::new(),
            };
            Ok(Serving { load, releases })
        })
        .await
    }

    /// Why a sealed batch may no longer train.
    pub(super) async fn stale(&self, job: &Job, manifest: &Manifest) -> Result<Option<&'static str>, LoopError> {
        if self.inner.recipe.processor.kind == ProcessorKind::Demonstration {
            return Ok(None);
        }
        let serving = self.serving(&job.scenario).await?;
        // The window it was sealed under counts, also when the recipe has changed since.
        let window = crate::recipe::BatchSpec {
            max_staleness: manifest.max_staleness,
            ..self.inner.recipe.batch.clone()
        };
        Ok(manifest
            .train
            .iter()
            .find_map(|sample| serving.admit(&sample.produced, &window).err())
            .map(crate::scenario::processor::StaleReason::as_str))
    }
}

/// A batch whose id says what it is for, with nothing in it.
fn empty_batch(id: String) -> Result<Sealed, LoopError> {
    Ok(Sealed {
        id: BatchId::new(id)?,
        train: Vec::new(),
        holdout: Vec::new(),
    })
}

fn instruction_batch(scenario: &ScenarioName, id: &RecordId) -> Result<BatchId, LoopError> {
    let text = format!("{scenario}:instruction:{id}");
    match BatchId::new(text.clone()) {
        Ok(id) => Ok(id),
        // Both names may be long; their digest is as good.
        Err(_) => {
            use sha2::Digest;
            let digest = hex::encode(sha2::Sha256::digest(text.as_bytes()));
            Ok(BatchId::new(format!("instruction:{digest}"))?)
        }
    }
}

pub(super) fn hit(name: &'static str) -> Result<(), LoopError> {
    failpoint::hit(name).map_err(|source| LoopError::Work {
        path: std::path::PathBuf::from(name),
        doing: "passing a fail point",
        source,
    })
}
