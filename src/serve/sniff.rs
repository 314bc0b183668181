//! What the body of a success is, by how it begins: an event stream is what looks like one, whatever its header says.

use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use tokio::time::Instant;

use super::decode::{Decoder, Encoding};
use crate::engine::{ByteStream, EngineError};
use crate::sys::json::{self, NotJson};

/// How long the head of a declared event stream waits for its first bytes. A client may wait for nothing but the head.
const PATIENCE: Duration = Duration::from_secs(1);
/// A first line of JSON longer than this is no line of a stream.
const LONGEST_LINE: usize = 256 * 1024;

/// What a body is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    /// Events, or lines of JSON, that pass one by one.
    Stream,
    /// One document, which means something once it is all there.
    Whole,
}

/// What is known of a body before it has begun.
#[derive(Debug, Clone, Copy)]
pub(super) struct Told {
    /// Its header says that it is an event stream.
    pub(super) declared: bool,
    /// The request asked for a stream.
    pub(super) asked: bool,
    pub(super) encoding: Encoding,
}

/// Reads as much of `body` as it takes to tell what it is, and gives it back whole.
pub(super) async fn shape(told: Told, body: ByteStream) -> Result<(Shape, ByteStream), EngineError> {
    shape_within(PATIENCE, told, body).await
}

async fn shape_within(
    patience: Duration,
    told: Told,
    mut body: ByteStream,
) -> Result<(Shape, ByteStream), EngineError> {
    let mut taken: Vec<Bytes> = Vec::new();
    let mut seen = Seen::new(told.encoding);
    let until = Instant::now() + patience;
    let shape = loop {
        let next = if told.declared {
            match tokio::time::timeout_at(until, body.next()).await {
                Ok(next) => next,
                Err(_) => break Shape::Stream,
            }
        } else {
            body.next().await
        };
        let ended = next.is_none();
        if let Some(bytes) = next {
            // What has come goes on, with the failure behind it.
            let bytes = match bytes {
                Ok(bytes) => bytes,
                Err(error) if taken.is_empty() => return Err(error),
                Err(error) => {
                    let rest: ByteStream = Box::pin(stream::iter([Err(error)]));
                    let shape = judge(seen.bytes(), told, true).unwrap_or(Shape::Whole);
                    return Ok((shape, put_back(taken, rest)));
                }
            };
            seen.push(&bytes);
            taken.push(bytes);
        }
        if let Some(shape) = judge(seen.bytes(), told, ended || seen.blind) {
            break shape;
        }
    };
    Ok((shape, put_back(taken, body)))
}

fn put_back(taken: Vec<Bytes>, rest: ByteStream) -> ByteStream {
    if taken.is_empty() {
        return rest;
    }
    Box::pin(stream::iter(taken.into_iter().map(Ok)).chain(rest))
}

/// The beginning of a body, decoded.
struct Seen {
    plain: Vec<u8>,
    decoder: Option<Decoder>,
    /// It cannot be read any further.
    blind: bool,
}

impl Seen {
    fn new(encoding: Encoding) -> Self {
        let decoder = (encoding != Encoding::Identity).then(|| Decoder::new(encoding, LONGEST_LINE * 4));
        Self {
            plain: Vec::new(),
            blind: matches!(decoder, Some(Err(_))),
            decoder: decoder.and_then(Result::ok),
        }
    }

    fn push(&mut self, bytes: &[u8]) {
        match &mut self.decoder {
            _ if self.blind => {}
            None => self.plain.extend_from_slice(bytes),
            Some(decoder) => match decoder.push(bytes) {
                Ok(plain) => self.plain.extend_from_slice(&plain),
                Err(_) => self.blind = true,
            },
        }
    }

    fn bytes(&self) -> &[u8] {
        let plain = self.plain.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&self.plain);
        plain.trim_ascii_start()
    }
}

/// What begins with `start`; `None` if more must be seen.
fn judge(start: &[u8], told: Told, ended: bool) -> Option<Shape> {
    let Some(first) = start.first() else {
        // A client that waits for events is told that none came.
        return ended.then_some(if told.declared { Shape::Stream } else { Shape::Whole });
    };
    match first {
        _ if !ended && b"\xef\xbb\xbf".starts_with(start) => None,
        b':' => Some(Shape::Stream),
        b'{' if told.asked || told.declared => lines(start, told, ended),
        b'{' | b'[' | b'<' => Some(Shape::Whole),
        _ => {
            let fields: [&[u8]; 5] = [b"data:", b"event:", b"id:", b"retry:", b"error:"];
            if fields.iter().any(|field| start.starts_with(field)) {
                Some(Shape::Stream)
            } else if fields.iter().any(|field| field.starts_with(start)) && !ended {
                None
            } else if told.declared {
                // A field nobody knows; the standard says to pass over it.
                Some(Shape::Stream)
            } else {
                Some(Shape::Whole)
            }
        }
    }
}

/// Whether JSON comes line by line, each a value of its own.
fn lines(start: &[u8], told: Told, ended: bool) -> Option<Shape> {
    let Some(end) = memchr::memchr(b'\n', start) else {
        return (ended || start.len() > LONGEST_LINE).then_some(Shape::Whole);
    };
    let (first, rest) = start.split_at(end);
    if matches!(json::read(first), Err(NotJson::CutShort | NotJson::Other { .. })) {
        return Some(Shape::Whole);
    }
    match rest.trim_ascii_start().first() {
        Some(b'{') => Some(Shape::Stream),
        // Some report a failure in such a line and then go on as event streams do.
        Some(_) if told.declared => Some(Shape::Stream),
        Some(_) => Some(Shape::Whole),
        None => ended.then_some(Shape::Whole),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    async fn found(told: Told, pieces: &[&[u8]]) -> (Shape, Vec<u8>) {
        let pieces: Vec<_> = pieces.iter().map(|piece| Ok(Bytes::copy_from_slice(piece))).collect();
        let (shape, mut body) = shape(told, Box::pin(stream::iter(pieces))).await.unwrap();
        let mut all = Vec::new();
        while let Some(bytes) = body.next().await {
            all.extend_from_slice(&bytes.unwrap());
        }
        (shape, all)
    }

    fn told(declared: bool, asked: bool) -> Told {
        Told {
            declared,
            asked,
            encoding: Encoding::Identity,
        }
    }

    #[tokio::test]
    async fn the_beginning_decides_and_every_byte_stays() {
        for (text, declared, asked, want) in [
            ("data: {}\n\n", false, true, Shape::Stream),
            ("data:{}\n\n", false, false, Shape::Stream),
            ("\u{feff}\n\nevent: ping\n", false, true, Shape::Stream),
            (": wait\n\n", false, true, Shape::Stream),
            ("id: 1\n", false, true, Shape::Stream),
            ("database is down", false, true, Shape::Whole),
            ("dat", false, true, Shape::Whole),
            ("{\"a\":1}", false, true, Shape::Whole),
            ("{\"a\":1}", true, true, Shape::Whole),
            ("{\"a\":1}\n", true, true, Shape::Whole),
            ("{\"a\":1}\n\n{\"a\":2}\n", false, true, Shape::Stream),
            ("{\"a\":1}\n{\"a\":2}\n", false, false, Shape::Whole),
            ("{\"error\":1}\ndata: [DONE]\n\n", true, true, Shape::Stream),
            ("{\n  \"a\": 1\n}", true, true, Shape::Whole),
            ("[{\"error\":{}}]", true, true, Shape::Whole),
            ("<!doctype html>", true, true, Shape::Whole),
            ("oops", true, true, Shape::Stream),
            ("", true, true, Shape::Stream),
            ("", false, true, Shape::Whole),
            ("  \n", false, true, Shape::Whole),
        ] {
            let whole = found(told(declared, asked), &[text.as_bytes()]).await;
            assert_eq!(whole, (want, text.as_bytes().to_vec()), "{text:?}");
            let pieces: Vec<&[u8]> = text.as_bytes().chunks(1).collect();
            assert_eq!(
                found(told(declared, asked), &pieces).await,
                whole,
                "{text:?} byte by byte"
            );
        }
    }

    #[tokio::test]
    async fn a_compressed_stream_is_seen_through() {
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        gzip.write_all(b"data: {}\n\n").unwrap();
        let bytes = gzip.finish().unwrap();
        for (encoding, want) in [(Encoding::Gzip, Shape::Stream), (Encoding::Other, Shape::Whole)] {
            let told = Told {
                encoding,
                ..told(false, true)
            };
            assert_eq!(found(told, &[&bytes]).await, (want, bytes.clone()));
        }
    }

    #[tokio::test]
    async fn the_head_of_a_declared_stream_does_not_wait_for_long() {
        let body: ByteStream = Box::pin(stream::pending());
        assert_eq!(
            shape_within(Duration::ZERO, told(true, true), body).await.unwrap().0,
            Shape::Stream
        );
    }

    #[tokio::test]
    async fn a_failure_keeps_its_place() {
        let failure = || {
            Err(EngineError::Broken {
                reason: "gone".to_owned(),
            })
        };
        let body: ByteStream = Box::pin(stream::iter([failure()]));
        assert!(shape(told(false, true), body).await.is_err());
        let body: ByteStream = Box::pin(stream::iter([Ok(Bytes::from_static(b"da")), failure()]));
        let (shape, mut body) = shape(told(false, true), body).await.unwrap();
        assert_eq!(shape, Shape::Whole);
        assert_eq!(body.next().await.unwrap().unwrap(), "da");
        assert!(body.next().await.unwrap().is_err());
    }
}
