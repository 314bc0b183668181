//! One assembler for every dialect.

use serde_json::Value;

use super::anthropic::{self, MessageTurn};
use super::chat::{ChatTurn, note_once};
use super::failure::{short, words};
use super::json::text;
use super::responses::{self, ResponseTurn};
use super::scanner::Event;
use crate::domain::{Dialect, Turn};
use crate::sys::json;

/// How much an assembler may hold.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Bytes of text, reasoning and tool calls; what comes after is left out and noted.
    pub turn_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            turn_bytes: 64 * 1024 * 1024,
        }
    }
}

/// What an event means for the stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Progress {
    /// The stream goes on.
    More,
    /// This was the terminal event of a complete answer.
    Complete,
    /// The provider reports a failure, in these words.
    Failed(String),
}

/// Assembles the turn of one event stream.
#[derive(Debug)]
pub struct Assembler {
    kind: Kind,
    limits: Limits,
    truncated: bool,
    malformed: u32,
    identity: Option<Value>,
}

#[derive(Debug)]
enum Kind {
    Chat(ChatTurn),
    Message(MessageTurn),
    Response(Box<ResponseTurn>),
}

impl Assembler {
    /// For a stream in `dialect`.
    pub fn new(dialect: Dialect, limits: Limits) -> Self {
        let kind = match dialect {
            Dialect::OpenaiChat => Kind::Chat(ChatTurn::default()),
            Dialect::Anthropic => Kind::Message(MessageTurn::default()),
            Dialect::OpenaiResponses => Kind::Response(Box::default()),
        };
        Self {
            kind,
            limits,
            truncated: false,
            malformed: 0,
            identity: None,
        }
    }

    /// Takes one event. An event that is not JSON is counted and otherwise ignored.
    pub fn take(&mut self, event: Event<'_>) -> Progress {
        let data = event.data.trim_ascii();
        if matches!(self.kind, Kind::Chat(_)) && data == b"[DONE]" {
            return Progress::Complete;
        }
        if let Ok(value) = json::read(data) {
            return self.take_value(event.name, &value, data.len());
        }
        if event.name == b"error" {
            return Progress::Failed(short(&String::from_utf8_lossy(data)));
        }
        // Events that only one line end keeps apart come as the lines of one.
        if data.contains(&b'\n') {
            let mut progress = Progress::More;
            for line in data
                .split(|byte| *byte == b'\n')
                .filter(|line| !line.trim_ascii().is_empty())
            {
                let one = Event {
                    name: event.name,
                    data: line,
                };
                progress = self.take(one);
                if progress != Progress::More {
                    break;
                }
            }
            return progress;
        }
        self.malformed += 1;
        Progress::More
    }

    fn take_value(&mut self, name: &[u8], value: &Value, size: usize) -> Progress {
        let len = match &self.kind {
            Kind::Chat(turn) => turn.len(),
            Kind::Message(turn) => turn.len(),
            Kind::Response(turn) => turn.len(),
        };
        let full = len.saturating_add(size) > self.limits.turn_bytes;
        let kind = value
            .get("type")
            .and_then(Value::as_str)
            .or_else(|| std::str::from_utf8(name).ok())
            .unwrap_or("");
        if kind == "error" {
            return Progress::Failed(words(value));
        }
        if full && is_delta(&self.kind, kind) {
            self.truncated = true;
            return Progress::More;
        }
        let result = match &mut self.kind {
            Kind::Chat(turn) => turn.take(value, true).map(|()| Progress::More),
            Kind::Message(turn) => turn.take_event(kind, value).map(|step| match step {
                anthropic::Step::More => Progress::More,
                anthropic::Step::Last => Progress::Complete,
            }),
            Kind::Response(turn) => turn.take_event(kind, value).map(|step| match step {
                responses::Step::More => Progress::More,
                responses::Step::Last => Progress::Complete,
            }),
        };
        if matches!(self.kind, Kind::Chat(_)) && !self.identity.as_ref().is_some_and(is_named) {
            // Some providers begin with a chunk whose fields are all empty.
            self.identity = Some(identity_of(value));
        }
        result.unwrap_or_else(Progress::Failed)
    }

    /// Whether any part of an answer has come.
    pub fn begun(&self) -> bool {
        match &self.kind {
            Kind::Chat(turn) => turn.begun(),
            Kind::Message(turn) => turn.begun(),
            // Its terminal event holds the whole answer.
            Kind::Response(_) => true,
        }
    }

    /// The provider's id of a response that can be fetched later.
    pub fn response_id(&self) -> Option<&str> {
        match &self.kind {
            Kind::Response(turn) => turn.id(),
            Kind::Chat(_) | Kind::Message(_) => None,
        }
    }

    /// Of the chat chunk just taken: whether it was the one with which every choice has said why it stopped. `None` if it
    /// spoke of no choice.
    pub fn concludes(&self) -> Option<bool> {
        match &self.kind {
            Kind::Chat(turn) => turn.concludes(),
            Kind::Message(_) | Kind::Response(_) => None,
        }
    }

    /// Whether the answer is whole although its closing event has not come: everything in it has said why it stopped.
    pub fn concluded(&self) -> bool {
        match &self.kind {
            Kind::Chat(turn) => turn.concluded(),
            Kind::Message(turn) => turn.concluded(),
            Kind::Response(_) => false,
        }
    }

    /// The fields that say which completion a chat chunk belongs to, as the first chunk that names one had them.
    pub fn chat_identity(&self) -> Option<&Value> {
        self.identity.as_ref()
    }

    /// The turn so far.
    pub fn finish(self) -> Turn {
        let mut turn = match self.kind {
            Kind::Chat(turn) => turn.finish(),
            Kind::Message(turn) => turn.finish(),
            Kind::Response(turn) => turn.finish(),
        };
        if self.truncated {
            note_once(&mut turn.notes, "the turn was cut at the recording limit");
        }
        if self.malformed > 0 {
            turn.notes
                .push(format!("{} events were not JSON and were left out", self.malformed));
        }
        turn
    }
}

fn is_delta(kind: &Kind, event: &str) -> bool {
    match kind {
        Kind::Chat(_) => true,
        Kind::Message(_) => event == "content_block_delta" || event == "content_block_start",
        Kind::Response(_) => event.ends_with(".delta") || event.ends_with(".done") || event.ends_with(".added"),
    }
}

fn identity_of(chunk: &Value) -> Value {
    let kept = ["id", "object", "created", "model", "system_fingerprint", "service_tier"];
    let fields = kept
        .iter()
        .filter_map(|key| Some(((*key).to_owned(), chunk.get(*key)?.clone())));
    Value::Object(fields.collect())
}

fn is_named(identity: &Value) -> bool {
    text(identity, "id").is_some()
}
