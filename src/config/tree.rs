//! A configuration as it was written: a tree whose every node knows where it stands.

use std::borrow::Cow;

use serde_json::Value as Json;

use super::Source;

/// One node.
#[derive(Clone, PartialEq)]
pub struct Node {
    pub(super) value: Value,
    pub(super) source: Source,
}

/// What a node holds.
#[derive(Clone, PartialEq)]
pub(super) enum Value {
    Null,
    Bool(bool),
    Int(i64),
    Float(f64),
    /// Text in quotes.
    Text(String),
    /// Text whose type the schema decides: an unquoted YAML word, a flag's value, a variable.
    Word(String),
    List(Vec<Node>),
    Map(Vec<(Key, Node)>),
}

/// A key of a map.
#[derive(Clone, PartialEq)]
pub(super) struct Key {
    pub(super) text: String,
    pub(super) source: Source,
}

/// Hyphen and underscore are one; the hyphen is the canonical spelling.
pub(super) fn canonical(key: &str) -> Cow<'_, str> {
    if key.contains('_') {
        Cow::Owned(key.replace('_', "-"))
    } else {
        Cow::Borrowed(key)
    }
}

impl Node {
    pub(super) fn new(value: Value, source: Source) -> Self {
        Self { value, source }
    }

    /// A table without entries.
    pub fn empty_map(source: Source) -> Self {
        Self::new(Value::Map(Vec::new()), source)
    }

    /// Where it stands.
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// The value as JSON; an unquoted word becomes a null, a boolean or a number where it is one in JSON's spelling.
    pub fn to_json(&self) -> Json {
        match &self.value {
            Value::Null => Json::Null,
            Value::Bool(value) => (*value).into(),
            Value::Int(value) => (*value).into(),
            Value::Float(value) => (*value).into(),
            Value::Text(text) => text.as_str().into(),
            Value::Word(word) => match serde_json::from_str::<Json>(word) {
                Ok(json @ (Json::Null | Json::Bool(_) | Json::Number(_))) => json,
                _ => word.as_str().into(),
            },
            Value::List(items) => items.iter().map(Self::to_json).collect(),
            Value::Map(entries) => entries
                .iter()
                .map(|(key, node)| (key.text.clone(), node.to_json()))
                .collect(),
        }
    }

    /// A value as a node with one source; the keys of an object have it too.
    pub fn from_json(json: &Json, source: &Source) -> Self {
        let value = match json {
            Json::Null => Value::Null,
            Json::Bool(value) => Value::Bool(*value),
            Json::Number(number) => match number.as_i64() {
                Some(number) => Value::Int(number),
                None => Value::Float(number.as_f64().unwrap_or(0.0)),
            },
            Json::String(text) => Value::Text(text.clone()),
            Json::Array(items) => Value::List(items.iter().map(|item| Self::from_json(item, source)).collect()),
            Json::Object(entries) => Value::Map(
                entries
                    .iter()
                    .map(|(text, value)| {
                        let key = Key {
                            text: text.clone(),
                            source: source.clone(),
                        };
                        (key, Self::from_json(value, source))
                    })
                    .collect(),
            ),
        };
        Self::new(value, source.clone())
    }

    /// What a message may call it; never the value itself.
    pub fn kind(&self) -> &'static str {
        match &self.value {
            Value::Null => "null",
            Value::Bool(_) => "a boolean",
            Value::Int(_) => "an integer",
            Value::Float(_) => "a number",
            Value::Text(_) => "text",
            Value::Word(word) => match serde_json::from_str::<Json>(word) {
                Ok(Json::Null) => "null",
                Ok(Json::Bool(_)) => "a boolean",
                Ok(Json::Number(number)) if number.is_f64() => "a number",
                Ok(Json::Number(_)) => "an integer",
                _ if word.is_empty() => "nothing",
                _ => "text",
            },
            Value::List(_) => "a list",
            Value::Map(_) => "a table",
        }
    }

    /// Whether it is null, which is no value at all.
    pub fn is_null(&self) -> bool {
        match &self.value {
            Value::Null => true,
            Value::Word(word) => word == "null" || word == "~",
            _ => false,
        }
    }

    /// Whether it, or anything in it, refers to a variable or to another setting.
    pub fn refers(&self) -> bool {
        match &self.value {
            Value::Text(text) | Value::Word(text) => text.contains("${"),
            Value::List(items) => items.iter().any(Self::refers),
            Value::Map(entries) => entries.iter().any(|(_, node)| node.refers()),
            _ => false,
        }
    }

    pub(super) fn is_empty_word(&self) -> bool {
        matches!(&self.value, Value::Word(word) if word.is_empty())
    }

    /// The entries of a map.
    pub(super) fn entries(&self) -> Option<&[(Key, Self)]> {
        match &self.value {
            Value::Map(entries) => Some(entries),
            _ => None,
        }
    }

    /// The entries of a map with their keys as written.
    pub fn children(&self) -> impl Iterator<Item = (&str, &Self)> {
        self.entries()
            .unwrap_or_default()
            .iter()
            .map(|(key, node)| (key.text.as_str(), node))
    }

    /// Where the value at a path (`a.b[1].c`) stands, or the nearest table around it.
    pub fn source_at(&self, path: &str) -> &Source {
        let mut here = self;
        for part in path.split('.') {
            let (key, index) = part.split_once('[').map_or((part, None), |(key, rest)| {
                (key, rest.trim_end_matches(']').parse::<usize>().ok())
            });
            let Some(below) = here.get(key) else { break };
            here = match (index, &below.value) {
                (Some(at), Value::List(items)) => items.get(at).unwrap_or(below),
                _ => below,
            };
        }
        &here.source
    }

    /// Lays another node over this one: tables are merged, everything else is replaced.
    pub fn merge(&mut self, over: Self) {
        match (&mut self.value, over.value) {
            (Value::Map(below), Value::Map(above)) => {
                for (key, node) in above {
                    let wanted = canonical(&key.text);
                    match below.iter_mut().find(|(key, _)| canonical(&key.text) == wanted) {
                        Some((_, under)) => under.merge(node),
                        None => below.push((key, node)),
                    }
                }
            }
            (value, above) => {
                *value = above;
                self.source = over.source;
            }
        }
    }

    /// The node below, whichever way its key is spelled.
    pub(super) fn get(&self, key: &str) -> Option<&Self> {
        let wanted = canonical(key);
        self.entries()?
            .iter()
            .find(|(key, _)| canonical(&key.text) == wanted)
            .map(|(_, node)| node)
    }

    /// The node at a dotted path.
    pub fn at(&self, path: &str) -> Option<&Self> {
        path.split('.').try_fold(self, |node, key| node.get(key))
    }

    /// Removes the node at a dotted path, with its key as written.
    pub(super) fn take(&mut self, path: &str) -> Option<(Key, Self)> {
        let (first, rest) = path
            .split_once('.')
            .map_or((path, None), |(first, rest)| (first, Some(rest)));
        let wanted = canonical(first);
        let Value::Map(entries) = &mut self.value else {
            return None;
        };
        let at = entries.iter().position(|(key, _)| canonical(&key.text) == wanted)?;
        match rest {
            None => Some(entries.remove(at)),
            Some(rest) => entries[at].1.take(rest),
        }
    }

    /// Removes the node at a dotted path.
    pub fn remove(&mut self, path: &str) -> Option<Self> {
        self.take(path).map(|(_, node)| node)
    }

    /// Puts a node at a dotted path, making maps on the way. A scalar or list in the way is returned as an error: its
    /// path and what it is.
    pub fn put(&mut self, path: &str, node: Self) -> Result<(), (String, &'static str)> {
        let mut here = self;
        let mut walked = String::new();
        let mut keys = path.split('.').peekable();
        while let Some(text) = keys.next() {
            let kind = here.kind();
            let Value::Map(entries) = &mut here.value else {
                return Err((walked, kind));
            };
            if !walked.is_empty() {
                walked.push('.');
            }
            walked.push_str(text);
            let wanted = canonical(text);
            let at = entries.iter().position(|(key, _)| canonical(&key.text) == wanted);
            let key = |source: &Source| Key {
                text: text.to_owned(),
                source: source.clone(),
            };
            if keys.peek().is_none() {
                match at {
                    Some(at) => entries[at].1 = node,
                    None => entries.push((key(&node.source), node)),
                }
                return Ok(());
            }
            let at = at.unwrap_or_else(|| {
                entries.push((key(&node.source), Self::empty_map(node.source.clone())));
                entries.len() - 1
            });
            here = &mut entries[at].1;
        }
        Ok(())
    }

    /// Calls `visit` for every leaf (a scalar or an empty container) with its dotted path.
    pub(super) fn leaves<'a>(&'a self, path: &str, visit: &mut dyn FnMut(&str, &'a Self)) {
        let below = |key: &str| {
            if path.is_empty() {
                key.to_owned()
            } else {
                format!("{path}.{key}")
            }
        };
        match &self.value {
            Value::Map(entries) if !entries.is_empty() => {
                for (key, node) in entries {
                    node.leaves(&below(&key.text), visit);
                }
            }
            Value::List(items) if !items.is_empty() => {
                for (at, node) in items.iter().enumerate() {
                    node.leaves(&format!("{path}[{at}]"), visit);
                }
            }
            _ => visit(path, self),
        }
    }
}

/// Never the value: a tree is printed only by mistake, and it holds secrets.
impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Node({} from {})", self.kind(), self.source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(text: &str) -> Node {
        Node::new(Value::Word(text.into()), Source::Default)
    }

    #[test]
    fn a_path_is_found_in_either_spelling_and_never_through_a_scalar() {
        let mut root = Node::empty_map(Source::Default);
        root.put("reef.run-dir", word("x")).unwrap();
        assert!(root.at("reef.run_dir").is_some());
        let (through, kind) = root.put("reef.run_dir.deeper", word("y")).unwrap_err();
        assert_eq!((through.as_str(), kind), ("reef.run_dir", "text"));
        assert!(root.take("reef.run_dir").is_some());
        assert!(root.at("reef.run-dir").is_none());
    }

    #[test]
    fn words_become_json_only_where_json_spells_them_so() {
        for (text, kind) in [
            ("null", "null"),
            ("true", "a boolean"),
            ("7", "an integer"),
            ("1.5", "a number"),
            ("00123", "text"),
            ("yes", "text"),
        ] {
            assert_eq!(word(text).kind(), kind, "{text}");
        }
        assert_eq!(word("00123").to_json(), "00123");
    }

    #[test]
    fn a_tree_never_shows_its_values() {
        let mut root = Node::empty_map(Source::Default);
        root.put("reef.token", word("hunter2")).unwrap();
        assert!(!format!("{root:?} {:?}", root.at("reef.token")).contains("hunter2"));
    }
}
