//! `reef bench`

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::cli::{CliError, Context, Exit};

/// Measure how fast this machine runs
#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    command: BenchCommand,
}

#[derive(Debug, Subcommand)]
enum BenchCommand {
    /// Measure decoding and prompt speed of a model
    Model(ModelArgs),
}

#[derive(Debug, Args)]
struct ModelArgs {
    /// Folder of the model
    path: PathBuf,
    /// Precision of weights and activations: f32 or bf16
    #[arg(long, default_value = "f32")]
    dtype: String,
    /// Threads of the tensor library
    #[arg(long, default_value_t = 1)]
    threads: u16,
    /// Sequences decoded together
    #[arg(long, value_delimiter = ',', default_values_t = [1, 8])]
    batch: Vec<usize>,
    /// Tokens decoded by each sequence
    #[arg(long, default_value_t = 64)]
    tokens: usize,
    /// Length of the prompt
    #[arg(long, default_value_t = 512)]
    prompt: usize,
    /// Repetitions; the best counts
    #[arg(long, default_value_t = 3)]
    repeats: usize,
}

/// Runs the command.
pub(crate) fn run(context: &Context, args: BenchArgs) -> Result<Exit, CliError> {
    match args.command {
        BenchCommand::Model(args) => model(context, &args),
    }
}

fn model(context: &Context, args: &ModelArgs) -> Result<Exit, CliError> {
    use crate::engine::torch::model::{BenchPlan, Model, measure};
    let kind = match args.dtype.as_str() {
        "f32" => tch::Kind::Float,
        "bf16" => tch::Kind::BFloat16,
        other => return Err(CliError::new(Exit::Usage, format!("unknown dtype {other}"))),
    };
    tch::set_num_threads(i32::from(args.threads));
    let model = Model::load(&args.path, kind, tch::Device::Cpu)?;
    let report = measure(
        &model,
        &BenchPlan {
            batches: args.batch.clone(),
            n_tokens: args.tokens,
            n_prompt: args.prompt,
            repeats: args.repeats,
        },
    )?;
    context.output().object("bench", &report)?;
    Ok(Exit::Ok)
}
