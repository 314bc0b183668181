//! Tool calls from pieces, in the shapes providers really send them.

use serde_json::Value;

use super::json::text;
use crate::domain::ToolCall;

/// Calls being assembled, in the order they were opened.
#[derive(Debug, Default)]
pub(super) struct ToolCalls {
    open: Vec<OpenCall>,
}

#[derive(Debug, Default)]
struct OpenCall {
    index: Option<u64>,
    id: String,
    name: String,
    arguments: String,
    /// Where each piece of the arguments that equals the piece before it begins and ends.
    repeats: Vec<(usize, usize)>,
    last_piece: usize,
}

/// One piece of one call.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Piece<'a> {
    /// The provider's position of the call, if given.
    pub(super) index: Option<u64>,
    /// The call's id, or empty.
    pub(super) id: &'a str,
    /// The tool's name, or empty.
    pub(super) name: &'a str,
    /// The next part of the arguments.
    pub(super) arguments: &'a str,
}

impl ToolCalls {
    /// Takes a piece; the call it belongs to is found by index and id, then by being the last.
    pub(super) fn push(&mut self, piece: Piece<'_>) {
        let at = self.find(&piece).unwrap_or_else(|| {
            self.open.push(OpenCall {
                index: piece.index,
                ..OpenCall::default()
            });
            self.open.len() - 1
        });
        let call = &mut self.open[at];
        if call.id.is_empty() {
            piece.id.clone_into(&mut call.id);
        }
        if call.name != piece.name {
            call.name.push_str(piece.name);
        }
        if !piece.arguments.is_empty() {
            let start = call.arguments.len();
            if start > 0 && &call.arguments[call.last_piece..] == piece.arguments {
                call.repeats.push((start, start + piece.arguments.len()));
            }
            call.arguments.push_str(piece.arguments);
            call.last_piece = start;
        }
    }

    fn find(&self, piece: &Piece<'_>) -> Option<usize> {
        if !piece.id.is_empty() {
            // A second id under a used index is another call: some providers number every call 0.
            return self.open.iter().position(|call| call.id == piece.id).or_else(|| {
                self.open
                    .iter()
                    .rposition(|call| call.id.is_empty() && call.index == piece.index)
            });
        }
        let at = match piece.index {
            Some(_) => self.open.iter().rposition(|call| call.index == piece.index)?,
            None => self.open.len().checked_sub(1)?,
        };
        // Without ids, a name after finished arguments opens another call.
        let call = &self.open[at];
        let another = !piece.name.is_empty() && call.id.is_empty() && !call.name.is_empty() && is_json(&call.arguments);
        (!another).then_some(at)
    }

    /// Sets the whole arguments of the call at `index` if no piece has given any, or if they differ.
    pub(super) fn complete(&mut self, index: u64, arguments: &str) {
        if let Some(call) = self.open.iter_mut().find(|call| call.index == Some(index)) {
            if call.arguments != arguments {
                arguments.clone_into(&mut call.arguments);
            }
            call.repeats.clear();
        }
    }

    /// Whether the call at `index` has received arguments.
    pub(super) fn has_arguments(&self, index: u64) -> bool {
        self.open
            .iter()
            .any(|call| call.index == Some(index) && !call.arguments.is_empty())
    }

    /// Closes every call. Pieces sent twice are taken once and noted, if the arguments are JSON only that way.
    pub(super) fn finish(self, notes: &mut Vec<String>) -> Vec<ToolCall> {
        self.open.into_iter().map(|call| call.finish(notes)).collect()
    }

    /// Bytes held.
    pub(super) fn len(&self) -> usize {
        self.open
            .iter()
            .map(|call| call.id.len() + call.name.len() + call.arguments.len() + 64)
            .sum()
    }
}

impl OpenCall {
    fn finish(self, notes: &mut Vec<String>) -> ToolCall {
        let arguments = if is_json(&self.arguments) {
            self.arguments
        } else if let Some(once) = self.without_repeats() {
            notes.push(format!(
                "tool call {}: a repeated argument piece was taken once",
                self.id
            ));
            once
        } else {
            if !self.arguments.is_empty() {
                notes.push(format!("tool call {}: the arguments are not JSON", self.id));
            }
            self.arguments
        };
        ToolCall {
            id: self.id,
            name: self.name,
            arguments,
        }
    }

    fn without_repeats(&self) -> Option<String> {
        let half = self.arguments.len() / 2;
        if self.arguments.len().is_multiple_of(2)
            && self.arguments.is_char_boundary(half)
            && self.arguments[..half] == self.arguments[half..]
            && is_json(&self.arguments[..half])
        {
            return Some(self.arguments[..half].to_owned());
        }
        let cut = |ranges: &[(usize, usize)]| {
            let mut kept = self.arguments.clone();
            for &(start, end) in ranges.iter().rev() {
                kept.replace_range(start..end, "");
            }
            is_json(&kept).then_some(kept)
        };
        self.repeats
            .iter()
            .take(64)
            .find_map(|&range| cut(&[range]))
            .or_else(|| cut(&self.repeats))
    }
}

fn is_json(text: &str) -> bool {
    serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok()
}

/// Arguments as text: as sent if a string, serialised if a provider sends them parsed.
pub(super) fn arguments_text(value: Option<&Value>) -> String {
    match value {
        Some(Value::String(text)) => text.clone(),
        None | Some(Value::Null) => String::new(),
        Some(other) => other.to_string(),
    }
}

/// The piece in one OpenAI chat `tool_calls` entry, with its arguments.
pub(super) fn chat_piece(entry: &Value) -> (Option<u64>, &str, &str, String) {
    let function = entry.get("function").unwrap_or(&Value::Null);
    (
        super::json::count(entry, "index"),
        text(entry, "id").unwrap_or(""),
        text(function, "name").unwrap_or(""),
        arguments_text(function.get("arguments")),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    type Sent<'a> = (Option<u64>, &'a str, &'a str, &'a str);

    fn calls(pieces: &[Sent<'_>]) -> (Vec<ToolCall>, Vec<String>) {
        let mut calls = ToolCalls::default();
        for &(index, id, name, arguments) in pieces {
            calls.push(Piece {
                index,
                id,
                name,
                arguments,
            });
        }
        let mut notes = Vec::new();
        (calls.finish(&mut notes), notes)
    }

    #[test]
    fn legal_shapes_give_the_same_call() {
        let expected = ToolCall {
            id: "c1".to_owned(),
            name: "get".to_owned(),
            arguments: r#"{"a":1}"#.to_owned(),
        };
        let shapes: [&[Sent<'_>]; 6] = [
            &[
                (Some(0), "c1", "get", ""),
                (Some(0), "", "", r#"{"a""#),
                (Some(0), "", "", ":1}"),
            ],
            &[(Some(0), "c1", "get", r#"{"a":1}"#)],
            &[(None, "c1", "get", r#"{"a":1}"#)],
            &[(Some(0), "", "", r#"{"a":1}"#), (Some(0), "c1", "get", "")],
            &[
                (Some(0), "c1", "get", r#"{"a""#),
                (Some(0), "c1", "get", ":1}"),
                (Some(0), "", "", ""),
            ],
            &[
                (None, "c1", "get", ""),
                (None, "", "", r#"{"a""#),
                (None, "", "", ":1}"),
            ],
        ];
        for shape in shapes {
            let (found, notes) = calls(shape);
            assert_eq!(found, std::slice::from_ref(&expected), "{shape:?}");
            assert!(notes.is_empty(), "{notes:?}");
        }
    }

    #[test]
    fn a_repeated_piece_is_taken_once_and_noted() {
        for shape in [
            &[
                (Some(0), "c1", "get", r#"{"a":"#),
                (Some(0), "", "", r#"{"a":"#),
                (Some(0), "", "", "1}"),
            ][..],
            &[(Some(0), "c1", "get", r#"{"a":1}"#), (Some(0), "", "", r#"{"a":1}"#)][..],
        ] {
            let (found, notes) = calls(shape);
            assert_eq!(found[0].arguments, r#"{"a":1}"#);
            assert_eq!(notes.len(), 1);
        }
    }

    #[test]
    fn equal_pieces_that_are_meant_stay() {
        let (found, notes) = calls(&[
            (Some(0), "c1", "get", "[1"),
            (Some(0), "", "", "1"),
            (Some(0), "", "", "1]"),
        ]);
        assert_eq!(found[0].arguments, "[111]");
        assert!(notes.is_empty());
    }

    #[test]
    fn parallel_calls_stay_apart() {
        let interleaved = calls(&[
            (Some(0), "a", "f", ""),
            (Some(1), "b", "g", ""),
            (Some(0), "", "", "{}"),
            (Some(1), "", "", "[]"),
        ])
        .0;
        assert_eq!(
            (interleaved[0].arguments.as_str(), interleaved[1].arguments.as_str()),
            ("{}", "[]")
        );
        let same_index = calls(&[(Some(0), "a", "f", "{}"), (Some(0), "b", "g", "[]")]).0;
        assert_eq!(same_index.len(), 2);
        let no_index = calls(&[(None, "a", "f", "{}"), (None, "b", "g", "[]")]).0;
        assert_eq!(no_index.len(), 2);
        assert_eq!(no_index[1].name, "g");
    }
}
