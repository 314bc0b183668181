//! A real agent program on this machine: where it is, and what it needs to see to run.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::package::{self, Collector, SYSTEM_PATH, Shown};
use super::private::Private;
use crate::domain::Content;
use crate::harness::adapter::{Adapter, AdapterError, ModelBinding, WireApi};
use crate::harness::tree::Rendered;

/// An agent that can be run.
#[derive(Debug, Clone)]
pub struct Agent {
    adapter: Adapter,
    api: WireApi,
    binary: PathBuf,
    shown: Shown,
    private: Private,
}

/// Why an agent cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// Its program is not here.
    #[error(
        "the program of {title}, `{binary}`, is not on this machine; install it (npm install -g {package}), or name it in \
         harness.binary"
    )]
    Missing {
        /// The agent.
        title: String,
        /// The program.
        binary: String,
        /// What to install.
        package: String,
    },
    /// Its program is one of a checkout, of which nobody can tell what it needs.
    #[error(
        "{binary} is a program of the checkout {directory}, which is not shown to episodes: it may hold anything; install \
         it as a package (npm pack, then npm install --prefix DIR FILE.tgz) and name DIR/node_modules/.bin/NAME in \
         harness.binary"
    )]
    Checkout {
        /// The program.
        binary: PathBuf,
        /// The directory that holds its `package.json`.
        directory: PathBuf,
    },
    /// Its adapter cannot be used.
    #[error(transparent)]
    Adapter(#[from] AdapterError),
}

/// What a run starts with.
pub(super) struct Dressed {
    /// The tree's files with the model bound.
    pub(super) files: BTreeMap<String, Content>,
    /// The variables.
    pub(super) env: BTreeMap<String, String>,
}

impl Agent {
    /// Finds the program of an adapter: `binary` if given, else by its name on the search path. What is `private` is
    /// not shown to it, wherever it lies.
    pub fn find(
        adapter: Adapter,
        binary: Option<&Path>,
        api: Option<WireApi>,
        search: &str,
        private: Private,
    ) -> Result<Self, AgentError> {
        let dirs: Vec<PathBuf> = std::env::split_paths(search).filter(|dir| dir.is_absolute()).collect();
        let found = match binary {
            Some(path) => Some(path.to_path_buf()).filter(|path| path.is_file()),
            None => on_path(&dirs, &adapter.binary),
        };
        let Some(binary) = found else {
            return Err(AgentError::Missing {
                title: adapter.title.clone(),
                binary: binary.map_or_else(|| adapter.binary.clone(), |path| path.display().to_string()),
                package: adapter.install.as_ref().map_or_else(
                    || adapter.binary.clone(),
                    |install| format!("{}@{}", install.package, install.version),
                ),
            });
        };
        let api = match api {
            Some(api) => {
                // Fails here with the APIs it speaks, not in the first episode.
                adapter.binding_files(api)?;
                api
            }
            None => adapter.apis().first().copied().unwrap_or(WireApi::Openai),
        };
        let binary = std::path::absolute(&binary).unwrap_or(binary);
        if let Some(directory) = package::checkout_of(&binary) {
            return Err(AgentError::Checkout { binary, directory });
        }
        let mut collector = Collector::new(&private, &dirs);
        collector.program(&binary);
        // Agents from npm run on Node.js, which may be anywhere.
        if let Some(node) = on_path(&dirs, "node") {
            collector.node(&node);
        }
        Ok(Self {
            adapter,
            api,
            binary,
            shown: collector.finish(),
            private,
        })
    }

    /// Its adapter.
    pub fn adapter(&self) -> &Adapter {
        &self.adapter
    }

    /// The API it speaks to its model.
    pub fn api(&self) -> WireApi {
        self.api
    }

    /// What of this machine it must see.
    pub fn read_only(&self) -> Vec<PathBuf> {
        self.shown.paths.clone()
    }

    /// What of this machine it must not see, where it lies below something that is shown.
    pub fn hidden(&self) -> Vec<PathBuf> {
        self.private.hidden()
    }

    /// Its search path.
    pub fn path(&self) -> String {
        let mut dirs: Vec<String> = self.shown.search.iter().map(|dir| dir.display().to_string()).collect();
        for dir in SYSTEM_PATH {
            if !dirs.iter().any(|known| known == dir) {
                dirs.push(dir.to_owned());
            }
        }
        dirs.join(":")
    }

    /// One headless run.
    pub(super) fn command(&self, rendered: &Rendered, prompt: &str) -> Vec<String> {
        let mut argv = vec![self.binary.display().to_string()];
        argv.extend(self.adapter.headless(prompt));
        let has = |path: &str| rendered.files.contains_key(path);
        argv.extend(self.adapter.extra_arguments(has, "{root}", "{root}/state"));
        argv
    }

    /// The files with the model bound, and the variables of a run.
    pub(super) fn dress(&self, rendered: &Rendered, binding: &ModelBinding) -> Result<Dressed, AdapterError> {
        let mut files = rendered.files.clone();
        self.adapter.bind(&mut files, self.api, binding)?;
        let mut env: BTreeMap<String, String> =
            self.adapter.environment("{root}", "{root}/state").into_iter().collect();
        env.extend(self.adapter.binding_env(self.api, binding)?);
        Ok(Dressed { files, env })
    }
}

fn on_path(dirs: &[PathBuf], name: &str) -> Option<PathBuf> {
    dirs.iter().map(|dir| dir.join(name)).find(|path| path.is_file())
}
