//! `reef`

use std::path::PathBuf;
use std::time::Duration;

use crate::config::{Secret, Size, Url, choice, section};

choice! {
    /// Where the receipt of a chat's event stream stands.
    pub StreamReceipt {
        /// In a chunk of its own for a request that asks for its usage, else in the finish chunk.
        Auto = "auto",
        /// In the chunk that says why the model stopped.
        Finish = "finish",
        /// In a chunk of its own, without choices.
        Chunk = "chunk",
    }
}

section! {
    /// Where the service listens and who may call it.
    pub Reef in "reef" {
        /// Address to listen on. An address that is not loopback needs a token, unless `reef.allow-open` says otherwise.
        host: String = "127.0.0.1";
        /// Port to listen on; 0 takes a free one and says which.
        port: u16 = 8900;
        /// One accepted bearer token.
        token: Option<Secret>, env "REEF_TOKEN";
        /// Accepted bearer tokens, together with `reef.token`, so that tokens can be rotated.
        tokens: Vec<Secret> = [];
        /// Listen beyond loopback without any token.
        allow_open: bool = false;
        /// The URL at which others reach this service, where it differs from the address it listens on: what the service
        /// announces and `reef status` shows.
        served_url: Option<Url>;
        /// Web origins that may call the service from a browser.
        console_origins: Vec<String> = [];
        /// Create a scenario the first time a request names it; otherwise such a request gets 404.
        allow_implicit_scenario_creation: bool = true;
        /// Where the running service leaves its address and process id [default: `run` in `storage.dir`].
        run_dir: Option<PathBuf>;
        /// How long the service may take to start, the loading of a model included.
        ready_timeout: Duration = 600.0, min 0.1;
        /// Largest request body on the inference routes; a larger one gets 413.
        max_body: Size = "64MiB";
        /// Longest pause while a request is received, and longest idle time of a client's connection.
        client_timeout: Duration = 75.0, min 0.1;
        /// Requests to the engine at one time; a further one gets 503.
        max_in_flight: u32 = 10000, min 1.0;
        /// Pass requests for the rest of the provider's API below `/v1` (embeddings, files, batches, …) on to it, with its
        /// credential. They leave no record.
        provider_api: bool = true;
        /// Where the receipt of a chat's event stream stands: in the chunk that says why the model stopped (`finish`), or in a
        /// chunk of its own without choices (`chunk`). `auto` takes the second for a request that asks for its usage, which
        /// comes in such a chunk too. `x-reef-stream-receipt` says it for one request.
        stream_receipt: StreamReceipt = "auto";
        /// How long open requests may go on after a signal to stop.
        drain_timeout: Duration = 10.0, min 0.0;
    }
}
