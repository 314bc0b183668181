//! Keys that have another home: older spellings that are accepted, and keys of other servers whose place here a message
//! can name.

use super::tree::{Key, Node, Value, canonical};
use super::{Fault, Section, Source};

/// Older spelling, home.
const ALIASES: &[(&str, &str)] = &[
    ("reef.recipe", "recipe.implementation"),
    ("reef.upstream-url", "inference.upstream-url"),
    ("reef.upstream-model", "inference.upstream-model"),
    ("reef.upstream-api-key", "inference.upstream-api-key"),
    ("reef.upstream-api", "inference.upstream-api"),
    ("reef.model-path", "inference.model-path"),
    ("reef.inference-url", "inference.url"),
    ("reef.inference-timeout-s", "inference.timeout-s"),
    (
        "storage.agent-record-retention-max-bytes",
        "storage.retention-max-bytes",
    ),
    ("storage.agent-record-retention-days", "storage.retention-days"),
    ("ready-timeout", "reef.ready-timeout"),
];

/// Keys that are understood but have no place here, and what to do instead.
const HINTS: &[(&str, &str)] = &[
    (
        "service",
        "Reef supervises no other services; start them yourself and give their URL in inference.url",
    ),
    (
        "services",
        "Reef supervises no other services; start them yourself and give their URL in inference.url",
    ),
    ("execution", "use the section executors"),
    ("generator", "write tasks to the suite named by evaluation.suite"),
    ("teacher", "name the teacher in the recipe's own settings"),
    (
        "storage.artifact-repository",
        "releases are kept in artifacts.git under storage.dir",
    ),
    ("storage.artifact-work-dir", "everything is kept under storage.dir"),
    ("storage.artifact-cache-dir", "everything is kept under storage.dir"),
    (
        "storage.agent-record-dir",
        "records are kept in experience.db under storage.dir",
    ),
    (
        "storage.record-backend",
        "records are kept in SQLite, in experience.db under storage.dir",
    ),
    (
        "storage.record-database-url",
        "records are kept in SQLite, in experience.db under storage.dir",
    ),
    (
        "inference.backend",
        "use inference.engine, or start the server yourself and give inference.url",
    ),
    (
        "inference.handler-factory",
        "no code is loaded into Reef; see the guide on recipes for external programs",
    ),
    (
        "evaluation.module",
        "no code is loaded into Reef; graders are external programs of the suite",
    ),
    ("training.colocate", "the embedded backend always shares the device"),
    (
        "inference.options",
        "start the server yourself with its own flags and give inference.url",
    ),
    (
        "inference.tensor-parallel-size",
        "start the server yourself with its own flags and give inference.url",
    ),
    (
        "inference.num-gpus",
        "start the server yourself with its own flags and give inference.url",
    ),
    ("recipe.runtime", "the runtime is what the section inference names"),
    ("training.backend", "steps run in this process, or in a child of it"),
    (
        "training.options",
        "give learning rate, optimizer and LoRA values in the recipe: recipe.config",
    ),
    (
        "training.config",
        "give learning rate, optimizer and LoRA values in the recipe: recipe.config",
    ),
    ("training.ray-address", "steps run in this process, or in a child of it"),
    (
        "evaluation",
        "the recipe's gate says how candidates are measured: recipe.config.gate",
    ),
    (
        "observability.wandb",
        "the figures of every step are at /metrics and in reef release log",
    ),
    (
        "observability.tracing",
        "traces are not exported; metrics are at /metrics",
    ),
    ("executors", "all work runs in this process or in programs it starts"),
];

/// What to do instead of giving this key.
pub(super) fn hint(key: &str) -> Option<&'static str> {
    let key = canonical(key);
    HINTS
        .iter()
        .find(|(old, _)| key == *old || key.strip_prefix(old).is_some_and(|rest| rest.starts_with('.')))
        .map(|(_, hint)| *hint)
}

/// Where keys came to stand that were written elsewhere: the home, and the key as written.
pub(super) type Moved = Vec<(String, String)>;

/// The home of a key; of a recipe's settings too where a recipe is named.
pub(super) fn home(key: &str, recipe_is_named: bool) -> String {
    let key = canonical(key);
    for (old, home) in ALIASES {
        if let Some(rest) = key
            .strip_prefix(old)
            .filter(|rest| rest.is_empty() || rest.starts_with('.'))
        {
            return format!("{home}{rest}");
        }
    }
    match key.strip_prefix("reef.") {
        Some(rest) if recipe_is_named && !of_the_service(rest.split('.').next().unwrap_or(rest)) => {
            format!("recipe.config.{rest}")
        }
        _ => key.into_owned(),
    }
}

/// Names keys as the file has them.
pub(super) fn as_written(mut faults: Vec<Fault>, moved: &Moved) -> Vec<Fault> {
    for fault in &mut faults {
        fault.key = written(&fault.key, &fault.source, moved);
    }
    faults
}

/// A key as the file has it.
pub(super) fn written(key: &str, source: &Source, moved: &Moved) -> String {
    if !matches!(source, Source::File { .. }) {
        return key.to_owned();
    }
    let spelled = canonical(key);
    let below = |home: &str| {
        let rest = spelled.strip_prefix(canonical(home).as_ref())?;
        (rest.is_empty() || rest.starts_with(['.', '['])).then(|| key[key.len() - rest.len()..].to_owned())
    };
    moved
        .iter()
        .find_map(|(home, old)| below(home).map(|rest| format!("{old}{rest}")))
        .unwrap_or_else(|| key.to_owned())
}

/// Moves every key to its home. A key given in both places is a fault.
pub(super) fn settle(root: &mut Node, faults: &mut Vec<Fault>) -> Moved {
    check_version(root, faults);
    let mut moved = Moved::new();
    for (old, home) in ALIASES {
        if let Some((key, node)) = root.take(old) {
            let table = old
                .rsplit_once('.')
                .map_or(String::new(), |(table, _)| format!("{table}."));
            moved.push(((*home).to_owned(), format!("{table}{}", key.text)));
            move_to(root, old, &key, home, node, faults);
        }
    }
    if root.at("recipe.implementation").is_some() {
        recipe_settings(root, &mut moved, faults);
    }
    moved
}

/// Whether the section `reef` knows a key.
fn of_the_service(key: &str) -> bool {
    super::Reef::FIELDS
        .iter()
        .any(|field| canonical(field.name) == canonical(key))
}

/// Keys beside `reef.recipe` that the section `reef` does not know are the recipe's.
fn recipe_settings(root: &mut Node, moved: &mut Moved, faults: &mut Vec<Fault>) {
    let foreign: Vec<String> = root
        .at("reef")
        .and_then(Node::entries)
        .unwrap_or_default()
        .iter()
        .map(|(key, _)| key.text.clone())
        .filter(|key| !of_the_service(key))
        .collect();
    for name in foreign {
        if let Some((key, node)) = root.take(&format!("reef.{name}")) {
            let (old, home) = (format!("reef.{name}"), format!("recipe.config.{name}"));
            move_to(root, &old, &key, &home, node, faults);
            moved.push((home, old));
        }
    }
}

fn move_to(root: &mut Node, old: &str, key: &Key, home: &str, node: Node, faults: &mut Vec<Fault>) {
    let typed = matches!(key.source, Source::CommandLine(_));
    if let Some(other) = root.at(home)
        && !typed
    {
        let problem = format!("is the same setting as {home}, which is given too");
        let hint = format!("{home} stands at {}; keep one", other.source);
        faults.push(Fault::new(key.source.clone(), old, problem).hint(hint));
        return;
    }
    // A flag replaces what it names and keeps what stands beside it.
    let mut moved = Vec::new();
    if typed {
        node.leaves(home, &mut |path, leaf| moved.push((path.to_owned(), leaf.clone())));
    } else {
        moved.push((home.to_owned(), node));
    }
    for (path, node) in moved {
        if let Err((through, kind)) = root.put(&path, node) {
            let problem = format!("cannot be set, because {through} is {kind}");
            faults.push(Fault::new(key.source.clone(), old, problem));
        }
    }
}

/// `schema-version: 2` is what this schema grew from; any other number is a layout Reef does not know.
fn check_version(root: &mut Node, faults: &mut Vec<Fault>) {
    let Some((_, node)) = root.take("schema-version") else {
        return;
    };
    let known = match &node.value {
        Value::Int(version) => *version == 2,
        Value::Word(word) => word == "2",
        _ => false,
    };
    if !known {
        faults.push(Fault::new(node.source, "schema-version", "expected 2").hint("or leave the key out"));
    }
}

/// Two spellings of one key within one table are a fault: which one counts would be a guess.
pub(super) fn refuse_two_spellings(node: &Node, path: &str, faults: &mut Vec<Fault>) {
    let Some(entries) = node.entries() else { return };
    for (at, (key, child)) in entries.iter().enumerate() {
        let dotted = if path.is_empty() {
            key.text.clone()
        } else {
            format!("{path}.{}", key.text)
        };
        let twin = entries[..at]
            .iter()
            .find(|(other, _)| other.text != key.text && canonical(&other.text) == canonical(&key.text));
        if let Some((first, _)) = twin
            && matches!(key.source, Source::File { .. })
        {
            let fault = Fault::new(
                key.source.clone(),
                dotted.clone(),
                format!("is the same key as {}", first.text),
            )
            .hint(format!("{} stands at {}; keep one", first.text, first.source));
            faults.push(fault);
        }
        refuse_two_spellings(child, &dotted, faults);
    }
}
