//! An event stream on its way through, as a pure state machine: which bytes may go on at once, which must wait because
//! they may begin the terminal event, and what the stream turned out to be.

use bytes::{Buf, Bytes, BytesMut};

use crate::domain::{Dialect, Turn};
use crate::engine::sse::{Assembler, Limits, Progress, Scanner};

/// An event longer than this is passed on unfinished, although its end could then carry no receipt.
const LONGEST_HELD: usize = 16 * 1024 * 1024;
/// Chat and Anthropic terminal events are short.
const LONGEST_SHORT: usize = 4 * 1024;

/// What becomes of some bytes.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Forward these (perhaps none) and go on.
    Forward(Bytes),
    /// The answer is complete: forward `before`; hold `terminal` until the record is stored; then `rest`.
    Complete {
        before: Bytes,
        terminal: Bytes,
        rest: Bytes,
        /// Whether `terminal` is the whole event, so that a receipt can be put into or before it.
        whole: bool,
    },
}

/// How a stream that has ended without completing looks.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// The provider had reported a failure, in these words.
    Failed(String),
    /// It simply ended.
    Cut,
}

/// A stream under way.
pub(super) struct Relay {
    dialect: Dialect,
    scanner: Scanner,
    assembler: Assembler,
    held: BytesMut,
    recorded: BytesMut,
    record_limit: usize,
    cut: bool,
    failure: Option<String>,
    events: u64,
    /// What must follow bytes that ended within an event, once they have ended.
    after_end: Option<&'static [u8]>,
}

impl Relay {
    pub(super) fn new(dialect: Dialect, record_limit: usize) -> Self {
        Self {
            dialect,
            scanner: Scanner::default(),
            assembler: Assembler::new(
                dialect,
                Limits {
                    turn_bytes: record_limit,
                },
            ),
            held: BytesMut::new(),
            recorded: BytesMut::new(),
            record_limit,
            cut: false,
            failure: None,
            events: 0,
            after_end: None,
        }
    }

    /// Takes the next bytes of the stream, none of which may follow a [`Step::Complete`].
    pub(super) fn push(&mut self, chunk: Bytes) -> Step {
        let mut at = 0;
        while at < chunk.len() {
            at += self.scanner.advance(&chunk[at..]);
            if self.take_event() {
                self.record(&chunk[..at]);
                let mut head = chunk;
                let rest = head.split_off(at);
                let (before, terminal, whole) = self.split_terminal(head);
                return Step::Complete {
                    before,
                    terminal,
                    rest,
                    whole,
                };
            }
        }
        self.record(&chunk);
        let keep = if self.may_be_terminal() {
            self.scanner.event_len()
        } else {
            0
        };
        Step::Forward(self.release(chunk, keep).0)
    }

    /// Takes the end of the stream. A last event may lack its blank line; if it is terminal it is given one.
    pub(super) fn finish(&mut self) -> Step {
        let unended = self.scanner.in_event();
        self.after_end = Some(self.separator());
        self.scanner.finish();
        if self.take_event() {
            let (before, terminal, whole) = self.split_terminal(Bytes::new());
            let mut terminal = BytesMut::from(&terminal[..]);
            if unended {
                // Behind a carriage return one line feed would only complete the line end.
                terminal.extend_from_slice(if terminal.ends_with(b"\n") { b"\n" } else { b"\n\n" });
            }
            return Step::Complete {
                before,
                terminal: terminal.freeze(),
                rest: Bytes::new(),
                whole,
            };
        }
        Step::Forward(std::mem::take(&mut self.held).freeze())
    }

    /// What must come before an event of Reef's own, so that it is not read as part of what went before.
    pub(super) fn separator(&self) -> &'static [u8] {
        if let Some(after_end) = self.after_end {
            return after_end;
        }
        match (self.scanner.in_event(), self.scanner.at_line_start().0) {
            (false, _) => b"",
            (true, true) => b"\n",
            // In a line, or behind a carriage return, where one line feed would only complete the line end.
            (true, false) => b"\n\n",
        }
    }

    /// A comment that may be sent now, if the bytes sent so far allow one.
    pub(super) fn comment(&self) -> Option<&'static [u8]> {
        match self.scanner.at_line_start() {
            _ if !self.held.is_empty() => None,
            (true, true) => Some(b": keep-alive\n\n"),
            (true, false) => Some(b": keep-alive\n"),
            (false, _) => None,
        }
    }

    /// How the stream looks if it ends here.
    pub(super) fn ending(&self) -> Ending {
        self.failure.clone().map_or(Ending::Cut, Ending::Failed)
    }

    /// How many events have passed.
    pub(super) fn events(&self) -> u64 {
        self.events
    }

    /// The bytes as they came, and the turn assembled from them.
    pub(super) fn into_record(self) -> (Bytes, Turn, Option<serde_json::Value>) {
        let identity = self.assembler.chat_identity().cloned();
        let mut turn = self.assembler.finish();
        if self.cut {
            turn.notes
                .push("the response was cut at the recording limit".to_owned());
        }
        (self.recorded.freeze(), turn, identity)
    }

    fn take_event(&mut self) -> bool {
        let Some(event) = self.scanner.event() else {
            return false;
        };
        self.events += 1;
        if self.failure.is_some() {
            return false;
        }
        match self.assembler.take(event) {
            Progress::More => false,
            Progress::Complete => true,
            Progress::Failed(message) => {
                self.failure = Some(message);
                false
            }
        }
    }

    fn split_terminal(&mut self, head: Bytes) -> (Bytes, Bytes, bool) {
        let event = self.scanner.event_len();
        let available = self.held.len() + head.len();
        let (before, terminal) = self.release(head, event);
        (before, terminal, available >= event)
    }

    /// Splits what is held and `chunk` into what goes on and the last `keep` bytes, which are held again.
    fn release(&mut self, chunk: Bytes, keep: usize) -> (Bytes, Bytes) {
        if self.held.is_empty() {
            let mut go = chunk;
            let kept = go.split_off(go.len() - keep.min(go.len()));
            self.held.extend_from_slice(&kept);
            return (go, kept);
        }
        self.held.extend_from_slice(&chunk);
        let go = self.held.len() - keep.min(self.held.len());
        let go = self.held.split_to(go).freeze();
        (go, Bytes::copy_from_slice(self.held.chunk()))
    }

    fn record(&mut self, bytes: &[u8]) {
        let room = self.record_limit - self.recorded.len();
        self.cut |= bytes.len() > room;
        self.recorded.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }

    /// Whether the event under way may yet turn out to be the terminal one.
    fn may_be_terminal(&self) -> bool {
        if self.failure.is_some() || !self.scanner.in_event() || self.scanner.event_len() > LONGEST_HELD {
            return false;
        }
        let (event, line) = self.scanner.pending();
        let short = self.scanner.event_len() <= LONGEST_SHORT;
        match self.dialect {
            Dialect::OpenaiChat if event.data.is_empty() => {
                short && value_of(line, b"data").is_none_or(|data| begins(data, b"[DONE]"))
            }
            Dialect::OpenaiChat => event.data.trim_ascii() == b"[DONE]",
            Dialect::Anthropic if event.name.is_empty() => {
                short
                    && value_of(line, b"event").is_none_or(|name| begins(name, b"message_stop"))
                    && typed(event.data, line)
            }
            Dialect::Anthropic => short && event.name == b"message_stop",
            Dialect::OpenaiResponses => {
                let ends: [&[u8]; 2] = [b"response.completed", b"response.incomplete"];
                if event.name.is_empty() {
                    value_of(line, b"event").is_none_or(|name| ends.iter().any(|end| begins(name, end)))
                        && typed(event.data, line)
                } else {
                    ends.contains(&event.name)
                }
            }
        }
    }
}

/// The value of `field` if `line` (perhaps unfinished) is surely that field; `None` if it is another or not yet sure.
fn value_of<'a>(line: &'a [u8], field: &[u8]) -> Option<&'a [u8]> {
    line.strip_prefix(field)?.strip_prefix(b":")
}

/// Whether `value`, perhaps unfinished, is or may become `whole`.
fn begins(value: &[u8], whole: &[u8]) -> bool {
    let value = value.trim_ascii_start();
    whole.starts_with(value) || value.trim_ascii_end() == whole
}

/// Of an event without a name: whether its JSON, as far as it is there, may have a terminal `type`. Most providers put
/// the type first; where they do not, the event is held to its end.
fn typed(data: &[u8], line: &[u8]) -> bool {
    let data = if data.is_empty() {
        value_of(line, b"data").unwrap_or(b"")
    } else {
        data
    };
    let Some(rest) = data.trim_ascii_start().strip_prefix(b"{\"type\":") else {
        return true;
    };
    let kind = rest.trim_ascii_start();
    let ends: [&[u8]; 3] = [
        b"\"message_stop\"",
        b"\"response.completed\"",
        b"\"response.incomplete\"",
    ];
    ends.iter().any(|end| kind.starts_with(end) || end.starts_with(kind))
}

#[cfg(test)]
#[path = "relay_tests.rs"]
mod tests;
