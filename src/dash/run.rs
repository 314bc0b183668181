//! One thread draws; others read keys, wait for signals, and look at the source. Everything meets in one queue.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::app::App;
use super::event::{Effect, Event};
use super::page::Body;
use super::source::Source;
use super::terminal::{Screen, copy, present};
use super::theme::Theme;
use super::view;
use crate::sys::failpoint::hit;
use crate::sys::{clock, task};

/// How the dashboard begins.
#[derive(Debug, Clone)]
pub struct DashOptions {
    /// The colours.
    pub theme: Theme,
    /// The scenario to look into.
    pub scenario: Option<String>,
    /// Time between two looks.
    pub interval: Duration,
}

/// Why the dashboard cannot run.
#[derive(Debug, thiserror::Error)]
pub enum DashError {
    /// Nobody could see it.
    #[error("the dashboard needs a terminal on standard input and output")]
    NoTerminal,
    /// The terminal refused.
    #[error("the terminal cannot be used")]
    Terminal(#[source] io::Error),
}

/// Shows the dashboard until it is closed. Gives the signal that ended it, if one did.
pub fn run(source: Box<dyn Source>, options: &DashOptions) -> Result<Option<i32>, DashError> {
    if !present() {
        return Err(DashError::NoTerminal);
    }
    let (events, happened) = channel();
    let mut screen = Screen::take(events.clone()).map_err(DashError::Terminal)?;
    watch_signals(events.clone()).map_err(DashError::Terminal)?;
    read_keys(events.clone()).map_err(DashError::Terminal)?;
    let work = work(source, events).map_err(DashError::Terminal)?;
    let size = screen.terminal.size().map_err(DashError::Terminal)?;
    let app = App::new(
        options.theme,
        options.scenario.clone(),
        (size.width, size.height),
        clock::now_us(),
    );
    turn(&mut screen, app, &happened, &work, options.interval).map_err(DashError::Terminal)
}

fn turn(
    screen: &mut Screen,
    mut app: App,
    happened: &Receiver<Event>,
    work: &Sender<Effect>,
    interval: Duration,
) -> io::Result<Option<i32>> {
    let mut effects = app.begin();
    let mut ticked = Instant::now();
    loop {
        for effect in effects.drain(..) {
            match effect {
                Effect::Quit(signal) => return Ok(signal),
                Effect::Suspend => {
                    screen.suspend()?;
                    let size = screen.terminal.size()?;
                    app.size = (size.width, size.height);
                }
                Effect::Copy(text) => copy(&text)?,
                // The worker ends only with the program.
                other => {
                    let _ended = work.send(other);
                }
            }
        }
        hit("dash::draw")?;
        screen.terminal.draw(|frame| view::draw(frame, &app))?;
        // Everything that waits is taken in before the next picture.
        let mut next = match happened.recv_timeout(interval.saturating_sub(ticked.elapsed())) {
            Ok(event) => Some(event),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => return Ok(None),
        };
        while let Some(event) = next {
            effects.extend(app.update(event));
            next = happened.try_recv().ok();
        }
        if ticked.elapsed() >= interval {
            ticked = Instant::now();
            effects.extend(app.update(Event::Tick(clock::now_us())));
        }
    }
}

fn read_keys(events: Sender<Event>) -> io::Result<()> {
    let _reading = task::thread("reef-keys", move || {
        loop {
            let event = match crossterm::event::read() {
                Ok(crossterm::event::Event::Key(key)) => Event::Key(key),
                Ok(crossterm::event::Event::Mouse(mouse)) => Event::Mouse(mouse),
                Ok(crossterm::event::Event::Resize(width, height)) => Event::Resize(width, height),
                Ok(_) => continue,
                // The terminal is gone.
                Err(_) => Event::Terminate(rustix::process::Signal::HUP.as_raw()),
            };
            let gone = matches!(event, Event::Terminate(_));
            if events.send(event).is_err() || gone {
                return;
            }
        }
    })?;
    Ok(())
}

/// Every signal that asks a program to end ends this one the same way: with the terminal given back.
fn watch_signals(events: Sender<Event>) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let guard = runtime.enter();
    let kinds = [
        SignalKind::terminate(),
        SignalKind::interrupt(),
        SignalKind::hangup(),
        SignalKind::quit(),
    ];
    let [mut term, mut int, mut hup, mut quit] = listen(kinds)?;
    drop(guard);
    let _waiting = task::thread("reef-signals", move || {
        runtime.block_on(async move {
            let kind = tokio::select! {
                _ = term.recv() => SignalKind::terminate(),
                _ = int.recv() => SignalKind::interrupt(),
                _ = hup.recv() => SignalKind::hangup(),
                _ = quit.recv() => SignalKind::quit(),
            };
            // The receiver is gone only when the dashboard ends anyway.
            let _ending = events.send(Event::Terminate(kind.as_raw_value()));
        });
    })?;
    Ok(())
}

fn listen<const N: usize>(kinds: [SignalKind; N]) -> io::Result<[Signal; N]> {
    let mut signals = Vec::with_capacity(N);
    for kind in kinds {
        signals.push(signal(kind)?);
    }
    signals
        .try_into()
        .map_err(|_| io::Error::other("a signal has no listener"))
}

/// The thread that blocks on the source, one request after the other. A panic in one request is told and the next one
/// is served.
fn work(mut source: Box<dyn Source>, events: Sender<Event>) -> io::Result<Sender<Effect>> {
    let (effects, wanted) = channel();
    let _working = task::thread("reef-look", move || {
        for effect in wanted {
            let answer = task::guard("looking", || perform(source.as_mut(), effect));
            // A panic was told by its hook.
            if let Ok(Some(event)) = answer
                && events.send(event).is_err()
            {
                return;
            }
        }
    })?;
    Ok(effects)
}

fn perform(source: &mut dyn Source, effect: Effect) -> Option<Event> {
    // A failure here is told as a panic is; only tests arm it.
    let _armed = hit("dash::look");
    let read = match &effect {
        Effect::Look(want) => return Some(Event::Snapshot(source.snapshot(want).map(Box::new))),
        Effect::ReadLogs => return Some(Event::Logs(source.logs())),
        Effect::Decide(choice) => return Some(Event::Decided(choice.clone(), source.decide(choice))),
        Effect::Copy(_) | Effect::Suspend | Effect::Quit(_) => return None,
        Effect::ReadRecord(scenario, id) => source.record(scenario, id).map(Box::new).map(Body::Record),
        Effect::ReadEvidence(scenario, step) => source.evidence(scenario, *step).map(Box::new).map(Body::Evidence),
        Effect::ReadAttempt(scenario, id) => source.attempt(scenario, id).map(Box::new).map(Body::Attempt),
        Effect::ReadDiff(scenario, old, new) => source.diff(scenario, old, new).map(Body::Diff),
        Effect::ReadFile(scenario, release, path) => source.file(scenario, release, path).map(Body::File),
    };
    Some(Event::Read(effect, read))
}
