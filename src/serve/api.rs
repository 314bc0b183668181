//! The provider's API as it is served below `/v1`: what of it is recorded, what passes, and which path a client meant.

use std::borrow::Cow;
use std::fmt::Write;

use http::{HeaderMap, Method};

use super::query::decode;
use crate::domain::{Dialect, Route};

/// What becomes of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kept {
    /// It asks the model: the exchange is recorded.
    Recorded(Route),
    /// It asks for an answer that another request began: that is recorded once it is there.
    Fetched(Route),
    /// Reef answers itself.
    Answered,
    /// It goes to the provider and its answer comes back, bytes as they are; nothing is recorded.
    Passed,
}

/// A line of the table.
struct Entry {
    methods: &'static [&'static str],
    /// `{id}` stands for one segment, `*` at the end for any number of them.
    path: &'static str,
    kept: Kept,
    trains: &'static str,
    /// Why it is recorded or not.
    why: &'static str,
}

const GET: &[&str] = &["GET"];
const POST: &[&str] = &["POST"];
const DELETE: &[&str] = &["DELETE"];
const ANY: &[&str] = &["any"];

const fn recorded(route: Route, path: &'static str, trains: &'static str, why: &'static str) -> Entry {
    Entry {
        methods: POST,
        path,
        kept: Kept::Recorded(route),
        trains,
        why,
    }
}

const fn passed(methods: &'static [&'static str], path: &'static str, why: &'static str) -> Entry {
    Entry {
        methods,
        path,
        kept: Kept::Passed,
        trains: "no",
        why,
    }
}

const TURN: &str = "a turn of the model";
const STORED: &str = "an answer that has its receipt already";
const NO_TURN: &str = "no turn of the model";
const LATER: &str = "many answers later, in a file";
const MANAGED: &str = "things the provider keeps";

/// Every route a provider is known to have, in the order of the reference.
#[rustfmt::skip]
const TABLE: &[Entry] = &[
    recorded(Route::ChatCompletions, "/v1/chat/completions", "yes", TURN),
    recorded(Route::Responses, "/v1/responses", "yes", "a turn of the model; one that is only queued has no receipt"),
    Entry { methods: GET, path: "/v1/responses/{id}", kept: Kept::Fetched(Route::Responses), trains: "yes", why: "fetches a turn that was queued; one that has a receipt keeps it" },
    recorded(Route::Messages, "/v1/messages", "yes", TURN),
    recorded(Route::CountTokens, "/v1/messages/count_tokens", "no", "what a turn would cost; there is no answer to learn from"),
    recorded(Route::Completions, "/v1/completions", "no", "a continuation; there are no messages to render"),
    Entry { methods: GET, path: "/v1/chat/deferred-completion/{id}", kept: Kept::Fetched(Route::ChatCompletions), trains: "yes", why: "fetches a turn that was deferred" },
    Entry { methods: GET, path: "/v1/models", kept: Kept::Answered, trains: "no", why: "what can be asked for, in the dialect of the client" },
    Entry { methods: GET, path: "/v1/models/{id}/*", kept: Kept::Answered, trains: "no", why: "one of them" },
    passed(DELETE, "/v1/models/{id}/*", MANAGED),
    passed(DELETE, "/v1/responses/{id}", STORED),
    passed(POST, "/v1/responses/{id}/cancel", "ends a turn; there is none to record"),
    passed(GET, "/v1/responses/{id}/input_items", "what was asked, which the record holds"),
    passed(POST, "/v1/responses/compact", "a shorter form of a conversation, unreadable to anyone else"),
    passed(POST, "/v1/responses/input_tokens", NO_TURN),
    passed(ANY, "/v1/conversations/*", MANAGED),
    passed(GET, "/v1/chat/completions", STORED),
    passed(&["GET", "POST", "DELETE"], "/v1/chat/completions/{id}", STORED),
    passed(GET, "/v1/chat/completions/{id}/messages", STORED),
    passed(POST, "/v1/complete", "text completions of before the messages; their prompts hold no messages"),
    passed(ANY, "/v1/messages/batches/*", LATER),
    passed(ANY, "/v1/batches/*", LATER),
    passed(POST, "/v1/embeddings", NO_TURN),
    passed(POST, "/v1/rerank", NO_TURN),
    passed(POST, "/v1/score", NO_TURN),
    passed(POST, "/v1/classify", NO_TURN),
    passed(POST, "/v1/pooling", NO_TURN),
    passed(POST, "/v1/moderations", NO_TURN),
    passed(POST, "/v1/tokenize", NO_TURN),
    passed(POST, "/v1/detokenize", NO_TURN),
    passed(POST, "/v1/images/*", "pictures, no turn"),
    passed(ANY, "/v1/videos/*", "pictures, no turn"),
    passed(POST, "/v1/audio/*", "sound, no turn"),
    passed(ANY, "/v1/realtime/*", "keys for connections of the client's own; a WebSocket itself is refused"),
    passed(ANY, "/v1/files/*", MANAGED),
    passed(ANY, "/v1/uploads/*", MANAGED),
    passed(ANY, "/v1/fine_tuning/*", MANAGED),
    passed(ANY, "/v1/vector_stores/*", MANAGED),
    passed(ANY, "/v1/containers/*", MANAGED),
    passed(ANY, "/v1/skills/*", MANAGED),
    passed(ANY, "/v1/evals/*", MANAGED),
    passed(ANY, "/v1/assistants/*", MANAGED),
    passed(ANY, "/v1/threads/*", "turns that the provider takes and keeps by itself"),
    passed(ANY, "/v1/organization/*", MANAGED),
    passed(ANY, "/v1/*", "whatever else a provider has"),
];

impl Entry {
    fn fits(&self, segments: &[&str]) -> bool {
        let mut pattern = self.path.split('/').skip(1);
        let mut segments = segments.iter();
        loop {
            match (pattern.next(), segments.next()) {
                (Some("*"), _) | (None, None) => return true,
                (Some("{id}"), Some(_)) => {}
                (Some(word), Some(segment)) if word == *segment => {}
                _ => return false,
            }
        }
    }

    fn takes(&self, method: &str) -> bool {
        let method = if method == "HEAD" { "GET" } else { method };
        self.methods == ANY || self.methods.contains(&method)
    }
}

fn segments(path: &str) -> Vec<&str> {
    path.split('/').filter(|segment| !segment.is_empty()).collect()
}

/// What becomes of a request for a path below `/v1`. `Err` holds the methods of a route that takes no other: one that asks
/// the model, so that no such answer passes unrecorded by mistake, or one that Reef answers.
pub(super) fn kept(method: &Method, path: &str) -> Result<Kept, &'static [&'static str]> {
    let segments = segments(path);
    let entries = || TABLE.iter().filter(|entry| entry.fits(&segments));
    let found = entries().find(|entry| entry.takes(method.as_str()));
    let asks = entries().find(|entry| matches!(entry.kept, Kept::Recorded(_)) || entry.path == "/v1/models");
    match (found, asks) {
        // What only the last line takes is a route's own method misspelt.
        (Some(entry), Some(asks)) if entry.path == "/v1/*" => Err(asks.methods),
        (Some(entry), _) => Ok(entry.kept),
        (None, _) => Ok(Kept::Passed),
    }
}

/// The dialect of a caller on a path that is not of one dialect by itself.
pub(super) fn dialect(path: &str, headers: &HeaderMap) -> Option<Dialect> {
    let of_path = segments(path).iter().any(|segment| {
        segment.eq_ignore_ascii_case("messages") || *segment == "count_tokens" || *segment == "complete"
    });
    let of_chat = path.contains("/chat/") || path.contains("/threads/") || path.contains("/conversations");
    (headers.contains_key("anthropic-version") || of_path && !of_chat).then_some(Dialect::Anthropic)
}

/// Whether it is a path that must not be passed on: it could lead out of the provider's API.
pub(super) fn leads_away(path: &str) -> bool {
    path.split('/').any(|segment| {
        let plain = decode(segment).unwrap_or_else(|_| segment.to_owned());
        plain.split(['/', '\\']).any(|part| part == "." || part == "..")
    })
}

/// The path a client means whose base URL has a part too many, too few or twice: slashes, `/v1`, or the whole route.
/// Everything else stays as it is.
pub(super) fn meant<'a>(method: &Method, path: &'a str) -> Cow<'a, str> {
    let given = segments(path);
    let mut meant: &[&str] = &given;
    let first = meant.first().copied();
    if first != Some("v1") {
        // Known ones only, and none of Reef's own.
        if first.is_none() || !is_known(method, meant) {
            return Cow::Borrowed(path);
        }
    }
    while let ["v1", rest @ ..] = meant {
        meant = rest;
    }
    let meant = once(method, meant);
    let text = format!(
        "/v1{}",
        meant.iter().fold(String::new(), |text, segment| text + "/" + segment)
    );
    if text == path {
        Cow::Borrowed(path)
    } else {
        Cow::Owned(text)
    }
}

/// Whether `/v1` and these segments are a route of the table's own lines.
fn is_known(method: &Method, segments: &[&str]) -> bool {
    let mut with = vec!["v1"];
    with.extend_from_slice(segments);
    TABLE
        .iter()
        .any(|entry| entry.path != "/v1/*" && entry.fits(&with) && entry.takes(method.as_str()))
}

/// A base URL that ends with a route makes clients ask for the route twice.
fn once<'a>(method: &Method, segments: &'a [&'a str]) -> &'a [&'a str] {
    for route in Route::ALL {
        let tail = self::segments(&route.path()[3..]);
        let Some(mut rest) = segments.strip_prefix(tail.as_slice()) else {
            continue;
        };
        if let ["v1", after @ ..] = rest {
            rest = after;
        }
        let asks = Route::ALL
            .iter()
            .any(|route| self::segments(&route.path()[3..]) == rest && *method == Method::POST);
        if asks {
            return rest;
        }
    }
    segments
}

/// The route that a path no one knows most likely was to be.
pub(super) fn nearest(path: &str) -> Option<&'static str> {
    let lower = path.to_ascii_lowercase();
    let given = segments(&lower);
    let known = TABLE.iter().filter(|entry| !entry.path.contains(['{', '*']));
    known
        .filter(|entry| {
            let tail = segments(&entry.path[3..]);
            given.ends_with(&tail)
        })
        .max_by_key(|entry| entry.path.len())
        .map(|entry| entry.path)
}

/// The table as the reference shows it.
pub fn provider_routes() -> String {
    let mut text = "| Route | Recorded | Trains | Why |\n|---|---|---|---|\n".to_owned();
    for entry in TABLE {
        let recorded = match entry.kept {
            Kept::Recorded(_) => "yes",
            Kept::Fetched(_) => "once it is there",
            Kept::Answered | Kept::Passed => "no",
        };
        let methods = if entry.methods == ANY {
            String::new()
        } else {
            format!("{} ", entry.methods.join(", "))
        };
        // Writing to a String cannot fail.
        let _infallible = writeln!(
            text,
            "| `{methods}{}` | {recorded} | {} | {} |",
            entry.path, entry.trains, entry.why
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_recorded_route_stands_in_the_table_under_its_own_path() {
        for route in Route::ALL {
            assert_eq!(kept(&Method::POST, route.path()), Ok(Kept::Recorded(route)));
        }
        for entry in TABLE {
            let path = entry.path.replace("{id}", "x1").replace("/*", "/a/b");
            let method = if entry.methods == ANY { "POST" } else { entry.methods[0] };
            assert_eq!(kept(&method.parse().unwrap(), &path), Ok(entry.kept), "{method} {path}");
        }
    }

    #[test]
    fn methods_decide_too() {
        for (method, path, want) in [
            ("GET", "/v1/chat/completions", Ok(Kept::Passed)),
            ("HEAD", "/v1/models", Ok(Kept::Answered)),
            ("DELETE", "/v1/models/x", Ok(Kept::Passed)),
            ("PUT", "/v1/embeddings", Ok(Kept::Passed)),
            ("GET", "/v1/unheard/of", Ok(Kept::Passed)),
            ("GET", "/v1/messages", Err(POST)),
            ("PUT", "/v1/chat/completions", Err(POST)),
            ("GET", "/v1/completions", Err(POST)),
            ("GET", "/v1/messages/count_tokens", Err(POST)),
            ("DELETE", "/v1/responses", Err(POST)),
            ("DELETE", "/v1/models", Err(GET)),
        ] {
            assert_eq!(kept(&method.parse().unwrap(), path), want, "{method} {path}");
        }
    }

    #[test]
    fn a_base_url_with_a_part_too_many_or_too_few_is_understood() {
        for (method, given, want) in [
            ("POST", "/v1/messages", "/v1/messages"),
            ("POST", "/v1/v1/messages", "/v1/messages"),
            ("POST", "//v1//messages", "/v1/messages"),
            ("POST", "/v1/v1/v1/chat/completions", "/v1/chat/completions"),
            ("POST", "/chat/completions", "/v1/chat/completions"),
            ("POST", "/chat/completions/", "/v1/chat/completions"),
            ("POST", "/messages/count_tokens", "/v1/messages/count_tokens"),
            ("GET", "/models", "/v1/models"),
            ("GET", "/responses/resp_1", "/v1/responses/resp_1"),
            ("POST", "/embeddings", "/v1/embeddings"),
            ("POST", "/v1/chat/completions/chat/completions", "/v1/chat/completions"),
            ("POST", "/v1/messages/v1/messages", "/v1/messages"),
            (
                "POST",
                "/v1/messages/v1/messages/count_tokens",
                "/v1/messages/count_tokens",
            ),
            ("POST", "/v1/responses/responses", "/v1/responses"),
            ("GET", "/v1/responses/responses", "/v1/responses/responses"),
            ("POST", "/v1/responses/x/cancel", "/v1/responses/x/cancel"),
            ("GET", "/v1/files/v1", "/v1/files/v1"),
            ("GET", "/reef/status", "/reef/status"),
            ("GET", "/healthz", "/healthz"),
            ("GET", "/", "/"),
            ("POST", "/api/v1/messages", "/api/v1/messages"),
            ("POST", "/complete-nonsense", "/complete-nonsense"),
        ] {
            assert_eq!(meant(&method.parse().unwrap(), given), want, "{method} {given}");
        }
    }

    #[test]
    fn what_nobody_knows_is_told_the_nearest_route() {
        for (path, want) in [
            ("/api/v1/messages", Some("/v1/messages")),
            ("/V1/Chat/Completions", Some("/v1/chat/completions")),
            ("/openai/deployments/x/chat/completions", Some("/v1/chat/completions")),
            ("/v2/messages/count_tokens", Some("/v1/messages/count_tokens")),
            ("/v1beta/models", Some("/v1/models")),
            ("/nothing", None),
        ] {
            assert_eq!(nearest(path), want, "{path}");
        }
    }

    #[test]
    fn no_path_leads_out_of_the_api() {
        for path in [
            "/v1/../admin",
            "/v1/files/%2e%2E/x",
            "/v1/./x",
            "/v1/a%2f..%2fb",
            "/v1/..%5cx",
        ] {
            assert!(leads_away(path), "{path}");
        }
        for path in ["/v1/files/a.b", "/v1/models/m..x", "/v1/files/%20"] {
            assert!(!leads_away(path), "{path}");
        }
    }

    #[test]
    fn the_dialect_follows_the_client() {
        let none = HeaderMap::new();
        assert_eq!(dialect("/v1/messages/batches", &none), Some(Dialect::Anthropic));
        assert_eq!(dialect("/v1/chat/completions/c1/messages", &none), None);
        assert_eq!(dialect("/v1/embeddings", &none), None);
        let mut headers = HeaderMap::new();
        headers.insert("anthropic-version", "2023-06-01".parse().unwrap());
        assert_eq!(dialect("/v1/files", &headers), Some(Dialect::Anthropic));
    }
}
