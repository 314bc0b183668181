//! Where the receipt goes in a finished event stream.

use bytes::{BufMut, Bytes, BytesMut};
use serde_json::{Value, json};

use crate::domain::{Dialect, RecordId};

/// Where the receipt goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// In the terminal event or, of a chat, before it.
    Terminal,
    /// In the chunk that says why a chat stopped: the first `event` bytes of what was held. If the stream is not
    /// `closed`, its closing event is added.
    InFinish { event: usize, closed: bool },
    /// In or before a closing event that is added, because the provider sent none.
    Closing,
}

/// `terminal` with the receipt: in a key at the end of the JSON of an event, or in a chunk of its own without choices.
/// `None` if there is no JSON object to add a key to.
pub(super) fn with_receipt(
    dialect: Dialect,
    place: Place,
    terminal: &[u8],
    identity: Option<&Value>,
    id: &RecordId,
) -> Option<Bytes> {
    let receipt = json!({"agent_record_id": id.as_str()});
    match place {
        Place::InFinish { event, closed } => {
            let (event, rest) = terminal.split_at_checked(event)?;
            let mut out = BytesMut::from(&with_key(event, &receipt)?[..]);
            out.put_slice(rest);
            if !closed {
                out.put_slice(closing(dialect));
            }
            Some(out.freeze())
        }
        Place::Terminal if dialect == Dialect::OpenaiChat => chunk_before(terminal, identity, receipt),
        Place::Terminal => with_key(terminal, &receipt),
        Place::Closing if dialect == Dialect::OpenaiChat => chunk_before(closing(dialect), identity, receipt),
        Place::Closing => with_key(closing(dialect), &receipt),
    }
}

/// The closing event of a dialect whose answers may be whole without it.
fn closing(dialect: Dialect) -> &'static [u8] {
    match dialect {
        Dialect::OpenaiChat => b"data: [DONE]\n\n",
        Dialect::Anthropic => b"event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
        Dialect::OpenaiResponses => b"",
    }
}

fn chunk_before(terminal: &[u8], identity: Option<&Value>, receipt: Value) -> Option<Bytes> {
    let mut chunk = identity.cloned().unwrap_or_else(|| json!({}));
    let fields = chunk.as_object_mut()?;
    fields
        .entry("object")
        .or_insert_with(|| Value::from("chat.completion.chunk"));
    fields.insert("choices".to_owned(), json!([]));
    fields.insert("reef".to_owned(), receipt);
    let chunk = chunk.to_string();
    let mut out = BytesMut::with_capacity(chunk.len() + terminal.len() + 8);
    out.put_slice(b"data: ");
    out.put_slice(chunk.as_bytes());
    out.put_slice(b"\n\n");
    out.put_slice(terminal);
    Some(out.freeze())
}

fn with_key(terminal: &[u8], receipt: &Value) -> Option<Bytes> {
    let close = memchr::memrchr(b'}', terminal)?;
    let before = terminal[..close].trim_ascii_end();
    let key = format!("{}\"reef\":{receipt}", if before.ends_with(b"{") { "" } else { "," });
    let mut out = BytesMut::with_capacity(terminal.len() + key.len());
    out.put_slice(&terminal[..close]);
    out.put_slice(key.as_bytes());
    out.put_slice(&terminal[close..]);
    Some(out.freeze())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id() -> RecordId {
        RecordId::new("r1").unwrap()
    }

    #[test]
    fn chat_gets_a_chunk_without_choices_before_the_end() {
        let identity = json!({"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m"});
        for (place, terminal) in [(Place::Terminal, &b"data: [DONE]\n\n"[..]), (Place::Closing, b"")] {
            let out = with_receipt(Dialect::OpenaiChat, place, terminal, Some(&identity), &id()).unwrap();
            assert_eq!(
                std::str::from_utf8(&out).unwrap(),
                "data: {\"id\":\"c1\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"m\",\"choices\":[],\
                 \"reef\":{\"agent_record_id\":\"r1\"}}\n\ndata: [DONE]\n\n"
            );
        }
    }

    #[test]
    fn the_finish_chunk_takes_the_receipt_and_a_missing_end_is_added() {
        let event = "data: {\"choices\":[{\"finish_reason\":\"stop\"}]}\n\n";
        let after = "data: {\"usage\":{}}\n\n";
        let with = "data: {\"choices\":[{\"finish_reason\":\"stop\"}],\"reef\":{\"agent_record_id\":\"r1\"}}\n\n";
        for (closed, end) in [(true, ""), (false, "data: [DONE]\n\n")] {
            let place = Place::InFinish {
                event: event.len(),
                closed,
            };
            let held = format!("{event}{after}");
            let out = with_receipt(Dialect::OpenaiChat, place, held.as_bytes(), None, &id()).unwrap();
            assert_eq!(std::str::from_utf8(&out).unwrap(), format!("{with}{after}{end}"));
        }
        let out = with_receipt(Dialect::Anthropic, Place::Closing, b"", None, &id()).unwrap();
        assert_eq!(
            std::str::from_utf8(&out).unwrap(),
            "event: message_stop\ndata: {\"type\":\"message_stop\",\"reef\":{\"agent_record_id\":\"r1\"}}\n\n"
        );
    }

    #[test]
    fn other_dialects_get_a_key_and_keep_every_other_byte() {
        for (terminal, expected) in [
            (
                "event: message_stop\r\ndata: {\"type\":\"message_stop\"}\r\n\r\n",
                "event: message_stop\r\ndata: {\"type\":\"message_stop\",\"reef\":{\"agent_record_id\":\"r1\"}}\r\n\r\n",
            ),
            ("data: { }\n\n", "data: { \"reef\":{\"agent_record_id\":\"r1\"}}\n\n"),
            (
                "data: {\"a\":{\"b\":1} }\n\n",
                "data: {\"a\":{\"b\":1} ,\"reef\":{\"agent_record_id\":\"r1\"}}\n\n",
            ),
        ] {
            let out = with_receipt(Dialect::Anthropic, Place::Terminal, terminal.as_bytes(), None, &id()).unwrap();
            assert_eq!(std::str::from_utf8(&out).unwrap(), expected);
        }
        assert_eq!(
            with_receipt(
                Dialect::Anthropic,
                Place::Terminal,
                b"event: message_stop\n\n",
                None,
                &id()
            ),
            None
        );
    }
}
