//! Pages for a browser: one step of a scenario, one instruction on its way. Self-contained and without scripts, so that
//! nothing others wrote can act in them.

mod progress;
mod request;
mod step;

use minijinja::Environment;
use serde_json::Value;

use crate::sys::{format, terminal};

pub use progress::{Progress, State};
pub use request::request_page;
pub use step::{StepPage, step_page};

/// What a page may load: its own style and nothing else.
pub const CONTENT_SECURITY_POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const TEMPLATES: [(&str, &str); 3] = [
    ("base.html", include_str!("../../../templates/pages/base.html")),
    ("step.html", include_str!("../../../templates/pages/step.html")),
    ("request.html", include_str!("../../../templates/pages/request.html")),
];

/// A page that cannot be made.
#[derive(Debug, thiserror::Error)]
#[error("the page cannot be made: {0}")]
pub struct PageError(#[from] minijinja::Error);

/// Templates end in `.html`, so everything is escaped unless a template says otherwise.
fn render(template: &str, context: &Value) -> Result<String, PageError> {
    let mut environment = Environment::new();
    for (name, text) in TEMPLATES {
        environment.add_template(name, text)?;
    }
    let page = environment
        .get_template(template)?
        .render(minijinja::value::Serde(context))?;
    // Escaped as HTML, words from outside can still turn the direction of writing, or act where a terminal shows the page.
    Ok(terminal::lines(&page).into_owned())
}

/// An instant for people, in UTC.
fn moment(us: i64) -> String {
    format!("{} UTC", format::moment(us))
}

/// A number for people: whole ones without a fraction, others with a few digits.
fn number(value: f64) -> String {
    if value.fract() == 0.0 && value.abs() < 1e15 {
        return format!("{value:.0}");
    }
    if value.abs() >= 1e15 {
        return format!("{value:.3e}");
    }
    let text = format!("{value:.4}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}
