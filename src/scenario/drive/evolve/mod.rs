//! The step of a recipe that evolves a harness tree: a proposal instead of an optimizer step, episodes instead of
//! answers. Sealing, judging, publishing and everything about crashes are those of every other recipe.

mod attempt;
mod isolation;
mod measure;
mod propose;
mod recheck;
mod traces;

pub(super) use measure::day_budget;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::domain::{FrozenRelease, ScenarioName};
use crate::engine::Engine;
use crate::harness::adapter::{Adapter, Adapters};
use crate::harness::episode::{Agent, EpisodeLimits, Meter, ModelSource, Price, Private};
use crate::harness::sandbox::{Limits, Sandbox};
use crate::harness::tree::{Policy, Tree, read_release};
use crate::recipe::EvolutionSpec;
use crate::scenario::LoopError;

/// What evolution works with on this machine.
#[derive(Clone)]
pub struct Workshop {
    /// Answers proposers and agents.
    pub engine: Arc<dyn Engine>,
    /// The name of the served model.
    pub model: String,
    /// This program, for the helpers of the sandbox.
    pub program: PathBuf,
    /// Where agents' programs are looked for.
    pub search: String,
    /// Adapters.
    pub adapters: Adapters,
    /// The adapter of a tree that names none.
    pub usual: String,
    /// The agent's program, where the deployment names it.
    pub binary: Option<PathBuf>,
    /// What no agent is to see of this machine.
    pub private: Private,
    /// What a person allowed in trees.
    pub policy: Policy,
}

impl Workshop {
    /// The adapter of a tree.
    pub(super) fn adapter(&self, tree: &Tree) -> Result<Adapter, LoopError> {
        self.adapters
            .get(tree.adapter.as_deref().unwrap_or(&self.usual))
            .cloned()
            .map_err(|error| failed(error.to_string()))
    }

    /// The agent of an adapter, which does not see what is `kept` either.
    pub(super) fn agent(
        &self,
        spec: &EvolutionSpec,
        adapter: Adapter,
        kept: impl IntoIterator<Item = PathBuf>,
    ) -> Result<Agent, LoopError> {
        let private = self.private.clone().with(kept);
        let binary = spec.binary.as_ref().map(PathBuf::from).or_else(|| self.binary.clone());
        Agent::find(adapter, binary.as_deref(), None, &self.search, private).map_err(|error| LoopError::Gate {
            reason: error.to_string(),
        })
    }

    pub(super) fn sandbox(&self) -> Sandbox {
        Sandbox::new(self.program.clone())
    }

    pub(super) fn source(
        &self,
        model: Option<&String>,
        scenario: &ScenarioName,
        release: FrozenRelease,
    ) -> ModelSource {
        ModelSource {
            engine: Arc::clone(&self.engine),
            model: model.cloned().unwrap_or_else(|| self.model.clone()),
            context_window: None,
            scenario: scenario.clone(),
            release,
        }
    }
}

pub(super) fn meter(spec: &EvolutionSpec) -> Arc<Meter> {
    let prices = spec.prices.iter().map(|(model, price)| {
        let price = Price {
            input: price.input,
            output: price.output,
        };
        (model.clone(), price)
    });
    Arc::new(Meter::new(prices.collect()))
}

pub(super) fn limits(spec: &EvolutionSpec) -> EpisodeLimits {
    const MEGABYTE: u64 = 1024 * 1024;
    let episode = &spec.episode;
    EpisodeLimits {
        timeout_s: episode.timeout_s,
        calls: episode.calls,
        tokens: episode.tokens,
        sandbox: Limits {
            disk_bytes: episode.disk_mb * MEGABYTE,
            memory_bytes: episode.memory_mb * MEGABYTE,
            processes: episode.processes,
            cpus: episode.cpus,
            cpu_seconds: Duration::from_secs_f64(episode.timeout_s).as_secs().max(1),
            ..Limits::default()
        },
    }
}

/// The tree in a directory of files; an empty one where there is none. Blocking.
pub(super) fn tree_in(directory: Option<&Path>) -> Result<Tree, LoopError> {
    let read = directory.map(read_release).transpose();
    let tree = read.map_err(|error| failed(super::settle::chain_of(&error)))?;
    Ok(tree.flatten().unwrap_or_default())
}

pub(super) fn failed(reason: String) -> LoopError {
    LoopError::Trainer { reason }
}
