//! Work beside the caller's: tasks, blocking work and threads. A panic in it is a fault of Reef that somebody must see: it
//! is logged with its place, counted, and whoever waits gets it as an error, not as an end. These are the only ways to
//! start such work (`clippy.toml` disallows the direct ones), and [`keep`] starts work again that has to go on.

use std::any::Any;
use std::backtrace::{Backtrace, BacktraceStatus};
use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::io;
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde::Serialize;
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::clock;

/// The first pause before work is started again; it doubles.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The longest one.
const LONGEST_PAUSE: Duration = Duration::from_secs(300);
/// Work that ran for so long before it panicked begins again with the first pause.
const SOUND: Duration = Duration::from_secs(600);
/// Panics of a library that says in this way that it does not like its input.
const FOREIGN: &str = "";

/// Why work gave no result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Lost {
    /// It panicked, which is a fault of Reef.
    #[error("{work} panicked: {message}; this is a fault in Reef, and its log has the place")]
    Panicked {
        /// What it was doing.
        work: &'static str,
        /// In the words of the panic.
        message: String,
    },
    /// It was stopped before its end: the process is shutting down.
    #[error("{work} was stopped")]
    Stopped {
        /// What it was doing.
        work: &'static str,
    },
}

impl Lost {
    /// Whether it panicked.
    pub fn panicked(&self) -> bool {
        matches!(self, Self::Panicked { .. })
    }
}

/// A panic, as it is told.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Panic {
    /// What was being done.
    pub work: &'static str,
    /// Its words.
    pub message: String,
    /// File and line.
    pub place: String,
    /// When, seconds since the Unix epoch.
    pub at: f64,
}

static PANICS: AtomicU64 = AtomicU64::new(0);
static LAST: Mutex<Option<Panic>> = Mutex::new(None);

thread_local! {
    static WORK: Cell<Option<&'static str>> = const { Cell::new(None) };
}

/// How many panics there were in this process, and the last one.
pub fn panics() -> (u64, Option<Panic>) {
    (PANICS.load(Ordering::Relaxed), LAST.lock().clone())
}

/// From now on every panic of this process is counted, and logged where there is a log.
pub fn watch_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| note(info, &usual)));
    });
}

fn note(info: &PanicHookInfo<'_>, usual: &dyn Fn(&PanicHookInfo<'_>)) {
    let work = WORK.get();
    if work == Some(FOREIGN) {
        return;
    }
    let panic = Panic {
        work: work.unwrap_or("reef"),
        message: words(info.payload()),
        place: info.location().map(ToString::to_string).unwrap_or_default(),
        at: clock::seconds(clock::now_us()),
    };
    PANICS.fetch_add(1, Ordering::Relaxed);
    if tracing::dispatcher::has_been_set() {
        let backtrace = Backtrace::capture();
        let backtrace = (backtrace.status() == BacktraceStatus::Captured).then(|| backtrace.to_string());
        tracing::error!(
            work = panic.work,
            place = panic.place,
            backtrace,
            "a fault in Reef: {}",
            panic.message
        );
    } else {
        usual(info);
    }
    *LAST.lock() = Some(panic);
}

fn words(payload: &(dyn Any + Send)) -> String {
    payload
        .downcast_ref::<String>()
        .cloned()
        .or_else(|| payload.downcast_ref::<&str>().map(|text| (*text).to_owned()))
        .unwrap_or_else(|| "no message".to_owned())
}

/// Does `run` on this thread; its panic comes back as an error. What it was changing may be half changed.
#[allow(clippy::disallowed_methods, reason = "this is the way")]
pub fn guard<T>(work: &'static str, run: impl FnOnce() -> T) -> Result<T, Lost> {
    struct Before(Option<&'static str>);
    impl Drop for Before {
        fn drop(&mut self) {
            WORK.set(self.0);
        }
    }
    let _before = Before(WORK.replace(Some(work)));
    catch_unwind(AssertUnwindSafe(run)).map_err(|payload| Lost::Panicked {
        work,
        message: words(payload.as_ref()),
    })
}

/// Calls a library that panics over input it does not like: that is its answer, and no fault of Reef.
pub fn foreign<T>(run: impl FnOnce() -> T) -> Result<T, String> {
    guard(FOREIGN, run).map_err(|lost| match lost {
        Lost::Panicked { message, .. } => message,
        Lost::Stopped { work } => work.to_owned(),
    })
}

/// Waits for a future; its panic comes back as an error.
pub async fn caught<T>(work: &'static str, future: impl Future<Output = T>) -> Result<T, Lost> {
    let mut future = pin!(future);
    poll_fn(|context| match guard(work, || future.as_mut().poll(context)) {
        Ok(Poll::Pending) => Poll::Pending,
        Ok(Poll::Ready(value)) => Poll::Ready(Ok(value)),
        Err(lost) => Poll::Ready(Err(lost)),
    })
    .await
}

/// Asynchronous or blocking work that was started. Waiting for it gives its result; dropping it lets it run on.
#[derive(Debug)]
#[must_use = "a task nobody waits for is let run with `let _running =`"]
pub struct Task<T> {
    work: &'static str,
    handle: tokio::task::JoinHandle<Result<T, Lost>>,
}

impl<T> Task<T> {
    /// Stops it at its next pause. Blocking work that has begun goes on.
    pub fn abort(&self) {
        self.handle.abort();
    }

    /// The same for later.
    pub fn abort_handle(&self) -> AbortHandle {
        self.handle.abort_handle()
    }
}

impl<T> Future for Task<T> {
    type Output = Result<T, Lost>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let work = self.work;
        Pin::new(&mut self.handle)
            .poll(context)
            .map(|joined| joined.unwrap_or(Err(Lost::Stopped { work })))
    }
}

/// Starts a task.
#[allow(clippy::disallowed_methods, reason = "this is the way")]
pub fn spawn<T: Send + 'static>(work: &'static str, future: impl Future<Output = T> + Send + 'static) -> Task<T> {
    let handle = tokio::spawn(caught(work, future));
    Task { work, handle }
}

/// Starts a task that `tracker` waits for.
#[allow(clippy::disallowed_methods, reason = "this is the way")]
pub fn track<T: Send + 'static>(
    tracker: &TaskTracker,
    work: &'static str,
    future: impl Future<Output = T> + Send + 'static,
) -> Task<T> {
    let handle = tracker.spawn(caught(work, future));
    Task { work, handle }
}

/// Starts blocking work off the asynchronous threads.
#[allow(clippy::disallowed_methods, reason = "this is the way")]
pub fn blocking<T: Send + 'static>(work: &'static str, run: impl FnOnce() -> T + Send + 'static) -> Task<T> {
    let handle = tokio::task::spawn_blocking(move || guard(work, run));
    Task { work, handle }
}

/// Tasks that are waited for in the order in which they end, and stop when this is dropped.
#[derive(Debug)]
pub struct Tasks<T>(tokio::task::JoinSet<Result<T, Lost>>);

impl<T: Send + 'static> Tasks<T> {
    /// None yet.
    pub fn new() -> Self {
        Self(tokio::task::JoinSet::new())
    }

    /// Starts one more.
    #[allow(clippy::disallowed_methods, reason = "this is the way")]
    pub fn spawn(&mut self, work: &'static str, future: impl Future<Output = T> + Send + 'static) {
        self.0.spawn(caught(work, future));
    }

    /// The next one that ends; `None` when none is left.
    pub async fn next(&mut self) -> Option<Result<T, Lost>> {
        Some(flat(self.0.join_next().await?))
    }

    /// One that has ended.
    pub fn try_next(&mut self) -> Option<Result<T, Lost>> {
        Some(flat(self.0.try_join_next()?))
    }

    /// How many run or were not waited for.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<T: Send + 'static> Default for Tasks<T> {
    fn default() -> Self {
        Self::new()
    }
}

fn flat<T>(joined: Result<Result<T, Lost>, tokio::task::JoinError>) -> Result<T, Lost> {
    joined.unwrap_or(Err(Lost::Stopped { work: "a task" }))
}

/// A thread that was started.
#[derive(Debug)]
#[must_use = "a thread nobody waits for is let run with `let _running =`"]
pub struct Thread<T>(thread::JoinHandle<Result<T, Lost>>, &'static str);

impl<T> Thread<T> {
    /// Waits for its end.
    #[allow(clippy::disallowed_methods, reason = "this is the way")]
    pub fn join(self) -> Result<T, Lost> {
        self.0.join().unwrap_or(Err(Lost::Stopped { work: self.1 }))
    }
}

/// Starts a thread of this name.
#[allow(clippy::disallowed_methods, reason = "this is the way")]
pub fn thread<T: Send + 'static>(
    work: &'static str,
    run: impl FnOnce() -> T + Send + 'static,
) -> io::Result<Thread<T>> {
    let handle = thread::Builder::new()
        .name(work.to_owned())
        .spawn(move || guard(work, run))?;
    Ok(Thread(handle, work))
}

/// A thread of a scope.
#[derive(Debug)]
#[must_use = "the scope waits for it in any case"]
pub struct Scoped<'scope, T>(thread::ScopedJoinHandle<'scope, Result<T, Lost>>, &'static str);

impl<T> Scoped<'_, T> {
    /// Waits for its end.
    #[allow(clippy::disallowed_methods, reason = "this is the way")]
    pub fn join(self) -> Result<T, Lost> {
        self.0.join().unwrap_or(Err(Lost::Stopped { work: self.1 }))
    }
}

/// Starts a thread of this name that may borrow what outlives `scope`.
#[allow(clippy::disallowed_methods, reason = "this is the way")]
pub fn scoped<'scope, T: Send + 'scope>(
    scope: &'scope thread::Scope<'scope, '_>,
    work: &'static str,
    run: impl FnOnce() -> T + Send + 'scope,
) -> io::Result<Scoped<'scope, T>> {
    let handle = thread::Builder::new()
        .name(work.to_owned())
        .spawn_scoped(scope, move || guard(work, run))?;
    Ok(Scoped(handle, work))
}

/// The pause after so many failures in a row, one at least.
pub fn pause(failures: u32) -> Duration {
    let doubled = 1_u32.checked_shl(failures.saturating_sub(1)).unwrap_or(u32::MAX);
    FIRST_PAUSE.saturating_mul(doubled).min(LONGEST_PAUSE)
}

/// Does work that has to go on: after a panic it is begun again, at growing pauses, until `stop` or its own end.
pub async fn keep<F: Future<Output = ()>>(work: &'static str, stop: CancellationToken, begin: impl FnMut() -> F) {
    keep_pausing(work, stop, begin, pause).await;
}

async fn keep_pausing<F: Future<Output = ()>>(
    work: &'static str,
    stop: CancellationToken,
    mut begin: impl FnMut() -> F,
    pause: impl Fn(u32) -> Duration,
) {
    let mut failures = 0;
    loop {
        let started = Instant::now();
        let Err(lost) = caught(work, async { begin().await }).await else {
            return;
        };
        failures = if started.elapsed() > SOUND { 1 } else { failures + 1 };
        let pause = pause(failures);
        tracing::error!(work, %lost, ?pause, "begins again after a pause");
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn panicked(lost: &Lost, work: &str) -> bool {
        matches!(lost, Lost::Panicked { work: named, message } if *named == work && message == "on purpose")
    }

    #[tokio::test]
    async fn whoever_waits_gets_the_panic_and_not_an_end() {
        let lost = [
            spawn("one", async { panic!("on purpose") }).await.unwrap_err(),
            blocking("one", || panic!("on purpose")).await.unwrap_err(),
            track(&TaskTracker::new(), "one", async { panic!("on purpose") })
                .await
                .unwrap_err(),
            thread("one", || panic!("on purpose")).unwrap().join().unwrap_err(),
            thread::scope(|scope| {
                scoped(scope, "one", || panic!("on purpose"))
                    .unwrap()
                    .join()
                    .unwrap_err()
            }),
            guard("one", || panic!("on purpose")).unwrap_err(),
        ];
        assert!(lost.iter().all(|lost: &Lost| panicked(lost, "one")), "{lost:?}");
        let mut tasks = Tasks::new();
        tasks.spawn("two", async { panic!("on purpose") });
        assert!(
            tasks
                .next()
                .await
                .unwrap()
                .is_err_and(|lost: Lost| panicked(&lost, "two"))
        );
        assert!(tasks.next().await.is_none());
    }

    #[tokio::test]
    async fn what_was_stopped_did_not_panic() {
        let task = spawn("waiting", std::future::pending::<()>());
        task.abort();
        assert_eq!(task.await, Err(Lost::Stopped { work: "waiting" }));
    }

    #[tokio::test]
    async fn work_that_has_to_go_on_is_begun_again_until_it_ends() {
        let begun = AtomicU64::new(0);
        let begin = || async { assert!(begun.fetch_add(1, Ordering::Relaxed) >= 3, "on purpose") };
        keep_pausing("again", CancellationToken::new(), begin, |_| Duration::ZERO).await;
        assert_eq!(begun.into_inner(), 4);
        let stop = CancellationToken::new();
        stop.cancel();
        keep("never", stop, || async { panic!("on purpose") }).await;
        assert_eq!([1, 2, 3, 100].map(|n| pause(n).as_secs()), [1, 2, 4, 300]);
    }

    #[test]
    fn a_library_that_refuses_by_a_panic_is_no_fault() {
        assert_eq!(foreign(|| panic!("bad input")), Err::<(), _>("bad input".to_owned()));
    }
}
