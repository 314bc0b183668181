//! What can be wrong with a model's files or with a call to the model.

use std::io;
use std::path::{Path, PathBuf};

/// Why a model cannot be imported, loaded or run. Each names what was wrong and, where there is one, the next step.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// A file cannot be read or written.
    #[error("cannot use {}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// A file is damaged or contradicts itself.
    #[error("{} is not usable: {reason}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong in it.
        reason: String,
    },
    /// The model asks for something this engine does not do.
    #[error("{what} is not supported; {hint}")]
    Unsupported {
        /// What was asked for.
        what: String,
        /// What to do instead.
        hint: String,
    },
    /// A tensor that the architecture needs is absent.
    #[error("tensor {name} is missing from {}", path.display())]
    MissingTensor {
        /// The tensor.
        name: String,
        /// Where it was looked for.
        path: PathBuf,
    },
    /// A tensor has the wrong shape.
    #[error("tensor {name} has shape {found:?} where {expected:?} is needed")]
    Shape {
        /// The tensor.
        name: String,
        /// Its shape by the configuration.
        expected: Vec<usize>,
        /// Its shape in the file.
        found: Vec<usize>,
    },
    /// The model does not fit the memory budget.
    #[error(
        "{what} needs {needed} MiB and the budget is {budget} MiB; raise the budget, lower max-batch or max-context, or use bf16"
    )]
    Budget {
        /// What was to be loaded.
        what: String,
        /// Mebibytes needed.
        needed: u64,
        /// Mebibytes allowed.
        budget: u64,
    },
    /// No model of this name is there.
    #[error("no model named {name} in {}; `reef model list` shows what is there", dir.display())]
    NotFound {
        /// The name.
        name: String,
        /// The directory of models.
        dir: PathBuf,
    },
    /// The call asks for something impossible: a full cache, a slot or adapter that does not exist.
    #[error("{reason}")]
    Request {
        /// What was asked, and the limit.
        reason: String,
    },
    /// A download did not work.
    #[error("cannot download {url}: {reason}")]
    Download {
        /// What was fetched, without its query.
        url: String,
        /// What happened.
        reason: String,
    },
    /// A chat template that does not make a prompt of the simplest message.
    #[error("the chat template of the model in {} cannot be used: {reason}", dir.display())]
    Template {
        /// The model's folder.
        dir: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The numerical library refused an operation.
    #[error("the tensor library failed while {doing}")]
    Tensor {
        /// What the engine was doing.
        doing: &'static str,
        /// The cause.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The tokenizer cannot encode or decode.
    #[error("the tokenizer failed: {reason}")]
    Tokenizer {
        /// What happened.
        reason: String,
    },
    /// This build has no embedded engine.
    #[error("this build has no embedded engine; rebuild with `--features torch` after scripts/setup.sh")]
    NotCompiled,
}

impl ModelError {
    /// The same error of what was copied from `to`, or made of it, into the folder `from`.
    pub(super) fn moved(mut self, from: &Path, to: &Path) -> Self {
        if let Self::Io { path, .. }
        | Self::Malformed { path, .. }
        | Self::MissingTensor { path, .. }
        | Self::Template { dir: path, .. } = &mut self
            && let Ok(below) = path.strip_prefix(from)
        {
            // A file that a model was made of has nothing below it.
            *path = if to.is_dir() && below != Path::new("") {
                to.join(below)
            } else {
                to.to_owned()
            };
        }
        self
    }

    pub(crate) fn io(path: impl Into<PathBuf>, source: io::Error) -> Self {
        Self::Io {
            path: path.into(),
            source,
        }
    }

    pub(crate) fn malformed(path: impl Into<PathBuf>, reason: impl Into<String>) -> Self {
        Self::Malformed {
            path: path.into(),
            reason: reason.into(),
        }
    }

    pub(crate) fn unsupported(what: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Unsupported {
            what: what.into(),
            hint: hint.into(),
        }
    }

    pub(crate) fn request(reason: impl Into<String>) -> Self {
        Self::Request { reason: reason.into() }
    }
}
