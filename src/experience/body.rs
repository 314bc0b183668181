//! How bodies lie in the file: one tag byte, then raw bytes or a zstd frame. Encoding happens on the caller's side, so
//! that the writer thread only moves bytes.

use std::cell::RefCell;

use bytes::Bytes;
use zstd::bulk::Compressor;

use super::error::StoreError;
use crate::domain::{LoadSpan, Sampler, TokenCapture, TopKToken, Turn};

/// Below this, a frame saves less than it costs.
const COMPRESS_FROM: usize = 512;
const LEVEL: i32 = 1;

const RAW: u8 = 0;
const ZSTD: u8 = 1;

/// The bodies of one record, as given.
#[derive(Debug, Clone, PartialEq)]
pub struct Bodies {
    /// The request as the engine received it; for a report or an instruction, its JSON.
    pub request: Bytes,
    /// The response as the client received it.
    pub response: Option<Bytes>,
    /// The turn assembled from the response.
    pub turn: Option<Turn>,
    /// The tokens, from an engine that captured them.
    pub capture: Option<TokenCapture>,
}

/// The bodies of one record, as stored.
#[derive(Debug, Clone, Default)]
pub(super) struct EncodedBodies {
    pub request: Vec<u8>,
    pub response: Option<Vec<u8>>,
    pub turn: Option<Vec<u8>>,
    pub capture: Option<Vec<u8>>,
}

impl EncodedBodies {
    pub(super) fn stored_bytes(&self) -> usize {
        let optional = |part: &Option<Vec<u8>>| part.as_ref().map_or(0, Vec::len);
        self.request.len() + optional(&self.response) + optional(&self.turn) + optional(&self.capture)
    }

    pub(super) fn decode(&self) -> Result<Bodies, StoreError> {
        Ok(Bodies {
            request: decode(&self.request)?.into(),
            response: self.response.as_deref().map(decode).transpose()?.map(Bytes::from),
            turn: self
                .turn
                .as_deref()
                .map(|bytes| serde_json::from_slice(&decode(bytes)?).map_err(StoreError::damaged))
                .transpose()?,
            capture: self
                .capture
                .as_deref()
                .map(|bytes| read_capture(&decode(bytes)?))
                .transpose()?,
        })
    }
}

thread_local! {
    // A compression context is large and slow to make.
    static COMPRESSOR: RefCell<Option<Compressor<'static>>> = const { RefCell::new(None) };
}

pub(super) fn encode(bytes: &[u8]) -> Vec<u8> {
    if let (true, Ok(length)) = (bytes.len() >= COMPRESS_FROM, u32::try_from(bytes.len())) {
        let frame = COMPRESSOR.with_borrow_mut(|slot| {
            if slot.is_none() {
                *slot = Compressor::new(LEVEL).ok();
            }
            let mut out = vec![0; 5 + zstd::zstd_safe::compress_bound(bytes.len())];
            let written = slot.as_mut()?.compress_to_buffer(bytes, &mut out[5..]).ok()?;
            out.truncate(5 + written);
            // Give back the slack: the queue holds these bytes until they are committed.
            out.shrink_to_fit();
            out[0] = ZSTD;
            out[1..5].copy_from_slice(&length.to_le_bytes());
            Some(out)
        });
        if let Some(frame) = frame.filter(|frame| frame.len() < bytes.len()) {
            return frame;
        }
    }
    let mut out = Vec::with_capacity(1 + bytes.len());
    out.push(RAW);
    out.extend_from_slice(bytes);
    out
}

pub(super) fn decode(stored: &[u8]) -> Result<Vec<u8>, StoreError> {
    match stored {
        [RAW, raw @ ..] => Ok(raw.to_vec()),
        [ZSTD, a, b, c, d, frame @ ..] => {
            let length = u32::from_le_bytes([*a, *b, *c, *d]) as usize;
            let bytes = zstd::bulk::decompress(frame, length).map_err(StoreError::damaged)?;
            if bytes.len() == length {
                Ok(bytes)
            } else {
                Err(StoreError::damaged("a body is shorter than it was"))
            }
        }
        _ => Err(StoreError::damaged("a body of unknown encoding")),
    }
}

/// Tokens as little-endian words: exact, also for a log-probability that is infinite, and half the size of JSON.
///
/// Version byte; counts of prompt ids, ids, log-probabilities, spans, top-k rows (plus one; 0 means none); then each
/// list; temperature; finish reason. Version 2 adds the sampler. A capture without one is written as version 1, so that an
/// old record sent again has the bytes it had.
pub(super) fn write_capture(capture: &TokenCapture) -> Vec<u8> {
    let words = capture.prompt_token_ids.len() + capture.token_ids.len() + capture.logprobs.len();
    let mut out = Vec::with_capacity(64 + 4 * words);
    out.push(if capture.sampler.is_some() { 2 } else { 1 });
    write_ids(&mut out, &capture.prompt_token_ids);
    write_ids(&mut out, &capture.token_ids);
    write_count(&mut out, capture.logprobs.len());
    for value in &capture.logprobs {
        out.extend_from_slice(&value.to_bits().to_le_bytes());
    }
    write_count(&mut out, capture.spans.len());
    for span in &capture.spans {
        write_count(&mut out, span.start);
        write_count(&mut out, span.end);
        write_text(&mut out, &span.runtime_load_id.to_string());
    }
    match &capture.top_k {
        None => out.push(0),
        Some(rows) => {
            out.push(1);
            write_count(&mut out, rows.len());
            for row in rows {
                write_count(&mut out, row.len());
                for token in row {
                    out.extend_from_slice(&token.id.to_le_bytes());
                    out.extend_from_slice(&token.logprob.to_bits().to_le_bytes());
                }
            }
        }
    }
    out.extend_from_slice(&capture.temperature.to_bits().to_le_bytes());
    write_text(&mut out, &capture.finish_reason);
    if let Some(sampler) = &capture.sampler {
        for value in [
            sampler.temperature,
            sampler.top_p,
            sampler.min_p,
            sampler.repetition_penalty,
            sampler.presence_penalty,
            sampler.frequency_penalty,
        ] {
            out.extend_from_slice(&value.to_bits().to_le_bytes());
        }
        for value in [sampler.top_k, sampler.biased_tokens, u32::from(sampler.constrained)] {
            out.extend_from_slice(&value.to_le_bytes());
        }
    }
    out
}

fn write_count(out: &mut Vec<u8>, count: usize) {
    out.extend_from_slice(&(count as u64).to_le_bytes());
}

fn write_ids(out: &mut Vec<u8>, ids: &[u32]) {
    write_count(out, ids.len());
    for id in ids {
        out.extend_from_slice(&id.to_le_bytes());
    }
}

fn write_text(out: &mut Vec<u8>, text: &str) {
    write_count(out, text.len());
    out.extend_from_slice(text.as_bytes());
}

pub(super) fn read_capture(bytes: &[u8]) -> Result<TokenCapture, StoreError> {
    let mut reader = Reader { rest: bytes };
    let version = reader.take(1)?[0];
    if !(1..=2).contains(&version) {
        return Err(StoreError::damaged("a token capture of unknown version"));
    }
    let prompt_token_ids = reader.words()?;
    let token_ids = reader.words()?;
    let logprobs = reader.words()?.into_iter().map(f32::from_bits).collect();
    let mut spans = Vec::new();
    for _ in 0..reader.count(24)? {
        spans.push(LoadSpan {
            start: reader.number()?,
            end: reader.number()?,
            runtime_load_id: reader.text()?.parse().map_err(StoreError::damaged)?,
        });
    }
    let top_k = if reader.take(1)? == [0] {
        None
    } else {
        let mut rows = Vec::new();
        for _ in 0..reader.count(8)? {
            let mut row = Vec::new();
            for _ in 0..reader.count(8)? {
                row.push(TopKToken {
                    id: reader.word()?,
                    logprob: f32::from_bits(reader.word()?),
                });
            }
            rows.push(row);
        }
        Some(rows)
    };
    let temperature = f32::from_bits(reader.word()?);
    let finish_reason = reader.text()?.to_owned();
    let sampler = (version == 2).then(|| reader.sampler()).transpose()?;
    if !reader.rest.is_empty() {
        return Err(StoreError::damaged("a token capture is longer than it should be"));
    }
    Ok(TokenCapture {
        prompt_token_ids,
        token_ids,
        logprobs,
        spans,
        finish_reason,
        temperature,
        top_k,
        sampler,
    })
}

struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], StoreError> {
        let (taken, rest) = self
            .rest
            .split_at_checked(count)
            .ok_or_else(|| StoreError::damaged("a token capture is cut short"))?;
        self.rest = rest;
        Ok(taken)
    }

    fn word(&mut self) -> Result<u32, StoreError> {
        let bytes = self.take(4)?;
        Ok(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    fn float(&mut self) -> Result<f32, StoreError> {
        Ok(f32::from_bits(self.word()?))
    }

    fn sampler(&mut self) -> Result<Sampler, StoreError> {
        Ok(Sampler {
            temperature: self.float()?,
            top_p: self.float()?,
            min_p: self.float()?,
            repetition_penalty: self.float()?,
            presence_penalty: self.float()?,
            frequency_penalty: self.float()?,
            top_k: self.word()?,
            biased_tokens: self.word()?,
            constrained: self.word()? != 0,
        })
    }

    fn number(&mut self) -> Result<usize, StoreError> {
        let low = self.word()? as usize;
        let high = self.word()? as usize;
        Ok(high << 32 | low)
    }

    /// A number of items of at least `size` bytes each; refuses one the rest cannot hold.
    fn count(&mut self, size: usize) -> Result<usize, StoreError> {
        let count = self.number()?;
        if count > self.rest.len() / size {
            return Err(StoreError::damaged("a token capture is cut short"));
        }
        Ok(count)
    }

    fn words(&mut self) -> Result<Vec<u32>, StoreError> {
        (0..self.count(4)?).map(|_| self.word()).collect()
    }

    fn text(&mut self) -> Result<&'a str, StoreError> {
        let length = self.count(1)?;
        std::str::from_utf8(self.take(length)?).map_err(StoreError::damaged)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_capture() -> impl Strategy<Value = TokenCapture> {
        let top_k = prop::option::of(prop::collection::vec(
            prop::collection::vec((any::<u32>(), any::<u32>()), 0..4),
            0..6,
        ));
        (
            prop::collection::vec(any::<u32>(), 0..40),
            prop::collection::vec((any::<u32>(), any::<u32>()), 0..40),
            prop::collection::vec((any::<usize>(), any::<usize>(), any::<u64>()), 0..3),
            any::<u32>(),
            ".*",
            top_k,
            prop::option::of((any::<f32>(), any::<u32>(), any::<bool>())),
        )
            .prop_map(
                |(prompt, tokens, spans, temperature, finish_reason, top_k, sampler)| TokenCapture {
                    sampler: sampler.map(|(float, word, flag)| Sampler {
                        temperature: float,
                        top_p: float,
                        top_k: word,
                        min_p: float,
                        repetition_penalty: float,
                        presence_penalty: float,
                        frequency_penalty: float,
                        biased_tokens: word,
                        constrained: flag,
                    }),
                    prompt_token_ids: prompt,
                    token_ids: tokens.iter().map(|t| t.0).collect(),
                    logprobs: tokens.iter().map(|t| f32::from_bits(t.1)).collect(),
                    spans: spans
                        .into_iter()
                        .map(|(start, end, sequence)| LoadSpan {
                            start,
                            end,
                            runtime_load_id: crate::domain::RuntimeLoadId::new("ab12", sequence).unwrap(),
                        })
                        .collect(),
                    finish_reason,
                    temperature: f32::from_bits(temperature),
                    top_k: top_k.map(|rows| {
                        rows.into_iter()
                            .map(|row| {
                                row.into_iter()
                                    .map(|(id, bits)| TopKToken {
                                        id,
                                        logprob: f32::from_bits(bits),
                                    })
                                    .collect()
                            })
                            .collect()
                    }),
                },
            )
    }

    proptest! {
        // Bits are compared, not values: a NaN must come back as the same NaN.
        #[test]
        fn captures_come_back_bit_for_bit(capture in any_capture()) {
            let written = write_capture(&capture);
            let back = read_capture(&decode(&encode(&written)).unwrap()).unwrap();
            prop_assert_eq!(write_capture(&back), written);
            let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
            prop_assert_eq!(bits(&back.logprobs), bits(&capture.logprobs));
            prop_assert_eq!(&back.token_ids, &capture.token_ids);
            prop_assert_eq!(&back.spans, &capture.spans);
        }

        #[test]
        fn damaged_captures_are_errors_never_panics(capture in any_capture(), at in any::<prop::sample::Index>(), byte in any::<u8>()) {
            let mut written = write_capture(&capture);
            let index = at.index(written.len());
            written[index] = byte;
            let _either_way = read_capture(&written);
            prop_assert!(read_capture(&written[..index]).is_err());
        }

        #[test]
        fn bodies_come_back(bytes in prop::collection::vec(any::<u8>(), 0..2000), repeats in 1_usize..40) {
            let body = bytes.repeat(repeats);
            prop_assert_eq!(decode(&encode(&body)).unwrap(), body);
        }
    }

    #[test]
    fn large_text_shrinks_and_small_or_random_bytes_do_not_grow() {
        let text = b"{\"role\":\"user\",\"content\":\"hello\"}".repeat(100);
        assert!(encode(&text).len() < text.len() / 4);
        assert_eq!(encode(b"abc").len(), 4);
        let random: Vec<u8> = (0..4096_u32)
            .flat_map(|i| i.wrapping_mul(2_654_435_761).to_le_bytes())
            .collect();
        assert!(encode(&random).len() <= random.len() + 1);
    }

    #[test]
    fn unknown_encodings_are_damage() {
        for stored in [&[][..], &[7, 1, 2], &[ZSTD, 1], &[ZSTD, 9, 0, 0, 0, 1, 2, 3]] {
            assert!(matches!(decode(stored), Err(StoreError::Damaged { .. })), "{stored:?}");
        }
    }
}
