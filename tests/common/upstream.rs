//! A provider that does exactly what a test says, byte by byte, and remembers what it was asked.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;

/// A request as it arrived.
#[derive(Debug, Clone)]
pub struct Seen {
    pub method: String,
    pub target: String,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    /// Which connection it came on.
    pub connection: usize,
    /// When the other side was found to have closed, for scripts that look.
    pub peer_closed: Arc<Mutex<Option<Instant>>>,
}

impl Seen {
    pub fn header(&self, wanted: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(name, _)| name == wanted)
            .map(|(_, value)| value.as_str())
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

/// One step of an answer.
#[derive(Debug, Clone)]
pub enum Do {
    /// Write these bytes, in one write.
    Send(Vec<u8>),
    /// Write these bytes one at a time.
    Trickle(Vec<u8>),
    /// Wait.
    Pause(Duration),
    /// Close the connection.
    Close,
    /// Wait until the client closes, and note when.
    WaitForClose,
    /// Wait until the test opens the gate.
    Gate,
}

type Script = Box<dyn Fn(&Seen, usize) -> Vec<Do> + Send + Sync>;

struct Inner {
    script: Script,
    seen: Mutex<Vec<Seen>>,
    gate: AtomicBool,
    stopped: AtomicBool,
    idle_close: Mutex<Option<Duration>>,
}

/// The scripted provider; it stops when dropped.
pub struct Upstream {
    pub address: SocketAddr,
    inner: Arc<Inner>,
}

impl Upstream {
    /// Answers by `script`, which gets the request and how many came before it.
    pub fn start(script: impl Fn(&Seen, usize) -> Vec<Do> + Send + Sync + 'static) -> Self {
        Self::start_on(0, script)
    }

    /// The same on a port that is given.
    pub fn start_on(port: u16, script: impl Fn(&Seen, usize) -> Vec<Do> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
        let address = listener.local_addr().unwrap();
        let inner = Arc::new(Inner {
            script: Box::new(script),
            seen: Mutex::new(Vec::new()),
            gate: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            idle_close: Mutex::new(None),
        });
        let accepting = Arc::clone(&inner);
        std::thread::spawn(move || {
            for (number, stream) in listener.incoming().enumerate() {
                if accepting.stopped.load(Ordering::SeqCst) {
                    return;
                }
                let Ok(stream) = stream else { continue };
                let inner = Arc::clone(&accepting);
                std::thread::spawn(move || serve(&inner, stream, number));
            }
        });
        Self { address, inner }
    }

    /// Always the same answer.
    pub fn always(answer: Vec<Do>) -> Self {
        Self::start(move |_, _| answer.clone())
    }

    /// Closes kept connections after this long without a request.
    pub fn close_idle_after(&self, idle: Duration) {
        *self.inner.idle_close.lock().unwrap() = Some(idle);
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn open_gate(&self) {
        self.inner.gate.store(true, Ordering::SeqCst);
    }

    /// Every request so far, model listings left out.
    pub fn seen(&self) -> Vec<Seen> {
        let seen = self.inner.seen.lock().unwrap();
        seen.iter().filter(|seen| seen.method == "POST").cloned().collect()
    }

    /// Every request so far, whatever its method.
    pub fn requests(&self) -> Vec<Seen> {
        self.inner.seen.lock().unwrap().clone()
    }

    /// The only request so far.
    pub fn only(&self) -> Seen {
        let mut seen = self.seen();
        assert_eq!(seen.len(), 1, "{seen:?}");
        seen.remove(0)
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.inner.stopped.store(true, Ordering::SeqCst);
        self.inner.gate.store(true, Ordering::SeqCst);
        // Wakes the accept loop.
        let _woken = TcpStream::connect(self.address);
    }
}

fn serve(inner: &Inner, mut stream: TcpStream, connection: usize) {
    let _ok = stream.set_nodelay(true);
    let mut pending = Vec::new();
    let mut used = false;
    loop {
        // A connection is idle between two requests; a server waits longer for the first.
        let idle = inner.idle_close.lock().unwrap().filter(|_| used);
        used = true;
        let _ok = stream.set_read_timeout(Some(idle.unwrap_or(Duration::from_secs(120))));
        let Some(seen) = read_request(&mut stream, &mut pending, connection) else {
            return;
        };
        let before = {
            let mut all = inner.seen.lock().unwrap();
            let before = all.iter().filter(|other| other.method == "POST").count();
            all.push(seen.clone());
            before
        };
        for step in (inner.script)(&seen, before) {
            match step {
                Do::Send(bytes) => {
                    if stream.write_all(&bytes).is_err() {
                        note_closed(&seen);
                        return;
                    }
                }
                Do::Trickle(bytes) => {
                    for byte in bytes {
                        if stream.write_all(&[byte]).is_err() {
                            note_closed(&seen);
                            return;
                        }
                    }
                }
                Do::Pause(pause) => std::thread::sleep(pause),
                Do::Close => return,
                Do::WaitForClose => {
                    let _ok = stream.set_read_timeout(Some(Duration::from_secs(120)));
                    let mut byte = [0];
                    while matches!(stream.read(&mut byte), Ok(n) if n > 0) {}
                    note_closed(&seen);
                    return;
                }
                Do::Gate => {
                    while !inner.gate.load(Ordering::SeqCst) {
                        std::thread::sleep(Duration::from_millis(5));
                    }
                }
            }
        }
    }
}

fn note_closed(seen: &Seen) {
    *seen.peer_closed.lock().unwrap() = Some(Instant::now());
}

fn read_request(stream: &mut TcpStream, pending: &mut Vec<u8>, connection: usize) -> Option<Seen> {
    let mut buffer = vec![0; 64 * 1024];
    let end = loop {
        if let Some(end) = pending.windows(4).position(|window| window == b"\r\n\r\n") {
            break end;
        }
        let n = stream.read(&mut buffer).ok().filter(|n| *n > 0)?;
        pending.extend_from_slice(&buffer[..n]);
    };
    let head = String::from_utf8_lossy(&pending[..end]).into_owned();
    let mut lines = head.split("\r\n");
    let mut first = lines.next()?.split(' ');
    let (method, target) = (first.next()?.to_owned(), first.next()?.to_owned());
    let headers: Vec<(String, String)> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_lowercase(), value.trim().to_owned()))
        .collect();
    let length: usize = headers
        .iter()
        .find(|(name, _)| name == "content-length")
        .map_or(0, |(_, value)| value.parse().unwrap());
    while pending.len() < end + 4 + length {
        let n = stream.read(&mut buffer).ok().filter(|n| *n > 0)?;
        pending.extend_from_slice(&buffer[..n]);
    }
    let body = pending[end + 4..end + 4 + length].to_vec();
    pending.drain(..end + 4 + length);
    Some(Seen {
        method,
        target,
        headers,
        body,
        connection,
        peer_closed: Arc::default(),
    })
}

/// A whole response with a length.
pub fn answer(status: u16, content_type: &str, body: impl AsRef<[u8]>) -> Vec<Do> {
    answer_with(status, &[("content-type", content_type)], body)
}

/// A whole response with these headers.
pub fn answer_with(status: u16, headers: &[(&str, &str)], body: impl AsRef<[u8]>) -> Vec<Do> {
    let body = body.as_ref();
    let mut bytes = format!("HTTP/1.1 {status} X\r\ncontent-length: {}\r\n", body.len()).into_bytes();
    for (name, value) in headers {
        bytes.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
    }
    bytes.extend_from_slice(b"\r\n");
    bytes.extend_from_slice(body);
    vec![Do::Send(bytes)]
}

/// The head of an event stream that ends with its connection.
pub fn stream_head() -> Do {
    Do::Send(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n".to_vec())
}

/// An event stream, each piece in a write of its own, that ends with its connection.
pub fn stream(pieces: &[&str]) -> Vec<Do> {
    let mut steps = vec![stream_head()];
    for piece in pieces {
        steps.push(Do::Send(piece.as_bytes().to_vec()));
    }
    steps.push(Do::Close);
    steps
}

/// An event stream with chunked framing on a kept connection, one chunk for each piece.
pub fn chunked(pieces: &[&str]) -> Vec<Do> {
    let mut bytes =
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n".to_vec();
    for piece in pieces {
        bytes.extend_from_slice(format!("{:x}\r\n{piece}\r\n", piece.len()).as_bytes());
    }
    bytes.extend_from_slice(b"0\r\n\r\n");
    vec![Do::Send(bytes)]
}
