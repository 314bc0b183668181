//! What a program inside a sandbox can and cannot do, with the real helper processes.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a failed test may panic"
)]

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::{Duration, Instant};

use reef::harness::sandbox::{
    Bridge, Ended, Input, Isolation, Job, Limits, Outcome, Output, Phase, PhaseOutcome, Sandbox, SandboxError,
};
use tokio_util::sync::CancellationToken;

fn sandbox() -> Sandbox {
    Sandbox::new(env!("CARGO_BIN_EXE_reef"))
}

fn shell(script: &str, seconds: f64) -> Phase {
    Phase {
        name: "agent".into(),
        argv: ["/bin/sh", "-c", script].map(String::from).to_vec(),
        env: BTreeMap::from([("PATH".to_owned(), "/usr/bin:/bin".to_owned())]),
        directories: vec!["workspace".into()],
        directory: "workspace".into(),
        seconds,
        ..Phase::default()
    }
}

/// Runs a job; `None` (with the reason printed) where this machine gives no namespaces.
async fn run(job: &Job) -> Option<Outcome> {
    match sandbox().run(job, &CancellationToken::new()).await {
        Ok(outcome) => Some(outcome),
        Err(SandboxError::Unavailable { reason }) => {
            eprintln!("skipped: no namespaces here ({reason})");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

async fn one(scratch: &Path, phase: Phase, limits: Limits) -> Option<PhaseOutcome> {
    let job = Job {
        phases: vec![phase],
        limits,
        ..Job::new(scratch.to_path_buf())
    };
    Some(run(&job).await?.phases.remove(0))
}

#[tokio::test]
async fn it_sees_its_own_files_and_nothing_of_this_machine() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("scratch")).unwrap();
    std::fs::write(dir.path().join("secret"), "host-secret").unwrap();
    std::fs::write(dir.path().join("note"), "for the agent").unwrap();
    let script = format!(
        "cat note; echo; cat {0}/secret 2>&1; ls /root /home /work 2>&1; ls -d /proc/[0-9]* | wc -l; id -u; \
         echo made > made.txt; ln -s /etc/passwd link; touch /usr/x 2>&1; touch /x 2>&1; env | sort; cat /proc/1/environ 2>&1",
        dir.path().display()
    );
    let job = Job {
        phases: vec![Phase {
            inputs: vec![Input {
                from: dir.path().join("note"),
                to: "workspace/note".into(),
            }],
            env: BTreeMap::from([
                ("PATH".to_owned(), "/usr/bin:/bin".to_owned()),
                ("PLACE".to_owned(), "{root}/x".to_owned()),
            ]),
            ..shell(&script, 30.0)
        }],
        outputs: vec![Output {
            from: "workspace".into(),
            to: dir.path().join("kept"),
        }],
        ..Job::new(dir.path().join("scratch"))
    };
    let Some(outcome) = run(&job).await else { return };
    let phase = &outcome.phases[0];
    let text = format!("{}{}", phase.stdout, phase.stderr);
    assert!(text.contains("for the agent"), "{text}");
    assert!(!text.contains("host-secret"), "{text}");
    assert!(text.contains("PLACE=/episode/x") && !text.contains("HOME="), "{text}");
    assert!(!text.lines().any(|line| line == "0"), "it must not be root: {text}");
    assert_eq!(
        std::fs::read_to_string(dir.path().join("kept/made.txt")).unwrap(),
        "made\n"
    );
    assert!(!dir.path().join("kept/link").exists(), "a link is not followed out");
    assert_eq!(outcome.not_kept.len(), 1, "{:?}", outcome.not_kept);
    assert!(!Path::new("/usr/x").exists());
    assert!(
        std::fs::read_dir(dir.path().join("scratch/root")).is_ok_and(|mut entries| entries.next().is_none()),
        "the mount goes with the job"
    );
}

#[tokio::test]
async fn there_is_no_network_but_the_bridge() {
    let dir = tempfile::tempdir().unwrap();
    let scratch = dir.path().join("scratch");
    std::fs::create_dir(&scratch).unwrap();
    let outside = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let socket = dir.path().join("gateway");
    let gateway = UnixListener::bind(&socket).unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = gateway.accept().unwrap();
        let mut request = [0; 4];
        stream.read_exact(&mut request).unwrap();
        stream.write_all(b"pong").unwrap();
    });
    // Bash speaks TCP by itself; nothing has to be installed.
    let script = format!(
        "(exec 3<>/dev/tcp/127.0.0.1/{}) 2>/dev/null && echo REACHED-HOST; \
         (exec 3<>/dev/tcp/192.0.2.1/80) 2>/dev/null && echo REACHED-OUT; \
         exec 4<>/dev/tcp/127.0.0.1/8900; printf ping >&4; head -c 4 <&4; echo",
        outside.local_addr().unwrap().port()
    );
    let mut phase = shell("", 30.0);
    phase.argv = vec!["/bin/bash".into(), "-c".into(), script];
    let job = Job {
        phases: vec![phase],
        bridge: Some(Bridge { socket, port: 8900 }),
        ..Job::new(scratch)
    };
    let Some(outcome) = run(&job).await else { return };
    let phase = &outcome.phases[0];
    assert_eq!(phase.stdout.trim(), "pong", "{phase:?}");
}

#[tokio::test]
async fn a_fork_bomb_is_contained_and_reported() {
    let dir = tempfile::tempdir().unwrap();
    let limits = Limits {
        processes: 40,
        ..Limits::default()
    };
    let mut bomb = shell("", 5.0);
    bomb.argv = ["/bin/bash", "-c", ":() { : | : & sleep 20; }; :"]
        .map(String::from)
        .to_vec();
    let Some(mut phase) = one(dir.path(), bomb, limits).await else {
        return;
    };
    phase.stderr.truncate(200);
    assert!(phase.processes_exhausted, "{phase:?}");
    assert!(phase.peak_processes <= 40, "{phase:?}");
    assert!(phase.left_behind > 0, "{phase:?}");
}

#[tokio::test]
async fn a_disk_filler_and_a_memory_eater_are_contained_and_reported() {
    let dir = tempfile::tempdir().unwrap();
    let limits = Limits {
        disk_bytes: 8 * 1024 * 1024,
        ..Limits::default()
    };
    let (disk, memory) = (dir.path().join("disk"), dir.path().join("memory"));
    std::fs::create_dir(&disk).unwrap();
    std::fs::create_dir(&memory).unwrap();
    let fill = "for i in 1 2 3 4 5 6 7 8; do head -c 4000000 /dev/zero > file$i; done; echo over";
    let Some(phase) = one(&disk, shell(fill, 30.0), limits).await else {
        return;
    };
    assert!(phase.disk_full && phase.stdout.contains("over"), "{phase:?}");
    let limits = Limits {
        memory_bytes: 64 * 1024 * 1024,
        ..Limits::default()
    };
    let eat = "head -c 2000000000 /dev/zero | tail -n 1 > /dev/null";
    let phase = one(&memory, shell(eat, 60.0), limits).await.unwrap();
    assert_eq!(phase.ended, Ended::Memory, "{phase:?}");
    assert!(phase.peak_memory_bytes > 64 * 1024 * 1024, "{phase:?}");
}

/// Limits of which the kernel kills a program that wants more than 40 MB at once; `None`, with the reason printed, where
/// there are no control groups for it.
async fn held_by_the_kernel(isolation: Isolation) -> Option<Limits> {
    let dir = tempfile::tempdir().unwrap();
    match sandbox().probe(dir.path(), isolation).await {
        Ok(held) if held.limits.iter().any(|limit| limit == "memory") => Some(Limits {
            memory_bytes: 32 * MEGABYTE,
            disk_bytes: 8 * MEGABYTE,
            ..Limits::default()
        }),
        Ok(held) => {
            eprintln!("skipped: {held}");
            None
        }
        Err(SandboxError::Unavailable { reason }) => {
            eprintln!("skipped: no namespaces here ({reason})");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

const MEGABYTE: u64 = 1024 * 1024;

#[tokio::test]
async fn a_burst_of_memory_between_two_looks_is_killed_by_the_kernel_and_reported() {
    for isolation in [Isolation::Namespaces, Isolation::None] {
        let Some(limits) = held_by_the_kernel(isolation).await else {
            continue;
        };
        let dir = tempfile::tempdir().unwrap();
        let burst = "echo before; exec head -c 2000000000 /dev/zero | tail -n 1 > /dev/null";
        let job = Job {
            isolation,
            phases: vec![shell(burst, 60.0), shell("echo never", 60.0)],
            limits,
            ..Job::new(dir.path().to_path_buf())
        };
        let outcome = run(&job).await.unwrap();
        let text = format!("{isolation:?}: {outcome:?}");
        let [phase] = &outcome.phases[..] else { panic!("{text}") };
        assert_eq!(
            (phase.ended, phase.stdout.as_str()),
            (Ended::Memory, "before\n"),
            "{text}"
        );
        // A look alone would find as much as came between two of them. Programs that are shared count for each process.
        let peak = phase.peak_memory_bytes;
        assert!((32 * MEGABYTE..56 * MEGABYTE).contains(&peak), "{text}");
        assert!(outcome.held.by.starts_with("cgroup"), "{text}");
    }
}

#[tokio::test]
async fn programs_are_in_a_control_group_of_their_own_which_goes_with_the_job() {
    for isolation in [Isolation::Namespaces, Isolation::None] {
        if held_by_the_kernel(isolation).await.is_none() {
            continue;
        }
        let dir = tempfile::tempdir().unwrap();
        let job = Job {
            isolation,
            phases: vec![shell(
                "cat /proc/self/cgroup; setsid sleep 1000 >/dev/null 2>&1 &",
                30.0,
            )],
            ..Job::new(dir.path().to_path_buf())
        };
        let outcome = run(&job).await.unwrap();
        let said = &outcome.phases[0].stdout;
        let groups: Vec<&str> = said
            .split(['/', '\n'])
            .filter(|name| name.starts_with("reef-sandbox-"))
            .collect();
        assert!(!groups.is_empty(), "{isolation:?}: {outcome:?}");
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        for line in mounts.lines().filter(|line| line.contains(" - cgroup")) {
            for group in &groups {
                let left = find(Path::new(line.split(' ').nth(4).unwrap()), group);
                assert_eq!(left, None, "{isolation:?}");
            }
        }
    }
}

/// A directory of this name.
fn find(below: &Path, name: &str) -> Option<std::path::PathBuf> {
    let entries = std::fs::read_dir(below).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .find_map(|entry| {
            if entry.file_name() == name {
                Some(entry.path())
            } else {
                find(&entry.path(), name)
            }
        })
}

#[tokio::test]
async fn a_grandchild_that_hides_dies_with_the_program_and_time_runs_out() {
    let dir = tempfile::tempdir().unwrap();
    let hidden = "setsid sh -c 'trap \"\" HUP TERM; sleep 1000 & sleep 1000' >/dev/null 2>&1 & sleep 0.3; echo done";
    let Some(phase) = one(dir.path(), shell(hidden, 30.0), Limits::default()).await else {
        return;
    };
    assert_eq!(phase.ended, Ended::Exited(0), "{phase:?}");
    assert!(phase.left_behind >= 2 && phase.seconds < 20.0, "{phase:?}");
    let other = tempfile::tempdir().unwrap();
    let begun = Instant::now();
    let phase = one(other.path(), shell("echo early; sleep 1000", 1.0), Limits::default())
        .await
        .unwrap();
    assert_eq!(phase.ended, Ended::Timeout, "{phase:?}");
    assert_eq!(phase.stdout, "early\n");
    assert!(begun.elapsed() < Duration::from_secs(30));
}

#[tokio::test]
async fn the_second_program_finds_the_files_of_the_first_but_not_its_processes() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("scratch")).unwrap();
    std::fs::write(
        dir.path().join("test.sh"),
        "cat /app/answer; ls /proc | grep -c '^[0-9]'; echo 1 > /logs/verifier/reward.txt",
    )
    .unwrap();
    let first = Phase {
        directories: vec!["/app".into()],
        directory: "/app".into(),
        ..shell(
            "echo 42 > answer; sleep 1000 & ls /tests /logs 2>&1; mkdir /logs 2>&1; exit 3",
            30.0,
        )
    };
    let second = Phase {
        name: "verify".into(),
        argv: vec!["/bin/sh".into(), "/tests/test.sh".into()],
        directories: vec!["/logs/verifier".into()],
        directory: "/app".into(),
        inputs: vec![Input {
            from: dir.path().join("test.sh"),
            to: "/tests/test.sh".into(),
        }],
        ..shell("", 30.0)
    };
    let job = Job {
        phases: vec![first, second],
        outputs: vec![Output {
            from: "/logs/verifier".into(),
            to: dir.path().join("verdict"),
        }],
        ..Job::new(dir.path().join("scratch"))
    };
    let Some(outcome) = run(&job).await else { return };
    assert_eq!(outcome.phases[0].ended, Ended::Exited(3));
    assert!(
        !outcome.phases[0].stdout.contains("test.sh"),
        "the tests come after the agent"
    );
    assert!(outcome.phases[1].stdout.starts_with("42\n"), "{outcome:?}");
    assert_eq!(
        std::fs::read_to_string(dir.path().join("verdict/reward.txt")).unwrap(),
        "1\n"
    );
    // After one that had to succeed and did not, nothing runs.
    std::fs::create_dir(dir.path().join("other")).unwrap();
    let needed = |script: &str| Phase {
        must_succeed: true,
        ..shell(script, 30.0)
    };
    let job = Job {
        phases: vec![needed("exit 0"), needed("exit 3"), shell("exit 0", 30.0)],
        ..Job::new(dir.path().join("other"))
    };
    let Some(outcome) = run(&job).await else { return };
    assert_eq!(outcome.phases.len(), 2, "{outcome:?}");
}

#[tokio::test]
async fn without_namespaces_the_whole_tree_is_killed_all_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let job = Job {
        isolation: Isolation::None,
        phases: vec![shell(
            "setsid sleep 1000 >/dev/null 2>&1 & echo $HOME; pwd; exit 5",
            30.0,
        )],
        ..Job::new(dir.path().to_path_buf())
    };
    let outcome = run(&job).await.unwrap();
    let phase = &outcome.phases[0];
    assert_eq!(phase.ended, Ended::Exited(5), "{phase:?}");
    assert!(phase.left_behind >= 1, "{phase:?}");
    assert!(phase.stdout.contains("root/workspace"), "{phase:?}");
}

#[tokio::test]
async fn what_is_cancelled_leaves_nothing_running() {
    let dir = tempfile::tempdir().unwrap();
    let marker = format!("{}", 100_000 + std::process::id());
    let job = Job {
        phases: vec![shell(&format!("sleep {marker}"), 600.0)],
        ..Job::new(dir.path().to_path_buf())
    };
    let cancel = CancellationToken::new();
    let stop = cancel.clone();
    let needle = marker.clone();
    let watcher = tokio::task::spawn_blocking(move || {
        let until = Instant::now() + Duration::from_secs(60);
        while !running(&needle) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(50));
        }
        let seen = running(&needle);
        stop.cancel();
        seen
    });
    match sandbox().run(&job, &cancel).await {
        Err(SandboxError::Unavailable { reason }) => {
            cancel.cancel();
            eprintln!("skipped: no namespaces here ({reason})");
            return;
        }
        other => assert!(matches!(other, Err(SandboxError::Stopped)), "{other:?}"),
    }
    assert!(watcher.await.unwrap(), "the program never started");
    let until = Instant::now() + Duration::from_secs(60);
    while running(&marker) {
        assert!(Instant::now() < until, "sleep {marker} is still running");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Whether any process of this machine runs `sleep MARKER`.
fn running(marker: &str) -> bool {
    std::fs::read_dir("/proc").unwrap().flatten().any(|entry| {
        std::fs::read(entry.path().join("cmdline")).is_ok_and(|line| line == format!("sleep\0{marker}\0").as_bytes())
    })
}
