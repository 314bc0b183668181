//! What each token stands for: its bytes, and whether it is text, a mark that parsers need, or control.

use std::collections::HashMap;
use std::sync::Arc;

use crate::engine::chat::{OutputStyle, Utf8Stream};
use crate::engine::models::ModelError;
use crate::engine::torch::model::{TextStream, Tokenizer};

/// The tokens of a model.
#[derive(Debug)]
pub(crate) struct Vocabulary {
    tokenizer: Arc<Tokenizer>,
    /// All bytes one after the other.
    bytes: Vec<u8>,
    /// Where each token's bytes end.
    ends: Vec<u32>,
    control: Vec<bool>,
    /// Whether a text is the bytes of its tokens in a row.
    byte_level: bool,
    /// Special tokens whose text is shown all the same.
    marks: HashMap<u32, &'static str>,
    ends_of_sequence: Vec<u32>,
}

impl Vocabulary {
    /// `size` is the width of the model's logits; ids beyond the tokenizer's stand for nothing.
    pub(crate) fn new(tokenizer: Arc<Tokenizer>, size: usize) -> Self {
        let alphabet = byte_alphabet();
        let texts: Vec<Option<String>> = (0..size)
            .map(|id| tokenizer.token(u32::try_from(id).unwrap_or(u32::MAX)))
            .collect();
        let byte_level = !texts.iter().flatten().any(|text| text.starts_with('\u{2581}'));
        let mut bytes = Vec::new();
        let mut ends = Vec::with_capacity(size);
        let mut control = Vec::with_capacity(size);
        for (id, text) in (0_u32..).zip(&texts) {
            if let Some(text) = text {
                push_bytes(text, byte_level.then_some(&alphabet), &mut bytes);
            }
            ends.push(u32::try_from(bytes.len()).unwrap_or(u32::MAX));
            control.push(text.is_none() || tokenizer.is_special(id));
        }
        let marks = OutputStyle::marks()
            .iter()
            .filter_map(|mark| Some((tokenizer.token_id(mark)?, *mark)))
            .filter(|(id, _)| tokenizer.is_special(*id))
            .collect();
        let ends_of_sequence = tokenizer.generation().eos_token_ids.clone();
        Self {
            tokenizer,
            bytes,
            ends,
            control,
            byte_level,
            marks,
            ends_of_sequence,
        }
    }

    pub(crate) fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Starts decoding an answer.
    pub(crate) fn decode(&self) -> Decoding {
        if self.byte_level {
            Decoding::Bytes(Utf8Stream::default())
        } else {
            Decoding::Tokens(self.tokenizer.stream(true))
        }
    }

    /// Width of the logits.
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    /// The bytes a token stands for; those of its name if it is special.
    pub(crate) fn bytes(&self, id: u32) -> &[u8] {
        let at = id as usize;
        let start = at
            .checked_sub(1)
            .and_then(|before| self.ends.get(before))
            .copied()
            .unwrap_or(0);
        let end = self.ends.get(at).copied().unwrap_or(start);
        self.bytes.get(start as usize..end as usize).unwrap_or(&[])
    }

    /// Whether a token is control: special, or none the tokenizer knows.
    pub(crate) fn is_control(&self, id: u32) -> bool {
        self.control.get(id as usize).copied().unwrap_or(true)
    }

    /// The text of a special token that is shown all the same.
    pub(crate) fn mark(&self, id: u32) -> Option<&'static str> {
        self.marks.get(&id).copied()
    }

    /// The tokens that end an answer.
    pub(crate) fn ends_of_sequence(&self) -> &[u32] {
        &self.ends_of_sequence
    }

    /// Whether a token ends an answer.
    pub(crate) fn ends(&self, id: u32) -> bool {
        self.ends_of_sequence.contains(&id)
    }
}

/// The text of an answer as its tokens come, in whole characters. Special tokens are not shown, marks excepted.
pub(crate) enum Decoding {
    Bytes(Utf8Stream),
    Tokens(TextStream),
}

impl Decoding {
    /// Appends the text that a token makes certain.
    pub(crate) fn push(&mut self, token: u32, vocabulary: &Vocabulary, out: &mut String) -> Result<(), ModelError> {
        if let Some(mark) = vocabulary.mark(token) {
            self.finish(vocabulary, out)?;
            out.push_str(mark);
        } else if !vocabulary.is_control(token) {
            match self {
                Self::Bytes(stream) => stream.push(vocabulary.bytes(token), out),
                Self::Tokens(stream) => out.push_str(&stream.push(&vocabulary.tokenizer, token)?),
            }
        }
        Ok(())
    }

    /// Appends what is left when no more tokens come.
    pub(crate) fn finish(&mut self, vocabulary: &Vocabulary, out: &mut String) -> Result<(), ModelError> {
        match self {
            Self::Bytes(stream) => stream.finish(out),
            Self::Tokens(stream) => out.push_str(&stream.finish(&vocabulary.tokenizer)?),
        }
        Ok(())
    }
}

/// The bytes of a token as a vocabulary writes it: byte-level names by `alphabet`; otherwise `▁` for a space and
/// `<0x0A>` for a byte.
fn push_bytes(text: &str, alphabet: Option<&HashMap<char, u8>>, out: &mut Vec<u8>) {
    if let Some(alphabet) = alphabet {
        let start = out.len();
        for c in text.chars() {
            if let Some(byte) = alphabet.get(&c) {
                out.push(*byte);
            } else {
                // Added tokens are written as they are.
                out.truncate(start);
                out.extend_from_slice(text.as_bytes());
                return;
            }
        }
        return;
    }
    let byte = text
        .strip_prefix("<0x")
        .and_then(|rest| rest.strip_suffix('>'))
        .filter(|digits| digits.len() == 2)
        .and_then(|digits| u8::from_str_radix(digits, 16).ok());
    match byte {
        Some(byte) => out.push(byte),
        None => out.extend_from_slice(text.replace('\u{2581}', " ").as_bytes()),
    }
}

/// GPT-2's one character per byte: printable Latin-1 stands for itself, the rest follows from U+0100 on.
fn byte_alphabet() -> HashMap<char, u8> {
    let printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let mut next = 0x100_u32;
    (0..=u8::MAX)
        .map(|byte| {
            let code = if printable(byte) {
                u32::from(byte)
            } else {
                next += 1;
                next - 1
            };
            (char::from_u32(code).unwrap_or('\0'), byte)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes_of(text: &str, byte_level: bool) -> Vec<u8> {
        let alphabet = byte_alphabet();
        let mut out = Vec::new();
        push_bytes(text, byte_level.then_some(&alphabet), &mut out);
        out
    }

    #[test]
    fn names_of_both_kinds_of_vocabulary_become_bytes() {
        assert_eq!(byte_alphabet().len(), 256);
        assert_eq!(bytes_of("Ġthe", true), b" the");
        assert_eq!(bytes_of("ĊĊ", true), b"\n\n");
        assert_eq!(bytes_of("Ã©", true), "é".as_bytes());
        assert_eq!(bytes_of("<|im end|>", true), b"<|im end|>");
        assert_eq!(bytes_of("▁the", false), b" the");
        assert_eq!(bytes_of("<0x0A>", false), b"\n");
        assert_eq!(bytes_of("<0xZZ>", false), b"<0xZZ>");
    }
}
