//! Knowing a change again.

use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::harness::tree::Mutation;

/// SHA-256 of a change with its white space and the order of its keys left out: two proposals with one digest say the
/// same.
pub fn mutations_digest(mutations: &[Mutation]) -> String {
    let mut items: Vec<String> = mutations
        .iter()
        .map(|mutation| {
            let mut value = serde_json::to_value(mutation).unwrap_or_default();
            squeeze(&mut value);
            value.sort_all_objects();
            value.to_string()
        })
        .collect();
    // The order of changes to different entries means nothing.
    items.sort();
    hex::encode(Sha256::digest(items.join("\n")))
}

fn squeeze(value: &mut Value) {
    match value {
        Value::String(text) => *text = text.split_whitespace().collect::<Vec<_>>().join(" "),
        Value::Array(items) => items.iter_mut().for_each(squeeze),
        Value::Object(fields) => fields.values_mut().for_each(squeeze),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn spelling_does_not_hide_a_repetition() {
        let read = |value: Value| Mutation::list(&value).unwrap();
        let one = read(json!([
            {"op": "create", "id": "a", "options": {"name": "rules", "config": {"text": "Do  this.\n"}}},
            {"op": "remove", "id": "b"},
        ]));
        let two = read(json!([
            {"op": "remove", "id": "b"},
            {"op": "create", "id": "a", "options": {"config": {"text": "Do this."}, "name": "rules"}},
        ]));
        assert_eq!(mutations_digest(&one), mutations_digest(&two));
        let three = read(json!([{"op": "remove", "id": "b"}]));
        assert_ne!(mutations_digest(&one), mutations_digest(&three));
    }
}
