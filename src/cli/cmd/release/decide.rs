//! `reef release promote`, `reject` and `rollback`

use clap::Args;
use serde_json::json;

use super::chain::{Chain, ScenarioOption};
use super::remote::remote;
use crate::cli::progress::Spinner;
use crate::cli::{CliError, Context, Exit, format};
use crate::domain::{ReleaseId, ScenarioName};
use crate::release::{ReleaseError, TrainingState};
use crate::scenario::{PublishError, Published};

#[derive(Debug, Args)]
pub(crate) struct PromoteArgs {
    /// The held release: the first digits of its id are enough
    release: String,
    /// Refuse (exit 20) when the scenario serves another release than this
    #[arg(long, value_name = "HEAD")]
    expect: Option<String>,
    /// Why; kept with the release
    #[arg(long, value_name = "TEXT")]
    note: Option<String>,
    #[command(flatten)]
    scenario: ScenarioOption,
}

#[derive(Debug, Args)]
pub(crate) struct RejectArgs {
    /// The held release: the first digits of its id are enough
    release: String,
    /// Why; kept with the release
    #[arg(long, value_name = "TEXT")]
    note: Option<String>,
    #[command(flatten)]
    scenario: ScenarioOption,
}

#[derive(Debug, Args)]
pub(crate) struct RollbackArgs {
    /// The release to serve again: head~1, or the first digits of an id. head~1 counts from the newest release that is
    /// no rollback, so that saying it again changes nothing
    release: String,
    /// Refuse (exit 20) when the scenario serves another release than this
    #[arg(long, value_name = "HEAD")]
    expect: Option<String>,
    /// Why; kept with the release
    #[arg(long, value_name = "TEXT")]
    note: Option<String>,
    #[command(flatten)]
    scenario: ScenarioOption,
}

/// A decision on a release.
#[derive(Debug, Clone)]
pub(crate) enum Kind {
    /// Serve a held one, if the scenario serves `expect`.
    Promote { expect: Option<String> },
    /// Refuse a held one.
    Reject,
    /// Serve an older one again, if the scenario serves `expect`.
    Rollback { expect: Option<String> },
}

/// What came of a decision.
pub(crate) enum Decided {
    /// A release was appended, or was there already.
    Published { chain: Chain, published: Published },
    /// It was refused.
    Rejected { chain: Chain, release: ReleaseId },
}

/// Carries a decision out; `target` is what a person wrote.
pub(crate) async fn decide(
    context: &Context,
    scenario: Option<ScenarioName>,
    target: &str,
    kind: Kind,
    note: Option<String>,
) -> Result<Decided, CliError> {
    let chain = Chain::open(context, &ScenarioOption { scenario }).await?;
    let target = match kind {
        Kind::Rollback { .. } => chain.resolve_for_rollback(target)?,
        Kind::Promote { .. } | Kind::Reject => chain.resolve(target)?,
    };
    let (publisher, name) = (&chain.publisher, &chain.scenario);
    let published = match kind {
        Kind::Reject => {
            publisher.reject(name, &target, note).await?;
            publisher.finish_pushes().await;
            return Ok(Decided::Rejected { chain, release: target });
        }
        Kind::Promote { expect } => {
            let expect = expect.map(|text| chain.resolve(&text)).transpose()?;
            publisher.promote(name, &target, expect.as_ref(), note).await?
        }
        Kind::Rollback { expect } => {
            let expect = expect.map(|text| chain.resolve(&text)).transpose()?;
            let tried = publisher.rollback(name, &target, expect.as_ref(), note.clone()).await;
            match (tried, remote(context, None)?) {
                // What was pruned here may still be there.
                (Err(PublishError::Release(ReleaseError::NotRestorable { .. })), Some(remote)) => {
                    publisher.restore(remote, target.clone()).await?;
                    publisher.rollback(name, &target, expect.as_ref(), note).await?
                }
                (tried, _) => tried?,
            }
        }
    };
    publisher.finish_pushes().await;
    if let TrainingState::Gone { .. } = publisher.repository().training_state(&published.release_id)? {
        context
            .output()
            .warn("the training state of what is served now is not here: the next step starts a fresh optimizer");
    }
    Ok(Decided::Published { chain, published })
}

pub(crate) fn promote(context: &Context, args: PromoteArgs) -> Result<Exit, CliError> {
    let kind = Kind::Promote { expect: args.expect };
    let spinner = Spinner::start(context.output(), "publishing");
    let decided = context.block_on(decide(context, args.scenario.scenario, &args.release, kind, args.note))?;
    drop(spinner);
    say(context, &decided)
}

pub(crate) fn rollback(context: &Context, args: RollbackArgs) -> Result<Exit, CliError> {
    let kind = Kind::Rollback { expect: args.expect };
    let work = decide(context, args.scenario.scenario, &args.release, kind, args.note);
    let spinner = Spinner::start(context.output(), "publishing");
    let decided = context.block_on(work)?;
    drop(spinner);
    let exit = say(context, &decided)?;
    if let Decided::Published { published, .. } = &decided
        && !published.appended
        && args.release.to_ascii_lowercase().starts_with("head~")
    {
        context
            .output()
            .note("to go further back, name a release by its id: reef release list shows them");
    }
    Ok(exit)
}

pub(crate) fn reject(context: &Context, args: RejectArgs) -> Result<Exit, CliError> {
    let work = decide(context, args.scenario.scenario, &args.release, Kind::Reject, args.note);
    say(context, &context.block_on(work)?)
}

fn say(context: &Context, decided: &Decided) -> Result<Exit, CliError> {
    let output = context.output();
    match decided {
        Decided::Published { chain, published } => return told(context, chain, published),
        Decided::Rejected { chain, release } if output.json() => output.object(
            "rejected",
            &json!({"scenario": chain.scenario, "release_id": release, "head": chain.head}),
        )?,
        Decided::Rejected { release, .. } => {
            output.note(&format!("release {} is rejected", format::short(release.as_str())));
        }
    }
    Ok(Exit::Ok)
}

/// Says what was released; nothing new is exit 0 too, for a script that repeats itself.
pub(super) fn told(context: &Context, chain: &Chain, published: &Published) -> Result<Exit, CliError> {
    let output = context.output();
    if output.json() {
        output.object(
            "published",
            &json!({
                "scenario": chain.scenario,
                "release_id": published.release_id,
                "content_id": published.content_id,
                "step": published.step,
                "held": published.held,
                "appended": published.appended,
                "previous_head": chain.head,
            }),
        )?;
        return Ok(Exit::Ok);
    }
    output.line(published.release_id.as_str())?;
    output.note(&if !published.appended {
        format!("scenario {} serves it already", chain.scenario)
    } else if published.held {
        format!(
            "held for review: reef release promote {}",
            format::short(published.release_id.as_str())
        )
    } else {
        format!("scenario {} serves it now", chain.scenario)
    });
    Ok(Exit::Ok)
}
