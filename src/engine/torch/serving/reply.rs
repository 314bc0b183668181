//! From what the engine thread tells to what the client reads.

use std::collections::VecDeque;

use bytes::Bytes;
use futures_util::stream;
use tokio::sync::mpsc;

use super::sequence::{GenerationEvent, ShownToken};
use super::vocabulary::Vocabulary;
use crate::domain::{Route, TokenCapture};
use crate::engine::chat::{
    Completed, CompletedChoice, Delta, Finish, OutputParser, ReplyMeta, ReplyStream, TokenLogprob, TokenUsage, body,
};
use crate::engine::{ByteStream, CaptureSlot, EngineError};
use std::sync::Arc;

use super::prepare::Prepared;

/// What an answer's reader knows.
pub(super) struct Answer {
    pub(super) route: Route,
    pub(super) meta: ReplyMeta,
    pub(super) prepared: Prepared,
    pub(super) events: mpsc::Receiver<GenerationEvent>,
    pub(super) capture: CaptureSlot,
    pub(super) vocabulary: Arc<Vocabulary>,
    /// Prompt tokens that needed no computation.
    pub(super) cached: usize,
}

/// One step of an answer, read.
enum Step {
    Piece {
        choice: usize,
        deltas: Vec<Delta>,
        logprobs: Vec<TokenLogprob>,
    },
    Finish {
        choice: usize,
        deltas: Vec<Delta>,
        finish: Finish,
    },
}

/// Reads events into steps.
struct Reader {
    parsers: Vec<OutputParser>,
    usage: TokenUsage,
    unfinished: usize,
    events: mpsc::Receiver<GenerationEvent>,
    capture: CaptureSlot,
    vocabulary: Arc<Vocabulary>,
}

impl Reader {
    fn new(answer: Answer) -> (Self, Route, ReplyMeta, Prepared) {
        let n = answer.prepared.request.n;
        let reader = Self {
            parsers: (0..n).map(|_| answer.prepared.parser()).collect(),
            usage: TokenUsage {
                prompt: answer.prepared.goal.prompt.len(),
                cached: answer.cached,
                ..TokenUsage::default()
            },
            unfinished: n,
            events: answer.events,
            capture: answer.capture,
            vocabulary: answer.vocabulary,
        };
        (reader, answer.route, answer.meta, answer.prepared)
    }

    /// The next step; `None` after the last choice has finished.
    async fn next(&mut self) -> Option<Result<Step, EngineError>> {
        while self.unfinished > 0 {
            let Some(event) = self.events.recv().await else {
                return Some(Err(broken("the engine stopped")));
            };
            match event {
                GenerationEvent::Token { choice, text, shown } => {
                    let logprobs = shown.map(|token| self.logprob(&token)).into_iter().collect();
                    let deltas = self.read(choice, &text);
                    return Some(Ok(Step::Piece {
                        choice,
                        deltas,
                        logprobs,
                    }));
                }
                GenerationEvent::Finished {
                    choice,
                    text,
                    finish,
                    capture,
                } => {
                    self.unfinished -= 1;
                    return Some(Ok(self.finish(choice, &text, finish, *capture)));
                }
                GenerationEvent::Failed { reason } => return Some(Err(broken(&reason))),
                // Only the first choice's admission matters, and it has been seen.
                GenerationEvent::Admitted { .. } | GenerationEvent::Refused(_) => {}
            }
        }
        None
    }

    fn read(&mut self, choice: usize, text: &str) -> Vec<Delta> {
        self.usage.completion += 1;
        let Some(parser) = self.parsers.get_mut(choice) else {
            return Vec::new();
        };
        self.usage.reasoning += usize::from(parser.is_reasoning());
        parser.push(text)
    }

    fn finish(&mut self, choice: usize, text: &str, finish: Finish, mut capture: TokenCapture) -> Step {
        let mut deltas = Vec::new();
        let mut finish = finish;
        if let Some(parser) = self.parsers.get_mut(choice) {
            deltas = parser.push(text);
            deltas.extend(parser.finish());
            if parser.calls() > 0 && finish == Finish::Stop {
                finish = Finish::ToolCalls;
            }
        }
        if choice == 0 {
            finish.as_str().clone_into(&mut capture.finish_reason);
            // The slot is this answer's alone, so it is empty.
            let _set_once = self.capture.set(capture);
        }
        Step::Finish { choice, deltas, finish }
    }

    fn logprob(&self, token: &ShownToken) -> TokenLogprob {
        let bytes = |id| self.vocabulary.bytes(id).to_vec();
        TokenLogprob {
            bytes: bytes(token.id),
            logprob: token.logprob,
            top: token.top.iter().map(|top| (bytes(top.id), top.logprob)).collect(),
        }
    }
}

fn broken(reason: &str) -> EngineError {
    EngineError::Broken {
        reason: reason.to_owned(),
    }
}

/// Waits for the whole answer.
pub(super) async fn whole(answer: Answer) -> Result<Bytes, EngineError> {
    let (mut reader, route, meta, prepared) = Reader::new(answer);
    let request = &prepared.request;
    let mut choices: Vec<CompletedChoice> = (0..request.n)
        .map(|_| CompletedChoice::new(request.logprobs.is_some()))
        .collect();
    while let Some(step) = reader.next().await {
        let (choice, deltas, logprobs, finish) = match step? {
            Step::Piece {
                choice,
                deltas,
                logprobs,
            } => (choice, deltas, logprobs, None),
            Step::Finish { choice, deltas, finish } => (choice, deltas, Vec::new(), Some(finish)),
        };
        let Some(place) = choices.get_mut(choice) else { continue };
        for delta in deltas {
            place.push(delta);
        }
        if let Some(all) = &mut place.logprobs {
            all.extend(logprobs);
        }
        if let Some(finish) = finish {
            place.finish = finish;
        }
    }
    let completed = Completed {
        choices,
        usage: reader.usage,
    };
    Ok(Bytes::from(body(route, &meta, request, &completed).to_string()))
}

/// The answer as an event stream. Dropping it gives the answer up.
pub(super) fn streamed(answer: Answer) -> ByteStream {
    let (reader, route, meta, prepared) = Reader::new(answer);
    let mut writer = ReplyStream::new(route, meta, &prepared.request);
    let mut first = String::new();
    writer.start(reader.usage, &mut first);
    let state = Streaming {
        reader,
        writer,
        ready: VecDeque::from([first]),
        ended: false,
    };
    Box::pin(stream::unfold(state, |mut state| async move {
        let frames = state.next().await?;
        Some((frames, state))
    }))
}

struct Streaming {
    reader: Reader,
    writer: ReplyStream,
    ready: VecDeque<String>,
    ended: bool,
}

impl Streaming {
    async fn next(&mut self) -> Option<Result<Bytes, EngineError>> {
        loop {
            if let Some(frames) = self.ready.pop_front() {
                return Some(Ok(Bytes::from(frames)));
            }
            if self.ended {
                return None;
            }
            let mut out = String::new();
            match self.reader.next().await {
                Some(Ok(Step::Piece {
                    choice,
                    deltas,
                    logprobs,
                })) => self.writer.push(choice, deltas, logprobs, &mut out),
                Some(Ok(Step::Finish { choice, deltas, finish })) => {
                    self.writer.push(choice, deltas, Vec::new(), &mut out);
                    self.writer.finish(choice, &finish, &mut out);
                }
                Some(Err(error)) => {
                    self.ended = true;
                    return Some(Err(error));
                }
                None => {
                    self.ended = true;
                    self.writer.end(self.reader.usage, &mut out);
                }
            }
            if !out.is_empty() {
                self.ready.push_back(out);
            }
        }
    }
}
