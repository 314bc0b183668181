//! `reef release show`

use std::fmt::Write;

use clap::Args;
use serde_json::json;

use super::chain::{Chain, ScenarioOption};
use crate::cli::table::{Table, printable};
use crate::cli::{CliError, Context, Exit, OrExit, format};
use crate::release::{Manifest, TrainingState};

#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    /// head, head~1, base, or the first digits of an id
    #[arg(default_value = "head")]
    release: String,
    #[command(flatten)]
    scenario: ScenarioOption,
}

pub(crate) fn run(context: &Context, args: &ShowArgs) -> Result<Exit, CliError> {
    let chain = context.block_on(Chain::open(context, &args.scenario))?;
    let id = chain.resolve(&args.release)?;
    let manifest = chain.publisher.repository().manifest(&id)?;
    let row = chain.publisher.experience().release(&chain.scenario, &id)?;
    let step = chain.publisher.experience().step_of(&chain.scenario, &id)?;
    let missing = chain.publisher.repository().missing_object(&id)?;
    let training = chain.publisher.repository().training_state(&id)?;
    let pinned = chain.publisher.repository().pinned()?.contains(&id);
    let state = row.as_ref().map(|row| row.state.as_str());
    let output = context.output();
    if output.json() {
        let manifest = serde_json::to_value(&manifest).or_exit(Exit::Unexpected)?;
        output.object(
            "release",
            &json!({
                "release_id": id,
                "step": step,
                "current": id == chain.head,
                "state": state,
                "note": row.as_ref().and_then(|row| row.note.clone()),
                "restorable": missing.is_none(),
                "missing": missing.as_ref().map(ToString::to_string),
                "training_state": training.as_str(),
                "pinned": pinned,
                "manifest": manifest,
            }),
        )?;
        return Ok(Exit::Ok);
    }
    let mut text = String::new();
    let mut fact = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            // Writing to a String cannot fail.
            let _infallible = writeln!(text, "{name:<12}{}", printable(value));
        }
    };
    let current = if id == chain.head { ", served" } else { "" };
    fact("release", Some(id.to_string()));
    fact("content", Some(manifest.content_id.to_string()));
    fact("scenario", manifest.scenario.as_ref().map(ToString::to_string));
    fact("operation", Some(manifest.operation.as_str().to_owned()));
    // One number for a release everywhere; a manifest that no store knows has only what it was made with.
    fact("step", step.or(manifest.provenance.step).map(|step| step.to_string()));
    fact("state", state.map(|state| format!("{state}{current}")));
    fact("parent", manifest.parent_release_id.as_ref().map(ToString::to_string));
    fact("target", manifest.target_release_id.as_ref().map(ToString::to_string));
    provenance(&manifest, &mut fact);
    fact("decided", row.and_then(|row| row.note));
    if let Some(missing) = missing {
        fact("restorable", Some(format!("no: {missing}")));
    }
    fact("pinned", pinned.then(|| "yes, reef release unpin ends it".to_owned()));
    fact(
        "training",
        match training {
            TrainingState::None => None,
            TrainingState::Whole => Some("its training state is here".to_owned()),
            TrainingState::Gone { thinned } => Some(format!(
                "its training state {}: a step that goes on from it starts a fresh optimizer",
                if thinned {
                    "was taken by retention"
                } else {
                    "is not here"
                }
            )),
        },
    );
    for (name, component) in &manifest.content.components {
        let place = if component.path.is_empty() {
            "."
        } else {
            &component.path
        };
        fact(
            "component",
            Some(format!("{name}: {} in {place}", component.kind.as_str())),
        );
    }
    output.text(&text)?;
    if !manifest.content.files.is_empty() {
        let mut table = Table::new(&[">size", "sha256", "file"]);
        for file in &manifest.content.files {
            table.row([format::bytes(file.size), format::short(&file.sha256), file.path.clone()]);
        }
        output.text("\n")?;
        output.text(&table.render(output.colored()))?;
    }
    Ok(Exit::Ok)
}

fn provenance(manifest: &Manifest, fact: &mut impl FnMut(&str, Option<String>)) {
    let from = &manifest.provenance;
    fact("recipe", from.recipe.clone());
    fact("batch", from.batch_id.as_ref().map(ToString::to_string));
    fact("seed", from.seed.map(|n| n.to_string()));
    fact("made by", from.code_version.as_ref().map(|v| format!("reef {v}")));
    fact("note", from.note.clone());
    if let Some(verdict) = &from.verdict {
        fact(
            "verdict",
            Some(format!(
                "{} by {}: {}",
                verdict.outcome.as_str(),
                verdict.selector,
                verdict.reason
            )),
        );
    }
    for (name, value) in &from.metrics {
        fact("metric", Some(format!("{name} = {value}")));
    }
}
