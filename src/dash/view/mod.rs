//! The picture: from the state to the cells of the terminal, nothing else.

mod charts;
mod harness;
mod help;
mod list;
mod logs;
mod overview;
mod releases;
mod traffic;
mod training;

use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Paragraph};
use unicode_width::UnicodeWidthStr;

use super::app::{App, Question, Screen};
use super::page::{Page, wrap};
use super::source::Decision;
use super::text;

pub(super) use charts::CHARTS;

/// Below this nothing useful fits.
const SMALLEST: (u16, u16) = (40, 10);

/// Where things are. The mouse is understood by the same numbers that draw the picture.
pub(super) struct Areas {
    pub(super) tabs: Vec<(Rect, Screen)>,
    pub(super) body: Rect,
    /// The lines of the screen's list, without its heading.
    pub(super) list: Rect,
    /// The lines of the screen's other list, where there are two.
    pub(super) other: Rect,
    status: Rect,
    foot: Rect,
}

impl Areas {
    pub(super) fn of(app: &App) -> Self {
        let (width, height) = app.size;
        let row = |y: u16| Rect::new(0, y.min(height.saturating_sub(1)), width, u16::from(height > y));
        let foot = u16::try_from(foot_lines(app, width, height).len())
            .unwrap_or(1)
            .min(height);
        let body = Rect::new(0, 2, width, height.saturating_sub(2 + foot));
        let mut tabs = Vec::new();
        let mut x = if width >= 100 { 6 } else { 0 };
        for screen in Screen::ALL {
            let label = tab_label(screen, width);
            let wide = u16::try_from(label.chars().count()).unwrap_or(0);
            tabs.push((Rect::new(x, 0, wide.min(width.saturating_sub(x)), 1), screen));
            x = x.saturating_add(wide).min(width);
        }
        Self {
            tabs,
            body,
            list: list_area(app, body),
            other: match app.screen {
                Screen::Harness => harness::list(body, !app.beside()),
                _ => Rect::default(),
            },
            status: row(1),
            foot: Rect::new(0, height - foot, width, foot),
        }
    }
}

fn tab_label(screen: Screen, width: u16) -> String {
    let key = match screen {
        Screen::Help => "?".to_owned(),
        other => (other.place() + 1).to_string(),
    };
    let name = screen.name();
    if width >= 78 {
        format!(" {key} {name} ")
    } else {
        let short: String = name.chars().take(4).collect();
        format!(" {key} {short} ")
    }
}

fn list_area(app: &App, body: Rect) -> Rect {
    match app.screen {
        Screen::Overview => overview::list(body),
        Screen::Traffic => traffic::list(app, body),
        Screen::Training => training::list(app, body),
        Screen::Releases => releases::list(app, body),
        Screen::Harness => harness::list(body, app.beside()),
        Screen::Logs => logs::list(body),
        Screen::Help => help::list(body),
    }
}

/// Draws everything.
pub(super) fn draw(frame: &mut Frame<'_>, app: &App) {
    let area = frame.area();
    if area.width < SMALLEST.0 || area.height < SMALLEST.1 {
        let words = format!("make the terminal at least {} x {}; q quits", SMALLEST.0, SMALLEST.1);
        frame.render_widget(Paragraph::new(words), area);
        return;
    }
    let areas = Areas::of(app);
    tabs(frame, app, &areas);
    status(frame, app, areas.status);
    match (&app.page, app.screen) {
        (Some(page), _) => self::page(frame, app, page, areas.body),
        (None, Screen::Help) => help::draw(frame, app, areas.body),
        (None, Screen::Logs) => logs::draw(frame, app, areas.body),
        (None, _) if app.snapshot.is_none() => nothing_yet(frame, app, areas.body),
        (None, Screen::Overview) => overview::draw(frame, app, areas.body),
        (None, Screen::Traffic) => traffic::draw(frame, app, areas.body),
        (None, Screen::Training) => training::draw(frame, app, areas.body),
        (None, Screen::Releases) => releases::draw(frame, app, areas.body),
        (None, Screen::Harness) => harness::draw(frame, app, areas.body),
    }
    foot(frame, app, areas.foot);
    if let Some(question) = &app.question {
        self::question(frame, app, question);
    }
}

fn tabs(frame: &mut Frame<'_>, app: &App, areas: &Areas) {
    if areas.tabs.first().is_some_and(|(area, _)| area.x > 0) {
        frame.render_widget(Line::styled(" reef", app.theme.strong()), Rect::new(0, 0, 5, 1));
    }
    for (area, screen) in &areas.tabs {
        let style = if *screen == app.screen {
            app.theme.selected()
        } else {
            Style::new()
        };
        frame.render_widget(Line::styled(tab_label(*screen, frame.area().width), style), *area);
    }
}

/// One line: where from, which scenario, how it is.
fn status(frame: &mut Frame<'_>, app: &App, area: Rect) {
    let theme = app.theme;
    let right = match (&app.snapshot, app.paused) {
        (_, true) => " paused ".to_owned(),
        (Some(snapshot), false) => {
            let age = app.now_us - snapshot.at_us;
            if age > 5_000_000 {
                format!(" as of {} ago ", text::ago(snapshot.at_us, app.now_us))
            } else {
                format!(" {} UTC ", text::clock(snapshot.at_us))
            }
        }
        (None, false) => String::new(),
    };
    let right = Line::styled(right, theme.faint());
    let columns = u16::try_from(right.width()).unwrap_or(0);
    let mut left = Vec::new();
    let (mark, word, style) = health(app);
    let state = Span::styled(format!(" {mark} {word} "), style);
    if let Some(name) = app.shown_scenario() {
        // However long the name is, how everything is stays in view.
        let room = usize::from(area.width.saturating_sub(columns)).saturating_sub(state.width() + 2);
        let name = text::clean(name);
        let name = list::fit(&name, name.width().min(room.max(8)), false);
        left.push(Span::styled(format!(" {name} "), theme.strong()));
    }
    left.push(state);
    if let Some(snapshot) = &app.snapshot {
        left.push(Span::styled(
            format!(" {}", text::clean(&snapshot.source)),
            theme.faint(),
        ));
    }
    let [l, r] = Layout::horizontal([Constraint::Fill(1), Constraint::Length(columns)]).areas(area);
    frame.render_widget(Line::from(left), l);
    frame.render_widget(right, r);
}

/// A sign, a word and a style for how everything is.
fn health(app: &App) -> (&'static str, String, Style) {
    let theme = app.theme;
    if app.fault.is_some() {
        return ("!", "cannot look".to_owned(), theme.bad());
    }
    let Some(snapshot) = &app.snapshot else {
        return ("…", "looking".to_owned(), theme.faint());
    };
    if snapshot.store.error.is_some() {
        return ("!", "store fails".to_owned(), theme.bad());
    }
    match &snapshot.service {
        None => ("○", "no service".to_owned(), theme.faint()),
        Some(service) if service.live.is_none() => ("!", "no answer".to_owned(), theme.bad()),
        Some(_) if snapshot.scenarios.iter().any(|facts| facts.trouble.is_some()) => {
            ("!", "serving, with trouble".to_owned(), theme.warn())
        }
        Some(_) => ("●", "serving".to_owned(), theme.good()),
    }
}

fn nothing_yet(frame: &mut Frame<'_>, app: &App, area: Rect) {
    let mut lines = vec![Line::default()];
    match &app.fault {
        None => lines.push(Line::styled(" reading …", app.theme.faint())),
        Some(fault) => {
            let width = usize::from(area.width.saturating_sub(4)).max(10);
            for piece in wrap(&text::clean(&fault.message), width) {
                lines.push(Line::styled(format!(" ! {piece}"), app.theme.bad()));
            }
            for piece in fault.hint.iter().flat_map(|hint| wrap(&text::clean(hint), width)) {
                lines.push(Line::raw(format!("   {piece}")));
            }
            lines.push(Line::styled("   it is tried again every second", app.theme.faint()));
        }
    }
    frame.render_widget(Paragraph::new(lines), area);
}

fn foot(frame: &mut Frame<'_>, app: &App, area: Rect) {
    let lines = foot_lines(app, area.width, frame.area().height);
    frame.render_widget(Paragraph::new(lines), area);
}

/// What is said below the screen: as many lines as the words need, of which a third of the screen is the most.
fn foot_lines(app: &App, width: u16, height: u16) -> Vec<Line<'static>> {
    let theme = app.theme;
    let (words, style, after) = if app.typing {
        let words = format!("/{}▏", text::clean(app.filter()));
        (words, theme.strong(), "  Enter keeps it, Esc clears it")
    } else if let Some(message) = &app.message {
        (text::clean(message), theme.warn(), "")
    } else if let (Some(fault), true) = (&app.fault, app.snapshot.is_some()) {
        (format!("! {}", text::clean(&fault.message)), theme.bad(), "")
    } else if !app.filter().is_empty() && app.page.is_none() {
        let words = format!("filter /{}", text::clean(app.filter()));
        (words, theme.strong(), "  Esc clears it")
    } else {
        return vec![Line::styled(format!(" {}", hint(app)), theme.faint())];
    };
    let mut pieces = wrap(&words, usize::from(width.saturating_sub(2)).max(10));
    let most = usize::from(height / 3).max(1);
    if pieces.len() > most {
        pieces.truncate(most);
        if let Some(last) = pieces.last_mut() {
            last.pop();
            last.push('…');
        }
    }
    let mut lines: Vec<Line<'static>> = pieces
        .into_iter()
        .map(|piece| Line::from(Span::styled(format!(" {piece}"), style)))
        .collect();
    if let Some(last) = lines.last_mut() {
        last.push_span(Span::styled(after, theme.faint()));
    }
    lines
}

fn hint(app: &App) -> &'static str {
    match (app.page.is_some(), app.screen) {
        (true, _) => "Esc close  j/k scroll  q quit",
        (false, Screen::Overview) => "Enter look into  [ ] scenario  / filter  ? keys  q quit",
        (false, Screen::Traffic) => "Enter open  y copy id  / filter  g newest  ? keys  q quit",
        (false, Screen::Training) => "Enter evidence  c chart  z one/all  +/- zoom  h/l pan  ? keys",
        (false, Screen::Releases) => "Enter evidence  d diff  P promote  X reject  R roll back  ? keys",
        (false, Screen::Harness) => "Enter open  h/l other list  / filter  [ ] scenario  ? keys",
        (false, Screen::Logs) => "s severity  / filter  Enter open  g newest  ? keys  q quit",
        (false, Screen::Help) => "j/k scroll  1-6 screens  q quit",
    }
}

fn page(frame: &mut Frame<'_>, app: &App, page: &Page, area: Rect) {
    let block = Block::bordered().border_style(app.theme.faint()).title(Line::styled(
        format!(" {} ", text::clean(&page.title)),
        app.theme.strong(),
    ));
    let inner = block.inner(area);
    let lines = page.lines(inner.width.saturating_sub(2), app.theme);
    let (total, height) = (lines.len(), usize::from(inner.height));
    let first = page.scroll.min(total.saturating_sub(height));
    let block = if total > height {
        let shown = format!(" {}-{} of {total} ", first + 1, (first + height).min(total));
        block.title_bottom(Line::styled(shown, app.theme.faint()).alignment(Alignment::Right))
    } else {
        block
    };
    let shown: Vec<Line<'static>> = lines.into_iter().skip(first).take(height).collect();
    let text = Rect::new(inner.x + 1, inner.y, inner.width.saturating_sub(2), inner.height);
    frame.render_widget(block, area);
    frame.render_widget(Paragraph::new(shown), text);
}

fn question(frame: &mut Frame<'_>, app: &App, question: &Question) {
    let (choice, area) = (&question.choice, frame.area());
    let width = area.width.saturating_sub(4).min(72);
    let what = match choice.decision {
        Decision::Promote => "It is served as soon as it is loaded.",
        Decision::Reject => "It stays in the history and is not served.",
        Decision::Rollback => "Its content is served again as a new release; nothing is removed.",
    };
    let room = usize::from(width.saturating_sub(4)).max(10);
    let mut lines: Vec<Line<'_>> = Vec::new();
    for piece in wrap(&format!("scenario {}", text::clean(&choice.scenario)), room)
        .into_iter()
        .chain(wrap(&format!("release {}", text::clean(&choice.release)), room))
        .chain(wrap(what, room))
    {
        lines.push(Line::raw(piece));
    }
    lines.push(Line::default());
    let note = wrap(&format!("why (optional): {}▏", text::clean(&choice.note)), room);
    lines.extend(note.into_iter().map(Line::raw));
    lines.push(Line::default());
    lines.push(if question.sent {
        Line::styled("… under way", app.theme.warn())
    } else {
        Line::styled(
            format!("Enter: {}    Esc: leave it", choice.decision.as_str()),
            app.theme.strong(),
        )
    });
    let height = u16::try_from(lines.len() + 2).unwrap_or(10).min(area.height);
    let place = Rect::new((area.width - width) / 2, (area.height - height) / 2, width, height);
    let block = Block::bordered().border_style(app.theme.warn()).title(Line::styled(
        format!(" {}? ", choice.decision.as_str()),
        app.theme.strong(),
    ));
    let inner = block.inner(place);
    frame.render_widget(Clear, place);
    frame.render_widget(block, place);
    let text = Rect::new(inner.x + 1, inner.y, inner.width.saturating_sub(2), inner.height);
    frame.render_widget(Paragraph::new(lines), text);
}
