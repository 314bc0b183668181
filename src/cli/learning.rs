//! What the commands about learning share: the recipe in force, and errors of the loop.

use std::path::PathBuf;

use serde_json::{Map, Value};

use super::{CliError, Context, Exit};
use crate::config::Settings;
use crate::recipe::{Recipe, RecipeError};
use crate::scenario::LoopError;

/// The recipe that the settings name, complete; `None` when they name none.
pub(crate) fn recipe(settings: &Settings) -> Result<Option<Recipe>, CliError> {
    let Some(reference) = &settings.recipe.implementation else {
        return Ok(None);
    };
    let config = match settings.recipe.config.to_json() {
        Value::Object(config) => config,
        _ => Map::new(),
    };
    let directory = settings
        .file
        .as_ref()
        .and_then(|file| file.parent())
        .map_or_else(|| settings.directory.clone(), |parent| settings.directory.join(parent));
    match Recipe::resolve(reference, &config, &directory) {
        Ok(recipe) => Ok(Some(recipe)),
        Err(error) => {
            let place = match &error {
                RecipeError::Setting { key, .. } | RecipeError::Value { key, .. } => {
                    settings.recipe.config.source_of(key)
                }
                RecipeError::Unknown { .. } => Some(&settings.source("recipe.implementation")),
                RecipeError::Read { .. } | RecipeError::Syntax { .. } => None,
            };
            let place = place.map(|source| format!("{source}: ")).unwrap_or_default();
            Err(CliError::from(error).at(&place))
        }
    }
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

impl From<RecipeError> for CliError {
    fn from(error: RecipeError) -> Self {
        Self::from_error(Exit::Usage, error)
    }
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
            LoopError::Trainer { .. }
            | LoopError::Gate { .. }
            | LoopError::Load { .. }
            | LoopError::Work { .. }
            | LoopError::Name(_) => Self::from_error(Exit::Unexpected, error),
        }
    }
}
