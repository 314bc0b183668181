//! Errors as clients see them, in the dialect of the route.

use std::borrow::Cow;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Response, StatusCode};
use serde_json::json;

use super::reply::ReplyBody;
use crate::domain::{Dialect, InvalidName};
use crate::engine::EngineError;
use crate::experience::{ErrorClass, StoreError};
use crate::release::ReleaseError;
use crate::scenario::{DirectoryError, PublishError};
use crate::sys::task::Lost;

/// An error for a client: what it may know, and a code that programs may rely on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ApiError {
    pub(super) status: StatusCode,
    pub(super) code: &'static str,
    pub(super) message: String,
    /// What somebody else said, for the client alone: it may hold what the client or a credential said, and logs do not.
    pub(super) quoted: String,
    pub(super) retry_after: Option<u32>,
}

impl ApiError {
    pub(super) fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self {
            status,
            code,
            message: message.into(),
            quoted: String::new(),
            retry_after: None,
        }
    }

    pub(super) fn bad_request(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, code, message)
    }

    pub(super) fn not_found(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, code, message)
    }

    pub(super) fn unavailable(code: &'static str, message: impl Into<String>) -> Self {
        Self {
            retry_after: Some(1),
            ..Self::new(StatusCode::SERVICE_UNAVAILABLE, code, message)
        }
    }

    /// The kind of error in the words of a dialect. Clients decide by it whether to try again, so it never says
    /// `server_error` of a request that cannot succeed.
    fn kind(&self, dialect: Option<Dialect>) -> &'static str {
        let anthropic = dialect == Some(Dialect::Anthropic);
        match self.status.as_u16() {
            401 => "authentication_error",
            403 => "permission_error",
            404 => "not_found_error",
            409 if !anthropic => "conflict_error",
            413 if anthropic => "request_too_large",
            429 => "rate_limit_error",
            400..=499 => "invalid_request_error",
            503 if anthropic => "overloaded_error",
            _ if anthropic => "api_error",
            _ => "server_error",
        }
    }

    fn told(&self) -> Cow<'_, str> {
        if self.quoted.is_empty() {
            Cow::Borrowed(&self.message)
        } else {
            Cow::Owned(format!("{}: {}", self.message, self.quoted))
        }
    }

    /// The error object of a whole response. Reef's own routes use the OpenAI shape.
    pub(super) fn body(&self, dialect: Option<Dialect>) -> Bytes {
        let kind = self.kind(dialect);
        let value = match dialect {
            Some(Dialect::Anthropic) => json!({"type": "error", "error": {"type": kind, "message": self.told()}}),
            _ => json!({"error": {"message": self.told(), "type": kind, "param": null, "code": self.code}}),
        };
        Bytes::from(value.to_string())
    }

    /// The error as an event of an open stream. `sequence` numbers it in a responses stream.
    pub(super) fn event(&self, dialect: Dialect, sequence: u64) -> Bytes {
        Bytes::from(match dialect {
            Dialect::OpenaiChat => format!("data: {}\n\n", String::from_utf8_lossy(&self.body(Some(dialect)))),
            Dialect::Anthropic => {
                format!(
                    "event: error\ndata: {}\n\n",
                    String::from_utf8_lossy(&self.body(Some(dialect)))
                )
            }
            Dialect::OpenaiResponses => {
                let value = json!({
                    "type": "error", "code": self.code, "message": self.told(), "param": null,
                    "sequence_number": sequence,
                });
                format!("event: error\ndata: {value}\n\n")
            }
        })
    }

    pub(super) fn response(&self, dialect: Option<Dialect>) -> Response<ReplyBody> {
        let mut response = Response::new(ReplyBody::full(self.body(dialect)));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(seconds) = self.retry_after {
            headers.insert(http::header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(http::header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

impl From<Lost> for ApiError {
    fn from(lost: Lost) -> Self {
        if !lost.panicked() {
            return Self::unavailable("stopping", "the service is stopping");
        }
        // What it said may hold what a client said.
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "internal",
            "a fault in Reef; its log has the place",
        )
    }
}

impl From<InvalidName> for ApiError {
    fn from(error: InvalidName) -> Self {
        Self::bad_request("invalid_name", error.to_string())
    }
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        if let StoreError::Panicked(lost) = error {
            return lost.into();
        }
        let text = error.to_string();
        match error.class() {
            ErrorClass::Refused => Self::bad_request("invalid_request", text),
            ErrorClass::NotFound => Self::not_found("unknown_scenario", text),
            ErrorClass::Conflict => Self::new(StatusCode::CONFLICT, "conflict", text),
            ErrorClass::Busy => Self::unavailable("store_busy", text),
            ErrorClass::Failed => {
                tracing::error!(error = %error, cause = ?std::error::Error::source(&error), "experience store");
                // Paths and SQLite's words are for the log.
                Self::unavailable(
                    "store_failed",
                    "the experience store cannot be used now; see the service's log and GET /reef/status",
                )
            }
        }
    }
}

impl From<DirectoryError> for ApiError {
    fn from(error: DirectoryError) -> Self {
        let text = error.to_string();
        match error {
            DirectoryError::Unknown { .. } => Self::not_found("unknown_scenario", text),
            DirectoryError::UnknownRelease { .. } => Self::not_found("unknown_release", text),
            DirectoryError::OtherBase { .. } => Self::new(StatusCode::CONFLICT, "other_base_release", text),
            DirectoryError::Store(error) => error.into(),
            DirectoryError::Publish(error) => error.into(),
            DirectoryError::Stopped => Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", text),
        }
    }
}

impl From<PublishError> for ApiError {
    fn from(error: PublishError) -> Self {
        let text = error.to_string();
        let conflict = |code| Self::new(StatusCode::CONFLICT, code, text.clone());
        match error {
            PublishError::Store(error) => error.into(),
            PublishError::Panicked(lost) => lost.into(),
            PublishError::UnknownScenario { .. } => Self::not_found("unknown_scenario", text),
            PublishError::NotHeld { .. } => conflict("release_not_held"),
            PublishError::NeverServed { .. } => conflict("release_never_served"),
            PublishError::Release(ReleaseError::NotFound { .. }) => Self::not_found("unknown_release", text),
            PublishError::Release(ReleaseError::Conflict { .. } | ReleaseError::Diverged { .. }) => {
                conflict("head_moved")
            }
            PublishError::Release(ReleaseError::NotRestorable { .. } | ReleaseError::FileGone { .. }) => {
                conflict("release_not_restorable")
            }
            PublishError::Release(ReleaseError::Ambiguous { .. }) => Self::bad_request("ambiguous_release", text),
            error => {
                tracing::error!(%error, cause = ?std::error::Error::source(&error), "release chain");
                // Paths and git's words are for the log.
                Self::unavailable(
                    "release_store_failed",
                    "the chain of releases cannot be used now; see the service's log and `reef release verify`",
                )
            }
        }
    }
}

impl From<EngineError> for ApiError {
    fn from(error: EngineError) -> Self {
        if let EngineError::Unavailable {
            source: Some(source), ..
        } = &error
        {
            tracing::warn!(%error, %source, "engine");
        }
        let text = error.to_string();
        match error {
            EngineError::Refused { status, .. } => Self::new(status, "refused", text),
            EngineError::Unavailable { .. } => Self::new(StatusCode::BAD_GATEWAY, "upstream_unavailable", text),
            EngineError::Overloaded { .. } => Self::unavailable("overloaded", text),
            EngineError::Silent { .. } => Self::new(StatusCode::BAD_GATEWAY, "upstream_silent", text),
            EngineError::Broken { .. } => Self::new(StatusCode::BAD_GATEWAY, "upstream_broken", text),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn every_dialect_gets_its_own_envelope_and_an_honest_type() {
        for (status, openai, anthropic) in [
            (400, "invalid_request_error", "invalid_request_error"),
            (401, "authentication_error", "authentication_error"),
            (404, "not_found_error", "not_found_error"),
            (413, "invalid_request_error", "request_too_large"),
            (502, "server_error", "api_error"),
            (503, "server_error", "overloaded_error"),
        ] {
            let error = ApiError::new(StatusCode::from_u16(status).unwrap(), "some_code", "what \"happened\"");
            let chat: Value = serde_json::from_slice(&error.body(Some(Dialect::OpenaiChat))).unwrap();
            assert_eq!(chat["error"]["type"], openai);
            assert_eq!(chat["error"]["code"], "some_code");
            assert_eq!(chat["error"]["message"], "what \"happened\"");
            let message: Value = serde_json::from_slice(&error.body(Some(Dialect::Anthropic))).unwrap();
            assert_eq!(message["type"], "error");
            assert_eq!(message["error"]["type"], anthropic);
        }
    }
}
