//! Tables for people: columns two spaces apart, no frame, so that `awk` can read them too.

use std::borrow::Cow;

use unicode_width::UnicodeWidthStr;

use crate::sys::terminal;

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

    /// The table as text, one line for the head and one for each row.
    pub(crate) fn render(&self, color: bool) -> String {
        let mut widths: Vec<usize> = self.head.iter().map(|name| name.width()).collect();
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.width());
            }
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
            self.push_line(&mut text, row, &widths);
            text.push('\n');
        }
        text
    }

    fn push_line(&self, text: &mut String, cells: &[String], widths: &[usize]) {
        let mut line = String::new();
        for (at, cell) in cells.iter().enumerate() {
            let pad = " ".repeat(widths[at] - cell.width());
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
            table.render(false),
            "NAME         ROWS\nmath            7\na\\u{1b}[31m  1200\n"
        );
    }
}
