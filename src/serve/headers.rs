//! What Reef reads from a request's headers, and what it takes out of them.

use http::header::{
    AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, COOKIE, EXPECT, HOST, HeaderName, HeaderValue, SET_COOKIE,
};
use http::{HeaderMap, StatusCode};

use super::error::ApiError;
use super::options::StreamReceipt;
use crate::domain::{ReleaseId, ScenarioName, Tags};
use crate::engine::strip_hop_by_hop;

pub(super) const SCENARIO: HeaderName = HeaderName::from_static("x-reef-scenario");
pub(super) const RECEIPT: HeaderName = HeaderName::from_static("x-reef-agent-record-id");
pub(super) const RECORDED: HeaderName = HeaderName::from_static("x-reef-recorded");
pub(super) const RECORD: HeaderName = HeaderName::from_static("x-reef-record");
const STREAM_RECEIPT: HeaderName = HeaderName::from_static("x-reef-stream-receipt");
pub(super) const RELEASE: HeaderName = HeaderName::from_static("x-reef-release-id");
const OURS: &str = "x-reef-";
const TAG: &str = "x-reef-tag-";

const MOST_TAGS: usize = 32;
const LONGEST_TAG: usize = 1024;

/// The context of one inference request.
#[derive(Debug)]
pub(super) struct Instructions {
    pub(super) scenario: ScenarioName,
    pub(super) tags: Tags,
    /// False if the client opted out of recording.
    pub(super) record: bool,
    pub(super) release: Option<ReleaseId>,
    /// Where this client wants the receipt of a chat's stream.
    pub(super) stream_receipt: Option<StreamReceipt>,
}

impl Instructions {
    pub(super) fn read(headers: &HeaderMap) -> Result<Self, ApiError> {
        let scenario = scenario(headers)?;
        let record = match one(headers, &RECORD)? {
            None | Some("true") => true,
            Some("false") => false,
            Some(other) => {
                return Err(ApiError::bad_request(
                    "invalid_header",
                    format!("x-reef-record is \"{}\"; use true or false", other.escape_default()),
                ));
            }
        };
        let stream_receipt = match one(headers, &STREAM_RECEIPT)? {
            None => None,
            Some("auto") => Some(StreamReceipt::Auto),
            Some("finish") => Some(StreamReceipt::Finish),
            Some("chunk") => Some(StreamReceipt::Chunk),
            Some(other) => {
                return Err(ApiError::bad_request(
                    "invalid_header",
                    format!(
                        "x-reef-stream-receipt is \"{}\"; use auto, finish or chunk",
                        other.escape_default()
                    ),
                ));
            }
        };
        let release = one(headers, &RELEASE)?.map(ReleaseId::new).transpose()?;
        Ok(Self {
            scenario,
            tags: tags(headers)?,
            record,
            release,
            stream_receipt,
        })
    }
}

/// The scenario a request belongs to.
pub(super) fn scenario(headers: &HeaderMap) -> Result<ScenarioName, ApiError> {
    let name = one(headers, &SCENARIO)?.ok_or_else(|| {
        ApiError::bad_request(
            "missing_scenario",
            "missing or empty x-reef-scenario header; name the scenario this request belongs to, for example \
             `x-reef-scenario: my-agent` (in SDKs: default_headers or extra_headers)",
        )
    })?;
    ScenarioName::new(name)
        .map_err(|error| ApiError::bad_request("invalid_scenario", format!("x-reef-scenario: {error}")))
}

/// A header's value, trimmed; an empty one counts as none.
fn one<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, ApiError> {
    let Some(value) = headers.get(name) else {
        return Ok(None);
    };
    match std::str::from_utf8(value.as_bytes()) {
        Ok(text) => Ok(Some(text.trim()).filter(|text| !text.is_empty())),
        Err(_) => Err(ApiError::bad_request("invalid_header", format!("{name} is not UTF-8"))),
    }
}

fn tags(headers: &HeaderMap) -> Result<Tags, ApiError> {
    let mut tags = Tags::new();
    for name in headers.keys().filter(|name| name.as_str().starts_with(OURS)) {
        let Some(tag) = name.as_str().strip_prefix(TAG).filter(|tag| !tag.is_empty()) else {
            continue;
        };
        let Some(value) = one(headers, name)? else { continue };
        if tags.len() == MOST_TAGS || tag.len() + value.len() > LONGEST_TAG {
            return Err(ApiError::bad_request(
                "invalid_header",
                format!(
                    "at most {MOST_TAGS} tags of at most {LONGEST_TAG} bytes each; {name} is one too many or too long"
                ),
            ));
        }
        tags.insert(tag.to_owned(), value.to_owned());
    }
    Ok(tags)
}

/// Leaves the headers that go to the engine: no credentials, nothing of Reef's, nothing of this connection.
pub(super) fn keep_for_engine(headers: &mut HeaderMap) {
    strip_hop_by_hop(headers);
    for name in [AUTHORIZATION, COOKIE, HOST, CONTENT_LENGTH, EXPECT] {
        headers.remove(name);
    }
    headers.remove("x-api-key");
    headers.remove("api-key");
    strip_ours(headers);
}

/// Leaves the headers of an engine's answer that go to the client.
pub(super) fn keep_for_client(headers: &mut HeaderMap) {
    headers.remove(SET_COOKIE);
    strip_ours(headers);
}

fn strip_ours(headers: &mut HeaderMap) {
    while let Some(name) = headers.keys().find(|name| name.as_str().starts_with(OURS)).cloned() {
        headers.remove(name);
    }
}

/// Whether the body is an event stream.
pub(super) fn is_event_stream(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_TYPE).is_some_and(|value| {
        let value = value.as_bytes();
        value.len() >= 17 && value[..17].eq_ignore_ascii_case(b"text/event-stream")
    })
}

/// Statuses that reach the client as they are; the rest becomes 400 or 502.
pub(super) fn is_kept(status: StatusCode) -> bool {
    status.is_success() || matches!(status.as_u16(), 400 | 401 | 403 | 404 | 408 | 409 | 422 | 429)
}

/// An id as a header value; ids are printable ASCII.
pub(super) fn value(text: &str) -> HeaderValue {
    HeaderValue::from_str(text).unwrap_or_else(|_| HeaderValue::from_static(""))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(headers: &[(&str, &str)]) -> HeaderMap {
        headers
            .iter()
            .map(|(name, value)| (name.parse().unwrap(), HeaderValue::from_str(value).unwrap()))
            .collect()
    }

    #[test]
    fn instructions_are_read_and_nothing_of_them_goes_on() {
        let mut headers = map(&[
            ("X-Reef-Scenario", " math "),
            ("x-reef-tag-Session", " s1 "),
            ("x-reef-tag-empty", " "),
            ("x-reef-record", "false"),
            ("x-reef-release-id", "abc"),
            ("anthropic-beta", "x"),
            ("authorization", "Bearer t"),
            ("connection", "keep-alive, x-hop"),
            ("x-hop", "1"),
        ]);
        let read = Instructions::read(&headers).unwrap();
        assert_eq!(read.scenario.as_str(), "math");
        assert_eq!(read.tags, Tags::from([("session".to_owned(), "s1".to_owned())]));
        assert!(!read.record);
        assert_eq!(read.release.unwrap().as_str(), "abc");
        keep_for_engine(&mut headers);
        assert_eq!(
            headers.keys().map(HeaderName::as_str).collect::<Vec<_>>(),
            ["anthropic-beta"]
        );
    }

    #[test]
    fn bad_headers_are_named() {
        for (headers, part) in [
            (&[][..], "missing or empty x-reef-scenario"),
            (&[("x-reef-scenario", "  ")], "missing or empty x-reef-scenario"),
            (&[("x-reef-scenario", "../x")], "x-reef-scenario: scenario name"),
            (
                &[("x-reef-scenario", "a"), ("x-reef-record", "no")],
                "x-reef-record is \"no\"",
            ),
        ] {
            let error = Instructions::read(&map(headers)).unwrap_err();
            assert_eq!(error.status, StatusCode::BAD_REQUEST);
            assert!(error.message.contains(part), "{}", error.message);
        }
    }
}
