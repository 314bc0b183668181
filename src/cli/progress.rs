//! Progress of long work: a bar on a terminal, events under `--json`, otherwise silence.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::json;

use super::output::Output;

/// At most one event in this time, so that a log of a long run stays readable.
const EVENT_INTERVAL: Duration = Duration::from_secs(1);
/// Short work shows nothing.
const QUIET_AT_FIRST: Duration = Duration::from_millis(250);

/// Progress of one piece of work. Dropping it removes the bar.
pub(crate) struct Progress<'a> {
    output: &'a Output,
    what: &'static str,
    bar: ProgressBar,
    shown: bool,
    started: Instant,
    last_event: Instant,
    done: u64,
    total: Option<u64>,
}

impl<'a> Progress<'a> {
    /// Starts showing progress of `what` (`importing records`); `total` if it is known.
    pub(crate) fn start(output: &'a Output, what: &'static str, total: Option<u64>) -> Self {
        let bar = ProgressBar::with_draw_target(total, ProgressDrawTarget::hidden());
        Self {
            output,
            what,
            bar,
            shown: false,
            started: Instant::now(),
            last_event: Instant::now(),
            done: 0,
            total,
        }
    }

    /// `count` more units are done.
    pub(crate) fn advance(&mut self, count: u64) {
        self.set(self.done + count, None);
    }

    /// Where the work is now, with a word on it.
    pub(crate) fn set(&mut self, done: u64, message: Option<&str>) {
        self.done = done;
        if !self.shown && self.output.progress_visible() && self.started.elapsed() >= QUIET_AT_FIRST {
            self.shown = true;
            self.bar.set_style(self.style());
            self.bar.set_prefix(self.what);
            self.bar.set_draw_target(ProgressDrawTarget::stderr_with_hz(20));
        }
        self.bar.set_position(done);
        if let Some(message) = message {
            self.bar.set_message(message.to_owned());
        }
        if self.output.json() && self.last_event.elapsed() >= EVENT_INTERVAL {
            self.last_event = Instant::now();
            let event = json!({"what": self.what, "done": done, "total": self.total, "message": message});
            // A reader that went away is noticed by the next write of data.
            let _gone = self.output.event("progress", &event);
        }
    }

    fn style(&self) -> ProgressStyle {
        let template = if self.total.is_some() {
            "{prefix} {wide_bar} {human_pos}/{human_len} {eta} {msg}"
        } else {
            "{prefix} {spinner} {human_pos} {per_sec} {msg}"
        };
        ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
    }
}

impl Drop for Progress<'_> {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
