//! A recipe under construction: a tree in which every value knows where it stands.

use std::fmt;
use std::sync::Arc;

use serde_json::Value as Json;

use super::Recipe;
use crate::config::{ConfigError, Fault, Node, RECIPE_SHORT, RECIPE_TABLES, Source, advice};

/// Most faults told at once.
const MAX_FAULTS: usize = 50;

/// Where the values of a recipe stand.
#[derive(Clone)]
pub(super) struct Places {
    tree: Arc<Node>,
    /// The path of each setting given beside the recipe, and its key as written.
    written: Arc<Vec<(String, String)>>,
}

impl Default for Places {
    fn default() -> Self {
        Self {
            tree: Arc::new(Node::empty_map(Source::Default)),
            written: Arc::default(),
        }
    }
}

/// Where its values stand is no part of what a recipe is.
impl PartialEq for Places {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl fmt::Debug for Places {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Places")
    }
}

impl Places {
    /// A fault of the value at `key`; where nobody gave it, at the first of `related` that somebody gave. A value that
    /// nobody gave has no place.
    pub(super) fn fault(&self, key: &str, related: &[&str], problem: &str) -> Fault {
        if let Some((source, key)) = self.place(key) {
            return Fault::new(source, key, problem);
        }
        match related.iter().find_map(|related| self.place(related)) {
            Some((source, place)) => Fault::new(source, place, format!("{key} {problem}")),
            None => Fault::new(Source::Default, key, problem),
        }
    }

    fn place(&self, key: &str) -> Option<(Source, String)> {
        let key = hyphenated(key);
        let given = |path: &str, written: &str| (self.tree.source_at(path).clone(), format!("recipe.config.{written}"));
        let below = |outer: &str, inner: &str| {
            inner
                .strip_prefix(outer)
                .is_some_and(|rest| rest.starts_with(['.', '[']))
        };
        let itself = self.written.iter().find(|(path, _)| *path == key || below(path, &key));
        if let Some((path, written)) = itself {
            return Some(given(path, written));
        }
        let in_it = self.written.iter().find(|(path, _)| below(&key, path));
        if let Some((path, _)) = in_it {
            return Some(given(path, &key));
        }
        let source = self.tree.source_at(&key);
        (*source != Source::Default && self.tree.at(&key).is_some()).then(|| (source.clone(), key.clone()))
    }
}

/// One setting given beside the recipe.
struct Given {
    path: String,
    written: String,
    node: Node,
}

/// The tree of a recipe file with what is laid over it.
pub(super) struct Draft {
    tree: Node,
    written: Vec<(String, String)>,
    faults: Vec<Fault>,
}

impl Draft {
    pub(super) fn new(tree: Node) -> Self {
        Self {
            tree,
            written: Vec::new(),
            faults: Vec::new(),
        }
    }

    /// Lays the settings given beside a recipe over it; what was typed counts before what a file says.
    pub(super) fn lay(&mut self, settings: &Node) {
        let mut given = Vec::new();
        for (key, node) in settings.children() {
            let spelled = hyphenated(key);
            let short = RECIPE_SHORT.iter().find(|(name, _)| hyphenated(name) == spelled);
            let path = short.map_or(spelled, |(_, path)| (*path).to_owned());
            let table = path.split('.').next().unwrap_or(&path);
            if path != "training-mode" && !RECIPE_TABLES.iter().any(|(name, _)| *name == table) {
                let fault = Fault::new(node.source().clone(), format!("recipe.config.{key}"), "unknown key");
                self.faults.push(fault.hint(advice(&format!("reef.{key}"), true)));
                continue;
            }
            leaves(node, path, key.to_owned(), &mut given);
        }
        given.sort_by_key(|given| typed(&given.node));
        for (at, setting) in given.iter().enumerate() {
            let key = format!("recipe.config.{}", setting.written);
            let source = setting.node.source().clone();
            let twin = given[..at]
                .iter()
                .find(|first| first.path == setting.path && typed(&first.node) == typed(&setting.node));
            if let Some(first) = twin {
                let problem = format!("is the same setting as {}, which is given too", first.written);
                let hint = format!("{} stands at {}; keep one", first.written, first.node.source());
                self.faults.push(Fault::new(source, key, problem).hint(hint));
                continue;
            }
            if setting.node.is_null() {
                let fault = Fault::new(source, key, "null is not allowed");
                self.faults.push(fault.hint("leave the key out to get the default"));
                continue;
            }
            while let Err((through, _)) = self.tree.put(&setting.path, setting.node.clone()) {
                // A table replaces what was no table.
                if self.tree.remove(&through).is_none() {
                    break;
                }
            }
            self.written.retain(|(path, _)| *path != setting.path);
            self.written.push((setting.path.clone(), setting.written.clone()));
        }
    }

    /// The complete recipe, or everything that is wrong with it.
    pub(super) fn read(mut self, spelled: &dyn Fn(&Node) -> Json) -> Result<Recipe, ConfigError> {
        let places = Places {
            tree: Arc::new(self.tree.clone()),
            written: Arc::new(std::mem::take(&mut self.written)),
        };
        let recipe = loop {
            match serde_path_to_error::deserialize::<_, Recipe>(spelled(&self.tree)) {
                Ok(recipe) => break Some(recipe),
                Err(error) => {
                    let path = error.path().to_string();
                    let key = path.trim_start_matches('.');
                    let found = self.tree.at(key).map_or("something else", Node::kind);
                    let told = Told::new(&error.inner().to_string(), found);
                    let mut fault = places.fault(key, &[], &told.problem);
                    fault.hint = told.hint(key);
                    self.faults.push(fault);
                    // The rest may be wrong too.
                    if self.faults.len() == MAX_FAULTS || self.tree.remove(key).is_none() {
                        break None;
                    }
                }
            }
        };
        if let Some(recipe) = recipe.filter(|_| self.faults.is_empty()) {
            let broken = recipe.faults();
            if broken.is_empty() {
                return Ok(Recipe { places, ..recipe });
            }
            let told = broken
                .iter()
                .map(|broken| places.fault(&broken.key, broken.related, broken.rule));
            self.faults.extend(told);
        }
        Err(self.faults.into())
    }
}

/// A setting that was not read from a file counts before one that was.
fn typed(node: &Node) -> bool {
    !matches!(node.source(), Source::File { .. })
}

fn leaves(node: &Node, path: String, written: String, out: &mut Vec<Given>) {
    if node.children().next().is_none() {
        // An empty table says nothing.
        if node.kind() != "a table" {
            let node = node.clone();
            out.push(Given { path, written, node });
        }
        return;
    }
    for (key, child) in node.children() {
        let path = format!("{path}.{}", hyphenated(key));
        leaves(child, path, format!("{written}.{key}"), out);
    }
}

fn hyphenated(key: &str) -> String {
    key.replace('_', "-")
}

/// What a parser said, in words for people and without the value.
pub(super) struct Told {
    pub(super) problem: String,
    known: Vec<String>,
}

impl Told {
    pub(super) fn new(message: &str, found: &str) -> Self {
        let expected = message.rsplit_once(", expected ").map(|(_, expected)| expected);
        let plain = |problem: String| Self {
            problem,
            known: Vec::new(),
        };
        match (message, expected) {
            (text, Some(expected)) if text.starts_with("unknown field") => Self {
                problem: "unknown key".to_owned(),
                known: quoted(expected),
            },
            (text, Some(expected)) if text.starts_with("unknown variant") => {
                plain(format!("expected one of {}", quoted(expected).join(", ")))
            }
            (text, Some(expected)) if text.starts_with("invalid type") => {
                plain(format!("expected {}, found {found}", in_words(expected)))
            }
            (text, Some(expected)) if text.starts_with("invalid") => plain(format!("expected {}", in_words(expected))),
            (text, _) => plain(text.to_owned()),
        }
    }

    /// What to do about it, for the key.
    pub(super) fn hint(&self, key: &str) -> Option<String> {
        if self.known.is_empty() {
            return None;
        }
        let near = advice(&format!("reef.{key}"), true);
        if near.starts_with("did you mean") {
            return Some(near);
        }
        Some(format!("known here: {}", self.known.join(", ")))
    }
}

/// The words in backquotes.
fn quoted(text: &str) -> Vec<String> {
    text.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

fn in_words(expected: &str) -> &str {
    match expected {
        "usize" | "u64" | "u32" | "u16" | "u8" => "an integer of at least 0",
        "i64" | "i32" => "an integer",
        "f64" | "f32" => "a number",
        "a boolean" => "true or false",
        "a string" => "text",
        "a sequence" => "a list",
        "a map" => "a table",
        text if text.starts_with("struct ") => "a table",
        text => text,
    }
}
