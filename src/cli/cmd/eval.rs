//! `reef eval`

use std::path::{Path, PathBuf};

use clap::Args;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::release::chain::{Chain, ScenarioOption};
use crate::cli::output::Output;
use crate::cli::progress::{Progress, Spinner};
use crate::cli::table::Table;
use crate::cli::{CliError, Context, Exit, engines, format, learning, openmp};
use crate::domain::{Outcome, ReleaseId, Verdict};
use crate::eval::{self, Answers, Draw, EvalError, ReadyTask, Suite, Terms};
use crate::recipe::{EvaluatorKind, GateSpec, SelectorKind};
use crate::release::Hold;
use crate::scenario::{Hands, files_of};

/// Measure a release on a task suite, alone or against another one
///
/// Both sides answer the same tasks with the embedded model (inference.model-path), pair by pair; a provider elsewhere
/// cannot be given the weights of a release. With --against, the rule is the paired sequential test (or --selector);
/// without it the release is measured alone and --floor decides.
///
/// --answers shows what was answered; --json always does.
///
/// Exit codes: 0 better (or the floor is reached), 10 not better, 11 undecided, 12 too much could not be measured (a
/// grader that fails, say), which says nothing of the release.
#[derive(Debug, Args)]
pub(crate) struct EvalArgs {
    /// The release: head (the default), head~1, the first digits of an id, or a directory with an adapter or a model
    #[arg(default_value = "head")]
    release: String,
    /// The release to compare with
    #[arg(long, value_name = "RELEASE")]
    against: Option<String>,
    /// The task suite: a directory or a .jsonl file [default: that of the recipe's gate]
    #[arg(long, value_name = "DIR")]
    suite: Option<PathBuf>,
    /// Runs of each task; with --against, the most pairs per task
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    trials: Option<u32>,
    /// The rule with --against: paired or win-margin
    #[arg(long, value_name = "RULE", requires = "against")]
    selector: Option<String>,
    /// Error probability of the paired rule
    #[arg(long, value_name = "P", requires = "against")]
    alpha: Option<f64>,
    /// Without --against: the score every run must reach
    #[arg(long, value_name = "SCORE", conflicts_with = "against")]
    floor: Option<f64>,
    /// Show what each side answered, and why a side has no score
    #[arg(long)]
    answers: bool,
    #[command(flatten)]
    scenario: ScenarioOption,
}

pub(crate) fn run(context: &Context, args: EvalArgs) -> Result<Exit, CliError> {
    let settings = context.settings()?;
    let recipe = learning::recipe(settings)?;
    let gate = recipe.as_ref().map(|recipe| recipe.gate.clone()).unwrap_or_default();
    let path = args
        .suite
        .clone()
        .or_else(|| {
            let directory = eval::directory_or_here(recipe.as_ref()?.directory.as_deref());
            Some(directory.join(gate.suite.as_ref()?))
        })
        .ok_or_else(|| {
            CliError::new(Exit::Usage, "no task suite is named")
                .hint("give one with --suite DIR, or name a recipe whose gate has one")
        })?;
    let suite = Suite::load(&path).map_err(CliError::from)?;
    let spec = spec(
        &args,
        gate,
        &suite,
        recipe.as_ref().map_or(1, |recipe| recipe.gate.repeats),
    )?;
    if let Some((key, rule)) = spec.fault() {
        return Err(CliError::new(Exit::Usage, format!("{key} {rule}")));
    }
    openmp::settle_for(context, settings)?;
    let built = {
        let _spinner = Spinner::start(context.output(), "loading the engine");
        engines::build(settings)?
    };
    if built.torch.is_none() {
        return Err(CliError::new(
            Exit::Usage,
            "reef eval needs the embedded model: a provider elsewhere cannot be given the weights of a release",
        )
        .hint("name the model with inference.model-path, in the deployment file given with -c or in the flag of that name"));
    }
    let hands = Hands::measuring(&built.engine, built.torch.as_ref(), engines::judge(settings)?);
    let kept = Answers::default();
    let (mut verdict, measured) = context.block_on(async {
        let chain = Chain::open(context, &args.scenario).await?;
        let candidate = named(&chain, &args.release)?;
        let against = args.against.as_deref().map(|text| named(&chain, text)).transpose()?;
        let questions = eval::suite_questions(&suite);
        let terms = Terms {
            spec: &spec,
            level: spec.alpha,
            seed: &suite.digest,
            draw: Draw::Repeated,
            evaluator: "suite",
            answers: Some(&kept),
            reference: None,
        };
        let total = u64::from(spec.maximum_pairs);
        let progress = Mutex::new(Progress::start(context.output(), "measuring", Some(total)));
        let watch = |pairs: usize| progress.lock().set(pairs as u64, None);
        let cancel = CancellationToken::new();
        let verdict = hands
            .contest(
                "eval",
                &terms,
                &questions,
                candidate.files.as_deref(),
                against.as_ref().map(|side| side.files.as_deref()),
                &cancel,
                &watch,
            )
            .await?;
        Ok((verdict, (candidate.release, against.and_then(|side| side.release))))
    })?;
    kept.put_into(&mut verdict);
    show(context, &args, &suite, &verdict, measured)?;
    Ok(match verdict.outcome {
        Outcome::Selected => Exit::Ok,
        Outcome::Rejected => Exit::Rejected,
        Outcome::Inconclusive | Outcome::Held => Exit::Inconclusive,
        Outcome::Invalid => Exit::Invalid,
    })
}

fn spec(args: &EvalArgs, gate: GateSpec, suite: &Suite, trials: u32) -> Result<GateSpec, CliError> {
    let trials = args.trials.unwrap_or(trials);
    let tasks = u32::try_from(suite.tasks.len()).unwrap_or(u32::MAX);
    let selector = match (args.against.is_some(), args.selector.as_deref()) {
        (false, _) => SelectorKind::Floor,
        (true, None | Some("paired")) => SelectorKind::Paired,
        (true, Some("win-margin")) => SelectorKind::WinMargin,
        (true, Some(other)) => {
            return Err(
                CliError::new(Exit::Usage, format!("there is no rule {other}")).hint("use paired or win-margin")
            );
        }
    };
    let runs = trials.saturating_mul(tasks).max(1);
    let maximum_pairs = match (selector, args.trials) {
        (SelectorKind::Paired, None) => gate.maximum_pairs,
        _ => runs,
    };
    Ok(GateSpec {
        selector,
        evaluator: EvaluatorKind::Suite,
        suite: Some(suite.name.clone()),
        alpha: args.alpha.unwrap_or(gate.alpha),
        maximum_pairs,
        minimum_pairs: gate.minimum_pairs.min(maximum_pairs),
        floor_score: args.floor.unwrap_or(gate.score_range[0]),
        repeats: trials,
        ..gate
    })
}

/// What a person named: a release, or files that are none.
struct Named {
    release: Option<ReleaseId>,
    files: Option<PathBuf>,
    /// What is held is not thinned while it is measured.
    _held: Option<Hold>,
}

fn named(chain: &Chain, text: &str) -> Result<Named, CliError> {
    let path = Path::new(text);
    if path.is_dir() {
        return Ok(Named {
            release: None,
            files: Some(path.to_path_buf()),
            _held: None,
        });
    }
    let release = chain.resolve(text)?;
    let held = chain.publisher.repository().hold(&release)?;
    let files = files_of(&chain.publisher, &release).map_err(|reason| CliError::new(Exit::Usage, reason))?;
    Ok(Named {
        release: Some(release),
        files,
        _held: Some(held),
    })
}

fn show(
    context: &Context,
    args: &EvalArgs,
    suite: &Suite,
    verdict: &Verdict,
    (release_id, against_id): (Option<ReleaseId>, Option<ReleaseId>),
) -> Result<(), CliError> {
    let output = context.output();
    if output.json() {
        let result = json!({
            "release": args.release, "release_id": release_id, "against": args.against, "against_id": against_id,
            "suite": suite.name, "suite_digest": suite.digest, "verdict": verdict,
        });
        return output.object("evaluation", &result);
    }
    if args.answers {
        for task in &suite.tasks {
            show_answers(output, task, verdict)?;
        }
    }
    let mut table = Table::new(&["task", ">runs", ">score", ">against", "note"]);
    for task in &suite.tasks {
        let pairs: Vec<_> = verdict.pairs.iter().filter(|pair| pair.task == task.id).collect();
        if pairs.is_empty() {
            continue;
        }
        let mean = |scores: Vec<f64>| {
            if scores.is_empty() {
                String::new()
            } else {
                format!("{:.3}", scores.iter().sum::<f64>() / scores.len() as f64)
            }
        };
        table.row([
            task.id.clone(),
            pairs.len().to_string(),
            mean(pairs.iter().filter_map(|pair| pair.candidate).collect()),
            mean(pairs.iter().filter_map(|pair| pair.current).collect()),
            pairs.iter().find_map(|pair| pair.failure.clone()).unwrap_or_default(),
        ]);
    }
    output.text(&table.render(output.colored()))?;
    let figure = |key: &str| verdict.figures.get(key).and_then(Value::as_f64);
    if let Some(mean) = figure("candidate_mean") {
        let against = figure("current_mean")
            .map(|mean| format!(" against {mean:.3}"))
            .unwrap_or_default();
        output.line(&format!("mean score {mean:.3}{against}"))?;
    }
    output.line(&format!(
        "{} by {}: {}",
        verdict.outcome.as_str(),
        format::short(&verdict.selector),
        verdict.reason
    ))
}

/// One task with everything that was answered to it.
fn show_answers(output: &Output, task: &ReadyTask, verdict: &Verdict) -> Result<(), CliError> {
    let pairs: Vec<_> = verdict.pairs.iter().filter(|pair| pair.task == task.id).collect();
    if pairs.is_empty() {
        return Ok(());
    }
    let block = |label: &str, text: &str| {
        let text = text.trim_end().replace('\n', "\n             ");
        output.line(&format!("  {label:<10} {text}"))
    };
    output.line(&format!("task {}", task.id))?;
    let asked = task
        .request
        .get("messages")
        .and_then(Value::as_array)
        .and_then(|messages| messages.last());
    if let Some(asked) = asked {
        block(
            "asked",
            &asked["content"]
                .as_str()
                .map_or_else(|| asked["content"].to_string(), str::to_owned),
        )?;
    }
    for pair in pairs {
        let sides = [
            ("answer", &pair.candidate_answer, pair.candidate),
            ("against", &pair.current_answer, pair.current),
        ];
        for (label, answer, score) in sides {
            if let Some(answer) = answer {
                let score = score.map_or_else(|| "no score".to_owned(), |score| format!("scored {score}"));
                block(label, &format!("{answer}\n({score})"))?;
            }
        }
        if let Some(failure) = &pair.failure {
            block("failed", failure)?;
        }
    }
    output.line("")
}

impl From<EvalError> for CliError {
    fn from(error: EvalError) -> Self {
        Self::from_error(Exit::Usage, error)
    }
}
