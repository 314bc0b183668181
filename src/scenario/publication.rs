//! One publication: what it is made of, and its part in the repository.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::publish::Published;
use crate::domain::{ContentKind, FrozenRelease, Operation, ReleaseId, ScenarioName};
use crate::experience::{ReleaseRow, ReleaseState, Settlement};
use crate::release::{Commit, Component, Draft, Provenance, ReleaseError, Repository, Source};
use crate::sys::{clock, failpoint};

/// Where the bytes of a release come from.
pub(super) enum Bytes {
    Directory(PathBuf, Option<BTreeMap<String, Component>>),
    Release(ReleaseId),
}

pub(super) struct Plan {
    pub scenario: ScenarioName,
    pub bytes: Bytes,
    pub settlement: Settlement,
    /// The parent in the repository; for all but a creation it is the expected head.
    pub parent: ReleaseId,
    pub source: Source,
    pub provenance: Provenance,
    pub target: Option<ReleaseId>,
}

/// Objects, commit, ref. Objects that a person's `git gc --prune=now` took before the head moved are written again:
/// the same bytes give the same ids.
pub(super) fn perform(repository: &Repository, plan: &Plan, intent: String) -> Result<ReleaseId, ReleaseError> {
    let io = |source| ReleaseError::Io {
        action: "publish into",
        path: repository.path().to_path_buf(),
        source,
    };
    failpoint::hit("release::after_intent").map_err(io)?;
    // The collector takes nothing between here and the move of the head.
    let _guard = repository.publication_guard()?;
    let draft = Draft {
        scenario: Some(plan.scenario.clone()),
        operation: plan.settlement.operation,
        parent: Some(plan.parent.clone()),
        target: plan.target.clone(),
        held: plan.settlement.held,
        source: plan.source.clone(),
        provenance: plan.provenance.clone(),
        intent,
        at_us: clock::now_us(),
    };
    for _ in 0..3 {
        let staged = match &plan.bytes {
            Bytes::Directory(dir, components) => repository.stage_directory(dir, components.as_ref())?,
            Bytes::Release(release) => {
                repository.check_restorable(release)?;
                repository.stage_release(release)?
            }
        };
        failpoint::hit("release::after_objects").map_err(io)?;
        let release = repository.commit(&staged, &draft)?;
        failpoint::hit("release::after_commit").map_err(io)?;
        if plan.settlement.held {
            repository.keep(&release)?;
        } else if repository.head(&plan.scenario)?.as_ref() != Some(&release) {
            repository.advance(&plan.scenario, &release, plan.settlement.expected.as_ref())?;
        }
        failpoint::hit("release::after_ref").map_err(io)?;
        if repository.is_whole(&release)? {
            return Ok(release);
        }
    }
    Err(ReleaseError::Damaged {
        release: "(new)".to_owned(),
        problem: "its objects keep disappearing: does a `git gc --prune=now` run all the time?".to_owned(),
    })
}

pub(super) fn settlement(operation: Operation, expected: Option<ReleaseId>) -> Settlement {
    Settlement {
        operation,
        held: false,
        expected,
        base_release_id: None,
        promotes: None,
        batch: None,
        metrics: serde_json::Map::new(),
        verdict: None,
        note: None,
    }
}

pub(super) fn provenance() -> Provenance {
    Provenance {
        code_version: Some(env!("CARGO_PKG_VERSION").to_owned()),
        ..Provenance::default()
    }
}

pub(super) fn published(row: &ReleaseRow, step: Option<u64>) -> Published {
    Published {
        release_id: row.release_id.clone(),
        content_id: row.content_id.clone(),
        step,
        held: row.state == ReleaseState::Held,
        appended: true,
    }
}

/// The index row of a commit.
pub(super) fn release_row(commit: &Commit, held: bool, restorable: bool) -> ReleaseRow {
    ReleaseRow {
        release_id: commit.release_id.clone(),
        parent: commit.parent.clone(),
        content_id: commit.content_id.clone(),
        kind: commit.kind.clone(),
        bytes: commit.bytes,
        operation: commit.operation,
        sequence: commit.sequence,
        target: commit.target.clone(),
        state: if held {
            ReleaseState::Held
        } else {
            ReleaseState::Released
        },
        restorable,
        at_us: commit.at_us,
        note: None,
    }
}

/// What a request frozen on this commit is served by.
pub(super) fn frozen(commit: &Commit) -> FrozenRelease {
    FrozenRelease {
        kind: ContentKind::Artifact,
        release_id: commit.release_id.clone(),
        content_id: commit.content_id.clone(),
        parent_release_id: commit.parent.clone(),
        runtime_load_id: None,
    }
}
