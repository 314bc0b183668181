//! Tables for people: columns two spaces apart, no frame, so that `awk` can read them too.

use std::borrow::Cow;

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use crate::sys::terminal;

/// A cell of text is never made narrower than this.
const NARROWEST: usize = 12;

/// A table under construction.
#[derive(Debug)]
pub(crate) struct Table {
    head: Vec<&'static str>,
    right: Vec<bool>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these column heads. A head that starts with `>` aligns its column to the right.
    pub(crate) fn new(head: &[&'static str]) -> Self {
        Self {
            head: head.iter().map(|name| name.trim_start_matches('>')).collect(),
            right: head.iter().map(|name| name.starts_with('>')).collect(),
            rows: Vec::new(),
        }
    }

    /// Adds a row; missing cells stay empty, control characters are made visible.
    pub(crate) fn row<I: IntoIterator<Item = S>, S: Into<String>>(&mut self, cells: I) {
        let mut row: Vec<String> = cells.into_iter().map(|cell| printable(cell.into())).collect();
        row.resize(self.head.len(), String::new());
        self.rows.push(row);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The table as text, one line for the head and one for each row. Where it is wider than the terminal, long cells
    /// go on in further lines; where that does not help, each row becomes a block of lines.
    pub(crate) fn render(&self, color: bool) -> String {
        self.fitted(color, terminal::columns())
    }

    fn fitted(&self, color: bool, columns: Option<usize>) -> String {
        let mut widths: Vec<usize> = self.head.iter().map(|name| name.width()).collect();
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.width());
            }
        }
        if let Some(columns) = columns
            && !self.narrow(&mut widths, columns)
        {
            return self.blocks(color, columns);
        }
        let mut text = String::new();
        let head: Vec<String> = self.head.iter().map(|name| name.to_uppercase()).collect();
        if color {
            text.push_str("\u{1b}[1m");
        }
        self.push_line(&mut text, &head, &widths);
        if color {
            text.push_str("\u{1b}[0m");
        }
        text.push('\n');
        for row in &self.rows {
            let mut cells: Vec<_> = row
                .iter()
                .zip(&widths)
                .map(|(cell, width)| folded(cell, *width))
                .collect();
            let lines = cells.iter().map(Vec::len).max().unwrap_or(1).max(1);
            for at in 0..lines {
                let line: Vec<String> = cells
                    .iter_mut()
                    .map(|cell| cell.get_mut(at).map(std::mem::take).unwrap_or_default())
                    .collect();
                self.push_line(&mut text, &line, &widths);
                text.push('\n');
            }
        }
        text
    }

    /// Takes from the widest cells of text until the table fits; whether it does.
    fn narrow(&self, widths: &mut [usize], columns: usize) -> bool {
        let gaps = 2 * widths.len().saturating_sub(1);
        while widths.iter().sum::<usize>() + gaps > columns {
            let over = widths.iter().sum::<usize>() + gaps - columns;
            let widest = (0..widths.len())
                .filter(|at| !self.right[*at] && widths[*at] > self.head[*at].width().max(NARROWEST))
                .max_by_key(|at| widths[*at]);
            let Some(widest) = widest else { return false };
            let least = self.head[widest].width().max(NARROWEST);
            widths[widest] = widths[widest].saturating_sub(over).max(least);
        }
        true
    }

    /// Each row as a block of lines, a head and its cell on each.
    fn blocks(&self, color: bool, columns: usize) -> String {
        let label = self.head.iter().map(|name| name.width()).max().unwrap_or(0);
        let room = columns.saturating_sub(label + 2).max(8);
        let mut text = String::new();
        for (number, row) in self.rows.iter().enumerate() {
            if number > 0 {
                text.push('\n');
            }
            for (name, cell) in self.head.iter().zip(row).filter(|(_, cell)| !cell.is_empty()) {
                for (at, part) in folded(cell, room).iter().enumerate() {
                    let name = if at == 0 { name.to_uppercase() } else { String::new() };
                    let pad = " ".repeat(label - name.width().min(label) + 2);
                    let (bold, plain) = if color { ("\u{1b}[1m", "\u{1b}[0m") } else { ("", "") };
                    text.push_str(format!("{bold}{name}{plain}{pad}{part}").trim_end());
                    text.push('\n');
                }
            }
        }
        text
    }

    fn push_line(&self, text: &mut String, cells: &[String], widths: &[usize]) {
        let mut line = String::new();
        for (at, cell) in cells.iter().enumerate() {
            let pad = " ".repeat(widths[at].saturating_sub(cell.width()));
            if at > 0 {
                line.push_str("  ");
            }
            if self.right[at] {
                line.push_str(&pad);
                line.push_str(cell);
            } else {
                line.push_str(cell);
                line.push_str(&pad);
            }
        }
        text.push_str(line.trim_end());
    }
}

/// A cell in lines of at most this width, broken at spaces where that is possible.
fn folded(cell: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in cell.split(' ') {
        let mut rest = word;
        let last = lines.last().map_or(0, |line| line.width());
        if last > 0 {
            if last + 1 + word.width() <= width {
                if let Some(line) = lines.last_mut() {
                    line.push(' ');
                }
            } else {
                lines.push(String::new());
            }
        }
        while !rest.is_empty() {
            let taken = lines.last().map_or(0, |line| line.width());
            let fitting = fitting(rest, width.saturating_sub(taken));
            let (part, after) = rest.split_at(fitting);
            if let Some(line) = lines.last_mut() {
                line.push_str(part);
            }
            rest = after;
            if !rest.is_empty() {
                lines.push(String::new());
            }
        }
    }
    lines
}

/// How many bytes of a text fit into a width; at least one character, so that folding ends.
fn fitting(text: &str, width: usize) -> usize {
    let mut used = 0;
    for (at, character) in text.char_indices() {
        used += character.width().unwrap_or(0);
        if used > width && at > 0 {
            return at;
        }
    }
    text.len()
}

/// Text from outside on one line, where nothing in it acts.
pub(crate) fn printable(text: String) -> String {
    match terminal::line(&text) {
        Cow::Borrowed(_) => text,
        Cow::Owned(inert) => inert,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_align_and_control_characters_do_not_act() {
        let mut table = Table::new(&["name", ">rows"]);
        table.row(["math", "7"]);
        table.row(["a\u{1b}[31m", "1200"]);
        assert_eq!(
            table.fitted(false, None),
            "NAME         ROWS\nmath            7\na\\u{1b}[31m  1200\n"
        );
    }

    fn sample() -> Table {
        let mut table = Table::new(&["release", "kind", ">bytes", "note"]);
        table.row([
            "0123456789ab",
            "training",
            "1200",
            "trained by the nightly job of the team",
        ]);
        table.row(["ba9876543210", "rollback", "7", ""]);
        table
    }

    #[test]
    fn a_table_fits_its_terminal() {
        let widest = |text: &str| text.lines().map(|line| line.width()).max().unwrap();
        let whole = sample().fitted(false, None);
        assert_eq!((widest(&whole), whole.lines().count()), (69, 3));
        assert_eq!(sample().fitted(false, Some(69)), whole);
        for columns in [60, 40, 30, 22] {
            let text = sample().fitted(false, Some(columns));
            assert!(widest(&text) <= columns, "{columns}:\n{text}");
            let words: Vec<&str> = text.split_whitespace().collect();
            for word in ["0123456789ab", "rollback", "1200", "nightly", "team"] {
                assert!(words.contains(&word), "{columns}: {word}\n{text}");
            }
        }
        assert_eq!(
            sample().fitted(false, Some(40)),
            "RELEASE  0123456789ab\nKIND     training\nBYTES    1200\nNOTE     trained by the nightly job of\n         the team\n\n\
             RELEASE  ba9876543210\nKIND     rollback\nBYTES    7\n"
        );
    }

    #[test]
    fn a_word_without_spaces_is_broken_and_wide_characters_count_double() {
        assert_eq!(folded("abcdefgh", 3), ["abc", "def", "gh"]);
        assert_eq!(folded("漢字漢字", 5), ["漢字", "漢字"]);
        assert_eq!(folded("a b  c", 3), ["a b", "c"]);
        assert_eq!(folded("", 3), [""]);
        assert_eq!(folded("漢", 1), ["漢"]);
    }
}
