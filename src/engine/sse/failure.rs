//! A provider's failure, whatever it looks like.
//!
//! A failure often comes with a success status: a stream has begun, or a proxy in between gave it one. Each provider
//! words it in its own way: `error` as an object or a text (OpenAI, Anthropic, Ollama, llama.cpp, LiteLLM, OpenRouter),
//! in a list (Gemini), `object: "error"` (vLLM, SGLang), `detail` (FastAPI), `code` and `message` (gateways, DashScope),
//! `errors` (Cloudflare), `base_resp` (MiniMax), `error_msg` (Qianfan), or a choice that ends by an error.

use serde_json::Value;

use super::json::{list, text};

/// As much of a provider's words as is kept.
const LONGEST: usize = 400;

/// Reasons to stop that no model has: the provider gave up.
const FAILED: [&str; 8] = [
    "error",
    "abort",
    "aborted",
    "cancelled",
    "canceled",
    "failed",
    "network_error",
    "insufficient_system_resource",
];

/// The provider's words, if `value` says that it failed. `event` is true for one event of a stream, which need not
/// hold any part of an answer.
pub(super) fn failure_of(value: &Value, event: bool) -> Option<String> {
    let value = match value {
        Value::Array(items) => items.first().filter(|first| first.get("error").is_some())?,
        Value::Object(_) => value,
        _ => return None,
    };
    let says = |key: &str| value.get(key).filter(|said| is_something(said));
    if let Some(error) = says("error") {
        let flag = error.is_boolean() || error.is_number();
        return Some(words(if flag { value } else { error }));
    }
    let is = |key: &str, word: &str| value.get(key).and_then(Value::as_str) == Some(word);
    if is("object", "error") || is("type", "error") {
        return Some(words(value));
    }
    if let Some(base) = value.get("base_resp")
        && is_code(base.get("status_code"))
    {
        return Some(words(base));
    }
    if let Some(choice) = list(value, "choices").first() {
        return failed_choice(choice);
    }
    // A server may tell in events of a type of its own how far it has come.
    let progress = event && text(value, "type").is_some_and(|kind| !kind.contains("error") && !kind.contains(':'));
    if progress || answers(value) {
        return None;
    }
    if let Some(said) = says("detail").or_else(|| says("errors")).or_else(|| says("fault")) {
        return Some(words(said));
    }
    let coded = [
        "code",
        "status",
        "statusCode",
        "status_code",
        "error_code",
        "errorCode",
        "http_code",
    ]
    .iter()
    .any(|key| is_code(value.get(*key)));
    let denied = value.get("success") == Some(&Value::Bool(false)) || value.get("ok") == Some(&Value::Bool(false));
    let worded = [
        "message",
        "Message",
        "msg",
        "error_msg",
        "errorMessage",
        "error_description",
        "title",
    ]
    .iter()
    .any(|key| says(key).is_some_and(Value::is_string));
    // An event with a message alone may tell how far a request has come.
    (denied || worded && (coded || !event)).then(|| words(value))
}

/// Whether the choice ended by an error of the provider.
fn failed_choice(choice: &Value) -> Option<String> {
    if let Some(error) = choice.get("error").filter(|said| is_something(said)) {
        return Some(words(error));
    }
    let reason = match choice.get("finish_reason")? {
        Value::String(reason) => reason,
        // SGLang's own form.
        Value::Object(reason) => reason.get("type")?.as_str()?,
        _ => return None,
    };
    FAILED.contains(&reason).then(|| {
        let said = choice.get("finish_reason").and_then(|reason| text(reason, "message"));
        said.map_or_else(|| format!("the choice ended with \"{reason}\""), short)
    })
}

/// Whether there is a part of an answer in it, of whatever dialect, beside which `message` or `code` mean no failure.
fn answers(value: &Value) -> bool {
    [
        "choices",
        "content",
        "output",
        "delta",
        "response",
        "item",
        "input_tokens",
        "content_block",
        "usage",
    ]
    .iter()
    .any(|key| value.get(*key).is_some_and(|part| !part.is_null()))
}

fn is_something(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => false,
        Value::Bool(true) => true,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.trim().is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
    }
}

/// Whether it is a code that says that something went wrong.
fn is_code(value: Option<&Value>) -> bool {
    match value {
        Some(Value::Number(number)) => !matches!(number.as_i64(), Some(0 | 200..=299)),
        Some(Value::String(word)) => {
            let word = word.trim().to_ascii_lowercase();
            let fine = [
                "",
                "0",
                "ok",
                "success",
                "succeeded",
                "completed",
                "done",
                "processing",
                "queued",
                "in_progress",
            ];
            !(fine.contains(&word.as_str()) || word.len() == 3 && word.starts_with('2'))
        }
        _ => false,
    }
}

/// The message in an error, wherever it stands.
pub(super) fn words(error: &Value) -> String {
    find(error, 3).map_or_else(|| short(&error.to_string()), short)
}

fn find(error: &Value, depth: usize) -> Option<&str> {
    let error = match error {
        Value::String(text) => return Some(text.trim()).filter(|text| !text.is_empty()),
        Value::Array(items) => return items.iter().find_map(|item| find(item, depth.checked_sub(1)?)),
        Value::Object(_) => error,
        _ => return None,
    };
    const MESSAGES: [&str; 11] = [
        "message",
        "Message",
        "msg",
        "status_msg",
        "error_msg",
        "errorMessage",
        "error_description",
        "faultstring",
        "title",
        "type",
        "code",
    ];
    ["error", "errors", "detail", "fault"]
        .iter()
        .find_map(|key| find(error.get(*key)?, depth.checked_sub(1)?))
        .or_else(|| MESSAGES.iter().find_map(|key| text(error, key)))
}

pub(super) fn short(text: &str) -> String {
    let mut short: String = text.chars().take(LONGEST).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_providers_way_to_say_it_is_understood() {
        for (said, want) in [
            (
                json!({"error": {"message": "no memory", "type": "server_error", "code": 500}}),
                "no memory",
            ),
            (
                json!({"error": {"object": "error", "message": "too long", "type": "BadRequestError"}}),
                "too long",
            ),
            (json!({"error": "model 'x' not found"}), "model 'x' not found"),
            (
                json!({"error": "too many tokens", "error_type": "validation"}),
                "too many tokens",
            ),
            (json!({"error": {"code": 503}}), "{\"code\":503}"),
            (
                json!({"error": {"type": "exceed_context_size_error", "n_ctx": 1}}),
                "exceed_context_size_error",
            ),
            (
                json!([{"error": {"code": 400, "message": "bad argument", "status": "INVALID_ARGUMENT"}}]),
                "bad argument",
            ),
            (json!({"error": true, "message": "gone"}), "gone"),
            (
                json!({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}),
                "Overloaded",
            ),
            (
                json!({"type": "error", "code": "429", "message": "slow down", "param": null}),
                "slow down",
            ),
            (
                json!({"object": "error", "message": "100 tokens at most", "param": null, "code": 400}),
                "100 tokens at most",
            ),
            (json!({"detail": "backend worker is gone"}), "backend worker is gone"),
            (
                json!({"detail": [{"loc": ["body"], "msg": "field required"}]}),
                "field required",
            ),
            (json!({"detail": {"error": {"message": "inner"}}}), "inner"),
            (
                json!({"success": false, "errors": [{"code": 7003, "message": "no route"}], "result": null}),
                "no route",
            ),
            (
                json!({"code": "InvalidApiKey", "message": "bad key", "request_id": "r"}),
                "bad key",
            ),
            (json!({"error_code": 336_003, "error_msg": "quota"}), "quota"),
            (
                json!({"base_resp": {"status_code": 1004, "status_msg": "login fail"}, "choices": null}),
                "login fail",
            ),
            (
                json!({"fault": {"faultstring": "policy", "detail": {"errorcode": "x"}}}),
                "policy",
            ),
            (
                json!({"type": "about:blank", "title": "Bad Gateway", "status": 502}),
                "Bad Gateway",
            ),
            (json!({"statusCode": 401, "message": "Unauthorized"}), "Unauthorized"),
            (
                json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "error",
                    "error": {"code": 502, "message": "provider returned error"}}]}),
                "provider returned error",
            ),
            (
                json!({"choices": [{"delta": {}, "finish_reason": "error"}]}),
                "the choice ended with \"error\"",
            ),
            (
                json!({"choices": [{"finish_reason": {"type": "abort", "message": "shutdown"}}]}),
                "shutdown",
            ),
        ] {
            for event in [true, false] {
                assert_eq!(failure_of(&said, event).as_deref(), Some(want), "{said}");
            }
        }
        assert!(failure_of(&json!({"message": "no route matched"}), false).is_some());
    }

    #[test]
    fn answers_and_their_beginnings_are_no_failures() {
        for said in [
            json!({"error": null, "choices": [{"delta": {"content": "error"}, "finish_reason": null}]}),
            json!({"error": {}, "choices": [{"message": {"content": ""}, "finish_reason": "stop"}]}),
            json!({"choices": [{"message": {"content": ""}, "finish_reason": "content_filter"}]}),
            json!({"choices": [], "usage": {}}),
            json!({"id": "c", "prompt_filter_results": []}),
            json!({"choices": [{"delta": {}}], "base_resp": {"status_code": 0, "status_msg": ""}}),
            json!({"type": "ping"}),
            json!({"type": "status", "detail": "searching", "code": 3, "message": "m"}),
            json!({"type": "message_start", "message": {"id": "m"}}),
            json!({"type": "message_delta", "delta": {"stop_reason": "end_turn"}}),
            json!({"type": "response.created", "response": {"status": "in_progress", "error": null}}),
            json!({"message": "searching documents", "status": "processing"}),
            json!({"usage": {"prompt_tokens": 1}, "code": 1, "message": "m"}),
            json!({"object": "response", "status": "completed", "error": null, "output": []}),
            json!("text"),
            json!([1]),
            json!(null),
        ] {
            assert_eq!(failure_of(&said, true), None, "{said}");
        }
        assert_eq!(failure_of(&json!({"message": "searching"}), true), None);
    }

    #[test]
    fn long_words_are_shortened() {
        let said = failure_of(&json!({"error": "é".repeat(1000)}), true).unwrap();
        assert_eq!(said.chars().count(), LONGEST + 1);
    }
}
