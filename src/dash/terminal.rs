//! The terminal: taken over once, given back once, on every way out.

use std::io::{self, IsTerminal, Stdout, Write};
use std::panic::PanicHookInfo;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::thread::{self, ThreadId};

use crossterm::event::{DisableMouseCapture, EnableMouseCapture};
use crossterm::terminal::{EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode};
use crossterm::{cursor, execute};
use parking_lot::Mutex;
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::layout::Rect;

use super::event::Event;

/// Whether the terminal is ours at this moment. Whoever turns it to false gives it back; nobody does it twice.
static TAKEN: AtomicBool = AtomicBool::new(false);

type Hook = Box<dyn Fn(&PanicHookInfo<'_>) + Sync + Send>;

/// The terminal while it is ours.
pub(super) struct Screen {
    pub(super) terminal: Terminal<CrosstermBackend<Stdout>>,
    previous: Arc<Hook>,
}

impl Screen {
    /// Takes the terminal over. A panic of the drawing thread gives it back first and is then shown as usual; a panic of
    /// another thread is told to `events` and leaves the screen alone.
    pub(super) fn take(events: Sender<Event>) -> io::Result<Self> {
        let previous: Arc<Hook> = Arc::new(std::panic::take_hook());
        let (drawing, inner, events) = (thread::current().id(), Arc::clone(&previous), Mutex::new(events));
        std::panic::set_hook(Box::new(move |info| on_panic(drawing, &inner, &events, info)));
        enter()?;
        let terminal = Terminal::new(CrosstermBackend::new(io::stdout())).inspect_err(|_| leave())?;
        Ok(Self { terminal, previous })
    }

    /// Gives the terminal to the shell, stops this process as job control does, and takes it again afterwards.
    pub(super) fn suspend(&mut self) -> io::Result<()> {
        leave();
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::TSTP)?;
        enter()?;
        // `clear` would ask the terminal where the cursor is, and the thread that reads keys would take the answer.
        let size = self.terminal.size()?;
        self.terminal.resize(Rect::new(0, 0, size.width, size.height))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        leave();
        if !thread::panicking() {
            let previous = Arc::clone(&self.previous);
            std::panic::set_hook(Box::new(move |info| previous(info)));
        }
    }
}

fn on_panic(drawing: ThreadId, previous: &Hook, events: &Mutex<Sender<Event>>, info: &PanicHookInfo<'_>) {
    if thread::current().id() == drawing || !TAKEN.load(Ordering::SeqCst) {
        leave();
        previous(info);
        return;
    }
    let payload = info.payload();
    let what = payload
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic".to_owned());
    // The receiver is gone only when the dashboard ends anyway.
    let _ending = events.lock().send(Event::Broken(what));
}

fn enter() -> io::Result<()> {
    enable_raw_mode()?;
    TAKEN.store(true, Ordering::SeqCst);
    let entered = execute!(io::stdout(), EnterAlternateScreen, EnableMouseCapture, cursor::Hide);
    entered.inspect_err(|_| leave())
}

/// Gives the terminal back, if it was taken. A terminal that is gone cannot be restored and needs not be.
fn leave() {
    if TAKEN.swap(false, Ordering::SeqCst) {
        let _gone = execute!(io::stdout(), DisableMouseCapture, LeaveAlternateScreen, cursor::Show);
        let _gone = disable_raw_mode();
    }
}

/// Asks the terminal to put a text on the clipboard; one that does not know how ignores it.
pub(super) fn copy(text: &str) -> io::Result<()> {
    use base64::Engine;
    let encoded = base64::engine::general_purpose::STANDARD.encode(text);
    let mut out = io::stdout();
    write!(out, "\u{1b}]52;c;{encoded}\u{7}")?;
    out.flush()
}

/// Whether there is a terminal to take over.
pub(super) fn present() -> bool {
    io::stdout().is_terminal() && io::stdin().is_terminal()
}
