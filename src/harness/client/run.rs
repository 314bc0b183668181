//! One session: mount the release, open the proxy, run the agent, keep the receipts.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::time::Duration;

use rustix::process::Pid;

use super::agent::{TOKEN_VARIABLE, joined};
use super::error::{ClientError, Kind, at};
use super::layout::{Place, Record};
use super::mount::{mount, reserve};
use super::proxy::{Bridge, KEY_PREFIX, Proxy};
use super::requirement::{CheckOffs, stored_env};
use super::service::{Known, Service};
use super::spool::{Run, Spool};
use super::{Requirement, release, report};
use crate::harness::adapter::{Adapter, ModelBinding};
use crate::sys::launch::{Launch, Passed};
use crate::sys::{clock, random, task, terminal};

/// How long the service may take to say which release it serves.
const ASK: Duration = Duration::from_secs(10);
/// Added to the length of a run: how long reports that wait may hold up its end.
const FLUSH: Duration = Duration::from_secs(3);

/// What to run.
#[derive(Clone)]
pub struct RunOptions {
    /// The agent's own arguments.
    pub args: Vec<OsString>,
    /// `REEF_TOKEN`, which wins over the stored token.
    pub token: Option<String>,
    /// `PATH`.
    pub path: OsString,
}

/// How a session ended.
#[derive(Debug, Clone)]
pub struct Finished {
    /// The agent's exit code; 128 and the number of the signal that ended it.
    pub code: i32,
    /// What was kept.
    pub run: Option<Run>,
    /// Why some of it could not be kept.
    pub fault: Option<String>,
    /// Reports on earlier runs that the service will never take, and why.
    pub refused: Vec<String>,
}

/// The token to use: the environment's, unless it is the key of a session this command was started in.
pub fn effective_token(place: &Place, given: Option<&str>) -> Result<Option<String>, ClientError> {
    match given
        .map(str::trim)
        .filter(|token| !token.is_empty() && !token.starts_with(KEY_PREFIX))
    {
        Some(token) => Ok(Some(token.to_owned())),
        None => place.token(),
    }
}

/// What the release in use needs.
pub fn requirements(place: &Place) -> Result<Vec<Requirement>, ClientError> {
    Ok(release::requires(&place.dir.join("current")).unwrap_or_default())
}

/// What of it this machine was not checked for.
pub fn unmet(place: &Place) -> Result<Vec<Requirement>, ClientError> {
    let requires = requirements(place)?;
    let offs = CheckOffs::of(place)?;
    Ok(offs.unmet(&requires).into_iter().cloned().collect())
}

/// Where the environment names a proxy for HTTP, the agent has to reach loopback without it: the calls would not arrive, and
/// the session's key would leave the machine.
fn without_proxy(env: &BTreeMap<String, String>) -> Vec<(String, String)> {
    let proxied = |name: &str| name.to_ascii_lowercase().ends_with("_proxy") && !name.eq_ignore_ascii_case("no_proxy");
    if !env.keys().any(|name| proxied(name)) {
        return Vec::new();
    }
    let listed = env.get("no_proxy").or_else(|| env.get("NO_PROXY"));
    let hosts = listed.into_iter().flat_map(|list| list.split(','));
    let mut hosts: Vec<&str> = hosts.map(str::trim).filter(|host| !host.is_empty()).collect();
    for host in ["127.0.0.1", "localhost"] {
        if !hosts.contains(&host) {
            hosts.push(host);
        }
    }
    ["no_proxy", "NO_PROXY"]
        .map(|name| (name.to_owned(), hosts.join(",")))
        .into()
}

/// Lets the agent's program tell about itself.
pub async fn program_help(record: &Record, words: &[OsString], path: &OsStr) -> Result<u8, ClientError> {
    let mut command = tokio::process::Command::new(&record.program);
    command
        .args(words)
        .env("PATH", joined(&record.path, path))
        .env_remove(TOKEN_VARIABLE);
    let mut child = command
        .launch_with(&Passed::named_in(words))
        .map_err(at("start", &record.program))?;
    let status = child.wait().await.map_err(at("wait for", &record.program))?;
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
}

/// Runs the agent. `say` gets lines for standard error, before the agent has the terminal.
pub async fn run(
    place: &Place,
    record: &Record,
    adapter: &Adapter,
    options: RunOptions,
    say: &(dyn Fn(&str) + Sync),
) -> Result<Finished, ClientError> {
    let command = record.command();
    let passed = Passed::named_in(&options.args);
    let mut unmet = unmet(place)?;
    // A program can go after it was checked off.
    unmet.extend(requirements(place)?.into_iter().filter(|item| {
        item.kind == "binary" && !std::env::split_paths(&options.path).any(|dir| dir.join(&item.name).is_file())
    }));
    unmet.dedup();
    if !unmet.is_empty() {
        let list: Vec<String> = unmet.iter().map(Requirement::line).collect();
        return Err(ClientError::new(
            Kind::Unmet,
            format!("the installed release needs setting up first: {}", list.join("; ")),
        )
        .hint(format!("run {command} setup")));
    }
    if !record.program.exists() {
        return Err(ClientError::new(
            Kind::Machine,
            format!("the agent's program {} is gone", record.program.display()),
        )
        .hint(format!("run {command} update to get it back")));
    }
    let token = effective_token(place, options.token.as_deref())?;
    let service = Service::new(&record.url, token.clone(), record.scenario.clone())?;
    let served = service.served(ASK).await.map_err(|error| match error.kind() {
        Kind::Unavailable => ClientError::new(Kind::Unavailable, error.to_string())
            .hint("the agent was not started; start the service and try again"),
        _ => error,
    })?;

    let session = random::record_id().to_string();
    let reserved = reserve(place)?;
    let in_use = place.current()?.ok_or_else(|| {
        ClientError::new(
            Kind::Nothing,
            format!("no release is installed in {}", place.dir.display()),
        )
        .hint("run reef harness install again")
    })?;
    if let Known::Release(head) = &served
        && *head != in_use
    {
        let short: String = head.chars().take(12).collect();
        let short = terminal::line(&short);
        say(&format!(
            "{command}: release {short} is served, this is an older one; `{command} update` installs it"
        ));
    }
    let spool = Spool::of(place);
    // An old run too many is no reason not to work.
    let pruned = spool.prune(place);
    let recorder = spool.begin(Run {
        version: 1,
        run: session.clone(),
        scenario: record.scenario.to_string(),
        url: Some(service.base().to_owned()),
        release_id: in_use.clone(),
        started_at_us: clock::now_us(),
        ended_at_us: None,
        exit_code: None,
        turns: Vec::new(),
        without_receipt: 0,
    })?;
    let bridge = Bridge {
        base: service.base().to_owned(),
        token,
        scenario: record.scenario.to_string(),
        session: session.clone(),
        release: in_use.clone(),
        command: command.clone(),
        bodies: record.bodies,
    };
    let proxy = Proxy::start(bridge, recorder.notes()).await?;
    let binding = ModelBinding {
        base_url: proxy.url(),
        api_key: proxy.key.clone(),
        model: record.model.clone(),
        context_window: None,
        max_output_tokens: None,
    };
    let mounted = mount(place, adapter, reserved, &in_use, record.api, &binding)?;
    let (root, state) = (mounted.root.display().to_string(), place.state().display().to_string());

    let mut env: BTreeMap<String, String> = stored_env(place)?;
    env.retain(|name, _| std::env::var_os(name).is_none());
    env.extend(adapter.environment(&root, &state));
    env.extend(adapter.client.env.clone());
    env.extend(adapter.binding_env(record.api, &binding)?);
    let mut known = env.clone();
    known.extend(
        std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?))),
    );
    env.extend(without_proxy(&known));
    env.extend([
        ("REEF_SERVICE_URL".to_owned(), proxy.url()),
        (TOKEN_VARIABLE.to_owned(), proxy.key.clone()),
        ("REEF_SCENARIO".to_owned(), record.scenario.to_string()),
        ("REEF_HARNESS_ADAPTER".to_owned(), record.adapter.clone()),
        ("REEF_HARNESS_DEST".to_owned(), root.clone()),
        ("REEF_HARNESS_SESSION".to_owned(), session),
        ("REEF_HARNESS_WRAPPER".to_owned(), record.wrapper.display().to_string()),
    ]);
    // What Reef installed comes first, so that an agent that starts itself finds itself and the Node.js it needs; so does
    // what was found at installation and this environment lacks. What a person has on PATH keeps its order.
    let known: Vec<PathBuf> = std::env::split_paths(&options.path).collect();
    let mut first: Vec<PathBuf> = record.path.clone();
    first.extend(record.program.parent().map(PathBuf::from));
    first.retain(|dir| dir.starts_with(&record.data) || !known.contains(dir));
    let has = |path: &str| mounted.files.iter().any(|file| file == path);
    let mut spawn = tokio::process::Command::new(&record.program);
    spawn
        .args(adapter.extra_arguments(has, &root, &state))
        .args(&options.args)
        .envs(env)
        .env("PATH", joined(&first, &options.path));
    let caught = super::signals::catch().map_err(at("watch", &record.program))?;
    let mut child = spawn.launch_with(&passed).map_err(at("start", &record.program))?;
    let pid = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
    let signals = pid.map(|pid| caught.pass_on(pid));

    // Reports of earlier runs that found no service have one now.
    let (waiting_place, waiting_service) = (place.clone(), service.clone());
    let flushing = task::spawn("sending reports", async move {
        report::flush(&waiting_place, &waiting_service).await
    });

    let status = child.wait().await.map_err(at("wait for", &record.program))?;
    drop(signals);
    proxy.stop().await;
    let code = status
        .code()
        .or_else(|| status.signal().map(|signal| 128 + signal))
        .unwrap_or(1);
    // What could not be sent now is sent the next time.
    let flushed = tokio::time::timeout(FLUSH, flushing).await;
    let refused = flushed
        .ok()
        .and_then(Result::ok)
        .and_then(Result::ok)
        .unwrap_or_default();
    let given_back = mounted.give_back();
    let (run, fault) = task::blocking("closing a run", move || recorder.end(code))
        .await
        .unwrap_or_else(|lost| (None, Some(lost.into())));
    Ok(Finished {
        code,
        run,
        fault: fault
            .or(given_back.err())
            .or(pruned.err())
            .map(|error| error.to_string()),
        refused,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_reached_without_a_proxy_and_no_exception_is_lost() {
        let env = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            pairs
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect()
        };
        assert!(without_proxy(&env(&[("PATH", "/bin"), ("NO_PROXY", "x")])).is_empty());
        let set = without_proxy(&env(&[("HTTPS_PROXY", "http://p:1"), ("NO_PROXY", "intra, localhost")]));
        assert_eq!(set.len(), 2);
        assert!(
            set.iter().all(|(_, value)| value == "intra,localhost,127.0.0.1"),
            "{set:?}"
        );
    }
}
