//! The descriptor of one agent program.

use std::path::{Component, Path};

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::bind::WireApi;
use super::document::{DocumentFormat, is_variable};
use super::error::AdapterError;
use super::template::fill;
use crate::sys::regular;

/// The largest file of a descriptor.
const LARGEST: u64 = 1024 * 1024;

/// One agent program. Paths are relative to the root its tree is rendered into; `{root}` in a value is that root,
/// `{state}` the directory of what the agent itself writes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Adapter {
    /// Version of the descriptor's format; 1.
    pub format: u32,
    /// The name used everywhere.
    pub name: String,
    /// The name people know.
    pub title: String,
    /// The program.
    pub binary: String,
    /// Arguments of one headless run; `{prompt}` is the task.
    pub argv: Vec<String>,
    /// Arguments added to every run when the tree renders a certain file.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub extra: Vec<ExtraArguments>,
    /// Variables of every run.
    #[serde(default)]
    pub env: IndexMap<String, String>,
    /// The variable of `env` that moves the agent's own directory into `{root}`.
    pub relocation: String,
    /// Where each kind of entry goes.
    pub files: Files,
    /// Configuration files by target name; `primary` is the one an entry means that names none.
    pub config: IndexMap<String, ConfigTarget>,
    /// Programs the agent runs at its events.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hook: Option<HookSpec>,
    /// Agents that the agent can call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<AgentSpec>,
    /// Servers of the Model Context Protocol.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mcp_server: Option<McpSpec>,
    /// How it is bound to a model, by API; the preferred one first.
    pub models: IndexMap<WireApi, WireModel>,
    /// Where it comes from; without it there is no installer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub install: Option<Install>,
    /// What it writes about a run.
    pub trajectory: Trajectory,
    /// Its life on a user's machine.
    #[serde(default)]
    pub client: Client,
    /// What a run may leave behind besides the workspace: globs below the root; `dir/**` is a whole directory.
    #[serde(default)]
    pub residue: Vec<String>,
}

/// Where each kind of entry goes; `{name}` is the entry's name. A kind without a place is refused.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Files {
    /// The one file every rule is appended to.
    pub rules: String,
    /// Remembered facts; the rules file again makes them its last section.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<String>,
    /// A prompt template or slash command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_command: Option<String>,
    /// The directory of a skill.
    pub skill: String,
    /// Code the agent loads into its own process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code_extension: Option<String>,
}

/// One configuration file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ConfigTarget {
    /// The file.
    pub path: String,
    /// How it is written.
    pub format: DocumentFormat,
    /// What it holds before any entry.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub defaults: Map<String, Value>,
    /// Dotted keys an entry may set; a last `*` allows everything below. Everything else is refused.
    #[serde(default)]
    pub allow: Vec<String>,
    /// Keys whose refusal has a reason worth telling. They win over `allow`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub forbid: Vec<Forbidden>,
    /// Keys that must keep a value.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pinned: Vec<Pinned>,
}

/// A key no entry may set.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Forbidden {
    /// Dotted; everything below it is meant too.
    pub key: String,
    /// Completes "… is not for a tree to set: ".
    pub because: String,
}

/// A key that must keep a value.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pinned {
    /// Dotted.
    pub key: String,
    /// The value.
    pub value: Value,
    /// Completes "… must stay …: ".
    pub because: String,
}

/// How hooks are written: a script file, and its registration in a configuration file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HookSpec {
    /// The script's file.
    pub path: String,
    /// The events there are.
    pub events: Vec<String>,
    /// The configuration target it is registered in.
    pub target: String,
    /// The list it is appended to; parts may hold `{event}`.
    pub at: Vec<String>,
    /// What is appended: `{name}`, `{event}`, `{matcher}`, `{timeout_s}`.
    pub item: Value,
}

/// How agents that can be called are written.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AgentSpec {
    /// The file.
    pub path: String,
    /// Its format.
    pub format: AgentFormat,
    /// Its fields: `{name}`, `{description}`, `{tools}` (a list), `{tool_names}` (joined by commas), `{prompt}`.
    pub fields: Map<String, Value>,
}

/// The format of an agent file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AgentFormat {
    /// Frontmatter with the fields, then the prompt.
    Markdown,
    /// A TOML file of the fields.
    Toml,
}

/// How servers of the Model Context Protocol are written into a configuration file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct McpSpec {
    /// The configuration target.
    pub target: String,
    /// Where; parts may hold `{name}`.
    pub at: Vec<String>,
    /// A server started as a program: `{command}`, `{args}`, `{command_and_args}`, `{env}`.
    pub stdio: Value,
    /// A server reached over HTTP: `{url}`. None: refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<Value>,
}

/// Arguments for a tree that renders a certain file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExtraArguments {
    /// The file.
    pub when: String,
    /// The arguments.
    pub argv: Vec<String>,
}

/// How the agent is bound to a model over one API. Placeholders: `{base_url}`, `{api_key}`, `{model}`,
/// `{context_window}`, `{max_output_tokens}`; an unknown number takes its key along.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WireModel {
    /// Variables.
    #[serde(default, skip_serializing_if = "IndexMap::is_empty")]
    pub env: IndexMap<String, String>,
    /// Values merged into configuration targets.
    #[serde(default, skip_serializing_if = "IndexMap::is_empty")]
    pub config: IndexMap<String, Map<String, Value>>,
}

/// Where the program comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Install {
    /// The channel.
    pub kind: Channel,
    /// The package.
    pub package: String,
    /// The version this adapter was checked with.
    pub version: String,
    /// The program, below the directory the channel installs into.
    pub binary_path: String,
    /// The Node.js version it needs, where it needs one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
}

/// A channel programs come through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Channel {
    /// The npm registry.
    Npm,
    /// The Python package index.
    Pypi,
}

/// What the agent writes about a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Trajectory {
    /// The format of the files.
    pub format: String,
    /// The directory: below `{root}` or `{state}`.
    pub path: String,
    /// What the headless command prints, where it is of use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdout: Option<String>,
}

/// The agent on a user's machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Client {
    /// What the agent itself keeps inside the relocated directory, to survive an update of the tree.
    #[serde(default)]
    pub state: Vec<StateFile>,
    /// Programs it uses when they are there.
    #[serde(default)]
    pub tools: Vec<String>,
    /// Variables that only a person's session has.
    #[serde(default)]
    pub env: IndexMap<String, String>,
}

/// Something the agent keeps.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StateFile {
    /// Below the root.
    pub path: String,
    /// What it is.
    pub kind: StateKind,
    /// A configuration file of the tree in which the agent also saves a person's choices: these keys are kept.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub preferences: Vec<String>,
}

/// What a kept path is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StateKind {
    /// A file.
    File,
    /// A directory.
    Directory,
    /// A SQLite database with its side files.
    Sqlite,
}

impl Adapter {
    /// Reads a descriptor file.
    pub fn read(path: &Path) -> Result<Self, AdapterError> {
        let text = regular::read_text_at_most(path, LARGEST).map_err(|source| AdapterError::Read {
            path: path.to_path_buf(),
            source,
        })?;
        Self::parse(&path.display().to_string(), &text)
    }

    /// Reads a descriptor; `origin` names it in errors.
    pub fn parse(origin: &str, text: &str) -> Result<Self, AdapterError> {
        let refused = |fault: String| AdapterError::Syntax {
            origin: origin.to_owned(),
            fault,
        };
        let adapter: Self = toml::from_str(text).map_err(|error| refused(error.to_string().trim().to_owned()))?;
        match adapter.fault() {
            None => Ok(adapter),
            Some(fault) => Err(refused(fault)),
        }
    }

    /// The headless command line without the program.
    pub fn headless(&self, prompt: &str) -> Vec<String> {
        let fillers = json!({"prompt": prompt});
        let fillers = fillers.as_object().cloned().unwrap_or_default();
        self.argv.iter().map(|argument| filled(argument, &fillers)).collect()
    }

    /// The arguments that go with the files a tree rendered.
    pub fn extra_arguments<'a>(&self, files: impl Fn(&str) -> bool + 'a, root: &str, state: &str) -> Vec<String> {
        let fillers = roots(root, state);
        self.extra
            .iter()
            .filter(|extra| files(&extra.when))
            .flat_map(|extra| &extra.argv)
            .map(|argument| filled(argument, &fillers))
            .collect()
    }

    /// The variables of every run, for a root and the directory of what the agent writes.
    pub fn environment(&self, root: &str, state: &str) -> IndexMap<String, String> {
        let fillers = roots(root, state);
        self.env
            .iter()
            .map(|(name, value)| (name.clone(), filled(value, &fillers)))
            .collect()
    }

    /// The directory, relative to the root, that the relocation variable names; empty for the root itself.
    pub fn home(&self) -> &str {
        self.env
            .get(&self.relocation)
            .and_then(|value| value.strip_prefix("{root}"))
            .map_or("", |rest| rest.trim_start_matches('/'))
    }

    /// Where the agent writes about a run.
    pub fn trajectory_dir(&self, root: &str, state: &str) -> String {
        filled(&self.trajectory.path, &roots(root, state))
    }

    fn fault(&self) -> Option<String> {
        let word = |text: &str| {
            !text.is_empty()
                && text.len() <= 64
                && text
                    .bytes()
                    .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        };
        if self.format != 1 {
            return Some("format must be 1".to_owned());
        }
        if !word(&self.name) {
            return Some("name must be lower-case letters, digits and '-'".to_owned());
        }
        if !self.argv.iter().any(|argument| argument.contains("{prompt}")) {
            return Some("argv must hold {prompt}".to_owned());
        }
        if !self.config.contains_key("primary") {
            return Some("config.primary is missing".to_owned());
        }
        if !self
            .env
            .get(&self.relocation)
            .is_some_and(|value| value.starts_with("{root}"))
        {
            return Some(format!(
                "relocation must name a variable of env that starts with {{root}}; {:?} does not",
                self.relocation
            ));
        }
        if let Some(name) = self.env.keys().find(|name| !is_variable(name)) {
            return Some(format!("env: {name:?} is not the name of a variable"));
        }
        if self.models.is_empty() {
            return Some("models must bind at least one API".to_owned());
        }
        for (api, model) in &self.models {
            if let Some(target) = model.config.keys().find(|target| !self.config.contains_key(*target)) {
                return Some(format!("models.{}: there is no config target {target:?}", api.as_str()));
            }
        }
        for (what, target) in [
            ("hook", self.hook.as_ref().map(|hook| &hook.target)),
            ("mcp-server", self.mcp_server.as_ref().map(|server| &server.target)),
        ] {
            if let Some(target) = target.filter(|target| !self.config.contains_key(*target)) {
                return Some(format!("{what}: there is no config target {target:?}"));
            }
        }
        if let Some(install) = &self.install {
            let package = |text: &str| {
                !text.is_empty()
                    && text
                        .bytes()
                        .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'@' | b'.' | b'_' | b'/' | b'-'))
            };
            if !package(&install.package) || !package(&install.version) || install.version.contains(['/', '@']) {
                return Some(
                    "install: package and version are letters, digits and . _ - (and @ / in a package)".into(),
                );
            }
        }
        self.paths()
            .into_iter()
            .find(|(_, path)| !is_safe(path))
            .map(|(what, path)| format!("{what}: {path:?} must be a relative path without '..'"))
    }

    fn paths(&self) -> Vec<(&'static str, &str)> {
        let files = &self.files;
        let mut paths = vec![("files.rules", files.rules.as_str()), ("files.skill", &files.skill)];
        let optional = [
            ("files.memory", &files.memory),
            ("files.agent_command", &files.agent_command),
            ("files.code_extension", &files.code_extension),
        ];
        paths.extend(
            optional
                .iter()
                .filter_map(|(what, path)| Some((*what, path.as_deref()?))),
        );
        paths.extend(self.config.values().map(|target| ("config", target.path.as_str())));
        paths.extend(self.hook.iter().map(|hook| ("hook.path", hook.path.as_str())));
        paths.extend(self.agent.iter().map(|agent| ("agent.path", agent.path.as_str())));
        paths.extend(
            self.client
                .state
                .iter()
                .map(|state| ("client.state", state.path.as_str())),
        );
        paths.extend(
            self.install
                .iter()
                .map(|install| ("install.binary-path", install.binary_path.as_str())),
        );
        paths
    }
}

/// Whether a path stays below the directory it is joined to.
pub(crate) fn is_safe(path: &str) -> bool {
    !path.is_empty()
        && path.len() <= 512
        && !path.contains(['\\', ':'])
        && !path.chars().any(char::is_control)
        && !path.split('/').any(|part| part.is_empty() || part == ".")
        && Path::new(path)
            .components()
            .all(|part| matches!(part, Component::Normal(_)))
}

fn roots(root: &str, state: &str) -> Map<String, Value> {
    json!({"root": root, "state": state})
        .as_object()
        .cloned()
        .unwrap_or_default()
}

fn filled(template: &str, fillers: &Map<String, Value>) -> String {
    match fill(&Value::String(template.to_owned()), fillers) {
        Value::String(text) => text,
        other => other.to_string(),
    }
}
