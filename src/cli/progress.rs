//! Progress of long work, on standard error: a bar on a terminal, events under `--json`, otherwise silence.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::json;

use super::output::Output;
use crate::sys::task::{self, Thread};
use crate::sys::terminal;

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
            self.bar.set_message(terminal::line(message).into_owned());
        }
        if self.output.json() && self.last_event.elapsed() >= EVENT_INTERVAL {
            self.last_event = Instant::now();
            let event = json!({"what": self.what, "done": done, "total": self.total, "message": message});
            self.output.progress(&event);
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

/// A sign that work goes on which cannot say how far it is. Dropping it removes the sign.
pub(crate) struct Spinner {
    ended: Option<Sender<()>>,
    thread: Option<Thread<()>>,
}

impl Spinner {
    /// Starts showing that `what` (`publishing`) is under way.
    pub(crate) fn start(output: &Output, what: &'static str) -> Self {
        if !output.progress_visible() && !output.json() {
            return Self {
                ended: None,
                thread: None,
            };
        }
        let (ended, end) = channel::<()>();
        let output = output.clone();
        let thread = task::thread("reef-progress", move || {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
            let started = Instant::now();
            let mut wait = QUIET_AT_FIRST;
            while end.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
                if output.json() {
                    wait = EVENT_INTERVAL;
                    let event = json!({"what": what, "seconds": started.elapsed().as_secs_f64()});
                    output.progress(&event);
                    continue;
                }
                wait = Duration::from_millis(100);
                if bar.is_hidden() {
                    let style = ProgressStyle::with_template("{spinner} {prefix} {elapsed}");
                    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
                    bar.set_prefix(what);
                    bar.set_draw_target(ProgressDrawTarget::stderr_with_hz(10));
                }
                bar.tick();
            }
            bar.finish_and_clear();
        });
        Self {
            ended: Some(ended),
            // Without a thread there is no sign; the work goes on.
            thread: thread.ok(),
        }
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        drop(self.ended.take());
        if let Some(thread) = self.thread.take() {
            // A panic in it was told; the sign is gone either way.
            let _ended = thread.join();
        }
    }
}
