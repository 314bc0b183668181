//! How an adapter is refused.

use std::path::PathBuf;

/// An adapter that cannot be used. Nothing was written.
#[derive(Debug, thiserror::Error)]
pub enum AdapterError {
    /// Nobody knows this agent.
    #[error("there is no harness adapter \"{name}\"; known adapters are {known}")]
    Unknown {
        /// As written.
        name: String,
        /// The known ones.
        known: String,
    },
    /// A descriptor cannot be read.
    #[error("adapter descriptor {} cannot be read", path.display())]
    Read {
        /// The file or directory.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A descriptor is not TOML of the documented shape.
    #[error("adapter descriptor {origin}: {fault}")]
    Syntax {
        /// Which descriptor.
        origin: String,
        /// What is wrong, with line or key.
        fault: String,
    },
    /// The agent does not speak the API that is served.
    #[error("{adapter} does not speak the {api} API; it speaks {known}")]
    Api {
        /// The adapter.
        adapter: String,
        /// What was asked.
        api: &'static str,
        /// What it can do.
        known: String,
    },
    /// A rendered configuration file cannot be read back.
    #[error("{path} is not valid {format}: {fault}")]
    Document {
        /// The file.
        path: String,
        /// Its format.
        format: &'static str,
        /// What the parser says.
        fault: String,
    },
}
