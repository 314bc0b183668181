//! What a file of a tree or a release holds: text, which is screened, compared and shown, or bytes that are no text.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

/// The content of one file. In JSON a text, or `{"encoding": "base64", "data": "…"}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Wire", into = "Wire")]
pub enum Content {
    /// UTF-8 without NUL characters.
    Text(String),
    /// Anything else.
    Binary(Vec<u8>),
}

impl Content {
    /// Text wherever the bytes are text, so that no text passes for something that nobody reads.
    pub fn from_bytes(bytes: Vec<u8>) -> Self {
        match String::from_utf8(bytes) {
            Ok(text) if !text.contains('\0') => Self::Text(text),
            Ok(text) => Self::Binary(text.into_bytes()),
            Err(error) => Self::Binary(error.into_bytes()),
        }
    }

    /// The bytes written in base64.
    pub fn from_base64(data: &str) -> Result<Self, String> {
        let bytes = BASE64
            .decode(data)
            .map_err(|error| format!("data is not base64: {error}"))?;
        Ok(Self::from_bytes(bytes))
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Text(text) => text.as_bytes(),
            Self::Binary(bytes) => bytes,
        }
    }

    /// Its text, if it is one.
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            Self::Binary(_) => None,
        }
    }

    /// Whether it is a script, which is executable: nothing else is.
    pub fn is_script(&self) -> bool {
        self.text().is_some_and(|text| text.starts_with("#!"))
    }

    /// Its bytes in base64.
    pub fn to_base64(&self) -> String {
        BASE64.encode(self.as_bytes())
    }
}

impl From<String> for Content {
    fn from(text: String) -> Self {
        Self::from_bytes(text.into_bytes())
    }
}

impl From<&str> for Content {
    fn from(text: &str) -> Self {
        Self::from(text.to_owned())
    }
}

#[derive(Serialize, Deserialize)]
#[serde(
    untagged,
    expecting = "a file is a text, or {\"encoding\": \"base64\", \"data\": \"…\"}"
)]
enum Wire {
    Text(String),
    Encoded(Encoded),
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Encoded {
    encoding: Encoding,
    data: String,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Encoding {
    Base64,
}

impl TryFrom<Wire> for Content {
    type Error = String;

    fn try_from(wire: Wire) -> Result<Self, String> {
        match wire {
            Wire::Text(text) => Ok(Self::Text(text)),
            Wire::Encoded(encoded) => Self::from_base64(&encoded.data),
        }
    }
}

impl From<Content> for Wire {
    fn from(content: Content) -> Self {
        match content {
            Content::Text(text) => Self::Text(text),
            Content::Binary(_) => Self::Encoded(Encoded {
                encoding: Encoding::Base64,
                data: content.to_base64(),
            }),
        }
    }
}

/// The value as people and models see it: what is no text as its size and the beginning of its SHA-256.
pub fn readable(value: &Value) -> Value {
    match value {
        Value::Array(items) => items.iter().map(readable).collect(),
        Value::Object(fields) => match encoded(fields) {
            Some(bytes) => Value::String(named(&bytes)),
            None => fields
                .iter()
                .map(|(key, value)| (key.clone(), readable(value)))
                .collect(),
        },
        other => other.clone(),
    }
}

fn encoded(fields: &Map<String, Value>) -> Option<Vec<u8>> {
    let (Some(Value::String(encoding)), Some(Value::String(data)), 2) =
        (fields.get("encoding"), fields.get("data"), fields.len())
    else {
        return None;
    };
    (encoding == "base64").then(|| BASE64.decode(data).ok()).flatten()
}

fn named(bytes: &[u8]) -> String {
    let sum = hex::encode(Sha256::digest(bytes));
    format!(
        "binary, {} bytes, SHA-256 {}…",
        bytes.len(),
        sum.get(..16).unwrap_or(&sum)
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn bytes_come_back_as_they_were_and_text_is_never_hidden() {
        for bytes in [
            &b"\x89PNG\r\n\x1a\n\0\0"[..],
            b"\xff\xfe",
            b"a\0b",
            b"plain\n",
            "ü".as_bytes(),
            b"",
        ] {
            let content = Content::from_bytes(bytes.to_vec());
            let stored = serde_json::to_value(&content).unwrap();
            let read: Content = serde_json::from_value(stored.clone()).unwrap();
            assert_eq!((read.as_bytes(), &read), (bytes, &content), "{stored}");
        }
        let hidden = json!({"encoding": "base64", "data": BASE64.encode("read me")});
        let read: Content = serde_json::from_value(hidden).unwrap();
        assert_eq!(read.text(), Some("read me"));
        assert!(Content::from("#!/bin/sh\n").is_script());
        assert!(!Content::from_bytes(b"#!/bin/sh\n\xff".to_vec()).is_script());
    }

    #[test]
    fn what_is_no_content_says_what_one_is() {
        let fault = |value: Value| serde_json::from_value::<Content>(value).unwrap_err().to_string();
        for bad in [
            json!(1),
            json!({"encoding": "hex", "data": "00"}),
            json!({"encoding": "base64", "data": "AA==", "mode": 1}),
        ] {
            let text = fault(bad);
            assert!(
                text.contains("a file is a text, or {\"encoding\": \"base64\""),
                "{text}"
            );
        }
        let text = fault(json!({"encoding": "base64", "data": "not base64"}));
        assert!(text.contains("data is not base64"), "{text}");
    }

    #[test]
    fn people_see_a_size_instead_of_letters_that_say_nothing() {
        let entry = json!({"files": {"a.md": "text", "a.png": Content::from_bytes(vec![0, 159, 1])}, "n": [1]});
        let shown = readable(&entry);
        let said = shown["files"]["a.png"].as_str().unwrap();
        assert!(said.starts_with("binary, 3 bytes, SHA-256 "), "{said}");
        assert_eq!((&shown["files"]["a.md"], &shown["n"]), (&json!("text"), &json!([1])));
    }
}
