//! `reef release promote`, `reject` and `rollback`

use clap::Args;
use serde_json::json;

use super::chain::{Chain, ScenarioOption};
use super::remote::remote;
use crate::cli::{CliError, Context, Exit, format};
use crate::release::ReleaseError;
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
    /// The release to serve again: head~1, or the first digits of an id
    release: String,
    /// Why; kept with the release
    #[arg(long, value_name = "TEXT")]
    note: Option<String>,
    #[command(flatten)]
    scenario: ScenarioOption,
}

pub(crate) fn promote(context: &Context, args: PromoteArgs) -> Result<Exit, CliError> {
    let (chain, published) = context.block_on(async {
        let chain = Chain::open(context, &args.scenario).await?;
        let target = chain.resolve(&args.release)?;
        let expect = args.expect.as_deref().map(|text| chain.resolve(text)).transpose()?;
        let published = chain
            .publisher
            .promote(&chain.scenario, &target, expect.as_ref(), args.note)
            .await?;
        chain.publisher.finish_pushes().await;
        Ok((chain, published))
    })?;
    told(context, &chain, &published)
}

pub(crate) fn rollback(context: &Context, args: RollbackArgs) -> Result<Exit, CliError> {
    let (chain, published) = context.block_on(async {
        let chain = Chain::open(context, &args.scenario).await?;
        let target = chain.resolve(&args.release)?;
        let tried = chain
            .publisher
            .rollback(&chain.scenario, &target, args.note.clone())
            .await;
        let published = match (tried, remote(context, None)?) {
            // What was pruned here may still be there.
            (Err(PublishError::Release(ReleaseError::NotRestorable { .. })), Some(remote)) => {
                chain.publisher.restore(remote, target.clone()).await?;
                chain.publisher.rollback(&chain.scenario, &target, args.note).await?
            }
            (tried, _) => tried?,
        };
        chain.publisher.finish_pushes().await;
        Ok((chain, published))
    })?;
    told(context, &chain, &published)
}

pub(crate) fn reject(context: &Context, args: RejectArgs) -> Result<Exit, CliError> {
    let (chain, target) = context.block_on(async {
        let chain = Chain::open(context, &args.scenario).await?;
        let target = chain.resolve(&args.release)?;
        chain.publisher.reject(&chain.scenario, &target, args.note).await?;
        Ok((chain, target))
    })?;
    let output = context.output();
    if output.json() {
        output.object(
            "rejected",
            &json!({"scenario": chain.scenario, "release_id": target, "head": chain.head}),
        )?;
    } else {
        output.note(&format!("release {} is rejected", format::short(target.as_str())));
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
