//! An event stream on its way through, as a pure state machine: which bytes may go on at once, which must wait because
//! the receipt goes into them or before them, and what the stream turned out to be.

use bytes::{Buf, Bytes, BytesMut};

use super::receipt::Place;
use crate::domain::{Dialect, Turn};
use crate::engine::sse::{Assembler, Limits, Progress, Scanner};

/// An event longer than this is passed on unfinished, although its end could then carry no receipt.
const LONGEST_HELD: usize = 16 * 1024 * 1024;
/// Chat and Anthropic terminal events are short.
const LONGEST_SHORT: usize = 4 * 1024;
/// So much of a chat stream may wait for its end once it has said why it stops.
const LONGEST_FINISH: usize = 1024 * 1024;

/// What becomes of some bytes.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Forward these (perhaps none) and go on.
    Forward(Bytes),
    /// The answer is complete.
    Complete(Completion),
}

/// How a complete stream goes on: forward `before`; hold `terminal` until the record is stored; then `rest`.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Completion {
    pub(super) before: Bytes,
    pub(super) terminal: Bytes,
    pub(super) rest: Bytes,
    /// Where in or around `terminal` the receipt goes; `None` if there is no place for one.
    pub(super) place: Option<Place>,
}

/// How a stream that has ended without completing looks.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// The provider had reported a failure, in these words.
    Failed(String),
    /// It ended as a whole stream does, without any part of an answer in it.
    Empty,
    /// It simply ended.
    Cut,
}

/// A stream under way.
pub(super) struct Relay {
    dialect: Dialect,
    /// Whether the receipt of a chat goes into the chunk that says why it stopped.
    in_finish: bool,
    scanner: Scanner,
    assembler: Assembler,
    held: BytesMut,
    finish: Option<FinishHeld>,
    recorded: BytesMut,
    record_limit: usize,
    cut: bool,
    failure: Option<String>,
    empty: bool,
    events: u64,
    /// Whether the last byte was a line feed.
    line_fed: bool,
    /// What must follow bytes that ended within an event, once they have ended.
    after_end: Option<&'static [u8]>,
}

/// The chunk that says why a chat stopped is held, and what came after it.
#[derive(Debug, Clone, Copy)]
struct FinishHeld {
    /// Its own bytes.
    event: usize,
    /// All bytes from its beginning.
    since: usize,
}

impl Relay {
    pub(super) fn new(dialect: Dialect, in_finish: bool, record_limit: usize) -> Self {
        Self {
            dialect,
            in_finish: in_finish && dialect == Dialect::OpenaiChat,
            scanner: Scanner::default(),
            assembler: Assembler::new(
                dialect,
                Limits {
                    turn_bytes: record_limit,
                },
            ),
            held: BytesMut::new(),
            finish: None,
            recorded: BytesMut::new(),
            record_limit,
            cut: false,
            failure: None,
            empty: false,
            events: 0,
            line_fed: false,
            after_end: None,
        }
    }

    /// Takes the next bytes of the stream, none of which may follow a [`Step::Complete`].
    pub(super) fn push(&mut self, chunk: Bytes) -> Step {
        let mut at = 0;
        self.line_fed = chunk.last().map_or(self.line_fed, |byte| *byte == b'\n');
        while at < chunk.len() {
            let taken = self.scanner.advance(&chunk[at..]);
            at += taken;
            if let Some(finish) = &mut self.finish {
                finish.since += taken;
            }
            if self.take_event() {
                self.record(&chunk[..at]);
                let mut head = chunk;
                let rest = head.split_off(at);
                return Step::Complete(self.completion(head, rest));
            }
            self.note_finish(self.held.len() + at);
        }
        self.record(&chunk);
        if self.finish.is_some_and(|finish| finish.since > LONGEST_FINISH) {
            self.finish = None;
        }
        let keep = match self.finish {
            Some(finish) => finish.since,
            None if self.may_matter() => self.scanner.event_len(),
            None => 0,
        };
        Step::Forward(self.release(chunk, keep).0)
    }

    /// Takes the end of the stream; `clean` if the provider meant it to end here. A last event may lack its blank line,
    /// and a whole answer its closing event.
    pub(super) fn finish(&mut self, clean: bool) -> Step {
        let unended = self.scanner.in_event();
        self.after_end = Some(self.separator());
        self.scanner.finish();
        let complete = self.take_event();
        self.note_finish(self.held.len());
        let blank: &[u8] = match () {
            () if !unended => b"",
            // Behind a carriage return one line feed would only complete the line end.
            () if self.line_fed => b"\n",
            () => b"\n\n",
        };
        if complete {
            let mut completion = self.completion(Bytes::new(), Bytes::new());
            if !blank.is_empty() {
                completion.terminal = [&completion.terminal[..], blank].concat().into();
            }
            return Step::Complete(completion);
        }
        if clean && self.failure.is_none() && self.assembler.concluded() {
            return Step::Complete(self.without_closing(blank));
        }
        Step::Forward(std::mem::take(&mut self.held).freeze())
    }

    /// A whole answer whose closing event never came. It is given one, with the receipt.
    fn without_closing(&mut self, blank: &[u8]) -> Completion {
        let held = std::mem::take(&mut self.held);
        let event = self.finish.map(|finish| finish.event);
        if self.scanner.bare() {
            return Completion {
                before: held.freeze(),
                ..Completion::default()
            };
        }
        if let Some(event) = event {
            return Completion {
                terminal: [&held[..], blank].concat().into(),
                place: Some(Place::InFinish { event, closed: false }),
                ..Completion::default()
            };
        }
        Completion {
            before: [&held[..], blank].concat().into(),
            place: Some(Place::Closing),
            ..Completion::default()
        }
    }

    /// Lets go of what waits for the end of a chat, if that takes too long. The receipt then comes in a chunk of its own.
    pub(super) fn let_go(&mut self) -> Bytes {
        let Some(finish) = self.finish.take() else {
            return Bytes::new();
        };
        self.in_finish = false;
        let keep = if self.may_matter() { self.scanner.event_len() } else { 0 };
        let go = self.held.len().min(finish.since).saturating_sub(keep);
        self.held.split_to(go).freeze()
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
        match &self.failure {
            Some(failure) => Ending::Failed(failure.clone()),
            None if self.empty => Ending::Empty,
            None => Ending::Cut,
        }
    }

    /// The provider's id of a response under way.
    pub(super) fn answer(&self) -> Option<&str> {
        self.assembler.response_id()
    }

    /// Whether it is lines of JSON and no server-sent events.
    pub(super) fn bare(&self) -> bool {
        self.scanner.bare()
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
        if self.failure.is_some() || self.empty {
            return false;
        }
        match self.assembler.take(event) {
            Progress::More => false,
            Progress::Complete => {
                self.empty = !self.assembler.begun();
                !self.empty
            }
            Progress::Failed(message) => {
                self.failure = Some(message);
                self.finish = None;
                false
            }
        }
    }

    /// Notes that the event just taken says why the chat stopped, if it does; `available` bytes are here up to its end.
    fn note_finish(&mut self, available: usize) {
        if !self.in_finish || self.failure.is_some() || self.scanner.event().is_none() || self.scanner.bare() {
            return;
        }
        // What comes after it without a choice (a count of tokens) waits with it; a further choice takes its place.
        let Some(concludes) = self.assembler.concludes() else {
            return;
        };
        let event = self.scanner.event_len();
        self.finish = (concludes && event <= available).then_some(FinishHeld { event, since: event });
    }

    fn completion(&mut self, head: Bytes, rest: Bytes) -> Completion {
        let event = self.scanner.event_len();
        let available = self.held.len() + head.len();
        let keep = self.finish.map_or(event, |finish| finish.since);
        let (before, terminal) = self.release(head, keep);
        let place = match self.finish {
            Some(finish) => Some(Place::InFinish {
                event: finish.event,
                closed: true,
            }),
            None if available >= event && !self.scanner.bare() => Some(Place::Terminal),
            None => None,
        };
        Completion {
            before,
            terminal,
            rest,
            place,
        }
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

    /// Whether the receipt may go into the event under way.
    fn may_matter(&self) -> bool {
        if self.failure.is_some() || !self.scanner.in_event() || self.scanner.event_len() > LONGEST_HELD {
            return false;
        }
        // Several lines of data are events that only one line end keeps apart; to wait for their end is to wait for all.
        let data = self.scanner.pending().0.data;
        if self.in_finish && self.scanner.event_len() <= LONGEST_FINISH && !data.contains(&b'\n') {
            return !self.scanner.bare();
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
