//! How a scenario begins from the command line: as its first request would begin it. A service that runs on the files
//! does it, because it knows its deployment file; without one, the settings of the command count.

use serde_json::{Value, json};

use super::client::Client;
use super::publishing::base_seed;
use super::{CliError, Context, running};
use crate::domain::{ScenarioName, TrainingMode};
use crate::scenario::Publisher;

/// Asks the service that runs on the configured files to create a scenario; `None` when none runs there.
pub(crate) async fn by_service(
    context: &Context,
    name: &ScenarioName,
    mode: Option<TrainingMode>,
) -> Result<Option<Value>, CliError> {
    let Some(note) = running::find(context.settings()?) else {
        return Ok(None);
    };
    let client = Client::new(context, &note.local_url)?;
    match ask(&client, name, mode).await {
        Ok(answer) => Ok(Some(answer)),
        Err(error) => Err(error.hint(format!(
            "the service that runs on these files (process {}) was asked, because a scenario begins with what its \
             deployment file says",
            note.pid
        ))),
    }
}

/// Asks a service to create a scenario.
pub(crate) async fn ask(client: &Client, name: &ScenarioName, mode: Option<TrainingMode>) -> Result<Value, CliError> {
    let mut body = json!({"scenario": name});
    if let Some(mode) = mode {
        body["training_mode"] = json!(mode);
    }
    client.post("/reef/scenarios", &body).await
}

/// Creates a scenario in the files. One that exists stays as it is, and gets its chain of releases if it has none.
pub(crate) async fn by_files(
    context: &Context,
    publisher: &Publisher,
    name: &ScenarioName,
    mode: Option<TrainingMode>,
) -> Result<Value, CliError> {
    let settings = context.settings()?;
    publisher.ensure_base(base_seed(settings)).await?;
    let mode = mode.unwrap_or_else(|| settings.training.mode());
    let made = publisher.create(name, mode, None).await?;
    let mode = publisher
        .experience()
        .scenario(name)?
        .map_or(mode, |scenario| scenario.mode);
    Ok(json!({
        "scenario": name,
        "training_mode": mode,
        "release_id": made.release_id,
        "content_id": made.content_id,
        "created": made.appended,
    }))
}

/// Sees to it that a scenario exists and has its chain of releases.
pub(crate) async fn ensure(context: &Context, publisher: &Publisher, name: &ScenarioName) -> Result<(), CliError> {
    let known = publisher.experience().scenario(name)?;
    if known.is_some_and(|scenario| scenario.served.is_some()) {
        return Ok(());
    }
    if by_service(context, name, None).await?.is_none() {
        by_files(context, publisher, name, None).await?;
    }
    Ok(())
}

/// Says that a deployment file lies here that was not read, where that decides what a scenario begins with.
pub(crate) fn unread_file(context: &Context) {
    if context.config_file().is_some() {
        return;
    }
    let usual = ["serve.toml", "serve.yaml", "serve.yml"];
    if let Some(file) = usual.iter().find(|name| std::path::Path::new(name).is_file()) {
        context.output().note(&format!(
            "{file} was not read; with -c {file} a new scenario begins as the service would begin it"
        ));
    }
}
