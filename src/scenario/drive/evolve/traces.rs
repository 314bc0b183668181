//! What went wrong, as a proposer reads it.

use serde_json::Value;

use crate::domain::ScenarioName;
use crate::experience::{Attempt, Experience};
use crate::harness::evolve::{Past, Trace, clipped};
use crate::recipe::Recipe;
use crate::scenario::LoopError;
use crate::scenario::drive::samples;
use crate::scenario::processor::Sample;

/// Characters of one message.
const MESSAGE: usize = 3_000;
/// Characters of one conversation.
const CONVERSATION: usize = 20_000;

/// Reads the exchanges behind samples. Blocking.
pub(super) fn traces(
    experience: &Experience,
    scenario: &ScenarioName,
    recipe: &Recipe,
    batch: &[Sample],
) -> Result<Vec<Trace>, LoopError> {
    let mut traces = Vec::with_capacity(batch.len());
    for sample in batch {
        let Ok(loaded) = samples::load(experience, scenario, recipe, sample)? else {
            continue;
        };
        let Some(last) = loaded.turns.last() else { continue };
        let response = &last["response"];
        let mut answer = response["text"].as_str().unwrap_or("").to_owned();
        for call in response["tool_calls"].as_array().into_iter().flatten() {
            answer.push_str(&format!("\n[calls {} {}]", call["name"], call["arguments"]));
        }
        traces.push(Trace {
            record: last["id"].as_str().unwrap_or_default().to_owned(),
            score: sample.reward,
            feedback: sample.feedback.clone(),
            conversation: conversation(&last["request"]),
            answer: clipped(&answer, MESSAGE),
        });
    }
    Ok(traces)
}

/// The messages of a request in any dialect, a paragraph each.
fn conversation(request: &Value) -> String {
    let mut parts = Vec::new();
    for key in ["system", "instructions"] {
        if let Some(text) = text_of(&request[key]) {
            parts.push(format!("system: {}", clipped(&text, MESSAGE)));
        }
    }
    let messages = request["messages"].as_array().or_else(|| request["input"].as_array());
    match (messages, request["input"].as_str()) {
        (Some(messages), _) => {
            for message in messages {
                let role = message["role"]
                    .as_str()
                    .or_else(|| message["type"].as_str())
                    .unwrap_or("?");
                let mut text = text_of(&message["content"])
                    .or_else(|| text_of(&message["output"]))
                    .unwrap_or_default();
                for call in message["tool_calls"].as_array().into_iter().flatten() {
                    text.push_str(&format!("\n[calls {}]", call["function"]));
                }
                if let Some(arguments) = message["arguments"].as_str() {
                    text.push_str(&format!("[calls {} {arguments}]", message["name"]));
                }
                parts.push(format!("{role}: {}", clipped(&text, MESSAGE)));
            }
        }
        (None, Some(text)) => parts.push(format!("user: {}", clipped(text, MESSAGE))),
        (None, None) => {}
    }
    clipped(&parts.join("\n\n"), CONVERSATION)
}

fn text_of(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Array(parts) => {
            let texts: Vec<String> = parts
                .iter()
                .filter_map(|part| match part {
                    Value::String(text) => Some(text.clone()),
                    part => part["text"]
                        .as_str()
                        .map(str::to_owned)
                        .or_else(|| text_of(&part["content"]))
                        .or_else(|| {
                            part["name"]
                                .as_str()
                                .map(|name| format!("[calls {name} {}]", part["input"]))
                        }),
                })
                .collect();
            (!texts.is_empty()).then(|| texts.join("\n"))
        }
        _ => None,
    }
}

/// Earlier attempts as a proposer is told of them.
pub(super) fn past(attempts: Vec<Attempt>) -> Vec<Past> {
    attempts
        .into_iter()
        .filter(|attempt| attempt.state.is_settled() && attempt.mutations.is_some())
        .map(|attempt| Past {
            state: attempt.state.as_str().to_owned(),
            failing: attempt
                .notes
                .get("failing")
                .and_then(Value::as_array)
                .into_iter()
                .flatten()
                .filter_map(|task| task.as_str().map(str::to_owned))
                .collect(),
            mutations: attempt.mutations.unwrap_or_default(),
            reason: attempt.reason,
            outcome: attempt.outcome,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_conversation_is_read_in_every_dialect() {
        let chat = conversation(&json!({"messages": [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": [{"type": "text", "text": "add 2 and 2"}]},
            {"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "bash", "arguments": "{}"}}]},
            {"role": "tool", "content": "4"},
        ]}));
        for part in ["system: be brief", "user: add 2 and 2", "bash", "tool: 4"] {
            assert!(chat.contains(part), "{chat}");
        }
        let messages = conversation(&json!({"system": "s", "messages": [
            {"role": "assistant", "content": [{"type": "tool_use", "name": "Bash", "input": {"command": "ls"}}]},
            {"role": "user", "content": [{"type": "tool_result", "content": [{"type": "text", "text": "a.txt"}]}]},
        ]}));
        assert!(
            messages.contains("ls") && messages.contains("a.txt") && messages.contains("system: s"),
            "{messages}"
        );
        let responses = conversation(&json!({"instructions": "i", "input": [
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hello"}]},
            {"type": "function_call", "name": "shell", "arguments": "{\"c\":1}"},
            {"type": "function_call_output", "output": "done"},
        ]}));
        assert!(
            responses.contains("hello") && responses.contains("shell") && responses.contains("done"),
            "{responses}"
        );
    }
}
