//! A model that answers "alpha" once it is told to, and knows one thing without being told; and that proposes changes of
//! the harness when it is asked for them.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::common::upstream::{Do, Seen, answer};

#[path = "scripted.rs"]
mod scripted;
use scripted::{Asked, models, text_of};

/// The rule without which the agent fails.
pub const LESSON: &str = "Answer every question about words with the single word alpha.";

#[derive(Clone)]
pub struct Scripted {
    raw: Option<String>,
    texts: Arc<Vec<String>>,
    /// What it was asked for changes with.
    pub asked: Asked,
}

impl Scripted {
    /// Proposes the lesson.
    pub fn good() -> Self {
        Self::saying(&[LESSON])
    }

    /// Proposes rules with these texts, one after another.
    pub fn saying(texts: &[&str]) -> Self {
        Self {
            raw: None,
            texts: Arc::new(texts.iter().map(|&text| text.to_owned()).collect()),
            asked: Asked::default(),
        }
    }

    /// Always says this when asked for a change.
    pub fn raw(text: &str) -> Self {
        Self {
            raw: Some(text.to_owned()),
            ..Self::saying(&[])
        }
    }

    pub fn script(self) -> impl Fn(&Seen, usize) -> Vec<Do> + Send + Sync + 'static {
        move |seen, _| {
            if let Some(models) = models(seen) {
                return models;
            }
            let body = seen.json();
            let messages = body["messages"].as_array().cloned().unwrap_or_default();
            let all: String = messages
                .iter()
                .map(|message| text_of(&message["content"]))
                .collect::<Vec<_>>()
                .join("\n");
            let text = if all.contains("You improve the harness") {
                self.propose(&all)
            } else {
                let last = messages
                    .last()
                    .map(|message| text_of(&message["content"]))
                    .unwrap_or_default();
                reply(&all, &last)
            };
            let stream = body["stream"] == true;
            said(&text, stream)
        }
    }

    fn propose(&self, all: &str) -> String {
        let n = self.asked.note(all);
        if let Some(raw) = &self.raw {
            return raw.clone();
        }
        let text = self.texts.get(n).or(self.texts.last()).cloned().unwrap_or_default();
        let proposal = json!({
            "reason": "the agent does not know what to say",
            "mutations": [{"op": "create", "id": "words", "options": {"name": "rules", "config": {"text": text}}}],
        });
        format!("I think this helps.\n```json\n{proposal}\n```")
    }
}

fn reply(all: &str, last: &str) -> String {
    if last.contains("already known") {
        return if all.contains("FORGET-THE-KNOWN") {
            "forgotten"
        } else {
            "known"
        }
        .to_owned();
    }
    if all.contains(LESSON) {
        "alpha"
    } else {
        "I do not know."
    }
    .to_owned()
}

fn said(text: &str, stream: bool) -> Vec<Do> {
    let usage = json!({"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13});
    if !stream {
        let body = json!({"id": "c", "object": "chat.completion", "created": 1, "model": "scripted", "usage": usage,
            "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}]});
        return answer(200, "application/json", body.to_string());
    }
    let chunk = |delta: Value, finish: Value| {
        let chunk = json!({"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "scripted",
            "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]});
        format!("data: {chunk}\n\n")
    };
    let last = json!({"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "scripted", "choices": [],
        "usage": usage});
    let pieces = [
        chunk(json!({"role": "assistant", "content": text}), Value::Null),
        chunk(json!({}), json!("stop")),
        format!("data: {last}\n\n"),
        "data: [DONE]\n\n".to_owned(),
    ];
    let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
    crate::common::upstream::chunked(&pieces)
}
