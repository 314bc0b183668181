//! A terminal of its own for the dashboard.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use crate::common::{PATIENCE, wait_for};

pub fn tmux_is_here() -> bool {
    let here = Command::new("tmux")
        .arg("-V")
        .output()
        .is_ok_and(|output| output.status.success());
    if !here {
        assert!(
            std::env::var_os("REEF_TMUX").is_none_or(|wanted| wanted != "required"),
            "tmux is not installed"
        );
        eprintln!("skipped: tmux is not installed; scripts/setup.sh installs it");
    }
    here
}

/// A terminal of its own, with a shell in it that runs one command and then shows how it ended.
pub struct Pane {
    socket: String,
    dir: tempfile::TempDir,
}

impl Pane {
    pub fn start(columns: u16, rows: u16, at: &Path, command: &str, env: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("tmux").to_str().unwrap().to_owned();
        let program = env!("CARGO_BIN_EXE_reef");
        let script = dir.path().join("run.sh");
        // What the terminal is set to before and after tells whether it was given back. Without a loop: bash leaves one when
        // a program it waits for is stopped in it.
        let stopped = "[ $code = 148 ] && echo stopped-by-a-key && read -r line\n[ $code = 148 ] && { fg >/dev/null; code=$?; }\n";
        fs::write(
            &script,
            format!(
                "cd '{}'\nstty -g > '{dir}/before'\necho shell-first-line\n{env} '{program}' {command} &\necho $! > '{dir}/pid'\n\
                 fg >/dev/null\ncode=$?\n{stopped}{stopped}stty -g > '{dir}/after'\necho ended-with-$code\nexec cat\n",
                at.display(),
                dir = dir.path().display(),
            ),
        )
        .unwrap();
        let pane = Self { socket, dir };
        let size = (columns.to_string(), rows.to_string());
        let shell = format!("bash --norc -m '{}'", script.display());
        let started = pane.tmux(&["new-session", "-d", "-x", &size.0, "-y", &size.1, &shell]);
        assert!(started.status.success(), "{started:?}");
        pane
    }

    pub fn tmux(&self, args: &[&str]) -> Output {
        Command::new("tmux")
            .args(["-S", &self.socket, "-f", "/dev/null"])
            .args(args)
            .env_clear()
            .env("PATH", std::env::var("PATH").unwrap())
            .env("HOME", self.dir.path())
            .env("LANG", "C.UTF-8")
            .env("TERM", "xterm-256color")
            .output()
            .unwrap()
    }

    pub fn keys(&self, keys: &[&str]) {
        let sent = self.tmux(&[&["send-keys"], keys].concat());
        assert!(sent.status.success(), "{sent:?}");
    }

    /// Closes the open page. A key that follows Escape at once would be taken for one pressed with Alt.
    pub fn escape(&self) {
        self.keys(&["Escape"]);
        let start = std::time::Instant::now();
        while self.shown().contains("Esc close") || self.shown().contains("Esc: leave it") {
            assert!(start.elapsed() < PATIENCE, "still open: {}", self.shown());
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }

    fn shown(&self) -> String {
        String::from_utf8_lossy(&self.tmux(&["capture-pane", "-p"]).stdout).into_owned()
    }

    /// Waits until the screen shows every one of these.
    pub fn wait(&self, texts: &[&str]) -> String {
        let mut last = String::new();
        let start = std::time::Instant::now();
        while start.elapsed() < PATIENCE {
            last = self.shown();
            if texts.iter().all(|text| last.contains(text)) {
                return last;
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        panic!("not within {PATIENCE:?}: {texts:?} in\n{last}");
    }

    pub fn pid(&self) -> rustix::process::Pid {
        wait_for("the process id", || {
            let text = fs::read_to_string(self.dir.path().join("pid")).ok()?;
            rustix::process::Pid::from_raw(text.trim().parse().ok()?)
        })
    }

    /// The terminal is as it was: the shell's own screen, its lines still there, the same modes.
    pub fn given_back(&self) {
        let shown = self.shown();
        assert!(shown.contains("shell-first-line"), "{shown}");
        let flags = self.tmux(&[
            "display-message",
            "-p",
            "#{alternate_on} #{mouse_any_flag} #{cursor_flag}",
        ]);
        assert_eq!(String::from_utf8_lossy(&flags.stdout).trim(), "0 0 1");
        let modes = |name: &str| fs::read_to_string(self.dir.path().join(name)).unwrap();
        assert_eq!(modes("before"), modes("after"));
    }
}

impl Drop for Pane {
    fn drop(&mut self) {
        self.tmux(&["kill-server"]);
    }
}
