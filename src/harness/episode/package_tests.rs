//! Packages as their installers lay them out, on a machine with something to hide.

use std::os::unix::fs::symlink;

use super::*;
use crate::harness::episode::private::is_of_the_system;

/// A home on this machine with a deployment beside it.
struct Machine {
    dir: tempfile::TempDir,
    private: Private,
}

impl Machine {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().canonicalize().unwrap().join(name);
        let kept = ["deploy/suite", "deploy", "deploy/.reef"].map(at);
        let private = Private::new(Some(&at("home")), kept);
        let machine = Self { dir, private };
        for secret in [
            "home/.ssh/id",
            "home/.local/share/keyrings/login",
            "deploy/suite/tests/answer",
        ] {
            machine.file(secret, "secret");
        }
        machine
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().canonicalize().unwrap().join(name)
    }

    fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.at(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        path
    }

    fn link(&self, name: &str, to: &str) -> PathBuf {
        let path = self.at(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(to, &path).unwrap();
        path
    }

    fn shown(&self, collect: impl FnOnce(&mut Collector<'_>)) -> Vec<String> {
        let mut collector = Collector::new(&self.private, &[]);
        collect(&mut collector);
        let top = self.at("");
        let shown = collector.finish().paths.into_iter();
        shown
            .map(|path| {
                path.strip_prefix(&top)
                    .map_or_else(|_| path.clone(), Path::to_path_buf)
                    .display()
                    .to_string()
            })
            .collect()
    }

    fn of(&self, program: &Path) -> Vec<String> {
        self.shown(|collector| collector.program(program))
    }
}

#[test]
fn a_program_in_a_home_brings_nothing_of_it() {
    let m = Machine::new();
    for place in ["home/bin/pi", "home/.local/bin/pi", "home/pi", "home/.pi/bin/pi"] {
        m.file("home/lib/private", "secret");
        m.file("home/.local/lib/private", "secret");
        m.file("home/.pi/lib/private", "secret");
        let pi = m.file(place, "program");
        assert_eq!(m.of(&pi), [place], "{place}");
    }
    m.file("home/pyvenv.cfg", "home = /usr/bin");
    assert_eq!(m.of(&m.at("home/bin/pi")), ["home/bin/pi"]);
    // A directory of another user is a home too, whatever this machine's accounts are.
    assert!(m.private.holds_private(Path::new("/home/somebody")) && m.private.holds_private(Path::new("/home")));
}

#[test]
fn a_directory_that_holds_what_a_deployment_keeps_is_no_package() {
    let m = Machine::new();
    m.file("deploy/lib/private", "secret");
    let pi = m.file("deploy/bin/pi", "program");
    assert_eq!(m.of(&pi), ["deploy/bin/pi"]);
    // One in it is.
    let pi = m.file("deploy/node_modules/x/cli.js", "program");
    assert_eq!(m.of(&pi), ["deploy/node_modules"]);
    m.file("deploy/.venv/pyvenv.cfg", "home = /usr/bin");
    m.file("deploy/.venv/lib/python3/x.py", "library");
    let agent = m.file("deploy/.venv/bin/agent", "program");
    assert_eq!(
        m.of(&agent),
        ["deploy/.venv/pyvenv.cfg", "deploy/.venv/bin", "deploy/.venv/lib"]
    );
    // Neither is a part that holds it.
    let nested = Private::new(None, [m.at("app/lib/suite")]);
    let agent = m.file("app/bin/agent", "program");
    m.file("app/lib/suite/answer", "secret");
    let mut collector = Collector::new(&nested, &[]);
    collector.program(&agent);
    assert_eq!(collector.finish().paths, [agent]);
}

#[test]
fn a_package_is_shown_in_its_parts_with_the_links_that_lead_to_it() {
    let m = Machine::new();
    m.file("home/.npm-global/lib/node_modules/@x/pi/cli.js", "program");
    let pi = m.link("home/.npm-global/bin/pi", "../lib/node_modules/@x/pi/cli.js");
    assert_eq!(
        m.of(&pi),
        ["home/.npm-global/lib/node_modules", "home/.npm-global/bin/pi"]
    );
    m.file("srv/node_modules/@x/pi/node_modules/y/cli.js", "program");
    let pi = m.link("srv/node_modules/.bin/pi", "../@x/pi/node_modules/y/cli.js");
    assert_eq!(m.of(&pi), ["srv/node_modules"]);
    m.file("app/lib/libx.so", "library");
    m.file("app/etc/key", "secret");
    let agent = m.file("app/bin/agent", "program");
    assert_eq!(m.of(&agent), ["app/lib", "app/bin/agent"]);
    // A part that is a link to elsewhere is none.
    m.link("trick/lib", "../home");
    m.link("trick/libexec", "../home/.ssh");
    let agent = m.file("trick/bin/agent", "program");
    assert_eq!(m.of(&agent), ["trick/bin/agent"]);
}

#[test]
fn node_brings_its_own_packages_wherever_it_was_installed() {
    let m = Machine::new();
    let version = "home/.nvm/versions/node/v24";
    m.file(&format!("{version}/lib/node_modules/npm/bin/npm-cli.js"), "npm");
    m.link(&format!("{version}/bin/npm"), "../lib/node_modules/npm/bin/npm-cli.js");
    m.file(&format!("{version}/bin/node"), "program");
    m.link("home/.nvm/current", "versions/node/v24");
    let node = m.at("home/.nvm/current/bin/node");
    let shown = m.shown(|collector| collector.node(&node));
    let all = [
        &format!("{version}/lib"),
        &format!("{version}/bin/node"),
        "home/.nvm/current/bin/node",
        &format!("{version}/bin/npm"),
    ];
    assert_eq!(shown, all);
    // Unpacked over ~/.local, it brings npm and nothing else of that.
    m.file("home/.local/bin/node", "program");
    m.file("home/.local/lib/node_modules/npm/bin/npm-cli.js", "npm");
    m.link("home/.local/bin/npm", "../lib/node_modules/npm/bin/npm-cli.js");
    let shown = m.shown(|collector| collector.node(&m.at("home/.local/bin/node")));
    assert_eq!(
        shown,
        [
            "home/.local/bin/node",
            "home/.local/lib/node_modules",
            "home/.local/bin/npm"
        ]
    );
}

#[test]
fn what_runs_a_script_is_shown_too() {
    let m = Machine::new();
    let tool = "home/.local/share/uv/tools/agent";
    let python = "home/.local/share/uv/python/cpython-3.13";
    m.file(&format!("{python}/lib/libpython.so"), "library");
    m.file(&format!("{python}/bin/python3"), "program");
    m.file(&format!("{tool}/pyvenv.cfg"), "home = there");
    m.file(&format!("{tool}/lib/python3.13/x.py"), "library");
    let inner = m.link(
        &format!("{tool}/bin/python"),
        &m.at(&format!("{python}/bin/python3")).display().to_string(),
    );
    m.file(
        &format!("{tool}/bin/agent"),
        &format!("#!{}\nimport x\n", inner.display()),
    );
    let agent = m.link("home/.local/bin/agent", "../share/uv/tools/agent/bin/agent");
    let in_tool = |name: &str| format!("{tool}/{name}");
    let in_python = |name: &str| format!("{python}/{name}");
    assert_eq!(
        m.of(&agent),
        [
            in_tool("pyvenv.cfg"),
            in_tool("bin"),
            in_tool("lib"),
            "home/.local/bin/agent".to_owned(),
            in_python("lib"),
            in_python("bin/python3"),
        ]
    );
}

#[test]
fn a_program_of_a_checkout_is_told_from_a_lone_one() {
    let m = Machine::new();
    let lone = m.file("home/src/tool/run", "program");
    assert_eq!(checkout_of(&lone), None);
    m.file("home/src/pi/package.json", r#"{"bin": {"pi": "./dist/cli.js"}}"#);
    let pi = m.file("home/src/pi/dist/cli.js", "program");
    m.file("home/src/pi/dist/other.js", "program");
    let link = m.link("srv/node_modules/.bin/pi", &pi.display().to_string());
    assert_eq!(checkout_of(&link), Some(m.at("home/src/pi")));
    assert_eq!(checkout_of(&m.at("home/src/pi/dist/other.js")), None);
    m.file("srv/node_modules/x/package.json", r#"{"bin": "cli.js"}"#);
    assert_eq!(checkout_of(&m.file("srv/node_modules/x/cli.js", "program")), None);
}

#[test]
fn what_every_machine_has_is_not_a_deployments_own() {
    for dir in [
        "/",
        "/usr",
        "/opt",
        "/usr/local",
        "/usr/lib",
        "/usr/local/bin",
        "/bin",
        "/usr/games",
        "/run/sshd",
        "/tmp",
    ] {
        assert!(is_of_the_system(Path::new(dir)), "{dir}");
    }
    for dir in [
        "/opt/reef",
        "/usr/local/reef",
        "/usr/local/share/reef",
        "/srv/reef",
        "/root",
        "/home/u",
        "/usr/home/u",
    ] {
        assert!(!is_of_the_system(Path::new(dir)), "{dir}");
    }
}
