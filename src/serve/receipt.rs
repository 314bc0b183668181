//! Where the receipt goes in a finished event stream.

use bytes::{BufMut, Bytes, BytesMut};
use serde_json::{Value, json};

use crate::domain::{Dialect, RecordId};

/// The terminal event with the receipt: for chat, before it, in a chunk of its own without choices; otherwise as one
/// more key at the end of its JSON. `None` if the event has no JSON object to add a key to.
pub(super) fn with_receipt(
    dialect: Dialect,
    terminal: &[u8],
    identity: Option<&Value>,
    id: &RecordId,
) -> Option<Bytes> {
    let receipt = json!({"agent_record_id": id.as_str()});
    if dialect == Dialect::OpenaiChat {
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
        return Some(out.freeze());
    }
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
        let out = with_receipt(Dialect::OpenaiChat, b"data: [DONE]\n\n", Some(&identity), &id()).unwrap();
        assert_eq!(
            std::str::from_utf8(&out).unwrap(),
            "data: {\"id\":\"c1\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"m\",\"choices\":[],\
             \"reef\":{\"agent_record_id\":\"r1\"}}\n\ndata: [DONE]\n\n"
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
            let out = with_receipt(Dialect::Anthropic, terminal.as_bytes(), None, &id()).unwrap();
            assert_eq!(std::str::from_utf8(&out).unwrap(), expected);
        }
        assert_eq!(
            with_receipt(Dialect::Anthropic, b"event: message_stop\n\n", None, &id()),
            None
        );
    }
}
