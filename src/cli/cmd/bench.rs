//! `reef bench`

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use crate::cli::{CliError, Context, Exit, format, openmp};
use crate::engine::models::{BenchPlan, ModelStore};
use crate::engine::torch::{Dtype, bench_model};

/// Measure how fast this machine runs a model
#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    command: BenchCommand,
}

#[derive(Debug, Subcommand)]
enum BenchCommand {
    /// Measure prompt and decoding speed of a model, beside what the memory of the machine would allow
    Model(ModelArgs),
}

#[derive(Debug, Args)]
struct ModelArgs {
    /// Name of an imported model, or path of its folder
    model: String,
    /// Directory of models; the default is `models` in the directory of Reef's files
    #[arg(long, value_name = "DIR")]
    models: Option<PathBuf>,
    /// Precision of weights and activations
    #[arg(long, value_enum, default_value_t = Precision::F32)]
    dtype: Precision,
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

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Precision {
    F32,
    Bf16,
}

/// Runs the command.
pub(crate) fn run(context: &Context, args: BenchArgs) -> Result<Exit, CliError> {
    match args.command {
        BenchCommand::Model(args) => model(context, &args),
    }
}

fn model(context: &Context, args: &ModelArgs) -> Result<Exit, CliError> {
    openmp::settle(context)?;
    let dir = match &args.models {
        Some(dir) => dir.clone(),
        None => context.dir()?.join("models"),
    };
    let path = ModelStore::new(dir).resolve(&args.model)?;
    let dtype = match args.dtype {
        Precision::F32 => Dtype::F32,
        Precision::Bf16 => Dtype::Bf16,
    };
    let plan = BenchPlan {
        batches: args.batch.clone(),
        n_tokens: args.tokens,
        n_prompt: args.prompt,
        repeats: args.repeats,
    };
    let report = bench_model(&path, dtype, args.threads, &plan)?;
    let output = context.output();
    if output.json() {
        output.object("bench", &report)?;
        return Ok(Exit::Ok);
    }
    output.line(&format!("{} on {} threads", report.dtype, report.threads))?;
    output.line(&format!("prompt of {}: {:.0} tokens/s", args.prompt, report.prefill))?;
    for (batch, rate) in &report.decode {
        output.line(&format!("decoding {batch}: {rate:.1} tokens/s"))?;
    }
    output.line(&format!(
        "memory: {} a token, copies {}/s, so at most {:.1} tokens/s for one sequence",
        format::bytes(report.bytes_per_token),
        format::bytes(report.copy_bandwidth as u64),
        report.bandwidth_limit
    ))?;
    Ok(Exit::Ok)
}
