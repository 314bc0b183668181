//! A model that writes small programs through an agent's shell: wrong ones, until the harness tells it to try them.

use serde_json::{Value, json};

use crate::common::upstream::{Do, Seen, answer, chunked};

#[path = "scripted.rs"]
mod scripted;
use scripted::{Asked, models, text_of};

/// The rule without which its programs are wrong.
pub const LESSON: &str = "Run every program on an example before you say that it is done.";

/// A program it is asked for: the wrong text and the right one. The last one it always knows.
const PROGRAMS: [(&str, &str, &str); 4] = [
    ("add.sh", "echo $(($1 + $2 + 1))", "echo $(($1 + $2))"),
    (
        "largest.sh",
        "echo \"$1\"",
        "printf '%s\\n' \"$@\" | sort -n | tail -n 1",
    ),
    ("lines.sh", "wc -c < \"$1\"", "awk 'END { print NR }' \"$1\""),
    ("hello.sh", "echo hello", "echo hello"),
];

#[derive(Clone, Default)]
pub struct Coder {
    /// What it was asked for changes of the harness with.
    pub asked: Asked,
}

impl Coder {
    pub fn script(self) -> impl Fn(&Seen, usize) -> Vec<Do> + Send + Sync + 'static {
        move |seen, _| {
            if let Some(models) = models(seen) {
                return models;
            }
            let body = seen.json();
            let messages = body["messages"].as_array().cloned().unwrap_or_default();
            let texts: Vec<String> = messages.iter().map(|message| text_of(&message["content"])).collect();
            let all = texts.join("\n");
            let message = if all.contains("You improve the harness") {
                self.asked.note(&all);
                let proposal = json!({
                    "reason": "the agent hands over programs that it never ran",
                    "mutations": [{"op": "create", "id": "try", "options": {"name": "rules", "config": {"text": LESSON}}}],
                });
                text(&format!("I think this helps.\n```json\n{proposal}\n```"))
            } else if messages.last().is_some_and(|message| message["role"] == "tool") {
                text("It is done.")
            } else {
                let wanted = texts.last().map_or("", String::as_str);
                match PROGRAMS.iter().find(|(name, ..)| wanted.contains(name)) {
                    Some((name, wrong, right)) => {
                        let program = if all.contains(LESSON) { right } else { wrong };
                        shell(&format!("cat > {name} <<'END'\n{program}\nEND"))
                    }
                    None => text("I do not know."),
                }
            };
            sent(&message, body["stream"] == true)
        }
    }
}

fn text(text: &str) -> Value {
    json!({"role": "assistant", "content": text})
}

/// A call of the agent's shell.
fn shell(command: &str) -> Value {
    let arguments = json!({"command": command}).to_string();
    json!({"role": "assistant", "content": null, "tool_calls": [
        {"index": 0, "id": "call_1", "type": "function", "function": {"name": "bash", "arguments": arguments}},
    ]})
}

fn sent(message: &Value, stream: bool) -> Vec<Do> {
    let usage = json!({"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13});
    let reason = if message["tool_calls"].is_array() {
        "tool_calls"
    } else {
        "stop"
    };
    if !stream {
        let body = json!({"id": "c", "object": "chat.completion", "created": 1, "model": "scripted", "usage": usage,
            "choices": [{"index": 0, "finish_reason": reason, "message": message}]});
        return answer(200, "application/json", body.to_string());
    }
    let chunk = |choices: Value, usage: Value| {
        let chunk = json!({"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "scripted",
            "choices": choices, "usage": usage});
        format!("data: {chunk}\n\n")
    };
    let events = [
        chunk(
            json!([{"index": 0, "delta": message, "finish_reason": null}]),
            Value::Null,
        ),
        chunk(json!([{"index": 0, "delta": {}, "finish_reason": reason}]), Value::Null),
        chunk(json!([]), usage),
        "data: [DONE]\n\n".to_owned(),
    ];
    let events: Vec<&str> = events.iter().map(String::as_str).collect();
    chunked(&events)
}
