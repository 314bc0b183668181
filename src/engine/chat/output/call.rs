//! Reads `{"name": …, "arguments": {…}}` while it is being written: the name as soon as it is known, then the arguments'
//! text as it comes.

use super::Delta;

/// What a piece of text did.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Scan {
    /// All of it was read; more is needed.
    More,
    /// The value ended after this many bytes.
    Done { used: usize },
    /// This is no call from this byte on.
    Malformed { used: usize },
}

/// Where is known to the caller only.
const MALFORMED: Scan = Scan::Malformed { used: 0 };

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Before the first `{`, perhaps after `[`.
    Open,
    /// Before a key, or `}`.
    BeforeKey,
    Key,
    /// Before `:`.
    Colon,
    /// Before a value.
    BeforeValue,
    Value,
    /// Before `,` or `}`.
    AfterValue,
    /// Between the objects of a list.
    Between,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Field {
    Name,
    Arguments,
    Other,
}

/// The scanner. One for each text that may hold calls.
#[derive(Debug)]
pub(super) struct CallScanner {
    state: State,
    list: bool,
    field: Field,
    /// The key or value being read, as written.
    token: String,
    depth: usize,
    in_string: bool,
    escaped: bool,
    name: Option<String>,
    arguments: Option<String>,
    /// The name was given out; arguments go straight through.
    open: bool,
    calls: usize,
}

impl Default for CallScanner {
    fn default() -> Self {
        Self {
            state: State::Open,
            list: false,
            field: Field::Other,
            token: String::new(),
            depth: 0,
            in_string: false,
            escaped: false,
            name: None,
            arguments: None,
            open: false,
            calls: 0,
        }
    }
}

impl CallScanner {
    /// Calls given out so far.
    pub(super) fn calls(&self) -> usize {
        self.calls
    }

    /// Whether any call was given out.
    pub(super) fn has_started(&self) -> bool {
        self.calls > 0
    }

    /// Reads `text`. With `names`, a call of another name is malformed.
    pub(super) fn push(&mut self, text: &str, names: &[String], out: &mut Vec<Delta>) -> Scan {
        let mut arguments = String::new();
        let mut result = Scan::More;
        for (at, c) in text.char_indices() {
            match self.read(c, names, &mut arguments, out) {
                Scan::More => {}
                Scan::Done { .. } => {
                    result = Scan::Done {
                        used: at + c.len_utf8(),
                    };
                    break;
                }
                Scan::Malformed { .. } => {
                    result = Scan::Malformed { used: at };
                    break;
                }
            }
        }
        flush(&mut arguments, out);
        result
    }

    fn read(&mut self, c: char, names: &[String], arguments: &mut String, out: &mut Vec<Delta>) -> Scan {
        match self.state {
            State::Open | State::Between if c.is_whitespace() => Scan::More,
            State::Open if c == '[' && !self.list => {
                self.list = true;
                Scan::More
            }
            State::Open if c == '{' => self.begin(),
            State::Between if c == ',' => {
                self.state = State::Open;
                Scan::More
            }
            State::Between if c == ']' => Scan::Done { used: 0 },
            State::BeforeKey | State::Colon | State::BeforeValue | State::AfterValue if c.is_whitespace() => Scan::More,
            State::BeforeKey if c == '"' => {
                self.begin_token(State::Key, c);
                Scan::More
            }
            State::BeforeKey | State::AfterValue if c == '}' => self.end_object(names, arguments, out),
            State::Key => self.read_key(c),
            State::Colon if c == ':' => {
                self.state = State::BeforeValue;
                Scan::More
            }
            State::BeforeValue => self.begin_value(c, names, arguments, out),
            State::Value => self.read_value(c, names, arguments, out),
            State::AfterValue if c == ',' => {
                self.state = State::BeforeKey;
                Scan::More
            }
            _ => MALFORMED,
        }
    }

    fn begin(&mut self) -> Scan {
        self.state = State::BeforeKey;
        self.name = None;
        self.arguments = None;
        self.open = false;
        Scan::More
    }

    fn begin_token(&mut self, state: State, c: char) {
        self.state = state;
        self.token.clear();
        self.token.push(c);
        self.in_string = c == '"';
        self.escaped = false;
        self.depth = 0;
    }

    fn read_key(&mut self, c: char) -> Scan {
        self.token.push(c);
        if self.string_goes_on(c) {
            return Scan::More;
        }
        self.field = match self.token.as_str() {
            "\"name\"" => Field::Name,
            "\"arguments\"" | "\"parameters\"" => Field::Arguments,
            _ => Field::Other,
        };
        self.state = State::Colon;
        Scan::More
    }

    /// Follows a JSON string; false once it has closed.
    fn string_goes_on(&mut self, c: char) -> bool {
        if self.escaped {
            self.escaped = false;
        } else if c == '\\' {
            self.escaped = true;
        } else if c == '"' {
            self.in_string = false;
        }
        self.in_string
    }

    fn begin_value(&mut self, c: char, names: &[String], arguments: &mut String, out: &mut Vec<Delta>) -> Scan {
        if matches!(c, ',' | '}' | ']' | ':') {
            return MALFORMED;
        }
        self.begin_token(State::Value, c);
        self.depth = usize::from(matches!(c, '{' | '['));
        if self.field == Field::Arguments && c == '{' && self.name.is_some() {
            let scan = self.give_name(names, arguments, out);
            if scan == MALFORMED {
                return scan;
            }
            arguments.push(c);
            self.token.clear();
        }
        Scan::More
    }

    /// Whether the value being read goes straight to the client.
    fn is_streaming(&self) -> bool {
        self.open && self.field == Field::Arguments
    }

    fn read_value(&mut self, c: char, names: &[String], arguments: &mut String, out: &mut Vec<Delta>) -> Scan {
        let in_string = self.in_string;
        let scalar = self.depth == 0 && !in_string;
        if scalar && matches!(c, ',' | '}') {
            // A number, true, false or null ends where something else begins.
            let scan = self.end_value(names);
            if scan == MALFORMED {
                return scan;
            }
            return self.read(c, names, arguments, out);
        }
        if self.is_streaming() {
            arguments.push(c);
        } else {
            self.token.push(c);
        }
        if in_string {
            let closed = !self.string_goes_on(c);
            if closed && self.depth == 0 {
                return self.end_value(names);
            }
            return Scan::More;
        }
        match c {
            '"' => {
                self.in_string = true;
                self.escaped = false;
            }
            '{' | '[' => self.depth += 1,
            '}' | ']' => {
                self.depth = self.depth.saturating_sub(1);
                if self.depth == 0 {
                    return self.end_value(names);
                }
            }
            _ => {}
        }
        Scan::More
    }

    fn end_value(&mut self, names: &[String]) -> Scan {
        self.state = State::AfterValue;
        let written = self.token.trim().to_owned();
        match self.field {
            Field::Name => match serde_json::from_str::<String>(&written) {
                Ok(name) if !name.is_empty() && allowed(&name, names) => self.name = Some(name),
                _ => return MALFORMED,
            },
            Field::Arguments if !self.is_streaming() => {
                // Some models write the object once more as a string.
                self.arguments = Some(match serde_json::from_str(&written) {
                    Ok(serde_json::Value::String(inner)) if inner.trim_start().starts_with('{') => inner,
                    Ok(serde_json::Value::Null) => "{}".to_owned(),
                    Ok(_) => written,
                    Err(_) => return MALFORMED,
                });
            }
            Field::Arguments | Field::Other => {}
        }
        Scan::More
    }

    fn give_name(&mut self, names: &[String], arguments: &mut String, out: &mut Vec<Delta>) -> Scan {
        let Some(name) = self.name.clone().filter(|name| allowed(name, names)) else {
            return MALFORMED;
        };
        flush(arguments, out);
        out.push(Delta::CallStart { name });
        self.open = true;
        self.calls += 1;
        Scan::More
    }

    fn end_object(&mut self, names: &[String], streamed: &mut String, out: &mut Vec<Delta>) -> Scan {
        if !self.open {
            let scan = self.give_name(names, streamed, out);
            if scan == MALFORMED {
                return scan;
            }
            let arguments = self.arguments.take().unwrap_or_else(|| "{}".to_owned());
            out.push(Delta::CallArguments(arguments));
        }
        if self.list {
            self.state = State::Between;
            Scan::More
        } else {
            Scan::Done { used: 0 }
        }
    }
}

fn allowed(name: &str, names: &[String]) -> bool {
    names.is_empty() || names.iter().any(|known| known == name)
}

fn flush(arguments: &mut String, out: &mut Vec<Delta>) {
    if !arguments.is_empty() {
        out.push(Delta::CallArguments(std::mem::take(arguments)));
    }
}
