//! Everything that can be set, typed.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::aliases::{Moved, written};
use super::load::read_table;
use super::nearest::near_keys;
use super::reader::{Reader, Row, Section};
use super::sound;
use super::{
    ConfigError, EngineKind, Evaluation, Executors, Fallback, Fault, Field, Harness, Inference, Network, Node,
    Observability, RecipeChoice, Reef, Release, Secret, Source, Sources, Storage, Table, Training,
};
use crate::sys::net::unfit_for_a_header;

/// Path, what it is about, settings.
pub(super) type Declared = (&'static str, &'static [&'static str], &'static [Field]);

macro_rules! settings {
    ($($(#[doc = $doc:literal])+ $name:ident: $section:ty,)+) => {
        /// The settings of one deployment.
        #[derive(Clone)]
        pub struct Settings {
            $($(#[doc = $doc])+ pub $name: $section,)+
            /// The deployment file, if there is one.
            pub file: Option<PathBuf>,
            /// The directory Reef was started in.
            pub directory: PathBuf,
            pub(super) rows: Vec<Row>,
            /// What was given, as one tree with the place of every value.
            pub(super) whole: Arc<Node>,
            /// The recipe's settings in the file alone, whatever flags say.
            pub(super) recipe_of_the_file: Table,
            pub(super) moved: Moved,
            env: BTreeMap<String, String>,
        }

        impl Settings {
            pub(super) const SECTIONS: &'static [Declared] = &[
                $((<$section>::PATH, <$section>::ABOUT, <$section>::FIELDS),)+
            ];

            pub(super) fn read(reader: &mut Reader<'_>, sources: &Sources) -> Option<Self> {
                $(let $name = reader.section::<$section>();)+
                Some(Self {
                    $($name: $name?,)+
                    file: sources.file.clone(),
                    directory: sources.directory.clone(),
                    rows: Vec::new(),
                    whole: Arc::new(Node::empty_map(Source::Default)),
                    recipe_of_the_file: Table::new(None),
                    moved: Moved::new(),
                    env: sources.env.clone(),
                })
            }
        }
    };
}

settings! {
    /// Where the service listens and who may call it.
    reef: Reef,
    /// What answers requests.
    inference: Inference,
    /// The way out.
    network: Network,
    /// How experience becomes updates.
    recipe: RecipeChoice,
    /// Where and how training steps run.
    training: Training,
    /// How candidates are measured.
    evaluation: Evaluation,
    /// The chain of releases.
    release: Release,
    /// Agents' harness trees and episodes.
    harness: Harness,
    /// Where Reef keeps its files.
    storage: Storage,
    /// Logs and metrics.
    observability: Observability,
    /// Where work runs.
    executors: Executors,
}

impl Settings {
    /// Every setting with its value (secrets masked) and its source, in the order of the reference.
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// The keys most like this one, for somebody who mistyped it.
    pub fn near_keys(&self, typed: &str) -> Vec<String> {
        near_keys(typed, self.rows.iter().map(|row| row.key.clone()))
    }

    /// Where a setting came from; for a key within a setting (`inference.fallbacks[0].url`), where that stands.
    pub fn source(&self, key: &str) -> Source {
        match self.rows.iter().find(|row| row.key == key) {
            Some(row) => row.source.clone(),
            None if self.within_a_given_one(key) => self.whole.source_at(key).clone(),
            None => Source::Default,
        }
    }

    fn within_a_given_one(&self, key: &str) -> bool {
        self.rows.iter().any(|row| {
            row.source != Source::Default
                && key
                    .strip_prefix(row.key.as_str())
                    .is_some_and(|rest| rest.starts_with(['.', '[']))
        })
    }

    /// Something wrong with a setting, at the place of its value.
    pub fn fault(&self, key: &str, problem: impl Into<String>) -> Fault {
        let source = self.source(key);
        let key = written(key, &source, &self.moved);
        Fault::new(source, key, problem)
    }

    /// A fault found at a place, its key as the file has it.
    pub fn fault_at(&self, source: Source, key: &str, problem: impl Into<String>) -> Fault {
        let key = written(key, &source, &self.moved);
        Fault::new(source, key, problem)
    }

    /// The recipe's own settings as the file has them, whatever flags say.
    pub fn recipe_of_the_file(&self) -> &Table {
        &self.recipe_of_the_file
    }

    /// The directory at which relative paths of the deployment file's recipe start.
    pub fn file_directory(&self) -> PathBuf {
        self.file
            .as_ref()
            .and_then(|file| file.parent())
            .map_or_else(|| self.directory.clone(), |parent| self.directory.join(parent))
    }

    /// Reads settings that another room declares (a recipe's own, say) from a table of this deployment. `path` is the
    /// table's dotted key, for messages. The rows say where each value came from, like [`Settings::rows`].
    pub fn read_table<S: Section>(&self, table: &Table, path: &str) -> Result<(S, Vec<Row>), ConfigError> {
        read_table(table.node(), path, &self.directory)
    }

    /// A variable of the environment that a setting names (`api_key_env`, say).
    pub fn variable(&self, name: &str) -> Option<&str> {
        self.env.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// The same for a credential, without the line ends that a file leaves at its end.
    pub fn credential(&self, name: &str) -> Option<Secret> {
        self.variable(name).map(Secret::from_outside)
    }

    /// The directory of logs and process ids of the running service.
    pub fn run_dir(&self) -> PathBuf {
        self.reef.run_dir.clone().unwrap_or_else(|| self.storage.run_dir())
    }

    /// Further providers in order.
    pub fn fallbacks(&self) -> Result<Vec<Fallback>, ConfigError> {
        let read = |(at, table)| self.read_table(table, &format!("inference.fallbacks[{at}]"));
        let sections = self.inference.fallbacks.iter().enumerate().map(read);
        sections.map(|result| result.map(|(fallback, _)| fallback)).collect()
    }

    /// Every accepted token.
    pub fn tokens(&self) -> Vec<&Secret> {
        self.reef.token.iter().chain(&self.reef.tokens).collect()
    }

    /// Settings that exclude each other.
    pub(super) fn contradictions(&self) -> Vec<Fault> {
        let mut faults = Vec::new();
        let mut fault = |key: &str, problem: &str, hint: &str| {
            faults.push(self.fault(key, problem).hint(hint));
        };
        let inference = &self.inference;
        let given = |key: &str| matches!(self.source(key), Source::File { .. } | Source::CommandLine(_));
        if inference.url.is_some() && inference.upstream_url.is_some() {
            fault(
                "inference.url",
                "is another name of inference.upstream-url, which is given too",
                "keep one",
            );
        }
        if inference.model_path.is_some() && inference.upstream_url.is_some() && given("inference.upstream-url") {
            fault(
                "inference.model-path",
                "cannot be combined with inference.upstream-url",
                "the embedded model answers, or the upstream does; keep one",
            );
        }
        if inference.engine == Some(EngineKind::Torch) && inference.model_path.is_none() {
            fault(
                "inference.engine",
                "torch needs inference.model-path",
                "give the directory of the model",
            );
        }
        if inference.retry_initial_s > inference.retry_max_s {
            fault(
                "inference.retry-initial-s",
                "expected at most inference.retry-max-s",
                "raise the one or lower the other",
            );
        }
        if self
            .reef
            .tokens
            .iter()
            .chain(&self.reef.token)
            .any(|token| token.expose().trim().is_empty())
        {
            fault(
                "reef.tokens",
                "a token is empty",
                "an empty token would let everybody in",
            );
        }
        self.unfit_credentials(&mut faults);
        let mut fault = |key: &str, problem: &str, hint: &str| {
            faults.push(self.fault(key, problem).hint(hint));
        };
        // It is written into the script that people run, so it is plainly an address.
        let plain = |url: &str| {
            url.bytes()
                .all(|b| b.is_ascii_alphanumeric() || b":/.-_~[]%".contains(&b))
        };
        if self.reef.served_url.as_deref().is_some_and(|url| !plain(url)) {
            fault(
                "reef.served-url",
                "holds more than scheme, host, port and path",
                "for example https://reef.example/team",
            );
        }
        match self.fallbacks() {
            Ok(fallbacks) => {
                for (at, fallback) in fallbacks.iter().enumerate() {
                    let key = format!("inference.fallbacks[{at}]");
                    if fallback.url.is_none() {
                        let problem = "expected a URL that starts with http:// or https://";
                        faults.push(self.fault(&format!("{key}.url"), problem));
                    }
                    if let Some(problem) = fallback.api_key.as_ref().and_then(unfit) {
                        faults.push(self.fault(&format!("{key}.api-key"), problem));
                    }
                    if let Some(name) = &fallback.api_key_env {
                        let problem = match self.credential(name) {
                            None => Some(format!("names the environment variable {name}, which is not set")),
                            Some(value) => unfit(&value)
                                .map(|problem| format!("names the environment variable {name}, which {problem}")),
                        };
                        if let Some(problem) = problem {
                            faults.push(self.fault(&format!("{key}.api-key-env"), problem));
                        }
                    }
                }
            }
            Err(ConfigError::Invalid { faults: found }) => faults.extend(found),
            Err(ConfigError::Read { .. }) => {}
        }
        faults.append(&mut sound::faults(self));
        if let Some(Err(ConfigError::Invalid { faults: found })) = self.network.proxy.as_ref().map(|_| self.proxies()) {
            faults.extend(found);
        }
        faults
    }

    /// Credentials that could not be sent, or that nobody could send.
    fn unfit_credentials(&self, faults: &mut Vec<Fault>) {
        let tokens = self.reef.tokens.iter().enumerate();
        let listed = tokens.map(|(at, token)| (format!("reef.tokens[{at}]"), token));
        let single = [
            ("reef.token", &self.reef.token),
            ("inference.upstream-api-key", &self.inference.upstream_api_key),
        ];
        let single = single
            .into_iter()
            .filter_map(|(key, secret)| Some((key.to_owned(), secret.as_ref()?)));
        for (key, secret) in listed.chain(single) {
            if let Some(problem) = unfit(secret) {
                faults.push(self.fault(&key, problem).hint("no header can carry it"));
            }
        }
    }

    /// Of two names of one setting the one that was said more strongly counts.
    pub(super) fn settle_twins(&mut self) {
        let strength = |key: &str| match self.source(key) {
            Source::CommandLine(_) => 3,
            Source::Environment(_) => 2,
            Source::File { .. } => 1,
            Source::Default => 0,
        };
        if self.inference.url.is_some() && self.inference.upstream_url.is_some() {
            match strength("inference.url").cmp(&strength("inference.upstream-url")) {
                Ordering::Less => self.inference.url = None,
                Ordering::Greater => self.inference.upstream_url = None,
                Ordering::Equal => {}
            }
        }
    }
}

fn unfit(secret: &Secret) -> Option<&'static str> {
    unfit_for_a_header(secret.expose())
}

/// Values may be secret, so only the sources are shown.
impl std::fmt::Debug for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Settings")
            .field(
                "file",
                &self.file.as_deref().map(Path::display).map(|path| path.to_string()),
            )
            .finish_non_exhaustive()
    }
}
