//! `reef config`

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::cli::table::Table;
use crate::cli::{CliError, Context, Exit};
use crate::config::{Settings, json_schema};

/// Show what is configured and what can be
#[derive(Debug, Args)]
pub(crate) struct ConfigArgs {
    #[command(subcommand)]
    command: ConfigCommand,
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// Show every setting with its value and where it came from; secrets are masked
    Show(ShowArgs),
    /// Print the JSON Schema of the deployment file
    Schema,
    /// Show the deployment file and the directories in use
    Path,
}

#[derive(Debug, Args)]
struct ShowArgs {
    /// Leave out what nobody set
    #[arg(long)]
    changed: bool,
    /// Show only settings whose key starts with this
    #[arg(value_name = "PREFIX")]
    prefix: Option<String>,
}

pub(crate) fn run(context: &Context, args: ConfigArgs) -> Result<Exit, CliError> {
    match args.command {
        ConfigCommand::Show(args) => {
            let prefix = args.prefix.unwrap_or_default().replace('_', "-");
            show(context, context.settings()?, args.changed, &prefix)
        }
        ConfigCommand::Schema => {
            context.output().json_line(&json_schema())?;
            Ok(Exit::Ok)
        }
        ConfigCommand::Path => path(context),
    }
}

/// Prints the settings; also `reef serve --print-config`.
pub(crate) fn show(context: &Context, settings: &Settings, changed: bool, prefix: &str) -> Result<Exit, CliError> {
    let meant = || settings.rows().iter().filter(|row| row.key.starts_with(prefix));
    if meant().next().is_none() {
        return Err(unknown(settings, prefix));
    }
    let rows = meant().filter(|row| !(changed && row.source == crate::config::Source::Default));
    let output = context.output();
    if output.json() {
        let rows: Vec<Value> = rows
            .map(|row| {
                let variable = crate::config::variable(&row.key);
                json!({"key": row.key, "value": row.value, "source": row.source.to_string(), "variable": variable})
            })
            .collect();
        let order = ["command line", "environment", "file", "default"];
        output.object("config", &json!({"settings": rows, "precedence": order}))?;
        return Ok(Exit::Ok);
    }
    let mut table = Table::new(&["setting", "value", "source"]);
    for row in rows {
        let value = match &row.value {
            Value::Null => "-".to_owned(),
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        table.row([row.key.clone(), value, row.source.to_string()]);
    }
    output.text(&table.render(output.colored()))?;
    output.note("a flag wins over the environment, the environment over the file, the file over the default");
    Ok(Exit::Ok)
}

fn unknown(settings: &Settings, prefix: &str) -> CliError {
    let near = settings.near_keys(prefix);
    let hint = if near.is_empty() {
        "reef config show lists every setting".to_owned()
    } else {
        format!("did you mean {}?", near.join(" or "))
    };
    CliError::new(Exit::Usage, format!("no setting's key starts with {prefix:?}")).hint(hint)
}

fn path(context: &Context) -> Result<Exit, CliError> {
    let settings = context.settings()?;
    let storage = &settings.storage;
    let paths = [
        ("config", context.config_file().map(std::path::Path::to_owned)),
        ("dir", Some(storage.dir.clone())),
        ("experience", Some(storage.experience_db())),
        ("artifacts", Some(storage.artifacts_git())),
        ("work", Some(storage.work_dir())),
        ("cache", Some(storage.cache_dir())),
        ("run", Some(settings.run_dir())),
        ("logs", Some(storage.log_dir())),
    ];
    let output = context.output();
    if output.json() {
        let map: serde_json::Map<String, Value> = paths
            .into_iter()
            .map(|(name, path)| (name.to_owned(), json!(path)))
            .collect();
        output.object("config_path", &map)?;
        return Ok(Exit::Ok);
    }
    let mut table = Table::new(&["what", "path"]);
    for (name, path) in paths {
        table.row([
            name.to_owned(),
            path.map_or("-".to_owned(), |path| path.display().to_string()),
        ]);
    }
    output.text(&table.render(output.colored()))?;
    Ok(Exit::Ok)
}
