//! The only place that writes to standard output and standard error.
//!
//! With `--json`, data is one object (`{"version":1,"kind":…}`) or one object a line for events
//! (`{"version":1,"event":…}`); an error is one object on standard error, and so is each sign of progress.

use std::io::{self, IsTerminal, Write};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::args::{ColorChoice, OutputArgs};
use super::{CliError, Exit};
use crate::sys::terminal;

/// The version of every JSON shape the commands print; raised when one changes incompatibly.
const JSON_VERSION: u32 = 1;

/// How this run speaks.
#[derive(Debug, Clone)]
pub(crate) struct Output {
    args: OutputArgs,
    color_out: bool,
    color_err: bool,
    watched: bool,
}

impl Output {
    pub(crate) fn new(args: OutputArgs) -> Self {
        let plain = std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty())
            || std::env::var_os("TERM").is_some_and(|v| v == "dumb");
        let wants = |terminal: bool| match args.color {
            ColorChoice::Always => true,
            ColorChoice::Never => false,
            ColorChoice::Auto => terminal && !plain,
        };
        Self {
            args,
            color_out: wants(io::stdout().is_terminal()),
            color_err: wants(io::stderr().is_terminal()),
            watched: io::stdout().is_terminal(),
        }
    }

    /// Whether data is printed as JSON.
    pub(crate) fn json(&self) -> bool {
        self.args.json
    }

    pub(crate) fn quiet(&self) -> bool {
        self.args.quiet
    }

    pub(crate) fn verbosity(&self) -> u8 {
        self.args.verbose
    }

    pub(crate) fn colored(&self) -> bool {
        self.color_out
    }

    pub(crate) fn colored_talk(&self) -> bool {
        self.color_err
    }

    /// Whether a person is watching standard error and wants to see progress there.
    pub(crate) fn progress_visible(&self) -> bool {
        !self.args.json && !self.args.quiet && io::stderr().is_terminal()
    }

    /// Whether standard output is a pipe whose reader went away, which a write would find out: a command that only waits
    /// has nothing to write.
    pub(crate) fn reader_gone(&self) -> bool {
        let out = io::stdout();
        let mut asked = [PollFd::new(&out, PollFlags::empty())];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut asked, Some(&now)).is_ok_and(|found| found > 0)
            && asked[0].revents().intersects(PollFlags::ERR | PollFlags::NVAL)
    }

    /// Writes data to standard output as it is. A reader that went away ends the command quietly.
    pub(crate) fn text(&self, text: &str) -> Result<(), CliError> {
        self.bytes(text.as_bytes())
    }

    /// Writes bytes to standard output as they are.
    fn bytes(&self, bytes: &[u8]) -> Result<(), CliError> {
        let mut out = io::stdout().lock();
        out.write_all(bytes)
            .and_then(|()| out.flush())
            .map_err(|error| stdout_error(&error))
    }

    /// Writes text from outside: as it is to a file or a pipe, with nothing acting in it to a terminal.
    pub(crate) fn passage(&self, text: &str) -> Result<(), CliError> {
        if self.watched {
            self.text(&terminal::lines(text))
        } else {
            self.text(text)
        }
    }

    /// Writes bytes from outside in the same way.
    pub(crate) fn passage_of(&self, bytes: &[u8]) -> Result<(), CliError> {
        if self.watched {
            self.passage(&String::from_utf8_lossy(bytes))
        } else {
            self.bytes(bytes)
        }
    }

    /// Writes one line of data, in the same way.
    pub(crate) fn line(&self, line: &str) -> Result<(), CliError> {
        self.passage(&format!("{line}\n"))
    }

    /// Writes one JSON object: the version and kind, then the fields of `value`.
    pub(crate) fn object(&self, kind: &str, value: &impl Serialize) -> Result<(), CliError> {
        self.text(&format!("{}\n", tagged("kind", kind, value)?))
    }

    /// Writes one event as a line of JSON.
    pub(crate) fn event(&self, event: &str, value: &impl Serialize) -> Result<(), CliError> {
        self.text(&format!("{}\n", tagged("event", event, value)?))
    }

    /// Writes a sign of progress as a line of JSON to standard error: standard output holds the data alone, however long
    /// the work takes.
    pub(crate) fn progress(&self, value: &impl Serialize) {
        if let Ok(line) = tagged("event", "progress", value) {
            talk(&line);
        }
    }

    /// Writes one value as a line of JSON, for data that is itself JSON lines (an export, say).
    pub(crate) fn json_line(&self, value: &impl Serialize) -> Result<(), CliError> {
        let text = serde_json::to_string(value).map_err(|error| CliError::from_error(Exit::Unexpected, error))?;
        self.text(&format!("{}\n", terminal::json(&text)))
    }

    /// Says something to the person; nothing with `--quiet` or `--json`.
    pub(crate) fn note(&self, line: &str) {
        if !self.args.quiet && !self.args.json {
            talk(&terminal::lines(line));
        }
    }

    /// Warns the person; `--quiet` does not silence it.
    pub(crate) fn warn(&self, line: &str) {
        if self.args.json {
            let warning = json!({"version": JSON_VERSION, "warning": line}).to_string();
            talk(&terminal::json(&warning));
        } else {
            let line = terminal::lines(line);
            talk(&format!("{} {line}", paint(self.color_err, "33;1", "warning:")));
        }
    }

    /// Says why the command failed and what to do.
    pub(crate) fn error(&self, error: &CliError) {
        if error.is_quiet() {
            return;
        }
        if self.args.json {
            talk(&error_json(
                error.exit(),
                error.message(),
                error.causes(),
                error.hints(),
            ));
            return;
        }
        talk(&format!(
            "{} {}",
            paint(self.color_err, "31;1", "error:"),
            terminal::lines(error.message())
        ));
        for cause in error.causes() {
            talk(&format!("  caused by: {}", terminal::lines(cause)));
        }
        for hint in error.hints() {
            let hint = terminal::lines(hint);
            talk(&format!("{} {hint}", paint(self.color_err, "36;1", "hint:")));
        }
    }

    /// Says what was wrong with the arguments.
    pub(crate) fn usage_error(&self, error: &clap::Error) {
        let rendered = error.render();
        if !self.args.json {
            let text = if self.color_err {
                rendered.ansi().to_string()
            } else {
                rendered.to_string()
            };
            talk(text.trim_end());
            return;
        }
        let text = rendered.to_string();
        let (mut message, mut hints) = (String::new(), Vec::new());
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
            if let Some(tip) = line.strip_prefix("tip: ") {
                hints.push(tip.to_owned());
            } else if line.starts_with("Usage:") {
                break;
            } else {
                if !message.is_empty() {
                    message.push(' ');
                }
                message.push_str(line.strip_prefix("error: ").unwrap_or(line));
            }
        }
        hints.push("see reef --help".to_owned());
        talk(&error_json(Exit::Usage, &message, &[], &hints));
    }
}

fn error_json(exit: Exit, message: &str, causes: &[String], hints: &[String]) -> String {
    let error = json!({
        "version": JSON_VERSION,
        "error": {"kind": exit.name(), "code": exit.code(), "message": message, "causes": causes, "hints": hints},
    })
    .to_string();
    terminal::json(&error).into_owned()
}

fn tagged(tag: &str, name: &str, value: &impl Serialize) -> Result<String, CliError> {
    let unexpected = |error: serde_json::Error| CliError::from_error(Exit::Unexpected, error);
    let mut object = Map::new();
    object.insert("version".to_owned(), JSON_VERSION.into());
    object.insert(tag.to_owned(), name.into());
    match serde_json::to_value(value).map_err(unexpected)? {
        Value::Object(fields) => object.extend(fields),
        Value::Null => {}
        other => {
            object.insert("value".to_owned(), other);
        }
    }
    let text = serde_json::to_string(&object).map_err(unexpected)?;
    Ok(terminal::json(&text).into_owned())
}

fn paint(on: bool, code: &str, text: &str) -> String {
    if on {
        format!("\u{1b}[{code}m{text}\u{1b}[0m")
    } else {
        text.to_owned()
    }
}

fn stdout_error(error: &io::Error) -> CliError {
    if error.kind() == io::ErrorKind::BrokenPipe {
        CliError::broken_pipe()
    } else {
        CliError::new(Exit::Unexpected, format!("cannot write to standard output: {error}"))
    }
}

/// Writes one line to standard error.
fn talk(line: &str) {
    // Nowhere is left to report that standard error is gone.
    let _gone = writeln!(io::stderr().lock(), "{line}");
}
