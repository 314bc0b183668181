//! Which chain a command is about, and which release a person means.

use clap::Args;

use crate::cli::context::Store;
use crate::cli::{CliError, Context, Exit, begin, format};
use crate::domain::{ReleaseId, ScenarioName};
use crate::release::{ReleaseError, Selector};
use crate::scenario::{PublishError, Publisher};

/// Options of commands about one scenario.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct ScenarioOption {
    /// The scenario; not needed when there is only one
    #[arg(short, long, value_name = "NAME")]
    pub(crate) scenario: Option<ScenarioName>,
}

/// One scenario's chain, brought up to date.
pub(crate) struct Chain {
    pub(crate) publisher: Publisher,
    pub(crate) scenario: ScenarioName,
    pub(crate) head: ReleaseId,
}

impl Chain {
    pub(crate) async fn open(context: &Context, option: &ScenarioOption) -> Result<Self, CliError> {
        Self::of(context, context.publisher(Store::Shown)?, option).await
    }

    /// The same; a scenario that is named and does not exist yet begins here.
    pub(crate) async fn begin(context: &Context, option: &ScenarioOption) -> Result<Self, CliError> {
        let Some(name) = &option.scenario else {
            return Self::open(context, option).await;
        };
        let publisher = context.publisher(Store::Create)?;
        begin::ensure(context, &publisher, name).await?;
        Self::of(context, publisher, option).await
    }

    async fn of(context: &Context, publisher: Publisher, option: &ScenarioOption) -> Result<Self, CliError> {
        let scenario = match &option.scenario {
            Some(name) => name.clone(),
            None => {
                if publisher.repository().scenarios()?.is_empty() {
                    // Chains whose refs were lost are put back.
                    publisher.recover().await?;
                }
                only_one(&publisher)?
            }
        };
        let head = match publisher.readable_head(&scenario).await {
            Ok((head, None)) => head,
            Ok((head, Some(error))) => {
                context.output().warn(&format!(
                    "the chain of {scenario} is shown up to {}, the last release that can be read: {error}",
                    format::short(head.as_str())
                ));
                head
            }
            Err(PublishError::UnknownScenario { .. }) => {
                return Err(
                    CliError::new(Exit::Usage, format!("scenario {scenario} has no releases"))
                        .hint("reef scenario list shows the scenarios there are"),
                );
            }
            Err(error) => return Err(error.into()),
        };
        Ok(Self {
            publisher,
            scenario,
            head,
        })
    }

    /// The release a person wrote: `head`, `head~2`, `base`, or an id, of which the first digits are enough. What the
    /// store knows and the repository has not is damaged.
    pub(crate) fn resolve(&self, text: &str) -> Result<ReleaseId, CliError> {
        let release = self.find(text)?;
        if self.publisher.repository().has(&release)? {
            return Ok(release);
        }
        Err(ReleaseError::Damaged {
            release: release.to_string(),
            problem: "its commit is missing or unreadable".to_owned(),
        }
        .into())
    }

    /// The release that a rollback means: `head~1` counts from the newest release that is no rollback itself.
    pub(crate) fn resolve_for_rollback(&self, text: &str) -> Result<ReleaseId, CliError> {
        match Selector::parse(text) {
            selector @ Selector::Head(1..) => Ok(self
                .publisher
                .repository()
                .resolve_for_rollback(&selector, &self.scenario)?),
            _ => self.resolve(text),
        }
    }

    /// The same without a look at whether it is whole.
    pub(crate) fn find(&self, text: &str) -> Result<ReleaseId, CliError> {
        let selector = Selector::parse(text);
        if selector == Selector::Head(0) {
            return Ok(self.head.clone());
        }
        if let Selector::Id(prefix) = &selector
            && prefix.len() >= 4
            && prefix.bytes().all(|b| b.is_ascii_hexdigit())
        {
            let prefix = prefix.to_ascii_lowercase();
            let mut found = self
                .publisher
                .experience()
                .releases_by_prefix(&self.scenario, &prefix)?;
            match (found.pop(), found.pop()) {
                (Some(one), None) => return Ok(one),
                (Some(_), Some(_)) => return Err(ReleaseError::Ambiguous { prefix }.into()),
                (None, _) => {}
            }
        }
        Ok(self.publisher.repository().resolve(&selector, Some(&self.scenario))?)
    }
}

fn only_one(publisher: &Publisher) -> Result<ScenarioName, CliError> {
    let mut names: Vec<ScenarioName> = publisher
        .repository()
        .scenarios()?
        .into_iter()
        .map(|(name, _)| name)
        .collect();
    if names.len() == 1 {
        return Ok(names.remove(0));
    }
    if names.is_empty() {
        return Err(CliError::new(Exit::Usage, "there are no scenarios yet")
            .hint("reef scenario create NAME makes one; so does the first request that names one"));
    }
    let shown: Vec<&str> = names.iter().take(10).map(ScenarioName::as_str).collect();
    Err(
        CliError::new(Exit::Usage, format!("there are {} scenarios; which one?", names.len()))
            .hint(format!("add --scenario NAME, one of {}", shown.join(", "))),
    )
}
