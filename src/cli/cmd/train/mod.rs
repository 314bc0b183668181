//! `reef train`

mod steps;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::{Args, Subcommand};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::cli::context::Store;
use crate::cli::disk::sentence;
use crate::cli::progress::{Progress, Spinner};
use crate::cli::publishing::room;
use crate::cli::{CliError, Context, Exit, begin, engines, format, learning, logging, openmp, pages};
use crate::domain::{Outcome, ScenarioName};
use crate::experience::Experience;
use crate::recipe::TrainerKind;
use crate::scenario::{Ask, Driver, Ended, Lease, Live, LoopEvent, Turn};
use crate::sys::clock;

/// How often a watching command looks for new experience.
const LOOK: Duration = Duration::from_secs(1);

/// Make training steps from the stored experience: batch, step, gate, release
///
/// Without --steps or --watch it goes on until nothing is left to do. It works with or without a running server; one
/// process at a time drives a scenario.
///
/// Exit codes: 0 a candidate was released or held, 3 nothing to do, 10 no candidate passed the gate, 11 the gate could
/// not decide, 12 the gate could not measure, 50 another process drives the scenario.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct TrainArgs {
    #[command(subcommand)]
    command: Option<TrainCommand>,
    /// Only this scenario; otherwise every one, in turn
    #[arg(short, long, value_name = "NAME")]
    scenario: Vec<ScenarioName>,
    /// Stop after this many steps
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    steps: Option<u64>,
    /// Go on until nothing is left to do (the default)
    #[arg(long, conflicts_with = "watch")]
    until_idle: bool,
    /// Go on for ever, waiting for new experience
    #[arg(long)]
    watch: bool,
    /// Do not wait for a full batch: train on whatever is complete
    #[arg(long)]
    now: bool,
    /// Give up when a failing step is to be tried again later than this many seconds from now
    #[arg(long, value_name = "SECONDS", default_value_t = 60.0)]
    patience: f64,
    /// At the end, write the figures of every step into this HTML file, which needs nothing else
    #[arg(long, value_name = "FILE", conflicts_with = "watch")]
    report: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum TrainCommand {
    /// Show the steps in progress: how far each is, and why it is tried again
    Show(steps::ShowArgs),
    /// Give up the step in progress of a scenario
    ///
    /// Its batch is used up by a skipped step, so that what waits behind it gets its turn. A service that runs goes on by
    /// itself; it need not be stopped.
    Drop(steps::DropArgs),
}

/// What came of it.
#[derive(Debug, Default)]
struct Tally {
    steps: u64,
    released: u64,
    inconclusive: u64,
    rejected: u64,
}

impl Tally {
    fn note(&mut self, ended: &Ended) {
        self.steps += u64::from(ended.step.is_some());
        match ended.outcome {
            "released" | "held" => self.released += 1,
            "rejected" => self.rejected += 1,
            _ => {}
        }
    }

    /// Says as an event what came of it, and of the scenarios that cannot go on why.
    fn told(&self, context: &Context, blocked: &[Value]) -> Result<Exit, CliError> {
        let output = context.output();
        if output.json() {
            let ended = json!({
                "steps": self.steps, "released": self.released, "rejected": self.rejected,
                "inconclusive": self.inconclusive, "blocked": blocked,
            });
            output.event("ended", &ended)?;
        }
        Ok(self.exit())
    }

    fn exit(&self) -> Exit {
        if self.released > 0 {
            Exit::Ok
        } else if self.inconclusive > 0 && self.inconclusive == self.rejected {
            Exit::Inconclusive
        } else if self.rejected > 0 {
            Exit::Rejected
        } else if self.steps > 0 {
            Exit::Ok
        } else {
            Exit::Nothing
        }
    }
}

pub(crate) fn run(context: &Context, mut args: TrainArgs) -> Result<Exit, CliError> {
    match args.command.take() {
        Some(TrainCommand::Show(args)) => return steps::show(context, &args),
        Some(TrainCommand::Drop(args)) => return steps::drop(context, &args),
        None => {}
    }
    if let Some(path) = &args.report {
        pages::check(path)?;
    }
    let _tracing = logging::for_training(context, context.settings()?);
    let recipe = learning::recipe_needed(context)?;
    if !recipe.learns() {
        return Err(
            CliError::new(Exit::Usage, format!("recipe {} only records", recipe.name))
                .hint("name a recipe that learns: sao, grpo, sft, or one of your own"),
        );
    }
    let settings = context.settings()?;
    if recipe.trainer.backend == TrainerKind::Torch || learning::gate_answers(&recipe) {
        openmp::settle(context)?;
    }
    let (work, run_dir) = (learning::work_dir(settings), settings.storage.run_dir());
    let built = if learning::gate_answers(&recipe) {
        let _spinner = Spinner::start(context.output(), "loading the engine");
        Some(engines::build(settings)?)
    } else {
        None
    };
    let hands = learning::hands(settings, &recipe, built.as_ref())?;
    let (report, wanted) = (args.report.clone(), args.scenario.clone());
    let exit = context.block_on(async move {
        // Without a name there must be something to train; a scenario that is named begins here if it has to.
        let fresh = args.scenario.is_empty() && !settings.storage.experience_db().exists();
        let publisher = context.publisher(if fresh { Store::MustExist } else { Store::Create })?;
        publisher.keep_within(room(context, settings));
        let names = if args.scenario.is_empty() {
            publisher
                .experience()
                .scenarios(false)?
                .into_iter()
                .map(|scenario| scenario.name)
                .collect()
        } else {
            args.scenario.clone()
        };
        let mut leases = Vec::with_capacity(names.len());
        for name in &names {
            let lease = Lease::take(&run_dir, name, "reef train")?;
            begin::ensure(context, &publisher, name).await?;
            leases.push(lease);
        }
        let driver = Driver::new(publisher.clone(), recipe, Live::Detached, hands, work);
        let exit = drive(context, &driver, publisher.experience(), &leases, &args).await?;
        match publisher.finish_thinning().await {
            Ok(Some(thinned)) if thinned.objects > 0 => context.output().note(&sentence(&thinned, false)),
            Ok(_) => {}
            // What was trained is released; the next collection makes good for this one.
            Err(error) => context
                .output()
                .warn(&format!("space could not be taken back: {error}")),
        }
        Ok(exit)
    })?;
    if let Some(path) = report {
        match pages::training(context, &path, &wanted) {
            Ok(()) if context.output().json() => context.output().event("report", &json!({"file": path}))?,
            Ok(()) => {}
            // What came of the training is what the exit code says.
            Err(error) => context.output().warn(&format!("there is no report: {error}")),
        }
    }
    Ok(exit)
}

async fn drive(
    context: &Context,
    driver: &Driver,
    experience: &Experience,
    leases: &[Lease],
    args: &TrainArgs,
) -> Result<Exit, CliError> {
    let mut tally = Tally::default();
    let cancel = CancellationToken::new();
    let mut told: HashMap<&ScenarioName, i64> = HashMap::new();
    let ask = if args.now { Ask::Now } else { Ask::Automatic };
    // Whether the last verdict was that nothing could be measured.
    let invalid = AtomicBool::new(false);
    loop {
        let mut busy = false;
        let mut wake: Option<i64> = None;
        let mut idle = Vec::new();
        for lease in leases {
            match turn(context, driver, lease, ask, &cancel, &invalid).await? {
                Turn::Ended(ended) => {
                    busy = true;
                    tally.note(&ended);
                    say(context, lease.scenario(), &ended)?;
                    let undecided = ended.metrics.get("gate_outcome").and_then(Value::as_str) == Some("inconclusive");
                    tally.inconclusive += u64::from(undecided);
                    if args.steps.is_some_and(|limit| tally.steps >= limit) {
                        return tally.told(context, &[]);
                    }
                }
                Turn::Waiting { until_us, error } => {
                    let seconds = (until_us - clock::now_us()).max(0) as f64 / 1e6;
                    if !args.watch && seconds > args.patience {
                        let exit = if invalid.load(Ordering::Relaxed) {
                            Exit::Invalid
                        } else {
                            Exit::Unexpected
                        };
                        return Err(CliError::new(
                            exit,
                            format!("the step of scenario {} keeps failing: {error}", lease.scenario()),
                        )
                        .hint(format!(
                            "it is tried again in {seconds:.0} s; reef train goes on where it was"
                        ))
                        .hint(format!(
                            "reef train drop --scenario {} gives its batch up",
                            lease.scenario()
                        )));
                    }
                    // Each failure is told once; another look at one that waits is no news.
                    if told.insert(lease.scenario(), until_us) != Some(until_us) {
                        context
                            .output()
                            .note(&format!("{}: {error}; tried again in {seconds:.0} s", lease.scenario()));
                    }
                    wake = Some(wake.map_or(until_us, |other| other.min(until_us)));
                }
                Turn::Idle { blocked, .. } => {
                    if let Some(reason) = blocked.filter(|_| !args.watch) {
                        context.output().note(&format!("{}: {reason}", lease.scenario()));
                        idle.push(json!({"scenario": lease.scenario(), "reason": reason}));
                    }
                }
            }
        }
        if busy {
            continue;
        }
        match wake {
            Some(until_us) => {
                let micros = u64::try_from(until_us - clock::now_us()).unwrap_or(0);
                context.pause(Duration::from_micros(micros).min(LOOK)).await?;
            }
            None if args.watch => context.pause(LOOK).await?,
            None => {
                if tally.steps == 0 {
                    context.output().note(if args.now {
                        "nothing to train: no complete sample waits"
                    } else {
                        "nothing to train: no batch is complete (--now takes what is there)"
                    });
                    left_out(context, experience, leases, &mut idle)?;
                }
                return tally.told(context, &idle);
            }
        }
    }
}

/// Says why records do not train, by reason: the usual cause of an empty batch.
fn left_out(
    context: &Context,
    experience: &Experience,
    leases: &[Lease],
    blocked: &mut Vec<Value>,
) -> Result<(), CliError> {
    let facts = experience.loop_facts()?;
    for lease in leases {
        let Some(excluded) = facts.get(lease.scenario()).map(|facts| &facts.excluded) else {
            continue;
        };
        if excluded.is_empty() {
            continue;
        }
        let words: Vec<String> = excluded.iter().map(|(reason, n)| format!("{reason} {n}")).collect();
        context.output().note(&format!(
            "{}: records excluded from training: {} (reasons: docs/design/loop.md)",
            lease.scenario(),
            words.join(", ")
        ));
        blocked.push(json!({"scenario": lease.scenario(), "excluded": excluded}));
    }
    Ok(())
}

/// One turn, with its progress shown.
async fn turn(
    context: &Context,
    driver: &Driver,
    lease: &Lease,
    ask: Ask,
    cancel: &CancellationToken,
    invalid: &AtomicBool,
) -> Result<Turn, CliError> {
    let output = context.output();
    let scenario = lease.scenario();
    let progress: Mutex<Option<(bool, Progress<'_>)>> = Mutex::new(None);
    let show = |judging: bool, done: u64, total: u64, message: &str| {
        let mut slot = progress.lock();
        if slot.as_ref().is_none_or(|(kind, _)| *kind != judging) {
            let what = if judging { "judging pairs" } else { "training" };
            *slot = Some((judging, Progress::start(output, what, Some(total))));
        }
        if let Some((_, bar)) = slot.as_mut() {
            bar.set(done, Some(message).filter(|message| !message.is_empty()));
        }
    };
    let watch = |event: &LoopEvent| {
        if let LoopEvent::Judged { outcome, .. } = event {
            invalid.store(*outcome == Outcome::Invalid.as_str(), Ordering::Relaxed);
        }
        // A reader that went away is noticed by the next write of data.
        let _gone = match event {
            LoopEvent::Sealed { batch, samples } if output.json() => output.event(
                "sealed",
                &json!({"scenario": scenario, "batch_id": batch, "samples": samples}),
            ),
            LoopEvent::Sealed { batch, samples } => {
                output.note(&format!(
                    "{scenario}: batch {} of {samples} samples",
                    format::short(batch.as_str())
                ));
                Ok(())
            }
            LoopEvent::Training { fraction, message } => {
                show(false, (fraction * 100.0) as u64, 100, message);
                Ok(())
            }
            LoopEvent::Judging { pairs, of } => {
                show(true, *pairs as u64, *of as u64, "");
                Ok(())
            }
            LoopEvent::Trained { metrics } if output.json() => {
                output.event("trained", &json!({"scenario": scenario, "metrics": metrics}))
            }
            LoopEvent::Judged { outcome, reason } if output.json() => output.event(
                "judged",
                &json!({"scenario": scenario, "outcome": outcome, "reason": reason}),
            ),
            LoopEvent::FreshState { release, thinned } if output.json() => output.event(
                "fresh_state",
                &json!({"scenario": scenario, "release_id": release, "thinned": thinned}),
            ),
            LoopEvent::FreshState { release, thinned } => {
                output.note(&format!(
                    "{scenario}: the training state of {} {}; this step starts a fresh optimizer",
                    format::short(release.as_str()),
                    if *thinned {
                        "was taken by retention"
                    } else {
                        "is not here"
                    }
                ));
                Ok(())
            }
            LoopEvent::Failed { error } if output.json() => {
                output.event("failed", &json!({"scenario": scenario, "error": error}))
            }
            LoopEvent::Failed { .. } | LoopEvent::Trained { .. } | LoopEvent::Judged { .. } => Ok(()),
        };
    };
    Ok(driver.turn(lease, ask, cancel, &watch).await?)
}

fn say(context: &Context, scenario: &ScenarioName, ended: &Ended) -> Result<(), CliError> {
    let output = context.output();
    if output.json() {
        return output.event(
            "step",
            &json!({
                "scenario": scenario, "step": ended.step, "batch_id": ended.batch, "outcome": ended.outcome,
                "reason": ended.reason, "release_id": ended.release, "metrics": ended.metrics,
                "not_live": ended.not_live,
            }),
        );
    }
    let step = ended
        .step
        .map_or_else(|| "no step".to_owned(), |step| format!("step {step}"));
    let release = ended
        .release
        .as_ref()
        .map(|release| format!(" {}", format::short(release.as_str())))
        .unwrap_or_default();
    output.line(&format!(
        "{scenario} {step} {}{release}: {}",
        ended.outcome, ended.reason
    ))
}
