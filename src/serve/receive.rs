//! Receiving request bodies, bounded in size and in patience.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::StatusCode;
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};

use super::error::ApiError;

/// The longest a refused request's body is read for.
const DISCARDING: Duration = Duration::from_secs(10);
const MOST_DISCARDED: usize = 256 * 1024 * 1024;

/// Reads a body of at most `limit` bytes, waiting at most `patience` for each part.
pub(super) async fn body(body: &mut Incoming, limit: usize, patience: Duration) -> Result<Bytes, ApiError> {
    let announced = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    if announced > limit {
        return Err(too_large(limit));
    }
    let mut first: Option<Bytes> = None;
    let mut all = BytesMut::new();
    loop {
        let frame = match tokio::time::timeout(patience, body.frame()).await {
            Ok(Some(Ok(frame))) => frame,
            Ok(Some(Err(error))) => {
                tracing::debug!(%error, "a request body broke off");
                return Err(ApiError::bad_request("body_incomplete", "the request body broke off"));
            }
            Ok(None) => break,
            Err(_) => {
                return Err(ApiError::new(
                    StatusCode::REQUEST_TIMEOUT,
                    "body_timeout",
                    format!("no part of the request body came within {} s", patience.as_secs_f32()),
                ));
            }
        };
        let Ok(data) = frame.into_data() else { continue };
        if all.len() + first.as_ref().map_or(0, Bytes::len) + data.len() > limit {
            return Err(too_large(limit));
        }
        // The usual body comes in one part and is not copied.
        match first.take() {
            None if all.is_empty() => first = Some(data),
            None => all.extend_from_slice(&data),
            Some(start) => {
                all.reserve(announced.max(start.len() + data.len()));
                all.extend_from_slice(&start);
                all.extend_from_slice(&data);
            }
        }
    }
    Ok(first.unwrap_or_else(|| all.freeze()))
}

/// Reads what is left of a body nobody wants, up to a limit: closing a connection with unread bytes would reset it, and
/// the client would never see why it was refused.
pub(super) async fn discard(body: &mut Incoming) {
    let mut left = MOST_DISCARDED;
    let all = async {
        while let Some(Ok(frame)) = body.frame().await {
            left = left.saturating_sub(frame.data_ref().map_or(0, Bytes::len));
            if left == 0 {
                return;
            }
        }
    };
    let _late = tokio::time::timeout(DISCARDING, all).await;
}

fn too_large(limit: usize) -> ApiError {
    ApiError::new(
        StatusCode::PAYLOAD_TOO_LARGE,
        "body_too_large",
        format!("the request body is larger than {limit} bytes, the most this route takes"),
    )
}
