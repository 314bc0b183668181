//! `reef release verify` and `reef release gc`

use std::time::Duration;

use clap::Args;
use serde_json::json;

use super::chain::{Chain, ScenarioOption};
use crate::cli::context::Store;
use crate::cli::progress::{Progress, Spinner};
use crate::cli::table::Table;
use crate::cli::{CliError, Context, Exit, format};
use crate::release::{Damage, Scope};

#[derive(Debug, Args)]
pub(crate) struct VerifyArgs {
    /// Releases to verify; everything when none is named
    releases: Vec<String>,
    #[command(flatten)]
    scenario: ScenarioOption,
}

#[derive(Debug, Args)]
pub(crate) struct GcArgs {
    /// Releases of each scenario whose content is kept beside the served one; 0 keeps all [default: release.retention]
    #[arg(long, value_name = "N")]
    keep: Option<u32>,
    /// How long content without a release is kept [default: release.gc-grace-h]
    #[arg(long, value_name = "HOURS")]
    grace: Option<f64>,
    /// Say what would go and let it be
    #[arg(long)]
    dry_run: bool,
}

pub(crate) fn verify(context: &Context, args: &VerifyArgs) -> Result<Exit, CliError> {
    let output = context.output();
    let (publisher, scope) = if args.releases.is_empty() && args.scenario.scenario.is_none() {
        (context.publisher(Store::Shown)?, Scope::Everything)
    } else {
        let chain = context.block_on(Chain::open(context, &args.scenario))?;
        let scope = if args.releases.is_empty() {
            Scope::Chain(chain.head)
        } else {
            let named = args.releases.iter().map(|text| chain.find(text));
            Scope::Releases(named.collect::<Result<_, _>>()?)
        };
        (chain.publisher, scope)
    };
    let mut progress = Progress::start(output, "verifying releases", None);
    let verified = publisher.verify(&scope, &mut |done, total| {
        progress.set(done, Some(&format!("of {total}")));
    })?;
    drop(progress);
    let whole = verified.damage.is_empty();
    if output.json() {
        let damage: Vec<_> = verified
            .damage
            .iter()
            .map(|damage| json!({"release_id": damage.release, "path": damage.path, "problem": damage.problem}))
            .collect();
        output.object(
            "verified",
            &json!({
                "releases": verified.releases,
                "files": verified.files,
                "bytes": verified.bytes,
                "pruned": verified.pruned,
                "damaged": damage,
            }),
        )?;
    } else if whole {
        output.note(&format!(
            "{} releases are whole: {} files, {} hashed; the large files of {} releases are not here",
            verified.releases,
            verified.files,
            format::bytes(verified.bytes),
            verified.pruned
        ));
    } else {
        let mut table = Table::new(&["release", "file", "problem"]);
        for damage in &verified.damage {
            table.row([
                damage.release.as_deref().map_or_else(|| "-".to_owned(), format::short),
                damage.path.clone().unwrap_or_else(|| "-".to_owned()),
                damage.problem.clone(),
            ]);
        }
        output.text(&table.render(output.colored()))?;
    }
    if whole {
        return Ok(Exit::Ok);
    }
    let failure = CliError::new(Exit::Store, format!("{} damages found", verified.damage.len()))
        .hint("reef release pull --objects all brings missing and damaged large files back from a remote");
    let refs = |damage: &Damage| damage.path.as_deref().is_some_and(|path| path.starts_with("refs/"));
    Err(if verified.damage.iter().any(refs) {
        failure.hint(
            "a ref is put back by a pull from a remote that has the chain, or with git update-ref and git symbolic-ref: \
             see docs/design/releases.md",
        )
    } else {
        failure
    })
}

pub(crate) fn gc(context: &Context, args: &GcArgs) -> Result<Exit, CliError> {
    let settings = &context.settings()?.release;
    let keep = args.keep.unwrap_or(settings.retention);
    let hours = args.grace.unwrap_or(settings.gc_grace_h);
    let grace = Duration::try_from_secs_f64(hours * 3600.0)
        .map_err(|_| CliError::new(Exit::Usage, "--grace must be a number of hours of at least 0"))?;
    let keep = (keep > 0).then_some(keep as usize);
    let publisher = context.publisher(Store::MustExist)?;
    let spinner = Spinner::start(context.output(), "collecting");
    let collected = context.block_on(async { Ok(publisher.collect(keep, grace, args.dry_run).await?) })?;
    drop(spinner);
    let output = context.output();
    if output.json() {
        output.object(
            "collected",
            &json!({
                "dry_run": args.dry_run,
                "pruned": collected.pruned,
                "objects": collected.objects,
                "bytes": collected.bytes,
                "copies": collected.copies,
            }),
        )?;
        return Ok(Exit::Ok);
    }
    let done = if args.dry_run { "would remove" } else { "removed" };
    output.note(&format!(
        "{done} {} large files ({}) and {} copies; {} releases can no longer be restored",
        collected.objects,
        format::bytes(collected.bytes),
        collected.copies,
        collected.pruned.len()
    ));
    Ok(Exit::Ok)
}
