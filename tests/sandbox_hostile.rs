//! Programs that mean harm: each test is a way out, or a way to a better score, that a sandbox must not leave open. As the
//! user who runs the tests, and, where that is root, as a user without rights too.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a failed test may panic"
)]

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use reef::harness::sandbox::{Ended, Input, Isolation, Job, Limits, Outcome, Output, Phase, Sandbox, SandboxError};
use tokio_util::sync::CancellationToken;

const REEF: &str = env!("CARGO_BIN_EXE_reef");
const AS_NOBODY: [&str; 5] = [
    "/usr/bin/setpriv",
    "--reuid=65534",
    "--regid=65534",
    "--clear-groups",
    "--",
];

fn is_root() -> bool {
    rustix::process::getuid().is_root()
}

/// Whether the program can be run as a user without rights.
fn can_be_nobody() -> bool {
    is_root()
        && Command::new(AS_NOBODY[0])
            .args(&AS_NOBODY[1..])
            .args([REEF, "--version"])
            .output()
            .is_ok_and(|output| output.status.success())
}

/// A directory that every user may use.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        Self(dir)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn dir(&self, name: &str) -> PathBuf {
        let path = self.path().join(name);
        std::fs::create_dir_all(&path).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o777)).unwrap();
        path
    }

    fn file(&self, name: &str, text: &str, mode: u32) -> PathBuf {
        let path = self.path().join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        path
    }
}

/// A sandbox whose helpers are started by a script.
fn through(place: &Place, name: &str, words: &[&str]) -> Sandbox {
    let script = format!("#!/bin/sh\nexec {} {REEF} \"$@\"\n", words.join(" "));
    Sandbox::new(place.file(name, &script, 0o755))
}

/// The sandbox of this user and, for root, that of a user without rights.
fn ways(place: &Place) -> Vec<(&'static str, Sandbox)> {
    let mut ways = vec![("this user", Sandbox::new(REEF))];
    if can_be_nobody() {
        ways.push(("nobody", through(place, "as-nobody", &AS_NOBODY)));
    }
    ways
}

fn shell(script: &str) -> Phase {
    Phase {
        name: "agent".into(),
        argv: ["/bin/sh", "-c", script].map(String::from).to_vec(),
        env: BTreeMap::from([("PATH".to_owned(), "/usr/bin:/bin".to_owned())]),
        directories: vec!["/app".into()],
        directory: "/app".into(),
        seconds: 60.0,
        ..Phase::default()
    }
}

/// What runs after the agent, on the same files.
fn then(argv: &[&str]) -> Phase {
    Phase {
        name: "verifier".into(),
        argv: argv.iter().map(|word| (*word).to_owned()).collect(),
        directories: Vec::new(),
        ..shell("")
    }
}

/// Runs a job; `None` (with the reason printed) where this machine gives no namespaces.
async fn run(who: &str, sandbox: &Sandbox, job: &Job) -> Option<Outcome> {
    match sandbox.run(job, &CancellationToken::new()).await {
        Ok(outcome) => Some(outcome),
        Err(SandboxError::Unavailable { reason }) => {
            eprintln!("skipped for {who}: no namespaces here ({reason})");
            None
        }
        Err(error) => panic!("{who}: {error}"),
    }
}

fn entries(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

#[tokio::test]
async fn links_that_a_first_program_plants_lead_nowhere() {
    let place = Place::new();
    let mut isolations = vec![];
    for (who, sandbox) in ways(&place) {
        isolations.push((who, sandbox.clone(), Isolation::Namespaces));
        isolations.push((who, sandbox, Isolation::None));
    }
    let note = place.file("note", "from the task\n", 0o644);
    for (n, (who, sandbox, isolation)) in isolations.into_iter().enumerate() {
        let victim = place.dir(&format!("victim-{n}"));
        let kept = place.file(&format!("victim-{n}/kept"), "as it was", 0o666);
        let out = place.dir(&format!("out-{n}"));
        // Without namespaces there are only places below the job's root.
        let at = |name: &str| match isolation {
            Isolation::Namespaces => format!("/app/{name}"),
            Isolation::None => format!("app/{name}"),
        };
        let plant = format!(
            "ln -s {0} inputs; ln -s {0} below; ln -s {1} file; ln -s {0} anew; ln -s {0} out; mkdir keep; \
             ln -s {0} keep/link; echo mine > keep/mine",
            victim.display(),
            kept.display()
        );
        let agent = Phase {
            directories: vec![at("").trim_end_matches('/').to_owned()],
            directory: at("").trim_end_matches('/').to_owned(),
            ..shell(&plant)
        };
        let input = |to: &str| Input {
            from: note.clone(),
            to: at(to),
        };
        let verifier = Phase {
            directory: agent.directory.clone(),
            directories: vec![at("below/deep"), at("anew")],
            inputs: vec![input("inputs/note"), input("file")],
            ..then(&["/bin/cat", "inputs/note", "file"])
        };
        let output = |from: &str| Output {
            from: at(from),
            to: out.join(from),
        };
        let job = Job {
            isolation,
            phases: vec![agent, verifier],
            outputs: vec![output("keep"), output("out")],
            ..Job::new(place.dir(&format!("scratch-{n}")))
        };
        let Some(outcome) = run(who, &sandbox, &job).await else {
            continue;
        };
        let text = format!("{who}, {isolation:?}: {outcome:?}");
        assert_eq!(outcome.phases[1].stdout, "from the task\nfrom the task\n", "{text}");
        assert_eq!(std::fs::read_to_string(&kept).unwrap(), "as it was", "{text}");
        assert_eq!(entries(&victim), ["kept"], "{text}");
        assert_eq!(entries(&out), ["keep"], "{text}");
        assert_eq!(entries(&out.join("keep")), ["mine"], "{text}");
        assert_eq!(outcome.not_kept.len(), 2, "{text}");
    }
}

#[tokio::test]
async fn a_first_program_replaces_nothing_that_a_second_one_runs() {
    let place = Place::new();
    place.dir("tools");
    let tool = place.file("tools/tool", "#!/usr/bin/sh\necho genuine tool\n", 0o755);
    // Where temporary files are below /tmp, the tool is shown below a place that programs may write.
    let top: PathBuf = tool.components().take(3).collect();
    let attack = format!(
        "(rm -f /bin; mkdir /bin; printf '#!/usr/bin/sh\\necho OWNED\\n' > /bin/bash; chmod 755 /bin/bash; \
          echo owned::0:0::: > /etc/passwd; touch /planted /usr/bin/planted; mkdir -p /tests /logs/verifier; \
          mv {0} {0}.gone; rm -rf {0}; mkdir -p {1}; printf '#!/usr/bin/sh\\necho OWNED\\n' > {2}; chmod 755 {2}; \
         ) 2>/dev/null; \
         {2}; cd /app && touch /tmp/x /dev/shm/x /episode/x /app/x && echo writes",
        top.display(),
        tool.parent().unwrap().display(),
        tool.display()
    );
    for (n, (who, sandbox)) in ways(&place).into_iter().enumerate() {
        let check = format!(
            "echo genuine shell; head -n 1 /etc/passwd; ls -d /planted; ls /app; {}",
            tool.display()
        );
        let verifier = Phase {
            directories: vec!["/logs/verifier".into()],
            inputs: vec![Input {
                from: tool.clone(),
                to: "/tests/check".into(),
            }],
            ..then(&["/bin/bash", "-c", &format!("{check}; /tests/check")])
        };
        let job = Job {
            read_only: vec![tool.clone()],
            phases: vec![shell(&attack), verifier],
            ..Job::new(place.dir(&format!("scratch-{n}")))
        };
        let Some(outcome) = run(who, &sandbox, &job).await else {
            continue;
        };
        let text = format!("{who}: {outcome:?}");
        assert_eq!(outcome.phases[0].stdout, "genuine tool\nwrites\n", "{text}");
        let said: Vec<&str> = outcome.phases[1].stdout.lines().collect();
        assert_eq!(
            said,
            [
                "genuine shell",
                "root:x:0:0:root:/nonexistent:/bin/false",
                "x",
                "genuine tool",
                "genuine tool"
            ],
            "{text}"
        );
    }
}

#[tokio::test]
async fn what_is_mounted_below_a_shown_directory_is_read_only_too() {
    let place = Place::new();
    let below = place.dir("shown/below");
    place.file("shown/file", "visible\n", 0o644);
    let unshare = if is_root() {
        "/usr/bin/unshare -m"
    } else {
        "/usr/bin/unshare -Urm"
    };
    let mount = format!(
        "#!/bin/sh\n/bin/mount -t tmpfs -o mode=0777 none {} || exit 1\nexec \"$@\"\n",
        below.display()
    );
    let mount = place.file("mounted", &mount, 0o755);
    let mounted = mount.to_str().unwrap();
    let mut ways = vec![("this user", through(&place, "this", &[unshare, mounted]))];
    if can_be_nobody() {
        let words: Vec<&str> = [unshare, mounted].into_iter().chain(AS_NOBODY).collect();
        ways.push(("nobody", through(&place, "nobody", &words)));
    }
    if !Command::new(place.path().join("this"))
        .arg("--version")
        .output()
        .is_ok_and(|output| output.status.success())
    {
        eprintln!("skipped: nothing can be mounted here");
        return;
    }
    let shown = place.path().join("shown");
    let script = format!(
        "cat {0}/file; (echo x > {0}/below/x) 2>/dev/null && echo WROTE; (echo x > {0}/x) 2>/dev/null && echo WROTE; echo over",
        shown.display()
    );
    for (n, (who, sandbox)) in ways.into_iter().enumerate() {
        let job = Job {
            read_only: vec![shown.clone()],
            phases: vec![shell(&script)],
            ..Job::new(place.dir(&format!("scratch-{n}")))
        };
        let Some(outcome) = run(who, &sandbox, &job).await else {
            continue;
        };
        assert_eq!(outcome.phases[0].stdout, "visible\nover\n", "{who}: {outcome:?}");
    }
}

/// Makes system calls by number and says the error of each; every number is of x86-64.
const CALLS: &str = r#"
sub try_it { my ($name, @call) = @_; $! = 0; my $got = syscall(shift @call, @call); print "$name ", ($got < 0 ? $!{EPERM} ? "EPERM" : $!{ENOSYS} ? "ENOSYS" : $!{EAFNOSUPPORT} ? "EAFNOSUPPORT" : $! + 0 : "done"), "\n"; }
my $nothing = "x"; my $empty = "\0" x 256;
try_it("unshare-user", 272, 0x10000000);
try_it("unshare-mount", 272, 0x20000);
try_it("clone-user", 56, 0x10000000 | 17, 0, 0, 0, 0);
try_it("clone3", 435, $empty, 64);
try_it("mount", 165, $nothing, $nothing, $nothing, 0, 0);
try_it("fsopen", 430, $nothing, 0);
try_it("setns", 308, 0, 0);
try_it("pivot_root", 155, $nothing, $nothing);
try_it("ptrace-attach", 101, 16, 1, 0, 0);
try_it("keyctl", 250, 0, 0, 0, 0, 0);
try_it("bpf", 321, 0, $empty, 64);
try_it("perf", 298, $empty, 0, -1, -1, 0);
try_it("userfaultfd", 323, 1);
try_it("init_module", 175, $nothing, 1, $nothing);
try_it("memfd", 319, $nothing, 0);
try_it("shmget", 29, 0, 1 << 30, 0666 | 01000);
try_it("io_uring", 425, 8, $empty);
try_it("x32-mount", 0x40000000 + 165, $nothing, $nothing, $nothing, 0, 0);
try_it("vsock", 41, 40, 1, 0);
try_it("packet", 41, 17, 3, 0);
try_it("unix", 41, 1, 1, 0);
try_it("ptrace-traceme", 101, 0, 0, 0, 0);
"#;

#[tokio::test]
#[cfg(target_arch = "x86_64")]
async fn system_calls_that_an_agent_does_not_need_are_refused() {
    if !Path::new("/usr/bin/perl").exists() {
        eprintln!("skipped: there is no perl here to make system calls with");
        return;
    }
    let place = Place::new();
    for (n, (who, sandbox)) in ways(&place).into_iter().enumerate() {
        let calls = Phase {
            argv: ["/usr/bin/perl", "-MErrno", "-e", CALLS].map(String::from).to_vec(),
            ..shell("")
        };
        let job = Job {
            phases: vec![calls],
            ..Job::new(place.dir(&format!("scratch-{n}")))
        };
        let Some(outcome) = run(who, &sandbox, &job).await else {
            continue;
        };
        let said: BTreeMap<&str, &str> = outcome.phases[0]
            .stdout
            .lines()
            .filter_map(|line| line.split_once(' '))
            .collect();
        for (error, names) in [
            (
                "EPERM",
                &[
                    "unshare-user",
                    "unshare-mount",
                    "clone-user",
                    "mount",
                    "fsopen",
                    "setns",
                    "pivot_root",
                    "ptrace-attach",
                    "keyctl",
                    "bpf",
                    "perf",
                    "userfaultfd",
                    "init_module",
                ][..],
            ),
            ("ENOSYS", &["clone3", "memfd", "shmget", "io_uring", "x32-mount"]),
            ("EAFNOSUPPORT", &["vsock", "packet"]),
            ("done", &["unix", "ptrace-traceme"]),
        ] {
            for name in names {
                assert_eq!(said.get(name), Some(&error), "{who}: {name}: {outcome:?}");
            }
        }
    }
}

#[tokio::test]
async fn shared_memory_counts_against_the_size_of_the_disk() {
    let place = Place::new();
    for (n, (who, sandbox)) in ways(&place).into_iter().enumerate() {
        let fill = "head -c 100000000 /dev/zero > /dev/shm/a; stat -c %s /dev/shm/a; \
                    unshare -Urm true 2>/dev/null && echo OWN-MOUNTS; echo over";
        let job = Job {
            phases: vec![shell(fill)],
            limits: Limits {
                disk_bytes: 8 * 1024 * 1024,
                ..Limits::default()
            },
            ..Job::new(place.dir(&format!("scratch-{n}")))
        };
        let Some(outcome) = run(who, &sandbox, &job).await else {
            continue;
        };
        let phase = &outcome.phases[0];
        let lines: Vec<&str> = phase.stdout.lines().collect();
        let size: u64 = lines[0].parse().unwrap();
        assert!(size < 8 * 1024 * 1024 && phase.disk_full, "{who}: {phase:?}");
        assert_eq!(lines[1..], ["over"], "{who}: {phase:?}");
    }
}

/// What a filter must not break: threads, child processes, compiled code, buffers outside of the heap.
#[tokio::test]
async fn node_runs_under_the_filter() {
    let node = ["/usr/bin/node", "/usr/local/bin/node"]
        .into_iter()
        .find(|path| Path::new(path).exists());
    let Some(node) = node else {
        eprintln!("skipped: no Node.js here");
        return;
    };
    let place = Place::new();
    let script = r#"
        const { Worker } = require("worker_threads");
        const { execFileSync, spawnSync } = require("child_process");
        const fs = require("fs"), net = require("net");
        const heap = [];
        for (let i = 0; i < 50; i++) heap.push(Buffer.alloc(1 << 20, i));
        const shared = new SharedArrayBuffer(1 << 20);
        const code = new WebAssembly.Module(new Uint8Array([0, 97, 115, 109, 1, 0, 0, 0]));
        fs.writeFileSync("/tmp/file", "x");
        const child = execFileSync("/bin/echo", ["child"]).toString().trim();
        const shell = spawnSync("/bin/sh", ["-c", "echo shell | cat"]).stdout.toString().trim();
        const worker = new Worker("require('worker_threads').parentPort.postMessage('worker')", { eval: true });
        const told = new Promise(done => worker.on("message", done));
        const server = net.createServer(s => s.end("net")).listen(0, "127.0.0.1", () => {
            let text = "";
            net.connect(server.address().port, "127.0.0.1").on("data", d => text += d).on("end", () => {
                server.close();
                told.then(m => console.log([child, shell, text, m].join(" ")));
            });
        });"#;
    for (n, (who, sandbox)) in ways(&place).into_iter().enumerate() {
        let phase = Phase {
            argv: [node, "-e", script].map(String::from).to_vec(),
            ..shell("")
        };
        let job = Job {
            phases: vec![phase],
            ..Job::new(place.dir(&format!("scratch-{n}")))
        };
        let Some(outcome) = run(who, &sandbox, &job).await else {
            continue;
        };
        let phase = &outcome.phases[0];
        assert_eq!(phase.ended, Ended::Exited(0), "{who}: {phase:?}");
        assert_eq!(phase.stdout, "child shell net worker\n", "{who}: {phase:?}");
    }
}
