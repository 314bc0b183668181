//! `reef release export` and `reef release import`

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde_json::json;

use super::chain::{Chain, ScenarioOption};
use super::decide::told;
use crate::cli::progress::Spinner;
use crate::cli::{CliError, Context, Exit, format, harness};
use crate::domain::Operation;
use crate::release::{ArtifactKind, Component, Provenance, Repository, Source, TrainingState};
use crate::scenario::Candidate;

#[derive(Debug, Args)]
pub(crate) struct ExportArgs {
    /// head, head~1, base, or the first digits of an id
    release: String,
    /// A directory that does not exist yet or is empty
    #[arg(value_name = "DIR")]
    target: PathBuf,
    #[command(flatten)]
    scenario: ScenarioOption,
}

#[derive(Debug, Args)]
pub(crate) struct ImportArgs {
    /// The directory
    #[arg(value_name = "DIR")]
    source: PathBuf,
    /// Hold it for review instead of serving it
    #[arg(long)]
    hold: bool,
    /// What it is, where neither its files nor the manifest of an export tell
    #[arg(long, value_enum, value_name = "KIND")]
    kind: Option<Kind>,
    /// Refuse (exit 20) when the scenario serves another release than this
    #[arg(long, value_name = "HEAD")]
    expect: Option<String>,
    /// Where it comes from; kept with the release
    #[arg(long, value_name = "TEXT")]
    note: Option<String>,
    #[command(flatten)]
    scenario: ScenarioOption,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Kind {
    /// A full model in Hugging Face layout
    Checkpoint,
    /// A LoRA adapter in PEFT layout
    LoraAdapter,
    /// Files an agent's harness reads
    HarnessTree,
    /// Rules that choose a model per request
    RoutingPolicy,
}

impl Kind {
    fn component(self) -> (&'static str, ArtifactKind) {
        match self {
            Self::Checkpoint => ("model", ArtifactKind::Checkpoint),
            Self::LoraAdapter => ("adapter", ArtifactKind::LoraAdapter),
            Self::HarnessTree => ("harness", ArtifactKind::HarnessTree),
            Self::RoutingPolicy => ("routing", ArtifactKind::RoutingPolicy),
        }
    }
}

pub(crate) fn export(context: &Context, args: &ExportArgs) -> Result<Exit, CliError> {
    let chain = context.block_on(Chain::open(context, &args.scenario))?;
    let id = chain.resolve(&args.release)?;
    let spinner = Spinner::start(context.output(), "writing the files of the release");
    let repository = chain.publisher.repository();
    // Nothing of it goes while it is copied.
    let held = repository.hold(&id)?;
    let training = repository.training_state(&id)?;
    let manifest = repository.export(&id, &args.target)?;
    drop((held, spinner));
    let output = context.output();
    if let TrainingState::Gone { .. } = training {
        output.warn(
            "its training state is not here, so it was left out: the release serves as before, and training that goes on \
             from it starts a fresh optimizer",
        );
    }
    if output.json() {
        output.object(
            "exported",
            &json!({
                "release_id": id,
                "content_id": manifest.content_id,
                "kind": manifest.content.kind(),
                "files": manifest.content.files.len(),
                "bytes": manifest.content.total_bytes(),
                "dir": args.target,
                "training_state": training.as_str(),
            }),
        )?;
    } else {
        output.note(&format!(
            "wrote {} ({}, {} files, {}) to {}",
            format::short(id.as_str()),
            manifest.content.kind(),
            manifest.content.files.len(),
            format::bytes(manifest.content.total_bytes()),
            args.target.display()
        ));
    }
    Ok(Exit::Ok)
}

pub(crate) fn import(context: &Context, args: ImportArgs) -> Result<Exit, CliError> {
    if !args.source.is_dir() {
        return Err(CliError::new(
            Exit::Usage,
            format!("there is no directory at {}", args.source.display()),
        ));
    }
    harness::check_release(context.settings()?, &args.source)?;
    let components = match args.kind {
        Some(kind) => {
            let (name, kind) = kind.component();
            let component = Component {
                kind,
                path: String::new(),
            };
            BTreeMap::from([(name.to_owned(), component)])
        }
        None => Repository::recognise(&args.source)?,
    };
    let spinner = Spinner::start(context.output(), "publishing");
    let (chain, published) = context.block_on(async {
        let chain = Chain::begin(context, &args.scenario).await?;
        let expected = match &args.expect {
            Some(text) => chain.resolve(text)?,
            None => chain.head.clone(),
        };
        let name = args.source.file_name().map_or_else(
            || args.source.display().to_string(),
            |name| name.to_string_lossy().into_owned(),
        );
        let published = chain
            .publisher
            .publish(Candidate {
                scenario: chain.scenario.clone(),
                dir: args.source,
                components: Some(components),
                expected,
                operation: Operation::Import,
                held: args.hold,
                source: Source::Import { from: name },
                provenance: Provenance {
                    note: args.note,
                    ..Provenance::default()
                },
                batch: None,
            })
            .await?;
        chain.publisher.finish_pushes().await;
        Ok((chain, published))
    })?;
    drop(spinner);
    told(context, &chain, &published)
}
