//! The model's text, read as it comes: reasoning, visible text and tool calls told apart by the marks that the model
//! itself was trained to write.

mod call;

use super::stop::overlap;
use call::{CallScanner, Scan};

const THINK_OPEN: &str = "<think>";
const THINK_CLOSE: &str = "</think>";
const CALL_OPEN: &str = "<tool_call>";
const CALL_CLOSE: &str = "</tool_call>";
const PYTHON_TAG: &str = "<|python_tag|>";

/// What one or more tokens added to an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Delta {
    /// Visible text.
    Text(String),
    /// Reasoning.
    Reasoning(String),
    /// A tool call begins.
    CallStart { name: String },
    /// More of the open call's arguments, as JSON text.
    CallArguments(String),
}

/// How a model writes tool calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CallStyle {
    /// `<tool_call>{"name": …, "arguments": …}</tool_call>`; Hermes, Qwen and SmolLM2 (a list inside for the last).
    Marked,
    /// The whole answer is `{"name": …, "parameters": …}`, perhaps after `<|python_tag|>`; Llama 3.
    Bare,
}

/// The marks a model writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OutputStyle {
    reasons: bool,
    calls: CallStyle,
}

impl OutputStyle {
    /// The marks named in a chat template.
    pub(crate) fn of_template(source: &str) -> Self {
        let llama = source.contains(PYTHON_TAG) || source.contains("<|start_header_id|>ipython");
        Self {
            reasons: source.contains(THINK_CLOSE),
            calls: if llama && !source.contains(CALL_OPEN) {
                CallStyle::Bare
            } else {
                CallStyle::Marked
            },
        }
    }

    /// The same marks with calls written as Hermes models write them.
    pub(crate) fn with_marked_calls(self) -> Self {
        let calls = CallStyle::Marked;
        Self { calls, ..self }
    }

    /// The same marks with calls written as Llama 3 writes them.
    pub(crate) fn with_bare_calls(self) -> Self {
        let calls = CallStyle::Bare;
        Self { calls, ..self }
    }

    /// Text of special tokens that must reach the parser although special tokens are otherwise not shown.
    pub(crate) fn marks() -> &'static [&'static str] {
        &[THINK_OPEN, THINK_CLOSE, CALL_OPEN, CALL_CLOSE, PYTHON_TAG]
    }

    /// What to put after the prompt so that the model begins with a call.
    pub(crate) fn call_prefix(self) -> &'static str {
        match self.calls {
            CallStyle::Marked => "<tool_call>\n",
            CallStyle::Bare => "",
        }
    }

    /// The name this style gives to a call's arguments.
    pub(crate) fn arguments_key(self) -> &'static str {
        match self.calls {
            CallStyle::Marked => "arguments",
            CallStyle::Bare => "parameters",
        }
    }

    /// A text that ends a turn after its first call.
    pub(crate) fn call_end(self) -> Option<&'static str> {
        (self.calls == CallStyle::Marked).then_some(CALL_CLOSE)
    }
}

/// Where the parser stands.
enum Phase {
    /// Before anything was said: reasoning or a bare call may begin.
    Start,
    Text,
    Reasoning,
    /// Inside a call. `raw` is all of it, kept until the call is certain.
    Call {
        scanner: CallScanner,
        raw: String,
        marked: bool,
    },
    /// After a call's JSON, up to its closing mark.
    AfterCall,
    /// A call that was none: text to its closing mark.
    BrokenCall,
    /// A call that broke off after the client had seen its beginning: what follows, up to its closing mark, is not JSON
    /// and belongs to nothing.
    LostCall {
        marked: bool,
    },
}

/// Reads one answer.
pub(crate) struct OutputParser {
    style: OutputStyle,
    /// Names of the tools offered; none means that calls are not looked for.
    tools: Vec<String>,
    phase: Phase,
    held: String,
    /// White space not yet known to stand between two texts.
    space: String,
    said: bool,
    calls: usize,
}

impl OutputParser {
    /// A parser for an answer to `prompt`, which may already have opened reasoning or (`forced_call`) a call.
    pub(crate) fn new(style: OutputStyle, tools: Vec<String>, prompt: &str, forced_call: bool) -> Self {
        let phase = if forced_call {
            Phase::Call {
                scanner: CallScanner::default(),
                raw: String::new(),
                marked: style.calls == CallStyle::Marked,
            }
        } else if style.reasons && prompt.trim_end().ends_with(THINK_OPEN) {
            Phase::Reasoning
        } else {
            Phase::Start
        };
        Self {
            style,
            tools,
            phase,
            held: String::new(),
            space: String::new(),
            said: false,
            calls: 0,
        }
    }

    /// Whether the next token belongs to reasoning.
    pub(crate) fn is_reasoning(&self) -> bool {
        matches!(self.phase, Phase::Reasoning)
    }

    /// Calls begun so far.
    pub(crate) fn calls(&self) -> usize {
        self.calls
    }

    /// Reads more text.
    pub(crate) fn push(&mut self, text: &str) -> Vec<Delta> {
        let mut out = Vec::new();
        self.held.push_str(text);
        while self.step(&mut out) {}
        out
    }

    /// Reads the end of the text.
    pub(crate) fn finish(&mut self) -> Vec<Delta> {
        let mut out = Vec::new();
        let rest = std::mem::take(&mut self.held);
        match std::mem::replace(&mut self.phase, Phase::Text) {
            Phase::Start | Phase::Text | Phase::BrokenCall => {
                let space = std::mem::take(&mut self.space);
                let text = space + &rest;
                if self.calls == 0 || !text.trim().is_empty() {
                    push_text(&mut out, text);
                }
            }
            Phase::Reasoning => push_reasoning(&mut out, rest.trim_end().to_owned()),
            Phase::Call { raw, marked, scanner } => {
                if !scanner.has_started() {
                    let mark = if marked { CALL_OPEN } else { "" };
                    push_text(&mut out, format!("{mark}{raw}{rest}"));
                }
            }
            Phase::AfterCall | Phase::LostCall { .. } => {}
        }
        out
    }

    /// Consumes a piece of what is held; false when more text is needed.
    fn step(&mut self, out: &mut Vec<Delta>) -> bool {
        match &mut self.phase {
            Phase::Start => self.step_start(),
            Phase::Text => self.step_text(out),
            Phase::Reasoning => self.step_reasoning(out),
            Phase::Call { .. } => self.step_call(out),
            Phase::AfterCall => self.step_after_call(),
            Phase::BrokenCall => self.step_broken(out),
            Phase::LostCall { marked } => {
                let marked = *marked;
                self.step_lost(marked)
            }
        }
    }

    fn step_start(&mut self) -> bool {
        let trimmed = self.held.trim_start();
        if trimmed.is_empty() {
            return false;
        }
        if self.style.reasons && trimmed.starts_with(THINK_OPEN) {
            self.held = trimmed[THINK_OPEN.len()..].to_owned();
            self.phase = Phase::Reasoning;
            return true;
        }
        let bare = self.style.calls == CallStyle::Bare && !self.tools.is_empty();
        if bare && trimmed.starts_with(PYTHON_TAG) {
            self.held = trimmed[PYTHON_TAG.len()..].to_owned();
            self.open_call(false);
            return true;
        }
        if bare && trimmed.starts_with('{') {
            self.open_call(false);
            return true;
        }
        let undecided =
            (self.style.reasons && THINK_OPEN.starts_with(trimmed)) || (bare && PYTHON_TAG.starts_with(trimmed));
        if undecided {
            return false;
        }
        self.phase = Phase::Text;
        true
    }

    fn step_text(&mut self, out: &mut Vec<Delta>) -> bool {
        let marked = self.style.calls == CallStyle::Marked && !self.tools.is_empty();
        if marked && let Some(at) = self.held.find(CALL_OPEN) {
            let before: String = self.held.drain(..at).collect();
            self.held.drain(..CALL_OPEN.len());
            self.say(&before, out);
            self.space.clear();
            self.open_call(true);
            return true;
        }
        let keep = if marked { overlap(&self.held, CALL_OPEN) } else { 0 };
        let certain = self.held.len() - keep;
        let text: String = self.held.drain(..certain).collect();
        self.say(&text, out);
        false
    }

    /// Says `text`, keeping white space back until something follows it. White space before a call is the template's.
    fn say(&mut self, text: &str, out: &mut Vec<Delta>) {
        let solid = text.trim_end();
        if solid.is_empty() {
            self.space.push_str(text);
            return;
        }
        let mut visible = std::mem::take(&mut self.space);
        visible.push_str(solid);
        self.space.push_str(&text[solid.len()..]);
        self.said = true;
        push_text(out, visible);
    }

    fn step_reasoning(&mut self, out: &mut Vec<Delta>) -> bool {
        if let Some(at) = self.held.find(THINK_CLOSE) {
            let text: String = self.held.drain(..at).collect();
            let after = self.held[THINK_CLOSE.len()..].trim_start().to_owned();
            push_reasoning(out, self.reasoning_text(&text).trim_end().to_owned());
            self.space.clear();
            self.held = after;
            self.said = false;
            self.phase = Phase::AfterCall;
            return true;
        }
        // Trailing white space may be the template's own before the closing mark.
        let keep = overlap(&self.held, THINK_CLOSE);
        let certain = self.held[..self.held.len() - keep].trim_end().len();
        let text: String = self.held.drain(..certain).collect();
        let text = self.reasoning_text(&text);
        push_reasoning(out, text);
        false
    }

    /// Leaves out the white space that opens reasoning.
    fn reasoning_text(&mut self, text: &str) -> String {
        if self.said {
            return text.to_owned();
        }
        let text = text.trim_start();
        self.said = !text.is_empty();
        text.to_owned()
    }

    fn open_call(&mut self, marked: bool) {
        self.phase = Phase::Call {
            scanner: CallScanner::default(),
            raw: String::new(),
            marked,
        };
    }

    fn step_call(&mut self, out: &mut Vec<Delta>) -> bool {
        let Phase::Call { scanner, raw, marked } = &mut self.phase else {
            return false;
        };
        let names: &[String] = if *marked { &[] } else { &self.tools };
        let before = scanner.calls();
        let scan = scanner.push(&self.held, names, out);
        self.calls += scanner.calls() - before;
        match scan {
            Scan::More => {
                raw.push_str(&self.held);
                self.held.clear();
                false
            }
            Scan::Done { used } => {
                self.held.drain(..used);
                self.phase = Phase::AfterCall;
                true
            }
            Scan::Malformed { used } if scanner.has_started() => {
                let marked = *marked;
                self.held.drain(..used);
                self.phase = Phase::LostCall { marked };
                true
            }
            Scan::Malformed { .. } => {
                let text = std::mem::take(raw);
                if *marked {
                    self.held = format!("{CALL_OPEN}{text}{}", self.held);
                    self.phase = Phase::BrokenCall;
                } else {
                    self.held = text + &self.held;
                    self.phase = Phase::Text;
                }
                true
            }
        }
    }

    /// After a call or reasoning: white space and closing marks are the template's; then text or another call.
    fn step_after_call(&mut self) -> bool {
        let mut rest = self.held.as_str();
        loop {
            rest = rest.trim_start_matches(|c: char| c.is_whitespace() || c == ';');
            // All of them: a second closing mark may come with the first or alone, and means the same.
            match rest.strip_prefix(CALL_CLOSE) {
                Some(after) => rest = after,
                None => break,
            }
        }
        self.held = rest.to_owned();
        if self.held.is_empty() || CALL_CLOSE.starts_with(self.held.as_str()) {
            return false;
        }
        self.phase = if self.style.calls == CallStyle::Bare && !self.tools.is_empty() {
            Phase::Start
        } else {
            Phase::Text
        };
        true
    }

    fn step_lost(&mut self, marked: bool) -> bool {
        if marked && let Some(at) = self.held.find(CALL_CLOSE) {
            self.held.drain(..at);
            self.phase = Phase::AfterCall;
            return true;
        }
        let keep = if marked { overlap(&self.held, CALL_CLOSE) } else { 0 };
        self.held.drain(..self.held.len() - keep);
        false
    }

    fn step_broken(&mut self, out: &mut Vec<Delta>) -> bool {
        if let Some(at) = self.held.find(CALL_CLOSE) {
            let text: String = self.held.drain(..at + CALL_CLOSE.len()).collect();
            self.say(&text, out);
            self.phase = Phase::Text;
            return true;
        }
        let certain = self.held.len() - overlap(&self.held, CALL_CLOSE);
        let text: String = self.held.drain(..certain).collect();
        self.say(&text, out);
        false
    }
}

fn push_text(out: &mut Vec<Delta>, text: String) {
    if text.is_empty() {
        return;
    }
    if let Some(Delta::Text(last)) = out.last_mut() {
        last.push_str(&text);
    } else {
        out.push(Delta::Text(text));
    }
}

fn push_reasoning(out: &mut Vec<Delta>, text: String) {
    if !text.is_empty() {
        out.push(Delta::Reasoning(text));
    }
}

#[cfg(test)]
mod tests;
