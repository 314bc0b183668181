//! Bringing store and repository together. The repository decides: what a head has reached is settled, what it has not
//! reached is abandoned when its process is gone, and what came from elsewhere is adopted.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use super::publication::release_row;
use super::publish::Publisher;
use super::publish_error::PublishError;
use crate::domain::{Operation, ReleaseId, ScenarioName, TrainingMode};
use crate::experience::{Adopted, ChainState, OpenIntent, ReleaseRow, ReleasesWhere, Settlement, StoreError};
use crate::release::{Commit, Manifest, ReleaseError, Repository};

/// How often a scenario is looked at that is put away and made anew all the time.
const LOOKS: u32 = 50;
const BETWEEN_LOOKS: Duration = Duration::from_millis(10);

/// How a chain stands in repository and store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Standing {
    /// It ends here.
    Head(ReleaseId),
    /// There is none.
    Never,
    /// The store knows one, and the repository has lost it.
    Gone {
        /// Where it ended.
        head: ReleaseId,
    },
}

impl Publisher {
    /// Settles or abandons what was left behind in a scenario and indexes what came from elsewhere. Gives the head; when
    /// nothing happened since the last time it costs one ref and two small queries.
    pub async fn sync(&self, scenario: &ScenarioName) -> Result<Option<ReleaseId>, PublishError> {
        Ok(match self.stand(scenario).await? {
            Standing::Head(head) => Some(head),
            Standing::Never | Standing::Gone { .. } => None,
        })
    }

    /// The same for a scenario that must have a chain.
    pub async fn head(&self, scenario: &ScenarioName) -> Result<ReleaseId, PublishError> {
        let name = scenario.clone();
        match self.stand(scenario).await? {
            Standing::Head(head) => Ok(head),
            Standing::Never => Err(PublishError::UnknownScenario { name }),
            Standing::Gone { head } => Err(PublishError::ChainGone { name, head }),
        }
    }

    /// Brings the store up to date with the repository. The two are read at different moments, while others publish,
    /// archive and make scenarios anew. A head moves before the store learns of it, so what the store knew *before* the
    /// repository was read must be there, and what the repository had must be known to the store *after*; and both only
    /// count while they are about the same scenario of the name.
    pub(super) async fn stand(&self, scenario: &ScenarioName) -> Result<Standing, PublishError> {
        for look in 0..LOOKS {
            if look > 0 {
                tokio::time::sleep(BETWEEN_LOOKS).await;
            }
            let before = self.state(scenario).await?;
            let name = scenario.clone();
            let head = self.blocking(move |repository| repository.head(&name)).await?;
            if head == before.head && self.left_behind(&before).is_empty() {
                return Ok(head.map_or(Standing::Never, Standing::Head));
            }
            if self.inner.reads_only() {
                return Ok(match before.head {
                    Some(known) if head.is_none() => Standing::Gone { head: known },
                    Some(known) => Standing::Head(known),
                    None => Standing::Never,
                });
            }
            let after = self.state(scenario).await?;
            if after.created_us != before.created_us {
                continue;
            }
            let standing = match (head, before.head) {
                (Some(head), _) => match self.catch_up(scenario, head, &after).await? {
                    Some(head) => Standing::Head(head),
                    None => continue,
                },
                (None, Some(known)) => self.without_head(scenario, after.created_us, known).await?,
                (None, None) => Standing::Never,
            };
            for intent in self.left_behind(&after) {
                let reason = "the process that began it ended before the head moved";
                self.resolve_intent(scenario, &intent, reason).await?;
            }
            if before.created_us.is_none() && matches!(standing, Standing::Head(_)) {
                // The store is new, and the repository has more than chains.
                Box::pin(self.adopt_held()).await?;
            }
            return Ok(standing);
        }
        Err(PublishError::Restless { name: scenario.clone() })
    }

    async fn state(&self, scenario: &ScenarioName) -> Result<ChainState, PublishError> {
        let name = scenario.clone();
        self.reading(move |experience| experience.chain_state(&name)).await
    }

    /// Indexes what the repository has up to `head` and the store has not. Gives the newest release that is known then, or
    /// nothing when the scenario was put away meanwhile.
    async fn catch_up(
        &self,
        scenario: &ScenarioName,
        head: ReleaseId,
        state: &ChainState,
    ) -> Result<Option<ReleaseId>, PublishError> {
        let created_us = match state.created_us {
            Some(created_us) => created_us,
            // A chain pulled from elsewhere, whose scenario this store has not seen.
            None => {
                let (name, mode) = (scenario.clone(), TrainingMode::default());
                let experience = &self.inner.experience;
                let made = experience.scenario_create(name, mode, serde_json::Map::new()).await?;
                made.scenario.created_us
            }
        };
        let (end, known) = (head.clone(), state.head.clone());
        let (ahead, news) = self
            .blocking(move |repository| {
                let known = match known {
                    Some(known) if repository.has(&known)? => Some(known),
                    _ => None,
                };
                if let Some(known) = &known
                    && *known != end
                    && repository.is_ancestor(&end, known)?
                {
                    return Ok((Some(known.clone()), Vec::new()));
                }
                let mut chain = repository.chain(&end, known.as_ref(), usize::MAX)?;
                chain.reverse();
                let news = chain.into_iter().map(|commit| evidence(repository, &commit.release_id));
                Ok((None, news.collect::<Result<Vec<_>, ReleaseError>>()?))
            })
            .await?;
        match self.adopt(scenario, created_us, news).await {
            Ok(()) => Ok(Some(ahead.unwrap_or(head))),
            Err(PublishError::Store(StoreError::UnknownScenario { .. })) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Where a chain ends as far as it can be read: its head, or where its end is damaged the newest release that the
    /// store knows, with what is wrong.
    pub async fn readable_head(
        &self,
        scenario: &ScenarioName,
    ) -> Result<(ReleaseId, Option<PublishError>), PublishError> {
        match self.head(scenario).await {
            Ok(head) => Ok((head, None)),
            Err(error) if error.is_damage() => match self.state(scenario).await?.head {
                Some(known) => Ok((known, Some(error))),
                None => Err(error),
            },
            Err(error) => Err(error),
        }
    }

    /// [`Self::sync`] for every scenario where repository and store differ, and [`Self::adopt_held`]; called once at start.
    pub async fn recover(&self) -> Result<(), PublishError> {
        let heads = self.blocking(Repository::scenarios).await?;
        let (ends, open) = self
            .reading(|experience| Ok((experience.chain_ends(None)?, experience.open_intents(None)?)))
            .await?;
        let indexed: HashMap<ScenarioName, ReleaseId> = ends.into_iter().map(|e| (e.scenario, e.head)).collect();
        let in_git: HashSet<ScenarioName> = heads.iter().map(|(name, _)| name.clone()).collect();
        let mut behind: Vec<ScenarioName> = heads
            .into_iter()
            .filter(|(name, head)| indexed.get(name) != Some(head))
            .map(|(name, _)| name)
            .collect();
        behind.extend(indexed.into_keys().filter(|name| !in_git.contains(name)));
        behind.extend(open.into_iter().map(|intent| intent.scenario));
        behind.sort();
        behind.dedup();
        for name in behind {
            match self.sync(&name).await {
                Ok(_) => {}
                // One chain that cannot be read is no reason to do without the others.
                Err(error) if error.is_damage() => {
                    tracing::error!(scenario = %name, %error, "what this chain ends in is not served");
                }
                Err(error) => return Err(error),
            }
        }
        self.adopt_held().await
    }

    /// Indexes held releases that came from elsewhere, or that a store was lost with, and records refusals that the
    /// repository knows of.
    pub async fn adopt_held(&self) -> Result<(), PublishError> {
        let (kept, refused) = self
            .blocking(|repository| Ok((repository.kept()?, repository.rejected()?)))
            .await?;
        if kept.is_empty() {
            return Ok(());
        }
        let refused: HashSet<ReleaseId> = refused.into_iter().collect();
        let (open, indexed, decided) = self
            .reading(|experience| {
                // In this order: a publication that is settled in between is indexed then.
                let open = experience.open_intents(None)?;
                let indexed = experience.releases_where(ReleasesWhere::WasHeld)?;
                Ok((open, indexed, experience.releases_where(ReleasesWhere::Decided)?))
            })
            .await?;
        let open: HashSet<String> = open.into_iter().map(|intent| intent.intent_id).collect();
        let indexed: HashSet<ReleaseId> = indexed.into_iter().collect();
        let decided: HashSet<ReleaseId> = decided.into_iter().collect();
        let unseen: Vec<ReleaseId> = kept
            .into_iter()
            .filter(|id| !indexed.contains(id) || (refused.contains(id) && !decided.contains(id)))
            .collect();
        let news = self
            .blocking(move |repository| {
                let mut found = Vec::new();
                for id in unseen {
                    let news = match evidence(repository, &id) {
                        Ok(news) => news,
                        Err(error @ (ReleaseError::Damaged { .. } | ReleaseError::NotFound { .. })) => {
                            tracing::warn!(release = %id, %error, "a held release is passed over");
                            continue;
                        }
                        Err(error) => return Err(error),
                    };
                    let Some(scenario) = news.commit.scenario.clone() else {
                        continue;
                    };
                    let Some(head) = repository.head(&scenario)? else {
                        continue;
                    };
                    // The name may have had another chain before, which is archived with what was held of it.
                    let begun = news.commit.intent.as_ref().is_some_and(|intent| open.contains(intent));
                    if !begun && repository.is_built_on(&news.commit, &head)? {
                        found.push((scenario, news));
                    }
                }
                Ok(found)
            })
            .await?;
        for (scenario, news) in news {
            let (name, id) = (scenario.clone(), news.commit.release_id.clone());
            let (made, known) = self
                .reading(move |experience| Ok((experience.scenario(&name)?, experience.release(&name, &id)?.is_some())))
                .await?;
            let Some(made) = made else { continue };
            let release = news.commit.release_id.clone();
            if !known {
                self.adopt(&scenario, made.created_us, vec![news]).await?;
                self.notice_promoted(&scenario, &release).await?;
            }
            if refused.contains(&release) {
                self.note_rejected(&scenario, &release, None).await?;
            }
        }
        Ok(())
    }

    /// Ends one publication by what the repository says of it: settles it and gives its release, or abandons it.
    pub(super) async fn resolve_intent(
        &self,
        scenario: &ScenarioName,
        intent: &str,
        reason: &str,
    ) -> Result<Option<ReleaseRow>, PublishError> {
        let name = scenario.clone();
        // In this order: one that is settled in between is not open any more when it is looked for.
        let open = self
            .reading(move |experience| experience.open_intents(Some(&name)))
            .await?;
        let name = scenario.clone();
        let head = self.blocking(move |repository| repository.head(&name)).await?;
        let Some(open) = open.into_iter().find(|i| i.intent_id == intent) else {
            return Ok(None);
        };
        let wanted = intent.to_owned();
        let found = self
            .blocking(move |repository| {
                if open.settlement.held {
                    for id in repository.kept()? {
                        let Ok(commit) = repository.describe(&id) else {
                            continue;
                        };
                        if commit.intent.as_deref() == Some(wanted.as_str()) {
                            return Ok(Some(release_row(&commit, true, true)));
                        }
                    }
                    return Ok(None);
                }
                let Some(head) = head else { return Ok(None) };
                let until = open.settlement.expected.as_ref();
                let chain = repository.chain(&head, until, usize::MAX)?;
                Ok(chain
                    .iter()
                    .find(|commit| commit.intent.as_deref() == Some(wanted.as_str()))
                    .map(|commit| release_row(commit, false, true)))
            })
            .await?;
        match found {
            Some(row) => {
                self.inner
                    .experience
                    .intent_settle(intent.to_owned(), row.clone())
                    .await?;
                Ok(Some(row))
            }
            None => {
                self.inner
                    .experience
                    .intent_abandon(intent.to_owned(), reason.to_owned())
                    .await?;
                Ok(None)
            }
        }
    }

    /// The repository has no chain where the store knows one: it was archived and the store does not know it yet, or its
    /// refs were lost. Lost refs are put back while the release they named is still here.
    async fn without_head(
        &self,
        scenario: &ScenarioName,
        created_us: Option<i64>,
        known: ReleaseId,
    ) -> Result<Standing, PublishError> {
        let (name, end) = (scenario.clone(), known.clone());
        let restored = self
            .blocking(move |repository| match repository.restore_chain(&name, &end) {
                // Somebody else put them back.
                Err(ReleaseError::Conflict { .. }) => Ok(true),
                other => other,
            })
            .await?;
        let name = scenario.clone();
        if restored {
            tracing::warn!(%scenario, release = %known, "the refs of the chain were lost and are put back");
            let head = self.blocking(move |repository| repository.head(&name)).await?;
            return Ok(Standing::Head(head.unwrap_or(known)));
        }
        let end = known.clone();
        let archived = self
            .blocking(move |repository| repository.archived_holds(&name, &end))
            .await?;
        if !archived {
            tracing::error!(%scenario, "the chain of the scenario is gone from the artifact repository");
            return Ok(Standing::Gone { head: known });
        }
        if let Some(created_us) = created_us {
            self.note_archived(scenario, created_us).await?;
        }
        Ok(Standing::Never)
    }

    /// Records in the store that a scenario is archived, unless another process has.
    pub(super) async fn note_archived(&self, scenario: &ScenarioName, created_us: i64) -> Result<(), PublishError> {
        let experience = &self.inner.experience;
        match experience.scenario_archive(scenario.clone(), created_us).await {
            Ok(()) | Err(StoreError::UnknownScenario { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    async fn adopt(&self, scenario: &ScenarioName, created_us: i64, news: Vec<News>) -> Result<(), PublishError> {
        if news.is_empty() {
            return Ok(());
        }
        let absent: Vec<String> = news.iter().flat_map(|news| news.absent.clone()).collect();
        self.blocking(move |repository| repository.note_absent(&absent)).await?;
        let releases = news
            .into_iter()
            .map(|news| {
                let held = news.commit.held;
                let settlement = Settlement {
                    operation: news.commit.operation,
                    held,
                    expected: None,
                    base_release_id: news.commit.parent.clone(),
                    promotes: (news.commit.operation == Operation::Promote)
                        .then(|| news.commit.target.clone())
                        .flatten(),
                    batch: None,
                    metrics: news.manifest.provenance.metrics,
                    verdict: news.manifest.provenance.verdict,
                    note: news.manifest.provenance.note,
                };
                Adopted {
                    release: release_row(&news.commit, held, news.restorable),
                    settlement,
                    intent: news.commit.intent,
                }
            })
            .collect();
        let experience = &self.inner.experience;
        experience
            .adopt_releases(scenario.clone(), created_us, releases)
            .await?;
        Ok(())
    }

    /// The publications of a scenario that nobody is working on any more.
    fn left_behind(&self, state: &ChainState) -> Vec<String> {
        let left = state.intents.iter().filter(|intent| self.is_left_behind(intent));
        left.map(|intent| intent.intent_id.clone()).collect()
    }

    /// Whether nobody is working on a publication any more.
    fn is_left_behind(&self, intent: &OpenIntent) -> bool {
        match &self.inner.owner {
            // It settles nothing.
            None => false,
            Some(owner) if intent.owner == owner.token() => !self.inner.in_flight.lock().contains(&intent.intent_id),
            Some(owner) => !owner.is_alive(&intent.owner),
        }
    }
}

/// A release in the repository that the store has not indexed.
struct News {
    commit: Commit,
    manifest: Manifest,
    restorable: bool,
    /// Objects of training state that did not come with it.
    absent: Vec<String>,
}

/// Nothing that is not what it says is indexed.
fn evidence(repository: &Repository, release: &ReleaseId) -> Result<News, ReleaseError> {
    let (commit, manifest) = repository.examine(release)?;
    Ok(News {
        restorable: repository.missing_object(release)?.is_none(),
        absent: repository.missing_state(release)?,
        commit,
        manifest,
    })
}
