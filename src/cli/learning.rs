//! What the commands about learning share: the recipe in force, and errors of the loop.

use std::path::{Path, PathBuf};

use super::engines::{self, Built};
use super::harness::Trees;
use super::{CliError, Context, Exit, harness};
use crate::config::Settings;
use crate::harness::episode::Private;
use crate::recipe::{EvaluatorKind, Recipe, TrainerKind};
use crate::scenario::{Answering, BaseModel, Hands, LoopError, Workshop};
use crate::train::{TrainError, TrainSettings};

/// The recipe that the settings name, complete; `None` when they name none.
pub(crate) fn recipe(settings: &Settings) -> Result<Option<Recipe>, CliError> {
    let recipe = Recipe::configured(settings)?;
    Ok(recipe.map(|recipe| with_limits(recipe, settings)))
}

/// The recipe that a service learns by; `None` where it only records.
pub(crate) fn followed(settings: &Settings) -> Result<Option<Recipe>, CliError> {
    Ok(recipe(settings)?.filter(|recipe| settings.training.enabled && recipe.learns()))
}

/// Whether the recipe can be followed with what is configured; gives its name.
pub(crate) fn check(settings: &Settings) -> Result<Option<String>, CliError> {
    let Some(recipe) = followed(settings)? else {
        let named = recipe(settings)?;
        return Ok(named.map(|recipe| format!("{}, which does not learn here", recipe.name)));
    };
    hands(settings, &recipe, None)?;
    if recipe.trainer.backend == TrainerKind::Proposer {
        evolved(settings)?;
    }
    Ok(Some(recipe.name))
}

/// What the deployment says of the machine goes before what a recipe assumes of it.
fn with_limits(mut recipe: Recipe, settings: &Settings) -> Recipe {
    if let Some(threads) = settings.training.threads {
        let threads = toml::Value::Integer(i64::from(threads));
        recipe.trainer.settings.entry("threads").or_insert(threads);
    }
    if let Some(limit) = settings.training.timeout_s {
        recipe.trainer.timeout_s = limit.as_secs_f64();
    }
    recipe
}

/// What a driver works with. `built` is the engine of this process, if it has one.
pub(crate) fn hands(settings: &Settings, recipe: &Recipe, built: Option<&Built>) -> Result<Hands, CliError> {
    let base = match (recipe.trainer.backend, engines::embedded_model(settings)?) {
        (TrainerKind::Torch, Some((dir, name))) => Some(BaseModel {
            dir,
            name,
            program: std::env::current_exe()
                .map_err(|error| CliError::new(Exit::Unexpected, format!("cannot tell the own program: {error}")))?,
        }),
        _ => None,
    };
    let answering = built.map(|built| Answering {
        engine: built.engine.clone(),
        torch: built.torch.clone(),
    });
    if recipe.learns() && recipe.trainer.backend == TrainerKind::Torch {
        TrainSettings::from_recipe(recipe).map_err(|error| trainer_fault(settings, recipe, error))?;
        if base.is_none() {
            return Err(no_weights(settings, recipe));
        }
    }
    let hands = Hands::new(recipe, answering, base, engines::judge(settings)?)
        .map_err(|error| CliError::from_error(Exit::Usage, error).of_setting(settings, "recipe.implementation"))?;
    match built {
        Some(built) if recipe.trainer.backend == TrainerKind::Proposer => {
            Ok(hands.with_workshop(workshop(settings, built)?))
        }
        _ => Ok(hands),
    }
}

/// Settings that the embedded trainer cannot follow, at their place.
fn trainer_fault(settings: &Settings, recipe: &Recipe, error: TrainError) -> CliError {
    match error {
        TrainError::Settings { key, fault } => recipe.fault_at(settings, &key, &fault).into(),
        error => CliError::from_error(Exit::Usage, error),
    }
}

/// A recipe that trains weights, where the weights are somebody else's.
fn no_weights(settings: &Settings, recipe: &Recipe) -> CliError {
    let whose = match settings.inference.provider_url() {
        Some(_) => "the model of a provider cannot be trained here",
        None => "no model to train is configured",
    };
    CliError::new(
        Exit::Usage,
        format!("recipe {} trains the weights of a model in this process, and {whose}", recipe.name),
    )
    .of_setting(settings, "recipe.implementation")
    .hint("set inference.model-path to serve and train a model here")
    .hint(
        "behind a provider an agent's harness can learn (recipe evolve), or whatever a program of yours makes, such as a \
         routing policy (trainer.backend = program)",
    )
    .hint("or record only, without a recipe, and train elsewhere: reef records export writes what was recorded")
}

/// What the evolution of harness trees works with.
fn workshop(settings: &Settings, built: &Built) -> Result<Workshop, CliError> {
    let model = settings
        .inference
        .upstream_model
        .clone()
        .or_else(|| settings.inference.model_name.clone())
        .unwrap_or_else(|| "default".to_owned());
    let trees = evolved(settings)?;
    Ok(Workshop {
        engine: built.engine.clone(),
        model,
        program: std::env::current_exe()
            .map_err(|error| CliError::new(Exit::Unexpected, format!("cannot tell the own program: {error}")))?,
        search: settings.variable("PATH").unwrap_or_default().to_owned(),
        usual: trees.adapter.name,
        adapters: trees.adapters,
        binary: settings
            .harness
            .binary
            .as_ref()
            .map(|path| settings.directory.join(path)),
        private: private(settings),
        policy: trees.policy,
    })
}

/// What a deployment keeps to itself: the directory of its file, which may hold keys beside it, and its store.
fn private(settings: &Settings) -> Private {
    let at = |path: &Path| settings.directory.join(path);
    let file = settings.file.iter().flat_map(|file| {
        let file = at(file);
        [file.parent().map(Path::to_path_buf), Some(file)]
    });
    let kept = [&settings.harness.seed, &settings.harness.adapters]
        .into_iter()
        .flatten();
    let kept = kept
        .map(|path| at(path))
        .chain([at(&settings.storage.dir), at(&settings.run_dir())]);
    let home = settings.variable("HOME").map(Path::new);
    Private::new(home, file.flatten().chain(kept))
}

fn evolved(settings: &Settings) -> Result<Trees, CliError> {
    harness::trees(settings)?
        .ok_or_else(|| CliError::new(Exit::Usage, "the recipe evolves a harness tree and none is configured"))
}

/// Whether the gate of a recipe needs an engine that answers with the candidate.
pub(crate) fn gate_answers(recipe: &Recipe) -> bool {
    recipe.trainer.backend == TrainerKind::Proposer
        || matches!(recipe.gate.evaluator, EvaluatorKind::Suite | EvaluatorKind::Holdout)
}

/// The recipe, or an error that says how to name one.
pub(crate) fn recipe_needed(context: &Context) -> Result<Recipe, CliError> {
    recipe(context.settings()?)?.ok_or_else(|| {
        CliError::new(Exit::Usage, "no recipe is configured, so there is nothing to learn by")
            .hint("name one in the deployment file (reef: {recipe: sao}) or on the command line: --reef.recipe sao")
    })
}

/// Where steps keep their files.
pub(crate) fn work_dir(settings: &Settings) -> PathBuf {
    settings.storage.work_dir().join("training")
}

impl From<LoopError> for CliError {
    fn from(error: LoopError) -> Self {
        match error {
            LoopError::Store(error) => error.into(),
            LoopError::Publish(error) => error.into(),
            LoopError::LeaseHeld { .. } => Self::from_error(Exit::LeaseHeld, error)
                .hint("reef status shows who drives what; records and reports can be added meanwhile"),
            LoopError::UnknownScenario(_) => Self::from_error(Exit::Usage, error),
            LoopError::Stopped => Self::interrupted(),
            LoopError::Gate { .. } => Self::from_error(Exit::Invalid, error),
            LoopError::Trainer { .. }
            | LoopError::Recipe { .. }
            | LoopError::Load { .. }
            | LoopError::Work { .. }
            | LoopError::Name(_)
            | LoopError::Panicked(_) => Self::from_error(Exit::Unexpected, error),
        }
    }
}
