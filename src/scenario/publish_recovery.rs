//! Bringing store and repository together. The repository decides: what a head has reached is settled, what it has not
//! reached is abandoned when its process is gone, and what came from elsewhere is adopted.

use std::collections::{HashMap, HashSet};

use super::publication::release_row;
use super::publish::Publisher;
use super::publish_error::PublishError;
use crate::domain::{Operation, ReleaseId, ScenarioName, TrainingMode};
use crate::experience::{OpenIntent, ReleaseRow, ReleasesWhere, Settlement, StoreError};
use crate::release::{Commit, Manifest, ReleaseError, Repository};

impl Publisher {
    /// Settles or abandons what was left behind in a scenario and indexes what came from elsewhere. Gives the head; when
    /// nothing happened since the last time it costs one ref and two small queries.
    pub async fn sync(&self, scenario: &ScenarioName) -> Result<Option<ReleaseId>, PublishError> {
        let name = scenario.clone();
        let head = self.blocking(move |repository| repository.head(&name)).await?;
        let name = scenario.clone();
        let (known, indexed, intents) = self
            .reading(move |experience| {
                Ok((
                    experience.scenario(&name)?.is_some(),
                    experience.indexed_head(&name)?,
                    experience.open_intents(Some(&name))?,
                ))
            })
            .await?;
        let left_behind: Vec<OpenIntent> = intents.iter().filter(|i| self.is_left_behind(i)).cloned().collect();
        if head == indexed && left_behind.is_empty() {
            return Ok(head);
        }
        let Some(head) = head else {
            return self.without_head(scenario, indexed, left_behind).await;
        };
        if !known {
            // A chain pulled from elsewhere, whose scenario this store has not seen.
            self.inner
                .experience
                .scenario_create(scenario.clone(), TrainingMode::default(), serde_json::Map::new())
                .await?;
        }
        let (from, until) = (head.clone(), indexed.clone());
        let news = self
            .blocking(move |repository| {
                let until = match until {
                    Some(id) if repository.has(&id)? => Some(id),
                    _ => None,
                };
                let mut chain = repository.chain(&from, until.as_ref(), usize::MAX)?;
                chain.reverse();
                chain
                    .into_iter()
                    .map(|commit| evidence(repository, commit))
                    .collect::<Result<Vec<_>, ReleaseError>>()
            })
            .await?;
        let mut by_intent: HashMap<&str, &OpenIntent> = intents.iter().map(|i| (i.intent_id.as_str(), i)).collect();
        let mut foreign = Vec::new();
        for news in news {
            match news
                .commit
                .intent
                .as_deref()
                .and_then(|intent| by_intent.remove(intent))
            {
                Some(intent) => {
                    self.adopt(scenario, std::mem::take(&mut foreign)).await?;
                    let row = release_row(&news.commit, false, news.restorable);
                    self.inner
                        .experience
                        .intent_settle(intent.intent_id.clone(), row)
                        .await?;
                }
                None => foreign.push(news),
            }
        }
        self.adopt(scenario, foreign).await?;
        for intent in left_behind {
            if by_intent.contains_key(intent.intent_id.as_str()) {
                self.resolve_intent(
                    scenario,
                    &intent.intent_id,
                    "the process that began it ended before the head moved",
                )
                .await?;
            }
        }
        if !known {
            // The store is new, and the repository has more than chains.
            Box::pin(self.adopt_held()).await?;
        }
        Ok(Some(head))
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
            self.sync(&name).await?;
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
                    let commit = repository.describe(&id)?;
                    let Some(scenario) = commit.scenario.clone() else {
                        continue;
                    };
                    let Some(head) = repository.head(&scenario)? else {
                        continue;
                    };
                    // The name may have had another chain before, which is archived with what was held of it.
                    let begun = commit.intent.as_ref().is_some_and(|intent| open.contains(intent));
                    if !begun && repository.is_built_on(&commit, &head)? {
                        found.push((scenario, evidence(repository, commit)?));
                    }
                }
                Ok(found)
            })
            .await?;
        for (scenario, news) in news {
            let (name, id) = (scenario.clone(), news.commit.release_id.clone());
            let (active, known) = self
                .reading(move |experience| {
                    Ok((
                        experience.scenario(&name)?.is_some(),
                        experience.release(&name, &id)?.is_some(),
                    ))
                })
                .await?;
            if !active {
                continue;
            }
            let release = news.commit.release_id.clone();
            if !known {
                self.adopt(&scenario, vec![news]).await?;
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
        let (head, open) = {
            let head = self
                .blocking({
                    let name = name.clone();
                    move |repository| repository.head(&name)
                })
                .await?;
            let open = self
                .reading(move |experience| experience.open_intents(Some(&name)))
                .await?;
            (head, open)
        };
        let Some(open) = open.into_iter().find(|i| i.intent_id == intent) else {
            return Ok(None);
        };
        let wanted = intent.to_owned();
        let found = self
            .blocking(move |repository| {
                if open.settlement.held {
                    for id in repository.kept()? {
                        let commit = repository.describe(&id)?;
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

    /// The chain is gone: it never began, or it was archived and the store does not know it yet, or its refs were lost.
    /// Lost refs are put back while the release they named is still here; gives the head then.
    async fn without_head(
        &self,
        scenario: &ScenarioName,
        indexed: Option<ReleaseId>,
        left_behind: Vec<OpenIntent>,
    ) -> Result<Option<ReleaseId>, PublishError> {
        let mut restored = false;
        if let Some(head) = indexed.clone() {
            let name = scenario.clone();
            restored = self
                .blocking(move |repository| match repository.restore_chain(&name, &head) {
                    // Somebody else put them back.
                    Err(ReleaseError::Conflict { .. }) => Ok(true),
                    other => other,
                })
                .await?;
        }
        for intent in left_behind {
            self.resolve_intent(scenario, &intent.intent_id, "its chain does not exist")
                .await?;
        }
        let Some(indexed) = indexed else { return Ok(None) };
        let name = scenario.clone();
        if restored {
            tracing::warn!(%scenario, release = %indexed, "the refs of the chain were lost and are put back");
            return self.blocking(move |repository| repository.head(&name)).await;
        }
        let archived = self
            .blocking(move |repository| repository.archived_holds(&name, &indexed))
            .await?;
        if archived {
            match self.inner.experience.scenario_archive(scenario.clone()).await {
                Ok(()) | Err(StoreError::UnknownScenario { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        } else {
            tracing::error!(%scenario, "the chain of the scenario is gone from the artifact repository");
        }
        Ok(None)
    }

    /// Why [`Self::sync`] found no head: the scenario has never been, or its chain is lost.
    pub async fn why_absent(&self, scenario: &ScenarioName) -> PublishError {
        let name = scenario.clone();
        match self.reading(move |experience| experience.indexed_head(&name)).await {
            Ok(Some(head)) => PublishError::ChainGone {
                name: scenario.clone(),
                head,
            },
            Ok(None) => PublishError::UnknownScenario { name: scenario.clone() },
            Err(error) => error,
        }
    }

    async fn adopt(&self, scenario: &ScenarioName, news: Vec<News>) -> Result<(), PublishError> {
        if news.is_empty() {
            return Ok(());
        }
        let rows = news
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
                (release_row(&news.commit, held, news.restorable), settlement)
            })
            .collect();
        self.inner.experience.adopt_releases(scenario.clone(), rows).await?;
        Ok(())
    }

    /// Whether nobody is working on a publication any more.
    fn is_left_behind(&self, intent: &OpenIntent) -> bool {
        if intent.owner == self.inner.owner.token() {
            !self.inner.in_flight.lock().contains(&intent.intent_id)
        } else {
            !self.inner.owner.is_alive(&intent.owner)
        }
    }
}

/// A release in the repository that the store has not indexed.
struct News {
    commit: Commit,
    manifest: Manifest,
    restorable: bool,
}

fn evidence(repository: &Repository, commit: Commit) -> Result<News, ReleaseError> {
    Ok(News {
        manifest: repository.manifest(&commit.release_id)?,
        restorable: repository.missing_object(&commit.release_id)?.is_none(),
        commit,
    })
}
