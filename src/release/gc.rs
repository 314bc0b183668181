//! Taking back space: content and training state that retention does not keep, objects nobody released, copies in the
//! cache, and git's own housekeeping. History stays; what is pruned cannot be restored any more.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::error::io_at;
use super::large::Large;
use super::lock::{self, Share};
use super::retention::{Fate, Fates, Keep, Part};
use super::{ReleaseError, Repository};
use crate::domain::{ReleaseId, ScenarioName};
use crate::sys::failpoint;

/// How long the collector waits for publications under way, and a publication for the collector.
const PATIENCE: Duration = Duration::from_secs(120);
/// Temporary files older than this belong to nobody.
const TEMPORARY: Duration = Duration::from_secs(3600);

/// What is kept.
#[derive(Debug, Clone)]
pub struct GcPolicy {
    /// The rule.
    pub keep: Keep,
    /// Held releases a person has decided on: their content may go.
    pub decided: HashSet<ReleaseId>,
    /// Releases that something goes on from, such as a step in progress.
    pub needed: HashSet<ReleaseId>,
    /// Releases whose content is known to be gone; they are not read again.
    pub gone: HashSet<ReleaseId>,
    /// Objects without a release are kept this long.
    pub grace: Duration,
}

/// What goes.
#[derive(Debug, Default)]
pub struct GcPlan {
    /// Releases that lose content.
    pub pruned: Vec<ReleaseId>,
    /// Releases that lose their training state alone.
    pub stateless: Vec<ReleaseId>,
    /// Objects that go.
    pub objects: u64,
    /// Their size.
    pub bytes: u64,
    /// Temporary files and cached copies that go.
    pub copies: u64,
    /// What there is.
    pub usage: Usage,
    /// Objects that releases lose.
    going: HashSet<String>,
    /// Objects that stay.
    staying: HashSet<String>,
    files: Vec<PathBuf>,
    dirs: Vec<PathBuf>,
    /// Publications wait while the plan is carried out.
    _quiet: Option<File>,
}

/// What the large files of releases take.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// All objects now.
    pub bytes: u64,
    /// Those of what is kept.
    pub kept_bytes: u64,
    /// Those of what is kept whatever it takes.
    pub pinned_bytes: u64,
    /// Releases.
    pub releases: u64,
    /// Of them, those whose content is kept.
    pub kept: u64,
    /// Of those, the ones whose training state is kept.
    pub with_state: u64,
}

struct Object {
    path: PathBuf,
    metadata: fs::Metadata,
}

impl Repository {
    /// Plans a collection. While the plan lives no publication can begin to write objects.
    pub fn plan_gc(&self, policy: &GcPolicy) -> Result<GcPlan, ReleaseError> {
        if self.known.lock().is_empty() {
            // Reading every release for the first time takes long; nobody has to wait for that.
            self.survey(policy)?;
        }
        let quiet = self.publication_lock(Share::Alone)?;
        self.plan(policy, Some(quiet))
    }

    /// What a collection would do now, without keeping anybody waiting.
    pub fn survey(&self, policy: &GcPolicy) -> Result<GcPlan, ReleaseError> {
        self.plan(policy, None)
    }

    fn plan(&self, policy: &GcPolicy, quiet: Option<File>) -> Result<GcPlan, ReleaseError> {
        let mut here = HashMap::new();
        for_each_file(&self.lfs.objects(), &mut |path, metadata| {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            here.insert(name, Object { path, metadata });
        })?;
        let mut fates = self.fates(policy, quiet.is_some())?;
        let mut large: HashMap<ReleaseId, Arc<Large>> = HashMap::new();
        for (release, fate) in &fates.0 {
            // What is gone and stays gone needs nothing.
            if fate.kept > Part::Nothing || !policy.gone.contains(release) {
                large.insert(release.clone(), self.large(release)?);
            }
        }
        let (kept_bytes, pinned_bytes) = fates.fit(policy.keep.max_bytes, |release, part| {
            let objects = large.get(release).into_iter().flat_map(|large| needs(large, part));
            objects
                .filter_map(|oid| Some((oid.as_str(), here.get(oid)?.metadata.len())))
                .collect()
        });
        let mut plan = GcPlan {
            usage: Usage {
                bytes: here.values().map(|object| object.metadata.len()).sum(),
                kept_bytes,
                pinned_bytes,
                releases: fates.0.len() as u64,
                ..Usage::default()
            },
            _quiet: quiet,
            ..GcPlan::default()
        };
        let mut needed = HashSet::new();
        for (release, large) in &large {
            needed.extend(needs(large, fates.0[release].kept));
        }
        for (release, large) in &large {
            let fate = &fates.0[release];
            plan.usage.kept += u64::from(fate.kept >= Part::Content && !policy.gone.contains(release));
            let has_state = large.state.iter().any(|file| here.contains_key(&file.pointer.oid));
            plan.usage.with_state += u64::from(fate.kept == Part::Everything && has_state);
            let loses = |files: &[super::large::LargeFile]| {
                let objects = files.iter().map(|file| &file.pointer.oid);
                objects
                    .filter(|oid| !needed.contains(oid) && here.contains_key(*oid))
                    .cloned()
                    .collect::<Vec<String>>()
            };
            let (content, state) = (loses(&large.content), loses(&large.state));
            if !content.is_empty() {
                plan.pruned.push(release.clone());
            } else if !state.is_empty() && fate.kept == Part::Content {
                plan.stateless.push(release.clone());
            }
            plan.going.extend(content.into_iter().chain(state));
        }
        plan.pruned.sort();
        plan.stateless.sort();
        plan.staying = needed
            .into_iter()
            .filter(|oid| here.contains_key(*oid))
            .cloned()
            .collect();
        self.plan_objects(policy, &here, &mut plan)?;
        self.plan_copies(policy, &large, &fates, &mut plan);
        Ok(plan)
    }

    /// What becomes of every release that a ref reaches.
    fn fates(&self, policy: &GcPolicy, sweep: bool) -> Result<Fates, ReleaseError> {
        let mut fates = Fates::default();
        let facts = |head: &ReleaseId| -> Result<Vec<(ReleaseId, i64)>, ReleaseError> {
            let chain = self.chain(head, None, usize::MAX)?;
            Ok(chain
                .into_iter()
                .map(|commit| (commit.release_id, commit.at_us))
                .collect())
        };
        for (_, head) in self.scenarios()? {
            fates.chain(&facts(&head)?, &policy.keep);
        }
        let whole = |part: Part| match policy.keep.states {
            None => Part::Everything,
            Some(_) => part,
        };
        for head in self.archived_heads()? {
            for (age, (release, at_us)) in facts(&head)?.iter().enumerate() {
                let kept = match policy.keep.contents {
                    Some(_) if age > 0 => Part::Nothing,
                    _ => whole(Part::Content),
                };
                fates.keep(release, *at_us, kept, Part::Nothing);
            }
        }
        let mut waiting: HashMap<Option<ScenarioName>, Vec<(i64, ReleaseId)>> = HashMap::new();
        for release in self.kept()? {
            let commit = self.describe(&release)?;
            if policy.decided.contains(&release) {
                let kept = match policy.keep.contents {
                    Some(_) => Part::Nothing,
                    None => whole(Part::Content),
                };
                fates.keep(&release, commit.at_us, kept, Part::Nothing);
            } else {
                waiting
                    .entry(commit.scenario)
                    .or_default()
                    .push((commit.at_us, release));
            }
        }
        for of_one in waiting.values_mut() {
            of_one.sort_by(|a, b| b.cmp(a));
            for (n, (at_us, release)) in of_one.iter().enumerate() {
                let kept = if policy.keep.states.is_none_or(|newest| n <= newest) {
                    Part::Everything
                } else {
                    Part::Content
                };
                fates.keep(release, *at_us, kept, Part::Content);
            }
        }
        let mut pinned: HashSet<ReleaseId> = self.held_by_processes(sweep)?;
        pinned.extend(self.pinned()?);
        pinned.extend(self.base()?);
        pinned.extend(policy.needed.iter().cloned());
        for release in pinned {
            // One that is named and was never here, or is not any more, has nothing to keep.
            if self.has(&release)? {
                let at_us = self.describe(&release)?.at_us;
                fates.keep(&release, at_us, Part::Everything, Part::Everything);
            }
        }
        Ok(fates)
    }

    /// Notes durably what a plan takes from releases, before it is taken.
    pub fn note_plan(&self, plan: &GcPlan) -> Result<(), ReleaseError> {
        self.note_thinned(&plan.going, &plan.staying)
    }

    /// Deletes what a plan names. The releases it prunes must have been marked before.
    pub fn collect(&self, plan: &GcPlan) -> Result<(), ReleaseError> {
        for dir in &plan.dirs {
            if dir.exists() {
                fs::remove_dir_all(dir).map_err(io_at("remove", dir))?;
            }
        }
        for path in &plan.files {
            failpoint::hit("release::gc_each").map_err(io_at("remove", path))?;
            match fs::remove_file(path) {
                Ok(()) => {}
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => return Err(io_at("remove", path)(error)),
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

    fn plan_objects(
        &self,
        policy: &GcPolicy,
        here: &HashMap<String, Object>,
        plan: &mut GcPlan,
    ) -> Result<(), ReleaseError> {
        let ledger = self.ledger()?;
        for (oid, object) in here.iter().filter(|(oid, _)| !plan.staying.contains(*oid)) {
            // One in the ledger was to go when a collection was cut short.
            if plan.going.contains(oid) || ledger.thinned(oid) || older(&object.metadata, policy.grace) {
                plan.objects += 1;
                plan.bytes += object.metadata.len();
                plan.files.push(object.path.clone());
            }
        }
        for_each_file(&self.path().join("lfs/tmp"), &mut |path, metadata| {
            if older(&metadata, TEMPORARY) {
                plan.copies += 1;
                plan.files.push(path);
            }
        })
    }

    /// Copies share their blocks with objects, so a copy of pruned content goes with it, and the training state in it with
    /// the objects of that.
    fn plan_copies(&self, policy: &GcPolicy, large: &HashMap<ReleaseId, Arc<Large>>, fates: &Fates, plan: &mut GcPlan) {
        let mut kept: HashMap<&str, (Part, &[String])> = HashMap::new();
        for (release, large) in large {
            let Fate { kept: part, .. } = fates.0[release];
            let of_copy = kept.entry(&large.copy).or_insert((part, &large.state_dirs));
            of_copy.0 = of_copy.0.max(part);
        }
        let lets_go = policy.keep.contents.is_some() || policy.keep.max_bytes.is_some();
        let Ok(entries) = fs::read_dir(self.cache()) else {
            return;
        };
        for entry in entries.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let Ok(metadata) = entry.metadata() else { continue };
            if name.starts_with(".part-") {
                if older(&metadata, TEMPORARY) {
                    plan.dirs.push(entry.path());
                }
            } else if name.starts_with("sha256-") {
                match kept.get(name.as_str()) {
                    Some((Part::Everything, _)) => {}
                    Some((Part::Content, dirs)) => {
                        let trimmed = dirs.iter().map(|dir| entry.path().join(dir));
                        plan.dirs.extend(trimmed.filter(|dir| dir.is_dir()));
                    }
                    Some((Part::Nothing, _)) | None => {
                        if lets_go || older(&metadata, policy.grace) {
                            plan.dirs.push(entry.path());
                        }
                    }
                }
            }
        }
        plan.copies += plan.dirs.len() as u64;
    }
}

/// The objects of a part of a release.
fn needs(large: &Large, part: Part) -> impl Iterator<Item = &String> {
    let content = (part >= Part::Content).then_some(&large.content);
    let state = (part == Part::Everything).then_some(&large.state);
    content.into_iter().chain(state).flatten().map(|file| &file.pointer.oid)
}

fn older(metadata: &fs::Metadata, age: Duration) -> bool {
    metadata
        .modified()
        .ok()
        .and_then(|at| SystemTime::now().duration_since(at).ok())
        .is_some_and(|found| found >= age)
}

fn for_each_file(dir: &Path, each: &mut dyn FnMut(PathBuf, fs::Metadata)) -> Result<(), ReleaseError> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(io_at("read", dir)(error)),
    };
    for entry in entries {
        let entry = entry.map_err(io_at("read", dir))?;
        let path = entry.path();
        let metadata = match entry.metadata() {
            Ok(metadata) => metadata,
            // Another process was done with it.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(error) => return Err(io_at("read", &path)(error)),
        };
        if metadata.is_dir() {
            for_each_file(&path, each)?;
        } else {
            each(path, metadata);
        }
    }
    Ok(())
}
