//! Changes to a tree: create, update, remove.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::document::Tree;
use super::entry::{Entry, check_id, kind_of};
use super::refusal::{Refusal, Rule, shown};
use super::{MOST_ENTRIES, RESERVED_IDS};

/// What a mutation does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Op {
    /// Appends an entry.
    Create,
    /// Changes part of an entry.
    Update,
    /// Takes an entry away.
    Remove,
}

/// One change. The options of `create` are the entry without its id (`name`, `config`, `disabled`); those of `update`
/// are merged into the entry, a null taking a key away.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mutation {
    /// What it does.
    pub op: Op,
    /// The entry.
    pub id: String,
    /// What it needs.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub options: Map<String, Value>,
}

impl Mutation {
    /// Reads a list of mutations, as sent by a proposer.
    pub fn list(value: &Value) -> Result<Vec<Self>, Refusal> {
        let Some(items) = value.as_array() else {
            return Err(Refusal::new(Rule::Shape, "mutations must be a list"));
        };
        if items.is_empty() {
            return Err(Refusal::new(Rule::Shape, "mutations is empty"));
        }
        if items.len() > MOST_ENTRIES {
            return Err(Refusal::new(
                Rule::TooLarge,
                format!(
                    "there are {} mutations; at most {MOST_ENTRIES} are allowed",
                    items.len()
                ),
            ));
        }
        let read = |(at, item)| {
            Self::deserialize(item).map_err(|error| {
                let reason = format!("{error}; a mutation is {{\"op\": create|update|remove, \"id\", \"options\"}}");
                Refusal::new(Rule::Shape, reason).mutation(at)
            })
        };
        items.iter().enumerate().map(read).collect()
    }

    /// A tree with mutations applied, whether or not it would be admitted.
    pub fn applied(mutations: &[Self], tree: &Tree) -> Result<Tree, Refusal> {
        let mut next = tree.clone();
        for (at, mutation) in mutations.iter().enumerate() {
            mutation
                .apply(&mut next)
                .map_err(|refusal| refusal.entry(&mutation.id).mutation(at))?;
        }
        Ok(next)
    }

    /// Applies it to a tree.
    pub(super) fn apply(&self, tree: &mut Tree) -> Result<(), Refusal> {
        check_id(&self.id)?;
        if RESERVED_IDS.contains(&self.id.as_str()) {
            return Err(Refusal::new(
                Rule::ReservedId,
                "the program looks after this entry; choose another id",
            ));
        }
        let at = tree.entries.iter().position(|entry| entry.id == self.id);
        match (self.op, at) {
            (Op::Create, Some(_)) => Err(Refusal::new(
                Rule::DuplicateId,
                "there is an entry with this id; update it, or choose another id",
            )),
            (Op::Create, None) => {
                let mut fields = self.options.clone();
                if fields.contains_key("id") {
                    return Err(Refusal::new(Rule::Shape, "options must not hold id"));
                }
                fields.insert("id".to_owned(), Value::String(self.id.clone()));
                tree.entries.push(Entry::from_json(&Value::Object(fields))?);
                Ok(())
            }
            (Op::Update | Op::Remove, None) => Err(Refusal::new(
                Rule::MissingId,
                "there is no entry with this id; the release may have moved on since the proposal was made",
            )),
            (Op::Remove, Some(at)) => {
                if !self.options.is_empty() {
                    return Err(Refusal::new(Rule::Shape, "remove takes no options"));
                }
                tree.entries.remove(at);
                Ok(())
            }
            (Op::Update, Some(at)) => {
                tree.entries[at] = self.updated(&tree.entries[at])?;
                Ok(())
            }
        }
    }

    fn updated(&self, entry: &Entry) -> Result<Entry, Refusal> {
        if self.options.is_empty() {
            return Err(Refusal::new(
                Rule::Shape,
                "options is empty; there is nothing to update",
            ));
        }
        for key in self.options.keys() {
            if !["name", "kind", "config", "disabled"].contains(&key.as_str()) {
                return Err(Refusal::new(
                    Rule::Shape,
                    format!("options: \"{}\" cannot be updated; use config or disabled", shown(key)),
                ));
            }
        }
        if let Some(Value::String(word)) = self.options.get("name").or_else(|| self.options.get("kind"))
            && kind_of(word)? != entry.kind()
        {
            return Err(Refusal::new(
                Rule::KindChange,
                format!(
                    "the entry is of kind {}; remove it and create another to change that",
                    entry.kind().as_str()
                ),
            ));
        }
        let mut stored = entry.to_json();
        let mut patch = self.options.clone();
        patch.remove("name");
        patch.remove("kind");
        apply_patch(&mut stored, &Value::Object(patch));
        Entry::from_json(&stored)
    }
}

/// JSON merge patch: tables are merged, null takes a key away, everything else is replaced.
fn apply_patch(into: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *into = patch.clone();
        return;
    };
    if !into.is_object() {
        *into = Value::Object(Map::new());
    }
    let Value::Object(into) = into else { return };
    for (key, value) in patch {
        if value.is_null() {
            into.shift_remove(key);
        } else {
            apply_patch(into.entry(key.clone()).or_insert(Value::Null), value);
        }
    }
}
