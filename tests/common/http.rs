//! A small blocking HTTP client that shows when each piece of a response came.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

use serde_json::Value;

use super::PATIENCE;

/// A response being read.
pub struct Response {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    stream: TcpStream,
    /// Read and not yet consumed.
    pending: Vec<u8>,
    framing: Framing,
}

#[derive(Clone, Copy, PartialEq)]
enum Framing {
    Length(usize),
    Chunked,
    UntilClose,
    Done,
}

/// A request; headers in order, the body as it is.
pub fn send(address: SocketAddr, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Response {
    try_send(address, method, path, headers, body).unwrap_or_else(|error| panic!("{method} {path}: {error}"))
}

/// Like [`send`], for tests that stop the service.
pub fn try_send(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> std::io::Result<Response> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut head = format!("{method} {path} HTTP/1.1\r\n");
    if !headers.iter().any(|(name, _)| *name == "host") {
        head.push_str(&format!("host: {address}\r\n"));
    }
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    if !body.is_empty() || method == "POST" {
        head.push_str(&format!("content-length: {}\r\n", body.len()));
    }
    head.push_str("\r\n");
    stream.write_all(head.as_bytes())?;
    // A server may refuse a large body before it has read it all.
    let _refused = stream.write_all(body);
    Response::read(stream, method == "HEAD")
}

impl Response {
    fn read(mut stream: TcpStream, head_only: bool) -> std::io::Result<Self> {
        let mut bytes = Vec::new();
        let end = loop {
            if let Some(end) = find(&bytes, b"\r\n\r\n") {
                break end;
            }
            let mut buffer = [0; 4096];
            let n = stream.read(&mut buffer)?;
            if n == 0 {
                return Err(std::io::Error::other("closed before the head of a response"));
            }
            bytes.extend_from_slice(&buffer[..n]);
        };
        let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
        let mut lines = head.split("\r\n");
        let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        let headers: Vec<(String, String)> = lines
            .filter_map(|line| line.split_once(':'))
            .map(|(name, value)| (name.to_lowercase(), value.trim().to_owned()))
            .collect();
        let get = |wanted: &str| {
            headers
                .iter()
                .find(|(name, _)| name == wanted)
                .map(|(_, value)| value.as_str())
        };
        let framing = if head_only || status == 204 {
            Framing::Done
        } else if get("transfer-encoding") == Some("chunked") {
            Framing::Chunked
        } else if let Some(length) = get("content-length") {
            Framing::Length(length.parse().unwrap())
        } else {
            Framing::UntilClose
        };
        Ok(Self {
            status,
            headers,
            stream,
            pending: bytes[end + 4..].to_vec(),
            framing,
        })
    }

    pub fn header(&self, wanted: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(name, _)| name == wanted)
            .map(|(_, value)| value.as_str())
    }

    /// The receipt of a response that is not a stream.
    pub fn receipt(&self) -> Option<String> {
        self.header("x-reef-agent-record-id").map(str::to_owned)
    }

    /// The next piece of the body, as the server framed it; `None` at the end. An error if the body broke off.
    pub fn piece(&mut self) -> std::io::Result<Option<Vec<u8>>> {
        match self.framing {
            Framing::Done => Ok(None),
            Framing::Length(0) => {
                self.framing = Framing::Done;
                Ok(None)
            }
            Framing::Length(left) => {
                let mut bytes = self
                    .some()?
                    .ok_or_else(|| std::io::Error::other("the body broke off"))?;
                let rest = bytes.split_off(bytes.len().min(left));
                self.pending = rest;
                self.framing = Framing::Length(left - bytes.len());
                Ok(Some(bytes))
            }
            Framing::UntilClose => self.some(),
            Framing::Chunked => {
                let line = loop {
                    if let Some(end) = find(&self.pending, b"\r\n") {
                        let line: Vec<u8> = self.pending.drain(..end + 2).collect();
                        break String::from_utf8_lossy(&line[..end]).into_owned();
                    }
                    self.more()?;
                };
                let size = usize::from_str_radix(line.trim(), 16).map_err(std::io::Error::other)?;
                while self.pending.len() < size + 2 {
                    self.more()?;
                }
                let chunk: Vec<u8> = self.pending.drain(..size + 2).collect();
                if size == 0 {
                    self.framing = Framing::Done;
                    return Ok(None);
                }
                Ok(Some(chunk[..size].to_vec()))
            }
        }
    }

    fn some(&mut self) -> std::io::Result<Option<Vec<u8>>> {
        if !self.pending.is_empty() {
            return Ok(Some(std::mem::take(&mut self.pending)));
        }
        let mut buffer = vec![0; 64 * 1024];
        let n = self.stream.read(&mut buffer)?;
        buffer.truncate(n);
        Ok((n > 0).then_some(buffer))
    }

    fn more(&mut self) -> std::io::Result<()> {
        let mut buffer = [0; 64 * 1024];
        let n = self.stream.read(&mut buffer)?;
        if n == 0 {
            return Err(std::io::Error::other("the body broke off"));
        }
        self.pending.extend_from_slice(&buffer[..n]);
        Ok(())
    }

    /// The whole body.
    pub fn bytes(&mut self) -> Vec<u8> {
        self.try_bytes().unwrap()
    }

    /// The whole body, or how it broke off.
    pub fn try_bytes(&mut self) -> std::io::Result<Vec<u8>> {
        let mut all = Vec::new();
        while let Some(piece) = self.piece()? {
            all.extend_from_slice(&piece);
        }
        Ok(all)
    }

    pub fn text(&mut self) -> String {
        String::from_utf8(self.bytes()).unwrap()
    }

    pub fn json(&mut self) -> Value {
        let bytes = self.bytes();
        serde_json::from_slice(&bytes).unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&bytes)))
    }

    /// Reads until the body so far contains `text`; gives the body so far and when that was.
    pub fn until(&mut self, text: &str) -> (String, Instant) {
        let mut all = Vec::new();
        while let Some(piece) = self.piece().unwrap() {
            all.extend_from_slice(&piece);
            if find(&all, text.as_bytes()).is_some() {
                return (String::from_utf8_lossy(&all).into_owned(), Instant::now());
            }
        }
        panic!("the body ended without {text:?}: {}", String::from_utf8_lossy(&all));
    }
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).position(|window| window == needle)
}
