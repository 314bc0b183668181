//! What the scripted models have in common: their list of models, and a note of what they were asked for changes with.

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use crate::common::upstream::{Do, Seen, answer};

/// Requests for changes of the harness, in order.
#[derive(Clone, Default)]
pub struct Asked(Arc<Mutex<Vec<String>>>);

impl Asked {
    /// What was asked until now.
    pub fn all(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }

    /// Notes a request, and gives how many came before it.
    pub fn note(&self, request: &str) -> usize {
        let mut asked = self.0.lock().unwrap();
        asked.push(request.to_owned());
        asked.len() - 1
    }
}

/// The answer to `GET /models`; `None` to any other request.
pub fn models(seen: &Seen) -> Option<Vec<Do>> {
    let models = json!({"object": "list", "data": [{"id": "scripted", "object": "model"}]});
    (seen.method == "GET").then(|| answer(200, "application/json", models.to_string()))
}

/// The text of a message's content, in one piece or in parts.
pub fn text_of(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts
            .iter()
            .filter_map(|part| part["text"].as_str())
            .collect::<Vec<_>>()
            .join("\n"),
        _ => String::new(),
    }
}
