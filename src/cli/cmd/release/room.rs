//! `reef release gc`, `reef release pin` and `reef release unpin`

use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};

use super::chain::{Chain, ScenarioOption};
use crate::cli::context::Store;
use crate::cli::disk::{over, sentence, used};
use crate::cli::progress::Spinner;
use crate::cli::publishing::room;
use crate::cli::{CliError, Context, Exit, format};
use crate::scenario::Thorough;

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

#[derive(Debug, Args)]
pub(crate) struct PinArgs {
    /// head, head~1, or the first digits of an id
    release: String,
    #[command(flatten)]
    scenario: ScenarioOption,
}

pub(crate) fn gc(context: &Context, args: &GcArgs) -> Result<Exit, CliError> {
    let mut room = room(context, context.settings()?);
    if let Some(keep) = args.keep {
        room.keep.contents = (keep > 0).then_some(keep as usize);
    }
    if let Some(hours) = args.grace {
        room.grace = Duration::try_from_secs_f64(hours * 3600.0)
            .map_err(|_| CliError::new(Exit::Usage, "--grace must be a number of hours of at least 0"))?;
    }
    let thorough = if args.dry_run { Thorough::Plan } else { Thorough::Pack };
    let publisher = context.publisher(Store::MustExist)?;
    let spinner = Spinner::start(context.output(), "collecting");
    let collected = context.block_on(async { Ok(publisher.collect(&room, thorough).await?) })?;
    drop(spinner);
    let output = context.output();
    if output.json() {
        let mut object = json!({
            "dry_run": args.dry_run,
            "pruned": collected.pruned,
            "without_training_state": collected.stateless,
            "objects": collected.objects,
            "bytes": collected.bytes,
            "copies": collected.copies,
        });
        if let (Value::Object(object), Value::Object(used)) = (&mut object, used(&room, &collected)) {
            object.insert("used".to_owned(), Value::Object(used));
        }
        output.object("collected", &object)?;
        return Ok(Exit::Ok);
    }
    output.note(&sentence(&collected, args.dry_run));
    if let Some(over) = over(&room, &collected) {
        output.warn(&over);
    }
    Ok(Exit::Ok)
}

pub(crate) fn pin(context: &Context, args: &PinArgs) -> Result<Exit, CliError> {
    let chain = context.block_on(Chain::open(context, &args.scenario))?;
    let release = chain.resolve(&args.release)?;
    let repository = chain.publisher.repository();
    // What is gone already cannot be promised.
    repository.check_restorable(&release)?;
    repository.pin(&release)?;
    // A collection may have been on its way.
    repository.check_restorable(&release)?;
    let output = context.output();
    if output.json() {
        output.object("pinned", &json!({"release_id": release, "pinned": true}))?;
    } else {
        output.note(&format!(
            "retention leaves release {} alone until reef release unpin",
            format::short(release.as_str())
        ));
    }
    Ok(Exit::Ok)
}

pub(crate) fn unpin(context: &Context, args: &PinArgs) -> Result<Exit, CliError> {
    let chain = context.block_on(Chain::open(context, &args.scenario))?;
    let release = chain.resolve(&args.release)?;
    let was = chain.publisher.repository().unpin(&release)?;
    let output = context.output();
    if output.json() {
        output.object(
            "unpinned",
            &json!({"release_id": release, "pinned": false, "was_pinned": was}),
        )?;
    } else {
        let short = format::short(release.as_str());
        output.note(&match was {
            true => format!("release {short} is kept as long as any other"),
            false => format!("release {short} was not pinned"),
        });
    }
    Ok(Exit::Ok)
}
