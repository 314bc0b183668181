//! `reef model`

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use crate::cli::progress::{Progress, Spinner};
use crate::cli::table::Table;
use crate::cli::{CliError, Context, Exit, format};
use crate::config::Secret;
use crate::engine::models::{ModelError, ModelStore, ModelSummary, PullOptions, PullSource, StoredDtype, pull};
use crate::sys::net::unfit_for_a_header;

/// Import, download, list and show models for the embedded engine
#[derive(Debug, Args)]
pub(crate) struct ModelArgs {
    #[command(subcommand)]
    command: ModelCommand,
}

#[derive(Debug, Subcommand)]
enum ModelCommand {
    /// Import a GGUF file or a Hugging Face folder
    Import(ImportArgs),
    /// List the imported models
    List(ListArgs),
    /// Download a model and import it
    Pull(PullArgs),
    /// Show what is known of one model
    Show(ShowArgs),
}

#[derive(Debug, Args)]
struct PlaceArgs {
    /// Directory of models; the default is `models` in the directory of Reef's files
    #[arg(long, value_name = "DIR")]
    models: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct ImportArgs {
    /// GGUF file, or folder with config.json and safetensors
    path: PathBuf,
    /// Name of the model; the default is the name of the file or folder
    #[arg(long)]
    name: Option<String>,
    /// Storage type of weights converted from GGUF
    #[arg(long, value_enum, default_value_t = Dtype::F32)]
    dtype: Dtype,
    #[command(flatten)]
    place: PlaceArgs,
}

#[derive(Debug, Args)]
struct PullArgs {
    /// `hf://ORG/NAME[@REVISION]`, or the URL of a GGUF file
    source: String,
    /// Name of the model; the default is the last part of the source
    #[arg(long)]
    name: Option<String>,
    /// Storage type of weights converted from GGUF
    #[arg(long, value_enum, default_value_t = Dtype::F32)]
    dtype: Dtype,
    /// Checksum that the file must have
    #[arg(long, value_name = "HEX")]
    sha256: Option<String>,
    #[command(flatten)]
    place: PlaceArgs,
}

#[derive(Debug, Args)]
struct ListArgs {
    #[command(flatten)]
    place: PlaceArgs,
}

#[derive(Debug, Args)]
struct ShowArgs {
    /// Name of the model, or path of its folder
    name: String,
    #[command(flatten)]
    place: PlaceArgs,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Dtype {
    /// Four bytes a weight, exact for every GGUF encoding
    F32,
    /// Two bytes a weight
    Bf16,
}

impl From<Dtype> for StoredDtype {
    fn from(dtype: Dtype) -> Self {
        match dtype {
            Dtype::F32 => Self::F32,
            Dtype::Bf16 => Self::Bf16,
        }
    }
}

/// Runs the command.
pub(crate) fn run(context: &Context, args: ModelArgs) -> Result<Exit, CliError> {
    match args.command {
        ModelCommand::Import(args) => import(context, &args),
        ModelCommand::List(args) => list(context, &args),
        ModelCommand::Pull(args) => pull_model(context, args),
        ModelCommand::Show(args) => show(context, &args),
    }
}

fn store(context: &Context, place: &PlaceArgs) -> Result<ModelStore, CliError> {
    let dir = match &place.models {
        Some(dir) => dir.clone(),
        None => {
            context.claim(context.settings()?);
            context.dir()?.join("models")
        }
    };
    Ok(ModelStore::new(dir))
}

fn import(context: &Context, args: &ImportArgs) -> Result<Exit, CliError> {
    let store = store(context, &args.place)?;
    let name = match &args.name {
        Some(name) => name.clone(),
        None => args
            .path
            .file_name()
            .map(|n| n.to_string_lossy().trim_end_matches(".gguf").to_owned())
            .ok_or_else(|| {
                CliError::new(Exit::Usage, format!("{} has no name", args.path.display())).hint("give one with --name")
            })?,
    };
    let spinner = Spinner::start(context.output(), "importing the model");
    let summary = store.import(&args.path, &name, args.dtype.into())?;
    drop(spinner);
    imported(context, &summary)
}

fn pull_model(context: &Context, args: PullArgs) -> Result<Exit, CliError> {
    let store = store(context, &args.place)?;
    let source = PullSource::parse(&args.source)?;
    let name = args.name.unwrap_or_else(|| source.default_name());
    let options = PullOptions {
        hub: context
            .env("HF_ENDPOINT")
            .unwrap_or("https://huggingface.co")
            .to_owned(),
        token: hub_token(context)?,
        proxies: context.settings()?.proxies()?,
        sha256: args.sha256,
        dtype: args.dtype.into(),
    };
    // Fails only if somebody else installed one first, which serves as well.
    let _already = rustls::crypto::ring::default_provider().install_default();
    let summary = context.block_on(async {
        let mut bar: Option<(String, Progress<'_>)> = None;
        let mut on_progress = |file: &str, done: u64, total: Option<u64>| {
            if bar.as_ref().is_none_or(|(name, _)| name != file) {
                bar = Some((file.to_owned(), Progress::start(context.output(), "downloading", total)));
            }
            if let Some((name, bar)) = &mut bar {
                bar.set(done, Some(name));
            }
        };
        Ok(pull(&store, &source, &name, &options, &mut on_progress).await?)
    })?;
    imported(context, &summary)
}

/// The hub's token, without the line ends that a file leaves at its end.
fn hub_token(context: &Context) -> Result<Option<String>, CliError> {
    let Some(token) = context.env("HF_TOKEN").map(Secret::from_outside) else {
        return Ok(None);
    };
    match unfit_for_a_header(token.expose()) {
        None => Ok(Some(token.expose().to_owned())),
        Some(problem) => Err(CliError::new(Exit::Usage, format!("HF_TOKEN {problem}"))
            .hint("no header can carry it; unset it for models that need no account")),
    }
}

fn imported(context: &Context, summary: &ModelSummary) -> Result<Exit, CliError> {
    let output = context.output();
    if output.json() {
        output.object("model", summary)?;
    } else {
        output.note(&format!("imported {}", summary.name));
        output.line(&summary.path.display().to_string())?;
    }
    Ok(Exit::Ok)
}

fn list(context: &Context, args: &ListArgs) -> Result<Exit, CliError> {
    let models = store(context, &args.place)?.list()?;
    let output = context.output();
    if output.json() {
        output.object("models", &serde_json::json!({ "models": models }))?;
        return Ok(Exit::Ok);
    }
    if models.is_empty() {
        output.note("no models yet; reef model import or reef model pull brings one in");
        return Ok(Exit::Ok);
    }
    let mut table = Table::new(&["name", "architecture", ">parameters", ">context", ">size", "dtype"]);
    for model in models {
        table.row([
            model.name,
            model.architecture.to_owned(),
            millions(model.parameters),
            model.max_positions.to_string(),
            format::bytes(model.weight_bytes),
            model.dtype.unwrap_or_else(|| "-".to_owned()),
        ]);
    }
    output.text(&table.render(output.colored()))?;
    Ok(Exit::Ok)
}

fn show(context: &Context, args: &ShowArgs) -> Result<Exit, CliError> {
    let model = store(context, &args.place)?.show(&args.name)?;
    let output = context.output();
    if output.json() {
        output.object("model", &model)?;
        return Ok(Exit::Ok);
    }
    let template = if model.chat_template { "yes" } else { "no" };
    for (label, value) in [
        ("name", model.name),
        ("path", model.path.display().to_string()),
        ("architecture", model.architecture.to_owned()),
        ("parameters", millions(model.parameters)),
        ("layers", model.layers.to_string()),
        ("hidden size", model.hidden_size.to_string()),
        ("vocabulary", model.vocab_size.to_string()),
        ("context", model.max_positions.to_string()),
        ("weights", format::bytes(model.weight_bytes)),
        ("dtype", model.dtype.unwrap_or_else(|| "-".to_owned())),
        ("chat template", template.to_owned()),
    ] {
        output.line(&format!("{label:<14} {value}"))?;
    }
    Ok(Exit::Ok)
}

fn millions(n: u64) -> String {
    format!("{:.1} M", n as f64 / 1e6)
}

impl From<ModelError> for CliError {
    fn from(error: ModelError) -> Self {
        let exit = match &error {
            ModelError::Download { .. } => Exit::Unavailable,
            ModelError::NotCompiled => Exit::NotCompiled,
            ModelError::Tensor { .. } => Exit::Unexpected,
            _ => Exit::Usage,
        };
        Self::from_error(exit, error)
    }
}
