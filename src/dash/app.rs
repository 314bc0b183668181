//! The state of the dashboard, and how it changes: an event in, effects out. No input or output here.

use std::sync::Arc;

use super::changes;
use super::cursor::Cursor;
use super::event::{Effect, Event};
use super::history::History;
use super::page::Page;
use super::rows;
use super::snapshot::{Newest, ScenarioFacts, Snapshot, StepFacts};
use super::source::{Choice, Fault, Want};
use super::theme::Theme;
use crate::telemetry::LogLine;

/// A screen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Screen {
    Overview,
    Traffic,
    Training,
    Releases,
    Harness,
    Logs,
    Help,
}

impl Screen {
    pub(super) const ALL: [Self; 7] = [
        Self::Overview,
        Self::Traffic,
        Self::Training,
        Self::Releases,
        Self::Harness,
        Self::Logs,
        Self::Help,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Overview => "overview",
            Self::Traffic => "traffic",
            Self::Training => "training",
            Self::Releases => "releases",
            Self::Harness => "harness",
            Self::Logs => "logs",
            Self::Help => "help",
        }
    }

    pub(super) fn place(self) -> usize {
        Self::ALL.iter().position(|screen| *screen == self).unwrap_or(0)
    }

    pub(super) fn step(self, by: isize) -> Self {
        let count = Self::ALL.len() as isize;
        Self::ALL[(self.place() as isize + by).rem_euclid(count) as usize]
    }
}

/// A decision waiting for a person's yes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Question {
    pub(super) choice: Choice,
    /// Yes was said; the outcome is on its way.
    pub(super) sent: bool,
}

/// What part of the steps the charts show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Zoom {
    pub(super) chart: usize,
    pub(super) maximised: bool,
    pub(super) steps: usize,
    pub(super) back: usize,
}

/// Records that are read at first, and at most: going down reads more.
const RECORDS: usize = 200;
const MOST_RECORDS: usize = 12_800;
/// Lines before the end of the list at which older records are asked for.
const NEAR_END: usize = 50;

pub(super) const ZOOMS: [usize; 6] = [10, 25, 50, 100, 200, 400];

/// Everything.
pub(super) struct App {
    pub(super) screen: Screen,
    pub(super) size: (u16, u16),
    pub(super) theme: Theme,
    pub(super) now_us: i64,
    pub(super) snapshot: Option<Arc<Snapshot>>,
    /// Why the last look failed; what was seen before stays on the screen.
    pub(super) fault: Option<Fault>,
    pub(super) history: History,
    pub(super) scenario: Option<String>,
    pub(super) cursors: [Cursor; 7],
    /// On the harness screen, whether what changes the tree is in focus, and not its files.
    beside: bool,
    /// The place among what changes the tree.
    pub(super) changes: Cursor,
    pub(super) filters: [String; 7],
    pub(super) typing: bool,
    pub(super) paused: bool,
    pub(super) page: Option<Page>,
    pub(super) question: Option<Question>,
    pub(super) zoom: Zoom,
    pub(super) severity: usize,
    pub(super) logs: Vec<LogLine>,
    pub(super) log_fault: Option<Fault>,
    /// Records of the scenario that are wanted.
    wanted_records: usize,
    /// What was last said to the person.
    pub(super) message: Option<String>,
    /// A look is under way.
    looking: bool,
    reading_logs: bool,
}

impl App {
    pub(super) fn new(theme: Theme, scenario: Option<String>, size: (u16, u16), now_us: i64) -> Self {
        Self {
            screen: Screen::Overview,
            size,
            theme,
            now_us,
            snapshot: None,
            fault: None,
            history: History::default(),
            scenario,
            cursors: Default::default(),
            beside: false,
            changes: Cursor::default(),
            filters: Default::default(),
            typing: false,
            paused: false,
            page: None,
            question: None,
            zoom: Zoom {
                chart: 0,
                maximised: false,
                steps: 50,
                back: 0,
            },
            severity: 2,
            logs: Vec::new(),
            log_fault: None,
            wanted_records: RECORDS,
            message: None,
            looking: false,
            reading_logs: false,
        }
    }

    /// What to do at the very beginning.
    pub(super) fn begin(&mut self) -> Vec<Effect> {
        self.look().into_iter().collect()
    }

    /// Takes one event in.
    pub(super) fn update(&mut self, event: Event) -> Vec<Effect> {
        match event {
            Event::Key(key) => super::input::key(self, key),
            Event::Mouse(mouse) => super::input::mouse(self, mouse),
            Event::Resize(width, height) => {
                self.size = (width, height);
                Vec::new()
            }
            Event::Tick(now_us) => {
                self.now_us = now_us;
                if self.paused {
                    return Vec::new();
                }
                let logs = (self.screen == Screen::Logs).then(|| self.read_logs()).flatten();
                self.look().into_iter().chain(logs).collect()
            }
            Event::Snapshot(result) => {
                self.looking = false;
                match result {
                    Ok(snapshot) => self.see(*snapshot),
                    Err(fault) => self.fault = Some(fault),
                }
                Vec::new()
            }
            Event::Logs(result) => {
                self.reading_logs = false;
                match result {
                    Ok(lines) => (self.logs, self.log_fault) = (lines, None),
                    Err(fault) => self.log_fault = Some(fault),
                }
                self.settle();
                Vec::new()
            }
            Event::Read(asked, result) => {
                if let Some(page) = &mut self.page {
                    page.fill(&asked, result);
                }
                Vec::new()
            }
            Event::Decided(choice, result) => {
                if self.question.as_ref().is_some_and(|question| question.choice == choice) {
                    self.question = None;
                }
                self.message = Some(match result {
                    Ok(said) => said,
                    Err(fault) => format!("not done: {fault}"),
                });
                self.looking = false;
                self.look().into_iter().collect()
            }
            Event::Broken(what) => {
                // Whatever was under way may never answer.
                (self.looking, self.reading_logs) = (false, false);
                self.fault = Some(Fault::new(format!("a background task broke: {what}")));
                Vec::new()
            }
            Event::Terminate(signal) => vec![Effect::Quit(Some(signal))],
        }
    }

    fn see(&mut self, snapshot: Snapshot) {
        self.now_us = self.now_us.max(snapshot.at_us);
        self.fault = None;
        self.history.push(&snapshot);
        self.follow(&snapshot);
        self.snapshot = Some(Arc::new(snapshot));
        self.settle();
    }

    /// Where the scenario in focus does not exist, or no longer, the source shows another one. That is said, and the
    /// focus goes along: a person decides on what the screen names.
    fn follow(&mut self, snapshot: &Snapshot) {
        let shown = snapshot.focus.as_ref().map(|focus| focus.scenario.clone());
        let Some(wanted) = self.scenario.clone() else {
            self.scenario = shown;
            return;
        };
        let has = |of: &Snapshot| of.scenarios.iter().any(|facts| facts.name == wanted);
        if has(snapshot) {
            return;
        }
        match shown {
            Some(shown) => {
                self.message = Some(format!("there is no scenario {wanted}; this is {shown}"));
                self.page = None;
                self.scenario = Some(shown);
            }
            // Said once; it is looked into when it appears.
            None if self.snapshot.as_deref().is_none_or(has) => {
                self.message = Some(format!("there is no scenario {wanted}"));
                self.page = None;
            }
            None => {}
        }
    }

    /// Keeps every selection on what it was on.
    pub(super) fn settle(&mut self) {
        for screen in Screen::ALL {
            let keys = rows::keys(self, screen);
            self.cursors[screen.place()].settle(&keys);
        }
        let keys = self.change_keys();
        self.changes.settle(&keys);
        self.keep_window();
    }

    /// Keeps the window of the charts on steps that exist: it goes back no further than its first step is the oldest.
    pub(super) fn keep_window(&mut self) {
        self.zoom.back = self.zoom.back.min(self.steps().saturating_sub(self.zoom.steps));
    }

    fn change_keys(&self) -> Vec<String> {
        changes::shown(self).iter().map(changes::Change::key).collect()
    }

    /// Asks for a look, unless one is under way.
    pub(super) fn look(&mut self) -> Option<Effect> {
        if std::mem::replace(&mut self.looking, true) {
            return None;
        }
        self.want_older();
        Some(Effect::Look(Want {
            scenario: self.scenario.clone(),
            records: Some(self.wanted_records),
        }))
    }

    /// Near the end of the list of records, or where a filter leaves few of them, older ones are wanted too.
    fn want_older(&mut self) {
        let near_end = || {
            let shown = rows::records(self).len();
            self.cursors[Screen::Traffic.place()].index() + NEAR_END >= shown
        };
        let all_are_here = self.records() >= self.wanted_records;
        if self.screen == Screen::Traffic && self.newest().records && all_are_here && near_end() {
            self.wanted_records = (self.wanted_records * 2).min(MOST_RECORDS);
        }
    }

    pub(super) fn read_logs(&mut self) -> Option<Effect> {
        (!std::mem::replace(&mut self.reading_logs, true)).then_some(Effect::ReadLogs)
    }

    /// The scenario that the lists show: the one in focus as soon as a look has reached it.
    pub(super) fn shown_scenario(&self) -> Option<&str> {
        let snapshot = self.snapshot.as_ref()?;
        snapshot.focus.as_ref().map(|focus| focus.scenario.as_str())
    }

    /// Changes the scenario in focus; what was seen of the other one is shown, under its name, until the next look.
    pub(super) fn choose(&mut self, scenario: String) -> Vec<Effect> {
        if self.scenario.as_deref() == Some(scenario.as_str()) {
            return Vec::new();
        }
        self.scenario = Some(scenario);
        self.wanted_records = RECORDS;
        self.looking = false;
        self.look().into_iter().collect()
    }

    pub(super) fn filter(&self) -> &str {
        &self.filters[self.screen.place()]
    }

    /// Whether the second list of the screen is in focus.
    pub(super) fn beside(&self) -> bool {
        self.beside && self.screen == Screen::Harness
    }

    /// Puts the other list of the screen in focus.
    pub(super) fn other_side(&mut self) {
        self.beside = !self.beside;
    }

    /// The place in the list in focus.
    pub(super) fn cursor(&self) -> usize {
        if self.beside() {
            self.changes.index()
        } else {
            self.cursors[self.screen.place()].index()
        }
    }

    /// What each line of the list in focus is.
    pub(super) fn focused_keys(&self) -> Vec<String> {
        if self.beside() {
            self.change_keys()
        } else {
            rows::keys(self, self.screen)
        }
    }

    /// The cursor of the list in focus.
    pub(super) fn focused_cursor(&mut self) -> &mut Cursor {
        if self.beside() {
            &mut self.changes
        } else {
            &mut self.cursors[self.screen.place()]
        }
    }

    /// How many steps of the scenario were read, whatever the filter.
    pub(super) fn steps(&self) -> usize {
        let focus = self.snapshot.as_ref().and_then(|snapshot| snapshot.focus.as_ref());
        focus.map_or(0, |focus| focus.steps.len())
    }

    /// How many records of the scenario were read, whatever the filter.
    pub(super) fn records(&self) -> usize {
        let focus = self.snapshot.as_ref().and_then(|snapshot| snapshot.focus.as_ref());
        focus.map_or(0, |focus| focus.records.len())
    }

    /// Which lists of the scenario end before all there is.
    pub(super) fn newest(&self) -> Newest {
        let focus = self.snapshot.as_ref().and_then(|snapshot| snapshot.focus.as_ref());
        focus.map(|focus| focus.newest).unwrap_or_default()
    }

    /// What the overview knows of the scenario that the lists show.
    pub(super) fn focused(&self) -> Option<&ScenarioFacts> {
        let name = self.shown_scenario()?;
        self.snapshot
            .as_ref()?
            .scenarios
            .iter()
            .find(|facts| facts.name == name)
    }

    /// The step selected on the screens that list steps.
    pub(super) fn selected_step(&self) -> Option<&StepFacts> {
        rows::steps(self, self.screen).get(self.cursor()).copied()
    }
}
