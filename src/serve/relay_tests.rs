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

/// Everything forwarded before what is held at the end, that, and what followed.
#[derive(Debug, Default, PartialEq)]
struct Passed {
    before: Vec<u8>,
    terminal: Option<Vec<u8>>,
    rest: Vec<u8>,
    place: Option<Place>,
    largest_held: usize,
}

impl Passed {
    fn take(&mut self, step: Step) {
        match step {
            Step::Forward(bytes) => self.before.extend_from_slice(&bytes),
            Step::Complete(completion) => {
                self.before.extend_from_slice(&completion.before);
                self.terminal = Some(completion.terminal.to_vec());
                self.rest.extend_from_slice(&completion.rest);
                self.place = completion.place;
            }
        }
    }

    fn all(&self) -> Vec<u8> {
        [&self.before, self.terminal.as_deref().unwrap_or_default(), &self.rest].concat()
    }

    /// What the client gets.
    fn with_receipt(&self, dialect: Dialect) -> String {
        let terminal = self.terminal.as_deref().unwrap();
        let id = crate::domain::RecordId::new("r1").unwrap();
        let given = self
            .place
            .and_then(|place| crate::serve::receipt::with_receipt(dialect, place, terminal, None, &id));
        let terminal = given.unwrap_or_else(|| Bytes::copy_from_slice(terminal));
        String::from_utf8([&self.before[..], &terminal, &self.rest].concat()).unwrap()
    }
}

fn pass_in(dialect: Dialect, in_finish: bool, chunks: &[&[u8]]) -> Passed {
    let mut relay = Relay::new(dialect, in_finish, 1 << 20);
    let mut passed = Passed::default();
    let mut chunks = chunks.iter();
    for chunk in chunks.by_ref() {
        let step = relay.push(Bytes::copy_from_slice(chunk));
        passed.take(step);
        passed.largest_held = passed.largest_held.max(relay.held.len());
        if passed.terminal.is_some() {
            break;
        }
    }
    if passed.terminal.is_none() {
        let step = relay.finish(true);
        passed.take(step);
    }
    for chunk in chunks {
        passed.rest.extend_from_slice(chunk);
    }
    passed
}

fn pass(dialect: Dialect, chunks: &[&[u8]]) -> Passed {
    pass_in(dialect, false, chunks)
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
            assert_eq!(passed.place, Some(Place::Terminal));
        }
    }
}

#[test]
fn each_chunk_goes_on_at_once() {
    for (dialect, text, terminal) in ALL {
        let mut relay = Relay::new(dialect, false, 1 << 20);
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
    let mut relay = Relay::new(Dialect::OpenaiChat, true, 100);
    assert_eq!(relay.push(Bytes::from(text)), Step::Forward(Bytes::from(text)));
    assert_eq!(relay.finish(true), Step::Forward(Bytes::new()));
    assert_eq!(relay.ending(), Ending::Failed("slow down".to_owned()));
}

#[test]
fn a_stream_cut_anywhere_is_not_complete_and_its_bytes_all_pass() {
    for (dialect, text, _) in ALL {
        let stop = match dialect {
            Dialect::OpenaiChat => text.find("\"finish_reason\":\"tool").unwrap(),
            Dialect::Anthropic => text.find("\"stop_reason\":\"").unwrap(),
            Dialect::OpenaiResponses => text.rfind("event: response.completed").unwrap(),
        };
        for in_finish in [false, true] {
            for cut in (0..stop).step_by(7).chain([stop]) {
                let passed = pass_in(dialect, in_finish, &[&text.as_bytes()[..cut]]);
                assert_eq!(passed.terminal, None);
                assert_eq!(passed.before, &text.as_bytes()[..cut]);
            }
        }
    }
}

#[test]
fn a_whole_answer_without_its_closing_event_is_given_one() {
    for (dialect, text, terminal) in &ALL[..2] {
        let body = &text[..text.rfind(terminal).unwrap()];
        let bare = body.trim_end();
        for in_finish in [false, true] {
            for end in ["\n\n", "\n", "", "\r\n\r\n"] {
                let sent = format!("{bare}{end}");
                for size in [1, 50, 100_000] {
                    let chunks: Vec<&[u8]> = sent.as_bytes().chunks(size).collect();
                    let passed = pass_in(*dialect, in_finish, &chunks);
                    let got = passed.with_receipt(*dialect);
                    assert_eq!(got.matches(terminal).count(), 1, "{got}");
                    assert_eq!(got.matches("agent_record_id").count(), 1);
                    let without = got.replace(",\"reef\":{\"agent_record_id\":\"r1\"}", "");
                    assert!(without.starts_with(&sent), "{in_finish} {end:?} {size}: {got}");
                    // What is added begins an event of its own.
                    let events = without.replace("\r\n", "\n");
                    let last: Vec<&str> = events.trim_end().split("\n\n").collect();
                    assert!(last.last().unwrap().starts_with(terminal), "{events}");
                }
            }
        }
    }
    // A connection that broke is no clean end.
    let (dialect, text, terminal) = ALL[0];
    let body = &text[..text.rfind(terminal).unwrap()];
    let mut relay = Relay::new(dialect, true, 1 << 20);
    relay.push(Bytes::from(body));
    assert!(matches!(relay.finish(false), Step::Forward(_)));
}

#[test]
fn the_finish_chunk_takes_the_receipt_in_any_chunking() {
    let text = CHAT;
    let finish = text.find("data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,\"model\":\"m-1\",\"system_fingerprint\":\"fp\",\"choices\":[{\"index\":0,\"delta\":{},\"finish").unwrap();
    for size in [1, 7, 100, 100_000] {
        let chunks: Vec<&[u8]> = text.as_bytes().chunks(size).collect();
        let passed = pass_in(Dialect::OpenaiChat, true, &chunks);
        assert_eq!(passed.before, &text.as_bytes()[..finish], "{size}");
        let got = passed.with_receipt(Dialect::OpenaiChat);
        let want = text.replace(
            "\"finish_reason\":\"tool_calls\"}]}",
            "\"finish_reason\":\"tool_calls\"}],\"reef\":{\"agent_record_id\":\"r1\"}}",
        );
        assert_eq!(got, want, "{size}");
    }
}

#[test]
fn of_several_finish_chunks_the_last_takes_the_receipt_and_none_waits_for_long() {
    let chunk = |index: u32, finish: &str| {
        format!(
            "data: {{\"choices\":[{{\"index\":{index},\"delta\":{{\"content\":\"x\"}},\"finish_reason\":{finish}}}]}}\n\n"
        )
    };
    // Two choices, one after the other; a server that gives a reason with every token.
    for (sent, last) in [
        (
            [
                chunk(0, "null"),
                chunk(1, "null"),
                chunk(1, "\"stop\""),
                chunk(0, "\"stop\""),
            ],
            3,
        ),
        (
            [
                chunk(0, "\"stop\""),
                chunk(1, "null"),
                chunk(1, "\"stop\""),
                String::new(),
            ],
            2,
        ),
        (
            [
                chunk(0, "\"length\""),
                chunk(0, "\"length\""),
                chunk(0, "\"length\""),
                String::new(),
            ],
            2,
        ),
    ] {
        let text = format!("{}data: [DONE]\n\n", sent.concat());
        let pieces: Vec<&[u8]> = text.split_inclusive("\n\n").map(str::as_bytes).collect();
        let passed = pass_in(Dialect::OpenaiChat, true, &pieces);
        assert_eq!(String::from_utf8_lossy(&passed.before), sent[..last].concat());
        assert!(passed.largest_held <= sent[last].len() + 20, "{}", passed.largest_held);
    }
    // A further token after all: the receipt gets a chunk of its own.
    let text = format!("{}{}data: [DONE]\n\n", chunk(0, "\"stop\""), chunk(0, "null"));
    let passed = pass_in(Dialect::OpenaiChat, true, &[text.as_bytes()]);
    assert_eq!(passed.place, Some(Place::Terminal));
    assert!(
        passed
            .with_receipt(Dialect::OpenaiChat)
            .contains("\"choices\":[],\"reef\"")
    );
}

#[test]
fn what_waits_for_an_end_that_does_not_come_is_let_go() {
    let finish = "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";
    let mut relay = Relay::new(Dialect::OpenaiChat, true, 1 << 20);
    assert_eq!(
        relay.push(Bytes::from(format!("{finish}data: {{\"us"))),
        Step::Forward(Bytes::new())
    );
    assert_eq!(relay.let_go(), format!("{finish}data: {{\"us"));
    let mut relay = Relay::new(Dialect::OpenaiChat, true, 1 << 20);
    relay.push(Bytes::from(format!("{finish}data: [DO")));
    assert_eq!(relay.let_go(), finish);
    let Step::Complete(completion) = relay.push(Bytes::from("NE]\n\n")) else {
        panic!("it is complete")
    };
    assert_eq!(
        (&completion.terminal[..], completion.place),
        (&b"data: [DONE]\n\n"[..], Some(Place::Terminal))
    );
}

#[test]
fn events_that_one_line_end_keeps_apart_go_on_and_are_understood() {
    let chunk = |text: &str, finish: &str| {
        format!("data: {{\"choices\":[{{\"delta\":{{\"content\":\"{text}\"}},\"finish_reason\":{finish}}}]}}\n")
    };
    let text = format!(
        "{}{}{}data: [DONE]\n\n",
        chunk("a", "null"),
        chunk("b", "null"),
        chunk("c", "\"stop\"")
    );
    for in_finish in [false, true] {
        let mut relay = Relay::new(Dialect::OpenaiChat, in_finish, 1 << 20);
        let mut complete = false;
        let mut held = 0;
        for line in text.split_inclusive('\n') {
            complete |= matches!(relay.push(Bytes::copy_from_slice(line.as_bytes())), Step::Complete(_));
            held = held.max(relay.held.len());
        }
        assert!(complete && held <= 100, "{held}");
        assert_eq!(relay.into_record().1.text, "abc");
    }
}

#[test]
fn lines_of_json_pass_as_they_come_and_take_no_receipt() {
    let line = |text: &str, finish: &str| {
        format!("{{\"choices\":[{{\"delta\":{{\"content\":\"{text}\"}},\"finish_reason\":{finish}}}]}}\n")
    };
    let text = line("a", "null") + &line("b", "\"stop\"");
    let passed = pass_in(Dialect::OpenaiChat, true, &[text.as_bytes()]);
    assert_eq!((passed.all(), passed.place), (text.into_bytes(), None));
    assert!(passed.terminal.is_some());
    // Such a line in an event stream is how some servers report a failure.
    let mut relay = Relay::new(Dialect::OpenaiChat, true, 1 << 20);
    relay.push(Bytes::from(
        "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n{\"error\":\"no memory\"}\n",
    ));
    relay.finish(true);
    assert_eq!(relay.ending(), Ending::Failed("no memory".to_owned()));
}

#[test]
fn an_end_without_an_answer_is_no_answer() {
    for text in [
        "data: [DONE]\n\n",
        "data: {\"choices\":[]}\n\ndata: [DONE]\n\n",
        "data: <html>\n\ndata: [DONE]\n\n",
    ] {
        let mut relay = Relay::new(Dialect::OpenaiChat, true, 1 << 20);
        let mut passed = Passed::default();
        passed.take(relay.push(Bytes::from(text)));
        passed.take(relay.finish(true));
        assert_eq!(
            (passed.terminal.as_ref(), passed.all()),
            (None, text.as_bytes().to_vec())
        );
        assert_eq!(relay.ending(), Ending::Empty);
    }
}

#[test]
fn comments_fit_between_lines_only() {
    let mut relay = Relay::new(Dialect::Anthropic, true, 1000);
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
    let mut relay = Relay::new(Dialect::OpenaiChat, true, 100);
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
        in_finish: bool,
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
        let passed = pass_in(dialect, in_finish, &chunks);
        let all = passed.all();
        // A damaged end may be given its blank line.
        prop_assert!(all.starts_with(&bytes) && all.len() <= bytes.len() + 2);
        let whole = pass_in(dialect, in_finish, &[&bytes]);
        prop_assert_eq!(whole.terminal.is_some(), passed.terminal.is_some());
    }
}
