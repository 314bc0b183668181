//! Every key, once: the help screen and the key handling read the same list.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::app::Screen;

/// What a key asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    Show(Screen),
    NextScreen,
    PreviousScreen,
    Up,
    Down,
    PageUp,
    PageDown,
    First,
    Last,
    Open,
    Back,
    Filter,
    NextScenario,
    PreviousScenario,
    Refresh,
    Pause,
    Copy,
    Theme,
    Diff,
    Promote,
    Reject,
    Rollback,
    ZoomIn,
    ZoomOut,
    Left,
    Right,
    NextChart,
    MaximiseChart,
    Severity,
    OtherSide,
    Suspend,
    Quit,
}

/// One line of the list: keys, as shown and as pressed, what they do, and where.
pub(super) struct Binding {
    pub(super) shown: &'static str,
    pub(super) what: &'static str,
    pub(super) place: Place,
    keys: &'static [(KeyCode, KeyModifiers)],
    action: Action,
}

/// Where a key works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Everywhere,
    On(Screen),
}

const NONE: KeyModifiers = KeyModifiers::NONE;
const SHIFT: KeyModifiers = KeyModifiers::SHIFT;
const CONTROL: KeyModifiers = KeyModifiers::CONTROL;

macro_rules! bindings {
    ($($place:expr => { $($shown:literal [$($code:expr, $modifier:expr);+] $action:expr, $what:literal;)+ })+) => {
        pub(super) const BINDINGS: &[Binding] = &[$($(Binding {
            shown: $shown,
            what: $what,
            place: $place,
            keys: &[$(($code, $modifier)),+],
            action: $action,
        },)+)+];
    };
}

bindings! {
    Place::Everywhere => {
        "1" [KeyCode::Char('1'), NONE] Action::Show(Screen::Overview), "overview: every scenario at a glance";
        "2" [KeyCode::Char('2'), NONE] Action::Show(Screen::Traffic), "traffic: records as they come";
        "3" [KeyCode::Char('3'), NONE] Action::Show(Screen::Training), "training: figures of the steps";
        "4" [KeyCode::Char('4'), NONE] Action::Show(Screen::Releases), "releases: the chain, evidence, decisions";
        "5" [KeyCode::Char('5'), NONE] Action::Show(Screen::Harness), "harness: the tree, what waits, what was tried";
        "6" [KeyCode::Char('6'), NONE] Action::Show(Screen::Logs), "logs";
        "?" [KeyCode::Char('?'), NONE; KeyCode::F(1), NONE] Action::Show(Screen::Help), "help: this list";
        "Tab" [KeyCode::Tab, NONE] Action::NextScreen, "next screen";
        "Shift-Tab" [KeyCode::BackTab, SHIFT; KeyCode::BackTab, NONE] Action::PreviousScreen, "previous screen";
        "j, Down" [KeyCode::Char('j'), NONE; KeyCode::Down, NONE] Action::Down, "down (also the mouse wheel)";
        "k, Up" [KeyCode::Char('k'), NONE; KeyCode::Up, NONE] Action::Up, "up";
        "PageDown, Space" [KeyCode::PageDown, NONE; KeyCode::Char(' '), NONE; KeyCode::Char('f'), CONTROL] Action::PageDown, "a page down";
        "PageUp, b" [KeyCode::PageUp, NONE; KeyCode::Char('b'), NONE; KeyCode::Char('b'), CONTROL] Action::PageUp, "a page up";
        "g, Home" [KeyCode::Char('g'), NONE; KeyCode::Home, NONE] Action::First, "to the top, and stay there as news come";
        "G, End" [KeyCode::Char('G'), SHIFT; KeyCode::Char('G'), NONE; KeyCode::End, NONE] Action::Last, "to the bottom";
        "Enter" [KeyCode::Enter, NONE] Action::Open, "open what is selected (also a second click)";
        "Esc, Backspace" [KeyCode::Esc, NONE; KeyCode::Backspace, NONE] Action::Back, "close, or clear the filter";
        "/" [KeyCode::Char('/'), NONE] Action::Filter, "filter: show only lines that hold every word";
        "]" [KeyCode::Char(']'), NONE] Action::NextScenario, "next scenario";
        "[" [KeyCode::Char('['), NONE] Action::PreviousScenario, "previous scenario";
        "y" [KeyCode::Char('y'), NONE] Action::Copy, "copy the full id of what is selected";
        "r" [KeyCode::Char('r'), NONE] Action::Refresh, "look again now";
        "p" [KeyCode::Char('p'), NONE] Action::Pause, "stop and go on looking";
        "T" [KeyCode::Char('T'), SHIFT; KeyCode::Char('T'), NONE] Action::Theme, "next of dark, light, no colours";
        "Ctrl-Z" [KeyCode::Char('z'), CONTROL] Action::Suspend, "back to the shell; fg returns";
        "q, Ctrl-C" [KeyCode::Char('q'), NONE; KeyCode::Char('c'), CONTROL] Action::Quit, "quit";
    }
    Place::On(Screen::Training) => {
        "c" [KeyCode::Char('c'), NONE] Action::NextChart, "next chart";
        "z" [KeyCode::Char('z'), NONE] Action::MaximiseChart, "one chart or all";
        "+" [KeyCode::Char('+'), NONE; KeyCode::Char('+'), SHIFT; KeyCode::Char('='), NONE] Action::ZoomIn, "fewer steps";
        "-" [KeyCode::Char('-'), NONE] Action::ZoomOut, "more steps";
        "h, Left" [KeyCode::Char('h'), NONE; KeyCode::Left, NONE] Action::Left, "earlier steps";
        "l, Right" [KeyCode::Char('l'), NONE; KeyCode::Right, NONE] Action::Right, "later steps";
    }
    Place::On(Screen::Releases) => {
        "d" [KeyCode::Char('d'), NONE] Action::Diff, "what the release changed";
        "P" [KeyCode::Char('P'), SHIFT; KeyCode::Char('P'), NONE] Action::Promote, "promote a held release, after a question";
        "X" [KeyCode::Char('X'), SHIFT; KeyCode::Char('X'), NONE] Action::Reject, "reject a held release, after a question";
        "R" [KeyCode::Char('R'), SHIFT; KeyCode::Char('R'), NONE] Action::Rollback, "serve this release again, after a question";
    }
    Place::On(Screen::Harness) => {
        "h, l" [KeyCode::Char('h'), NONE; KeyCode::Char('l'), NONE; KeyCode::Left, NONE; KeyCode::Right, NONE] Action::OtherSide, "between the files and what changes them (also left and right)";
    }
    Place::On(Screen::Logs) => {
        "s" [KeyCode::Char('s'), NONE] Action::Severity, "from errors alone to everything";
    }
}

/// What a key asks for on a screen.
pub(super) fn action(key: KeyEvent, screen: Screen) -> Option<Action> {
    let pressed = (key.code, key.modifiers);
    BINDINGS
        .iter()
        .filter(|binding| binding.place == Place::Everywhere || binding.place == Place::On(screen))
        .find(|binding| binding.keys.contains(&pressed))
        .map(|binding| binding.action)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_key_means_two_things_on_one_screen() {
        for screen in Screen::ALL {
            let mut seen = Vec::new();
            for binding in BINDINGS {
                if binding.place == Place::Everywhere || binding.place == Place::On(screen) {
                    for key in binding.keys {
                        assert!(!seen.contains(key), "{key:?} twice on {screen:?}");
                        seen.push(*key);
                    }
                }
            }
        }
    }
}
