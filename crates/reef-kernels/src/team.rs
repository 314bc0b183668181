//! Threads that help one thread with many short pieces of work.
//!
//! A decoding step is over a hundred products with a few dozen microseconds between them. Waking a thread costs more
//! than such a pause, on a virtual machine more than some of the products. So helpers stay awake for a short while
//! after each piece, and whoever wakes up too late for a piece is not waited for.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

/// How long a helper watches for more before it sleeps.
const AWAKE: Duration = Duration::from_micros(200);

/// Set in `door` while helpers may come in; the other bits count those inside.
const OPEN: usize = 1 << (usize::BITS - 1);

/// Helpers of one thread. They end when this is dropped.
pub(crate) struct Team {
    shared: Arc<Shared>,
    helpers: Vec<Helper>,
}

struct Helper {
    thread: Thread,
    handle: Option<JoinHandle<()>>,
    asleep: Arc<AtomicBool>,
}

struct Shared {
    door: AtomicUsize,
    /// Counts pieces of work, so that a helper takes part in each once.
    piece: AtomicUsize,
    /// The piece, a `&(dyn Fn() + Sync)`; good while anybody is inside.
    work: AtomicPtr<()>,
    over: AtomicBool,
    /// A helper panicked in the piece: what it had taken is not done.
    failed: AtomicBool,
}

impl Team {
    /// As many helpers as the machine gives, up to `n`.
    pub(crate) fn new(n: usize) -> Self {
        let shared = Arc::new(Shared {
            door: AtomicUsize::new(0),
            piece: AtomicUsize::new(0),
            work: AtomicPtr::new(std::ptr::null_mut()),
            over: AtomicBool::new(false),
            failed: AtomicBool::new(false),
        });
        let start = |i: usize| {
            let (shared, asleep) = (Arc::clone(&shared), Arc::new(AtomicBool::new(false)));
            let flag = Arc::clone(&asleep);
            let handle = std::thread::Builder::new()
                .name(format!("reef-decode-{i}"))
                .spawn(move || help(&shared, &flag))
                .ok()?;
            Some(Helper {
                thread: handle.thread().clone(),
                handle: Some(handle),
                asleep,
            })
        };
        let helpers = (0..n).map_while(start).collect();
        Self { shared, helpers }
    }

    /// Runs `work` on this thread and on every helper that gets to it before this thread is done with it.
    ///
    /// `work` must return once nothing is left to do, whoever did it. Panics if it panicked on a helper, as it would have
    /// on this thread: the piece is not whole.
    pub(crate) fn run(&mut self, work: &(dyn Fn() + Sync)) {
        let shared = &*self.shared;
        shared
            .work
            .store(std::ptr::from_ref(&work).cast_mut().cast(), Ordering::SeqCst);
        shared.piece.fetch_add(1, Ordering::SeqCst);
        // Closes the door even if `work` unwinds: no helper may look at it after this returns.
        let closing = Closing(shared);
        shared.door.fetch_or(OPEN, Ordering::SeqCst);
        for helper in &self.helpers {
            if helper.asleep.load(Ordering::SeqCst) {
                helper.thread.unpark();
            }
        }
        work();
        drop(closing);
        assert!(
            !shared.failed.swap(false, Ordering::SeqCst),
            "a helper panicked in a piece of work"
        );
    }
}

struct Closing<'a>(&'a Shared);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        let mut inside = self.0.door.fetch_and(!OPEN, Ordering::SeqCst) & !OPEN;
        while inside != 0 {
            pause();
            inside = self.0.door.load(Ordering::SeqCst);
        }
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::SeqCst);
        for helper in &mut self.helpers {
            helper.thread.unpark();
            let _ended = helper.handle.take().map(JoinHandle::join);
        }
    }
}

/// The life of a helper.
fn help(shared: &Shared, asleep: &AtomicBool) {
    let mut seen = 0;
    while !shared.over.load(Ordering::SeqCst) {
        if !wait(shared, asleep, seen) {
            continue;
        }
        let inside = |door: usize| (door & OPEN != 0).then_some(door + 1);
        if shared
            .door
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, inside)
            .is_err()
        {
            // Too late for this one.
            pause();
            continue;
        }
        let _inside = Inside(shared);
        // The piece cannot end before this helper leaves.
        let piece = shared.piece.load(Ordering::SeqCst);
        if piece != seen {
            seen = piece;
            let at = shared.work.load(Ordering::SeqCst).cast_const();
            // SAFETY: the owner stored the pointer before it opened the door and keeps what it points to until the door
            // is closed and everybody has left.
            #[allow(unsafe_code, reason = "a borrow of another thread's stack has no safe form")]
            let work = unsafe { *at.cast::<&(dyn Fn() + Sync)>() };
            // The helper lives on; whoever gave the piece fails in its place.
            if std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).is_err() {
                shared.failed.store(true, Ordering::SeqCst);
            }
        }
    }
}

struct Inside<'a>(&'a Shared);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.door.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Waits for a piece that was not seen yet; false if it should be asked whether all is over first.
fn wait(shared: &Shared, asleep: &AtomicBool, seen: usize) -> bool {
    let news = || shared.piece.load(Ordering::SeqCst) != seen && shared.door.load(Ordering::SeqCst) & OPEN != 0;
    let started = Instant::now();
    while started.elapsed() < AWAKE {
        for _ in 0..16 {
            if news() {
                return true;
            }
            std::hint::spin_loop();
        }
        std::thread::yield_now();
    }
    asleep.store(true, Ordering::SeqCst);
    // Looked at once more after saying so: whoever opened the door before this line did not see a sleeper.
    if !news() && !shared.over.load(Ordering::SeqCst) {
        std::thread::park();
    }
    asleep.store(false, Ordering::SeqCst);
    news()
}

fn pause() {
    for _ in 0..16 {
        std::hint::spin_loop();
    }
    std::thread::yield_now();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum_to(team: &mut Team, n: usize) -> usize {
        let (next, sum) = (AtomicUsize::new(0), AtomicUsize::new(0));
        team.run(&|| {
            loop {
                let i = next.fetch_add(1, Ordering::SeqCst);
                if i >= n {
                    return;
                }
                sum.fetch_add(i, Ordering::SeqCst);
            }
        });
        sum.into_inner()
    }

    #[test]
    fn every_piece_is_whole_when_it_returns_and_helpers_come_back_from_sleep() {
        let mut team = Team::new(3);
        for round in 0..2000 {
            assert_eq!(sum_to(&mut team, round), round * round.saturating_sub(1) / 2);
            if round % 500 == 0 {
                std::thread::sleep(AWAKE * 4);
            }
        }
    }

    #[test]
    fn helpers_do_take_part() {
        let mut team = Team::new(1);
        let owner = std::thread::current().id();
        let helped = AtomicBool::new(false);
        let begun = Instant::now();
        team.run(&|| {
            if std::thread::current().id() != owner {
                helped.store(true, Ordering::SeqCst);
            }
            while !helped.load(Ordering::SeqCst) && begun.elapsed() < Duration::from_secs(20) {
                pause();
            }
        });
        assert!(helped.into_inner());
    }

    #[test]
    fn a_piece_that_panics_lets_nobody_look_at_it_afterwards() {
        let mut team = Team::new(2);
        let owner = std::thread::current().id();
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            team.run(&|| assert!(std::thread::current().id() != owner, "on purpose"));
        }));
        assert!(outcome.is_err());
        assert_eq!(sum_to(&mut team, 100), 4950);
    }

    #[test]
    fn a_helper_that_panics_fails_the_piece_and_helps_again() {
        let mut team = Team::new(1);
        let owner = std::thread::current().id();
        let begun = Instant::now();
        let helped = AtomicBool::new(false);
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            team.run(&|| {
                if std::thread::current().id() != owner {
                    helped.store(true, Ordering::SeqCst);
                    panic!("on purpose");
                }
                while !helped.load(Ordering::SeqCst) && begun.elapsed() < Duration::from_secs(20) {
                    pause();
                }
            });
        }));
        assert!(helped.into_inner() && outcome.is_err());
        assert_eq!(sum_to(&mut team, 100), 4950);
    }
}
