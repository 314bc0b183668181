//! From sources to settings.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::nearest::{declared, nearest, unknown_keys};
use super::reader::Reader;
use super::tree::{Node, Value, canonical};
use super::yaml::Origin;
use super::{ConfigError, Fault, Field, Section, Settings, Source, aliases, interpolate, toml, variables, yaml};

/// A deployment file is a page of text; anything larger is another file.
const MAX_FILE: u64 = 4 << 20;

/// What settings are made from.
#[derive(Debug, Clone, Default)]
pub struct Sources {
    /// The deployment file, if one is given.
    pub file: Option<PathBuf>,
    /// Settings typed on the command line. Each may be given once.
    pub overrides: Vec<Override>,
    /// The environment.
    pub env: BTreeMap<String, String>,
    /// The directory Reef was started in: relative paths start here.
    pub directory: PathBuf,
}

/// One setting typed on the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Override {
    /// The flag as typed, for messages: `--reef.port`.
    pub flag: String,
    /// The dotted key.
    pub key: String,
    /// Its text; `None` for a bare switch.
    pub value: Option<String>,
    /// Typed as `--no-…`.
    pub negated: bool,
}

/// Reads the file and settles what every setting is: a flag wins over the environment, that over the file, that over
/// the default.
pub fn load(sources: &Sources) -> Result<Settings, ConfigError> {
    let mut root = match &sources.file {
        Some(file) => read_file(file, &sources.directory)?,
        None => Node::empty_map(Source::Default),
    };
    let mut faults = Vec::new();
    if root.entries().is_none() {
        return Err(Fault::new(
            root.source.clone(),
            "",
            format!("expected sections, found {}", root.kind()),
        )
        .into());
    }
    aliases::refuse_two_spellings(&root, "", &mut faults);
    let moved = aliases::settle(&mut root, &mut faults);
    refuse_given_twice(&sources.overrides, &root, &mut faults);
    let file = root.clone();
    variables::put(&mut root, &sources.env);
    for given in &sources.overrides {
        put_override(&mut root, given, &mut faults);
    }
    // Flags may use the older spellings too.
    aliases::settle(&mut root, &mut faults);
    let before = root.clone();
    let scope = interpolate::Scope {
        env: &sources.env,
        root: &before,
        otherwise: &otherwise,
    };
    interpolate::apply(&mut root, "", &scope, &mut faults);
    if !faults.is_empty() {
        return Err(aliases::as_written(faults, &moved).into());
    }
    let whole = Arc::new(root.clone());
    let recipe_is_named = root.at("recipe.implementation").is_some();
    let mut reader = Reader::new(root, &sources.directory);
    let overridden = file.at("recipe.config").cloned();
    reader.file = Some(file);
    let settings = Settings::read(&mut reader, sources);
    let mut faults = reader.faults;
    faults.append(&mut unknown_keys(&reader.root, recipe_is_named));
    let Some(mut settings) = settings.filter(|_| faults.is_empty()) else {
        return Err(aliases::as_written(faults, &moved).into());
    };
    settings.rows = reader.rows;
    settings.whole = whole;
    settings.recipe_of_the_file = super::Table::new(overridden);
    settings.moved = moved;
    settings.settle_twins();
    let faults = settings.contradictions();
    if faults.is_empty() {
        Ok(settings)
    } else {
        Err(faults.into())
    }
}

/// Which of two values of a flag counts would be a guess.
fn refuse_given_twice(overrides: &[Override], root: &Node, faults: &mut Vec<Fault>) {
    let names_a_recipe = |key: &str| aliases::home(key, false) == "recipe.implementation";
    let recipe = root.at("recipe.implementation").is_some() || overrides.iter().any(|given| names_a_recipe(&given.key));
    let homes: Vec<String> = overrides
        .iter()
        .map(|given| aliases::home(&given.key, recipe))
        .collect();
    for (at, given) in overrides.iter().enumerate() {
        let Some(first) = homes[..at].iter().position(|home| *home == homes[at]) else {
            continue;
        };
        let first = &overrides[first].flag;
        let hint = if *first == given.flag {
            "keep one".to_owned()
        } else {
            format!("{first} sets it too; keep one")
        };
        let source = Source::CommandLine(given.flag.clone());
        faults.push(Fault::new(source, homes[at].as_str(), "is given twice").hint(hint));
    }
}

fn read_file(path: &Path, directory: &Path) -> Result<Node, ConfigError> {
    let unreadable = |source| ConfigError::Read {
        path: path.to_owned(),
        source,
    };
    let file: Arc<Path> = Arc::from(path);
    let whole_file = |problem: &str, hint: &str| {
        let source = Source::File {
            file: Arc::clone(&file),
            line: 1,
        };
        ConfigError::from(Fault::new(source, "", problem).hint(hint))
    };
    let mut bytes = Vec::new();
    File::open(directory.join(path))
        .and_then(|file| file.take(MAX_FILE + 1).read_to_end(&mut bytes))
        .map_err(unreadable)?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(whole_file("the file is larger than 4 MiB", "is it a deployment file?"));
    }
    let text = String::from_utf8(bytes).map_err(|_| whole_file("the file is not UTF-8 text", "save it as UTF-8"))?;
    read_text(text.strip_prefix('\u{feff}').unwrap_or(&text), &file)
}

/// Parses by the file's extension.
pub(super) fn read_text(text: &str, file: &Arc<Path>) -> Result<Node, ConfigError> {
    let top = || Source::File {
        file: Arc::clone(file),
        line: 1,
    };
    let extension = file
        .extension()
        .and_then(|extension| extension.to_str())
        .unwrap_or_default();
    match extension.to_ascii_lowercase().as_str() {
        "toml" => Ok(toml::read(text, Some(file))?),
        "yaml" | "yml" | "json" => match yaml::read(text, Origin::File(file))? {
            Some(node) if !node.is_null() => Ok(node),
            _ => Ok(Node::empty_map(top())),
        },
        _ => Err(Fault::new(top(), "", "the file's name says no format")
            .hint("name it .toml, .yaml, .yml or .json")
            .into()),
    }
}

fn put_override(root: &mut Node, given: &Override, faults: &mut Vec<Fault>) {
    let source = Source::CommandLine(given.flag.clone());
    let value = match (&given.value, given.negated) {
        (_, true) => Value::Bool(false),
        (None, false) => Value::Bool(true),
        (Some(text), false) => Value::Word(text.clone()),
    };
    // Through a list or a scalar there is no way: it would silently replace what was configured.
    if let Some((prefix, _)) = given.key.rsplit_once('.')
        && let Some(field) = leaf_on_the_way(prefix)
    {
        let problem = format!("cannot be set, because {} is {}", field.0, field.1.expected());
        faults.push(Fault::new(source, given.key.clone(), problem));
        return;
    }
    if let Err((through, kind)) = root.put(&given.key, Node::new(value, source.clone())) {
        let problem = format!("cannot be set, because {through} is {kind}");
        faults.push(Fault::new(source, given.key.clone(), problem).hint(format!("set {through} as a whole")));
    }
}

/// The declared setting that one of the prefixes of a path names, unless it is a table.
fn leaf_on_the_way(path: &str) -> Option<(String, &'static Field)> {
    let path = canonical(path);
    declared()
        .find(|(key, field)| field.kind != super::Kind::Table && (*key == path || path.starts_with(&format!("{key}."))))
}

/// What a setting is that neither the file nor a flag nor a variable gives.
fn otherwise(path: &str) -> Option<String> {
    let path = canonical(path);
    let (_, field) = declared().find(|(key, _)| *key == path)?;
    match field.default_json()? {
        serde_json::Value::String(text) => Some(text),
        other => Some(other.to_string()),
    }
}

/// Reads settings that a room declared itself from a table of the file: a recipe's own settings, say. Unknown keys,
/// wrong types and values out of bounds are faults with their place.
pub(super) fn read_table<S: Section>(
    table: Option<&Node>,
    path: &str,
    directory: &Path,
) -> Result<(S, Vec<super::Row>), ConfigError> {
    let root = table.cloned().unwrap_or_else(|| Node::empty_map(Source::Default));
    let mut reader = Reader::new(root, directory);
    let section = S::read(&mut reader);
    let known = || S::FIELDS.iter().map(|field| canonical(field.name).into_owned());
    let mut faults = reader.faults;
    reader.root.leaves("", &mut |key, node| {
        if key.is_empty() {
            return;
        }
        let fault = Fault::new(node.source.clone(), key, "unknown key");
        faults.push(match nearest(&canonical(key), known()) {
            Some(name) => fault.hint(format!("did you mean {name}?")),
            None => fault.hint(format!("known here: {}", known().collect::<Vec<_>>().join(", "))),
        });
    });
    let under = |key: &str| format!("{path}.{key}");
    for fault in &mut faults {
        fault.key = under(&fault.key);
    }
    match section {
        Some(section) if faults.is_empty() => {
            let mut rows = reader.rows;
            for row in &mut rows {
                row.key = under(&row.key);
            }
            Ok((section, rows))
        }
        _ => Err(faults.into()),
    }
}
