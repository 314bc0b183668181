//! Colours that tell apart for every kind of sight (blue against orange, never red against green), and never alone:
//! each comes with a mark or a word.

use ratatui::style::{Color, Modifier, Style};

/// The background the colours are chosen for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Theme {
    /// Light text on dark.
    #[default]
    Dark,
    /// Dark text on light.
    Light,
    /// No colours.
    Plain,
}

impl Theme {
    pub(super) fn next(self) -> Self {
        match self {
            Self::Dark => Self::Light,
            Self::Light => Self::Plain,
            Self::Plain => Self::Dark,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Dark => "dark",
            Self::Light => "light",
            Self::Plain => "no colours",
        }
    }

    fn color(self, dark: u8, light: u8) -> Style {
        match self {
            Self::Dark => Style::new().fg(Color::Indexed(dark)),
            Self::Light => Style::new().fg(Color::Indexed(light)),
            Self::Plain => Style::new(),
        }
    }

    /// Went well.
    pub(super) fn good(self) -> Style {
        self.color(75, 25)
    }

    /// Went wrong.
    pub(super) fn bad(self) -> Style {
        self.color(209, 166).add_modifier(Modifier::BOLD)
    }

    /// Wants attention.
    pub(super) fn warn(self) -> Style {
        self.color(221, 130)
    }

    /// A line in a chart, a bar.
    pub(super) fn line(self) -> Style {
        self.color(117, 31)
    }

    /// A second line.
    pub(super) fn second(self) -> Style {
        self.color(215, 130)
    }

    /// Words that matter less.
    pub(super) fn faint(self) -> Style {
        match self {
            Self::Plain => Style::new().add_modifier(Modifier::DIM),
            _ => self.color(245, 242),
        }
    }

    /// Words that matter more.
    pub(super) fn strong(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    /// The selected line or tab.
    pub(super) fn selected(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }
}
