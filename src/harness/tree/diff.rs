//! What changed between two trees, entry by entry.

use serde::Serialize;
use serde_json::{Map, Value};
use similar::TextDiff;

use super::document::Tree;
use super::entry::Entry;

/// Unchanged lines shown around a change.
const AROUND: usize = 3;

/// What happened to an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Change {
    /// It is new.
    Created,
    /// Part of it changed.
    Updated,
    /// It is gone.
    Removed,
}

impl Change {
    /// The word shown.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Updated => "updated",
            Self::Removed => "removed",
        }
    }
}

/// One entry that differs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct EntryChange {
    /// Its id.
    pub id: String,
    /// Its kind.
    pub kind: &'static str,
    /// What happened.
    pub change: Change,
    /// The parts that differ: all of them for an entry that is new or gone.
    pub parts: Vec<PartChange>,
}

/// One part of an entry that differs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PartChange {
    /// Dotted path below the entry's config; `disabled`, or `order` for its place.
    pub path: String,
    /// What it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub old: Option<String>,
    /// What it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub new: Option<String>,
}

impl PartChange {
    /// The change in lines: a sign (`+`, `-`, space, or `@` between far parts) and the text.
    pub fn lines(&self) -> Vec<(char, String)> {
        let (old, new) = (self.old.as_deref().unwrap_or(""), self.new.as_deref().unwrap_or(""));
        let mut lines = Vec::new();
        let diff = TextDiff::from_lines(old, new);
        for (at, group) in diff.grouped_ops(AROUND).iter().enumerate() {
            if at > 0 {
                lines.push(('@', String::new()));
            }
            for op in group {
                for change in diff.iter_changes(op) {
                    let sign = match change.tag() {
                        similar::ChangeTag::Delete => '-',
                        similar::ChangeTag::Insert => '+',
                        similar::ChangeTag::Equal => ' ',
                    };
                    lines.push((sign, change.value().trim_end_matches(['\r', '\n']).to_owned()));
                }
            }
        }
        lines
    }
}

/// Every entry that differs, in the order of `new`, those that are gone last.
pub fn diff(old: &Tree, new: &Tree) -> Vec<EntryChange> {
    let mut changes = Vec::new();
    let common = |tree: &Tree, other: &Tree| -> Vec<String> {
        let kept = tree.entries.iter().filter(|entry| other.get(&entry.id).is_some());
        kept.map(|entry| entry.id.clone()).collect()
    };
    let moved = common(old, new) != common(new, old);
    for entry in &new.entries {
        match old.get(&entry.id) {
            None => changes.push(whole(entry, Change::Created)),
            Some(before) if before.kind() != entry.kind() => {
                changes.push(whole(before, Change::Removed));
                changes.push(whole(entry, Change::Created));
            }
            Some(before) => changes.extend(updated(before, entry)),
        }
    }
    for entry in &old.entries {
        if new.get(&entry.id).is_none() {
            changes.push(whole(entry, Change::Removed));
        }
    }
    if moved && changes.is_empty() {
        let order = |tree: &Tree| {
            let ids: Vec<&str> = tree.entries.iter().map(|entry| entry.id.as_str()).collect();
            Some(ids.join("\n"))
        };
        changes.push(EntryChange {
            id: "(order)".to_owned(),
            kind: "order",
            change: Change::Updated,
            parts: vec![PartChange {
                path: "order".to_owned(),
                old: order(old),
                new: order(new),
            }],
        });
    }
    changes
}

fn whole(entry: &Entry, change: Change) -> EntryChange {
    let mut parts = Vec::new();
    let empty = Value::Object(Map::new());
    let config = entry.body.to_readable();
    match change {
        Change::Removed => compare("", &config, &empty, &mut parts),
        Change::Created | Change::Updated => compare("", &empty, &config, &mut parts),
    }
    EntryChange {
        id: entry.id.clone(),
        kind: entry.kind().as_str(),
        change,
        parts,
    }
}

fn updated(old: &Entry, new: &Entry) -> Option<EntryChange> {
    let mut parts = Vec::new();
    compare("", &old.body.to_readable(), &new.body.to_readable(), &mut parts);
    if old.disabled != new.disabled {
        parts.push(PartChange {
            path: "disabled".to_owned(),
            old: Some(old.disabled.to_string()),
            new: Some(new.disabled.to_string()),
        });
    }
    (!parts.is_empty()).then(|| EntryChange {
        id: new.id.clone(),
        kind: new.kind().as_str(),
        change: Change::Updated,
        parts,
    })
}

fn compare(path: &str, old: &Value, new: &Value, parts: &mut Vec<PartChange>) {
    if old == new {
        return;
    }
    let none = Map::new();
    if let (Some(before), Some(after)) = (table(old, &none), table(new, &none)) {
        let keys = before
            .keys()
            .chain(after.keys().filter(|key| !before.contains_key(*key)));
        for key in keys {
            let below = if path.is_empty() {
                key.clone()
            } else {
                format!("{path}.{key}")
            };
            let get = |map: &Map<String, Value>| map.get(key).cloned().unwrap_or(Value::Null);
            compare(&below, &get(before), &get(after), parts);
        }
        return;
    }
    parts.push(PartChange {
        path: path.to_owned(),
        old: shown(old),
        new: shown(new),
    });
}

/// Tables are compared key by key, also with nothing at all.
fn table<'a>(value: &'a Value, none: &'a Map<String, Value>) -> Option<&'a Map<String, Value>> {
    match value {
        Value::Object(map) if !map.is_empty() => Some(map),
        Value::Object(_) | Value::Null => Some(none),
        _ => None,
    }
}

fn shown(value: &Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        other => Some(format!("{other:#}")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[allow(clippy::needless_pass_by_value, reason = "a test hands over what it just wrote")]
    fn tree(entries: Value) -> Tree {
        Tree::from_json(&entries).unwrap()
    }

    #[test]
    fn changes_are_told_by_entry_and_part() {
        let old = tree(json!([
            {"id": "a", "name": "rules", "config": {"text": "one\ntwo\nthree\n"}},
            {"id": "b", "name": "config", "config": {"data": {"x": 1, "y": {"z": true}}}},
            {"id": "c", "name": "rules", "config": {"text": "gone"}},
        ]));
        let new = tree(json!([
            {"id": "a", "name": "rules", "config": {"text": "one\n2\nthree\n"}},
            {"id": "b", "name": "config", "config": {"data": {"x": 2}}, "disabled": true},
            {"id": "d", "name": "agent_command", "config": {"name": "d", "text": "new"}},
        ]));
        let changes = diff(&old, &new);
        let said: Vec<(&str, &str)> = changes
            .iter()
            .map(|change| (change.id.as_str(), change.change.as_str()))
            .collect();
        assert_eq!(
            said,
            [("a", "updated"), ("b", "updated"), ("d", "created"), ("c", "removed")]
        );
        let lines: Vec<String> = changes[0].parts[0]
            .lines()
            .iter()
            .map(|(sign, text)| format!("{sign}{text}"))
            .collect();
        assert_eq!(lines, [" one", "-two", "+2", " three"]);
        let paths: Vec<&str> = changes[1].parts.iter().map(|part| part.path.as_str()).collect();
        assert_eq!(paths, ["data.x", "data.y.z", "disabled"]);
        assert_eq!(changes[2].parts.len(), 2);
        assert!(diff(&old, &old).is_empty());
    }

    #[test]
    fn another_order_is_a_change() {
        let rule = |id: &str| json!({"id": id, "name": "rules", "config": {"text": "x"}});
        let changes = diff(
            &tree(json!([rule("a"), rule("b")])),
            &tree(json!([rule("b"), rule("a")])),
        );
        assert_eq!(changes[0].kind, "order");
    }
}
