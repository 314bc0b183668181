//! `observability`

use std::path::PathBuf;

use crate::config::{Secret, SecretTable, choice, section};

choice! {
    /// The form of log lines.
    pub LogFormat {
        /// For people.
        Text = "text",
        /// One JSON object a line.
        Json = "json",
    }
}

choice! {
    /// Whether an experiment tracker is reached.
    pub WandbMode {
        /// Sent as they come.
        Online = "online",
        /// Kept in files.
        Offline = "offline",
        /// Not at all.
        Disabled = "disabled",
    }
}

section! {
    /// Logs and metrics.
    pub Observability in "observability" {
        /// What is logged: a level (`error`, `warn`, `info`, `debug`, `trace`) or a filter such as `info,reef::serve=debug`.
        log: String = "info", env "REEF_LOG";
        /// The form of log lines.
        log_format: LogFormat = "text";
        /// Serve Prometheus metrics at `/metrics`.
        metrics: bool = true;
        /// Ask for a token at `/metrics` too.
        metrics_need_token: bool = false;
    }
}

section! {
    /// Traces by OTLP over HTTP.
    pub Tracing in "observability.tracing" {
        /// Export traces.
        enabled: bool = false;
        /// The full URL that takes traces.
        endpoint: Option<String>, env "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";
        /// Value of the `Authorization` header.
        authorization: Option<Secret>, env "REEF_TRACING_AUTHORIZATION";
        /// Further headers.
        headers: SecretTable = {};
        /// The service's name in traces.
        service_name: String = "reef", env "OTEL_SERVICE_NAME";
    }
}

section! {
    /// Experiment tracking.
    pub Wandb in "observability.wandb" {
        /// Track steps.
        enabled: bool = false;
        /// The project.
        project: Option<String>;
        /// The team or user.
        entity: Option<String>;
        /// Whether steps are sent.
        mode: WandbMode = "offline";
        /// Where runs are kept.
        directory: Option<PathBuf>;
    }
}
