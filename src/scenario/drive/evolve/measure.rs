//! The candidate tree before the gate: the agent does the suite's tasks on both trees.

use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::attempt::{Journal, spend_figures};
use super::isolation::{brings_code, decide};
use super::{limits, meter, tree_in};
use crate::domain::{Outcome, Verdict};
use crate::eval::{self, Arena, Baseline, Compared, Draw, EpisodeNote, Suite, Terms};
use crate::experience::{AttemptState, Job, Spend};
use crate::harness::episode::Stage;
use crate::harness::sandbox::{Held, Isolation, Sandbox, SandboxError};
use crate::harness::tree::check;
use crate::recipe::{EvolutionSpec, PublishMode};
use crate::scenario::drive::judge::refused;
use crate::scenario::drive::seal::hit;
use crate::scenario::drive::{Driver, LoopError, now_us};

impl Driver {
    /// The verdict on a candidate tree. `level` is the error probability it may use.
    pub(in crate::scenario::drive) async fn judge_tree(
        &self,
        job: &Job,
        compared: &Compared,
        level: f64,
        cancel: &CancellationToken,
        watch: &(dyn Fn(usize) + Send + Sync),
    ) -> Result<Verdict, LoopError> {
        self.attempt_is(job, AttemptState::Evaluating).await?;
        hit("evolve::before_episodes")?;
        let journal = Journal::open(self.experience().clone(), &job.batch);
        let verdict = self.episodes(job, compared, level, cancel, watch, &journal).await;
        if let Err(error) = &verdict {
            journal.note("trial", error.to_string(), true);
        }
        journal.close().await;
        let mut verdict = verdict?;
        self.review(job, &mut verdict);
        if matches!(verdict.outcome, Outcome::Selected) {
            self.attempt_is(job, AttemptState::Won).await?;
        }
        Ok(verdict)
    }

    async fn episodes(
        &self,
        job: &Job,
        compared: &Compared,
        level: f64,
        cancel: &CancellationToken,
        watch: &(dyn Fn(usize) + Send + Sync),
        journal: &Journal,
    ) -> Result<Verdict, LoopError> {
        let spec = &self.inner.recipe.gate;
        let evolution = &self.inner.recipe.evolution;
        let workshop = self.inner.hands.workshop()?;
        let gate = |reason: String| LoopError::Gate { reason };
        let path = eval::directory_or_here(self.inner.recipe.directory.as_deref())
            .join(spec.suite.as_deref().unwrap_or_default());
        let kept: Vec<_> = std::iter::once(path.clone())
            .chain(self.inner.recipe.directory.clone())
            .collect();
        let suite = self
            .blocking(move || Suite::load(&path).map_err(|error| gate(error.to_string())))
            .await?;
        let (candidate, current) = (compared.candidate.clone(), compared.current.clone());
        let (candidate, current) = self
            .blocking(move || Ok((tree_in(Some(&candidate))?, tree_in(current.as_deref())?)))
            .await?;
        let adapter = workshop.adapter(&candidate)?;
        let render =
            |tree| check(tree, &adapter, &workshop.policy, now_us()).map_err(|refusal| gate(refusal.to_string()));
        let (candidate_files, current_files) = (render(&candidate)?, render(&current)?);
        let work = self.inner.work.join("episodes");
        let sandbox = workshop.sandbox();
        let asked = self.probed(&sandbox, &work, Isolation::Namespaces).await?;
        let code = brings_code(&candidate) || brings_code(&current);
        let unavailable = asked.as_ref().err().map(String::as_str);
        let isolation = decide(evolution.episode.isolation, code, unavailable).map_err(gate)?;
        let held = match (isolation, asked) {
            (Isolation::Namespaces, Ok(held)) => held,
            _ => self.probed(&sandbox, &work, isolation).await?.map_err(gate)?,
        };
        let release = self.frozen(job).await?;
        let source = workshop.source(evolution.episode_model.as_ref(), &job.scenario, release.clone());
        let meter = meter(evolution);
        let mut stage = Stage {
            agent: workshop.agent(evolution, adapter.clone(), kept)?,
            source,
            limits: limits(evolution),
            isolation,
            sandbox,
            work,
            meter: meter.clone(),
        };
        stage.limits.timeout_s = stage.limits.timeout_s.min(spec.timeout_s.max(1.0));
        let conditions = eval::conditions(&suite, &stage, &current.digest());
        let baseline = self.baseline(job, evolution, &conditions).await?;
        let name = job.scenario.clone();
        let today = self.read(move |experience| experience.spent_today(&name)).await?;
        let within = || within_budget(evolution, &today, &meter.spent());
        let told = |note: EpisodeNote| {
            let mut text = match &note.score {
                Ok(score) => format!("{} on {}: score {score}", note.side, note.task),
                Err(why) => format!("{} on {}: not measured: {why}", note.side, note.task),
            };
            for extra in &note.notes {
                text.push_str(&format!("; {extra}"));
            }
            journal.note("trial", text, note.score.is_err());
        };
        let arena = Arena {
            stage: &stage,
            candidate: &candidate_files,
            current: Some(&current_files),
            judge: self.inner.hands.judge_as(&job.scenario, &release),
            baseline: baseline.as_ref(),
            within_budget: &within,
            told: &told,
        };
        let terms = Terms {
            spec,
            level,
            seed: job.batch.as_str(),
            draw: Draw::Repeated,
            evaluator: "episodes",
            answers: None,
            reference: None,
        };
        let judged = eval::judge_by_episodes(&terms, &suite, &arena, cancel, watch).await;
        let sealed = match &judged {
            Ok(verdict) if verdict.outcome == Outcome::Selected => {
                eval::sealed_scores(&suite, &arena, spec.timeout_s, cancel).await.ok()
            }
            _ => None,
        };
        let spent = meter.spent();
        self.experience().spend(job.scenario.clone(), spent).await?;
        let mut verdict = judged.map_err(|error| refused(&error, cancel))?;
        spend_figures(&spent, &mut verdict.figures);
        verdict.figures.insert("episodes".into(), json!(spent.episodes));
        verdict.figures.insert("suite".into(), json!(suite.name));
        verdict.figures.insert("suite_digest".into(), json!(suite.digest));
        verdict.figures.insert("isolation".into(), json!(stage.isolation));
        verdict.figures.insert("limits".into(), json!(held));
        if let Some(sealed) = sealed.filter(|sealed| !sealed.is_empty()) {
            let scores: Vec<f64> = sealed.iter().filter_map(|(_, score)| *score).collect();
            let mean = (!scores.is_empty()).then(|| scores.iter().sum::<f64>() / scores.len() as f64);
            verdict.figures.insert(
                "sealed".into(),
                json!({"tasks": sealed.len(), "measured": scores.len(), "mean": mean}),
            );
        }
        if let Some(baseline) = &baseline {
            let (used, checked) = baseline.counts();
            verdict
                .figures
                .insert("baseline".into(), json!({"used": used, "checked": checked}));
            if baseline.drifted() {
                self.experience().forget_baseline(job.scenario.clone()).await?;
                return Err(gate(
                    "the served tree no longer scores as it did: what was known of it is void and is measured again"
                        .into(),
                ));
            }
            self.experience()
                .keep_baseline(job.scenario.clone(), conditions, baseline.fresh())
                .await?;
        }
        Ok(verdict)
    }

    /// What holds programs to their limits that are isolated like this, or why they cannot be isolated.
    async fn probed(
        &self,
        sandbox: &Sandbox,
        work: &std::path::Path,
        isolation: Isolation,
    ) -> Result<Result<Held, String>, LoopError> {
        let scratch = work.join(format!("probe-{}", crate::sys::random::hex_token()));
        std::fs::create_dir_all(&scratch).map_err(|source| LoopError::Work {
            path: scratch.clone(),
            doing: "preparing an episode",
            source,
        })?;
        let asked = sandbox.probe(&scratch, isolation).await;
        // What stays of it is an empty directory.
        let _left = std::fs::remove_dir_all(&scratch);
        match asked {
            Ok(held) => Ok(Ok(held)),
            Err(error @ SandboxError::Unavailable { .. }) => Ok(Err(error.to_string())),
            Err(error) => Err(LoopError::Gate {
                reason: error.to_string(),
            }),
        }
    }

    async fn baseline(
        &self,
        job: &Job,
        evolution: &EvolutionSpec,
        conditions: &str,
    ) -> Result<Option<Baseline>, LoopError> {
        if evolution.baseline_hours <= 0.0 {
            return Ok(None);
        }
        let since = now_us() - (evolution.baseline_hours * 3.6e9) as i64;
        let (name, wanted) = (job.scenario.clone(), conditions.to_owned());
        let known = self
            .read(move |experience| experience.baseline(&name, &wanted, since))
            .await?;
        Ok(Some(Baseline::new(
            known,
            evolution.sentinels,
            self.inner.recipe.gate.score_range,
            job.batch.as_str(),
        )))
    }

    /// What a person must see before it is served is held, however good it is.
    fn review(&self, job: &Job, verdict: &mut Verdict) {
        if verdict.outcome != Outcome::Selected {
            return;
        }
        let evolution = &self.inner.recipe.evolution;
        let kinds = job
            .candidate
            .as_ref()
            .and_then(|candidate| candidate["metrics"]["kinds"].as_array().cloned())
            .unwrap_or_default();
        let watched = kinds
            .iter()
            .filter_map(Value::as_str)
            .find(|kind| evolution.review_kinds.iter().any(|word| word == kind));
        let why = match (evolution.publish, watched) {
            (PublishMode::Review, _) => "the recipe publishes nothing without a person (evolution.publish)".to_owned(),
            (PublishMode::Auto, Some(kind)) => {
                format!("a change of kind {kind} is for a person to approve (evolution.review-kinds)")
            }
            (PublishMode::Auto, None) => return,
        };
        verdict.outcome = Outcome::Held;
        verdict.reason = format!("{}; {why}", verdict.reason);
    }
}

/// Why no more may be spent, if so.
pub(super) fn within_budget(spec: &EvolutionSpec, today: &Spend, now: &Spend) -> Result<(), String> {
    let budget = &spec.budget;
    if now.episodes >= budget.episodes {
        return Err(format!("evolution.budget.episodes of {} is spent", budget.episodes));
    }
    if let Some(limit) = budget.tokens.filter(|limit| now.tokens >= *limit) {
        return Err(format!("evolution.budget.tokens of {limit} is spent"));
    }
    if let Some(limit) = budget.cost.filter(|limit| now.cost >= *limit) {
        return Err(format!("evolution.budget.cost of {limit} is spent"));
    }
    day_budget(
        spec,
        &Spend {
            calls: today.calls + now.calls,
            tokens: today.tokens + now.tokens,
            episodes: today.episodes + now.episodes,
            cost: today.cost + now.cost,
        },
    )
}

/// Why nothing more may be spent today, if so.
pub(in crate::scenario::drive) fn day_budget(spec: &EvolutionSpec, today: &Spend) -> Result<(), String> {
    let budget = &spec.budget;
    if let Some(limit) = budget.episodes_per_day.filter(|limit| today.episodes >= *limit) {
        return Err(format!("evolution.budget.episodes-per-day of {limit} is spent"));
    }
    if let Some(limit) = budget.tokens_per_day.filter(|limit| today.tokens >= *limit) {
        return Err(format!("evolution.budget.tokens-per-day of {limit} is spent"));
    }
    if let Some(limit) = budget.cost_per_day.filter(|limit| today.cost >= *limit) {
        return Err(format!("evolution.budget.cost-per-day of {limit} is spent"));
    }
    Ok(())
}
