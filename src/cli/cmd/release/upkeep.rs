//! `reef release verify`

use clap::Args;
use serde_json::json;

use super::chain::{Chain, ScenarioOption};
use crate::cli::context::Store;
use crate::cli::progress::Progress;
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
                "thinned": verified.thinned,
                "without_training_state": verified.stateless,
                "damaged": damage,
            }),
        )?;
    } else if whole {
        output.note(&format!(
            "nothing is damaged in {} releases: {} files, {} hashed; retention took the content of {}, that of {} never \
             came, and {} are here without their training state",
            verified.releases,
            verified.files,
            format::bytes(verified.bytes),
            verified.thinned,
            verified.pruned.saturating_sub(verified.thinned),
            verified.stateless
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
