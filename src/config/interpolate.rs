//! `${VAR}`, `${VAR:-default}`, `${VAR:?}` and `${dotted.path}` in the texts of the deployment file. `$${` stands for
//! `${` itself.

use std::collections::BTreeMap;

use super::tree::{Node, Value};
use super::{Fault, Source};

/// What a reference may refer to.
pub(super) struct Scope<'a> {
    /// The environment.
    pub(super) env: &'a BTreeMap<String, String>,
    /// The tree before interpolation.
    pub(super) root: &'a Node,
    /// The value of a declared setting that the tree does not hold: its variable's or its default.
    pub(super) otherwise: &'a dyn Fn(&str) -> Option<String>,
}

/// Replaces references in every text that came from the file.
pub(super) fn apply(node: &mut Node, path: &str, scope: &Scope<'_>, faults: &mut Vec<Fault>) {
    match &mut node.value {
        Value::Map(entries) => {
            for (key, node) in entries {
                let below = if path.is_empty() {
                    key.text.clone()
                } else {
                    format!("{path}.{}", key.text)
                };
                apply(node, &below, scope, faults);
            }
        }
        Value::List(items) => {
            for item in items {
                apply(item, path, scope, faults);
            }
        }
        Value::Text(text) | Value::Word(text) if text.contains("${") && matches!(node.source, Source::File { .. }) => {
            match expand(text, scope, &mut vec![path.to_owned()]) {
                Ok(text) => node.value = Value::Word(text),
                Err(problem) => {
                    let mut fault = Fault::new(node.source.clone(), path, problem.what);
                    fault.hint = problem.hint;
                    faults.push(fault);
                }
            }
        }
        _ => {}
    }
}

struct Problem {
    what: String,
    hint: Option<String>,
}

fn problem(what: impl Into<String>, hint: Option<&str>) -> Problem {
    Problem {
        what: what.into(),
        hint: hint.map(str::to_owned),
    }
}

fn expand(text: &str, scope: &Scope<'_>, open: &mut Vec<String>) -> Result<String, Problem> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("${") {
        if rest[..at].ends_with('$') {
            out.push_str(&rest[..at - 1]);
            out.push_str("${");
            rest = &rest[at + 2..];
            continue;
        }
        out.push_str(&rest[..at]);
        let inner = &rest[at + 2..];
        let end = inner.find('}').ok_or_else(|| {
            problem(
                "a reference is not closed",
                Some("write ${NAME}, or $${ for the text itself"),
            )
        })?;
        out.push_str(&reference(&inner[..end], scope, open)?);
        rest = &inner[end + 1..];
    }
    out.push_str(rest);
    Ok(out)
}

fn reference(inner: &str, scope: &Scope<'_>, open: &mut Vec<String>) -> Result<String, Problem> {
    let (name, otherwise) = match inner.split_once(":?") {
        Some((name, message)) => (name, Some(Err(message))),
        None => match inner.split_once(":-") {
            Some((name, default)) => (name, Some(Ok(default))),
            None => (inner, None),
        },
    };
    if is_variable(name) {
        let value = scope.env.get(name).map(String::as_str).unwrap_or_default();
        return match otherwise {
            Some(Err(message)) if value.trim().is_empty() => Err(problem(
                format!("needs the environment variable {name}, which is not set"),
                Some(message.trim()).filter(|message| !message.is_empty()),
            )),
            Some(Ok(default)) if value.is_empty() => Ok(default.to_owned()),
            _ => Ok(value.to_owned()),
        };
    }
    if otherwise.is_some() || !is_path(name) {
        return Err(problem(
            "holds a reference that is no variable and no setting",
            Some("write ${NAME}, ${NAME:?}, ${NAME:-default} or ${section.key}; $${ for the text itself"),
        ));
    }
    if open.iter().any(|path| same(path, name)) {
        return Err(problem(format!("refers to itself through ${{{name}}}"), None));
    }
    let Some(node) = scope.root.at(name) else {
        return (scope.otherwise)(name).ok_or_else(|| problem(format!("refers to {name}, which is not set"), None));
    };
    match &node.value {
        Value::Text(text) | Value::Word(text) if matches!(node.source, Source::File { .. }) => {
            open.push(name.to_owned());
            let text = expand(text, scope, open)?;
            open.pop();
            Ok(text)
        }
        Value::Text(text) | Value::Word(text) => Ok(text.clone()),
        Value::Bool(value) => Ok(value.to_string()),
        Value::Int(value) => Ok(value.to_string()),
        Value::Float(value) => Ok(value.to_string()),
        Value::Null => Ok(String::new()),
        Value::List(_) | Value::Map(_) => Err(problem(
            format!("refers to {name}, which is {}", node.kind()),
            Some("refer to a single value"),
        )),
    }
}

fn same(a: &str, b: &str) -> bool {
    super::tree::canonical(a) == super::tree::canonical(b)
}

fn is_variable(name: &str) -> bool {
    name.bytes()
        .next()
        .is_some_and(|b| b.is_ascii_alphabetic() || b == b'_')
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

fn is_path(name: &str) -> bool {
    name.contains('.')
        && name.split('.').all(|part| {
            !part.is_empty()
                && part
                    .bytes()
                    .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'))
        })
}
