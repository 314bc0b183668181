//! The gateway, driven through the real program against a scripted upstream.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a failed test may panic, and then shows the service's log"
)]

mod common;

#[path = "gateway/api.rs"]
mod api;
#[path = "gateway/durability.rs"]
mod durability;
#[path = "gateway/errors.rs"]
mod errors;
#[path = "gateway/evaluation.rs"]
mod evaluation;
#[path = "gateway/failures.rs"]
mod failures;
#[path = "gateway/odd.rs"]
mod odd;
#[path = "gateway/passing.rs"]
mod passing;
#[path = "gateway/routes.rs"]
mod routes;
#[path = "gateway/streams.rs"]
mod streams;
#[path = "gateway/ways.rs"]
mod ways;

/// Whole bodies and streams of the same turn, in every dialect.
mod turns {
    pub const CHAT: &str = include_str!("../src/engine/sse/fixtures/chat.sse");
    pub const MESSAGES: &str = include_str!("../src/engine/sse/fixtures/messages.sse");
    pub const RESPONSES: &str = include_str!("../src/engine/sse/fixtures/responses.sse");
    pub const CHAT_BODY: &str = include_str!("../src/engine/sse/fixtures/chat.json");

    /// Path, stream and how its terminal event begins.
    pub const STREAMS: [(&str, &str, &str); 3] = [
        ("/v1/chat/completions", CHAT, "data: [DONE]"),
        ("/v1/messages", MESSAGES, "event: message_stop"),
        ("/v1/responses", RESPONSES, "event: response.completed"),
    ];

    /// The smallest answer to each kind of request.
    pub const SMALL_CHAT: &str = r#"{"choices":[{"message":{"content":"hi"},"finish_reason":"stop"}]}"#;
    pub const SMALL_RESPONSE: &str = r#"{"object":"response","status":"completed","output":[]}"#;

    pub const TEXT: &str = "Grüße 世界 🐟";

    /// Splits after each event.
    pub fn events(stream: &str) -> Vec<&str> {
        stream.split_inclusive("\n\n").collect()
    }

    /// The receipt in a stream, and the stream without it. Panics unless there is exactly one, in its place.
    pub fn take_receipt(path: &str, stream: &str) -> (String, String) {
        let start = stream
            .find("\"reef\":{\"agent_record_id\":\"")
            .unwrap_or_else(|| panic!("no receipt in {stream}"));
        assert_eq!(stream.matches("agent_record_id").count(), 1, "{stream}");
        let id_start = start + "\"reef\":{\"agent_record_id\":\"".len();
        let id_end = id_start + stream[id_start..].find('"').unwrap();
        let id = stream[id_start..id_end].to_owned();
        // A chat's receipt has a chunk of its own, or stands in the chunk that says why the model stopped.
        let own_chunk = stream[..start].ends_with("\"choices\":[],");
        let rest = if own_chunk {
            assert_eq!(path, "/v1/chat/completions");
            let chunk_start = stream[..start].rfind("data: ").unwrap();
            let chunk_end = start + stream[start..].find("\n\n").unwrap() + 2;
            let chunk: serde_json::Value = serde_json::from_str(stream[chunk_start + 6..chunk_end].trim()).unwrap();
            assert_eq!(chunk["choices"], serde_json::json!([]));
            assert_eq!(chunk["object"], "chat.completion.chunk");
            assert!(
                stream[chunk_end..].starts_with("data: [DONE]"),
                "{}",
                &stream[chunk_end..]
            );
            format!("{}{}", &stream[..chunk_start], &stream[chunk_end..])
        } else {
            format!("{}{}", &stream[..start - 1], &stream[id_end + 2..])
        };
        (id, rest)
    }
}
