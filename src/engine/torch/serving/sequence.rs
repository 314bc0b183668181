//! One answer while it is generated: its tokens, its text up to what might still become a stop text, its capture.

use std::rc::Rc;
use std::sync::Arc;

use tokio::sync::mpsc;

use super::actor::ServingLoad;
use super::constraint::{Constraint, Mask};
use super::sampler::{Allowed, History, Sampled, Sampling, sample};
use super::vocabulary::{Decoding, Vocabulary};
use crate::domain::{LoadSpan, RuntimeLoadId, TokenCapture, TopKToken};
use crate::engine::chat::{Finish, StopMatcher};

/// What is generated and when it ends; the same for every answer to one request.
#[derive(Debug, Clone)]
pub(crate) struct Goal {
    pub(crate) prompt: Arc<[u32]>,
    pub(crate) sampling: Sampling,
    /// The client's stop texts, then those of the engine itself.
    pub(crate) stops: Vec<String>,
    pub(crate) n_client_stops: usize,
    pub(crate) max_new: usize,
    pub(crate) min_new: usize,
    pub(crate) ignore_end: bool,
    /// Alternatives the client wants with each token; `None` if it wants no log-probabilities.
    pub(crate) client_top: Option<usize>,
    /// Alternatives the record gets with each token; 0 for none.
    pub(crate) capture_top: usize,
}

/// What a request's reply hears of its answers.
#[derive(Debug)]
pub(crate) enum GenerationEvent {
    /// An answer has its slot.
    Admitted {
        /// Prompt tokens that needed no computation.
        cached: usize,
        load: RuntimeLoadId,
    },
    /// A token, and the text that became certain with it.
    Token {
        choice: usize,
        text: String,
        /// The token, for a client that wants log-probabilities.
        shown: Option<ShownToken>,
    },
    /// An answer ended.
    Finished {
        choice: usize,
        text: String,
        finish: Finish,
        capture: Box<TokenCapture>,
    },
    /// It cannot go on.
    Failed { reason: String },
    /// It was refused before it began.
    Refused(Refusal),
}

/// Why the engine takes no request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The queue is full.
    Full { waiting: usize },
    /// The load frozen for the request is gone.
    LoadGone,
}

/// A sampled token with what the client wants to know of it.
#[derive(Debug)]
pub(crate) struct ShownToken {
    pub(crate) id: u32,
    pub(crate) logprob: f32,
    pub(crate) top: Vec<TopKToken>,
}

/// The state of one answer.
pub(crate) struct Sequence {
    pub(crate) goal: Arc<Goal>,
    pub(crate) choice: usize,
    pub(crate) events: mpsc::Sender<GenerationEvent>,
    pub(crate) load: Rc<ServingLoad>,
    pub(crate) slot: usize,
    /// Prompt tokens in the slot.
    pub(crate) computed: usize,
    sampling: Sampling,
    history: History,
    constraint: Option<Constraint>,
    text: Decoding,
    stops: StopMatcher,
    capture: TokenCapture,
}

/// What became of a token.
#[derive(Debug)]
pub(crate) enum Progress {
    GoesOn,
    Ended,
}

impl Sequence {
    pub(crate) fn new(
        goal: Arc<Goal>,
        choice: usize,
        seed: u64,
        events: mpsc::Sender<GenerationEvent>,
        load: Rc<ServingLoad>,
        constraint: Option<Constraint>,
        text: Decoding,
    ) -> Self {
        let sampling = Sampling {
            seed,
            ..goal.sampling.clone()
        };
        let capture = TokenCapture {
            prompt_token_ids: goal.prompt.to_vec(),
            temperature: sampling.recorded_temperature(),
            top_k: (goal.capture_top > 0).then(Vec::new),
            sampler: Some(sampling.recorded(constraint.is_some())),
            ..TokenCapture::default()
        };
        Self {
            history: History::new(&sampling, &goal.prompt),
            stops: StopMatcher::new(goal.stops.clone()),
            goal,
            choice,
            events,
            load,
            slot: 0,
            computed: 0,
            sampling,
            constraint,
            text,
            capture,
        }
    }

    /// The newest token, which the next step computes.
    pub(crate) fn newest(&self) -> Option<&u32> {
        self.capture.token_ids.last()
    }

    pub(crate) fn n_generated(&self) -> usize {
        self.capture.token_ids.len()
    }

    /// Samples the next token from `logits` and tells the reply.
    pub(crate) fn advance(&mut self, logits: &mut [f32], vocabulary: &Vocabulary) -> Result<Progress, String> {
        let step = self.capture.token_ids.len();
        let n_top = self.goal.client_top.unwrap_or(0).max(self.goal.capture_top);
        let banned: &[u32] = if self.goal.ignore_end || step < self.goal.min_new {
            vocabulary.ends_of_sequence()
        } else {
            &[]
        };
        let mask = self.constraint.as_mut().map(Constraint::mask).transpose()?;
        let filter = Filter {
            mask: mask.as_ref(),
            banned,
        };
        let allowed: Option<&dyn Allowed> = if filter.is_open() { None } else { Some(&filter) };
        let sampled = sample(logits, &self.sampling, &self.history, step as u64, n_top, allowed)
            .ok_or_else(|| "the model gave logits that are not numbers, or no token was allowed".to_owned())?;
        self.take(&sampled, vocabulary)
    }

    fn take(&mut self, sampled: &Sampled, vocabulary: &Vocabulary) -> Result<Progress, String> {
        let token = sampled.token;
        self.record(sampled);
        let ends = !self.goal.ignore_end && vocabulary.ends(token);
        let mut complete = ends;
        if let Some(constraint) = &mut self.constraint
            && !ends
        {
            complete = constraint.accept(token)?;
        }
        let mut text = String::new();
        let mut hit = None;
        if !ends {
            let mut piece = String::new();
            self.text
                .push(token, vocabulary, &mut piece)
                .map_err(|error| error.to_string())?;
            hit = self.stops.push(&piece, &mut text);
        }
        let finish = match hit {
            Some(index) if index < self.goal.n_client_stops => Some(Finish::StopText(
                self.goal.stops.get(index).cloned().unwrap_or_default(),
            )),
            Some(_) => Some(Finish::Stop),
            None if complete => Some(Finish::Stop),
            None if self.n_generated() >= self.goal.max_new => Some(Finish::Length),
            None => None,
        };
        let shown = self.goal.client_top.map(|n| ShownToken {
            id: token,
            logprob: sampled.logprob,
            top: sampled.top.iter().take(n).copied().collect(),
        });
        match finish {
            None => {
                // Told even without text: the reply counts tokens by their events.
                self.tell(GenerationEvent::Token {
                    choice: self.choice,
                    text,
                    shown,
                });
                Ok(Progress::GoesOn)
            }
            Some(finish) => {
                if hit.is_none() {
                    let mut rest = String::new();
                    self.text
                        .finish(vocabulary, &mut rest)
                        .map_err(|error| error.to_string())?;
                    if self.stops.push(&rest, &mut text).is_none() {
                        self.stops.finish(&mut text);
                    }
                }
                self.tell(GenerationEvent::Token {
                    choice: self.choice,
                    text: String::new(),
                    shown,
                });
                self.finish(text, finish);
                Ok(Progress::Ended)
            }
        }
    }

    fn record(&mut self, sampled: &Sampled) {
        let capture = &mut self.capture;
        capture.token_ids.push(sampled.token);
        capture.logprobs.push(sampled.logprob);
        self.history.push(sampled.token);
        if let Some(top_k) = &mut capture.top_k {
            top_k.push(sampled.top.iter().take(self.goal.capture_top).copied().collect());
        }
        let end = capture.token_ids.len();
        match capture.spans.last_mut() {
            Some(span) if span.runtime_load_id == self.load.id => span.end = end,
            _ => capture.spans.push(LoadSpan {
                start: end - 1,
                end,
                runtime_load_id: self.load.id.clone(),
            }),
        }
    }

    fn finish(&mut self, text: String, finish: Finish) {
        let mut capture = std::mem::take(&mut self.capture);
        finish.as_str().clone_into(&mut capture.finish_reason);
        self.tell(GenerationEvent::Finished {
            choice: self.choice,
            text,
            finish,
            capture: Box::new(capture),
        });
    }

    /// Tells the reply. It has room for everything an answer can say; if it is gone, nobody needs to know.
    pub(crate) fn tell(&self, event: GenerationEvent) {
        let _gone = self.events.try_send(event);
    }
}

/// A schema's tokens without the banned ones.
struct Filter<'a> {
    mask: Option<&'a Mask>,
    banned: &'a [u32],
}

impl Filter<'_> {
    fn is_open(&self) -> bool {
        self.mask.is_none() && self.banned.is_empty()
    }
}

impl Allowed for Filter<'_> {
    fn allows(&self, token: u32) -> bool {
        self.mask.is_none_or(|mask| mask.allows(token)) && !self.banned.contains(&token)
    }
}
