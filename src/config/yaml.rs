//! YAML into a tree. Unquoted words keep their text: the schema decides what they are, so `00123` stays text where text
//! is wanted.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use saphyr_parser::{Event, Parser, ScalarStyle, Span, StrInput};

use super::tree::{Key, Node, Value};
use super::{Fault, Source};

/// More than any deployment needs; a small file with nested aliases must not fill the memory.
const MAX_NODES: usize = 100_000;
const MAX_DEPTH: usize = 64;

/// Where a text stands.
#[derive(Clone)]
pub(super) enum Origin<'a> {
    File(&'a Arc<Path>),
    /// One value typed elsewhere, a flag's say; all of it has this source.
    Value(&'a Source),
}

/// Reads one YAML document; `None` for an empty one.
pub(super) fn read(text: &str, origin: Origin<'_>) -> Result<Option<Node>, Vec<Fault>> {
    let mut reader = Reader {
        events: Parser::new_from_str(text),
        origin,
        anchors: HashMap::new(),
        nodes: 0,
    };
    reader.document().map_err(|fault| vec![*fault])
}

type Step<T> = Result<T, Box<Fault>>;

struct Reader<'a> {
    events: Parser<'a, StrInput<'a>>,
    origin: Origin<'a>,
    anchors: HashMap<usize, Node>,
    nodes: usize,
}

impl<'a> Reader<'a> {
    fn source(&self, line: usize) -> Source {
        match &self.origin {
            Origin::File(file) => Source::File {
                file: Arc::clone(file),
                line: line.max(1),
            },
            Origin::Value(source) => (*source).clone(),
        }
    }

    fn fault(&self, span: Span, key: &str, problem: impl Into<String>) -> Box<Fault> {
        Box::new(Fault::new(self.source(span.start.line()), key, problem))
    }

    fn next(&mut self) -> Step<(Event<'a>, Span)> {
        match self.events.next_event() {
            Some(Ok(next)) => Ok(next),
            Some(Err(error)) => Err(Box::new(Fault::new(
                self.source(error.marker().line()),
                "",
                format!("not valid YAML: {}", error.info()),
            ))),
            None => Ok((Event::StreamEnd, Span::default())),
        }
    }

    fn document(&mut self) -> Step<Option<Node>> {
        let mut root = None;
        loop {
            let (event, span) = self.next()?;
            match event {
                Event::StreamEnd => return Ok(root),
                Event::DocumentStart(_) if root.is_some() => {
                    return Err(self.fault(span, "", "the file holds more than one YAML document"));
                }
                Event::Nothing | Event::StreamStart | Event::DocumentStart(_) | Event::DocumentEnd => {}
                event => root = Some(self.node(event, span, 0, "")?),
            }
        }
    }

    fn node(&mut self, event: Event<'a>, span: Span, depth: usize, key: &str) -> Step<Node> {
        self.count(1, span)?;
        if depth > MAX_DEPTH {
            return Err(self.fault(span, key, format!("nested more than {MAX_DEPTH} deep")));
        }
        let source = self.source(span.start.line());
        let (anchor, value) = match event {
            Event::Scalar(text, style, anchor, tag) => {
                let plain = style == ScalarStyle::Plain && tag.is_none();
                let value = match (plain, text.as_ref()) {
                    (true, "" | "~" | "null" | "Null" | "NULL") => Value::Null,
                    (true, word) => Value::Word(word.to_owned()),
                    (false, text) => Value::Text(text.to_owned()),
                };
                (anchor, value)
            }
            Event::SequenceStart(anchor, _) => (anchor, Value::List(self.list(depth, key)?)),
            Event::MappingStart(anchor, _) => (anchor, Value::Map(self.map(depth, key)?)),
            Event::Alias(anchor) => {
                let Some(node) = self.anchors.get(&anchor).cloned() else {
                    return Err(self.fault(span, key, "the alias refers to nothing"));
                };
                self.count(size(&node), span)?;
                return Ok(node);
            }
            _ => return Err(self.fault(span, key, "not valid YAML here")),
        };
        let node = Node::new(value, source);
        if anchor > 0 {
            self.anchors.insert(anchor, node.clone());
        }
        Ok(node)
    }

    fn list(&mut self, depth: usize, key: &str) -> Step<Vec<Node>> {
        let mut items = Vec::new();
        loop {
            match self.next()? {
                (Event::SequenceEnd, _) => return Ok(items),
                (Event::StreamEnd, span) => return Err(self.fault(span, key, "the list does not end")),
                (event, span) => items.push(self.node(event, span, depth + 1, key)?),
            }
        }
    }

    fn map(&mut self, depth: usize, parent: &str) -> Step<Vec<(Key, Node)>> {
        let mut entries: Vec<(Key, Node)> = Vec::new();
        loop {
            let (event, span) = self.next()?;
            let text = match event {
                Event::MappingEnd => return Ok(entries),
                Event::Scalar(text, ..) => text.into_owned(),
                _ => return Err(self.fault(span, parent, "a key must be a word")),
            };
            let path = if parent.is_empty() {
                text.clone()
            } else {
                format!("{parent}.{text}")
            };
            if let Some((first, _)) = entries.iter().find(|(key, _)| key.text == text) {
                let fault = Fault::new(self.source(span.start.line()), path, "the key is given twice")
                    .hint(format!("it stands first at {}; keep one", first.source));
                return Err(Box::new(fault));
            }
            let source = self.source(span.start.line());
            let (event, span) = self.next()?;
            let node = self.node(event, span, depth + 1, &path)?;
            entries.push((Key { text, source }, node));
        }
    }

    fn count(&mut self, nodes: usize, span: Span) -> Step<()> {
        self.nodes += nodes;
        if self.nodes > MAX_NODES {
            return Err(self.fault(
                span,
                "",
                format!("the file holds more than {MAX_NODES} values, aliases expanded"),
            ));
        }
        Ok(())
    }
}

fn size(node: &Node) -> usize {
    1 + match &node.value {
        Value::List(items) => items.iter().map(size).sum(),
        Value::Map(entries) => entries.iter().map(|(_, node)| size(node)).sum(),
        _ => 0,
    }
}
