//! The few facts about a request body that routing needs, from one pass that checks the JSON and copies nothing.

use std::fmt;
use std::ops::Range;

use bytes::{BufMut, Bytes, BytesMut};
use serde::Deserialize;
use serde::de::{self, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::sys::json;

/// Where things are in a request body. The offsets are those of the body it was read from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestOutline {
    /// `"stream": true` at the top level.
    pub stream: bool,
    /// `"include_usage": true` in the top-level `stream_options`.
    pub include_usage: bool,
    /// The value of the top-level `model`, quotes included.
    pub model: Option<Range<usize>>,
    /// Just after the opening brace.
    inside: usize,
    empty: bool,
}

/// A body that is not a JSON object.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OutlineError {
    /// Not UTF-8, which JSON must be.
    #[error("the request body is not UTF-8 (first bad byte at offset {offset})")]
    NotUtf8 {
        /// Of the first bad byte.
        offset: usize,
    },
    /// Not JSON.
    #[error("the request body is not valid JSON: {reason}")]
    NotJson {
        /// What the parser says, with line and column.
        reason: String,
    },
    /// JSON, but not an object.
    #[error("the request body must be a JSON object")]
    NotObject,
}

impl RequestOutline {
    /// Reads `body`. Of a repeated key the last counts, as in most parsers.
    pub fn read(body: &[u8]) -> Result<Self, OutlineError> {
        let text = std::str::from_utf8(body).map_err(|error| OutlineError::NotUtf8 {
            offset: error.valid_up_to(),
        })?;
        let start = text.len() - text.trim_start_matches([' ', '\t', '\n', '\r']).len();
        let is_object = body.get(start) == Some(&b'{');
        let fields: Fields<'_> = serde_json::from_str(text).map_err(|error| {
            if is_object || !error.is_data() {
                OutlineError::NotJson {
                    reason: error.to_string(),
                }
            } else {
                OutlineError::NotObject
            }
        })?;
        let offset = |raw: &RawValue| {
            let at = raw.get().as_ptr() as usize - text.as_ptr() as usize;
            at..at + raw.get().len()
        };
        Ok(Self {
            stream: fields.stream.is_some_and(|raw| raw.get() == "true"),
            include_usage: fields.stream_options.is_some_and(|raw| {
                json::read_object(raw.get().as_bytes())
                    .is_some_and(|options| options.get("include_usage") == Some(&serde_json::Value::Bool(true)))
            }),
            model: fields.model.map(offset),
            inside: start + 1,
            empty: fields.empty,
        })
    }

    /// The model the client asked for, if it is a string.
    pub fn model_name(&self, body: &[u8]) -> Option<String> {
        match json::read(body.get(self.model.clone()?)?) {
            Ok(serde_json::Value::String(name)) => Some(name),
            _ => None,
        }
    }

    /// `body` with `model` as its model: only the bytes of the value change, or are added at the front.
    pub fn with_model(&self, body: &Bytes, model: &str) -> Bytes {
        let quoted = serde_json::Value::from(model).to_string();
        let mut out = BytesMut::with_capacity(body.len() + quoted.len() + 10);
        if let Some(range) = &self.model {
            if body[range.clone()] == *quoted.as_bytes() {
                return body.clone();
            }
            out.put_slice(&body[..range.start]);
            out.put_slice(quoted.as_bytes());
            out.put_slice(&body[range.end..]);
        } else {
            out.put_slice(&body[..self.inside]);
            out.put_slice(b"\"model\":");
            out.put_slice(quoted.as_bytes());
            if !self.empty {
                out.put_slice(b",");
            }
            out.put_slice(&body[self.inside..]);
        }
        out.freeze()
    }
}

struct Fields<'a> {
    stream: Option<&'a RawValue>,
    stream_options: Option<&'a RawValue>,
    model: Option<&'a RawValue>,
    empty: bool,
}

enum Key {
    Stream,
    StreamOptions,
    Model,
    Other,
}

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: de::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct KeyVisitor;
        impl Visitor<'_> for KeyVisitor {
            type Value = Key;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a key")
            }
            fn visit_bytes<E: de::Error>(self, key: &[u8]) -> Result<Key, E> {
                Ok(match key {
                    b"stream" => Key::Stream,
                    b"stream_options" => Key::StreamOptions,
                    b"model" => Key::Model,
                    _ => Key::Other,
                })
            }
        }
        // As bytes, because half a surrogate pair in a key is no text.
        deserializer.deserialize_bytes(KeyVisitor)
    }
}

impl<'de> Deserialize<'de> for Fields<'de> {
    fn deserialize<D: de::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct FieldsVisitor;
        impl<'de> Visitor<'de> for FieldsVisitor {
            type Value = Fields<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields<'de>, A::Error> {
                let mut fields = Fields {
                    stream: None,
                    stream_options: None,
                    model: None,
                    empty: true,
                };
                while let Some(key) = map.next_key::<Key>()? {
                    fields.empty = false;
                    match key {
                        Key::Stream => fields.stream = Some(map.next_value()?),
                        Key::StreamOptions => fields.stream_options = Some(map.next_value()?),
                        Key::Model => fields.model = Some(map.next_value()?),
                        Key::Other => {
                            map.next_value::<IgnoredAny>()?;
                        }
                    }
                }
                Ok(fields)
            }
        }
        deserializer.deserialize_map(FieldsVisitor)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn outline(body: &str) -> RequestOutline {
        RequestOutline::read(body.as_bytes()).unwrap()
    }

    #[test]
    fn facts_are_found_at_the_top_level_only() {
        let body = r#" {"messages":[{"model":"inner","stream":true}], "stream" : true ,"model" :"m\"1" }"#;
        let found = outline(body);
        assert!(found.stream);
        assert_eq!(found.model_name(body.as_bytes()).as_deref(), Some("m\"1"));
        assert!(!found.include_usage);
        assert!(outline(r#"{"stream_options":{"include_usage":true,"x":"\ud83d"}}"#).include_usage);
        for without in [
            r#"{"stream_options":{"include_usage":"true"}}"#,
            r#"{"stream_options":null}"#,
            r#"{"a":{"stream_options":{"include_usage":true}}}"#,
        ] {
            assert!(!outline(without).include_usage, "{without}");
        }
        for not_streaming in [
            "{}",
            r#"{"stream":false}"#,
            r#"{"stream":null}"#,
            r#"{"stream":"true"}"#,
            r#"{"a":{"stream":true}}"#,
        ] {
            assert!(!outline(not_streaming).stream, "{not_streaming}");
        }
    }

    #[test]
    fn odd_text_and_depth_are_not_for_the_outline_to_judge() {
        let deep = format!(
            r#"{{"stream":true,"\ud83d":"\udc1f\ud83d","n":1e999,"d":{}{}}}"#,
            "[".repeat(5000),
            "]".repeat(5000)
        );
        assert!(outline(&deep).stream);
        assert_eq!(
            outline(r#"{"model":"\ud83d"}"#)
                .model_name(br#"{"model":"\ud83d"}"#)
                .as_deref(),
            Some("\u{fffd}")
        );
    }

    #[test]
    fn what_is_not_an_object_is_refused_with_its_reason() {
        for (body, start) in [
            (&b""[..], "the request body is not valid JSON: EOF"),
            (b"{", "the request body is not valid JSON: EOF"),
            (b"{\"a\":1}x", "the request body is not valid JSON: trailing"),
            (b"[1]", "the request body must be a JSON object"),
            (b"\"x\"", "the request body must be a JSON object"),
            (
                b"{\"a\":\"\xff\"}",
                "the request body is not UTF-8 (first bad byte at offset 6)",
            ),
        ] {
            let error = RequestOutline::read(body).unwrap_err().to_string();
            assert!(error.starts_with(start), "{error}");
        }
    }

    #[test]
    fn a_model_is_put_in_place_and_nothing_else_moves() {
        for (body, expected) in [
            ("{}", r#"{"model":"new"}"#),
            (r#"{ "z":1, "a":2}"#, r#"{"model":"new", "z":1, "a":2}"#),
            (r#"{"z":1,"model": "old" ,"a":2}"#, r#"{"z":1,"model": "new" ,"a":2}"#),
            (r#"{"model":null}"#, r#"{"model":"new"}"#),
            (r#"{"model":"new"}"#, r#"{"model":"new"}"#),
        ] {
            let new = outline(body).with_model(&Bytes::from_static(body.as_bytes()), "new");
            assert_eq!(std::str::from_utf8(&new).unwrap(), expected);
        }
    }

    proptest! {
        #[test]
        fn any_object_keeps_its_other_fields(keys in proptest::collection::vec("[a-z\"é]{0,4}", 0..6), model in "\\PC{0,8}", pretty: bool) {
            let mut object = serde_json::Map::new();
            for (n, key) in keys.iter().enumerate() {
                object.insert(key.clone(), json!([n, {"model": n}, key]));
            }
            let text = if pretty { serde_json::to_string_pretty(&object) } else { serde_json::to_string(&object) }.unwrap();
            let new = outline(&text).with_model(&Bytes::from(text.clone()), &model);
            let mut parsed: serde_json::Map<String, Value> = serde_json::from_slice(&new).unwrap();
            prop_assert_eq!(parsed.remove("model"), Some(Value::from(model)));
            object.remove("model");
            prop_assert_eq!(Value::Object(parsed), Value::Object(object));
        }
    }
}
