//! What an agent sees of this machine: it lists everything that it can read, write, signal and reach, and the list is
//! compared with one that says what is allowed. As the user who runs the tests, and, where that is root, as a user without
//! rights too; the control groups are those that this machine has.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a failed test may panic"
)]
#![cfg(target_os = "linux")]

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;

use reef::harness::adapter::Adapters;
use reef::harness::episode::{Agent, Private};
use reef::harness::sandbox::{Bridge, Ended, Job, Phase, Sandbox, SandboxError};
use tokio_util::sync::CancellationToken;

const REEF: &str = env!("CARGO_BIN_EXE_reef");
const NOBODY: u32 = 65534;
/// In every file that no agent is to see.
const SECRET: &str = "HOST-SECRET";

/// Lists what it can, each kind under a heading; with `ONLY=files` no more than the files.
const LISTER: &str = r#"#!/bin/bash
say() { printf '== %s\n' "$1"; }
say files
find / \( -path /usr -o -path /opt -o -path /proc -o -path /etc/ssl/certs -o -path /etc/alternatives -o -path /etc/ld.so.conf.d \) \
    -prune -o -printf '%y' \( -type l -o -writable -printf w -o -true \) -printf ' %p\n' 2>/dev/null
test -z "$COVERED" || find $COVERED -printf '%y' \( -type l -o -writable -printf w -o -true \) -printf ' %p\n' 2>/dev/null
say secrets
for top in $(ls -A / | grep -v -x -E 'usr|opt|proc|dev|lib|lib32|lib64|bin|sbin') $COVERED; do
    grep -r -l -s "$WANTED" "/${top#/}"
done
if [ "$ONLY" = files ]; then say over; exit 0; fi
say rights
grep -E '^(CapInh|CapPrm|CapEff|CapAmb|NoNewPrivs|Seccomp):' /proc/self/status
test "$(id -u)" = 0 && echo root
say environment
tr '\0' '\n' < /proc/$$/environ | sed 's/=.*//'
say writable
find /usr /opt /etc ! -type l -writable 2>/dev/null
find /proc \( -path '/proc/[0-9]*' -o -path /proc/self -o -path /proc/thread-self \) -prune -o ! -type l -writable -print 2>/dev/null
say special
find / -path /proc -prune -o \( -type s -o -type p -o -type b -o -type c \) -print 2>/dev/null
say kernel
ls /proc | grep -v '^[0-9]'
say telling
for name in kcore keys key-users kallsyms timer_list interrupts kmsg sched_debug config.gz; do
    timeout 2 head -c 10 /proc/$name 2>/dev/null | grep -q . && echo $name
done
say processes
for process in /proc/[0-9]*; do echo "${process#/proc/} $(tr '\0' ' ' < $process/cmdline 2>/dev/null)"; done
say others
for pid in $(seq 1 $(($$ - 1))); do
    kill -0 $pid 2>/dev/null && echo "may signal $pid"
    for file in environ cmdline maps mem root cwd fd/0; do
        test -e /proc/$pid/$file && echo "may see $pid/$file"
    done
done
for signal in $(seq 1 64); do kill -$signal 1 2>/dev/null; done
say descriptors
find /proc/$$/fd -mindepth 1 -printf '%f %l\n' > /tmp/descriptors
sed 's/:.*//' /tmp/descriptors
say sockets
cat /proc/net/tcp /proc/net/tcp6 /proc/net/udp /proc/net/udp6 /proc/net/raw | awk '$2 ~ /:/ { print $2 }'
awk 'NR > 1 { print $8 }' /proc/net/unix
awk 'NR > 2 { print $1 }' /proc/net/dev
ls /sys 2>/dev/null
say group
cat /proc/self/cgroup
say mounts
cat /proc/self/mountinfo
say over
kill -9 -1
exit 0
"#;

/// What an agent sees of files in every sandbox; `w` where it may write.
const FILES: &str = "
    d /, l /bin, l /lib, l /lib32, l /lib64, l /sbin, dw /tmp,
    d /dev, l /dev/fd, fw /dev/full, fw /dev/null, fw /dev/random, dw /dev/shm, l /dev/stderr, l /dev/stdin, l /dev/stdout,
    fw /dev/urandom, fw /dev/zero,
    dw /episode, dw /episode/home, dw /episode/workspace,
    d /etc, f /etc/group, f /etc/hostname, f /etc/hosts, f /etc/ld.so.cache, f /etc/ld.so.conf, f /etc/localtime,
    l /etc/localtime, f /etc/nsswitch.conf, f /etc/passwd, f /etc/resolv.conf, d /etc/ssl, f /etc/ssl/openssl.cnf";

/// What kernels keep in `/proc` beside processes; each of these tells nothing, or what programs need.
const KERNEL: &str = "
    acpi asound bootconfig buddyinfo bus cgroups cmdline config.gz consoles cpuinfo crypto devices diskstats dma driver
    dynamic_debug execdomains fb filesystems fs interrupts iomem ioports irq kallsyms kcore key-users keys kmsg kpagecgroup
    kpagecount kpageflags latency_stats loadavg locks mdstat meminfo misc modules mounts mtrr net pagetypeinfo partitions
    pressure sched_debug schedstat scsi self slabinfo softirqs stat swaps sys sysrq-trigger sysvipc thread-self timer_list tty
    uptime version version_signature vmallocinfo vmstat zoneinfo";

/// What was listed under one heading and is not allowed.
fn beyond(said: &BTreeMap<String, Vec<String>>, heading: &str, allowed: &BTreeSet<String>) -> Vec<String> {
    let lines = said.get(heading).into_iter().flatten();
    lines.filter(|line| !allowed.contains(*line)).cloned().collect()
}

fn words(text: &str, between: &[char]) -> BTreeSet<String> {
    let words = text.split(between).map(str::trim).filter(|word| !word.is_empty());
    words.map(str::to_owned).collect()
}

fn is_root() -> bool {
    rustix::process::getuid().is_root()
}

/// A machine with a home, a deployment and an agent in each of the usual places.
struct Machine(tempfile::TempDir);

impl Machine {
    fn new() -> Self {
        let machine = Self(tempfile::tempdir().unwrap());
        set_mode(machine.0.path(), 0o755);
        for secret in [
            "home/.ssh/id_ed25519",
            "home/.local/share/keyrings/login.keyring",
            "home/.config/provider.toml",
            "home/notes",
            "home/lib/private",
            "deploy/serve.toml",
            "deploy/.env",
            "deploy/tasks/one/tests/answer",
            "deploy/.reef/experience.db",
        ] {
            machine.file(secret, SECRET, 0o600);
        }
        machine
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().canonicalize().unwrap().join(name)
    }

    fn dir(&self, name: &str) -> PathBuf {
        let path = self.at(name);
        std::fs::create_dir_all(&path).unwrap();
        path
    }

    fn file(&self, name: &str, text: &str, mode: u32) -> PathBuf {
        let path = self.at(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        set_mode(&path, mode);
        path
    }

    fn lister(&self, name: &str) -> PathBuf {
        self.file(name, LISTER, 0o755)
    }

    fn link(&self, name: &str, to: &str) -> PathBuf {
        let path = self.at(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(to, &path).unwrap();
        path
    }

    /// Gives all of it to a user.
    fn give_to(&self, user: u32) {
        fn walk(path: &Path, user: u32) {
            if path.is_dir() && !path.is_symlink() {
                for entry in std::fs::read_dir(path).unwrap() {
                    walk(&entry.unwrap().path(), user);
                }
            }
            if !path.is_symlink() {
                chown(path, Some(user), Some(user)).unwrap();
            }
        }
        walk(self.0.path(), user);
    }

    /// The helpers of a sandbox as this user, or, for root, as a user to whom the whole machine is given.
    fn sandbox(&self, nobody: bool) -> Sandbox {
        if !nobody {
            return Sandbox::new(REEF);
        }
        let id = NOBODY;
        let script =
            format!("#!/bin/sh\nexec /usr/bin/setpriv --reuid={id} --regid={id} --clear-groups -- {REEF} \"$@\"\n");
        let helper = self.file("as-nobody", &script, 0o755);
        self.give_to(NOBODY);
        Sandbox::new(helper)
    }
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

/// Whether programs can be run as a user without rights.
fn can_be_nobody() -> bool {
    let id = format!("--reuid={NOBODY}");
    is_root()
        && Command::new("/usr/bin/setpriv")
            .args([&id, "--clear-groups", "--", REEF, "--version"])
            .output()
            .is_ok_and(|output| output.status.success())
}

/// An agent, and what of a machine is covered.
struct Look<'a> {
    machine: &'a Machine,
    nobody: bool,
    private: Private,
    search: String,
    env: &'a [(&'a str, &'a str)],
}

impl<'a> Look<'a> {
    fn new(machine: &'a Machine, nobody: bool) -> Self {
        let kept = ["deploy", "deploy/serve.toml", "deploy/tasks", "deploy/.reef"];
        Self {
            machine,
            nobody,
            private: Private::new(Some(&machine.at("home")), kept.map(|name| machine.at(name))),
            search: "/usr/bin:/bin".to_owned(),
            env: &[],
        }
    }

    /// What the agent listed, by heading; `None` where this machine gives no namespaces.
    async fn at(&self, program: &Path) -> Option<BTreeMap<String, Vec<String>>> {
        let adapter = Adapters::built_in().unwrap().get("pi").unwrap().clone();
        let agent = Agent::find(adapter, Some(program), None, &self.search, self.private.clone()).unwrap();
        let scratch = self.machine.dir("deploy/.reef/work/scratch");
        set_mode(&scratch, 0o777);
        let socket = self.machine.at("gateway");
        let _gone = std::fs::remove_file(&socket);
        let _gateway = UnixListener::bind(&socket).unwrap();
        let sandbox = self.machine.sandbox(self.nobody);
        let mut env: BTreeMap<String, String> = [
            ("PATH", agent.path()),
            ("HOME", "{root}/home".into()),
            ("WANTED", SECRET.into()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into();
        env.extend(
            self.env
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned())),
        );
        let job = Job {
            read_only: agent.read_only(),
            hidden: agent.hidden(),
            phases: vec![Phase {
                name: "agent".into(),
                argv: vec![program.display().to_string()],
                env,
                directories: vec!["home".into(), "workspace".into()],
                directory: "workspace".into(),
                seconds: 120.0,
                ..Phase::default()
            }],
            bridge: Some(Bridge { socket, port: 8900 }),
            ..Job::new(scratch.clone())
        };
        let outcome = match sandbox.run(&job, &CancellationToken::new()).await {
            Ok(outcome) => outcome,
            Err(SandboxError::Unavailable { reason }) => {
                eprintln!("skipped: no namespaces here ({reason})");
                return None;
            }
            Err(error) => panic!("{error}"),
        };
        eprintln!("as nobody: {}; {}", self.nobody, outcome.held);
        std::fs::remove_dir_all(&scratch).unwrap();
        let phase = &outcome.phases[0];
        assert_eq!((phase.ended, phase.dropped_bytes), (Ended::Exited(0), 0), "{phase:?}");
        let mut said: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let mut heading = String::new();
        for line in phase.stdout.lines() {
            match line.strip_prefix("== ") {
                Some(next) => heading = next.to_owned(),
                None => said.entry(heading.clone()).or_default().push(line.to_owned()),
            }
        }
        assert_eq!(heading, "over", "{phase:?}");
        Some(said)
    }

    /// What of the machine's own directories the agent sees, without the directories that lead there.
    async fn files(&self, program: &Path) -> Option<Vec<String>> {
        let said = self.at(program).await?;
        assert_eq!(said.get("secrets"), None, "{said:?}");
        let top = format!("{}/", self.machine.at("").display()).replace("//", "/");
        let lines = said["files"].iter().filter(|line| !line.starts_with('d'));
        let mut files: Vec<String> = lines
            .filter_map(|line| Some(line.split_once(' ')?.1.strip_prefix(&top)?.to_owned()))
            .collect();
        files.sort();
        Some(files)
    }
}

/// The users whose sandboxes are looked into.
fn users() -> Vec<bool> {
    if can_be_nobody() {
        vec![false, true]
    } else {
        vec![false]
    }
}

#[tokio::test]
async fn an_agent_sees_what_is_allowed_and_nothing_else() {
    for nobody in users() {
        let machine = Machine::new();
        let program = machine.lister("home/bin/pi");
        let Some(said) = Look::new(&machine, nobody).at(&program).await else {
            return;
        };
        let text = || format!("as nobody: {nobody}: {said:#?}");
        let no = |heading: &str| assert_eq!(said.get(heading), None, "{heading}: {}", text());
        let only = |heading: &str, allowed: &BTreeSet<String>| {
            let beyond = beyond(&said, heading, allowed);
            assert!(beyond.is_empty(), "{heading}: {beyond:?}\n{}", text());
        };
        // Its own program, alone, and the directories that lead to it.
        let mut files = words(FILES, &[',']);
        files.insert(format!("f {}", program.display()));
        files.extend(program.ancestors().skip(1).map(|dir| format!("d {}", dir.display())));
        only("files", &files);
        assert!(
            said["files"].contains(&format!("f {}", program.display())),
            "{}",
            text()
        );
        for heading in ["secrets", "writable", "special", "telling"] {
            no(heading);
        }
        only("kernel", &words(KERNEL, &[' ', '\n']));
        only("environment", &words("HOME PATH WANTED", &[' ']));
        let rights = "CapInh:\t0000000000000000,CapPrm:\t0000000000000000,CapEff:\t0000000000000000,\
                      CapAmb:\t0000000000000000,NoNewPrivs:\t1,Seccomp:\t2";
        assert_eq!(
            said["rights"].iter().cloned().collect::<BTreeSet<_>>(),
            words(rights, &[','])
        );
        // Itself. Process 1 is out of sight, and takes no harm: it told how this ended.
        let [own] = &said["processes"][..] else {
            panic!("{}", text())
        };
        assert!(own.contains("/home/bin/pi"), "{}", text());
        // Where process 1 is of the same user, signals to it and its threads are taken, and do nothing.
        let others = said.get("others").cloned().unwrap_or_default();
        let signals = others.iter().all(|line| line.starts_with("may signal "));
        assert!(signals && (nobody || !is_root() || others.is_empty()), "{}", text());
        // A shell keeps its script open.
        let script = format!("255 {}", program.display());
        only(
            "descriptors",
            &words(&format!("0 /dev/null,1 pipe,2 pipe,{script}"), &[',']),
        );
        // The bridge to the model, on 127.0.0.1:8900.
        only("sockets", &words("0100007F:22C4 lo:", &[' ']));
        // Neither mounts nor control groups tell where the deployment is.
        let store = machine.at("deploy").display().to_string();
        assert!(!said.values().flatten().any(|line| line.contains(&store)), "{}", text());
    }
}

#[tokio::test]
async fn an_agent_is_found_wherever_it_is_installed_and_sees_its_package() {
    for nobody in users() {
        let machine = Machine::new();
        let files_only = [("ONLY", "files")];
        let secret = |name: &str| machine.file(name, SECRET, 0o644);
        let mut looks: Vec<(PathBuf, Vec<&str>)> = Vec::new();
        // A script of one's own, and one that an installer put there.
        for place in ["home/bin/pi", "home/.local/bin/pi"] {
            looks.push((machine.lister(place), vec![place]));
        }
        secret("home/.local/lib/python3/site-packages/secret.py");
        // npm install -g with a prefix in the home.
        machine.lister("home/.npm-global/lib/node_modules/@x/pi/cli.js");
        secret("home/.npm-global/etc/npmrc");
        let global = machine.link("home/.npm-global/bin/pi", "../lib/node_modules/@x/pi/cli.js");
        looks.push((
            global,
            vec![
                "home/.npm-global/bin/pi",
                "home/.npm-global/lib/node_modules/@x/pi/cli.js",
            ],
        ));
        // npm install in the deployment's own directory.
        machine.lister("deploy/node_modules/pi/cli.js");
        let local = machine.link("deploy/node_modules/.bin/pi", "../pi/cli.js");
        looks.push((
            local,
            vec!["deploy/node_modules/.bin/pi", "deploy/node_modules/pi/cli.js"],
        ));
        // A virtual environment there.
        machine.file("deploy/.venv/pyvenv.cfg", "home = /usr/bin\n", 0o644);
        machine.file("deploy/.venv/lib/python3/site-packages/pi.py", "", 0o644);
        secret("deploy/.venv/.env");
        let environment = machine.lister("deploy/.venv/bin/pi");
        let parts = [
            "deploy/.venv/bin/pi",
            "deploy/.venv/lib/python3/site-packages/pi.py",
            "deploy/.venv/pyvenv.cfg",
        ];
        looks.push((environment, parts.to_vec()));
        // The deployment as a prefix of its own.
        secret("deploy/lib/secret");
        looks.push((machine.lister("deploy/bin/pi"), vec!["deploy/bin/pi"]));
        for (program, expected) in looks {
            let look = Look {
                env: &files_only,
                ..Look::new(&machine, nobody)
            };
            let Some(files) = look.files(&program).await else {
                return;
            };
            assert_eq!(files, expected, "as nobody: {nobody}: {}", program.display());
        }
    }
}

#[tokio::test]
async fn node_of_a_version_manager_runs_what_is_installed_with_it() {
    for nobody in users() {
        let machine = Machine::new();
        let version = "home/.nvm/versions/node/v24";
        // Stands for Node.js: runs a script as a shell does.
        machine.file(
            &format!("{version}/bin/node"),
            "#!/bin/sh\nexec /bin/bash \"$@\"\n",
            0o755,
        );
        machine.file(&format!("{version}/lib/node_modules/npm/bin/npm-cli.js"), "", 0o755);
        machine.file("home/.nvm/alias/secret", SECRET, 0o644);
        let script = LISTER.replacen("#!/bin/bash", "#!/usr/bin/env node", 1);
        machine.file(&format!("{version}/lib/node_modules/pi/cli.js"), &script, 0o755);
        for (name, to) in [
            ("pi", "../lib/node_modules/pi/cli.js"),
            ("npm", "../lib/node_modules/npm/bin/npm-cli.js"),
        ] {
            machine.link(&format!("{version}/bin/{name}"), to);
        }
        machine.link("home/.nvm/current", "versions/node/v24");
        let look = Look {
            search: format!("{}:/usr/bin:/bin", machine.at("home/.nvm/current/bin").display()),
            env: &[("ONLY", "files")],
            ..Look::new(&machine, nobody)
        };
        let Some(files) = look.files(&machine.at("home/.nvm/current/bin/pi")).await else {
            return;
        };
        let mut expected = vec![
            "home/.nvm/current/bin/node".to_owned(),
            "home/.nvm/current/bin/pi".to_owned(),
        ];
        for name in [
            "bin/node",
            "bin/npm",
            "bin/pi",
            "lib/node_modules/npm/bin/npm-cli.js",
            "lib/node_modules/pi/cli.js",
        ] {
            expected.push(format!("{version}/{name}"));
        }
        assert_eq!(files, expected, "as nobody: {nobody}");
    }
}

/// Python as it is here, of the system or of a version manager.
#[tokio::test]
async fn a_python_agent_runs_in_its_environment() {
    let machine = Machine::new();
    let environment = machine.at("home/.local/share/agent");
    let made = Command::new("python3")
        .args(["-m", "venv", "--without-pip"])
        .arg(&environment)
        .output();
    if !made.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: python3 makes no virtual environments here");
        return;
    }
    let packages: Vec<PathBuf> = std::fs::read_dir(environment.join("lib"))
        .unwrap()
        .map(|entry| entry.unwrap().path().join("site-packages"))
        .collect();
    std::fs::write(packages[0].join("agent_package.py"), "NAME = 'of the environment'\n").unwrap();
    let script = format!(
        "#!{}/bin/python\nimport json, hashlib, agent_package\n\
         print('== python', agent_package.NAME, json.dumps(1), hashlib.sha256(b'').hexdigest()[:4], sep='\\n')\nprint('== over')\n",
        environment.display()
    );
    machine.file("home/.local/share/agent/bin/agent", &script, 0o755);
    let program = machine.link("home/.local/bin/agent", "../share/agent/bin/agent");
    let Some(said) = Look::new(&machine, false).at(&program).await else {
        return;
    };
    assert_eq!(said["python"], ["of the environment", "1", "e3b0"], "{said:?}");
}

/// A directory below `/opt`, which every agent sees.
struct Below(PathBuf);

impl Drop for Below {
    fn drop(&mut self) {
        let _gone = std::fs::remove_dir_all(&self.0);
    }
}

#[tokio::test]
async fn a_deployment_in_a_directory_of_the_system_is_covered() {
    let below = Below(PathBuf::from(format!("/opt/reef-test-{}", std::process::id())));
    if std::fs::create_dir(&below.0).is_err() {
        eprintln!("skipped: nothing can be made in /opt");
        return;
    }
    for nobody in users() {
        let machine = Machine::new();
        let (deploy, user) = (below.0.join("deploy"), below.0.join("user"));
        for (name, mode) in [
            ("deploy/.env", 0o644),
            ("deploy/tasks/answer", 0o644),
            ("user/.ssh/id", 0o644),
            ("key.toml", 0o644),
        ] {
            let path = below.0.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, SECRET).unwrap();
            set_mode(&path, mode);
        }
        let program = deploy.join("node_modules/pi/cli.js");
        std::fs::create_dir_all(program.parent().unwrap()).unwrap();
        std::fs::write(&program, LISTER).unwrap();
        set_mode(&program, 0o755);
        let covered = below.0.display().to_string();
        let look = Look {
            private: Private::new(
                Some(&user),
                [deploy.clone(), deploy.join("tasks"), below.0.join("key.toml")],
            ),
            env: &[("ONLY", "files"), ("COVERED", &covered)],
            ..Look::new(&machine, nobody)
        };
        let Some(said) = look.at(&program).await else { return };
        assert_eq!(said.get("secrets"), None, "{said:#?}");
        let seen: BTreeSet<&str> = said["files"]
            .iter()
            .filter_map(|line| line.split_once(&covered))
            .map(|(_, rest)| rest)
            .collect();
        let expected = [
            "",
            "/deploy",
            "/deploy/node_modules",
            "/deploy/node_modules/pi",
            "/deploy/node_modules/pi/cli.js",
            "/key.toml",
            "/user",
        ];
        assert_eq!(
            seen.into_iter().collect::<Vec<_>>(),
            expected,
            "as nobody: {nobody}: {said:#?}"
        );
        assert!(
            !said["files"]
                .iter()
                .any(|line| line.contains(&covered) && line.contains("w ")),
            "{said:#?}"
        );
    }
}
