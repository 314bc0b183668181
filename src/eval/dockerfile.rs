//! What of a Dockerfile a sandbox can do: WORKDIR, ENV, ARG, COPY, and the RUN lines that only work on the files of the
//! task. Those run in the sandbox before the agent, without a network; one that installs or fetches something is refused
//! when it is read.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::shell::{Command, commands};

/// What an environment consists of.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Environment {
    pub(super) workdir: String,
    pub(super) env: BTreeMap<String, String>,
    /// From here, to inside.
    pub(super) copies: Vec<(PathBuf, String)>,
    pub(super) runs: Vec<Run>,
}

/// A RUN line.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Run {
    /// Where it is in the Dockerfile.
    pub line: usize,
    /// Program and arguments.
    pub argv: Vec<String>,
    /// Where it starts.
    pub workdir: String,
    /// Its variables.
    pub env: BTreeMap<String, String>,
    /// How many of the copies come before it.
    pub after_copies: usize,
    /// Places outside of the working directory that it makes.
    pub makes: Vec<String>,
}

/// Commands that need a network, a package manager or rights, and which of their first words do; all without any.
const REFUSED: &[(&str, &[&str])] = &[
    ("add-apt-repository", &[]),
    ("adduser", &[]),
    ("apk", &[]),
    ("apt", &[]),
    ("apt-get", &[]),
    ("brew", &[]),
    ("bundle", &[]),
    ("cargo", &["add", "fetch", "install", "update"]),
    ("conda", &[]),
    ("corepack", &[]),
    ("curl", &[]),
    ("dnf", &[]),
    ("dpkg", &[]),
    ("gem", &["install"]),
    ("git", &["clone", "fetch", "lfs", "pull", "submodule"]),
    ("go", &["get", "install", "mod"]),
    ("groupadd", &[]),
    ("mamba", &[]),
    ("microdnf", &[]),
    ("mount", &[]),
    ("pacman", &[]),
    ("npm", &["ci", "i", "install"]),
    ("npx", &[]),
    ("pip", &[]),
    ("pip3", &[]),
    ("pipx", &[]),
    ("pnpm", &[]),
    ("poetry", &[]),
    ("python", &["-m pip"]),
    ("python3", &["-m pip"]),
    ("service", &[]),
    ("systemctl", &[]),
    ("useradd", &[]),
    ("usermod", &[]),
    ("uv", &[]),
    ("wget", &[]),
    ("yarn", &[]),
    ("yum", &[]),
];

impl Environment {
    /// Reads a Dockerfile whose files are in `context`. The error names the line.
    pub(super) fn read(context: &Path, text: &str, workdir: &str) -> Result<Self, String> {
        let mut reading = Reading {
            begun: false,
            environment: Self::default(),
            workdir: workdir.to_owned(),
            arguments: BTreeMap::new(),
            shell: vec!["/bin/sh".to_owned(), "-c".to_owned()],
        };
        let mut lines = text.lines().enumerate();
        while let Some((index, first)) = lines.next() {
            if is_comment(first) {
                continue;
            }
            let mut joined = String::new();
            let mut part = first;
            loop {
                let Some(head) = part.trim_end().strip_suffix('\\') else {
                    joined.push_str(part);
                    break;
                };
                joined.push_str(head);
                // Comments and empty lines do not end what is continued.
                match lines.by_ref().map(|(_, line)| line).find(|line| !is_comment(line)) {
                    Some(next) => part = next,
                    None => break,
                }
            }
            let number = index + 1;
            let line = joined.trim();
            let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
            let mut rest = rest.trim().to_owned();
            let word = word.to_ascii_uppercase();
            if matches!(word.as_str(), "RUN" | "COPY" | "ADD")
                && let Some(end) = heredoc(&rest)
            {
                let body: Vec<&str> = lines
                    .by_ref()
                    .map(|(_, line)| line)
                    .take_while(|line| line.trim() != end)
                    .collect();
                let body = body.join("\n");
                rest = if word == "RUN" && rest.starts_with("<<") {
                    body
                } else {
                    // The shell reads it as the Dockerfile has it.
                    format!("{rest}\n{body}\n{end}")
                };
            }
            reading
                .follow(context, number, &word, &rest)
                .map_err(|what| format!("Dockerfile line {number}: {what}"))?;
        }
        Ok(Self {
            workdir: reading.workdir,
            ..reading.environment
        })
    }
}

fn is_comment(line: &str) -> bool {
    line.trim().is_empty() || line.trim_start().starts_with('#')
}

/// The word that ends a here-document, if one begins on this line.
fn heredoc(line: &str) -> Option<String> {
    let (_, after) = line.split_once("<<")?;
    let word = after.trim_start_matches('-').trim_start_matches(['\'', '"']);
    let end: String = word
        .chars()
        .take_while(|c| c.is_ascii_alphanumeric() || *c == '_')
        .collect();
    // `<<<` gives a text, and `1 << 2` is arithmetic.
    (!end.is_empty() && !end.starts_with(|c: char| c.is_ascii_digit())).then_some(end)
}

struct Reading {
    /// Whether there was a FROM.
    begun: bool,
    environment: Environment,
    workdir: String,
    /// Variables of RUN lines alone.
    arguments: BTreeMap<String, String>,
    shell: Vec<String>,
}

impl Reading {
    fn follow(&mut self, context: &Path, number: usize, word: &str, rest: &str) -> Result<(), String> {
        match word {
            "FROM" if std::mem::replace(&mut self.begun, true) => {
                return Err("a build in several stages needs a container engine".to_owned());
            }
            "FROM" | "LABEL" | "USER" | "CMD" | "ENTRYPOINT" | "EXPOSE" | "STOPSIGNAL" | "MAINTAINER" => {}
            "SHELL" => self.shell = list(rest).ok_or("SHELL is not a list of words")?,
            "WORKDIR" => self.workdir = self.place(rest),
            "ENV" => {
                for pair in rest.split_whitespace() {
                    let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
                    self.environment
                        .env
                        .insert(name.to_owned(), value.trim_matches('"').to_owned());
                }
            }
            "ARG" => {
                if let Some((name, value)) = rest.split_once('=') {
                    self.arguments
                        .insert(name.to_owned(), value.trim_matches('"').to_owned());
                }
            }
            "COPY" | "ADD" => self.copy(context, rest)?,
            "RUN" => self.run(number, rest)?,
            other => {
                return Err(format!(
                    "{other} needs a container engine; only WORKDIR, ENV, ARG, COPY and RUN are followed here"
                ));
            }
        }
        Ok(())
    }

    fn copy(&mut self, context: &Path, rest: &str) -> Result<(), String> {
        let words: Vec<&str> = rest.split_whitespace().filter(|word| !word.starts_with("--")).collect();
        let Some((to, from)) = words.split_last() else {
            return Ok(());
        };
        if from.is_empty() || rest.starts_with('[') || rest.contains("--from") || rest.contains("<<") {
            return Err(format!("COPY {rest} is not understood"));
        }
        for from in from {
            let source = context.join(from);
            if from.contains("..") || !source.exists() {
                return Err(format!("{from} is not in the environment"));
            }
            let target = self.place(to);
            let whole = source.is_dir() || !(to.ends_with('/') || *to == ".");
            let name = source.file_name().map(|name| name.to_string_lossy().into_owned());
            let target = match name {
                Some(name) if !whole => format!("{}/{name}", target.trim_end_matches('/')),
                _ => target,
            };
            self.environment.copies.push((source, target));
        }
        Ok(())
    }

    fn run(&mut self, number: usize, rest: &str) -> Result<(), String> {
        if rest.starts_with("--") {
            return Err(format!("RUN {rest}: its options are not understood"));
        }
        let (argv, commands) = match list(rest) {
            Some(argv) => (argv.clone(), vec![Command { words: argv }]),
            None if rest.starts_with("#!") => return Err("a script of another language is not understood".to_owned()),
            None => {
                let mut argv = self.shell.clone();
                argv.push(rest.to_owned());
                (argv, commands(rest))
            }
        };
        if let Some(refused) = commands.iter().find_map(refused) {
            return Err(format!(
                "`{refused}` needs a network, a package manager or rights, so that the task needs a container engine; \
                 RUN lines that only work on the task's own files are run here"
            ));
        }
        let makes = commands.iter().flat_map(makes).collect();
        let mut env = self.arguments.clone();
        env.extend(self.environment.env.clone());
        self.environment.runs.push(Run {
            line: number,
            argv,
            workdir: self.workdir.clone(),
            env,
            after_copies: self.environment.copies.len(),
            makes,
        });
        Ok(())
    }

    fn place(&self, path: &str) -> String {
        match path.trim_end_matches('/') {
            "" if path.starts_with('/') => "/".to_owned(),
            "" | "." => self.workdir.clone(),
            path if path.starts_with('/') => path.to_owned(),
            path => format!("{}/{}", self.workdir, path.trim_start_matches("./")),
        }
    }
}

/// The words of the form `["program", "argument"]`.
fn list(text: &str) -> Option<Vec<String>> {
    serde_json::from_str(text)
        .ok()
        .filter(|words: &Vec<String>| !words.is_empty())
}

/// The part of a command that nothing here can do.
fn refused(command: &Command) -> Option<String> {
    let name = command.name()?;
    let arguments = command.arguments().join(" ");
    let (name, only) = REFUSED.iter().find(|(known, _)| *known == name)?;
    if only.is_empty() {
        return Some((*name).to_owned());
    }
    only.iter()
        .find(|first| arguments == **first || arguments.starts_with(&format!("{first} ")))
        .map(|first| format!("{name} {first}"))
}

/// The directories that `mkdir -p` is given whole: they have to be places that may be written to.
fn makes(command: &Command) -> Vec<String> {
    let arguments = command.arguments();
    let parents = arguments
        .iter()
        .any(|word| word == "--parents" || word.starts_with('-') && word.contains('p'));
    if command.name() != Some("mkdir") || !parents {
        return Vec::new();
    }
    let plain = |word: &&String| word.starts_with('/') && !word.contains(['$', '*', '?', '{', '~', '`', '\\']);
    arguments
        .iter()
        .filter(plain)
        .map(|word| word.trim_end_matches('/').to_owned())
        .filter(|word| !word.is_empty())
        .collect()
}
