//! The screens from fixed data, cell by cell, and the keys that move between them.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers, MouseButton, MouseEvent, MouseEventKind};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::style::Color;

use super::app::{App, Screen};
use super::event::{Effect, Event};
use super::page::Body;
use super::source::{Decision, Fault};
use super::theme::Theme;
use super::{sample, view};

pub(super) const SIZES: [(u16, u16); 3] = [(120, 40), (80, 24), (60, 20)];

/// The dashboard after a few looks, the last of which just ended.
pub(super) fn app(size: (u16, u16), theme: Theme) -> App {
    let mut app = App::new(theme, None, size, sample::NOW);
    app.begin();
    for look in 0..40_u32 {
        let mut snapshot = sample::snapshot();
        snapshot.at_us -= i64::from(39 - look) * 1_000_000;
        let arrived = (0..look).map(|n| 2 + u64::from(n * n % 7)).sum::<u64>();
        snapshot.scenarios[0].exchanges += arrived;
        snapshot.scenarios[0].reports += arrived / 3;
        app.update(Event::Snapshot(Ok(Box::new(snapshot))));
    }
    app.update(Event::Logs(Ok(sample::logs())));
    app
}

pub(super) fn buffer(app: &App) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(app.size.0, app.size.1)).unwrap();
    terminal.draw(|frame| view::draw(frame, app)).unwrap();
    terminal.backend().buffer().clone()
}

pub(super) fn text(app: &App) -> String {
    let buffer = buffer(app);
    let mut out = String::new();
    for y in 0..buffer.area.height {
        let mut line = String::new();
        let mut skip = 0;
        for x in 0..buffer.area.width {
            // The second half of a wide character holds nothing.
            if skip > 0 {
                skip -= 1;
                continue;
            }
            let symbol = buffer[(x, y)].symbol();
            skip = unicode_width::UnicodeWidthStr::width(symbol).saturating_sub(1);
            line.push_str(symbol);
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

pub(super) fn press(app: &mut App, key: char) -> Vec<Effect> {
    let modifiers = if key.is_uppercase() {
        KeyModifiers::SHIFT
    } else {
        KeyModifiers::NONE
    };
    app.update(Event::Key(KeyEvent::new(KeyCode::Char(key), modifiers)))
}

pub(super) fn code(app: &mut App, code: KeyCode) -> Vec<Effect> {
    app.update(Event::Key(KeyEvent::new(code, KeyModifiers::NONE)))
}

#[test]
fn every_screen_at_every_size() {
    for size in SIZES {
        for screen in Screen::ALL {
            let mut app = app(size, Theme::Dark);
            app.screen = screen;
            insta::assert_snapshot!(format!("{}_{}x{}", screen.name(), size.0, size.1), text(&app));
        }
    }
}

#[test]
fn every_page_at_every_size() {
    for size in SIZES {
        let name = |page: &str| format!("page_{page}_{}x{}", size.0, size.1);
        let mut app = app(size, Theme::Dark);
        app.screen = Screen::Traffic;
        press(&mut app, 'j');
        press(&mut app, 'j');
        let effects = code(&mut app, KeyCode::Enter);
        assert!(matches!(&effects[..], [Effect::ReadRecord(scenario, _)] if scenario == "support-tickets"));
        answer(&mut app, &effects, Body::Record(Box::new(sample::detail())));
        insta::assert_snapshot!(name("record"), text(&app));
        press(&mut app, '4');
        let effects = code(&mut app, KeyCode::Enter);
        assert_eq!(effects, [Effect::ReadEvidence("support-tickets".to_owned(), 23)]);
        answer(&mut app, &effects, Body::Evidence(Box::new(sample::evidence())));
        insta::assert_snapshot!(name("evidence"), text(&app));
        code(&mut app, KeyCode::Esc);
        let effects = press(&mut app, 'd');
        assert!(matches!(&effects[..], [Effect::ReadDiff(..)]));
        answer(&mut app, &effects, Body::Diff(sample::diff()));
        insta::assert_snapshot!(name("diff"), text(&app));
        code(&mut app, KeyCode::Esc);
        press(&mut app, '5');
        press(&mut app, 'l');
        for _ in 0..3 {
            press(&mut app, 'j');
        }
        let effects = code(&mut app, KeyCode::Enter);
        assert_eq!(
            effects,
            [Effect::ReadAttempt(
                "support-tickets".to_owned(),
                "b-evaluating".to_owned()
            )]
        );
        answer(&mut app, &effects, Body::Attempt(Box::new(sample::tried())));
        insta::assert_snapshot!(name("attempt"), text(&app));
        code(&mut app, KeyCode::Esc);
        press(&mut app, '4');
        press(&mut app, 'P');
        press(&mut app, 'o');
        press(&mut app, 'k');
        insta::assert_snapshot!(name("question"), text(&app));
    }
}

#[test]
fn before_the_first_look_and_after_a_failed_one() {
    let mut app = App::new(Theme::Dark, None, (80, 24), sample::NOW);
    app.begin();
    assert!(text(&app).contains("reading …"));
    let fault = Fault::new("there is no store at .reef/experience.db").hint("reef serve creates it");
    app.update(Event::Snapshot(Err(fault)));
    insta::assert_snapshot!("no_store_80x24", text(&app));
    app.update(Event::Snapshot(Ok(Box::new(sample::snapshot()))));
    assert!(text(&app).contains("support-tickets"));
    // What was seen stays when a later look fails.
    app.update(Event::Snapshot(Err(Fault::new("the disk is gone"))));
    let shown = text(&app);
    assert!(shown.contains("support-tickets") && shown.contains("! the disk is gone") && shown.contains("cannot look"));
    app.update(Event::Broken("index out of bounds".to_owned()));
    assert!(text(&app).contains("a background task broke: index out of bounds"));
}

#[test]
fn a_decision_is_asked_first_made_once_and_told() {
    let mut app = app((120, 40), Theme::Dark);
    press(&mut app, '4');
    press(&mut app, 'j');
    press(&mut app, 'P');
    assert!(app.question.is_none() && text(&app).contains("is not held"));
    press(&mut app, 'k');
    press(&mut app, 'P');
    // Keys are words of the note now, not commands.
    for key in "quick look".chars() {
        press(&mut app, key);
    }
    let decided = code(&mut app, KeyCode::Enter);
    let [Effect::Decide(choice)] = &decided[..] else {
        panic!("{decided:?}");
    };
    assert_eq!(
        (choice.decision, choice.note.as_str(), choice.release.len()),
        (Decision::Promote, "quick look", 40)
    );
    assert_eq!(
        choice.head,
        app.focused().unwrap().release,
        "nothing moves when another release is served by then"
    );
    assert!(code(&mut app, KeyCode::Enter).is_empty(), "decided twice");
    let effects = app.update(Event::Decided(choice.clone(), Err(Fault::new("the head moved"))));
    assert!(matches!(&effects[..], [Effect::Look(_)]));
    assert!(text(&app).contains("not done: the head moved"));
    press(&mut app, 'X');
    assert!(app.question.is_some());
    code(&mut app, KeyCode::Esc);
    assert!(app.question.is_none());
    press(&mut app, 'R');
    assert!(text(&app).contains("was never served"));
}

/// A slow answer must not be read as the evidence of another step, on which a person then decides.
#[test]
fn an_answer_that_comes_late_stays_off_another_page() {
    let mut app = app((120, 40), Theme::Dark);
    press(&mut app, '4');
    let first = code(&mut app, KeyCode::Enter);
    code(&mut app, KeyCode::Esc);
    press(&mut app, 'j');
    let second = code(&mut app, KeyCode::Enter);
    assert_ne!(first, second);
    answer(&mut app, &first, Body::Evidence(Box::new(sample::evidence())));
    assert!(text(&app).contains("reading …"), "{}", text(&app));
    answer(&mut app, &second, Body::Evidence(Box::new(sample::evidence())));
    assert!(!text(&app).contains("reading …"));
    // The outcome of one decision does not close the question on another.
    code(&mut app, KeyCode::Esc);
    press(&mut app, 'g');
    press(&mut app, 'P');
    let promote = app.question.as_ref().unwrap().choice.clone();
    code(&mut app, KeyCode::Enter);
    code(&mut app, KeyCode::Esc);
    press(&mut app, 'X');
    app.update(Event::Decided(promote, Ok("now serving it".to_owned())));
    assert!(app.question.is_some() && text(&app).contains("now serving it"));
}

/// What was asked for comes in.
pub(super) fn answer(app: &mut App, asked: &[Effect], body: Body) {
    if let [asked] = asked {
        app.update(Event::Read(asked.clone(), Ok(body)));
    }
}

#[test]
fn a_filter_narrows_what_is_shown_and_escape_clears_it() {
    let mut app = app((120, 40), Theme::Dark);
    press(&mut app, '2');
    press(&mut app, '/');
    for key in "REPORT".chars() {
        press(&mut app, key);
    }
    code(&mut app, KeyCode::Enter);
    let shown = text(&app);
    assert!(
        shown.contains("filter /REPORT") && shown.contains("report") && !shown.contains("answer"),
        "{shown}"
    );
    press(&mut app, '/');
    for key in " nowhere".chars() {
        press(&mut app, key);
    }
    assert!(text(&app).contains("nothing matches the filter"));
    code(&mut app, KeyCode::Esc);
    assert!(text(&app).contains("answer"));
}

#[test]
fn the_mouse_chooses_tabs_and_lines_and_opens_them() {
    let mut app = app((120, 40), Theme::Dark);
    let at = |app: &mut App, kind, column, row| {
        app.update(Event::Mouse(MouseEvent {
            kind,
            column,
            row,
            modifiers: KeyModifiers::NONE,
        }))
    };
    let click = MouseEventKind::Down(MouseButton::Left);
    let tabs = text(&app).lines().next().unwrap().to_owned();
    let column = tabs[..tabs.find("2 traffic").unwrap()].chars().count() as u16;
    at(&mut app, click, column, 0);
    assert_eq!(app.screen, Screen::Traffic);
    at(&mut app, click, 10, 8);
    assert_eq!(app.cursor(), 5);
    let effects = at(&mut app, click, 10, 8);
    assert!(matches!(&effects[..], [Effect::ReadRecord(..)]));
    answer(&mut app, &effects, Body::Record(Box::new(sample::detail())));
    at(&mut app, MouseEventKind::ScrollDown, 10, 8);
    code(&mut app, KeyCode::Esc);
    at(&mut app, MouseEventKind::ScrollDown, 10, 8);
    assert_eq!(app.cursor(), 8);
}

/// The tree and what changes it are two lists on one screen.
#[test]
fn what_changes_a_tree_is_listed_beside_it_and_opens_with_what_led_to_it() {
    let mut app = app((120, 40), Theme::Dark);
    press(&mut app, '5');
    let shown = text(&app);
    for words in [
        "pi-agent/AGENTS.md",
        "waiting: 1 decision, 1 request, 1 proposal",
        "+generated ← 2 failures (0)",
        "~style -chatter ← asked: ",
        "the linter was never run",
    ] {
        assert!(shown.contains(words), "{words} in\n{shown}");
    }
    let effects = code(&mut app, KeyCode::Enter);
    assert!(matches!(&effects[..], [Effect::ReadFile(_, _, path)] if path == "pi-agent/AGENTS.md"));
    code(&mut app, KeyCode::Esc);
    press(&mut app, 'l');
    // First what waits: the decision, the request, the proposal.
    press(&mut app, 'j');
    assert!(code(&mut app, KeyCode::Enter).is_empty());
    let request = text(&app);
    assert!(
        request.contains("say which invoice") && request.contains("what is asked for"),
        "{request}"
    );
    code(&mut app, KeyCode::Esc);
    press(&mut app, 'j');
    assert!(code(&mut app, KeyCode::Enter).is_empty());
    let proposal = text(&app);
    assert!(
        proposal.contains("reef-pi on ci-7") && proposal.contains("Start the database first."),
        "{proposal}"
    );
    code(&mut app, KeyCode::Esc);
    let copied = press(&mut app, 'y');
    assert_eq!(copied, [Effect::Copy("p-waiting".to_owned())]);
    press(&mut app, 'j');
    let effects = code(&mut app, KeyCode::Enter);
    assert!(matches!(&effects[..], [Effect::ReadAttempt(_, id)] if id == "b-evaluating"));
    answer(&mut app, &effects, Body::Attempt(Box::new(sample::tried())));
    let page = text(&app);
    let receipt = sample::tried().failures[0].receipts[0].clone();
    for words in [
        "failures that led to it (2)",
        receipt.as_str(),
        "create generated",
        "! candidate on ticket-04",
    ] {
        assert!(page.contains(words), "{words} in\n{page}");
    }
    code(&mut app, KeyCode::Esc);
    // A filter narrows both, and steps that nothing was tried for have their evidence.
    press(&mut app, '/');
    for key in "step 22".chars() {
        press(&mut app, key);
    }
    code(&mut app, KeyCode::Enter);
    press(&mut app, 'g');
    let effects = code(&mut app, KeyCode::Enter);
    assert_eq!(effects, [Effect::ReadEvidence("support-tickets".to_owned(), 22)]);
    code(&mut app, KeyCode::Esc);
    code(&mut app, KeyCode::Esc);
    press(&mut app, 'h');
    assert_eq!(press(&mut app, 'y'), [Effect::Copy("pi-agent/AGENTS.md".to_owned())]);
}

/// What others wrote acts on no terminal, on the screens and on their pages.
#[test]
fn proposals_and_failures_are_inert() {
    for size in SIZES {
        let mut app = app(size, Theme::Dark);
        press(&mut app, '5');
        press(&mut app, 'l');
        let mut shown = text(&app);
        for _ in 0..8 {
            press(&mut app, 'j');
            let effects = code(&mut app, KeyCode::Enter);
            answer(&mut app, &effects, Body::Attempt(Box::new(sample::tried())));
            shown.push_str(&text(&app));
            code(&mut app, KeyCode::Esc);
        }
        assert!(shown.contains("·[31mschema.rs"), "{shown}");
        assert!(!shown.contains('\u{1b}') && !shown.contains('\u{202e}'), "{shown}");
    }
}

#[test]
fn charts_are_chosen_zoomed_and_panned() {
    let mut app = app((120, 40), Theme::Dark);
    press(&mut app, '3');
    press(&mut app, 'c');
    press(&mut app, 'z');
    for _ in 0..3 {
        press(&mut app, '+');
    }
    assert_eq!((app.zoom.steps, app.zoom.chart), (10, 1));
    let last = text(&app);
    press(&mut app, 'h');
    let earlier = text(&app);
    assert_ne!(last, earlier);
    press(&mut app, 'l');
    assert_eq!(text(&app), last);
    assert!(last.contains("▸ loss") && !last.contains("gradient norm"));
}

#[test]
fn without_colours_no_cell_has_one_and_no_word_is_lost() {
    for screen in Screen::ALL {
        let (mut plain, mut dark) = (app((120, 40), Theme::Plain), app((120, 40), Theme::Dark));
        (plain.screen, dark.screen) = (screen, screen);
        let cells = buffer(&plain);
        assert!(
            cells
                .content()
                .iter()
                .all(|cell| cell.fg == Color::Reset && cell.bg == Color::Reset)
        );
        assert_eq!(text(&plain), text(&dark));
        assert!(buffer(&dark).content().iter().any(|cell| cell.fg != Color::Reset));
    }
}

/// Nothing panics at any size, on any screen, with anything open.
#[test]
fn every_size_is_survived() {
    for width in (1..140).step_by(29) {
        for height in (1..50).step_by(8) {
            for screen in Screen::ALL {
                let mut app = app((120, 40), Theme::Dark);
                app.screen = screen;
                app.update(Event::Resize(width, height));
                text(&app);
                for key in ['j', 'G', ' ', 'z', '/', 'x'] {
                    press(&mut app, key);
                    text(&app);
                }
                code(&mut app, KeyCode::Esc);
                let effects = code(&mut app, KeyCode::Enter);
                answer(&mut app, &effects, Body::Evidence(Box::new(sample::evidence())));
                press(&mut app, 'G');
                text(&app);
            }
        }
    }
}

#[test]
fn looking_never_piles_up() {
    let mut app = App::new(Theme::Dark, None, (80, 24), 0);
    assert_eq!(app.begin().len(), 1);
    for second in 1..100 {
        assert!(app.update(Event::Tick(second * 1_000_000)).is_empty());
    }
    app.update(Event::Snapshot(Ok(Box::new(sample::snapshot()))));
    assert_eq!(app.update(Event::Tick(101_000_000)).len(), 1);
    app.update(Event::Snapshot(Ok(Box::new(sample::snapshot()))));
    press(&mut app, 'p');
    assert!(app.update(Event::Tick(102_000_000)).is_empty());
    assert!(text(&app).contains("paused"));
}
