//! Text out of tokens: whole characters only, and nothing of a stop text.

/// Turns bytes into text as whole characters become known.
#[derive(Debug, Default)]
pub(crate) struct Utf8Stream {
    partial: Vec<u8>,
}

impl Utf8Stream {
    /// Appends the text that `bytes` complete to `out`. Bytes that can never become a character give U+FFFD.
    pub(crate) fn push(&mut self, bytes: &[u8], out: &mut String) {
        if self.partial.is_empty() {
            let rest = decode(bytes, out);
            self.partial.extend_from_slice(rest);
            return;
        }
        self.partial.extend_from_slice(bytes);
        let whole = std::mem::take(&mut self.partial);
        let rest = decode(&whole, out);
        self.partial = rest.to_vec();
    }

    /// Appends what is left when no more bytes come.
    pub(crate) fn finish(&mut self, out: &mut String) {
        if !self.partial.is_empty() {
            self.partial.clear();
            out.push(char::REPLACEMENT_CHARACTER);
        }
    }
}

/// Decodes what can be decided and gives back the beginning of a character at the end.
fn decode<'a>(mut bytes: &'a [u8], out: &mut String) -> &'a [u8] {
    loop {
        match std::str::from_utf8(bytes) {
            Ok(text) => {
                out.push_str(text);
                return &[];
            }
            Err(error) => {
                let (good, rest) = bytes.split_at(error.valid_up_to());
                // The part up to there was just found valid, so nothing is replaced.
                out.push_str(&String::from_utf8_lossy(good));
                match error.error_len() {
                    None => return rest,
                    Some(length) => {
                        out.push(char::REPLACEMENT_CHARACTER);
                        bytes = &rest[length..];
                    }
                }
            }
        }
    }
}

/// Looks for stop texts across token boundaries and holds back what might begin one.
#[derive(Debug, Default)]
pub(crate) struct StopMatcher {
    stops: Vec<String>,
    held: String,
}

impl StopMatcher {
    pub(crate) fn new(stops: Vec<String>) -> Self {
        Self {
            stops,
            held: String::new(),
        }
    }

    /// Appends to `out` the text that is certainly not part of a stop text. Gives the index of the stop text that
    /// appeared, if one did: the one that begins first, the longest of those.
    pub(crate) fn push(&mut self, text: &str, out: &mut String) -> Option<usize> {
        if self.stops.is_empty() {
            out.push_str(text);
            return None;
        }
        self.held.push_str(text);
        let hit = self
            .stops
            .iter()
            .enumerate()
            .filter_map(|(index, stop)| Some((self.held.find(stop.as_str())?, std::cmp::Reverse(stop.len()), index)))
            .min();
        if let Some((at, _, index)) = hit {
            out.push_str(&self.held[..at]);
            self.held.clear();
            return Some(index);
        }
        let keep = self
            .stops
            .iter()
            .map(|stop| overlap(&self.held, stop))
            .max()
            .unwrap_or(0);
        let certain = self.held.len() - keep;
        out.push_str(&self.held[..certain]);
        self.held.drain(..certain);
        None
    }

    /// Appends what was held back when no more text comes.
    pub(crate) fn finish(&mut self, out: &mut String) {
        out.push_str(&self.held);
        self.held.clear();
    }
}

/// Length of the longest end of `text` that is a proper beginning of `marker`.
pub(super) fn overlap(text: &str, marker: &str) -> usize {
    let most = text.len().min(marker.len().saturating_sub(1));
    (1..=most)
        .rev()
        .find(|length| {
            let at = text.len() - length;
            text.is_char_boundary(at) && marker.as_bytes().starts_with(&text.as_bytes()[at..])
        })
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn run(stops: &[&str], pieces: &[&str]) -> (String, Option<usize>) {
        let mut matcher = StopMatcher::new(stops.iter().map(|s| (*s).to_owned()).collect());
        let mut out = String::new();
        for piece in pieces {
            if let Some(hit) = matcher.push(piece, &mut out) {
                return (out, Some(hit));
            }
        }
        matcher.finish(&mut out);
        (out, None)
    }

    #[test]
    fn a_stop_text_split_over_tokens_is_found_and_left_out() {
        assert_eq!(run(&["END"], &["abcE", "N", "Dxyz"]), ("abc".to_owned(), Some(0)));
        assert_eq!(run(&["END"], &["abcE", "N", "d"]), ("abcENd".to_owned(), None));
        assert_eq!(run(&["\n\n", "\n\n#"], &["a\n", "\n#b"]), ("a".to_owned(), Some(1)));
        assert_eq!(run(&["é!"], &["caf", "é", "!"]), ("caf".to_owned(), Some(0)));
    }

    #[test]
    fn nothing_is_sent_that_could_still_become_a_stop_text() {
        let mut matcher = StopMatcher::new(vec!["</s>".to_owned()]);
        let mut out = String::new();
        matcher.push("hello </", &mut out);
        assert_eq!(out, "hello ");
        matcher.push("b>", &mut out);
        assert_eq!(out, "hello </b>");
    }

    proptest! {
        #[test]
        fn text_in_pieces_of_bytes_is_the_text(text in "\\PC{0,40}", cuts in proptest::collection::vec(1_usize..4, 0..80)) {
            let mut stream = Utf8Stream::default();
            let mut out = String::new();
            let mut rest = text.as_bytes();
            for cut in cuts {
                let (now, later) = rest.split_at(cut.min(rest.len()));
                stream.push(now, &mut out);
                prop_assert!(text.starts_with(&out));
                rest = later;
            }
            stream.push(rest, &mut out);
            stream.finish(&mut out);
            prop_assert_eq!(out, text);
        }

        #[test]
        fn any_bytes_decode_as_lossily_as_in_one_piece(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            let mut stream = Utf8Stream::default();
            let mut out = String::new();
            for byte in &bytes {
                stream.push(std::slice::from_ref(byte), &mut out);
            }
            stream.finish(&mut out);
            prop_assert_eq!(out, String::from_utf8_lossy(&bytes).into_owned());
        }

        #[test]
        fn the_first_stop_ends_the_text_however_it_is_cut(
            text in "[ab.]{0,30}", stop in "[ab]{1,4}", size in 1_usize..5
        ) {
            let pieces: Vec<&str> = text.as_bytes().chunks(size).map(|c| std::str::from_utf8(c).unwrap()).collect();
            let (out, hit) = run(&[&stop], &pieces);
            match text.find(&stop) {
                Some(at) => prop_assert_eq!((out.as_str(), hit), (&text[..at], Some(0))),
                None => prop_assert_eq!((out.as_str(), hit), (text.as_str(), None)),
            }
        }
    }
}
