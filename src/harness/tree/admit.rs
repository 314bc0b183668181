//! The one gate every tree and every proposal passes. Nothing here runs code.

use std::collections::BTreeSet;

use serde_json::Value;

use super::document::Tree;
use super::entry::{Entry, EntryProvenance, Kind};
use super::kinds::Body;
use super::mutation::{Mutation, Op};
use super::refusal::{Refusal, Rule};
use super::render::{Rendered, render, supported};
use super::screen::{Finding, screen_json};
use crate::harness::adapter::Adapter;

/// What a person allowed.
#[derive(Debug, Clone, Default)]
pub struct Policy {
    /// Entries whose text may look like an injected directive: a rule that quotes one as a warning, say.
    pub allow_directives: BTreeSet<String>,
}

/// Who proposes.
#[derive(Debug, Clone, Default)]
pub struct Origin {
    /// `seed`, `person`, or the id of a proposal, an instruction or a step.
    pub by: String,
    /// When, RFC 3339.
    pub at: Option<String>,
    /// Records it rests on.
    pub evidence: Vec<String>,
}

/// A proposal that was admitted.
#[derive(Debug, Clone)]
pub struct Admitted {
    /// The tree it leads to.
    pub tree: Tree,
    /// Its files.
    pub rendered: Rendered,
    /// The entries that were created, changed or removed.
    pub changed: Vec<String>,
    /// The kinds of those entries, for reviews that depend on them.
    pub kinds: BTreeSet<Kind>,
}

/// Admits a proposal: all of its mutations, or none.
pub fn admit(
    tree: &Tree,
    mutations: &[Mutation],
    adapter: &Adapter,
    policy: &Policy,
    origin: &Origin,
    at_us: i64,
) -> Result<Admitted, Refusal> {
    for entry in &tree.entries {
        screen(entry, policy).map_err(|refusal| refusal.entry(&entry.id))?;
    }
    let mut next = tree.clone();
    let mut changed = Vec::new();
    let mut kinds = BTreeSet::new();
    for (at, mutation) in mutations.iter().enumerate() {
        let named = |refusal: Refusal| refusal.entry(&mutation.id).mutation(at);
        if let Some(before) = next.get(&mutation.id) {
            kinds.insert(before.kind());
        }
        mutation.apply(&mut next).map_err(named)?;
        if mutation.op != Op::Remove
            && let Some(entry) = next.entries.iter_mut().find(|entry| entry.id == mutation.id)
        {
            kinds.insert(entry.kind());
            screen(entry, policy).map_err(named)?;
            supported(adapter, entry.kind()).map_err(named)?;
            sign(entry, mutation.op, origin);
        }
        if !changed.contains(&mutation.id) {
            changed.push(mutation.id.clone());
        }
    }
    next.check()?;
    let rendered = render(&next, adapter, at_us)?;
    Ok(Admitted {
        tree: next,
        rendered,
        changed,
        kinds,
    })
}

/// Checks a whole tree, a seed or one that was stored, and renders it.
pub fn check(tree: &Tree, adapter: &Adapter, policy: &Policy, at_us: i64) -> Result<Rendered, Refusal> {
    if let Some(name) = tree.adapter.as_deref().filter(|name| *name != adapter.name) {
        return Err(Refusal::new(
            Rule::Unsupported,
            format!(
                "the tree was made for the adapter \"{}\", not for \"{}\"",
                super::refusal::shown(name),
                adapter.name
            ),
        ));
    }
    tree.check()?;
    for entry in &tree.entries {
        let named = |refusal: Refusal| refusal.entry(&entry.id);
        screen(entry, policy).map_err(named)?;
        supported(adapter, entry.kind()).map_err(named)?;
    }
    render(tree, adapter, at_us)
}

/// Both screens over everything an entry says. What is no text says nothing.
fn screen(entry: &Entry, policy: &Policy) -> Result<(), Refusal> {
    let config = entry.body.to_readable();
    let keyed: Option<&Value> = match &entry.body {
        Body::Config(_) => config.get("data"),
        Body::McpServer(_) => config.get("env"),
        _ => None,
    };
    let root = if matches!(entry.body, Body::Config(_)) {
        "data"
    } else {
        "env"
    };
    let mut findings = keyed.map(|value| screen_json(value, true)).unwrap_or_default();
    for finding in &mut findings {
        finding.path = format!("{root}.{}", finding.path);
    }
    findings.extend(screen_json(&config, false));
    let provenance = entry.provenance.as_ref().map(serde_json::to_value);
    findings.extend(
        provenance
            .and_then(Result::ok)
            .iter()
            .flat_map(|value| screen_json(value, false)),
    );
    let allowed = |finding: &Finding| finding.rule == Rule::Directive && policy.allow_directives.contains(&entry.id);
    match findings.into_iter().find(|finding| !allowed(finding)) {
        Some(finding) => Err(finding.refusal()),
        None => Ok(()),
    }
}

fn sign(entry: &mut Entry, op: Op, origin: &Origin) {
    if origin.by.is_empty() {
        return;
    }
    let mut provenance = entry.provenance.take().unwrap_or_default();
    if op == Op::Create {
        provenance = EntryProvenance {
            created_by: origin.by.clone(),
            ..EntryProvenance::default()
        };
    } else {
        provenance.changed_by = Some(origin.by.clone());
    }
    provenance.changed_at = origin.at.clone();
    provenance.evidence = origin.evidence.iter().take(64).cloned().collect();
    entry.provenance = Some(provenance);
}
