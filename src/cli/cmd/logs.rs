//! `reef logs`

use std::time::Duration;

use clap::{Args, ValueEnum};
use serde_json::{Map, Value, json};

use crate::cli::table::printable;
use crate::cli::{CliError, Context, Exit, format};
use crate::telemetry::{LogLine, Tail, read_tail};

/// How often a followed log is looked at.
const LOOK: Duration = Duration::from_millis(200);

/// Show the newest lines of the log, and follow it
///
/// reef serve and reef train keep structured lines in the directory logs (observability.log-files), beside what they
/// write to standard error. Oldest first, so that the newest line is next to the prompt.
#[derive(Debug, Args)]
pub(crate) struct LogsArgs {
    /// Show at most so many lines; 0 shows none, and with --follow only what is new
    #[arg(short = 'n', long, alias = "lines", value_name = "N", default_value_t = 100)]
    limit: usize,
    /// Go on with every new line, until interrupted
    #[arg(short, long)]
    follow: bool,
    /// Only lines this severe or more
    #[arg(long, value_enum, value_name = "LEVEL", default_value_t = Level::Trace)]
    level: Level,
    /// Only lines that hold this text, in any case; several must all be there
    #[arg(short, long, value_name = "TEXT")]
    grep: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
enum Level {
    /// What failed
    Error,
    /// What may fail
    Warn,
    /// What happened
    Info,
    /// How it happened
    Debug,
    /// Everything
    Trace,
}

impl LogsArgs {
    fn wanted(&self, line: &LogLine) -> bool {
        if line.severity() > self.level as usize {
            return false;
        }
        let text = format!("{} {} {}", line.target, line.message, line.details()).to_lowercase();
        self.grep.iter().all(|word| text.contains(&word.to_lowercase()))
    }
}

pub(crate) fn run(context: &Context, args: &LogsArgs) -> Result<Exit, CliError> {
    let dir = context.settings()?.storage.log_dir();
    let failed = |error: std::io::Error| {
        CliError::new(
            Exit::Unexpected,
            format!("cannot read the log in {}: {error}", dir.display()),
        )
    };
    // Begun before the end is read: no line falls between.
    let mut tail = Tail::at_end(&dir).map_err(failed)?;
    // A filter may want few lines out of many.
    let filtered = args.level != Level::Trace || !args.grep.is_empty();
    // One line at least, to tell an empty log from one of which nothing is asked.
    let depth = if filtered { usize::MAX } else { args.limit.max(1) };
    let mut lines: Vec<LogLine> = read_tail(&dir, depth).map_err(failed)?;
    let kept = !lines.is_empty();
    lines.retain(|line| args.wanted(line));
    let surplus = lines.len().saturating_sub(args.limit);
    for line in &lines[surplus..] {
        show(context, line)?;
    }
    if !args.follow {
        if !kept {
            context.output().note(&format!(
                "there is no log in {} yet; reef serve and reef train write it",
                dir.display()
            ));
        }
        return Ok(if lines.is_empty() { Exit::Nothing } else { Exit::Ok });
    }
    context.block_on(async {
        loop {
            for line in tail.read().map_err(failed)?.iter().filter(|line| args.wanted(line)) {
                show(context, line)?;
            }
            context.pause(LOOK).await?;
        }
    })
}

fn show(context: &Context, line: &LogLine) -> Result<(), CliError> {
    let output = context.output();
    if output.json() {
        let mut fields = Map::new();
        fields.insert("at".to_owned(), json!(crate::sys::clock::seconds(line.at_us)));
        fields.insert("level".to_owned(), json!(line.level.to_lowercase()));
        fields.insert("target".to_owned(), json!(line.target));
        fields.insert("message".to_owned(), json!(line.message));
        fields.insert("fields".to_owned(), Value::Object(line.fields.clone()));
        return output.event("log", &fields);
    }
    let level = format!("{:<5}", line.level);
    let level = match (output.colored(), line.severity()) {
        (true, 0) => format!("\u{1b}[31;1m{level}\u{1b}[0m"),
        (true, 1) => format!("\u{1b}[33m{level}\u{1b}[0m"),
        _ => level,
    };
    let text = printable(format!("{} {}", line.message, line.details()));
    let line = format!("{} {level} {text}", format::utc(line.at_us));
    output.text(&format!("{}\n", line.trim_end()))
}
