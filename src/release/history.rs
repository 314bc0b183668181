//! Reading chains: what a release is, and what came before it.

use git2::{ErrorCode, ObjectType, Sort};

use super::commit::release_id;
use super::error::git_at;
use super::heads::oid;
use super::inspect::Inspector;
use super::manifest::LARGEST;
use super::{MANIFEST_NAME, Manifest, ReleaseError, Repository};
use crate::domain::{ContentId, Operation, ReleaseId, ScenarioName};

/// What the commit of a release says, without its tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Commit {
    /// The release.
    pub release_id: ReleaseId,
    /// The release before it in the repository; that of a creation is the base or a release of another scenario.
    pub parent: Option<ReleaseId>,
    /// The scenario; none for the base.
    pub scenario: Option<ScenarioName>,
    /// Why it was appended.
    pub operation: Operation,
    /// Its place in the chain.
    pub sequence: u64,
    /// Its bytes.
    pub content_id: ContentId,
    /// `lora-adapter`, `harness-tree`, …
    pub kind: String,
    /// The size of its files.
    pub bytes: u64,
    /// The release whose content a rollback or a promote republished.
    pub target: Option<ReleaseId>,
    /// Held for review when it was published.
    pub held: bool,
    /// When, in microseconds since the Unix epoch.
    pub at_us: i64,
    /// The intent that published it.
    pub intent: Option<String>,
}

/// How a person names a release.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Selector {
    /// `head`, or `head~N`: N before it.
    Head(u64),
    /// `base`
    Base,
    /// A full or shortened id.
    Id(String),
}

impl Selector {
    /// Reads `head`, `head~2`, `base` or an id, `git+lfs://` before it allowed.
    pub fn parse(text: &str) -> Self {
        let text = text.strip_prefix("git+lfs://").unwrap_or(text);
        match text {
            "head" | "HEAD" => Self::Head(0),
            "base" => Self::Base,
            other => match other
                .strip_prefix("head~")
                .or_else(|| other.strip_prefix("HEAD~"))
                .and_then(|n| n.parse().ok())
            {
                Some(n) => Self::Head(n),
                None => Self::Id(other.to_owned()),
            },
        }
    }
}

impl Repository {
    /// What the commit of a release says.
    pub fn describe(&self, release: &ReleaseId) -> Result<Commit, ReleaseError> {
        let git = self.git()?;
        let commit = self.find_commit(&git, release)?;
        read(&commit)
    }

    /// The manifest of a release, held to its content id.
    pub fn manifest(&self, release: &ReleaseId) -> Result<Manifest, ReleaseError> {
        let git = self.git()?;
        let commit = self.find_commit(&git, release)?;
        manifest_of(&git, &commit)
    }

    /// What a release says, once everything about it was looked at but whether its large files are here.
    pub fn examine(&self, release: &ReleaseId) -> Result<(Commit, Manifest), ReleaseError> {
        let git = self.git()?;
        let (said, manifest, _) = Inspector::new(self, &git)?.release(release).sound(release)?;
        Ok((said, manifest))
    }

    /// The chain that ends in `from`, newest first, up to and without `until`, its creation included, at most `limit`.
    pub fn chain(
        &self,
        from: &ReleaseId,
        until: Option<&ReleaseId>,
        limit: usize,
    ) -> Result<Vec<Commit>, ReleaseError> {
        let git = self.git()?;
        let mut walk = git.revwalk().map_err(git_at("walk"))?;
        walk.set_sorting(Sort::TOPOLOGICAL).map_err(git_at("walk"))?;
        walk.simplify_first_parent().map_err(git_at("walk"))?;
        // A chain is walked from where a ref or the store says it ends: that it is not there is damage.
        walk.push(oid(from)?).map_err(|_| ReleaseError::Damaged {
            release: from.to_string(),
            problem: "its commit is missing or unreadable".to_owned(),
        })?;
        if let Some(until) = until {
            walk.hide(oid(until)?).map_err(|_| unknown(until))?;
        }
        let mut chain = Vec::new();
        for step in walk.take(limit) {
            let commit = git
                .find_commit(step.map_err(git_at("walk"))?)
                .map_err(git_at("read a commit"))?;
            let commit = read(&commit)?;
            let is_start = commit.operation == Operation::Creation;
            chain.push(commit);
            if is_start {
                break;
            }
        }
        Ok(chain)
    }

    /// Whether `ancestor` is `release` or came before it.
    pub fn is_ancestor(&self, ancestor: &ReleaseId, release: &ReleaseId) -> Result<bool, ReleaseError> {
        let git = self.git()?;
        if ancestor == release {
            return Ok(true);
        }
        let (later, earlier) = (oid(release)?, oid(ancestor)?);
        if git.find_commit(later).is_err() || git.find_commit(earlier).is_err() {
            return Ok(false);
        }
        git.graph_descendant_of(later, earlier).map_err(git_at("walk"))
    }

    /// Whether a held release was built on the chain that ends in `head`, rather than on an earlier chain of the name.
    pub fn is_built_on(&self, held: &Commit, head: &ReleaseId) -> Result<bool, ReleaseError> {
        match &held.parent {
            Some(parent) => self.is_ancestor(parent, head),
            None => Ok(false),
        }
    }

    /// Whether the repository has this release.
    pub fn has(&self, release: &ReleaseId) -> Result<bool, ReleaseError> {
        let git = self.git()?;
        Ok(self.find_commit(&git, release).is_ok())
    }

    /// The release a person named. `scenario` gives `head` its meaning.
    pub fn resolve(&self, selector: &Selector, scenario: Option<&ScenarioName>) -> Result<ReleaseId, ReleaseError> {
        match selector {
            Selector::Base => self.base()?.ok_or_else(|| ReleaseError::NotFound {
                what: "a base".to_owned(),
            }),
            Selector::Head(back) => {
                let Some(scenario) = scenario else {
                    return Err(ReleaseError::NotFound {
                        what: "a head without a scenario".to_owned(),
                    });
                };
                let head = self.head(scenario)?.ok_or_else(|| ReleaseError::NotFound {
                    what: format!("scenario {scenario}"),
                })?;
                let back = usize::try_from(*back).unwrap_or(usize::MAX);
                self.chain(&head, None, back.saturating_add(1))?
                    .into_iter()
                    .nth(back)
                    .map(|c| c.release_id)
                    .ok_or_else(|| ReleaseError::NotFound {
                        what: format!("a release {back} before the head of {scenario}"),
                    })
            }
            Selector::Id(id) => self.resolve_id(id),
        }
    }

    /// The release that a rollback means by a selector. `head~1` counts from the newest release that is no rollback
    /// itself: said again, it means the same release, not the one that was just left.
    pub fn resolve_for_rollback(
        &self,
        selector: &Selector,
        scenario: &ScenarioName,
    ) -> Result<ReleaseId, ReleaseError> {
        let Selector::Head(back @ 1..) = selector else {
            return self.resolve(selector, Some(scenario));
        };
        let head = self.head(scenario)?.ok_or_else(|| ReleaseError::NotFound {
            what: format!("scenario {scenario}"),
        })?;
        let back = usize::try_from(*back).unwrap_or(usize::MAX);
        self.chain(&head, None, usize::MAX)?
            .into_iter()
            .skip_while(|commit| commit.operation == Operation::Rollback)
            .nth(back)
            .map(|commit| commit.release_id)
            .ok_or_else(|| ReleaseError::NotFound {
                what: format!("a release {back} before the newest of {scenario} that is no rollback"),
            })
    }

    fn resolve_id(&self, id: &str) -> Result<ReleaseId, ReleaseError> {
        let not_found = || ReleaseError::NotFound {
            what: format!(
                "release {}",
                id.chars().take(80).flat_map(char::escape_default).collect::<String>()
            ),
        };
        if !(4..=40).contains(&id.len()) || !id.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(not_found());
        }
        let git = self.git()?;
        match git.find_commit_by_prefix(&id.to_ascii_lowercase()) {
            Ok(commit) => {
                read(&commit)?;
                release_id(commit.id())
            }
            Err(error) if error.code() == ErrorCode::Ambiguous => {
                Err(ReleaseError::Ambiguous { prefix: id.to_owned() })
            }
            Err(_) => Err(not_found()),
        }
    }

    pub(super) fn find_commit<'g>(
        &self,
        git: &'g git2::Repository,
        release: &ReleaseId,
    ) -> Result<git2::Commit<'g>, ReleaseError> {
        git.find_commit(oid(release)?).map_err(|_| unknown(release))
    }
}

/// The manifest in a commit's tree.
pub(super) fn manifest_of(git: &git2::Repository, commit: &git2::Commit<'_>) -> Result<Manifest, ReleaseError> {
    let id = commit.id().to_string();
    let damaged = |problem: &str| ReleaseError::Damaged {
        release: id.clone(),
        problem: problem.to_owned(),
    };
    let tree = commit.tree().map_err(|_| damaged("its tree is missing"))?;
    let entry = tree
        .get_name(MANIFEST_NAME)
        .filter(|e| e.kind() == Some(ObjectType::Blob))
        .ok_or_else(|| damaged("it has no reef-artifact.json, so it was not made by Reef"))?;
    let blob = git
        .find_blob(entry.id())
        .map_err(|_| damaged("its manifest is missing"))?;
    Manifest::parse(&id, blob.content())
}

fn unknown(release: &ReleaseId) -> ReleaseError {
    ReleaseError::NotFound {
        what: format!("release {release}"),
    }
}

/// Reads the trailers of a commit message.
pub(super) fn read(commit: &git2::Commit<'_>) -> Result<Commit, ReleaseError> {
    let id = commit.id().to_string();
    let message = commit.message().unwrap_or_default();
    let trailer = |name: &str| {
        message
            .lines()
            .rev()
            .find_map(|line| line.strip_prefix("Reef-")?.strip_prefix(name)?.strip_prefix(": "))
    };
    let damaged = |what: &str| ReleaseError::Damaged {
        release: id.clone(),
        problem: format!("its commit message has no valid Reef-{what}, so it was not made by Reef"),
    };
    let operation = match trailer("Operation") {
        Some("creation") => Operation::Creation,
        Some("training") => Operation::Training,
        Some("rollback") => Operation::Rollback,
        Some("promote") => Operation::Promote,
        Some("recovery") => Operation::Recovery,
        Some("import") => Operation::Import,
        _ => return Err(damaged("Operation")),
    };
    let number = |name: &str| {
        trailer(name)
            .and_then(|v| v.parse::<u64>().ok())
            .filter(|number| *number <= LARGEST)
            .ok_or_else(|| damaged(name))
    };
    let release = |name: &str| {
        trailer(name)
            .map(|v| ReleaseId::new(v).map_err(|_| damaged(name)))
            .transpose()
    };
    Ok(Commit {
        release_id: release_id(commit.id())?,
        parent: commit.parent_id(0).ok().map(release_id).transpose()?,
        scenario: trailer("Scenario")
            .map(|v| ScenarioName::new(v).map_err(|_| damaged("Scenario")))
            .transpose()?,
        operation,
        sequence: number("Sequence")?,
        content_id: trailer("Content")
            .and_then(|v| ContentId::new(v).ok())
            .ok_or_else(|| damaged("Content"))?,
        kind: trailer("Kind").unwrap_or("files").to_owned(),
        bytes: number("Bytes")?,
        target: release("Target")?,
        held: trailer("Held") == Some("true"),
        at_us: trailer("At")
            .and_then(|v| v.parse().ok())
            .unwrap_or_else(|| commit.time().seconds().saturating_mul(1_000_000)),
        intent: trailer("Intent").map(str::to_owned),
    })
}
