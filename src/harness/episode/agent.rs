//! A real agent program on this machine: where it is, and what it needs to see to run.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::domain::Content;
use crate::harness::adapter::{Adapter, AdapterError, ModelBinding, WireApi};
use crate::harness::tree::Rendered;

/// An agent that can be run.
#[derive(Debug, Clone)]
pub struct Agent {
    adapter: Adapter,
    api: WireApi,
    binary: PathBuf,
    read_only: Vec<PathBuf>,
    path: Vec<PathBuf>,
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
    /// Finds the program of an adapter: `binary` if given, else by its name on the search path.
    pub fn find(
        adapter: Adapter,
        binary: Option<&Path>,
        api: Option<WireApi>,
        search: &str,
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
        let mut read_only = Vec::new();
        let mut path = Vec::new();
        let mut see = |file: &Path| {
            if let Some(parent) = file.parent() {
                path.push(parent.to_path_buf());
            }
            for place in [Some(file.to_path_buf()), file.canonicalize().ok()]
                .into_iter()
                .flatten()
            {
                let package = package_root(&place);
                if !is_system(&package) && !read_only.contains(&package) {
                    read_only.push(package);
                }
            }
        };
        let binary = std::path::absolute(&binary).unwrap_or(binary);
        see(&binary);
        // Agents from npm run on Node.js, which may be anywhere.
        if let Some(node) = on_path(&dirs, "node") {
            see(&node);
        }
        Ok(Self {
            adapter,
            api,
            binary,
            read_only,
            path,
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
        self.read_only.clone()
    }

    /// Its search path.
    pub fn path(&self) -> String {
        let mut dirs: Vec<String> = self.path.iter().map(|dir| dir.display().to_string()).collect();
        for dir in ["/usr/local/bin", "/usr/bin", "/bin"] {
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

/// What must be shown for a program to run: the directory above the outermost `node_modules`, else the directory above
/// its `bin`, else its own.
fn package_root(program: &Path) -> PathBuf {
    let modules = program
        .ancestors()
        .filter(|dir| dir.file_name().is_some_and(|name| name == "node_modules"))
        .last();
    if let Some(root) = modules {
        return root.to_path_buf();
    }
    let dir = program.parent().unwrap_or(program);
    match (dir.file_name(), dir.parent()) {
        (Some(name), Some(prefix)) if name == "bin" && prefix.parent().is_some() => prefix.to_path_buf(),
        // A lone program in a home directory must not bring the home directory with it.
        _ => program.to_path_buf(),
    }
}

/// Already shown in every sandbox.
fn is_system(path: &Path) -> bool {
    ["/usr", "/bin", "/sbin", "/lib", "/opt"]
        .iter()
        .any(|root| path.starts_with(root))
        || path == Path::new("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_brings_its_package_and_nothing_more() {
        let root = |path: &str| package_root(Path::new(path));
        assert_eq!(root("/home/u/.nvm/v24/bin/node"), Path::new("/home/u/.nvm/v24"));
        assert_eq!(root("/srv/a/node_modules/.bin/pi"), Path::new("/srv/a/node_modules"));
        assert_eq!(
            root("/srv/a/node_modules/@x/pi/node_modules/y/z.js"),
            Path::new("/srv/a/node_modules")
        );
        assert_eq!(root("/home/u/agent"), Path::new("/home/u/agent"));
        assert_eq!(root("/bin/sh"), Path::new("/bin/sh"));
    }
}
