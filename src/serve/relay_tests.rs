//! What goes in comes out, in every chunking; only the terminal event waits.

use proptest::prelude::*;

use super::*;

const CHAT: &str = include_str!("../engine/sse/fixtures/chat.sse");
const MESSAGES: &str = include_str!("../engine/sse/fixtures/messages.sse");
const RESPONSES: &str = include_str!("../engine/sse/fixtures/responses.sse");
const ALL: [(Dialect, &str, &str); 3] = [
    (Dialect::OpenaiChat, CHAT, "data: [DONE]"),
    (Dialect::Anthropic, MESSAGES, "event: message_stop"),
    (Dialect::OpenaiResponses, RESPONSES, "event: response.completed"),
];

/// Everything forwarded before the terminal event, the event, and what followed.
#[derive(Debug, Default, PartialEq)]
struct Passed {
    before: Vec<u8>,
    terminal: Option<Vec<u8>>,
    rest: Vec<u8>,
    whole: bool,
    largest_held: usize,
}

fn pass(dialect: Dialect, chunks: &[&[u8]]) -> Passed {
    let mut relay = Relay::new(dialect, 1 << 20);
    let mut passed = Passed::default();
    let mut chunks = chunks.iter();
    let complete = |passed: &mut Passed, step: Step| match step {
        Step::Forward(bytes) => passed.before.extend_from_slice(&bytes),
        Step::Complete {
            before,
            terminal,
            rest,
            whole,
        } => {
            passed.before.extend_from_slice(&before);
            passed.terminal = Some(terminal.to_vec());
            passed.rest.extend_from_slice(&rest);
            passed.whole = whole;
        }
    };
    for chunk in chunks.by_ref() {
        let step = relay.push(Bytes::copy_from_slice(chunk));
        complete(&mut passed, step);
        passed.largest_held = passed.largest_held.max(relay.held.len());
        if passed.terminal.is_some() {
            break;
        }
    }
    if passed.terminal.is_none() {
        let step = relay.finish();
        complete(&mut passed, step);
    }
    for chunk in chunks {
        passed.rest.extend_from_slice(chunk);
    }
    passed
}

#[test]
fn one_byte_at_a_time_only_the_terminal_event_waits() {
    for (dialect, text, terminal) in ALL {
        for ending in ["\n", "\r\n", "\r"] {
            let text = text.replace('\n', ending);
            let chunks: Vec<&[u8]> = text.as_bytes().chunks(1).collect();
            let passed = pass(dialect, &chunks);
            let start = text.rfind(terminal).unwrap();
            assert_eq!(passed.before, &text.as_bytes()[..start], "{dialect:?} {ending:?}");
            let mut after = passed.terminal.clone().unwrap();
            after.extend_from_slice(&passed.rest);
            assert_eq!(after, &text.as_bytes()[start..], "{dialect:?} {ending:?}");
            assert!(passed.whole);
        }
    }
}

#[test]
fn each_chunk_goes_on_at_once() {
    for (dialect, text, terminal) in ALL {
        let mut relay = Relay::new(dialect, 1 << 20);
        for event in text
            .split_inclusive("\n\n")
            .filter(|event| !event.starts_with(terminal))
        {
            // Cut in the middle of the data, well after its beginning says what it is.
            let cut = event.len() * 2 / 3;
            let whole = event.starts_with(": ") || event.starts_with("event: ping");
            for part in if whole {
                vec![event]
            } else {
                vec![&event[..cut], &event[cut..]]
            } {
                let step = relay.push(Bytes::copy_from_slice(part.as_bytes()));
                assert_eq!(step, Step::Forward(Bytes::copy_from_slice(part.as_bytes())));
            }
        }
    }
}

#[test]
fn a_terminal_event_without_its_end_is_given_one() {
    for (dialect, text, terminal) in ALL {
        let bare = text.trim_end();
        let start = bare.rfind(terminal).unwrap();
        for (end, given) in [("", "\n\n"), ("\n", "\n"), ("\r\n", "\n"), ("\r", "\n\n"), ("\n\n", "")] {
            let text = format!("{bare}{end}");
            let passed = pass(dialect, &[text.as_bytes()]);
            assert_eq!(passed.before, &text.as_bytes()[..start]);
            let event = String::from_utf8(passed.terminal.unwrap()).unwrap();
            assert_eq!(event, format!("{}{end}{given}", &bare[start..]), "{dialect:?} {end:?}");
        }
    }
}

#[test]
fn a_failure_is_passed_on_and_nothing_after_it_completes() {
    let text = "data: {\"error\":{\"message\":\"slow down\"}}\n\ndata: [DONE]\n\n";
    let mut relay = Relay::new(Dialect::OpenaiChat, 100);
    assert_eq!(relay.push(Bytes::from(text)), Step::Forward(Bytes::from(text)));
    assert_eq!(relay.finish(), Step::Forward(Bytes::new()));
    assert_eq!(relay.ending(), Ending::Failed("slow down".to_owned()));
}

#[test]
fn a_stream_cut_anywhere_is_not_complete_and_its_bytes_all_pass() {
    for (dialect, text, terminal) in ALL {
        let start = text.rfind(terminal).unwrap();
        for cut in (0..start).step_by(7).chain([start]) {
            let passed = pass(dialect, &[&text.as_bytes()[..cut]]);
            assert_eq!(passed.terminal, None);
            assert_eq!(passed.before, &text.as_bytes()[..cut]);
        }
    }
}

#[test]
fn comments_fit_between_lines_only() {
    let mut relay = Relay::new(Dialect::Anthropic, 1000);
    assert_eq!(relay.comment(), Some(&b": keep-alive\n\n"[..]));
    for (bytes, comment, separator) in [
        ("event: ping\n", Some(&b": keep-alive\n"[..]), &b"\n"[..]),
        ("data: {", None, b"\n\n"),
        ("}\n\n", Some(b": keep-alive\n\n"), b""),
        ("event: x\r", None, b"\n\n"),
        ("\ndata: 1\n\n", Some(b": keep-alive\n\n"), b""),
        ("event: message_st", None, b"\n\n"),
    ] {
        relay.push(Bytes::from(bytes));
        assert_eq!(relay.comment(), comment, "{bytes:?}");
        assert_eq!(relay.separator(), separator, "{bytes:?}");
    }
}

#[test]
fn what_is_recorded_is_bounded_and_the_cut_is_noted() {
    let mut relay = Relay::new(Dialect::OpenaiChat, 100);
    relay.push(Bytes::from("data: {\"choices\":[]}\n\n".repeat(20)));
    let (recorded, turn, _) = relay.into_record();
    assert_eq!(recorded.len(), 100);
    assert!(turn.notes.iter().any(|note| note.contains("recording limit")));
}

proptest! {
    #[test]
    fn bytes_pass_unchanged_in_any_chunking(
        cuts in proptest::collection::vec(0usize..5000, 0..30),
        which in 0usize..3,
        ending in 0usize..3,
        damage in proptest::option::of((0usize..5000, any::<u8>())),
    ) {
        let (dialect, text, _) = ALL[which];
        let mut bytes = text.replace('\n', ["\n", "\r\n", "\r"][ending]).into_bytes();
        if let Some((at, byte)) = damage {
            let at = at % bytes.len();
            bytes[at] = byte;
        }
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut % (bytes.len() + 1)).collect();
        cuts.extend([0, bytes.len()]);
        cuts.sort_unstable();
        let chunks: Vec<&[u8]> = cuts.windows(2).map(|w| &bytes[w[0]..w[1]]).collect();
        let passed = pass(dialect, &chunks);
        let mut all = passed.before.clone();
        all.extend_from_slice(passed.terminal.as_deref().unwrap_or_default());
        all.extend_from_slice(&passed.rest);
        // A damaged end may be given its blank line.
        prop_assert!(all.starts_with(&bytes) && all.len() <= bytes.len() + 2);
        let whole = pass(dialect, &[&bytes]);
        prop_assert_eq!(whole.terminal.is_some(), passed.terminal.is_some());
    }
}
