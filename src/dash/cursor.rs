//! A place in a list that changes while one looks at it.

/// The selected line, remembered by what it is, not by where it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Cursor {
    index: usize,
    key: Option<String>,
}

impl Cursor {
    /// Where it is.
    pub(super) fn index(&self) -> usize {
        self.index
    }

    /// Finds its line again after the list changed. At the top it stays at the top, where news come.
    pub(super) fn settle(&mut self, keys: &[String]) {
        if let Some(key) = self.key.clone().filter(|_| self.index > 0)
            && let Some(at) = keys.iter().position(|other| *other == key)
        {
            self.index = at;
        }
        self.put(self.index, keys);
    }

    /// Moves by so many lines.
    pub(super) fn by(&mut self, lines: isize, keys: &[String]) {
        self.put(self.index.saturating_add_signed(lines), keys);
    }

    /// Moves to a line, or to the last one.
    pub(super) fn put(&mut self, index: usize, keys: &[String]) {
        self.index = index.min(keys.len().saturating_sub(1));
        self.key = keys.get(self.index).cloned();
    }
}

/// The first line shown, so that the selected one is in view.
pub(super) fn first_shown(len: usize, selected: usize, height: usize) -> usize {
    selected.saturating_sub(height / 2).min(len.saturating_sub(height))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn news_above_do_not_move_the_selection_to_another_line() {
        let mut cursor = Cursor::default();
        cursor.by(1, &keys("c b a"));
        cursor.settle(&keys("e d c b a"));
        assert_eq!(cursor.index(), 3);
        cursor.settle(&keys("x y"));
        assert_eq!(cursor.index(), 1);
        cursor.put(0, &keys("x y"));
        cursor.settle(&keys("z x y"));
        assert_eq!(cursor.index(), 0);
        cursor.settle(&[]);
        assert_eq!(cursor.index(), 0);
    }

    #[test]
    fn the_selected_line_is_always_shown() {
        for (len, height) in [(0, 5), (3, 5), (100, 7), (8, 1)] {
            for selected in 0..len {
                let first = first_shown(len, selected, height);
                assert!(
                    (first..first + height).contains(&selected),
                    "{selected} of {len} in {height}"
                );
            }
        }
    }
}
