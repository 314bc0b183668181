//! Candidates on disk: written beside their final name, made durable, then renamed; whole or absent, never half.

#![cfg_attr(
    not(feature = "torch"),
    allow(dead_code, reason = "without the embedded trainer nothing writes candidates")
)]

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::TrainError;
use super::objective::kl_control::KlState;
use crate::sys::{durable, failpoint, random};

/// The manifest of a finished step, written last.
pub const MANIFEST: &str = "training/step.json";
/// State of the optimizer of the policy.
pub const OPTIMIZER: &str = "training/optimizer.safetensors";
/// The critic.
pub const CRITIC: &str = "training/critic.safetensors";
/// State of the critic's optimizer.
pub const CRITIC_OPTIMIZER: &str = "training/critic-optimizer.safetensors";

const FORMAT: u32 = 1;

/// What a finished step says of itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// Version of this file.
    pub format: u32,
    /// The job that made it.
    pub job_id: String,
    /// The step's number.
    pub step: u64,
    /// Everything an algorithm carries from step to step besides its optimizers.
    pub state: AlgorithmState,
    /// Figures of the step.
    pub metrics: BTreeMap<String, f64>,
    /// Every other file: path, size and SHA-256.
    pub files: BTreeMap<String, FileFact>,
}

/// Size and digest of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileFact {
    /// Bytes.
    pub size: u64,
    /// SHA-256 as hex.
    pub sha256: String,
}

/// What an algorithm carries from step to step besides its optimizers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct AlgorithmState {
    /// Steps made, warm-up of the critic included.
    pub steps: u64,
    /// The KL controller, once there is one.
    #[serde(default)]
    pub kl: Option<KlState>,
}

/// SHA-256 of a file as hex.
pub(crate) fn digest(path: &Path) -> Result<String, TrainError> {
    let io = |e: io::Error| TrainError::checkpoint(path, "reading", e);
    let mut file = File::open(path).map_err(io)?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0u8; 1 << 20];
    loop {
        let n = file.read(&mut buffer).map_err(io)?;
        if n == 0 {
            return Ok(hex::encode(hash.finalize()));
        }
        hash.update(&buffer[..n]);
    }
}

/// A candidate in the making. Dropped without [`Draft::finish`], it disappears.
pub(crate) struct Draft {
    part: PathBuf,
    target: PathBuf,
    finished: bool,
}

impl Draft {
    /// Begins the candidate `target`, clearing what earlier tries left.
    pub(crate) fn begin(target: &Path) -> Result<Self, TrainError> {
        let io = |doing: &'static str| move |e: io::Error| TrainError::checkpoint(target, doing, e);
        let parent = target.parent().unwrap_or(Path::new("."));
        let name = target.file_name().unwrap_or_default().to_string_lossy().into_owned();
        fs::create_dir_all(parent).map_err(io("making the work folder"))?;
        let prefix = format!("{name}.part-");
        for entry in fs::read_dir(parent).map_err(io("listing the work folder"))? {
            let entry = entry.map_err(io("listing the work folder"))?;
            if entry.file_name().to_string_lossy().starts_with(&prefix) {
                fs::remove_dir_all(entry.path()).map_err(io("removing an unfinished candidate"))?;
            }
        }
        let part = parent.join(format!("{prefix}{}", random::hex_token()));
        fs::create_dir_all(part.join("training")).map_err(io("making the candidate's folder"))?;
        Ok(Self {
            part,
            target: target.to_path_buf(),
            finished: false,
        })
    }

    /// Where to write files.
    pub(crate) fn dir(&self) -> &Path {
        &self.part
    }

    /// Writes the manifest, makes everything durable and gives the candidate its name.
    pub(crate) fn finish(
        mut self,
        job_id: &str,
        step: u64,
        state: AlgorithmState,
        metrics: &BTreeMap<String, f64>,
    ) -> Result<PathBuf, TrainError> {
        let part = self.part.clone();
        let io = |doing: &'static str| {
            let part = part.clone();
            move |e: io::Error| TrainError::checkpoint(&part, doing, e)
        };
        let mut files = BTreeMap::new();
        let mut dirs = vec![part.clone()];
        let mut todo = vec![part.clone()];
        while let Some(dir) = todo.pop() {
            for entry in fs::read_dir(&dir).map_err(io("listing the candidate"))? {
                let path = entry.map_err(io("listing the candidate"))?.path();
                if path.is_dir() {
                    dirs.push(path.clone());
                    todo.push(path);
                    continue;
                }
                let file = File::open(&path).map_err(io("syncing the candidate"))?;
                file.sync_all().map_err(io("syncing the candidate"))?;
                let size = file.metadata().map_err(io("reading the candidate"))?.len();
                let name = path.strip_prefix(&part).unwrap_or(&path).to_string_lossy().into_owned();
                let sha256 = digest(&path)?;
                files.insert(name, FileFact { size, sha256 });
            }
        }
        let manifest = Manifest {
            format: FORMAT,
            job_id: job_id.to_owned(),
            step,
            state,
            metrics: metrics.clone(),
            files,
        };
        let mut text = serde_json::to_vec_pretty(&manifest)
            .map_err(|e| TrainError::checkpoint(&part, "writing the manifest", e))?;
        text.push(b'\n');
        durable::write(&part.join(MANIFEST), &text).map_err(io("writing the manifest"))?;
        for dir in dirs {
            durable::sync_dir(&dir).map_err(io("syncing the candidate"))?;
        }
        failpoint::hit("train::before_rename").map_err(io("naming the candidate"))?;
        if self.target.exists() {
            // A candidate of the same step and batch from other settings or another parent: superseded.
            fs::remove_dir_all(&self.target).map_err(io("replacing an older candidate"))?;
        }
        fs::rename(&part, &self.target).map_err(io("naming the candidate"))?;
        self.finished = true;
        durable::sync_dir(self.target.parent().unwrap_or(Path::new("."))).map_err(io("syncing the work folder"))?;
        failpoint::hit("train::after_rename").map_err(io("naming the candidate"))?;
        Ok(self.target.clone())
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if !self.finished {
            // What cannot be removed now is removed when the same candidate is begun again.
            let _ignored = fs::remove_dir_all(&self.part);
        }
    }
}

/// The manifest of a step's folder, if there is one.
pub fn read_manifest(dir: &Path) -> Result<Option<Manifest>, TrainError> {
    let path = dir.join(MANIFEST);
    let text = match fs::read(&path) {
        Ok(text) => text,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(TrainError::checkpoint(&path, "reading the manifest", e)),
    };
    let manifest: Manifest =
        serde_json::from_slice(&text).map_err(|e| TrainError::checkpoint(&path, "reading the manifest", e))?;
    if manifest.format != FORMAT {
        let fault = format!("its format is {}, and this program knows {FORMAT}", manifest.format);
        return Err(TrainError::checkpoint(&path, "reading the manifest", fault));
    }
    Ok(Some(manifest))
}

/// The finished candidate of this very job, every file of it checked; `None` if it must be made.
pub(crate) fn finished(dir: &Path, job_id: &str) -> Result<Option<Manifest>, TrainError> {
    let manifest = match read_manifest(dir) {
        Ok(Some(manifest)) if manifest.job_id == job_id => manifest,
        // Unreadable is as good as absent here: the step is made again and replaces it.
        Ok(_) | Err(_) => return Ok(None),
    };
    for (name, fact) in &manifest.files {
        let path = dir.join(name);
        if !path.is_file() || digest(&path)? != fact.sha256 {
            return Ok(None);
        }
    }
    Ok(Some(manifest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn make(target: &Path, job: &str) -> PathBuf {
        let draft = Draft::begin(target).unwrap();
        fs::write(draft.dir().join("adapter_model.safetensors"), job).unwrap();
        fs::write(draft.dir().join("training/optimizer.safetensors"), b"state").unwrap();
        draft
            .finish(
                job,
                3,
                AlgorithmState::default(),
                &BTreeMap::from([("loss".into(), 0.5)]),
            )
            .unwrap()
    }

    #[test]
    fn a_candidate_is_whole_or_absent() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("step-1");
        let draft = Draft::begin(&target).unwrap();
        fs::write(draft.dir().join("x"), b"half").unwrap();
        drop(draft);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        make(&target, "job-a");
        assert_eq!(finished(&target, "job-a").unwrap().unwrap().metrics["loss"], 0.5);
        assert!(finished(&target, "job-b").unwrap().is_none());
        // The same name for another job: replaced, nothing left beside it.
        make(&target, "job-b");
        assert!(finished(&target, "job-b").unwrap().is_some());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_damaged_or_foreign_candidate_is_made_again() {
        let dir = tempfile::tempdir().unwrap();
        let target = make(&dir.path().join("step-1"), "job");
        fs::write(target.join("training/optimizer.safetensors"), b"other").unwrap();
        assert!(finished(&target, "job").unwrap().is_none());
        fs::write(target.join(MANIFEST), b"{").unwrap();
        assert!(finished(&target, "job").unwrap().is_none());
        assert!(read_manifest(&target).is_err());
        assert!(read_manifest(dir.path()).unwrap().is_none());
    }

    #[test]
    fn what_a_killed_try_left_is_cleared() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("step-1");
        fs::create_dir(dir.path().join("step-1.part-dead")).unwrap();
        fs::create_dir(dir.path().join("step-12.part-alive")).unwrap();
        make(&target, "job");
        assert!(!dir.path().join("step-1.part-dead").exists());
        assert!(dir.path().join("step-12.part-alive").exists());
    }
}
