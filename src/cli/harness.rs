//! What the commands about harness trees share: the adapters, and the tree new scenarios start with.

use std::path::{Path, PathBuf};

use super::{CliError, Exit, learning};
use crate::config::{EngineKind, Settings, UpstreamApi};
use crate::harness::adapter::{Adapter, AdapterError, Adapters, WireApi};
use crate::harness::tree::{Policy, TREE_FILE, Tree, TreeError, check, read_release};
use crate::recipe::{SurfaceKind, TrainerKind};
use crate::scenario::Seed;
use crate::serve::HarnessOptions;
use crate::sys::clock;

/// The adapter of a deployment that names none.
const USUAL: &str = "pi";

/// The adapter of a deployment.
pub(crate) fn usual(settings: &Settings) -> &str {
    settings.harness.adapter.as_deref().unwrap_or(USUAL)
}

/// What a person allowed.
pub(crate) fn policy(settings: &Settings) -> Policy {
    Policy {
        allow_directives: settings.harness.allow_directives.iter().cloned().collect(),
    }
}

/// A deployment that serves trees.
pub(crate) struct Trees {
    pub(crate) adapters: Adapters,
    pub(crate) adapter: Adapter,
    pub(crate) policy: Policy,
    most_proposals: Option<u32>,
    seed: Option<PathBuf>,
}

/// Every adapter, those of the deployment included.
pub(crate) fn adapters(settings: &Settings) -> Result<Adapters, CliError> {
    let built_in = Adapters::built_in()?;
    Ok(match &settings.harness.adapters {
        Some(dir) => built_in
            .with_directory(dir)
            .map_err(|error| CliError::from(error).of_setting(settings, "harness.adapters"))?,
        None => built_in,
    })
}

/// What the deployment says about trees; `None` where it serves none.
pub(crate) fn trees(settings: &Settings) -> Result<Option<Trees>, CliError> {
    let harness = &settings.harness;
    let asked = harness.adapter.is_some() || harness.seed.is_some();
    let recipe = learning::recipe(settings)?;
    let wanted = recipe
        .as_ref()
        .is_some_and(|recipe| recipe.surface.kind == SurfaceKind::Harness);
    if !asked && !wanted {
        return Ok(None);
    }
    let adapters = adapters(settings)?;
    let adapter = adapters
        .get(usual(settings))
        .map_err(|error| CliError::from(error).of_setting(settings, "harness.adapter"))?
        .clone();
    Ok(Some(Trees {
        adapters,
        adapter,
        policy: policy(settings),
        most_proposals: recipe
            .filter(|recipe| recipe.trainer.backend == TrainerKind::Proposer)
            .map(|recipe| recipe.evolution.maximum_pending),
        seed: harness.seed.clone(),
    }))
}

/// Whether the adapter is known and new scenarios can start with the seed; gives the adapter.
pub(crate) fn check_settings(settings: &Settings) -> Result<Option<String>, CliError> {
    let Some(trees) = trees(settings)? else {
        return Ok(None);
    };
    trees
        .seed()
        .map_err(|error| error.of_setting(settings, "harness.seed"))?;
    Ok(Some(format!("trees for {}", trees.adapter.name)))
}

/// Holds a directory that is to become a release to what every tree has to pass, if it holds a tree.
pub(crate) fn check_release(settings: &Settings, dir: &Path) -> Result<(), CliError> {
    let Some(tree) = read_release(dir)? else { return Ok(()) };
    let adapters = adapters(settings)?;
    let adapter = adapters.get(tree.adapter.as_deref().unwrap_or(usual(settings)))?;
    match check(&tree, adapter, &policy(settings), clock::now_us()) {
        Ok(_) => Ok(()),
        Err(refusal) => Err(CliError::new(
            Exit::Usage,
            format!("{}: {refusal}; nothing was released", dir.join(TREE_FILE).display()),
        )),
    }
}

impl Trees {
    /// What new scenarios start with.
    pub(crate) fn seed(&self) -> Result<Seed, CliError> {
        let mut tree = match &self.seed {
            Some(path) => Tree::read(path)?,
            None => Tree::default(),
        };
        let rendered = check(&tree, &self.adapter, &self.policy, clock::now_us()).map_err(|refusal| {
            let place = self.seed.as_deref().unwrap_or(Path::new("the empty tree"));
            CliError::new(Exit::Usage, format!("{}: {refusal}", place.display()))
                .hint("reef harness test checks a tree without a service")
        })?;
        tree.adapter = Some(self.adapter.name.clone());
        for entry in &mut tree.entries {
            let provenance = entry.provenance.get_or_insert_default();
            if provenance.created_by.is_empty() {
                "seed".clone_into(&mut provenance.created_by);
            }
        }
        Ok(Seed::new(tree, rendered))
    }
}

impl Trees {
    /// What the service says about them.
    pub(crate) fn options(self, settings: &Settings) -> HarnessOptions {
        let inference = &settings.inference;
        let upstream = inference.engine() == EngineKind::Upstream;
        HarnessOptions {
            adapter: self.adapter.name,
            adapters: self.adapters,
            policy: self.policy,
            most_proposals: self.most_proposals,
            url: settings.reef.served_url.clone().map(String::from),
            model: if upstream {
                inference.upstream_model.clone()
            } else {
                inference.model_name.clone()
            },
            api: upstream.then_some(match inference.upstream_api {
                UpstreamApi::Openai => WireApi::Openai,
                UpstreamApi::Responses => WireApi::Responses,
                UpstreamApi::Anthropic => WireApi::Anthropic,
            }),
        }
    }
}

impl From<AdapterError> for CliError {
    fn from(error: AdapterError) -> Self {
        let hint = match &error {
            AdapterError::Unknown { .. } => Some("reef harness adapters lists them"),
            _ => None,
        };
        let failure = Self::from_error(Exit::Usage, error);
        match hint {
            Some(hint) => failure.hint(hint),
            None => failure,
        }
    }
}

impl From<TreeError> for CliError {
    fn from(error: TreeError) -> Self {
        Self::from_error(Exit::Usage, error)
    }
}
