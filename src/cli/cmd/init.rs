//! `reef init`

use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::json;

use crate::cli::table::Table;
use crate::cli::{CliError, Context, Exit};

/// Start a deployment: a serve.toml with comments, a client to try it, a README
#[derive(Debug, Args)]
pub(crate) struct InitArgs {
    /// What to start from; --list shows the templates
    #[arg(default_value = "upstream")]
    template: String,
    /// The directory to write into
    #[arg(long, value_name = "DIR", default_value = ".")]
    into: PathBuf,
    /// Replace files that exist
    #[arg(long)]
    force: bool,
    /// List the templates
    #[arg(long, conflicts_with_all = ["into", "force"])]
    list: bool,
}

struct Template {
    name: &'static str,
    about: &'static str,
    files: &'static [(&'static str, &'static str)],
}

macro_rules! template {
    ($name:literal, $about:literal, $($file:literal $(from $source:literal)?),+) => {
        Template {
            name: $name,
            about: $about,
            files: &[$(($file, template!(@text $name, $file $(, $source)?))),+],
        }
    };
    (@text $name:literal, $file:literal) => {
        include_str!(concat!("../../../templates/init/", $name, "/", $file))
    };
    (@text $name:literal, $file:literal, $source:literal) => {
        include_str!(concat!("../../../templates/init/", $source))
    };
}

const TEMPLATES: &[Template] = &[
    template!(
        "upstream",
        "record what goes to a provider, vLLM, SGLang, Ollama or llama.cpp",
        "serve.toml",
        "client.py" from "client.py",
        "README.md"
    ),
    template!(
        "embedded",
        "serve and train a model in this process",
        "serve.toml",
        "client.py" from "client.py",
        "README.md"
    ),
    template!(
        "harness",
        "serve and improve an agent's harness tree: rules, skills, commands",
        "serve.toml",
        "tree/AGENTS.md",
        "tree/commands/review.md",
        "tree/skills/finish-a-task/SKILL.md",
        "tasks/tasks.jsonl",
        "README.md"
    ),
];

/// The templates with what each is for.
pub(crate) fn templates() -> impl Iterator<Item = (&'static str, &'static str)> {
    TEMPLATES.iter().map(|template| (template.name, template.about))
}

pub(crate) fn run(context: &Context, args: InitArgs) -> Result<Exit, CliError> {
    context.refuse_settings("init")?;
    if args.list {
        return list(context);
    }
    let Some(template) = TEMPLATES.iter().find(|template| template.name == args.template) else {
        let names: Vec<&str> = TEMPLATES.iter().map(|template| template.name).collect();
        return Err(
            CliError::new(Exit::Usage, format!("there is no template {:?}", args.template))
                .hint(format!("the templates are {}", names.join(", "))),
        );
    };
    write(template, &args.into, args.force)?;
    let output = context.output();
    let paths: Vec<PathBuf> = template.files.iter().map(|(name, _)| args.into.join(name)).collect();
    if output.json() {
        output.object("init", &json!({"template": template.name, "files": paths}))?;
        return Ok(Exit::Ok);
    }
    for path in &paths {
        output.note(&format!("wrote {}", path.display()));
    }
    output.note(&format!(
        "next: reef serve -c {}",
        args.into.join("serve.toml").display()
    ));
    Ok(Exit::Ok)
}

/// All or nothing, as far as existing files go.
fn write(template: &Template, into: &Path, force: bool) -> Result<(), CliError> {
    let taken: Vec<&str> = template
        .files
        .iter()
        .map(|(name, _)| *name)
        .filter(|name| into.join(name).exists())
        .collect();
    if !force && !taken.is_empty() {
        return Err(CliError::new(
            Exit::Usage,
            format!("{} in {} would be replaced", taken.join(", "), into.display()),
        )
        .hint("give another directory with --into, or --force to replace them"));
    }
    std::fs::create_dir_all(into)
        .and_then(|()| {
            template.files.iter().try_for_each(|(name, text)| {
                let path = into.join(name);
                if let Some(parent) = path.parent() {
                    std::fs::create_dir_all(parent)?;
                }
                crate::sys::durable::write(&path, text.as_bytes())
            })
        })
        .map_err(|error| CliError::new(Exit::Usage, format!("cannot write into {}: {error}", into.display())))
}

fn list(context: &Context) -> Result<Exit, CliError> {
    let output = context.output();
    if output.json() {
        let templates: Vec<_> = TEMPLATES
            .iter()
            .map(|template| json!({"name": template.name, "about": template.about}))
            .collect();
        output.object("templates", &json!({"templates": templates}))?;
        return Ok(Exit::Ok);
    }
    let mut table = Table::new(&["template", "what for"]);
    for template in TEMPLATES {
        table.row([template.name, template.about]);
    }
    output.text(&table.render(output.colored()))?;
    Ok(Exit::Ok)
}
