//! What of this machine a program needs to see: the package it came in, never a home or what a deployment keeps.
//!
//! A package is told by what it is made of (`node_modules`, a virtual environment, the libraries beside `bin`), and shown in
//! those parts. A program that came in none is shown alone.

use std::io::Read;
use std::path::{Component, Path, PathBuf};

use super::private::{Private, is_of_the_system};
use crate::sys::regular;

/// How many links stand behind each other at most, as for the kernel.
const MAX_LINKS: usize = 40;
/// How many interpreters stand behind each other at most.
const MAX_INTERPRETERS: usize = 4;
/// Where every sandbox looks for programs.
pub(super) const SYSTEM_PATH: [&str; 3] = ["/usr/local/bin", "/usr/bin", "/bin"];
/// What a virtual environment or a conda environment is made of.
const ENVIRONMENT: [&str; 8] = [
    "pyvenv.cfg",
    "bin",
    "include",
    "lib",
    "lib64",
    "libexec",
    "share",
    "ssl",
];
/// What stands beside the `bin` of a program that brings its libraries.
const LIBRARIES: [&str; 3] = ["lib", "lib64", "libexec"];

/// What is shown, and where programs are looked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Shown {
    /// In the order to show it: what links lead to goes before the links.
    pub paths: Vec<PathBuf>,
    /// Directories of programs.
    pub search: Vec<PathBuf>,
}

/// Collects what programs need.
pub(super) struct Collector<'a> {
    private: &'a Private,
    search: &'a [PathBuf],
    shown: Shown,
}

impl<'a> Collector<'a> {
    pub(super) fn new(private: &'a Private, search: &'a [PathBuf]) -> Self {
        Self {
            private,
            search,
            shown: Shown::default(),
        }
    }

    /// A program, and what runs it if it is a script.
    pub(super) fn program(&mut self, file: &Path) {
        self.search_in(file);
        self.at_depth(file, 0);
    }

    /// Node.js, with the programs it brings.
    pub(super) fn node(&mut self, file: &Path) {
        self.program(file);
        let Some(bin) = file
            .canonicalize()
            .ok()
            .and_then(|real| Some(real.parent()?.to_path_buf()))
        else {
            return;
        };
        for name in ["npm", "npx", "corepack"] {
            let found = bin.join(name);
            if found.is_file() {
                self.at_depth(&found, MAX_INTERPRETERS);
            }
        }
    }

    pub(super) fn finish(self) -> Shown {
        self.shown
    }

    fn at_depth(&mut self, file: &Path, depth: usize) {
        let real = file.canonicalize().unwrap_or_else(|_| file.to_path_buf());
        // A link is made again inside, and leads to what is shown before it.
        for place in std::iter::once(real.clone()).chain(steps(file)) {
            for part in self.package(&place) {
                self.show(part);
            }
            self.show(place);
        }
        if depth < MAX_INTERPRETERS
            && let Some(interpreter) = Interpreter::of(&real, self.search)
        {
            if interpreter.by_name {
                self.search_in(&interpreter.program);
            }
            self.at_depth(&interpreter.program, depth + 1);
        }
    }

    /// Has its directory searched for programs.
    fn search_in(&mut self, file: &Path) {
        if let Some(dir) = file.parent()
            && !self.shown.search.iter().any(|known| known == dir)
        {
            self.shown.search.push(dir.to_path_buf());
        }
    }

    fn show(&mut self, path: PathBuf) {
        if !self.shown.paths.iter().any(|known| path.starts_with(known)) {
            self.shown.paths.push(path);
        }
    }

    /// The parts of a program's package, as they are.
    fn package(&self, program: &Path) -> Vec<PathBuf> {
        let modules = program
            .ancestors()
            .filter(|dir| dir.file_name().is_some_and(|name| name == "node_modules"))
            .last();
        if let Some(modules) = modules {
            return self
                .part(modules)
                .into_iter()
                .flat_map(|real| [real, modules.to_path_buf()])
                .collect();
        }
        let Some(bin) = program.parent() else { return Vec::new() };
        let Some(prefix) = bin
            .parent()
            .filter(|_| bin.file_name().is_some_and(|name| name == "bin"))
        else {
            return Vec::new();
        };
        let is_environment = prefix.join("pyvenv.cfg").is_file() || prefix.join("conda-meta").is_dir();
        let names: &[&str] = if self.private.is_home(prefix) || is_of_the_system(prefix) {
            // Not even where somebody made a home a virtual environment; and what is the system's is shown anyway.
            &[]
        } else if is_environment {
            &ENVIRONMENT
        } else if self.private.is_dot_directory(prefix) || self.private.holds_private(prefix) {
            &[]
        } else {
            &LIBRARIES
        };
        let within = prefix.canonicalize().unwrap_or_else(|_| prefix.to_path_buf());
        let parts = names.iter().filter_map(|name| self.part(&prefix.join(name)));
        // A link to elsewhere is no part.
        parts.filter(|real| real.starts_with(&within)).collect()
    }

    /// Where a part of a package really is, if it may be shown.
    fn part(&self, path: &Path) -> Option<PathBuf> {
        let real = path.canonicalize().ok()?;
        let private = self.private.holds_private(&real) || self.private.is_dot_directory(&real);
        (!private).then_some(real)
    }
}

/// A program and what it leads to by links, the last first: each as it is named, and where that really is.
fn steps(program: &Path) -> Vec<PathBuf> {
    let mut steps = Vec::new();
    let mut at = program.to_path_buf();
    for _ in 0..MAX_LINKS {
        let plain = !at.components().any(|part| part == Component::ParentDir);
        let real = at.parent().and_then(|dir| dir.canonicalize().ok()).zip(at.file_name());
        steps.extend(plain.then(|| at.clone()));
        steps.extend(real.map(|(dir, name)| dir.join(name)));
        let Ok(to) = at.read_link() else { break };
        at = at.parent().map_or_else(|| to.clone(), |dir| dir.join(&to));
    }
    steps.reverse();
    steps
}

/// What runs a script.
struct Interpreter {
    program: PathBuf,
    /// Whether the script finds it by its name.
    by_name: bool,
}

impl Interpreter {
    /// The program of a script's first line. One that every sandbox finds by its name needs not be shown.
    fn of(script: &Path, search: &[PathBuf]) -> Option<Self> {
        let mut start = Vec::new();
        regular::open(script).ok()?.take(512).read_to_end(&mut start).ok()?;
        let line = start.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
        let mut words = std::str::from_utf8(line).ok()?.split_whitespace();
        let program = Path::new(words.next()?);
        if program.file_name()? != "env" {
            let program = Some(program.to_path_buf()).filter(|path| path.is_absolute() && path.is_file())?;
            return Some(Self {
                program,
                by_name: false,
            });
        }
        let name = words.find(|word| !word.starts_with('-') && !word.contains('='))?;
        let known = SYSTEM_PATH.iter().any(|dir| Path::new(dir).join(name).is_file());
        // Node.js is looked for by whoever asks for an agent.
        if known || name.contains('/') || name == "node" {
            return None;
        }
        let program = search.iter().map(|dir| dir.join(name)).find(|path| path.is_file())?;
        Some(Self { program, by_name: true })
    }
}

/// The package, outside of any `node_modules`, whose `package.json` names this very file as its program: a checkout. What
/// else it needs cannot be told from what else lies there.
pub(super) fn checkout_of(program: &Path) -> Option<PathBuf> {
    let real = program.canonicalize().ok()?;
    if real.components().any(|part| part.as_os_str() == "node_modules") {
        return None;
    }
    let dir = real
        .ancestors()
        .skip(1)
        .find(|dir| dir.join("package.json").is_file())?;
    let file = regular::read_at_most(dir.join("package.json"), 1 << 20).ok()?;
    let package: serde_json::Value = serde_json::from_slice(&file).ok()?;
    let names = match package.get("bin")? {
        serde_json::Value::String(one) => vec![one.as_str()],
        serde_json::Value::Object(many) => many.values().filter_map(serde_json::Value::as_str).collect(),
        _ => Vec::new(),
    };
    let named = |name: &&str| dir.join(name).canonicalize().is_ok_and(|path| path == real);
    names.iter().any(named).then(|| dir.to_path_buf())
}

#[cfg(test)]
#[path = "package_tests.rs"]
mod tests;
