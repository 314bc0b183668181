//! Server-sent events from bytes in any chunking, with LF, CRLF or CR line ends.
//!
//! The scanner never asks for more than it is given: a carriage return ends a line at once, and a line feed that
//! follows, however much later, is taken as its second half.
//!
//! Two things that no standard knows and servers do are understood too: a bare line of JSON is an event of its own (some
//! report a failure that way, and some stream nothing but such lines), and so is the field `error`, with that name.

use memchr::memchr2;

/// One dispatched event: at least one `data` line and the blank line (or the end of the stream) after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event<'a> {
    /// The `event` field; empty if there was none.
    pub name: &'a [u8],
    /// The `data` lines joined by line feeds.
    pub data: &'a [u8],
}

/// An incremental event splitter.
#[derive(Debug, Default)]
pub struct Scanner {
    line: Vec<u8>,
    name: Vec<u8>,
    data: Vec<u8>,
    has_data: bool,
    has_field: bool,
    /// A finished event waits to be cleared by the next call, so that it can be lent out.
    dispatched: bool,
    after_cr: bool,
    started: bool,
    event_len: usize,
    bare: bool,
}

impl Scanner {
    /// Reads up to the end of one event. Returns how many bytes of `input` it took; all of them if no event ended, in
    /// which case [`Scanner::event`] is `None`.
    pub fn advance(&mut self, input: &[u8]) -> usize {
        self.clear_dispatched();
        let mut at = 0;
        while at < input.len() {
            if self.after_cr {
                self.after_cr = false;
                if input[at] == b'\n' {
                    at += 1;
                    // The second half of a line end belongs to the event before it, if that has just ended.
                    self.event_len = if self.in_event() { self.event_len + 1 } else { 0 };
                    continue;
                }
            }
            let rest = &input[at..];
            let Some(end) = memchr2(b'\n', b'\r', rest) else {
                self.line.extend_from_slice(rest);
                self.event_len += rest.len();
                return input.len();
            };
            self.after_cr = rest[end] == b'\r';
            at += end + 1;
            self.event_len += end + 1;
            if self.line.is_empty() {
                self.end_line(&rest[..end]);
            } else {
                let mut line = std::mem::take(&mut self.line);
                line.extend_from_slice(&rest[..end]);
                self.end_line(&line);
                line.clear();
                self.line = line;
            }
            if self.dispatched {
                return at;
            }
        }
        at
    }

    /// Ends the stream: a last event without its blank line, or without any line end, counts.
    pub fn finish(&mut self) {
        self.clear_dispatched();
        if !self.line.is_empty() {
            let line = std::mem::take(&mut self.line);
            self.end_line(&line);
        }
        self.dispatched = self.has_data;
    }

    /// The event that the last call ended.
    pub fn event(&self) -> Option<Event<'_>> {
        self.dispatched.then_some(Event {
            name: &self.name,
            data: &self.data,
        })
    }

    /// What is known of the event under way: its name and data lines so far, and the unfinished line.
    pub fn pending(&self) -> (Event<'_>, &[u8]) {
        if self.dispatched {
            let none = Event { name: b"", data: b"" };
            return (none, &self.line);
        }
        let event = Event {
            name: &self.name,
            data: &self.data,
        };
        (event, &self.line)
    }

    /// Whether a bare line of JSON has come.
    pub fn bare(&self) -> bool {
        self.bare
    }

    /// How many of the bytes taken belong to the event under way (or, right after it ended, to that event). Comments
    /// and blank lines before the first field belong to none.
    pub fn event_len(&self) -> usize {
        self.event_len
    }

    /// Whether the next byte would begin a line, and whether also an event. False for both between the halves of a
    /// possible CRLF.
    pub fn at_line_start(&self) -> (bool, bool) {
        let line = self.line.is_empty() && !self.after_cr;
        (line, line && (self.dispatched || !self.has_field))
    }

    /// Whether the bytes so far leave an event unfinished.
    pub fn in_event(&self) -> bool {
        !self.dispatched && (self.has_field || !self.line.is_empty())
    }

    fn clear_dispatched(&mut self) {
        if self.dispatched {
            self.dispatched = false;
            self.reset_event();
        }
    }

    fn reset_event(&mut self) {
        self.name.clear();
        self.data.clear();
        self.has_data = false;
        self.has_field = false;
        self.event_len = 0;
    }

    fn end_line(&mut self, line: &[u8]) {
        let line = if self.started {
            line
        } else {
            self.started = true;
            line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line)
        };
        if line.is_empty() {
            if self.has_data {
                self.dispatched = true;
            } else {
                self.reset_event();
            }
            return;
        }
        if line[0] == b':' {
            if !self.has_field {
                self.event_len = 0;
            }
            return;
        }
        if line[0] == b'{' {
            // Read as data, but nobody could put anything into such a stream.
            self.bare = true;
            self.has_field = true;
            self.push_data(line);
            self.dispatched = true;
            return;
        }
        self.has_field = true;
        let (field, value) = match memchr::memchr(b':', line) {
            Some(colon) => {
                let value = &line[colon + 1..];
                (&line[..colon], value.strip_prefix(b" ").unwrap_or(value))
            }
            None => (line, &b""[..]),
        };
        match field {
            b"data" => self.push_data(value),
            b"error" => {
                if self.name.is_empty() {
                    self.name.extend_from_slice(b"error");
                }
                self.push_data(value);
            }
            b"event" => {
                self.name.clear();
                self.name.extend_from_slice(value);
            }
            _ => {}
        }
    }

    fn push_data(&mut self, value: &[u8]) {
        if self.has_data {
            self.data.push(b'\n');
        }
        self.has_data = true;
        self.data.extend_from_slice(value);
    }
}
