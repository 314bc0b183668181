//! Response bodies of every kind this service sends.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use serde_json::Value;

use super::exchange::Exchange;
use super::pass::Passing;
use super::stream::StreamBody;
use crate::engine::{ByteStream, EngineError};

/// A response body.
pub(super) enum ReplyBody {
    /// All of it, known at once.
    Full(Option<Bytes>),
    /// An event stream on its way through.
    Stream(Box<StreamBody>),
    /// Bytes on their way through, untouched and unrecorded. The first field comes before the rest; the exchange, which is
    /// settled, goes on until they have left.
    Pass(Option<Bytes>, ByteStream, Box<Exchange>),
    /// The rest of the provider's API.
    Passing(Box<Passing>),
    /// Files, as they are read.
    Download(ByteStream),
}

impl ReplyBody {
    pub(super) fn full(bytes: impl Into<Bytes>) -> Self {
        Self::Full(Some(bytes.into()).filter(|bytes| !bytes.is_empty()))
    }
}

impl Body for ReplyBody {
    type Data = Bytes;
    type Error = EngineError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, EngineError>>> {
        match &mut *self {
            Self::Full(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Stream(stream) => stream
                .poll_bytes(cx)
                .map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes)))),
            Self::Download(bytes) => bytes
                .as_mut()
                .poll_next(cx)
                .map(|item| item.map(|bytes| bytes.map(Frame::data))),
            Self::Passing(passing) => passing.bytes().as_mut().poll_next(cx).map(|item| {
                let item = item?;
                Some(item.inspect_err(|error| passing.broke_off(error)).map(Frame::data))
            }),
            Self::Pass(first, rest, exchange) => match first.take() {
                Some(first) => Poll::Ready(Some(Ok(Frame::data(first)))),
                None => rest.as_mut().poll_next(cx).map(|item| {
                    let item = item?;
                    Some(item.inspect_err(|error| exchange.broke_off(error)).map(Frame::data))
                }),
            },
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Full(None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Full(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            Self::Stream(_) | Self::Pass(..) | Self::Passing(_) | Self::Download(_) => SizeHint::default(),
        }
    }
}

/// A JSON response.
pub(super) fn json(status: StatusCode, value: &Value) -> Response<ReplyBody> {
    let mut response = Response::new(ReplyBody::full(value.to_string()));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// A JSON response of data that must not be kept by anyone on the way.
pub(super) fn json_private(value: &Value) -> Response<ReplyBody> {
    let mut response = json(StatusCode::OK, value);
    response
        .headers_mut()
        .insert(http::header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
