//! One step as data: what goes in and what comes out. A job names everything its result depends on, so doing it again
//! gives the same candidate, and a finished one is recognised instead of done twice.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{Skip, TrainBatch, TrainError, TrainSettings};

/// A step to make.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StepJob {
    /// The step's number in its scenario, from 1.
    pub step: u64,
    /// What to learn from.
    pub batch: TrainBatch,
    /// The base model's folder.
    pub base: PathBuf,
    /// The base model's name, written into adapters.
    pub base_name: String,
    /// The incumbent's files, with its optimizer state; none before the first release.
    #[serde(default)]
    pub parent: Option<PathBuf>,
    /// The candidate's folder. It may hold the finished candidate of an earlier try; its neighbours of the same name
    /// with `.part-` are removed.
    pub output: PathBuf,
    /// How.
    pub settings: TrainSettings,
}

/// What came of a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "outcome")]
pub enum StepOutcome {
    /// A candidate lies on disk.
    Trained(StepResult),
    /// Nothing was learnt, for this reason; there is no candidate and the incumbent stands.
    Skipped {
        /// The reason.
        skip: Skip,
    },
}

/// A finished candidate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StepResult {
    /// Its folder: the artifact, and `training/` with optimizer and algorithm state.
    pub candidate: PathBuf,
    /// The job's identity.
    pub job_id: String,
    /// Figures of the step.
    pub metrics: BTreeMap<String, f64>,
    /// It was already there, from an earlier try at the same job.
    pub reused: bool,
}

impl StepJob {
    /// The identity of the job: SHA-256 over everything the result depends on. Paths are left out (a moved folder is
    /// the same job); the incumbent counts by the digest of its own step.
    pub fn id(&self) -> Result<String, TrainError> {
        let parent = self.parent.as_deref().map(parent_identity).transpose()?;
        let mut settings = self.settings.clone();
        settings.limits = super::Limits {
            memory_mib: None,
            threads: 0,
            niceness: 0,
            ..settings.limits
        };
        let identity = serde_json::json!({
            "format": 1,
            "step": self.step,
            "batch": self.batch,
            "base": self.base_name,
            "parent": parent,
            "settings": settings,
        });
        Ok(hex::encode(Sha256::digest(identity.to_string().as_bytes())))
    }
}

/// What tells one incumbent from another: the manifest of its step, or, for an imported one, its weights' digest.
fn parent_identity(dir: &Path) -> Result<String, TrainError> {
    for name in [
        super::checkpoint::MANIFEST,
        "adapter_model.safetensors",
        "model.safetensors",
    ] {
        let path = dir.join(name);
        if path.is_file() {
            return super::checkpoint::digest(&path);
        }
    }
    Err(TrainError::checkpoint(
        dir,
        "reading the incumbent",
        "it holds neither an adapter nor a model",
    ))
}
