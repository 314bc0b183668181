//! Serving what another process released: a task looks at the head of every scenario in use a few times a second, at
//! the cost of one `stat` each, and brings what moved into service.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use super::directory::{Directory, DirectoryError, ScenarioHandle};
use super::publish_error::PublishError;
use super::publish_recovery::Standing;
use crate::domain::{FrozenRelease, ScenarioName};
use crate::engine::BoxFuture;
use crate::experience::Experience;
use crate::sys::{clock, failpoint, task};

/// Time between two looks, unless looking takes long.
const INTERVAL: Duration = Duration::from_millis(200);
/// Looking may take this part of the time.
const SHARE: u32 = 50;
/// But never waits longer than this: a service follows within a second however slow the machine is.
const CEILING: Duration = Duration::from_millis(600);
/// Even when no head seems to move, heads are compared this often.
const COMPARE_ANYWAY: Duration = Duration::from_secs(30);

/// A scenario younger than this without a chain is still being made, perhaps as a fork of another one.
const SETTLING_US: i64 = 2_000_000;

/// Brings a release into an engine before it is served.
pub trait Activate: std::fmt::Debug + Send + Sync {
    /// Loads and probes the release; gives it back with its runtime load id, or the reason why the old one stays.
    fn activate(&self, scenario: &ScenarioName, release: FrozenRelease)
    -> BoxFuture<'_, Result<FrozenRelease, String>>;
}

/// For engines that hold no weights: a release is served as it is.
#[derive(Debug, Clone, Copy, Default)]
pub struct ServeAsIs;

impl Activate for ServeAsIs {
    fn activate(&self, _: &ScenarioName, release: FrozenRelease) -> BoxFuture<'_, Result<FrozenRelease, String>> {
        Box::pin(std::future::ready(Ok(release)))
    }
}

impl Directory {
    /// Watches until cancelled.
    pub async fn watch(self: Arc<Self>, stop: CancellationToken) {
        let mut pause = INTERVAL;
        let mut compared = Instant::now();
        let mut newest = None;
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
            }
            let compare = compared.elapsed() >= COMPARE_ANYWAY;
            if compare {
                compared = Instant::now();
            }
            let directory = Arc::clone(&self);
            let looked = task::blocking("watching for new releases", move || {
                // Timed here: waiting for a thread is not looking.
                let started = Instant::now();
                let moved = directory.moved(compare);
                (moved, started.elapsed())
            });
            // A look that broke down was told; the next one is no quicker for it.
            let (moved, took) = looked.await.unwrap_or_else(|_| (Vec::new(), CEILING));
            pause = (took * SHARE).clamp(INTERVAL, CEILING);
            for handle in moved {
                self.refresh(&handle).await;
            }
            newest = self.discover(newest).await;
        }
    }

    /// Takes in the scenarios that were made since `seen` was the newest; gives the newest one that is known.
    async fn discover(&self, seen: Option<i64>) -> Option<i64> {
        let newest = self.read(Experience::newest_scenario).await;
        match newest {
            Ok(newest) if newest == seen => seen,
            Ok(newest) => match self.take_in_new().await {
                Ok(true) => newest,
                Ok(false) => seen,
                Err(error) => {
                    tracing::warn!(%error, "new scenarios cannot be read");
                    seen
                }
            },
            Err(error) => {
                tracing::debug!(%error, "looking for new scenarios");
                seen
            }
        }
    }

    /// Takes in every scenario of the store. One that has records and no chain, because they were imported or because
    /// its creation was cut short, gets it. Gives whether none is left for later.
    async fn take_in_new(&self) -> Result<bool, DirectoryError> {
        self.list().await?;
        let stored = self.read(|experience| experience.scenarios(false)).await?;
        let mut all = true;
        for scenario in stored.iter().filter(|scenario| self.get(&scenario.name).is_none()) {
            if clock::now_us() - scenario.created_us < SETTLING_US {
                all = false;
            } else if let Err(error) = self.look_up(&scenario.name).await {
                tracing::warn!(scenario = %scenario.name, %error, "a new scenario cannot be served");
            }
        }
        Ok(all)
    }

    /// Scenarios whose head may have moved since the last look. Blocking.
    fn moved(&self, all: bool) -> Vec<Arc<ScenarioHandle>> {
        if let Err(error) = failpoint::hit("scenario::watch_look") {
            tracing::warn!(%error, "heads were not looked at");
        }
        let mut handles = self.in_use();
        handles.retain(|handle| {
            let stamp = self.publisher().repository().head_stamp(handle.name());
            let mut seen = handle.stamp.lock();
            let moved = stamp.is_none() || *seen != stamp;
            *seen = stamp;
            moved || all
        });
        handles
    }

    /// Brings what a scenario serves into the engine, when it is first used in this process. When its newest release
    /// cannot be loaded, its first one is served and its status says so.
    pub(super) async fn bring_in(&self, handle: &ScenarioHandle) {
        let _one_at_a_time = handle.refreshing.lock().await;
        let served = handle.served();
        if served.runtime_load_id.is_some() {
            return;
        }
        match self
            .activate()
            .activate(handle.name(), FrozenRelease::clone(&served))
            .await
        {
            Ok(release) => handle.serve_release(release),
            Err(error) => {
                tracing::error!(scenario = %handle.name(), error, "the newest release cannot be served");
                handle.head_error.store(Some(Arc::new(error)));
                if let Some(first) = self.first_release(handle).await {
                    handle.serve_release(first);
                }
            }
        }
    }

    async fn first_release(&self, handle: &ScenarioHandle) -> Option<FrozenRelease> {
        let (publisher, first) = (self.publisher().clone(), handle.first().clone());
        let described = task::blocking("reading a release", move || publisher.frozen(&first)).await;
        let release = described.ok()?.ok()?;
        self.activate().activate(handle.name(), release).await.ok()
    }

    /// Serves the head of a scenario. What stands in the way is shown in its status; the old release stays in service.
    pub async fn refresh(&self, handle: &ScenarioHandle) {
        // One at a time: two loads of one head would only compete.
        let _refreshing = handle.refreshing.lock().await;
        match self.serve_head(handle).await {
            Ok(()) => {
                handle.head_error.store(None);
                drop(handle.kept.lock().take());
            }
            Err(error) => {
                tracing::warn!(scenario = %handle.name(), error, "the newest release is not served");
                handle.head_error.store(Some(Arc::new(error)));
                self.keep_served(handle).await;
            }
        }
    }

    /// What is served though newer releases are there stays where this process can read it.
    async fn keep_served(&self, handle: &ScenarioHandle) {
        let release = handle.served().release_id.clone();
        if handle
            .kept
            .lock()
            .as_ref()
            .is_some_and(|kept| *kept.release() == release)
        {
            return;
        }
        match self
            .publisher()
            .blocking(move |repository| repository.hold(&release))
            .await
        {
            Ok(held) => *handle.kept.lock() = Some(held),
            Err(error) => tracing::warn!(scenario = %handle.name(), %error, "what is served may be thinned"),
        }
    }

    async fn serve_head(&self, handle: &ScenarioHandle) -> Result<(), String> {
        let text = |error: PublishError| error.to_string();
        let standing = self.publisher().stand(handle.name()).await.map_err(text)?;
        let name = handle.name().clone();
        let stored = self
            .publisher()
            .reading(move |experience| experience.scenario(&name))
            .await
            .map_err(text)?;
        if stored.is_none_or(|stored| stored.created_us != handle.created_us()) {
            // It was put away; one that was made in its place is taken in by its own handle.
            self.forget_made_at(handle.name(), handle.created_us()).await;
            return Ok(());
        }
        let head = match standing {
            Standing::Head(head) => head,
            Standing::Never => return Ok(()),
            Standing::Gone { head } => {
                let name = handle.name().clone();
                return Err(text(PublishError::ChainGone { name, head }));
            }
        };
        handle.head.store(Arc::new(head.clone()));
        let served = handle.served();
        if served.release_id == head {
            return Ok(());
        }
        let publisher = self.publisher().clone();
        let release = task::blocking("reading a release", move || publisher.frozen(&head))
            .await
            .map_err(|lost| lost.to_string())?
            .map_err(text)?;
        tracing::info!(scenario = %handle.name(), release = %release.release_id, "serving a new release");
        handle.serve_release(self.activate().activate(handle.name(), release).await?);
        Ok(())
    }
}
