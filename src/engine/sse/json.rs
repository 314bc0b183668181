//! Reading of loosely typed JSON: a field of the wrong kind is as good as absent.

use serde_json::Value;

/// A non-empty string.
pub(super) fn text<'a>(value: &'a Value, key: &str) -> Option<&'a str> {
    value.get(key)?.as_str().filter(|s| !s.is_empty())
}

/// A count. Providers send some as floats.
pub(super) fn count(value: &Value, key: &str) -> Option<u64> {
    let number = value.get(key)?;
    number
        .as_u64()
        .or_else(|| number.as_f64().filter(|f| *f >= 0.0 && f.is_finite()).map(|f| f as u64))
}

/// A list; nothing if it is not one.
pub(super) fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value.get(key).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// Sets what was not set before.
pub(super) fn set_once(slot: &mut Option<String>, value: Option<&str>) {
    if slot.is_none() {
        *slot = value.map(str::to_owned);
    }
}
