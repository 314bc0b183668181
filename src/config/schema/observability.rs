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
    /// Logs. Metrics are always at `/metrics`.
    pub Observability in "observability" {
        /// What is logged: a level (`error`, `warn`, `info`, `debug`, `trace`) or a filter such as `info,reef::serve=debug`.
        log: String = "info", env "REEF_LOG";
        /// The form of log lines.
        log_format: LogFormat = "text";
    }
}
