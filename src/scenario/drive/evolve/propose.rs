//! From what a step was sealed on to a candidate tree on disk.

use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use super::attempt::{Journal, spend_figures};
use super::isolation::brings_code;
use super::{failed, meter, traces, tree_in};
use crate::experience::{AttemptChange, AttemptState, Job};
use crate::harness::evolve::{
    Context, Past, Proposal, Proposed, ProposerError, ProposerModel, Trace, mutations_digest, propose_by_program,
    propose_by_reflection,
};
use crate::harness::tree::{Mutation, Origin, admit, screen_text, write_release};
use crate::recipe::ProposerKind;
use crate::scenario::PublishError;
use crate::scenario::drive::seal::{Manifest, hit};
use crate::scenario::drive::trainer::{StepMade, StepOrder, Watch};
use crate::scenario::drive::{Driver, LoopError, now_us};
use crate::sys::clock;

impl Driver {
    /// Makes the candidate tree of a step, or says why there is none.
    pub(in crate::scenario::drive) async fn evolve(
        &self,
        job: &Job,
        manifest: &Manifest,
        order: &StepOrder,
        cancel: &CancellationToken,
        watch: Watch<'_>,
    ) -> Result<StepMade, LoopError> {
        self.attempt_begin(job, manifest).await?;
        self.attempt_is(job, AttemptState::Proposing).await?;
        watch(0.1, "proposing");
        hit("evolve::before_proposal")?;
        let journal = Journal::open(self.experience().clone(), &job.batch);
        let made = self.attempt(job, manifest, order, cancel, &journal).await;
        if let Err(error) = &made {
            journal.note("proposer", error.to_string(), true);
        }
        journal.close().await;
        hit("evolve::after_proposal")?;
        made
    }

    async fn attempt(
        &self,
        job: &Job,
        manifest: &Manifest,
        order: &StepOrder,
        cancel: &CancellationToken,
        journal: &Journal,
    ) -> Result<StepMade, LoopError> {
        let workshop = self.inner.hands.workshop()?;
        let base = self.files_of(&job.base).await?;
        let tree = self.blocking(move || tree_in(base.as_deref())).await?;
        let adapter = workshop.adapter(&tree)?;
        if let Some(target) = &manifest.recheck {
            return self.earlier(target, &adapter, order, journal).await;
        }
        let begun = Instant::now();
        let mut metrics = Map::new();
        let proposed = match &manifest.proposal {
            Some(id) => self.inbox(id.clone()).await?,
            None => {
                let (traces, past) = self.lessons(job, manifest).await?;
                let instruction = manifest
                    .instruction
                    .as_ref()
                    .and_then(|value| value["text"].as_str())
                    .map(str::to_owned);
                let spec = &self.inner.recipe.evolution;
                let context = Context {
                    scenario: job.scenario.as_str(),
                    tree: &tree,
                    adapter: &adapter,
                    kinds: &spec.kinds,
                    traces: &traces,
                    instruction: instruction.as_deref(),
                    past: &past,
                    policy: &workshop.policy,
                    at_us: now_us(),
                };
                metrics.insert("traces".into(), json!(traces.len()));
                self.ask(job, &context, cancel, journal, &mut metrics).await?
            }
        };
        metrics.insert("proposer_seconds".into(), json!(begun.elapsed().as_secs_f64()));
        let skipped = |reason: String, metrics: Map<String, Value>| Ok(StepMade::Skipped { reason, metrics });
        let proposal = match proposed {
            Ok(Proposed::Change(proposal)) => proposal,
            Ok(Proposed::Nothing(why)) => return skipped(format!("no proposal: {why}"), metrics),
            Err(why) => {
                metrics.insert("error".into(), json!(why));
                return skipped(why, metrics);
            }
        };
        let digest = mutations_digest(&proposal.mutations);
        let (name, wanted) = (job.scenario.clone(), digest.clone());
        let alike = self
            .read(move |experience| experience.attempts_alike(&name, &wanted))
            .await?;
        self.attempt_note(
            job,
            AttemptChange {
                digest: Some(digest),
                mutations: Some(json!(proposal.mutations)),
                reason: Some(proposal.reason.clone()),
                notes: proposal.notes.clone(),
                ..AttemptChange::default()
            },
        )
        .await?;
        metrics.insert("mutations".into(), json!(proposal.mutations));
        metrics.insert("proposal".into(), described(manifest, &proposal));
        if !proposal.notes.is_empty() {
            metrics.insert("proposal_notes".into(), Value::Object(proposal.notes.clone()));
        }
        // On the same tree the same change comes out the same; on another one it may be worth another try.
        if let Some(before) = alike.iter().find(|attempt| attempt.base == job.base) {
            let outcome = before.outcome.as_deref().unwrap_or("without a word");
            return skipped(
                format!("this change was tried before and {}: {outcome}", before.state.as_str()),
                metrics,
            );
        }
        let origin = Origin {
            by: manifest
                .proposal
                .clone()
                .or_else(|| job.instruction.as_ref().map(ToString::to_string))
                .unwrap_or_else(|| format!("step-{}", job.step)),
            at: clock::rfc3339(now_us()),
            evidence: manifest
                .train
                .iter()
                .flat_map(|s| &s.sources)
                .map(ToString::to_string)
                .collect(),
        };
        let admitted = match admit(
            &tree,
            &proposal.mutations,
            &adapter,
            &workshop.policy,
            &origin,
            now_us(),
        ) {
            Ok(admitted) => admitted,
            Err(refusal) => {
                journal.note("check", refusal.to_string(), true);
                return skipped(format!("not admitted: {refusal}"), metrics);
            }
        };
        if admitted.tree.digest() == tree.digest() {
            return skipped("the change leaves the tree as it is".to_owned(), metrics);
        }
        journal.note(
            "check",
            format!("admitted: {} entries change", admitted.changed.len()),
            false,
        );
        let kinds: Vec<&str> = admitted.kinds.iter().map(|kind| kind.as_str()).collect();
        metrics.insert("kinds".into(), json!(kinds));
        metrics.insert("brings_code".into(), json!(brings_code(&admitted.tree)));
        let mut next = admitted.tree;
        next.adapter = Some(adapter.name.clone());
        let (output, rendered) = (order.output.clone(), admitted.rendered);
        self.blocking(move || {
            write_release(&output, &next, &rendered).map_err(|source| LoopError::Work {
                path: output.clone(),
                doing: "writing the candidate tree",
                source,
            })
        })
        .await?;
        Ok(StepMade::Trained { metrics })
    }

    /// A proposal that an agent or a person sent.
    async fn inbox(&self, id: String) -> Result<Result<Proposed, String>, LoopError> {
        let wanted = id.clone();
        let Some(proposal) = self.read(move |experience| experience.proposal(&wanted)).await? else {
            return Ok(Err(format!("proposal {id} is gone")));
        };
        Ok(Mutation::list(&proposal.mutations)
            .map(|mutations| {
                Proposed::Change(Proposal {
                    mutations,
                    reason: proposal.reason,
                    notes: Map::new(),
                })
            })
            .map_err(|refusal| refusal.to_string()))
    }

    /// What a proposer learns from.
    async fn lessons(&self, job: &Job, manifest: &Manifest) -> Result<(Vec<Trace>, Vec<Past>), LoopError> {
        let (experience, scenario) = (self.experience().clone(), job.scenario.clone());
        let (recipe, train) = (self.inner.recipe.clone(), manifest.train.clone());
        let (memory, batch) = (self.inner.recipe.evolution.memory, job.batch.to_string());
        self.blocking(move || {
            let mut traces = traces::traces(&experience, &scenario, &recipe, &train)?;
            for trace in &mut traces {
                // A credential that went over the wire must not come back in a tree.
                for text in [&mut trace.conversation, &mut trace.answer] {
                    if screen_text(text).is_some() {
                        *text = crate::harness::tree::redact(text).into_owned();
                    }
                }
            }
            let mut attempts = experience.attempts(&scenario, memory.saturating_add(1))?;
            attempts.retain(|attempt| attempt.id != batch);
            Ok((traces, traces::past(attempts)))
        })
        .await
    }

    /// Asks the proposer of the recipe. The inner error ends the attempt; the outer one is tried again.
    async fn ask(
        &self,
        job: &Job,
        context: &Context<'_>,
        cancel: &CancellationToken,
        journal: &Journal,
        metrics: &mut Map<String, Value>,
    ) -> Result<Result<Proposed, String>, LoopError> {
        let spec = &self.inner.recipe.evolution;
        let workshop = self.inner.hands.workshop()?;
        let release = self.frozen(job).await?;
        let meter = meter(spec);
        let limit = Duration::from_secs_f64(spec.timeout_s);
        let source = workshop.source(spec.model.as_ref(), &job.scenario, release);
        let model = ProposerModel::new(source, meter.clone(), spec.budget.proposer_calls, limit);
        let told = |kind: &str, text: String, failed: bool| {
            let kind = match kind {
                "model" => "model",
                "check" => "check",
                _ => "proposer",
            };
            journal.note(kind, text, failed);
        };
        let directory = self.inner.recipe.directory.as_deref();
        let result = match spec.proposer {
            ProposerKind::None => Ok(Proposed::Nothing("the recipe names no proposer".to_owned())),
            ProposerKind::Reflect => propose_by_reflection(context, &model, cancel, &told).await,
            ProposerKind::Program => {
                propose_by_program(context, &spec.command, directory, limit, &model, cancel, &told).await
            }
        };
        let spent = meter.spent();
        metrics.insert("proposer_calls".into(), json!(spent.calls));
        metrics.insert("proposer_tokens".into(), json!(spent.tokens));
        spend_figures(&spent, metrics);
        self.experience().spend(job.scenario.clone(), spent).await?;
        match result {
            Ok(proposed) => Ok(Ok(proposed)),
            Err(ProposerError::Stopped) => Err(LoopError::Stopped),
            // A model that is down will be up again; what it said does not get better by asking for ever.
            Err(error @ ProposerError::Model { .. }) => Err(failed(error.to_string())),
            Err(error) => Ok(Err(error.to_string())),
        }
    }

    /// What is served, as engines are told.
    pub(super) async fn frozen(&self, job: &Job) -> Result<crate::domain::FrozenRelease, LoopError> {
        let (publisher, scenario) = (self.inner.publisher.clone(), job.scenario.clone());
        self.blocking(move || {
            publisher
                .served(&scenario)
                .map_err(PublishError::into)
                .and_then(|served| served.ok_or(LoopError::UnknownScenario(scenario)))
        })
        .await
    }
}

fn described(manifest: &Manifest, proposal: &Proposal) -> Value {
    json!({"id": manifest.proposal, "reason": proposal.reason})
}
