//! Reading of compressed responses, for the record only: what the client gets stays as it was.

use std::io::{self, Write};

use bytes::Bytes;
use http::HeaderMap;
use http::header::CONTENT_ENCODING;

/// A content encoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Encoding {
    Identity,
    Gzip,
    Deflate,
    Brotli,
    Zstd,
    /// One Reef cannot read, or several on top of one another.
    Other,
}

impl Encoding {
    pub(super) fn of(headers: &HeaderMap) -> Self {
        let mut values = headers.get_all(CONTENT_ENCODING).iter();
        let (Some(value), None) = (values.next(), values.next()) else {
            return if headers.contains_key(CONTENT_ENCODING) {
                Self::Other
            } else {
                Self::Identity
            };
        };
        match value.as_bytes().trim_ascii().to_ascii_lowercase().as_slice() {
            b"" | b"identity" => Self::Identity,
            b"gzip" | b"x-gzip" => Self::Gzip,
            b"deflate" => Self::Deflate,
            b"br" => Self::Brotli,
            b"zstd" => Self::Zstd,
            _ => Self::Other,
        }
    }
}

/// Decodes a whole body to at most `limit` bytes.
pub(super) fn decode(encoding: Encoding, bytes: &Bytes, limit: usize) -> io::Result<Bytes> {
    if encoding == Encoding::Identity {
        return Ok(bytes.clone());
    }
    let mut decoder = Decoder::new(encoding, limit)?;
    let plain = decoder.push(bytes)?;
    decoder.finish()?;
    Ok(plain)
}

/// Collects what a decoder writes, up to a limit in all: a few bytes can unfold to gigabytes.
struct Sink {
    out: Vec<u8>,
    left: usize,
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.left = self
            .left
            .checked_sub(bytes.len())
            .ok_or_else(|| io::Error::new(io::ErrorKind::FileTooLarge, "the decoded body is too large"))?;
        self.out.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Decodes a stream piece by piece.
pub(super) struct Decoder {
    inner: Inner,
}

enum Inner {
    Gzip(flate2::write::MultiGzDecoder<Sink>),
    /// Wrapped as the standard says, or bare as some servers send it: the first byte tells.
    Undecided(Option<Sink>),
    Zlib(flate2::write::ZlibDecoder<Sink>),
    Bare(flate2::write::DeflateDecoder<Sink>),
    Brotli(Box<brotli::DecompressorWriter<Sink>>),
    Zstd(Box<zstd::stream::write::Decoder<'static, Sink>>),
}

impl Decoder {
    pub(super) fn new(encoding: Encoding, limit: usize) -> io::Result<Self> {
        let sink = Sink {
            out: Vec::new(),
            left: limit,
        };
        let inner = match encoding {
            Encoding::Gzip => Inner::Gzip(flate2::write::MultiGzDecoder::new(sink)),
            Encoding::Deflate => Inner::Undecided(Some(sink)),
            Encoding::Brotli => Inner::Brotli(Box::new(brotli::DecompressorWriter::new(sink, 4096))),
            Encoding::Zstd => Inner::Zstd(Box::new(zstd::stream::write::Decoder::new(sink)?)),
            Encoding::Identity | Encoding::Other => {
                return Err(io::Error::new(io::ErrorKind::Unsupported, "unknown content encoding"));
            }
        };
        Ok(Self { inner })
    }

    /// Decodes the next bytes, as far as they can be.
    pub(super) fn push(&mut self, bytes: &[u8]) -> io::Result<Bytes> {
        if bytes.is_empty() {
            return Ok(Bytes::new());
        }
        if let Inner::Undecided(sink) = &mut self.inner
            && let Some(sink) = sink.take()
        {
            self.inner = if bytes[0] & 0x0f == 8 {
                Inner::Zlib(flate2::write::ZlibDecoder::new(sink))
            } else {
                Inner::Bare(flate2::write::DeflateDecoder::new(sink))
            };
        }
        let out = match &mut self.inner {
            Inner::Gzip(decoder) => {
                decoder.write_all(bytes)?;
                decoder.flush()?;
                &mut decoder.get_mut().out
            }
            Inner::Zlib(decoder) => {
                decoder.write_all(bytes)?;
                decoder.flush()?;
                &mut decoder.get_mut().out
            }
            Inner::Bare(decoder) => {
                decoder.write_all(bytes)?;
                decoder.flush()?;
                &mut decoder.get_mut().out
            }
            Inner::Brotli(decoder) => {
                decoder.write_all(bytes)?;
                decoder.flush()?;
                &mut decoder.get_mut().out
            }
            Inner::Zstd(decoder) => {
                decoder.write_all(bytes)?;
                decoder.flush()?;
                &mut decoder.get_mut().out
            }
            Inner::Undecided(_) => return Err(io::ErrorKind::InvalidData.into()),
        };
        Ok(Bytes::from(std::mem::take(out)))
    }
}

impl Decoder {
    /// Fails if the bytes so far are not a whole body. (Zstandard's decoder cannot tell.)
    fn finish(&mut self) -> io::Result<()> {
        match &mut self.inner {
            Inner::Gzip(decoder) => decoder.try_finish(),
            Inner::Zlib(decoder) => decoder.try_finish(),
            Inner::Bare(decoder) => decoder.try_finish(),
            Inner::Brotli(decoder) => decoder.close(),
            Inner::Zstd(_) | Inner::Undecided(_) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(encoding: Encoding, text: &[u8]) -> Vec<u8> {
        let level = flate2::Compression::default();
        match encoding {
            Encoding::Gzip => {
                let mut writer = flate2::write::GzEncoder::new(Vec::new(), level);
                writer.write_all(text).unwrap();
                writer.finish().unwrap()
            }
            Encoding::Deflate => {
                let mut writer = flate2::write::ZlibEncoder::new(Vec::new(), level);
                writer.write_all(text).unwrap();
                writer.finish().unwrap()
            }
            Encoding::Brotli => {
                let mut out = Vec::new();
                brotli::CompressorWriter::new(&mut out, 4096, 5, 22)
                    .write_all(text)
                    .unwrap();
                out
            }
            _ => zstd::encode_all(text, 1).unwrap(),
        }
    }

    const ALL: [Encoding; 4] = [Encoding::Gzip, Encoding::Deflate, Encoding::Brotli, Encoding::Zstd];

    #[test]
    fn every_encoding_is_read_whole_and_in_pieces() {
        let text = "hello, hello, hello world ".repeat(50);
        for encoding in ALL {
            let bytes = encoded(encoding, text.as_bytes());
            assert_eq!(
                decode(encoding, &Bytes::from(bytes.clone()), 10_000).unwrap(),
                text.as_bytes()
            );
            let mut decoder = Decoder::new(encoding, 10_000).unwrap();
            let mut pieces = Vec::new();
            for byte in &bytes {
                pieces.extend_from_slice(&decoder.push(&[*byte]).unwrap());
            }
            assert_eq!(pieces, text.as_bytes(), "{encoding:?}");
        }
        let mut writer = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::default());
        writer.write_all(text.as_bytes()).unwrap();
        let bare = Bytes::from(writer.finish().unwrap());
        assert_eq!(decode(Encoding::Deflate, &bare, 10_000).unwrap(), text.as_bytes());
    }

    #[test]
    fn a_body_that_breaks_off_is_an_error() {
        let text = "hello, hello, hello world ".repeat(50);
        for encoding in [Encoding::Gzip, Encoding::Deflate, Encoding::Brotli] {
            let bytes = encoded(encoding, text.as_bytes());
            for cut in [1, bytes.len() / 2, bytes.len() - 1] {
                let part = Bytes::copy_from_slice(&bytes[..cut]);
                assert!(decode(encoding, &part, 10_000).is_err(), "{encoding:?} {cut}");
            }
        }
    }

    #[test]
    fn a_bomb_stops_at_the_limit() {
        for encoding in ALL {
            let bytes = Bytes::from(encoded(encoding, &vec![0; 5_000_000]));
            assert!(decode(encoding, &bytes, 1_000_000).is_err(), "{encoding:?}");
        }
    }

    #[test]
    fn noise_is_an_error_not_a_panic() {
        let noise: Vec<u8> = (0..200u32)
            .map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8)
            .collect();
        for encoding in ALL {
            let _any = decode(encoding, &Bytes::from(noise.clone()), 1000);
        }
    }
}
