//! `reef instruct`

use clap::Args;
use serde_json::{Map, Value, json};

use crate::cli::client::{Client, ServerArgs};
use crate::cli::context::Store;
use crate::cli::{CliError, Context, Exit, running};
use crate::domain::{RecordId, ScenarioName, TrainingMode};
use crate::experience::NewInstruction;
use crate::harness::tree::screen_text;
use crate::scenario::driver_of;
use crate::sys::random;

/// Ask a scenario for a training step, in words
///
/// The scenario must be in training mode manual or hybrid (reef scenario set). Instructions are followed one by one,
/// oldest first; sending the same one with the same --id again changes nothing.
#[derive(Debug, Args)]
pub(crate) struct InstructArgs {
    /// The instruction
    text: String,
    /// The scenario
    #[arg(short, long, value_name = "NAME")]
    scenario: ScenarioName,
    /// The session it comes from
    #[arg(long, value_name = "NAME", default_value = "cli")]
    session: String,
    /// The release it was written about
    #[arg(long, value_name = "RELEASE")]
    release: Option<String>,
    /// The instruction's id, for a retry; a fresh one without it
    #[arg(long, value_name = "ID")]
    id: Option<RecordId>,
    #[command(flatten)]
    server: ServerArgs,
}

pub(crate) fn run(context: &Context, args: InstructArgs) -> Result<Exit, CliError> {
    if args.text.trim().is_empty() || args.text.chars().count() > 4000 {
        return Err(CliError::new(Exit::Usage, "an instruction has 1 to 4000 characters"));
    }
    if let Some(finding) = screen_text(&args.text) {
        return Err(CliError::new(
            Exit::Usage,
            format!("the instruction: {}", finding.refusal()),
        ));
    }
    let id = args.id.clone().unwrap_or_else(random::record_id);
    let answer = match &args.server.url {
        Some(url) => {
            let client = Client::new(context, url)?;
            let body = json!({
                "agent_record_id": id, "text": args.text, "session": args.session,
                "release_id": args.release.as_deref().unwrap_or(""),
            });
            context.block_on(client.send(
                reqwest::Method::POST,
                "/reef/train",
                Some(args.scenario.as_str()),
                Some(&body),
            ))?
        }
        None => to_files(context, &args, id.clone())?,
    };
    let output = context.output();
    if output.json() {
        output.object("instruction", &answer)?;
    } else {
        output.line(id.as_str())?;
    }
    Ok(Exit::Ok)
}

fn to_files(context: &Context, args: &InstructArgs, id: RecordId) -> Result<Value, CliError> {
    let publisher = context.publisher(Store::MustExist)?;
    let store = publisher.experience();
    let scenario = store.scenario(&args.scenario)?.ok_or_else(|| {
        CliError::new(Exit::Usage, format!("there is no scenario {}", args.scenario))
            .hint("reef scenario list shows the scenarios there are")
    })?;
    if scenario.mode == TrainingMode::Auto && store.record(Some(&args.scenario), &id)?.is_none() {
        return Err(CliError::new(
            Exit::Usage,
            format!(
                "scenario {} is in training mode auto, which takes no instructions",
                args.scenario
            ),
        )
        .hint(format!("reef scenario set {} --mode hybrid", args.scenario)));
    }
    if store.record(Some(&args.scenario), &id)?.is_none() {
        followed(context, &args.scenario)?;
    }
    let release = match &args.release {
        Some(release) => release.clone(),
        None => publisher
            .repository()
            .head(&args.scenario)?
            .map(String::from)
            .unwrap_or_default(),
    };
    let mut payload = Map::new();
    payload.insert("text".into(), json!(args.text));
    payload.insert("session".into(), json!(args.session));
    payload.insert("release_id".into(), json!(release));
    let instruction = NewInstruction {
        id,
        scenario: args.scenario.clone(),
        payload,
    };
    let appended = context.block_on(async { Ok(store.append_instruction(instruction).await?) })?;
    Ok(json!({"agent_record_id": appended.id, "scenario": args.scenario, "request_type": "train"}))
}

/// Refuses an instruction that the services here cannot follow; without one, says what will.
fn followed(context: &Context, scenario: &ScenarioName) -> Result<(), CliError> {
    let settings = context.settings()?;
    if driver_of(&settings.storage.run_dir(), scenario).is_some() {
        return Ok(());
    }
    let services = running::all(settings);
    if services.is_empty() {
        context
            .output()
            .note("no service runs on these files; reef train or reef serve with a recipe follows the instruction");
        return Ok(());
    }
    for note in services {
        let client = Client::new(context, &note.local_url)?;
        let status = context.block_on(client.get("/reef/status"))?;
        // An unfinished look at a new scenario is no reason to refuse.
        if status["service"]["recipe"].is_string() {
            return Ok(());
        }
    }
    Err(CliError::new(
        Exit::Usage,
        format!("nobody would follow an instruction for scenario {scenario}: the service on these files only records"),
    )
    .hint("start it with a recipe that learns (reef.recipe), or run reef train with one"))
}
