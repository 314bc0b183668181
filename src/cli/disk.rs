//! What everything below the directory takes, for `reef status` and `reef doctor`.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use serde_json::{Value, json};

use super::publishing::room;
use super::{Context, format};
use crate::config::Settings;
use crate::experience::Experience;
use crate::release::{Repository, RepositoryOptions};
use crate::scenario::{Collected, Room, survey};
use crate::sys::disk;

/// What is used, and what would go.
pub(crate) struct Disk {
    room: Room,
    /// What a collection would find; nothing where there are no releases, or none that can be read.
    releases: Option<Collected>,
    /// The file of the store, and what its records take in it.
    store: u64,
    records: u64,
    records_limit: u64,
    /// Files of steps in progress.
    work: u64,
    free: Option<u64>,
}

impl Disk {
    /// Reads files alone; nobody waits for it.
    pub(crate) fn of(context: &Context, settings: &Settings, store: Option<&Experience>) -> Self {
        let storage = &settings.storage;
        let room = room(context, settings);
        let options = RepositoryOptions::default();
        let releases = store.and_then(|store| {
            let repository = Repository::open_existing(&storage.artifacts_git(), &storage.cache_dir(), options).ok()?;
            // Damage has findings of its own.
            survey(&repository, store, &room).ok()
        });
        let records = store.and_then(|store| store.stats(None).ok());
        let files = ["experience.db", "experience.db-wal"].map(|name| storage.dir.join(name));
        Self {
            room,
            releases,
            store: files
                .iter()
                .filter_map(|path| Some(fs::metadata(path).ok()?.len()))
                .sum(),
            records: records
                .into_iter()
                .flat_map(|all| all.into_values())
                .map(|stats| stats.stored_bytes)
                .sum(),
            records_limit: storage.retention_max_bytes.0,
            work: size_of(&storage.work_dir()),
            free: disk::free(&storage.dir),
        }
    }

    pub(crate) fn json(&self) -> Value {
        json!({
            "free_bytes": self.free,
            "min_free_bytes": self.room.min_free,
            "store_bytes": self.store,
            "records_bytes": self.records,
            "records_limit_bytes": self.records_limit,
            "work_bytes": self.work,
            "releases": self.releases.as_ref().map(|found| used(&self.room, found)),
        })
    }

    /// For people: what is said, and of what.
    pub(crate) fn lines(&self) -> Vec<(&'static str, String)> {
        let mut lines = Vec::new();
        if let Some(found) = &self.releases {
            let usage = &found.usage;
            lines.push((
                "releases",
                format!(
                    "{}, limit {}; {} of {} keep their content, {} their training state",
                    format::bytes(usage.bytes),
                    self.room
                        .keep
                        .max_bytes
                        .map_or_else(|| "none".to_owned(), format::bytes),
                    usage.kept,
                    usage.releases,
                    usage.with_state
                ),
            ));
            if found.objects > 0 {
                lines.push((
                    "would go",
                    format!(
                        "{}: the content of {} releases, the training state of {} (reef release gc)",
                        format::bytes(found.bytes),
                        found.pruned.len(),
                        found.stateless.len()
                    ),
                ));
            }
        }
        lines.push((
            "disk",
            format!(
                "{} free; store {}, work in progress {}",
                self.free
                    .map_or_else(|| "an unknown number of bytes".to_owned(), format::bytes),
                format::bytes(self.store),
                format::bytes(self.work)
            ),
        ));
        lines
    }

    /// What releases take and may take, in a sentence.
    pub(crate) fn sentence(&self) -> Option<String> {
        let found = self.releases.as_ref()?;
        Some(format!(
            "releases take {} of {} at most, and {} would go now",
            format::bytes(found.usage.bytes),
            self.room
                .keep
                .max_bytes
                .map_or_else(|| "any size".to_owned(), format::bytes),
            format::bytes(found.bytes)
        ))
    }

    /// What must stay takes more than all may.
    pub(crate) fn over(&self) -> Option<String> {
        over(&self.room, self.releases.as_ref()?)
    }

    /// What records and releases may still take, if that is more than there is.
    pub(crate) fn short_of(&self) -> Option<(u64, u64)> {
        let kept = self.releases.as_ref().map_or(0, |found| found.usage.bytes);
        let releases = self.room.keep.max_bytes?.saturating_sub(kept);
        let records = self.records_limit.saturating_sub(self.records);
        let more = releases.saturating_add(records);
        let left = self.free?.saturating_sub(self.room.min_free);
        (more > left).then_some((more, left))
    }
}

/// What went, or would go.
pub(crate) fn sentence(collected: &Collected, would: bool) -> String {
    format!(
        "{} {} large files ({}) and {} copies; {} releases can no longer be restored, {} are left without their training \
         state",
        if would { "would remove" } else { "removed" },
        collected.objects,
        format::bytes(collected.bytes),
        collected.copies,
        collected.pruned.len(),
        collected.stateless.len()
    )
}

/// What releases take, as JSON.
pub(crate) fn used(room: &Room, collected: &Collected) -> Value {
    let usage = &collected.usage;
    json!({
        "bytes": usage.bytes,
        "limit_bytes": room.keep.max_bytes,
        "kept_bytes": usage.kept_bytes,
        "pinned_bytes": usage.pinned_bytes,
        "would_go_bytes": collected.bytes,
        "releases": usage.releases,
        "releases_kept": usage.kept,
        "with_training_state": usage.with_state,
    })
}

/// Says that what must stay takes more than it may.
pub(crate) fn over(room: &Room, collected: &Collected) -> Option<String> {
    let (most, pinned) = (room.keep.max_bytes?, collected.usage.pinned_bytes);
    (pinned > most).then(|| {
        format!(
            "releases that are served, held, pinned or in use take {}, more than release.retention-max-bytes of {}: no step \
             begins",
            format::bytes(pinned),
            format::bytes(most)
        )
    })
}

/// The disk space below a directory; links are not followed.
fn size_of(dir: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(dir) else { return 0 };
    entries
        .flatten()
        .filter_map(|entry| Some((entry.path(), entry.metadata().ok()?)))
        .map(|(path, metadata)| {
            if metadata.is_dir() {
                size_of(&path)
            } else {
                metadata.blocks() * 512
            }
        })
        .sum()
}
