//! What happens to the dashboard, and what it wants done about it.

use crossterm::event::{KeyEvent, MouseEvent};

use super::page::Body;
use super::snapshot::Snapshot;
use super::source::{Choice, Fault, Want};
use crate::telemetry::LogLine;

/// Something happened.
#[derive(Debug)]
pub(super) enum Event {
    /// A key was pressed.
    Key(KeyEvent),
    /// The mouse did something.
    Mouse(MouseEvent),
    /// The terminal has this many columns and rows now.
    Resize(u16, u16),
    /// A second passed.
    Tick(i64),
    /// A look at the source ended.
    Snapshot(Result<Box<Snapshot>, Fault>),
    /// The log was read.
    Logs(Result<Vec<LogLine>, Fault>),
    /// What a page asked for was read. It names the page: another one may be open by now.
    Read(Effect, Result<Body, Fault>),
    /// This decision was carried out, or not.
    Decided(Choice, Result<String, Fault>),
    /// Something in the background broke; the screen stays.
    Broken(String),
    /// A signal asked to end.
    Terminate(i32),
}

/// Something to be done.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Effect {
    /// Look at the source.
    Look(Want),
    /// Read the log.
    ReadLogs,
    /// Read a record of a scenario.
    ReadRecord(String, String),
    /// Read the evidence of a step.
    ReadEvidence(String, u64),
    /// Read an attempt at a better tree of a scenario.
    ReadAttempt(String, String),
    /// Compare two releases of a scenario.
    ReadDiff(String, String, String),
    /// Read a file of a release.
    ReadFile(String, String, String),
    /// Carry out a decision.
    Decide(Choice),
    /// Put a text on the clipboard of the terminal.
    Copy(String),
    /// Stop the process as the shell's job control does.
    Suspend,
    /// End; by this signal, if one asked for it.
    Quit(Option<i32>),
}
