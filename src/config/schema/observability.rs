//! `observability`

use crate::config::{choice, section};

choice! {
    /// The form of log lines.
    pub LogFormat {
        /// For people.
        Text = "text",
        /// One JSON object a line.
        Json = "json",
    }
}

section! {
    /// Logs and traces. Metrics are always at `/metrics`.
    pub Observability in "observability" {
        /// What is logged: a level (`error`, `warn`, `info`, `debug`, `trace`) or a filter such as `info,reef::serve=debug`.
        log: String = "info", env "REEF_LOG";
        /// The form of log lines.
        log_format: LogFormat = "text";
        /// Keep structured lines in the directory `logs` too, for `reef logs` and `reef dash`; at most 80 MiB.
        log_files: bool = true;
        /// Base URL of an OTLP/HTTP collector that traces are sent to, such as `http://127.0.0.1:4318`.
        otlp_endpoint: Option<String>, env "OTEL_EXPORTER_OTLP_ENDPOINT";
    }
}
