//! Which tree a person means: a file, a directory, or a release.

use std::path::Path;

use crate::cli::cmd::release::chain::{Chain, ScenarioOption};
use crate::cli::{CliError, Context, Exit, OrExit};
use crate::harness::tree::{Tree, read_release};
use crate::release::ArtifactKind;

/// A tree and where it comes from.
pub(super) struct Named {
    pub(super) tree: Tree,
    pub(super) name: String,
}

/// Reads trees; the chain is opened once, and only if a release is named.
pub(super) struct Trees<'a> {
    context: &'a Context,
    scenario: &'a ScenarioOption,
    chain: Option<Chain>,
}

impl<'a> Trees<'a> {
    pub(super) fn new(context: &'a Context, scenario: &'a ScenarioOption) -> Self {
        Self {
            context,
            scenario,
            chain: None,
        }
    }

    /// A path if there is one of that name, else a release.
    pub(super) fn read(&mut self, text: &str) -> Result<Named, CliError> {
        if text.contains('/') || Path::new(text).exists() {
            return Ok(Named {
                tree: Tree::read(Path::new(text))?,
                name: text.to_owned(),
            });
        }
        let chain = match &mut self.chain {
            Some(chain) => chain,
            none => none.insert(self.context.block_on(Chain::open(self.context, self.scenario))?),
        };
        let id = chain.resolve(text)?;
        let repository = chain.publisher.repository();
        let manifest = repository.manifest(&id)?;
        let component = manifest
            .content
            .components
            .values()
            .find(|component| component.kind == ArtifactKind::HarnessTree);
        let tree = match component {
            Some(component) => read_release(&repository.materialise(&id)?.join(&component.path))?,
            None => None,
        };
        let tree = tree.ok_or_else(|| {
            CliError::new(Exit::Usage, format!("release {id} holds no harness tree"))
                .hint("scenarios made with harness.adapter set serve one; reef release show lists what a release holds")
        })?;
        Ok(Named {
            tree,
            name: id.to_string(),
        })
    }
}

/// Writes files below a directory that must not hold them yet.
pub(super) fn write_below(dir: &Path, tree: &Tree, rendered: &crate::harness::tree::Rendered) -> Result<(), CliError> {
    if dir.exists() && dir.read_dir().is_ok_and(|mut found| found.next().is_some()) {
        return Err(CliError::new(Exit::Usage, format!("{} is not empty", dir.display())).hint("name a new directory"));
    }
    crate::harness::tree::write_release(dir, tree, rendered).or_exit(Exit::Usage)
}
