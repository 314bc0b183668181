//! What the screens say where something is missing, goes, is too long, or ends before all there is.

use crossterm::event::KeyCode;

use super::app::App;
use super::event::{Effect, Event};
use super::sample;
use super::screens_tests::{SIZES, app, code, press, text};
use super::snapshot::Newest;
use super::source::Fault;
use super::theme::Theme;

/// What an error says last is often what tells what to do.
#[test]
fn errors_take_the_lines_they_need() {
    let words = "the head of scenario support-tickets moved: expected 074e54acb2f86c1e0b6ddc25ef1b0a2f4aa3bd1e, \
                 found 8b5e11d09bb57922dc1a42b1f1ba9db6d81a3e1f; look at the releases and decide again";
    let joined = |text: &str| text.lines().map(str::trim).collect::<String>().replace(' ', "");
    let has = |app: &App, words: &str| {
        let shown = text(app);
        assert!(joined(&shown).contains(&words.replace(' ', "")), "{words} in\n{shown}");
    };
    for size in SIZES {
        let mut app = app(size, Theme::Dark);
        press(&mut app, '4');
        press(&mut app, 'P');
        let decided = code(&mut app, KeyCode::Enter);
        let [Effect::Decide(choice)] = &decided[..] else {
            panic!("{decided:?}");
        };
        app.update(Event::Decided(choice.clone(), Err(Fault::new(words))));
        has(&app, &format!("not done: {words}"));
        press(&mut app, 'G');
        assert!(app.message.is_none());
        app.update(Event::Snapshot(Err(Fault::new(words))));
        has(&app, &format!("! {words}"));
        assert!(text(&app).contains('▌'), "{}", text(&app));
        let mut broken = sample::snapshot();
        broken.store.error = Some(words.to_owned());
        broken.scenarios[0].trouble = Some(words.replace("head", "trainer"));
        app.update(Event::Snapshot(Ok(Box::new(broken))));
        press(&mut app, '1');
        if size.0 == 80 {
            has(
                &app,
                "!the trainer of scenario support-tickets moved: expected 074e54acb2f86c1e0b6ddc25",
            );
            assert!(joined(&text(&app)).contains("decideagain"), "{}", text(&app));
        }
        press(&mut app, '6');
        app.update(Event::Logs(Ok(Vec::new())));
        app.update(Event::Logs(Err(Fault::new(words))));
        has(&app, words);
        // One that fills the screen ends in a sign of it.
        app.update(Event::Snapshot(Err(Fault::new("much to say ".repeat(400)))));
        let shown = text(&app);
        let last = shown.lines().last().unwrap();
        assert!(last.ends_with('…') && shown.contains("much to say"), "{shown}");
        // A long filter is seen while it is typed.
        press(&mut app, '/');
        for key in ["x"; 150].concat().chars() {
            press(&mut app, key);
        }
        press(&mut app, 'z');
        assert!(text(&app).contains("z▏"), "{}", text(&app));
    }
}

/// A look at the sample in which only these scenarios are left, the first of them in focus.
fn look(app: &mut App, names: &[&str]) {
    let mut snapshot = sample::snapshot();
    snapshot.at_us += 60_000_000;
    snapshot.scenarios.retain(|facts| names.contains(&facts.name.as_str()));
    match (snapshot.scenarios.first(), &mut snapshot.focus) {
        (Some(first), Some(focus)) => focus.scenario.clone_from(&first.name),
        _ => snapshot.focus = None,
    }
    app.update(Event::Snapshot(Ok(Box::new(snapshot))));
}

#[test]
fn a_long_name_leaves_the_state_in_view() {
    for size in SIZES {
        let mut app = app(size, Theme::Dark);
        let name = "n".repeat(128);
        let mut snapshot = sample::snapshot();
        snapshot.scenarios[0].name.clone_from(&name);
        snapshot.focus.as_mut().unwrap().scenario.clone_from(&name);
        app.update(Event::Snapshot(Ok(Box::new(snapshot))));
        app.paused = true;
        let header = text(&app).lines().nth(1).unwrap().to_owned();
        for words in [" nnnnn", "… ", " serving, with trouble ", " paused"] {
            assert!(header.contains(words), "{words} in {header}");
        }
    }
}

/// The rows of one scenario under the name of another would have a person decide on the wrong one.
#[test]
fn a_scenario_that_is_not_there_is_said_and_what_is_shown_has_its_own_name() {
    let mut app = App::new(Theme::Dark, Some("nosuch".to_owned()), (80, 24), sample::NOW);
    let asked = app.begin();
    assert!(matches!(&asked[..], [Effect::Look(want)] if want.scenario.as_deref() == Some("nosuch")));
    look(&mut app, &["support-tickets", "triage"]);
    let shown = text(&app);
    assert!(
        shown.contains("there is no scenario nosuch; this is support-tickets"),
        "{shown}"
    );
    let header = |app: &App| text(app).lines().nth(1).unwrap().to_owned();
    assert!(header(&app).starts_with(" support-tickets "), "{shown}");
    // It goes while it is looked at, with a page of it open.
    press(&mut app, '4');
    code(&mut app, KeyCode::Enter);
    look(&mut app, &["triage"]);
    let shown = text(&app);
    assert!(
        shown.contains("there is no scenario support-tickets; this is triage") && app.page.is_none(),
        "{shown}"
    );
    assert!(header(&app).starts_with(" triage "), "{shown}");
    press(&mut app, 'P');
    assert_eq!(app.question.as_ref().unwrap().choice.scenario, "triage");
    code(&mut app, KeyCode::Esc);
    // The last one goes: said once, and no key decides anything.
    look(&mut app, &[]);
    let shown = text(&app);
    assert!(shown.contains("there is no scenario triage"), "{shown}");
    assert!(!header(&app).contains("triage"), "{shown}");
    press(&mut app, 'P');
    assert!(app.question.is_none());
    look(&mut app, &[]);
    assert!(app.message.is_none());
    // When it comes back it is looked into again.
    assert!(
        matches!(&press(&mut app, 'r')[..], [Effect::Look(want), ..] if want.scenario.as_deref() == Some("triage"))
    );
}

/// Between a change of the focus and the next look, the lines are still those of the scenario before.
#[test]
fn what_is_done_with_a_line_is_done_to_the_scenario_it_belongs_to() {
    let mut app = app((120, 40), Theme::Dark);
    press(&mut app, '4');
    let asked = press(&mut app, ']');
    assert!(matches!(&asked[..], [Effect::Look(want)] if want.scenario.as_deref() == Some("sql-writer")));
    assert!(text(&app).lines().nth(1).unwrap().starts_with(" support-tickets "));
    let head = sample::snapshot().scenarios[0].release.clone();
    press(&mut app, 'P');
    let choice = app.question.take().unwrap().choice;
    assert_eq!((choice.scenario.as_str(), choice.head), ("support-tickets", head));
    let read = code(&mut app, KeyCode::Enter);
    assert!(matches!(&read[..], [Effect::ReadEvidence(scenario, _)] if scenario == "support-tickets"));
}

/// A filter that finds nothing in the newest must not read as if there were nothing.
#[test]
fn lists_that_end_before_all_there_is_say_so() {
    for size in SIZES {
        let mut app = app(size, Theme::Dark);
        for key in ['2', '3', '4', '5'] {
            press(&mut app, key);
            assert!(!text(&app).contains("the newest "), "{}", text(&app));
        }
        let mut cut = sample::snapshot();
        cut.focus.as_mut().unwrap().newest = Newest {
            records: true,
            steps: true,
            attempts: true,
        };
        app.update(Event::Snapshot(Ok(Box::new(cut))));
        for (key, words) in [
            ('2', "the newest 64; for older ones: go down"),
            ('3', "the newest 24; for older ones: reef release log"),
            ('4', "the newest 24; for older ones: reef release log"),
        ] {
            press(&mut app, key);
            press(&mut app, 'G');
            let shown = text(&app);
            assert!(shown.contains(words) && shown.contains('▌'), "{shown}");
            press(&mut app, '/');
            for key in "nowhere".chars() {
                press(&mut app, key);
            }
            let shown = text(&app);
            assert!(shown.contains(&format!("0 of {words}")), "{shown}");
            code(&mut app, KeyCode::Esc);
        }
        press(&mut app, '5');
        let attempts = sample::snapshot().focus.unwrap().evolution.attempts.len();
        let words = format!("; the newest {attempts} attempts");
        assert!(size.0 < 80 || text(&app).contains(&words), "{}", text(&app));
    }
}

/// However one pans and zooms, the window is full as long as there are steps to fill it.
#[test]
fn the_charts_never_leave_the_steps() {
    let mut app = app((120, 40), Theme::Dark);
    press(&mut app, '3');
    let all = text(&app);
    // Fewer steps than the window is wide: there is nowhere to go.
    for key in ['h', 'h', 'l'] {
        press(&mut app, key);
        assert_eq!(text(&app), all);
    }
    press(&mut app, '+');
    press(&mut app, '+');
    assert_eq!(app.zoom.steps, 10);
    for _ in 0..20 {
        press(&mut app, 'h');
        assert!(!text(&app).contains("no step has this figure"), "{}", text(&app));
    }
    // 24 steps, 10 of them in view.
    assert_eq!(app.zoom.back, 14);
    press(&mut app, '-');
    press(&mut app, '-');
    assert_eq!(text(&app), all);
    // A filter of the list is none of the charts, and another scenario may have fewer steps.
    press(&mut app, '+');
    press(&mut app, '+');
    press(&mut app, '/');
    press(&mut app, 'x');
    code(&mut app, KeyCode::Enter);
    for _ in 0..20 {
        press(&mut app, 'h');
    }
    assert_eq!(app.zoom.back, 14);
    let mut fewer = sample::snapshot();
    fewer.focus.as_mut().unwrap().steps.truncate(12);
    app.update(Event::Snapshot(Ok(Box::new(fewer))));
    assert_eq!(app.zoom.back, 2);
}
