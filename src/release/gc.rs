//! Taking back space: content that retention does not keep, objects nobody released, copies in the cache, and git's own
//! housekeeping. History stays; what is pruned cannot be restored any more.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::error::io_at;
use super::lock::{self, Share};
use super::materialise::{Blob, blob};
use super::{ReleaseError, Repository};
use crate::domain::ReleaseId;
use crate::sys::failpoint;

/// How long the collector waits for publications under way, and a publication for the collector.
const PATIENCE: Duration = Duration::from_secs(120);
/// Temporary files older than this belong to nobody.
const TEMPORARY: Duration = Duration::from_secs(3600);

/// What is kept.
#[derive(Debug, Clone)]
pub struct GcPolicy {
    /// Releases of each chain whose content is kept beside the newest one; `None` keeps all.
    pub keep: Option<usize>,
    /// Held releases a person has decided on: their content may go.
    pub decided: HashSet<ReleaseId>,
    /// Objects without a release are kept this long.
    pub grace: Duration,
}

/// What goes.
#[derive(Debug, Default)]
pub struct GcPlan {
    /// Releases that lose content.
    pub pruned: Vec<ReleaseId>,
    /// Objects that go.
    pub objects: u64,
    /// Their size.
    pub bytes: u64,
    /// Temporary files and cached copies that go.
    pub copies: u64,
    files: Vec<PathBuf>,
    dirs: Vec<PathBuf>,
    /// Publications wait while the plan is carried out.
    _quiet: Option<File>,
}

impl Repository {
    /// Plans a collection. While the plan lives no publication can begin to write objects.
    pub fn plan_gc(&self, policy: &GcPolicy) -> Result<GcPlan, ReleaseError> {
        let quiet = self.publication_lock(Share::Alone)?;
        let mut kept = Needs::default();
        let mut dropped: HashMap<ReleaseId, HashSet<String>> = HashMap::new();
        let mut sort = |needs: &mut Needs, release: &ReleaseId, keep: bool| -> Result<(), ReleaseError> {
            let (objects, content) = self.large_files(release)?;
            if keep {
                needs.objects.extend(objects);
                needs.contents.insert(content);
            } else {
                dropped.insert(release.clone(), objects);
            }
            Ok(())
        };
        for (_, head) in self.scenarios()? {
            for (n, commit) in self.chain(&head, None, usize::MAX)?.iter().enumerate() {
                sort(&mut kept, &commit.release_id, policy.keep.is_none_or(|keep| n <= keep))?;
            }
        }
        for head in self.archived_heads()? {
            for (n, commit) in self.chain(&head, None, usize::MAX)?.iter().enumerate() {
                sort(&mut kept, &commit.release_id, policy.keep.is_none() || n == 0)?;
            }
        }
        for release in self.kept()? {
            let keep = policy.keep.is_none() || !policy.decided.contains(&release);
            sort(&mut kept, &release, keep)?;
        }
        if let Some(base) = self.base()? {
            sort(&mut kept, &base, true)?;
        }
        let mut plan = GcPlan {
            _quiet: Some(quiet),
            ..GcPlan::default()
        };
        let mut going = HashSet::new();
        for (release, objects) in dropped {
            let lost: Vec<&String> = objects.iter().filter(|oid| !kept.objects.contains(*oid)).collect();
            if lost.iter().any(|oid| self.lfs.path(oid).is_file()) {
                plan.pruned.push(release);
            }
            going.extend(lost.into_iter().cloned());
        }
        plan.pruned.sort();
        self.plan_objects(policy, &kept, &going, &mut plan)?;
        self.plan_copies(policy, &kept, &mut plan);
        Ok(plan)
    }

    /// Deletes what a plan names. The releases it prunes must have been marked before.
    pub fn collect(&self, plan: &GcPlan) -> Result<(), ReleaseError> {
        for path in &plan.files {
            match fs::remove_file(path) {
                Ok(()) => {}
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => return Err(io_at("remove", path)(error)),
            }
        }
        for dir in &plan.dirs {
            if dir.exists() {
                fs::remove_dir_all(dir).map_err(io_at("remove", dir))?;
            }
        }
        Ok(())
    }

    /// Packs git's objects and drops unreachable ones older than `grace`.
    pub fn pack(&self, grace: Duration) -> Result<(), ReleaseError> {
        failpoint::hit("release::gc_before_pack").map_err(io_at("pack", self.path()))?;
        let prune = format!("--prune={}.seconds.ago", grace.as_secs());
        self.program().run(&["gc", "--quiet", &prune])?;
        Ok(())
    }

    /// Held by a publication from its first object to the move of its head; the collector waits for it and the other
    /// way round.
    pub fn publication_guard(&self) -> Result<File, ReleaseError> {
        self.publication_lock(Share::WithOthers)
    }

    fn publication_lock(&self, share: Share) -> Result<File, ReleaseError> {
        lock::take(
            &self.path().join("reef-gc.lock"),
            share,
            PATIENCE,
            Duration::from_millis(50),
        )
    }

    /// The objects of a release's large files, and its name in the cache.
    fn large_files(&self, release: &ReleaseId) -> Result<(HashSet<String>, String), ReleaseError> {
        let manifest = self.manifest(release)?;
        let git = self.git()?;
        let tree = self.tree(&git, release)?;
        let mut objects = HashSet::new();
        for entry in &manifest.content.files {
            if let Blob::Large(pointer) = blob(&tree, &git, release, entry)? {
                objects.insert(pointer.oid);
            }
        }
        Ok((objects, manifest.content_id.as_str().replace(':', "-")))
    }

    fn plan_objects(
        &self,
        policy: &GcPolicy,
        kept: &Needs,
        going: &HashSet<String>,
        plan: &mut GcPlan,
    ) -> Result<(), ReleaseError> {
        for_each_file(&self.lfs.objects(), &mut |path, metadata| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let unneeded = !kept.objects.contains(name.as_ref());
            if unneeded && (going.contains(name.as_ref()) || older(metadata, policy.grace)) {
                plan.objects += 1;
                plan.bytes += metadata.len();
                plan.files.push(path.to_path_buf());
            }
        })?;
        for_each_file(&self.path().join("lfs/tmp"), &mut |path, metadata| {
            if older(metadata, TEMPORARY) {
                plan.copies += 1;
                plan.files.push(path.to_path_buf());
            }
        })
    }

    /// Copies share their blocks with objects, so a copy of pruned content goes with it.
    fn plan_copies(&self, policy: &GcPolicy, kept: &Needs, plan: &mut GcPlan) {
        let Ok(entries) = fs::read_dir(self.cache()) else {
            return;
        };
        for entry in entries.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let Ok(metadata) = entry.metadata() else { continue };
            let goes = if name.starts_with(".part-") {
                older(&metadata, TEMPORARY)
            } else if name.starts_with("sha256-") {
                !kept.contents.contains(&name) && (policy.keep.is_some() || older(&metadata, policy.grace))
            } else {
                false
            };
            if goes {
                plan.copies += 1;
                plan.dirs.push(entry.path());
            }
        }
    }
}

/// What kept releases need.
#[derive(Default)]
struct Needs {
    objects: HashSet<String>,
    contents: HashSet<String>,
}

fn older(metadata: &fs::Metadata, age: Duration) -> bool {
    metadata
        .modified()
        .ok()
        .and_then(|at| SystemTime::now().duration_since(at).ok())
        .is_some_and(|found| found >= age)
}

fn for_each_file(dir: &Path, each: &mut dyn FnMut(&Path, &fs::Metadata)) -> Result<(), ReleaseError> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(io_at("read", dir)(error)),
    };
    for entry in entries {
        let entry = entry.map_err(io_at("read", dir))?;
        let path = entry.path();
        let metadata = entry.metadata().map_err(io_at("read", &path))?;
        if metadata.is_dir() {
            for_each_file(&path, each)?;
        } else {
            each(&path, &metadata);
        }
    }
    Ok(())
}
