//! How a recipe is refused.

use std::path::PathBuf;

/// A recipe that cannot be used. Nothing was started.
#[derive(Debug, thiserror::Error)]
pub enum RecipeError {
    /// No built-in recipe has this name and no file is there.
    #[error(
        "there is no recipe \"{reference}\"; built-in recipes are {known}, or name a directory that holds recipe.toml"
    )]
    Unknown {
        /// As written.
        reference: String,
        /// The built-in ones.
        known: String,
    },
    /// A recipe file cannot be read.
    #[error("recipe file {} cannot be read", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A recipe file is not TOML, or a key of it is unknown or has the wrong type.
    #[error("recipe {origin}: {fault}")]
    Syntax {
        /// Which recipe.
        origin: String,
        /// What the parser says, with line or key.
        fault: String,
    },
    /// A value breaks a rule.
    #[error("recipe {origin}: {key} {rule}")]
    Value {
        /// Which recipe.
        origin: String,
        /// The key, dotted.
        key: String,
        /// The rule.
        rule: String,
    },
    /// A setting given beside the recipe is not one of its settings.
    #[error("recipe {recipe} has no setting \"{key}\"; its settings are {known}")]
    Setting {
        /// The recipe.
        recipe: String,
        /// As written.
        key: String,
        /// What could have been written.
        known: String,
    },
}
