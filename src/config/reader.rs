//! Takes declared settings out of a tree, so that what is left is unknown.

use std::path::Path;

use serde_json::Value as Json;

use super::tree::{Node, Value, canonical};
use super::{Fault, Field, Kind, Setting, Source};

/// A group of settings under one dotted path. Declared with the `section!` macro.
pub trait Section: Sized {
    /// The dotted path.
    const PATH: &'static str;
    /// What it is about.
    const ABOUT: &'static [&'static str];
    /// Its settings.
    const FIELDS: &'static [Field];

    /// Reads every setting; `None` if one is wrong (the reader knows which).
    fn read(reader: &mut Reader<'_>) -> Option<Self>;
}

/// One setting as it came out.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// The dotted key in its canonical spelling.
    pub key: String,
    /// The value, masked if it is secret; null if it is unset.
    pub value: Json,
    /// Where it came from.
    pub source: Source,
}

/// Reads sections from a tree.
pub struct Reader<'a> {
    pub(super) root: Node,
    /// The file alone. What a flag or a variable overrides is held to the schema all the same.
    pub(super) file: Option<Node>,
    pub(super) prefix: String,
    directory: &'a Path,
    pub(super) faults: Vec<Fault>,
    pub(super) rows: Vec<Row>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(root: Node, directory: &'a Path) -> Self {
        Self {
            root,
            file: None,
            prefix: String::new(),
            directory,
            faults: Vec::new(),
            rows: Vec::new(),
        }
    }

    /// Reads a section and the settings in it.
    pub(super) fn section<S: Section>(&mut self) -> Option<S> {
        S::PATH.clone_into(&mut self.prefix);
        if let Some(node) = self.root.at(S::PATH)
            && node.entries().is_none()
        {
            // `reef:` with nothing below it is an empty section.
            if !node.is_null() {
                let fault = Fault::new(
                    node.source.clone(),
                    S::PATH,
                    format!("expected a table, found {}", node.kind()),
                );
                self.faults.push(fault);
            }
            self.root.take(S::PATH);
        }
        S::read(self)
    }

    /// Reads one setting. For the `section!` macro.
    pub fn field<T: Setting>(&mut self, field: &'static Field) -> Option<T> {
        let name = canonical(field.name);
        let key = if self.prefix.is_empty() {
            name.into_owned()
        } else {
            format!("{}.{name}", self.prefix)
        };
        let given = self.given(field, &key);
        self.overridden::<T>(field, &key, given.as_ref());
        let Some(node) = given else {
            return self.fallback(field, key);
        };
        if node.is_null() && field.optional {
            self.row::<T>(key, None, node.source);
            return T::absent();
        }
        match accepted::<T>(field, &key, &node, self.directory) {
            Ok(value) => {
                self.row(key, Some(&value), node.source);
                Some(value)
            }
            Err(fault) => {
                self.faults.push(*fault);
                None
            }
        }
    }

    /// A value of the file that something else overrides is a fault if it is one by itself. What refers to a variable
    /// may need it only where nothing overrides it.
    fn overridden<T: Setting>(&mut self, field: &'static Field, key: &str, used: Option<&Node>) {
        let Some((_, node)) = self.file.as_mut().and_then(|file| file.take(key)) else {
            return;
        };
        let overridden = used.is_some_and(|used| used.source != node.source);
        let absent = node.is_empty_word() || node.is_null() && field.optional;
        if !overridden || absent || node.refers() {
            return;
        }
        if let Err(fault) = accepted::<T>(field, key, &node, self.directory) {
            self.faults
                .push(fault.hint("what overrides it does not make it right: correct it, or take it out"));
        }
    }

    /// Command line, environment and file, which are one tree already.
    fn given(&mut self, field: &'static Field, key: &str) -> Option<Node> {
        let (_, node) = self.root.take(key)?;
        // A variable that is not set leaves an empty word: as if the key were not there.
        (!node.is_empty_word() || field.kind == Kind::Text && !field.optional).then_some(node)
    }

    fn fallback<T: Setting>(&mut self, field: &'static Field, key: String) -> Option<T> {
        if let Some(json) = field.default_json() {
            let node = Node::from_json(&json, &Source::Default);
            let value = T::from_node(&node, self.directory);
            if value.is_some() {
                self.row(key, value.as_ref(), Source::Default);
                return value;
            }
        }
        if let Some(absent) = T::absent() {
            self.row::<T>(key, None, Source::Default);
            return Some(absent);
        }
        let fault = Fault::new(Source::Default, key, format!("is required: give {}", field.expected()));
        self.faults.push(fault);
        None
    }

    fn row<T: Setting>(&mut self, key: String, value: Option<&T>, source: Source) {
        let value = value.map_or(Json::Null, T::show);
        self.rows.push(Row { key, value, source });
    }
}

/// The value of a node, within the bounds of its field.
fn accepted<T: Setting>(field: &Field, key: &str, node: &Node, directory: &Path) -> Result<T, Box<Fault>> {
    if node.is_null() {
        let problem = format!("null is not allowed, expected {}", field.expected());
        let fault = Fault::new(node.source.clone(), key, problem);
        return Err(Box::new(fault.hint("leave the key out to get the default")));
    }
    let value = T::from_node(node, directory).ok_or_else(|| Box::new(wrong_type(field, key.to_owned(), node)))?;
    match value.number() {
        _ if value.unfit().is_some() => {
            let problem = value.unfit().unwrap_or_default();
            Err(Box::new(Fault::new(node.source.clone(), key, problem)))
        }
        Some(number) if field.min.is_some_and(|min| number < min) || field.max.is_some_and(|max| number > max) => {
            let problem = format!("expected {}, found another number", field.expected());
            Err(Box::new(Fault::new(node.source.clone(), key, problem)))
        }
        _ => Ok(value),
    }
}

fn wrong_type(field: &Field, key: String, node: &Node) -> Fault {
    let bare_switch = matches!((&node.value, &node.source), (Value::Bool(_), Source::CommandLine(_)));
    let found = match field.kind {
        // "expected one of a, b, found text" would puzzle.
        Kind::Choice(_) | Kind::Size | Kind::Url | Kind::Integer { .. }
            if matches!(node.kind(), "text" | "an integer") =>
        {
            "found something else".to_owned()
        }
        _ if bare_switch => "found no value".to_owned(),
        _ => format!("found {}", node.kind()),
    };
    Fault::new(
        node.source.clone(),
        key,
        format!("expected {}, {found}", field.expected()),
    )
}
