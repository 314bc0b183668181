//! `reef harness setup`, `reef-NAME setup`

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, IsTerminal, Write};

use clap::Args;
use serde_json::json;

use super::{Chosen, WhichArgs, token};
use crate::cli::{CliError, Context, Exit};
use crate::harness::client::{
    Check, CheckOffs, Manifest, Place, Requirement, Service, TOKEN_VARIABLE, effective_token, requirements, set_env,
    stored_env,
};
use crate::sys::terminal;

/// Go through what the release needs on this machine
///
/// Shows each check before it runs; this is the only command that runs them. Exits with 0 when everything is met, 1 when
/// something is not, and 2 when a name is unknown.
#[derive(Debug, Args)]
pub(super) struct SetupArgs {
    #[command(flatten)]
    pub(super) which: WhichArgs,
    #[command(flatten)]
    pub(super) options: SetupOptions,
}

#[derive(Debug, Default, Args)]
pub(super) struct SetupOptions {
    /// What this release needs, rather than the one that is installed
    #[arg(long, value_name = "RELEASE")]
    release: Option<String>,
    /// Run the checks without asking first
    #[arg(long)]
    yes: bool,
    /// Take your word for this one
    #[arg(long, value_name = "NAME")]
    mark: Vec<String>,
    /// Keep a variable for every run, in a file only you can read
    #[arg(long, value_name = "NAME=VALUE", value_parser = variable)]
    set: Vec<(String, String)>,
}

impl SetupOptions {
    pub(super) fn asking() -> Self {
        Self::default()
    }
}

fn variable(text: &str) -> Result<(String, String), String> {
    text.split_once('=')
        .filter(|(name, _)| {
            !name.is_empty()
                && !name.starts_with(|c: char| c.is_ascii_digit())
                && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
        })
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .ok_or_else(|| "NAME=VALUE is needed".to_owned())
}

pub(super) fn run(context: &Context, chosen: &Chosen, options: &SetupOptions) -> Result<Exit, CliError> {
    if !options.set.is_empty() {
        set_env(&chosen.place, &options.set)?;
    }
    let requires = match &options.release {
        Some(id) => {
            let token = effective_token(&chosen.place, token(context).as_deref())?;
            let service = Service::new(&chosen.record.url, token, chosen.record.scenario.clone())?;
            let adapter = &chosen.record.adapter;
            context
                .block_on(async { Ok(Manifest::from_json(&service.manifest(adapter, Some(id)).await?)?) })?
                .requires
        }
        None => requirements(&chosen.place)?,
    };
    if let Some(name) = options
        .mark
        .iter()
        .find(|name| !requires.iter().any(|item| item.name == **name))
    {
        return Err(CliError::new(
            Exit::Usage,
            format!("the release needs nothing called {name:?}"),
        ));
    }
    let mut checked = CheckOffs::of(&chosen.place)?;
    let result = go_through(context, &requires, &mut checked, options, Some(&chosen.place));
    checked.store(&chosen.place)?;
    let left = result?;
    let output = context.output();
    if output.json() {
        let items: Vec<_> = requires
            .iter()
            .map(|item| json!({"name": item.name, "kind": item.kind, "met": !left.contains(&item.name)}))
            .collect();
        output.object("harness_setup", &json!({"requires": items}))?;
    } else if requires.is_empty() {
        output.note("the release needs nothing");
    }
    Ok(if left.is_empty() { Exit::Ok } else { Exit::Unexpected })
}

/// Checks what is left; gives the names of what is not met.
pub(super) fn go_through(
    context: &Context,
    requires: &[Requirement],
    checked: &mut CheckOffs,
    options: &SetupOptions,
    place: Option<&Place>,
) -> Result<Vec<String>, CliError> {
    let output = context.output();
    let mut env: BTreeMap<String, String> = match place {
        Some(place) => stored_env(place)?,
        None => BTreeMap::new(),
    };
    env.extend(
        std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?))),
    );
    // What a check runs came from the service, and is not told its token.
    env.remove(TOKEN_VARIABLE);
    let open: Vec<Requirement> = checked.unmet(requires).into_iter().cloned().collect();
    let mut left = Vec::new();
    for item in &open {
        if options.mark.contains(&item.name) {
            checked.add(item);
            output.note(&format!("{}: taken on your word", terminal::line(&item.name)));
            continue;
        }
        let question = if item.needs_word() { "is it done?" } else { "check it?" };
        output.note(&format!("{}\n  check: {}", item.line(), item.shown_check()));
        if !options.yes && !asked(question)? {
            left.push(item.name.clone());
            continue;
        }
        if item.needs_word() {
            if options.yes {
                output.note(&format!("  not met: say so with --mark {}", terminal::line(&item.name)));
                left.push(item.name.clone());
            } else {
                checked.add(item);
            }
            continue;
        }
        match context.block_on(async { Ok(item.check(&env).await?) })? {
            Check::Met => {
                output.note("  met");
                checked.add(item);
            }
            Check::Unmet(reason) => {
                output.note(&format!("  not met: {}", terminal::line(&reason)));
                left.push(item.name.clone());
            }
        }
    }
    Ok(left)
}

/// Asks on the terminal, also where standard input is a script on its way in. Where nobody can answer, that is said.
fn asked(question: &str) -> Result<bool, CliError> {
    let terminal = OpenOptions::new().read(true).write(true).open("/dev/tty");
    let Some(mut terminal) = terminal.ok().filter(IsTerminal::is_terminal) else {
        return Err(CliError::new(Exit::Usage, "there is no terminal to ask on")
            .hint("look at the list above, then give --yes to run the checks"));
    };
    let mut answer = String::new();
    write!(terminal, "  {question} [y/N] ")
        .and_then(|()| BufReader::new(terminal).read_line(&mut answer))
        .map_err(|error| CliError::new(Exit::Unexpected, format!("cannot ask on the terminal: {error}")))?;
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}
