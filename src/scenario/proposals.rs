//! Proposals of agents and people: admitted or refused at once against what is served, tried later by a step.

use serde_json::{Map, Value};

use super::Publisher;
use super::publish_error::PublishError;
use crate::domain::{ReleaseId, ScenarioName, TrainingMode};
use crate::experience::NewProposal;
use crate::harness::adapter::Adapters;
use crate::harness::evolve::mutations_digest;
use crate::harness::tree::{Finding, Mutation, Origin, Policy, Tree, admit, read_release, screen_text};
use crate::sys::{clock, random, task};

/// The longest reason, in characters.
const LONGEST_REASON: usize = 4000;

/// Where proposals are handed in.
#[derive(Debug, Clone)]
pub struct Inbox {
    /// The chain they are admitted against.
    pub publisher: Publisher,
    /// Every adapter.
    pub adapters: Adapters,
    /// The adapter of a tree that names none.
    pub usual: String,
    /// What a person allowed in trees.
    pub policy: Policy,
    /// How many may wait.
    pub most_waiting: u32,
}

/// A proposal as sent.
#[derive(Debug, Clone, PartialEq)]
pub struct Offer {
    /// The mutations.
    pub mutations: Value,
    /// Why.
    pub reason: String,
    /// The session it comes from.
    pub session: String,
    /// The release the proposer says it ran on.
    pub release: String,
}

/// What became of it at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// Its id; it is kept, admitted or not, unless the inbox is full or takes none.
    pub proposal_id: Option<String>,
    /// Whether a step will try it.
    pub admitted: bool,
    /// Why not.
    pub reason: Option<String>,
    /// The release it was admitted against.
    pub release_id: ReleaseId,
}

/// A proposal that is no proposal.
#[derive(Debug, thiserror::Error)]
pub enum OfferError {
    /// A field is missing or wrong.
    #[error("{0}")]
    Shape(String),
    /// The chain or the store failed.
    #[error(transparent)]
    Publish(#[from] PublishError),
}

impl Offer {
    /// Reads `{mutations, reason, session, release_id}`.
    pub fn read(mut fields: Map<String, Value>) -> Result<Self, OfferError> {
        let mut text = |name: &str, needed: bool| match fields.remove(name) {
            Some(Value::String(text)) if text.chars().count() <= LONGEST_REASON => Ok(text),
            None | Some(Value::Null) if !needed => Ok(String::new()),
            _ => Err(OfferError::Shape(format!(
                "{name} must be a text of at most {LONGEST_REASON} characters"
            ))),
        };
        let offer = Self {
            reason: text("reason", true)?,
            session: text("session", false)?,
            release: text("release_id", false)?,
            mutations: Value::Null,
        };
        for (name, text) in [
            ("reason", &offer.reason),
            ("session", &offer.session),
            ("release_id", &offer.release),
        ] {
            if let Some(finding) = screen_text(text) {
                return Err(screened(name, &finding));
            }
        }
        let mutations = fields
            .remove("mutations")
            .filter(Value::is_array)
            .ok_or_else(|| OfferError::Shape("mutations must be a list".to_owned()))?;
        Ok(Self { mutations, ..offer })
    }
}

/// Names the rule, never the text.
fn screened(name: &str, finding: &Finding) -> OfferError {
    OfferError::Shape(format!("{name}: {}", finding.refusal()))
}

impl Inbox {
    /// Takes a proposal.
    pub async fn offer(&self, scenario: &ScenarioName, offer: Offer) -> Result<Answer, OfferError> {
        let head = self
            .publisher
            .sync(scenario)
            .await?
            .ok_or_else(|| PublishError::UnknownScenario { name: scenario.clone() })?;
        let name = scenario.clone();
        let stored = self
            .publisher
            .reading(move |experience| experience.scenario(&name))
            .await?;
        let refused = |reason: String| Answer {
            proposal_id: None,
            admitted: false,
            reason: Some(reason),
            release_id: head.clone(),
        };
        if stored.is_some_and(|stored| stored.mode == TrainingMode::Manual) {
            return Ok(refused("manual mode takes instructions only".to_owned()));
        }
        let (publisher, release) = (self.publisher.clone(), head.clone());
        let tree = task::blocking("reading a tree", move || -> Result<Tree, OfferError> {
            let repository = publisher.repository();
            if repository.describe(&release).map_err(PublishError::from)?.bytes == 0 {
                return Ok(Tree::default());
            }
            let dir = repository.materialise(&release).map_err(PublishError::from)?;
            Ok(read_release(&dir)
                .map_err(|error| OfferError::Shape(error.to_string()))?
                .unwrap_or_default())
        })
        .await
        .map_err(PublishError::from)??;
        let refusal = self.fault(&tree, &offer);
        let id = random::record_id().to_string();
        let kept = self
            .publisher
            .experience()
            .proposal_add(NewProposal {
                id: id.clone(),
                scenario: scenario.clone(),
                // What was refused for what it holds must not be kept for it.
                mutations: if refusal.is_some() {
                    Value::Array(Vec::new())
                } else {
                    offer.mutations
                },
                reason: offer.reason,
                session: offer.session,
                client_release: offer.release,
                head: head.clone(),
                refused: refusal.clone(),
                most_waiting: self.most_waiting,
            })
            .await
            .map_err(PublishError::from)?;
        if !kept {
            return Ok(refused(format!(
                "{} proposals wait already (evolution.maximum-pending); try again later",
                self.most_waiting
            )));
        }
        Ok(Answer {
            proposal_id: Some(id),
            admitted: refusal.is_none(),
            reason: refusal,
            release_id: head,
        })
    }

    /// Why it cannot be tried, if so.
    fn fault(&self, tree: &Tree, offer: &Offer) -> Option<String> {
        let adapter = match self.adapters.get(tree.adapter.as_deref().unwrap_or(&self.usual)) {
            Ok(adapter) => adapter,
            Err(error) => return Some(error.to_string()),
        };
        let mutations = match Mutation::list(&offer.mutations) {
            Ok(mutations) => mutations,
            Err(refusal) => return Some(refusal.to_string()),
        };
        match admit(
            tree,
            &mutations,
            adapter,
            &self.policy,
            &Origin::default(),
            clock::now_us(),
        ) {
            Err(refusal) => Some(refusal.to_string()),
            Ok(admitted) if admitted.tree.digest() == tree.digest() => {
                Some("the change leaves the tree as it is".to_owned())
            }
            Ok(_) => {
                tracing::debug!(digest = mutations_digest(&mutations), "proposal admitted");
                None
            }
        }
    }
}
