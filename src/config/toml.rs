//! TOML into a tree.

use std::path::Path;
use std::sync::Arc;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::tree::{Key, Node, Value};
use super::{ConfigError, Fault, Source};

/// Reads a TOML document of another room's, a recipe's say; one that comes with the program has no file.
pub fn read_toml(text: &str, file: Option<&Path>) -> Result<Node, ConfigError> {
    let file = file.map(Arc::from);
    Ok(read(text.strip_prefix('\u{feff}').unwrap_or(text), file.as_ref())?)
}

/// Reads a TOML document.
pub(super) fn read(text: &str, file: Option<&Arc<Path>>) -> Result<Node, Vec<Fault>> {
    let reader = Reader {
        lines: line_starts(text),
        file,
    };
    let (table, errors) = DeTable::parse_recoverable(text);
    if !errors.is_empty() {
        return Err(errors.iter().map(|error| reader.fault(text, &table, error)).collect());
    }
    reader.table(table.into_inner(), 0)
}

struct Reader<'a> {
    lines: Vec<usize>,
    file: Option<&'a Arc<Path>>,
}

impl Reader<'_> {
    fn source(&self, offset: usize) -> Source {
        match self.file {
            Some(file) => Source::File {
                file: Arc::clone(file),
                line: self.lines.partition_point(|start| *start <= offset).max(1),
            },
            None => Source::Default,
        }
    }

    fn table(&self, table: DeTable<'_>, offset: usize) -> Result<Node, Vec<Fault>> {
        let mut entries = Vec::with_capacity(table.len());
        for (key, value) in table {
            let source = self.source(key.span().start);
            let text = key.into_inner().into_owned();
            let node = self.value(value, &text)?;
            entries.push((Key { text, source }, node));
        }
        Ok(Node::new(Value::Map(entries), self.source(offset)))
    }

    fn value(&self, value: Spanned<DeValue<'_>>, key: &str) -> Result<Node, Vec<Fault>> {
        let start = value.span().start;
        let source = self.source(start);
        let wrong = |problem: &str| vec![Fault::new(source.clone(), key, problem)];
        let value = match value.into_inner() {
            DeValue::String(text) => Value::Text(text.into_owned()),
            DeValue::Boolean(value) => Value::Bool(value),
            DeValue::Integer(number) => match i64::from_str_radix(number.as_str(), number.radix()) {
                Ok(number) => Value::Int(number),
                Err(_) => return Err(wrong("expected an integer of at most 64 bits")),
            },
            DeValue::Float(number) => match number.as_str().parse::<f64>() {
                Ok(number) if number.is_finite() => Value::Float(number),
                _ => return Err(wrong("expected a finite number")),
            },
            DeValue::Datetime(moment) => Value::Text(moment.to_string()),
            DeValue::Array(items) => {
                let items: Result<Vec<Node>, _> = items.into_iter().map(|item| self.value(item, key)).collect();
                Value::List(items?)
            }
            DeValue::Table(table) => return self.table(table, start),
        };
        Ok(Node::new(value, source))
    }

    fn fault(&self, text: &str, table: &Spanned<DeTable<'_>>, error: &toml::de::Error) -> Fault {
        let offset = error.span().map_or(0, |span| span.start);
        let source = self.source(offset);
        let key = error.span().and_then(|span| text.get(span)).unwrap_or("");
        let key = key.trim_matches(['"', '\'']);
        if error.message() != "duplicate key" {
            return Fault::new(source, "", format!("not valid TOML: {}", error.message()));
        }
        let fault = Fault::new(source, key, "the key is given twice");
        match self.first_of(text, table.get_ref(), key, offset) {
            Some(first) => fault.hint(format!("it stands first on line {first}; keep one")),
            None => fault.hint("keep one"),
        }
    }

    /// The line on which a duplicated key stands first: in the table that is open at `offset`, or as a header.
    fn first_of(&self, text: &str, root: &DeTable<'_>, key: &str, offset: usize) -> Option<usize> {
        let line = self.lines.partition_point(|start| *start <= offset).max(1);
        let text_of = |line: usize| {
            text.get(self.lines[line - 1]..)
                .and_then(|rest| rest.lines().next())
                .map(str::trim)
        };
        if let Some(header) = text_of(line).filter(|text| text.starts_with('[')) {
            // The parser gives up the first table of a repeated header, but the text still has it.
            let header = header.split(']').next().unwrap_or(header);
            return (1..line).find(|line| text_of(*line).is_some_and(|text| text.split(']').next() == Some(header)));
        }
        let mut found = Vec::new();
        let mut open = 0;
        visit(root, &mut |name, at, header| {
            if name == key && at < offset {
                found.push(at);
            }
            if let Some(header) = header
                && header < offset
                && header >= open
            {
                open = header;
            }
        });
        let at = found.into_iter().filter(|at| *at >= open).min()?;
        Some(self.lines.partition_point(|start| *start <= at).max(1))
    }
}

/// Visits every key with its offset and, for a table with a header, the header's offset.
fn visit(table: &DeTable<'_>, seen: &mut dyn FnMut(&str, usize, Option<usize>)) {
    for (key, value) in table {
        let header = matches!(value.get_ref(), DeValue::Table(_)).then(|| value.span().start);
        seen(key.get_ref(), key.span().start, header);
        if let DeValue::Table(inner) = value.get_ref() {
            visit(inner, seen);
        }
    }
}

fn line_starts(text: &str) -> Vec<usize> {
    std::iter::once(0)
        .chain(text.match_indices('\n').map(|(at, _)| at + 1))
        .collect()
}
