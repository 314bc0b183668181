//! Keys and the mouse.

use crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers, MouseButton, MouseEvent, MouseEventKind};
use ratatui::layout::Position;

use super::app::{App, Question, Screen, ZOOMS};
use super::changes::{self, Change};
use super::cursor::first_shown;
use super::event::Effect;
use super::keys::{self, Action};
use super::page::{Body, Page};
use super::rows;
use super::source::{Choice, Decision};
use super::view::{self, Areas};

/// The longest filter or note.
const LONGEST: usize = 200;
/// Lines that one turn of the wheel moves.
const WHEEL: isize = 3;

pub(super) fn key(app: &mut App, key: KeyEvent) -> Vec<Effect> {
    if key.kind == KeyEventKind::Release {
        return Vec::new();
    }
    let control_c = key.code == KeyCode::Char('c') && key.modifiers == KeyModifiers::CONTROL;
    if app.question.is_some() && !control_c {
        return answer(app, key);
    }
    if app.typing && !control_c {
        type_filter(app, key);
        return Vec::new();
    }
    app.message = None;
    match keys::action(key, app.screen) {
        Some(action) => act(app, action),
        None => Vec::new(),
    }
}

/// Keys while a question waits.
fn answer(app: &mut App, key: KeyEvent) -> Vec<Effect> {
    let Some(question) = &mut app.question else {
        return Vec::new();
    };
    match key.code {
        KeyCode::Esc => app.question = None,
        // Yes was said once; saying it again must not decide twice.
        _ if question.sent => {}
        KeyCode::Enter => {
            question.sent = true;
            question.choice.note = question.choice.note.trim().to_owned();
            return vec![Effect::Decide(question.choice.clone())];
        }
        KeyCode::Backspace => {
            question.choice.note.pop();
        }
        KeyCode::Char(c) if typed(key) && question.choice.note.chars().count() < LONGEST => {
            question.choice.note.push(c);
        }
        _ => {}
    }
    Vec::new()
}

fn type_filter(app: &mut App, key: KeyEvent) {
    let filter = &mut app.filters[app.screen.place()];
    match key.code {
        KeyCode::Enter => app.typing = false,
        KeyCode::Esc => {
            filter.clear();
            app.typing = false;
        }
        KeyCode::Backspace => {
            filter.pop();
        }
        KeyCode::Char('u') if key.modifiers == KeyModifiers::CONTROL => filter.clear(),
        KeyCode::Char(c) if typed(key) && filter.chars().count() < LONGEST => filter.push(c),
        _ => {}
    }
    app.settle();
}

fn typed(key: KeyEvent) -> bool {
    !key.modifiers.intersects(KeyModifiers::CONTROL | KeyModifiers::ALT)
}

fn act(app: &mut App, action: Action) -> Vec<Effect> {
    match action {
        Action::Quit => return vec![Effect::Quit(None)],
        Action::Suspend => return vec![Effect::Suspend],
        Action::Show(screen) => return show(app, screen),
        Action::NextScreen => return show(app, app.screen.step(1)),
        Action::PreviousScreen => return show(app, app.screen.step(-1)),
        Action::Up => step(app, -1),
        Action::Down => step(app, 1),
        Action::PageUp => step(app, -page_lines(app)),
        Action::PageDown => step(app, page_lines(app)),
        Action::First => step(app, isize::MIN / 2),
        Action::Last => step(app, isize::MAX / 2),
        Action::Back => back(app),
        Action::Filter => app.typing = app.page.is_none() && app.screen != Screen::Help,
        Action::Open => return open(app),
        Action::NextScenario => return other_scenario(app, 1),
        Action::PreviousScenario => return other_scenario(app, -1),
        Action::Refresh => {
            let logs = app.read_logs();
            return app.look().into_iter().chain(logs).collect();
        }
        Action::Pause => app.paused = !app.paused,
        Action::Theme => {
            app.theme = app.theme.next();
            app.message = Some(format!("colours: {}", app.theme.name()));
        }
        Action::Copy => return copy(app),
        Action::Diff => return diff(app),
        Action::Promote => ask(app, Decision::Promote),
        Action::Reject => ask(app, Decision::Reject),
        Action::Rollback => ask(app, Decision::Rollback),
        Action::NextChart => app.zoom.chart = (app.zoom.chart + 1) % view::CHARTS,
        Action::MaximiseChart => app.zoom.maximised = !app.zoom.maximised,
        Action::ZoomIn => zoom(app, -1),
        Action::ZoomOut => zoom(app, 1),
        Action::Left => pan(app, app.zoom.back + app.zoom.steps / 4 + 1),
        Action::OtherSide if app.page.is_none() => app.other_side(),
        Action::OtherSide => {}
        Action::Right => pan(app, app.zoom.back.saturating_sub(app.zoom.steps / 4 + 1)),
        Action::Severity => {
            app.severity = (app.severity + 1) % crate::telemetry::LEVELS.len();
            app.settle();
        }
    }
    Vec::new()
}

fn show(app: &mut App, screen: Screen) -> Vec<Effect> {
    app.page = None;
    app.screen = screen;
    app.typing = false;
    let logs = (screen == Screen::Logs).then(|| app.read_logs()).flatten();
    logs.into_iter().collect()
}

fn pan(app: &mut App, back: usize) {
    app.zoom.back = back;
    app.keep_window();
}

fn zoom(app: &mut App, by: isize) {
    let at = ZOOMS.iter().position(|steps| *steps >= app.zoom.steps).unwrap_or(0);
    app.zoom.steps = ZOOMS[at.saturating_add_signed(by).min(ZOOMS.len() - 1)];
    app.keep_window();
}

fn page_lines(app: &App) -> isize {
    let areas = Areas::of(app);
    let height = if app.page.is_some() {
        areas.body.height.saturating_sub(2)
    } else {
        areas.list.height
    };
    isize::try_from(height.max(2) - 1).unwrap_or(1)
}

fn step(app: &mut App, lines: isize) {
    let areas = Areas::of(app);
    let theme = app.theme;
    if let Some(page) = &mut app.page {
        page.scroll_by(lines, areas.body, theme);
        return;
    }
    let keys = app.focused_keys();
    app.focused_cursor().by(lines, &keys);
}

fn back(app: &mut App) {
    if app.page.take().is_none() {
        app.filters[app.screen.place()].clear();
        app.settle();
    }
}

fn other_scenario(app: &mut App, by: isize) -> Vec<Effect> {
    let Some(snapshot) = &app.snapshot else {
        return Vec::new();
    };
    let names: Vec<&str> = snapshot.scenarios.iter().map(|facts| facts.name.as_str()).collect();
    if names.is_empty() {
        return Vec::new();
    }
    let at = names
        .iter()
        .position(|name| Some(*name) == app.scenario.as_deref())
        .unwrap_or(0);
    let next = names[(at as isize + by).rem_euclid(names.len() as isize) as usize].to_owned();
    app.page = None;
    app.choose(next)
}

/// Whose lines are on the screen. After a change of the focus these are the other scenario's until the next look, and
/// what is done with a line is done to the scenario it belongs to.
fn shown_scenario(app: &App) -> String {
    app.shown_scenario().unwrap_or_default().to_owned()
}

fn open(app: &mut App) -> Vec<Effect> {
    if app.page.is_some() {
        return Vec::new();
    }
    let (scenario, at) = (shown_scenario(app), app.cursor());
    match app.screen {
        Screen::Overview => {
            let Some(name) = rows::scenarios(app).get(at).map(|facts| facts.name.clone()) else {
                return Vec::new();
            };
            app.screen = Screen::Traffic;
            app.choose(name)
        }
        Screen::Traffic => {
            let Some(id) = rows::records(app).get(at).map(|row| row.id.clone()) else {
                return Vec::new();
            };
            let title = format!("record {id}");
            read(app, title, Effect::ReadRecord(scenario, id))
        }
        Screen::Training | Screen::Releases => {
            let Some(step) = app.selected_step().map(|step| step.step) else {
                return Vec::new();
            };
            let title = format!("evidence of step {step}");
            read(app, title, Effect::ReadEvidence(scenario, step))
        }
        Screen::Harness if app.beside() => open_change(app, scenario, at),
        Screen::Harness => {
            let Some(path) = rows::files(app).get(at).map(|file| file.path.clone()) else {
                return Vec::new();
            };
            let Some(release) = app.focused().and_then(|facts| facts.release.clone()) else {
                return Vec::new();
            };
            read(app, path.clone(), Effect::ReadFile(scenario, release, path))
        }
        Screen::Logs => {
            if let Some(line) = rows::logs(app).get(at).map(|line| (*line).clone()) {
                app.page = Some(Page::showing("log line".to_owned(), Body::Log(line)));
            }
            Vec::new()
        }
        Screen::Help => Vec::new(),
    }
}

/// A line beside the tree: steps have evidence, attempts more to tell than the list knows.
fn open_change(app: &mut App, scenario: String, at: usize) -> Vec<Effect> {
    let Some(change) = changes::shown(app).get(at).copied() else {
        return Vec::new();
    };
    let id = change.id();
    let title = format!("{} {id}", change.what());
    match change {
        Change::Held(step) | Change::Step(step) => {
            let step = step.step;
            read(
                app,
                format!("evidence of step {step}"),
                Effect::ReadEvidence(scenario, step),
            )
        }
        Change::Attempt(_) => read(app, title, Effect::ReadAttempt(scenario, id)),
        Change::Request(_) | Change::Proposal(_) => {
            app.page = change.body().map(|body| Page::showing(title, body));
            Vec::new()
        }
    }
}

fn copy(app: &mut App) -> Vec<Effect> {
    let at = app.cursor();
    let id = match app.screen {
        Screen::Overview => rows::scenarios(app).get(at).and_then(|facts| facts.release.clone()),
        Screen::Traffic => rows::records(app).get(at).map(|row| row.id.clone()),
        Screen::Training | Screen::Releases => app.selected_step().map(|step| step.release.clone()),
        Screen::Harness if app.beside() => changes::shown(app).get(at).map(Change::id),
        Screen::Harness => rows::files(app).get(at).map(|file| file.path.clone()),
        Screen::Logs => rows::logs(app)
            .get(at)
            .map(|line| format!("{} {} {}", line.level, line.message, line.details())),
        Screen::Help => None,
    };
    match id {
        Some(id) => {
            app.message = Some(format!("copied {id}"));
            vec![Effect::Copy(id)]
        }
        None => Vec::new(),
    }
}

fn diff(app: &mut App) -> Vec<Effect> {
    let scenario = shown_scenario(app);
    let Some(step) = app.selected_step() else {
        return Vec::new();
    };
    if !step.made_release() {
        app.message = Some(format!(
            "step {} made no release; there is nothing to compare",
            step.step
        ));
        return Vec::new();
    }
    let (Some(old), new) = (step.parent.clone(), step.release.clone()) else {
        app.message = Some("the first release has none before it to compare with".to_owned());
        return Vec::new();
    };
    let title = format!("{} -> {}", super::text::short(&old), super::text::short(&new));
    read(app, title, Effect::ReadDiff(scenario, old, new))
}

/// Opens a page, and asks for what belongs on it.
fn read(app: &mut App, title: String, asked: Effect) -> Vec<Effect> {
    app.page = Some(Page::waiting(title, &asked));
    vec![asked]
}

/// Asks before anything is moved; what makes no sense is said at once.
fn ask(app: &mut App, decision: Decision) {
    let head = app.focused().and_then(|facts| facts.release.clone());
    let Some(step) = app.selected_step() else {
        return;
    };
    let refusal = match decision {
        Decision::Promote | Decision::Reject if !step.waits() => {
            Some("only a held release can be promoted or rejected; this one is not held".to_owned())
        }
        Decision::Rollback if !step.made_release() => {
            Some(format!("step {} made no release to serve again", step.step))
        }
        Decision::Rollback if step.waits() => Some("this release was never served; P promotes it".to_owned()),
        Decision::Rollback if head.as_deref() == Some(step.release.as_str()) => {
            Some("this release is served already".to_owned())
        }
        _ => None,
    };
    if let Some(refusal) = refusal {
        app.message = Some(refusal);
        return;
    }
    app.question = Some(Question {
        choice: Choice {
            decision,
            scenario: shown_scenario(app),
            release: step.release.clone(),
            head,
            note: String::new(),
        },
        sent: false,
    });
}

pub(super) fn mouse(app: &mut App, mouse: MouseEvent) -> Vec<Effect> {
    if app.question.is_some() {
        return Vec::new();
    }
    match mouse.kind {
        MouseEventKind::ScrollDown => step(app, WHEEL),
        MouseEventKind::ScrollUp => step(app, -WHEEL),
        MouseEventKind::Down(MouseButton::Left) => return click(app, mouse.column, mouse.row),
        _ => {}
    }
    Vec::new()
}

fn click(app: &mut App, x: u16, y: u16) -> Vec<Effect> {
    let at = Position::new(x, y);
    let areas = Areas::of(app);
    if let Some((_, screen)) = areas.tabs.iter().find(|(area, _)| area.contains(at)) {
        return show(app, *screen);
    }
    if app.page.is_some() {
        return Vec::new();
    }
    // The first click into the other list only goes there.
    let across = areas.other.contains(at);
    let list = if across { areas.other } else { areas.list };
    if !list.contains(at) {
        return Vec::new();
    }
    if across {
        app.other_side();
    }
    let keys = app.focused_keys();
    let selected = app.cursor();
    let line = first_shown(keys.len(), selected, usize::from(list.height)) + usize::from(y - list.y);
    if line >= keys.len() {
        return Vec::new();
    }
    if line == selected && !across {
        return open(app);
    }
    app.focused_cursor().put(line, &keys);
    Vec::new()
}
