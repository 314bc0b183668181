//! The same turn from every chunking, every line ending and the whole body.

use proptest::prelude::*;

use super::{Assembler, Limits, Progress, Scanner, turn_of_body};
use crate::domain::{Dialect, Route, ToolCall, Turn, Usage};

const CHAT: &str = include_str!("fixtures/chat.sse");
const MESSAGES: &str = include_str!("fixtures/messages.sse");
const RESPONSES: &str = include_str!("fixtures/responses.sse");

fn run(dialect: Dialect, chunks: &[&[u8]]) -> (Turn, bool) {
    let mut scanner = Scanner::default();
    let mut assembler = Assembler::new(dialect, Limits::default());
    let mut complete = false;
    for chunk in chunks {
        let mut rest = *chunk;
        while !rest.is_empty() {
            let taken = scanner.advance(rest);
            assert!(taken > 0, "no progress");
            rest = &rest[taken..];
            if let Some(event) = scanner.event() {
                complete |= assembler.take(event) == Progress::Complete;
            }
        }
    }
    scanner.finish();
    if let Some(event) = scanner.event() {
        complete |= assembler.take(event) == Progress::Complete;
    }
    (assembler.finish(), complete)
}

fn call(id: &str, name: &str, arguments: &str) -> ToolCall {
    ToolCall {
        id: id.to_owned(),
        name: name.to_owned(),
        arguments: arguments.to_owned(),
    }
}

fn expected(dialect: Dialect) -> Turn {
    let (stop, id, model) = match dialect {
        Dialect::OpenaiChat => ("tool_calls", "chatcmpl-1", "m-1"),
        Dialect::Anthropic => ("tool_use", "msg_1", "m-1"),
        Dialect::OpenaiResponses => ("completed", "resp_1", "m-1"),
    };
    Turn {
        text: "Grüße 世界 🐟".to_owned(),
        reasoning: "hmm".to_owned(),
        tool_calls: vec![
            call("call_a", "read", r#"{"path":"a.txt"}"#),
            call("call_b", "read", r#"{"path":"é.txt"}"#),
        ],
        stop_reason: Some(stop.to_owned()),
        usage: Some(Usage {
            input_tokens: Some(11),
            output_tokens: Some(7),
            cached_tokens: Some(3),
            reasoning_tokens: (dialect != Dialect::Anthropic).then_some(2),
        }),
        model: Some(model.to_owned()),
        response_id: Some(id.to_owned()),
        notes: vec![],
    }
}

const ALL: [(Dialect, &str); 3] = [
    (Dialect::OpenaiChat, CHAT),
    (Dialect::Anthropic, MESSAGES),
    (Dialect::OpenaiResponses, RESPONSES),
];

#[test]
fn a_whole_stream_gives_the_turn() {
    for (dialect, text) in ALL {
        let (turn, complete) = run(dialect, &[text.as_bytes()]);
        assert!(complete, "{dialect:?}");
        assert_eq!(turn, expected(dialect), "{dialect:?}");
    }
}

#[test]
fn one_byte_at_a_time_in_three_line_endings() {
    for (dialect, text) in ALL {
        for ending in ["\n", "\r\n", "\r"] {
            let text = text.replace('\n', ending);
            let bytes: Vec<&[u8]> = text.as_bytes().chunks(1).collect();
            let (turn, complete) = run(dialect, &bytes);
            assert!(complete, "{dialect:?} {ending:?}");
            assert_eq!(turn, expected(dialect), "{dialect:?} {ending:?}");
        }
    }
}

#[test]
fn a_last_event_without_its_blank_line_counts() {
    for (dialect, text) in ALL {
        let bare = text.trim_end();
        for end in ["", "\n", "\n\n", "\r\n", "\r"] {
            let (turn, complete) = run(dialect, &[format!("{bare}{end}").as_bytes()]);
            assert!(complete, "{dialect:?} {end:?}");
            assert_eq!(turn, expected(dialect));
        }
    }
}

#[test]
fn without_its_terminal_event_a_stream_is_not_complete() {
    for (dialect, text) in ALL {
        let bare = text.trim_end();
        let cut = bare.rfind("\n\n").unwrap();
        assert!(!run(dialect, &[&bare.as_bytes()[..cut + 2]]).1, "{dialect:?}");
    }
}

#[test]
fn a_failure_event_is_told_apart() {
    let cases = [
        (
            Dialect::OpenaiChat,
            "data: {\"error\":{\"message\":\"slow down\",\"code\":429}}\n\n",
        ),
        (
            Dialect::Anthropic,
            "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"slow down\"}}\n\n",
        ),
        (
            Dialect::OpenaiResponses,
            "data: {\"type\":\"response.failed\",\"response\":{\"error\":{\"message\":\"slow down\"}}}\n\n",
        ),
        (
            Dialect::OpenaiResponses,
            "data: {\"type\":\"error\",\"code\":\"429\",\"message\":\"slow down\"}\n\n",
        ),
    ];
    for (dialect, text) in cases {
        let mut scanner = Scanner::default();
        scanner.advance(text.as_bytes());
        let mut assembler = Assembler::new(dialect, Limits::default());
        let progress = assembler.take(scanner.event().unwrap());
        assert_eq!(progress, Progress::Failed("slow down".to_owned()), "{dialect:?}");
    }
}

#[test]
fn null_counters_are_absent_counters() {
    let stream = concat!(
        "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"m\",\"usage\":{\"input_tokens\":5,\"cache_read_input_tokens\":null}}}\n\n",
        "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"input_tokens\":null,\"output_tokens\":4}}\n\n",
        "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"
    );
    let (turn, complete) = run(Dialect::Anthropic, &[stream.as_bytes()]);
    assert!(complete);
    let usage = turn.usage.unwrap();
    assert_eq!(
        (usage.input_tokens, usage.output_tokens, usage.cached_tokens),
        (Some(5), Some(4), None)
    );
}

#[test]
fn memory_is_bounded_and_the_cut_is_noted() {
    let mut assembler = Assembler::new(Dialect::OpenaiChat, Limits { turn_bytes: 1000 });
    let mut scanner = Scanner::default();
    let chunk = format!(
        "data: {{\"choices\":[{{\"delta\":{{\"content\":\"{}\"}}}}]}}\n\n",
        "x".repeat(100)
    );
    for _ in 0..100 {
        scanner.advance(chunk.as_bytes());
        assembler.take(scanner.event().unwrap());
    }
    let turn = assembler.finish();
    assert!(turn.text.len() <= 1000 && turn.text.len() >= 500);
    assert_eq!(turn.notes.len(), 1);
}

#[test]
fn whole_bodies_give_the_same_turn() {
    for (route, body) in [
        (Route::ChatCompletions, include_str!("fixtures/chat.json")),
        (Route::Messages, include_str!("fixtures/messages.json")),
        (Route::Responses, include_str!("fixtures/responses.json")),
    ] {
        assert_eq!(
            turn_of_body(route, body.as_bytes()),
            expected(route.dialect()),
            "{route:?}"
        );
    }
    let counted = turn_of_body(Route::CountTokens, br#"{"input_tokens":9}"#);
    assert_eq!(counted.usage.unwrap().input_tokens, Some(9));
    assert_eq!(turn_of_body(Route::Messages, b"<html>").notes.len(), 1);
}

proptest! {
    #[test]
    fn chunking_changes_nothing(cuts in proptest::collection::vec(0usize..4000, 0..40), which in 0usize..3, ending in 0usize..3) {
        let (dialect, text) = ALL[which];
        let text = text.replace('\n', ["\n", "\r\n", "\r"][ending]);
        let mut cuts: Vec<usize> = cuts.into_iter().map(|c| c % (text.len() + 1)).collect();
        cuts.extend([0, text.len()]);
        cuts.sort_unstable();
        let chunks: Vec<&[u8]> = cuts.windows(2).map(|w| &text.as_bytes()[w[0]..w[1]]).collect();
        let (turn, complete) = run(dialect, &chunks);
        prop_assert!(complete);
        prop_assert_eq!(turn, expected(dialect));
    }

    #[test]
    fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600), which in 0usize..3) {
        let _turn = run(ALL[which].0, &[&bytes]);
    }

    #[test]
    fn no_event_makes_it_panic(
        lines in proptest::collection::vec("(data|event|id|:|)(: ?)?[\\{\\}\\[\\]\",:a-z0-9\\\\]{0,30}(\n|\r\n|\r|\n\n)", 0..40),
        which in 0usize..3,
    ) {
        let text = lines.concat();
        let whole = run(ALL[which].0, &[text.as_bytes()]);
        let bytes: Vec<&[u8]> = text.as_bytes().chunks(1).collect();
        prop_assert_eq!(run(ALL[which].0, &bytes), whole);
    }

    #[test]
    fn mutated_streams_give_the_same_in_any_chunking(at in 0usize..4000, byte in any::<u8>(), size in 1usize..9, which in 0usize..3) {
        let (dialect, text) = ALL[which];
        let mut bytes = text.as_bytes().to_vec();
        let at = at % bytes.len();
        bytes[at] = byte;
        let chunks: Vec<&[u8]> = bytes.chunks(size).collect();
        prop_assert_eq!(run(dialect, &chunks), run(dialect, &[&bytes]));
    }
}
