//! Reading what a program writes without keeping all of it.

use std::io::{self, Read};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use crate::sys::task;

/// The beginning and the end of a stream.
#[derive(Debug, Default)]
pub(super) struct Kept {
    head: Vec<u8>,
    tail: Vec<u8>,
    dropped: u64,
}

impl Kept {
    fn take(&mut self, mut bytes: &[u8], limit: usize) {
        let half = limit / 2;
        let room = half.saturating_sub(self.head.len()).min(bytes.len());
        self.head.extend_from_slice(&bytes[..room]);
        bytes = &bytes[room..];
        self.tail.extend_from_slice(bytes);
        // Trimmed in large steps, so that a byte is moved twice on average and not at every read.
        if self.tail.len() > 2 * half.max(1) {
            let over = self.tail.len() - half;
            self.tail.drain(..over);
            self.dropped += over as u64;
        }
    }

    /// The text and how many bytes are missing in its middle.
    pub(super) fn text(mut self, limit: usize) -> (String, u64) {
        let over = self.tail.len().saturating_sub(limit / 2);
        self.tail.drain(..over);
        self.dropped += over as u64;
        let mut text = String::from_utf8_lossy(&self.head).into_owned();
        if self.dropped > 0 {
            text.push_str(&format!("\n[{} bytes left out]\n", self.dropped));
        }
        text.push_str(&String::from_utf8_lossy(&self.tail));
        (text, self.dropped)
    }
}

/// Reads a stream to its end on a thread of its own.
pub(super) fn collect(mut stream: impl Read + Send + 'static, limit: usize) -> io::Result<Receiver<Kept>> {
    let (send, receive) = channel();
    let _reading = task::thread("reef-pipe", move || {
        let mut kept = Kept::default();
        let mut chunk = [0; 16 * 1024];
        while let Ok(n) = stream.read(&mut chunk) {
            if n == 0 {
                break;
            }
            kept.take(&chunk[..n], limit);
        }
        // Nobody listens any more when the phase gave up on it.
        let _gone = send.send(kept);
    })?;
    Ok(receive)
}

/// What was collected; nothing when somebody still holds the other end, which only an escaped process could.
pub(super) fn finish(receive: &Receiver<Kept>, limit: usize) -> (String, u64) {
    receive
        .recv_timeout(Duration::from_secs(5))
        .map_or_else(|_| (String::new(), 0), |kept| kept.text(limit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_beginning_and_the_end_are_kept_and_the_middle_is_counted() {
        let mut kept = Kept::default();
        for i in 0..1000 {
            kept.take(format!("{i:04}").as_bytes(), 80);
        }
        let (text, dropped) = kept.text(80);
        assert!(text.starts_with("00000001") && text.ends_with("0999"), "{text}");
        assert_eq!(dropped, 4000 - 80);
        let mut short = Kept::default();
        short.take(b"hello", 80);
        assert_eq!(short.text(80), ("hello".to_owned(), 0));
    }
}
