//! Large objects on their way: which ones releases need, which of them are here and whole, and bringing or sending them
//! with git-lfs. git-lfs looks at names and sizes alone; what goes out and what came in is hashed here.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use super::error::{Trouble, io_at};
use super::materialise::{Blob, blob};
use super::pointer::Pointer;
use super::{Missing, ReleaseError, Remote, Repository, Why};
use crate::domain::ReleaseId;

/// Objects named on one command line.
const OBJECTS_AT_ONCE: usize = 200;

/// What releases need of large objects, sorted by what there is of it.
#[derive(Debug, Default)]
pub(super) struct Stock {
    /// Objects that are here and whole.
    pub whole: BTreeSet<String>,
    /// Objects that are not here.
    pub absent: BTreeMap<String, Pointer>,
    /// Objects that are here and do not hold what their names say, each with the first release that needs it and the
    /// file it is there.
    pub damaged: BTreeMap<String, (Pointer, ReleaseId, String)>,
    /// What each release lacks of its content, absent or damaged.
    pub lacking: BTreeMap<ReleaseId, BTreeSet<String>>,
    /// Releases that lack some of their training state. They are complete all the same.
    pub stateless: BTreeSet<ReleaseId>,
}

/// What came of asking a remote for objects.
#[derive(Debug, Default)]
pub(super) struct Brought {
    /// Objects that are here now and were not before.
    pub objects: u64,
    /// Releases that still lack some.
    pub incomplete: BTreeSet<ReleaseId>,
    /// What git-lfs complained of: why it could not go on, or the first thing that is not there.
    pub trouble: Option<ReleaseError>,
}

impl Repository {
    /// Looks at every large object that releases need, hashing each once.
    pub(super) fn stock<'r>(&self, releases: impl IntoIterator<Item = &'r ReleaseId>) -> Result<Stock, ReleaseError> {
        let git = self.git()?;
        let mut stock = Stock::default();
        for release in releases {
            let tree = self.tree(&git, release)?;
            let content = self.manifest(release)?.content;
            for entry in &content.files {
                let Blob::Large(pointer) = blob(&tree, &git, release, entry)? else {
                    continue;
                };
                let oid = pointer.oid.clone();
                if !stock.whole.contains(&oid) && !stock.absent.contains_key(&oid) && !stock.damaged.contains_key(&oid)
                {
                    // An object that cannot be read is as good as a wrong one.
                    match self.lfs.verify(&pointer).unwrap_or(Some(false)) {
                        Some(true) => {
                            stock.whole.insert(oid.clone());
                        }
                        Some(false) => {
                            let place = (pointer, release.clone(), entry.path.clone());
                            stock.damaged.insert(oid.clone(), place);
                        }
                        None => {
                            stock.absent.insert(oid.clone(), pointer);
                        }
                    }
                }
                if stock.whole.contains(&oid) {
                    continue;
                }
                if content.is_state(&entry.path) {
                    stock.stateless.insert(release.clone());
                } else {
                    stock.lacking.entry(release.clone()).or_default().insert(oid);
                }
            }
        }
        Ok(stock)
    }

    /// Asks a remote for what releases lack: objects that are not here, and damaged ones anew. What the remote does not
    /// have does not stop the rest.
    pub(super) fn bring(&self, remote: &Remote, releases: &[ReleaseId]) -> Result<Brought, ReleaseError> {
        let stock = self.stock(releases)?;
        let mut brought = Brought::default();
        if stock.lacking.is_empty() && stock.stateless.is_empty() {
            return Ok(brought);
        }
        let mut aside = Vec::new();
        for (pointer, _, _) in stock.damaged.values() {
            aside.extend(self.lfs.set_aside(pointer)?);
        }
        // In the order they were asked for: the newest first.
        let mut asked = BTreeSet::new();
        let wanted: Vec<&ReleaseId> = releases
            .iter()
            .filter(|release| stock.lacking.contains_key(*release) || stock.stateless.contains(*release))
            .filter(|release| asked.insert(*release))
            .collect();
        for some in wanted.chunks(OBJECTS_AT_ONCE) {
            let mut args = remote.lfs_settings();
            args.extend(["lfs", "fetch", "--"].map(str::to_owned));
            args.push(remote.url().to_owned());
            args.extend(some.iter().map(ToString::to_string));
            if let Err(error) = self.program().run(&args) {
                if error.trouble() != Some(Trouble::Other) {
                    brought.trouble = Some(error);
                    break;
                }
                brought.trouble.get_or_insert(error);
            }
        }
        for aside in &aside {
            self.lfs.settle(aside)?;
        }
        let mut here = BTreeSet::new();
        for pointer in stock.absent.values().chain(stock.damaged.values().map(|(p, _, _)| p)) {
            match self.lfs.verify(pointer).unwrap_or(Some(false)) {
                Some(true) => {
                    here.insert(&pointer.oid);
                }
                // The remote's own copy is damaged: here it would only stand in the way of a good one.
                Some(false) if stock.absent.contains_key(&pointer.oid) => {
                    let path = self.lfs.path(&pointer.oid);
                    fs::remove_file(&path).map_err(io_at("remove", &path))?;
                }
                Some(false) | None => {}
            }
        }
        brought.objects = here.len() as u64;
        brought.incomplete = stock
            .lacking
            .iter()
            .filter(|(_, objects)| !objects.iter().all(|oid| here.contains(oid)))
            .map(|(release, _)| release.clone())
            .collect();
        Ok(brought)
    }

    /// Brings the large objects of releases from a remote, all of them.
    pub fn fetch_objects(&self, remote: &Remote, releases: &[ReleaseId]) -> Result<(), ReleaseError> {
        let brought = self.bring(remote, releases)?;
        match brought.incomplete.first() {
            Some(release) => Err(self.not_brought(remote, release, brought.trouble)?),
            None => Ok(()),
        }
    }

    /// Why a release could not be completed from a remote.
    pub(super) fn not_brought(
        &self,
        remote: &Remote,
        release: &ReleaseId,
        trouble: Option<ReleaseError>,
    ) -> Result<ReleaseError, ReleaseError> {
        if let Some(error) = trouble.filter(|error| error.trouble() != Some(Trouble::Other)) {
            return Ok(error);
        }
        let missing = self.missing_object(release)?.unwrap_or_else(|| Missing {
            path: "content".to_owned(),
            bytes: 0,
            why: Why::NotHere,
        });
        Ok(ReleaseError::NotRestorable {
            release: release.clone(),
            missing: Missing {
                why: Why::NotThere { remote: remote.shown() },
                ..missing
            },
        })
    }

    /// Offers objects to a remote; it takes those it lacks.
    pub(super) fn push_objects(&self, remote: &Remote, objects: &BTreeSet<String>) -> Result<(), ReleaseError> {
        let objects: Vec<&String> = objects.iter().collect();
        for some in objects.chunks(OBJECTS_AT_ONCE) {
            let mut args = remote.lfs_settings();
            args.extend(["lfs", "push", "--object-id", "--"].map(str::to_owned));
            args.push(remote.url().to_owned());
            args.extend(some.iter().map(|oid| (*oid).clone()));
            self.program().run(&args)?;
        }
        Ok(())
    }
}
