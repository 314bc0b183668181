//! Canonical JSON: two texts that mean the same give the same bytes, so that an honest retry is recognised whatever its
//! key order, spacing or way to write a number.
//!
//! Keys are sorted by their UTF-8 bytes; there is no white space; a number that is an integer below 2^64 is written as
//! one (`1.0`, `1e0` and `1` are equal, `-0` is `0`), any other in the shortest form that reads back exactly; strings
//! are escaped as `serde_json` does.

use serde_json::{Number, Value};
use sha2::{Digest, Sha256};

/// The canonical bytes of a value.
pub(super) fn bytes(value: &Value) -> Vec<u8> {
    let mut out = Vec::with_capacity(128);
    write(value, &mut out);
    out
}

fn write(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Null => out.extend_from_slice(b"null"),
        Value::Bool(true) => out.extend_from_slice(b"true"),
        Value::Bool(false) => out.extend_from_slice(b"false"),
        Value::Number(number) => write_number(number, out),
        Value::String(text) => write_text(text, out),
        Value::Array(items) => {
            out.push(b'[');
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    out.push(b',');
                }
                write(item, out);
            }
            out.push(b']');
        }
        Value::Object(map) => {
            let mut entries: Vec<(&String, &Value)> = map.iter().collect();
            entries.sort_unstable_by_key(|(key, _)| *key);
            out.push(b'{');
            for (i, (key, item)) in entries.into_iter().enumerate() {
                if i > 0 {
                    out.push(b',');
                }
                write_text(key, out);
                out.push(b':');
                write(item, out);
            }
            out.push(b'}');
        }
    }
}

fn write_text(text: &str, out: &mut Vec<u8>) {
    // Writing a string to memory cannot fail.
    let _infallible = serde_json::to_writer(out, text);
}

fn write_number(number: &Number, out: &mut Vec<u8>) {
    let text = match number.as_f64() {
        Some(float) if number.is_f64() && float.fract() == 0.0 => {
            if (0.0..18_446_744_073_709_551_616.0).contains(&float) {
                (float as u64).to_string()
            } else if (-9_223_372_036_854_775_808.0..0.0).contains(&float) {
                (float as i64).to_string()
            } else {
                number.to_string()
            }
        }
        _ => number.to_string(),
    };
    out.extend_from_slice(text.as_bytes());
}

/// A SHA-256 over fields, each with its length, so that no two lists of fields run together.
pub(super) struct FieldHash(Sha256);

impl FieldHash {
    pub(super) fn new(kind: &str) -> Self {
        Self(Sha256::new()).field(kind.as_bytes())
    }

    pub(super) fn field(mut self, bytes: &[u8]) -> Self {
        self.0.update((bytes.len() as u64).to_le_bytes());
        self.0.update(bytes);
        self
    }

    pub(super) fn finish(self) -> [u8; 32] {
        self.0.finalize().into()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn canonical(text: &str) -> String {
        String::from_utf8(bytes(&serde_json::from_str(text).unwrap())).unwrap()
    }

    #[test]
    fn equal_meaning_gives_equal_bytes() {
        let want = r#"{"a":[1,2.5,null],"b":{"x":"ä\n","y":100}}"#;
        for text in [
            want,
            r#"{"b":{"y":1e2,"x":"\u00e4\n"},"a":[1.0,2.50,null]}"#,
            " {\"b\" : {\"y\":100.0, \"x\":\"ä\\n\"},\n\"a\":[ 1 , 25e-1, null ] } ",
        ] {
            assert_eq!(canonical(text), want);
        }
        assert_eq!(canonical("-0.0"), "0");
        assert_eq!(canonical("-3.0"), "-3");
    }

    #[test]
    fn different_meaning_gives_different_bytes() {
        for (a, b) in [
            ("1", "\"1\""),
            ("1", "true"),
            ("0", "null"),
            ("9007199254740993", "9007199254740992"),
            ("18446744073709551615", "18446744073709551614"),
            ("0.1", "0.10000000000000002"),
            ("[1,2]", "[2,1]"),
            ("{}", "{\"a\":null}"),
        ] {
            assert_ne!(canonical(a), canonical(b), "{a} and {b}");
        }
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            prop::num::f64::NORMAL.prop_map(Value::from),
            ".*".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
                prop::collection::vec((".{0,4}", inner), 0..6)
                    .prop_map(|entries| Value::Object(entries.into_iter().collect())),
            ]
        })
    }

    fn reversed(value: &Value) -> Value {
        match value {
            Value::Object(map) => Value::Object(map.iter().rev().map(|(k, v)| (k.clone(), reversed(v))).collect()),
            Value::Array(items) => Value::Array(items.iter().map(reversed).collect()),
            other => other.clone(),
        }
    }

    proptest! {
        #[test]
        fn canonical_form_is_valid_stable_and_blind_to_key_order(value in any_json()) {
            let once = bytes(&value);
            let back: Value = serde_json::from_slice(&once).unwrap();
            prop_assert_eq!(&bytes(&back), &once);
            prop_assert_eq!(&bytes(&reversed(&value)), &once);
        }
    }

    #[test]
    fn fields_do_not_run_together() {
        let a = FieldHash::new("k").field(b"ab").field(b"c").finish();
        let b = FieldHash::new("k").field(b"a").field(b"bc").finish();
        assert_ne!(a, b);
        assert_eq!(bytes(&json!({"b": 1, "a": 2})), b"{\"a\":2,\"b\":1}");
    }
}
