//! Finds the receipt of an answer on its way through, without holding anything back.

use memchr::memmem;
use serde_json::Value;

use crate::domain::{RecordId, Route};
use crate::engine::sse::Scanner;

/// The longest event that is looked into. A receipt comes at the end of one, but no end is that far away.
const MAX_EVENT: usize = 16 * 1024 * 1024;

/// Whether an answer on this path carries a receipt worth a grade. Query strings and a prefix of the service's own do not
/// matter; counting tokens is no answer.
pub(super) fn graded_route(path: &str) -> Option<Route> {
    let path = path.split(['?', '#']).next().unwrap_or(path);
    [Route::ChatCompletions, Route::Responses, Route::Messages]
        .into_iter()
        .find(|route| path.trim_end_matches('/') == route.path())
}

/// Looks for the receipt in an event stream.
#[derive(Debug, Default)]
pub(super) struct StreamReceipt {
    scanner: Scanner,
    given_up: bool,
}

impl StreamReceipt {
    /// Reads the next bytes; gives the receipt once it has come.
    pub(super) fn read(&mut self, mut bytes: &[u8]) -> Option<RecordId> {
        let mut found = None;
        while !self.given_up && !bytes.is_empty() {
            let taken = self.scanner.advance(bytes);
            bytes = &bytes[taken..];
            if let Some(event) = self.scanner.event() {
                found = in_event(event.data).or(found);
            } else if self.scanner.event_len() > MAX_EVENT {
                self.given_up = true;
            }
        }
        found
    }

    /// The stream has ended; its last event may lack a blank line.
    pub(super) fn end(&mut self) -> Option<RecordId> {
        self.scanner.finish();
        self.scanner.event().and_then(|event| in_event(event.data))
    }
}

/// The receipt in one event: `reef.agent_record_id` at the top of its JSON, never in a text that a model wrote.
fn in_event(data: &[u8]) -> Option<RecordId> {
    memmem::find(data, b"agent_record_id")?;
    let value: Value = crate::sys::json::read(data).ok()?;
    let id = value.get("reef")?.get("agent_record_id")?.as_str()?;
    RecordId::new(id).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_parsed_and_not_compared_as_a_text() {
        for path in ["/v1/messages", "/v1/messages?beta=true", "/v1/messages/?a#b"] {
            assert_eq!(graded_route(path), Some(Route::Messages), "{path}");
        }
        for path in [
            "/v1/messages/count_tokens",
            "/v1/models",
            "/v1/messagesx",
            "/reef/report",
        ] {
            assert_eq!(graded_route(path), None, "{path}");
        }
    }

    #[test]
    fn every_dialect_gives_its_receipt_whatever_the_chunks() {
        let streams = [
            "data: {\"choices\":[{\"delta\":{\"content\":\"{\\\"reef\\\":{\\\"agent_record_id\\\":\\\"no\\\"}}\"}}]}\n\n\
             data: {\"choices\":[],\"reef\":{\"agent_record_id\":\"r1\"}}\n\ndata: [DONE]\n\n",
            "event: message_stop\r\ndata: {\"type\":\"message_stop\",\"reef\":{\"agent_record_id\":\"r1\"}}\r\n\r\n",
            ": keep-alive\n\nevent: response.completed\ndata: {\"response\":{},\"reef\":{\"agent_record_id\":\"r1\"}}\n",
        ];
        for stream in streams {
            for size in [1, 7, stream.len()] {
                let mut receipt = StreamReceipt::default();
                let mut found = None;
                for chunk in stream.as_bytes().chunks(size) {
                    found = receipt.read(chunk).or(found);
                }
                found = receipt.end().or(found);
                assert_eq!(found.unwrap().as_str(), "r1", "{stream} in {size}");
            }
        }
    }

    #[test]
    fn a_stream_without_a_receipt_gives_none() {
        let mut receipt = StreamReceipt::default();
        assert!(
            receipt
                .read(b"data: {\"agent_record_id\":\"x\"}\n\ndata: agent_record_id\n\n")
                .is_none()
        );
        assert!(receipt.end().is_none());
    }
}
