//! A proposal made against an older release, brought onto the current one entry by entry.

use serde_json::{Map, Value};

use super::document::Tree;
use super::entry::Entry;
use super::refusal::Refusal;

/// Where two sides changed the same thing differently.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("entry \"{entry}\": {place}")]
pub struct MergeConflict {
    /// The entry.
    pub entry: String,
    /// What happened to which part of it.
    pub place: String,
}

/// What came of a merge.
pub type Merged = Result<Tree, Vec<MergeConflict>>;

/// Three-way merge: what `mine` changed since `base` is applied to `head`. The order is that of `head`; new entries
/// follow. The result still has to be admitted.
pub fn merge(base: &Tree, head: &Tree, mine: &Tree) -> Result<Merged, Refusal> {
    let mut conflicts = Vec::new();
    let mut entries = Vec::new();
    for entry in &head.entries {
        let (old, new) = (base.get(&entry.id), mine.get(&entry.id));
        match (old, new) {
            // Added on both sides, or kept by both.
            (_, Some(new)) => entries.extend(both(old, entry, new, &mut conflicts)?),
            // Added by the head alone.
            (None, None) => entries.push(entry.clone()),
            (Some(old), None) if same(old, entry) => {}
            (Some(_), None) => conflicts.push(conflict(entry, "one side removed it, the other changed it")),
        }
    }
    for entry in mine.entries.iter().filter(|entry| head.get(&entry.id).is_none()) {
        match base.get(&entry.id) {
            None => entries.push(entry.clone()),
            Some(old) if same(old, entry) => {}
            Some(_) => conflicts.push(conflict(entry, "one side removed it, the other changed it")),
        }
    }
    if !conflicts.is_empty() {
        return Ok(Err(conflicts));
    }
    let tree = Tree {
        adapter: head.adapter.clone(),
        entries,
    };
    tree.check()?;
    Ok(Ok(tree))
}

fn conflict(entry: &Entry, place: &str) -> MergeConflict {
    MergeConflict {
        entry: entry.id.clone(),
        place: place.to_owned(),
    }
}

fn same(a: &Entry, b: &Entry) -> bool {
    a.body == b.body && a.disabled == b.disabled
}

fn both(
    old: Option<&Entry>,
    head: &Entry,
    mine: &Entry,
    conflicts: &mut Vec<MergeConflict>,
) -> Result<Option<Entry>, Refusal> {
    if same(head, mine) || old.is_some_and(|old| same(old, mine)) {
        return Ok(Some(head.clone()));
    }
    if old.is_some_and(|old| same(old, head)) {
        return Ok(Some(mine.clone()));
    }
    if head.kind() != mine.kind() {
        conflicts.push(conflict(head, "both sides changed its kind"));
        return Ok(None);
    }
    let stripped = |entry: &Entry| {
        let mut value = entry.to_json();
        if let Some(fields) = value.as_object_mut() {
            fields.shift_remove("provenance");
        }
        value
    };
    let base = old.map(&stripped).unwrap_or(Value::Object(Map::new()));
    match fields("", &base, &stripped(head), &stripped(mine)) {
        Ok(value) => {
            let mut merged = Entry::from_json(&value)?;
            merged.provenance = mine.provenance.clone();
            Ok(Some(merged))
        }
        Err(place) => {
            conflicts.push(conflict(head, &format!("both sides changed {place}")));
            Ok(None)
        }
    }
}

fn fields(place: &str, base: &Value, head: &Value, mine: &Value) -> Result<Value, String> {
    if head == mine || base == mine {
        return Ok(head.clone());
    }
    if base == head {
        return Ok(mine.clone());
    }
    let (Value::Object(head), Value::Object(mine)) = (head, mine) else {
        return Err(if place.is_empty() { "it" } else { place }.to_owned());
    };
    let none = Map::new();
    let base = base.as_object().unwrap_or(&none);
    let mut merged = Map::new();
    let keys = head.keys().chain(mine.keys().filter(|key| !head.contains_key(*key)));
    for key in keys {
        let below = if place.is_empty() {
            key.clone()
        } else {
            format!("{place}.{key}")
        };
        match (base.get(key), head.get(key), mine.get(key)) {
            (None, Some(only), None) | (None, None, Some(only)) => {
                merged.insert(key.clone(), only.clone());
            }
            (old, Some(head), Some(mine)) => {
                let value = fields(&below, old.unwrap_or(&Value::Null), head, mine)?;
                merged.insert(key.clone(), value);
            }
            // Taken away on one side: gone, unless the other side changed it.
            (Some(old), Some(left), None) | (Some(old), None, Some(left)) if old == left => {}
            _ => return Err(below),
        }
    }
    Ok(Value::Object(merged))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[allow(clippy::needless_pass_by_value, reason = "a test hands over what it just wrote")]
    fn tree(entries: Value) -> Tree {
        Tree::from_json(&entries).unwrap()
    }

    fn rule(id: &str, text: &str) -> Value {
        json!({"id": id, "name": "rules", "config": {"text": text}})
    }

    #[test]
    fn changes_to_different_entries_and_fields_meet() {
        let config = |data: Value| json!({"id": "c", "name": "config", "config": {"data": data}});
        let base = tree(json!([rule("a", "1"), rule("b", "1"), config(json!({"x": 1, "y": 1}))]));
        let head = tree(json!([
            rule("a", "head"),
            rule("b", "1"),
            config(json!({"x": 2, "y": 1})),
            rule("h", "new")
        ]));
        let mine = tree(json!([
            rule("a", "1"),
            config(json!({"x": 1, "y": 2})),
            rule("m", "new")
        ]));
        let merged = merge(&base, &head, &mine).unwrap().unwrap();
        let expected = tree(json!([
            rule("a", "head"),
            config(json!({"x": 2, "y": 2})),
            rule("h", "new"),
            rule("m", "new")
        ]));
        assert_eq!(merged.entries_json(), expected.entries_json());
        // Nothing changed on one side: the other is the result.
        assert_eq!(merge(&base, &head, &base).unwrap().unwrap(), head);
        assert_eq!(merge(&base, &base, &mine).unwrap().unwrap(), mine);
        assert_eq!(merge(&base, &mine, &mine).unwrap().unwrap(), mine);
    }

    #[test]
    fn both_sides_changing_one_thing_is_a_conflict_that_names_it() {
        let base = tree(json!([rule("a", "1"), rule("b", "1")]));
        let head = tree(json!([rule("a", "head")]));
        let mine = tree(json!([rule("a", "mine"), rule("b", "mine")]));
        let conflicts = merge(&base, &head, &mine).unwrap().unwrap_err();
        let said: Vec<String> = conflicts.iter().map(ToString::to_string).collect();
        assert_eq!(
            said,
            [
                "entry \"a\": both sides changed config.text",
                "entry \"b\": one side removed it, the other changed it"
            ]
        );
    }
}
