//! What a service is told at start.

use std::sync::Arc;
use std::time::Duration;

use super::harness::HarnessOptions;
use crate::domain::TrainingMode;
use crate::engine::RequestOutline;

/// Settings of the service. Everything has a default but the tokens, of which there are none.
#[derive(Clone)]
pub struct ServeOptions {
    /// Address to listen on.
    pub host: String,
    /// Port to listen on; 0 lets the system choose.
    pub port: u16,
    /// Accepted bearer tokens. None means that anyone may call.
    pub tokens: Vec<String>,
    /// Listen beyond this machine without any token.
    pub allow_open: bool,
    /// Exact origins of browser pages that may call.
    pub console_origins: Vec<String>,
    /// Whether a request with a new scenario name creates the scenario.
    pub implicit_scenarios: bool,
    /// The training mode of new scenarios.
    pub training_mode: TrainingMode,
    /// Largest request body.
    pub max_body_bytes: usize,
    /// Largest response that is recorded whole.
    pub max_recorded_bytes: usize,
    /// What happens to an answer that cannot be recorded.
    pub on_store_failure: OnStoreFailure,
    /// Whether requests for the rest of the provider's API are passed on.
    pub provider_api: bool,
    /// Where the receipt of a chat's event stream stands unless a request says otherwise.
    pub stream_receipt: StreamReceipt,
    /// Silence after which a comment is sent into an open event stream; `None` for never.
    pub keep_alive: Option<Duration>,
    /// How long open requests may go on once the service is asked to stop.
    pub drain: Duration,
    /// Longest pause while a request is being received, and longest idle time of a client connection.
    pub client_timeout: Duration,
    /// Requests to the engine at one time; more are refused.
    pub max_in_flight: usize,
    /// Where leases of scenarios lie, for status.
    pub run_dir: Option<std::path::PathBuf>,
    /// The recipe that learns here; none where the service only records.
    pub recipe: Option<String>,
    /// What it says about harness trees; none where it serves none.
    pub harness: Option<Arc<HarnessOptions>>,
}

/// What happens to an answer that cannot be recorded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OnStoreFailure {
    /// It reaches the client, without a receipt and marked as unrecorded.
    #[default]
    Serve,
    /// The client gets 503 in its place.
    Refuse,
}

/// Where the receipt of a chat's event stream stands.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum StreamReceipt {
    /// In a chunk of its own for a client that asked for its usage, which comes in one like it; else in the finish chunk.
    #[default]
    Auto,
    /// In the chunk that says why the model stopped, so that a loop meets no chunk without choices.
    Finish,
    /// In a chunk of its own, without choices, before `[DONE]`.
    Chunk,
}

impl StreamReceipt {
    /// Whether the receipt of the answer to this request goes into its finish chunk.
    pub(super) fn in_finish(self, request: &RequestOutline) -> bool {
        match self {
            Self::Auto => !request.include_usage,
            Self::Finish => true,
            Self::Chunk => false,
        }
    }
}

impl Default for ServeOptions {
    fn default() -> Self {
        Self {
            host: "127.0.0.1".to_owned(),
            port: 8900,
            tokens: Vec::new(),
            allow_open: false,
            console_origins: Vec::new(),
            implicit_scenarios: true,
            training_mode: TrainingMode::Auto,
            max_body_bytes: 64 * 1024 * 1024,
            max_recorded_bytes: 64 * 1024 * 1024,
            on_store_failure: OnStoreFailure::Serve,
            provider_api: true,
            stream_receipt: StreamReceipt::Auto,
            keep_alive: Some(Duration::from_secs(15)),
            drain: Duration::from_secs(10),
            client_timeout: Duration::from_secs(75),
            max_in_flight: 10_000,
            run_dir: None,
            recipe: None,
            harness: None,
        }
    }
}

// By hand, so that no log ever shows a token.
impl std::fmt::Debug for ServeOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServeOptions")
            .field("host", &self.host)
            .field("port", &self.port)
            .field("tokens", &self.tokens.len())
            .finish_non_exhaustive()
    }
}
