//! `reef doctor`

mod files;
mod permissions;
mod provider;
mod reach;

use std::net::{TcpListener, ToSocketAddrs};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::json;

use crate::cli::{CliError, Context, Exit, format, readiness, running};
use crate::config::{EngineKind, Settings};
use crate::experience::{Experience, StoreOptions};
use crate::harness::sandbox::Sandbox;
use crate::sys::launch::Launch;

/// Check this machine and this deployment, and say how to fix what is wrong
///
/// Exits 2 if a check fails; a warning alone exits 0. Without --fix nothing is changed but the store's format, which is
/// brought up to date as any command that opens it would.
#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Do not connect to the upstream
    #[arg(long)]
    offline: bool,
    /// Close to other users of this machine what an older version left open
    #[arg(long)]
    fix: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Health {
    Good,
    Warning,
    Bad,
}

struct Finding {
    check: &'static str,
    health: Health,
    detail: String,
    fix: Option<String>,
}

fn good(check: &'static str, detail: impl Into<String>) -> Finding {
    Finding {
        check,
        health: Health::Good,
        detail: detail.into(),
        fix: None,
    }
}

fn bad(check: &'static str, detail: impl Into<String>, fix: impl Into<String>) -> Finding {
    Finding {
        check,
        health: Health::Bad,
        detail: detail.into(),
        fix: Some(fix.into()),
    }
}

fn warning(check: &'static str, detail: impl Into<String>, fix: impl Into<String>) -> Finding {
    Finding {
        health: Health::Warning,
        ..bad(check, detail, fix)
    }
}

pub(crate) fn run(context: &Context, args: DoctorArgs) -> Result<Exit, CliError> {
    let settings = context.settings()?;
    let mut findings = vec![
        good("configuration", configuration(settings)),
        toolchain(),
        git(),
        git_lfs(),
        libtorch(),
        address(settings),
        open_files(),
        files::time(settings),
        sandbox(context)?,
    ];
    findings.extend(startable(settings));
    findings.extend(reach::mirror(context, settings, args.offline));
    findings.extend(directory(&settings.storage.dir));
    findings.extend(permissions::deployment(settings, args.fix));
    findings.extend(permissions::installations(context, args.fix));
    findings.push(store(&settings.storage.experience_db()));
    findings.extend(files::heads(context, settings));
    findings.extend(files::steps(settings));
    findings.extend(provider::refusals(settings));
    findings.extend(files::room(context, settings));
    if !args.offline {
        findings.extend(provider::ask(context, settings)?);
        findings.extend(reach::collector(context, settings));
    }
    show(context, &findings)?;
    let failed = findings.iter().any(|finding| finding.health == Health::Bad);
    Ok(if failed { Exit::Usage } else { Exit::Ok })
}

fn show(context: &Context, findings: &[Finding]) -> Result<(), CliError> {
    let output = context.output();
    let word = |health| match health {
        Health::Good => "ok",
        Health::Warning => "warning",
        Health::Bad => "failed",
    };
    if output.json() {
        let checks: Vec<_> = findings
            .iter()
            .map(|finding| {
                json!({
                    "check": finding.check,
                    "status": word(finding.health),
                    "detail": finding.detail,
                    "fix": finding.fix,
                })
            })
            .collect();
        return output.object("doctor", &json!({"checks": checks}));
    }
    for finding in findings {
        output.line(&format!(
            "{:<8} {:<14} {}",
            word(finding.health),
            finding.check,
            finding.detail
        ))?;
        if let Some(fix) = &finding.fix {
            output.line(&format!("{:<23} fix: {fix}", ""))?;
        }
    }
    Ok(())
}

fn configuration(settings: &Settings) -> String {
    match &settings.file {
        Some(file) => format!("{} is valid", file.display()),
        None => "no file; flags, environment and defaults".to_owned(),
    }
}

/// What a program answers to a question about its version.
fn version_of(program: &str, args: &[&str]) -> Option<String> {
    let output = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .launch()
        .and_then(Child::wait_with_output)
        .ok()?;
    let text = String::from_utf8_lossy(&output.stdout)
        .lines()
        .next()?
        .trim()
        .to_owned();
    output.status.success().then_some(text)
}

/// Needed to build Reef, not to run it.
fn toolchain() -> Finding {
    let wanted = env!("CARGO_PKG_RUST_VERSION");
    match version_of("rustc", &["--version"]) {
        Some(version) => good("toolchain", format!("{version}; Reef is built with {wanted} or newer")),
        None => good(
            "toolchain",
            format!("no Rust here; only building Reef needs it ({wanted} or newer)"),
        ),
    }
}

fn libtorch() -> Finding {
    if cfg!(feature = "torch") {
        // The program would not have started without it.
        return good("libtorch", "loaded");
    }
    good(
        "libtorch",
        "not in this build; ./scripts/setup.sh fetches it, and a plain cargo build uses it",
    )
}

fn git() -> Finding {
    match version_of("git", &["--version"]) {
        Some(version) => good("git", version),
        None => bad(
            "git",
            "git is not installed; releases are kept in a git repository",
            "install it: apt-get install git",
        ),
    }
}

fn git_lfs() -> Finding {
    match version_of("git-lfs", &["version"]) {
        Some(version) => good("git-lfs", version),
        None => bad(
            "git-lfs",
            "git-lfs is not installed; weights are kept as LFS objects",
            "install it: apt-get install git-lfs",
        ),
    }
}

/// What the service would refuse to start with.
fn startable(settings: &Settings) -> Vec<Finding> {
    let inference = &settings.inference;
    let nobody = inference.engine() == EngineKind::Upstream && inference.provider_url().is_none();
    let mut findings = Vec::new();
    for question in &readiness::QUESTIONS {
        if question.check == "engine" && nobody {
            // Flags of reef serve may name it.
            findings.push(match running::find(settings) {
                Some(note) => provider::of_the_service(&note.url, note.pid),
                None => warning(
                    "engine",
                    "nothing is configured that could answer requests",
                    "name the deployment file with -c, or the provider with --inference.upstream-url URL; reef init \
                     writes a file",
                ),
            });
            continue;
        }
        match (question.ask)(settings) {
            Ok(Some(detail)) => findings.push(good(question.check, detail)),
            Ok(None) => {}
            Err(error) => {
                let fix = match error.hints() {
                    [] => "correct this setting: reef config show tells where each one comes from".to_owned(),
                    hints => hints.join("; "),
                };
                findings.push(bad(question.check, with_causes(error), fix));
            }
        }
    }
    findings
}

fn address(settings: &Settings) -> Finding {
    let (host, port) = (settings.reef.host.as_str(), settings.reef.port);
    let shown = format!("{host}:{port}");
    let loopback = (host, port)
        .to_socket_addrs()
        .is_ok_and(|mut addresses| addresses.all(|address| address.ip().is_loopback()));
    if !loopback && settings.tokens().is_empty() && !settings.reef.allow_open {
        return bad(
            "address",
            settings
                .fault(
                    "reef.host",
                    format!("{shown} is reachable from other machines and no token is set"),
                )
                .to_string(),
            "set reef.tokens, listen on 127.0.0.1, or set reef.allow-open",
        );
    }
    match TcpListener::bind((host, port)) {
        Ok(_) => good("address", format!("{shown} is free")),
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => match running::find(settings) {
            Some(note) if serves(&note.url, port) => {
                good("address", format!("{shown} is in use by the service on these files"))
            }
            _ => warning(
                "address",
                settings
                    .fault("reef.port", format!("{shown} is in use by another program"))
                    .to_string(),
                "stop that program, or set reef.port",
            ),
        },
        Err(error) => bad(
            "address",
            settings
                .fault("reef.host", format!("cannot listen on {shown}: {error}"))
                .to_string(),
            "correct reef.host and reef.port",
        ),
    }
}

/// Whether a service announced this port; one with an address of its own for others cannot be told apart.
fn serves(url: &str, port: u16) -> bool {
    url.parse::<http::Uri>()
        .is_ok_and(|uri| uri.port_u16().is_none_or(|announced| announced == port))
}

/// Every open stream holds two sockets.
fn open_files() -> Finding {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    match limit.current {
        Some(files) if files < 4096 => warning(
            "open files",
            format!("this process may open {files} files; each open stream needs two"),
            "raise the limit: ulimit -n 65536",
        ),
        Some(files) => good("open files", format!("up to {files}")),
        None => good("open files", "no limit"),
    }
}

/// How episodes of agents are kept apart here, and which limits hold. Only recipes that evolve a harness need it.
fn sandbox(context: &Context) -> Result<Finding, CliError> {
    let (check, fix) = (
        "sandbox",
        "needed only where a recipe evolves a harness; evolution.episode.isolation says what happens without it",
    );
    let scratch = std::env::temp_dir().join(format!("reef-doctor-{}", crate::sys::random::hex_token()));
    let program = std::fs::create_dir(&scratch).and_then(|()| std::env::current_exe());
    let asked = program.map(|program| {
        let sandbox = Sandbox::new(program);
        context.block_on(async { Ok(sandbox.available(&scratch).await) })
    });
    // What stays of it is an empty directory.
    let _left = std::fs::remove_dir_all(&scratch);
    Ok(match asked {
        Ok(asked) => match asked? {
            Ok(held) => good(check, format!("episodes run in namespaces of their own; {held}")),
            Err(error) => warning(check, error.to_string(), fix),
        },
        Err(error) => warning(check, format!("{}: {error}", scratch.display()), fix),
    })
}

fn directory(dir: &Path) -> Vec<Finding> {
    let check = "directory";
    // What exists of the path says whether the rest can be made.
    let there = dir.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
    if !there.is_dir() {
        return vec![bad(
            check,
            format!("{} is a file, and a directory is needed", there.display()),
            "name another directory with --dir or storage.dir",
        )];
    }
    let probe = there.join(format!(".reef-doctor-{}", crate::sys::random::hex_token()));
    let started = Instant::now();
    let written = crate::sys::durable::write(&probe, &[0; 4096]);
    let took = started.elapsed();
    // Nothing depends on it being gone.
    let _ignored = std::fs::remove_file(&probe);
    if let Err(error) = written {
        return vec![bad(
            check,
            format!("cannot write to {}: {error}", there.display()),
            "give write permission, or another directory with --dir or storage.dir",
        )];
    }
    let mut findings = vec![good(check, format!("{} is writable", dir.display()))];
    if took > Duration::from_millis(50) {
        findings.push(warning(
            "disk speed",
            format!("making one small file durable took {} ms", took.as_millis()),
            "keep storage.dir on a local disk; every receipt waits for it",
        ));
    }
    findings.extend(file_system(there));
    findings
}

fn file_system(path: &Path) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Ok(space) = rustix::fs::statvfs(path) {
        let free = space.f_bavail.saturating_mul(space.f_frsize);
        let detail = format!("{} free", format::bytes(free));
        let fix = "free some space, or lower storage.retention-max-bytes";
        findings.push(match free {
            0..0x0400_0000 => bad("disk space", detail, fix),
            0x0400_0000..0x8000_0000 => warning("disk space", detail, fix),
            _ => good("disk space", detail),
        });
    }
    // SQLite's shared memory and locks are not reliable on these.
    const NETWORK: [(i64, &str); 4] = [
        (0x6969, "NFS"),
        (0xff53_4d42, "CIFS"),
        (0xfe53_4d42, "SMB2"),
        (0x0102_1997, "9P"),
    ];
    if let Ok(kind) = rustix::fs::statfs(path) {
        let magic = kind.f_type & 0xffff_ffff;
        if let Some((_, name)) = NETWORK.iter().find(|(number, _)| *number == magic) {
            findings.push(bad(
                "file system",
                format!(
                    "{} is on {name}, where SQLite cannot lock files reliably",
                    path.display()
                ),
                "keep storage.dir on a local disk",
            ));
        }
    }
    findings
}

fn store(path: &Path) -> Finding {
    if !path.exists() {
        return good("store", "none yet; reef serve creates it");
    }
    let opened = Experience::open(path, StoreOptions::default()).and_then(|store| {
        let stats = store.stats(None)?;
        let records: u64 = stats.values().map(|stats| stats.exchanges + stats.reports).sum();
        Ok((records, store.damage()?))
    });
    let fix = "restore experience.db from a backup, or start with another --dir";
    match opened {
        Ok((records, damage)) => match damage.first() {
            None => good("store", format!("{} with {records} records is intact", path.display())),
            Some(first) => bad("store", format!("{} is damaged: {first}", path.display()), fix),
        },
        Err(error) => bad("store", with_causes(error), fix),
    }
}

/// A failure in one line.
fn with_causes(error: impl Into<CliError>) -> String {
    let error = error.into();
    let mut text = error.to_string();
    for cause in error.causes() {
        text.push_str(": ");
        text.push_str(cause);
    }
    text
}
