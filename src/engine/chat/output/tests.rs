use proptest::prelude::*;

use super::*;

const HERMES: OutputStyle = OutputStyle {
    reasons: true,
    calls: CallStyle::Marked,
};
const LLAMA: OutputStyle = OutputStyle {
    reasons: false,
    calls: CallStyle::Bare,
};

/// Text, reasoning, and calls as (name, arguments).
type Parsed = (String, String, Vec<(String, String)>);

fn parse(style: OutputStyle, prompt: &str, pieces: &[&str]) -> Parsed {
    let mut parser = OutputParser::new(style, vec!["get_weather".to_owned(), "add".to_owned()], prompt, false);
    let mut deltas = Vec::new();
    for piece in pieces {
        deltas.extend(parser.push(piece));
    }
    deltas.extend(parser.finish());
    let mut parsed = Parsed::default();
    for delta in deltas {
        match delta {
            Delta::Text(text) => parsed.0.push_str(&text),
            Delta::Reasoning(text) => parsed.1.push_str(&text),
            Delta::CallStart { name } => parsed.2.push((name, String::new())),
            Delta::CallArguments(text) => parsed.2.last_mut().unwrap().1.push_str(&text),
        }
    }
    assert_eq!(parser.calls(), parsed.2.len());
    parsed
}

fn by_char(style: OutputStyle, prompt: &str, text: &str) -> Parsed {
    let pieces: Vec<String> = text.chars().map(String::from).collect();
    let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
    parse(style, prompt, &pieces)
}

#[track_caller]
fn check(style: OutputStyle, prompt: &str, text: &str, expected: (&str, &str, &[(&str, &str)])) {
    let expected: Parsed = (
        expected.0.to_owned(),
        expected.1.to_owned(),
        expected
            .2
            .iter()
            .map(|(n, a)| ((*n).to_owned(), (*a).to_owned()))
            .collect(),
    );
    assert_eq!(parse(style, prompt, &[text]), expected, "in one piece: {text:?}");
    assert_eq!(by_char(style, prompt, text), expected, "by character: {text:?}");
}

#[test]
fn plain_text_is_passed_through_whole() {
    check(HERMES, "", " Hello,\n world. \n", (" Hello,\n world. \n", "", &[]));
    check(LLAMA, "", "{oops", ("{oops", "", &[]));
    check(HERMES, "", "a <tool", ("a <tool", "", &[]));
    check(HERMES, "", "", ("", "", &[]));
    check(HERMES, "", "  \n", ("  \n", "", &[]));
}

#[test]
fn reasoning_is_told_apart_whoever_opens_it() {
    check(
        HERMES,
        "",
        "<think>\nhm, two\nlines\n</think>\n\nYes.",
        ("Yes.", "hm, two\nlines", &[]),
    );
    check(HERMES, "…<think>\n", "hm\n</think>\n\nYes.", ("Yes.", "hm", &[]));
    check(HERMES, "<think>\n\n</think>\n\n", "Yes.", ("Yes.", "", &[]));
    check(HERMES, "", "<think>\n\n</think>\n\nYes.", ("Yes.", "", &[]));
    check(HERMES, "", "<think>cut off </thi", ("", "cut off </thi", &[]));
    check(HERMES, "", "say <think> aloud", ("say <think> aloud", "", &[]));
}

#[test]
fn marked_calls_are_read_with_the_text_around_them() {
    check(
        HERMES,
        "",
        "<think>need it</think>\nLet me look.\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \
         \"Zürich </tool_call> \\\"x\\\"\", \"n\": [1, {\"a\": {}}]}}\n</tool_call>\n<tool_call>\n{\"name\": \"add\", \
         \"arguments\": {}}\n</tool_call>",
        (
            "Let me look.",
            "need it",
            &[
                (
                    "get_weather",
                    "{\"city\": \"Zürich </tool_call> \\\"x\\\"\", \"n\": [1, {\"a\": {}}]}",
                ),
                ("add", "{}"),
            ],
        ),
    );
    check(
        HERMES,
        "",
        "<tool_call>[{\"name\": \"add\", \"arguments\": {\"a\": 1}}, {\"arguments\": {\"b\": 2}, \"name\": \"add\"}]</tool_call>",
        ("", "", &[("add", "{\"a\": 1}"), ("add", "{\"b\": 2}")]),
    );
}

#[test]
fn odd_but_legal_calls_mean_the_same() {
    let expected: (&str, &str, &[(&str, &str)]) = ("", "", &[("add", "{\"a\": 1}")]);
    for body in [
        r#"{"name": "add", "arguments": {"a": 1}}"#,
        r#"{"arguments": {"a": 1}, "name": "add"}"#,
        r#"{"name": "add", "parameters": {"a": 1}}"#,
        r#"{"name": "add", "arguments": "{\"a\": 1}"}"#,
        r#"{"type": "function", "id": 7, "x": [{"y": "}"}], "name": "add", "arguments": {"a": 1}}"#,
    ] {
        check(HERMES, "", &format!("<tool_call>\n{body}\n</tool_call>"), expected);
        check(HERMES, "", &format!("<tool_call>{body}"), expected);
        check(LLAMA, "", body, expected);
        check(LLAMA, "", &format!("<|python_tag|>{body}"), expected);
    }
    check(
        HERMES,
        "",
        r#"<tool_call>{"name": "add"}</tool_call>"#,
        ("", "", &[("add", "{}")]),
    );
    check(
        LLAMA,
        "",
        r#"{"name": "add", "parameters": null}"#,
        ("", "", &[("add", "{}")]),
    );
}

#[test]
fn what_is_no_call_stays_text() {
    for text in [
        "<tool_call>add(1, 2)</tool_call>",
        "<tool_call>{\"arguments\": {}}</tool_call> then more",
        "<tool_call>{\"name\": 5, \"arguments\": {}}</tool_call>",
        "<tool_call>",
    ] {
        check(HERMES, "", text, (text, "", &[]));
    }
    for text in [
        r#"{"answer": 42}"#,
        r#"{"name": "unknown", "parameters": {}}"#,
        "{\"name\": \"add\"",
    ] {
        check(LLAMA, "", text, (text, "", &[]));
    }
}

#[test]
fn calls_are_not_looked_for_without_tools() {
    let mut parser = OutputParser::new(HERMES, Vec::new(), "", false);
    let text = "<tool_call>{\"name\": \"add\", \"arguments\": {}}</tool_call>";
    assert_eq!(parser.push(text), [Delta::Text(text.to_owned())]);
}

#[test]
fn a_forced_call_needs_no_opening_mark() {
    let mut parser = OutputParser::new(HERMES, vec!["add".to_owned()], "<tool_call>\n", true);
    let deltas = parser.push("{\"name\": \"add\", \"arguments\": {\"a\": 1");
    assert_eq!(
        deltas,
        [
            Delta::CallStart { name: "add".to_owned() },
            Delta::CallArguments("{\"a\": 1".to_owned())
        ]
    );
}

#[test]
fn arguments_stream_as_they_come() {
    let mut parser = OutputParser::new(HERMES, vec!["add".to_owned()], "", false);
    assert!(parser.push("<tool_call>\n{\"name\": \"add\"").is_empty());
    assert_eq!(parser.push(", \"arguments\": {\"te").len(), 2);
    assert_eq!(
        parser.push("xt\": \"abc"),
        [Delta::CallArguments("xt\": \"abc".to_owned())]
    );
}

#[test]
fn what_follows_a_call_that_broke_off_is_dropped_wherever_it_was_cut() {
    let text = r#"a<tool_call>[{"name": "add", "arguments": {"a": 1}}<think>x</tool_call>b"#;
    assert_eq!(parse(HERMES, "", &[text]), by_char(HERMES, "", text));
    assert_eq!(parse(HERMES, "", &[text]).0, "ab");
}

#[test]
fn closing_marks_after_a_call_are_dropped_however_many_there_are() {
    let text = r#"{"name": "add", "arguments": {"a": 1}}</tool_call></tool_call> b"#;
    assert_eq!(parse(LLAMA, "", &[text]), by_char(LLAMA, "", text));
    assert_eq!(parse(LLAMA, "", &[text]).0, "b");
}

proptest! {
    #[test]
    fn the_cuts_between_tokens_do_not_matter(
        parts in proptest::collection::vec(
            prop_oneof![
                Just("<think>"), Just("</think>"), Just("<tool_call>"), Just("</tool_call>"), Just("\n"), Just(" "),
                Just(r#"{"name": "add", "arguments": {"a": "}"}}"#), Just(r#"{"name": "#), Just("text"), Just("<"),
                Just("{"), Just("}"), Just("\""), Just("[") , Just("é"),
            ],
            0..12,
        ),
        llama in any::<bool>(),
    ) {
        let text = parts.concat();
        let style = if llama { LLAMA } else { HERMES };
        prop_assert_eq!(parse(style, "", &[&text]), by_char(style, "", &text));
    }
}
