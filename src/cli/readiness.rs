//! What `reef serve` decides by its settings before it opens or starts anything. `reef doctor` asks the same questions,
//! so that it passes nothing that the service refuses.

use crate::config::Settings;

use super::{CliError, engines, harness, learning, publishing};

/// A question, and what answers it.
pub(crate) struct Question {
    /// One word for the table of the doctor.
    pub(crate) check: &'static str,
    /// What was found, or why the service would refuse to start.
    pub(crate) ask: fn(&Settings) -> Result<Option<String>, CliError>,
}

/// What answers requests comes first: without it nothing else matters.
pub(crate) const QUESTIONS: [Question; 4] = [
    Question {
        check: "engine",
        ask: |settings| engines::check(settings).map(Some),
    },
    Question {
        check: "recipe",
        ask: learning::check,
    },
    Question {
        check: "harness",
        ask: harness::check_settings,
    },
    Question {
        check: "releases",
        ask: publishing::check,
    },
];

/// Refuses settings with which the service cannot start.
pub(crate) fn check(settings: &Settings) -> Result<(), CliError> {
    for question in &QUESTIONS {
        (question.ask)(settings)?;
    }
    Ok(())
}
