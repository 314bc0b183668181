//! What somebody meant who wrote a key that is not there.

use super::tree::{Node, Value, canonical};
use super::{Fault, Field, Settings, aliases, recipe_keys};

/// Whether a path is a declared section, or leads to one.
fn is_section(path: &str) -> bool {
    Settings::SECTIONS
        .iter()
        .any(|(section, _, _)| *section == path || section.starts_with(&format!("{path}.")))
}

/// Every declared setting with its dotted key.
pub(super) fn declared() -> impl Iterator<Item = (String, &'static Field)> {
    Settings::SECTIONS.iter().flat_map(|(path, _, fields)| {
        fields
            .iter()
            .map(move |field| (format!("{path}.{}", canonical(field.name)), field))
    })
}

/// Whatever no section took is unknown. A table of unknown keys is one mistake, not many.
pub(super) fn unknown_keys(root: &Node, recipe_is_named: bool) -> Vec<Fault> {
    let mut faults = Vec::new();
    collect(root, "", recipe_is_named, &mut faults);
    faults
}

fn collect(node: &Node, path: &str, recipe_is_named: bool, faults: &mut Vec<Fault>) {
    for (key, child) in node.entries().unwrap_or_default() {
        let path = if path.is_empty() {
            canonical(&key.text).into_owned()
        } else {
            format!("{path}.{}", canonical(&key.text))
        };
        let section = is_section(&path);
        if child.entries().is_some() && (section || better_below(&path, child)) {
            collect(child, &path, recipe_is_named, faults);
            continue;
        }
        // A bare `reef:` is an empty section.
        if section && child.is_null() {
            continue;
        }
        let unknown = if path.contains('.') {
            "unknown key"
        } else {
            unknown_word(child)
        };
        let fault = Fault::new(key.source.clone(), path.as_str(), unknown);
        faults.push(fault.hint(if key.text.contains('.') {
            "a key of a table stands in that table: the dot makes it a name of its own".to_owned()
        } else {
            advice(&path, recipe_is_named)
        }));
    }
}

/// Whether more can be said of the keys in an unknown table than of the table.
fn better_below(path: &str, table: &Node) -> bool {
    if aliases::hint(path).is_some() || table.children().next().is_none() {
        return false;
    }
    let holds_tables_alone = table.children().all(|(_, below)| below.entries().is_some());
    let elsewhere = |key: &str| !of_the_same_words(&format!("{path}.{key}")).is_empty();
    holds_tables_alone || of_the_same_words(path).is_empty() && table.children().all(|(key, _)| elsewhere(key))
}

fn unknown_word(node: &Node) -> &'static str {
    match node.value {
        Value::Map(_) | Value::Null => "unknown section",
        _ => "unknown key",
    }
}

/// Where the key belongs, if that can be told.
pub fn advice(path: &str, recipe_is_named: bool) -> String {
    if let Some(hint) = aliases::hint(path) {
        return hint.to_owned();
    }
    let near = places(path);
    match near.first() {
        None => "see reef config schema for all keys".to_owned(),
        Some(first) if !recipe_is_named && is_of_a_recipe(first) => {
            format!("did you mean {first}? It is a setting of a recipe, and reef.recipe names none")
        }
        Some(_) => format!("did you mean {}?", near.join(" or ")),
    }
}

fn is_of_a_recipe(key: &str) -> bool {
    key.strip_prefix("reef.")
        .is_some_and(|rest| recipe_keys().any(|key| canonical(&key) == canonical(rest)))
}

/// Every key and section, with a recipe's settings where they usually stand.
fn known() -> impl Iterator<Item = String> {
    let sections = Settings::SECTIONS.iter().map(|(section, _, _)| (*section).to_owned());
    let own = declared().map(|(key, _)| key).chain(sections);
    own.chain(recipe_keys().map(|key| format!("reef.{key}")))
}

/// The places of keys like this one, the nearest first; at most three.
fn places(path: &str) -> Vec<String> {
    let same = of_the_same_words(path);
    if !same.is_empty() {
        return same;
    }
    // The section of the key, or another spelling of it; else a like key anywhere.
    match nearest(path, known()) {
        Some(key) => vec![key],
        None => near_keys(path, known()).into_iter().take(1).collect(),
    }
}

/// Keys that end in the same words in another section; at most three.
fn of_the_same_words(path: &str) -> Vec<String> {
    let shared: Vec<(usize, String)> = known().map(|key| (common_end(path, &key), key)).collect();
    let most = shared.iter().map(|(parts, _)| *parts).max().unwrap_or(0);
    let likely = shared.into_iter().filter(|(parts, _)| *parts == most && most > 0);
    let mut same: Vec<String> = likely.map(|(_, key)| key).collect();
    // One with fewer tables around it is the likelier one.
    same.sort_by_key(|key| key.split('.').count());
    same.dedup();
    let likelier = same.first().map_or(0, |key| key.split('.').count());
    same.retain(|key| key.split('.').count() == likelier);
    same.truncate(3);
    same
}

/// How many parts two keys have in common at their ends.
fn common_end(one: &str, other: &str) -> usize {
    let (one, other) = (canonical(one), canonical(other));
    one.rsplit('.')
        .zip(other.rsplit('.'))
        .take_while(|(a, b)| a == b)
        .count()
}

/// The declared keys most like what somebody typed: of the section it names, or with its words elsewhere; at most three.
pub(super) fn near_keys(typed: &str, known: impl Iterator<Item = String>) -> Vec<String> {
    let last = typed.rsplit('.').next().unwrap_or(typed);
    let mut near: Vec<(f64, String)> = known
        .map(|key| {
            let own = key.rsplit('.').next().unwrap_or(&key);
            let whole = strsim::jaro_winkler(typed, &key);
            // `port` for `reef.port`, and `prot` too.
            let part = strsim::jaro_winkler(last, own);
            (whole.max(part), key)
        })
        .filter(|(likeness, _)| *likeness > 0.85)
        .collect();
    near.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
    near.into_iter().take(3).map(|(_, key)| key).collect()
}

/// The most similar name, if one is similar at all.
pub(super) fn nearest(name: &str, known: impl Iterator<Item = String>) -> Option<String> {
    known
        .map(|candidate| (strsim::jaro_winkler(name, &candidate), candidate))
        .filter(|(likeness, _)| *likeness > 0.9)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, candidate)| candidate)
}
