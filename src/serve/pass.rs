//! The rest of the provider's API: on to the provider and back, byte for byte, without a record.

use std::sync::Arc;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, Request, Response};
use hyper::body::Incoming;

use super::admission::Permit;
use super::api;
use super::error::ApiError;
use super::headers;
use super::receive;
use super::reply::ReplyBody;
use super::state::State;
use crate::domain::Dialect;
use crate::engine::{ByteStream, EngineError, EngineReply, PassRequest};

/// What goes on is counted as in flight until its last byte has left.
pub(super) struct Passing {
    bytes: ByteStream,
    path: String,
    _permit: Permit,
}

impl Passing {
    pub(super) fn bytes(&mut self) -> &mut ByteStream {
        &mut self.bytes
    }

    /// It broke off on its way; the client sees its connection end.
    pub(super) fn broke_off(&self, error: &EngineError) {
        tracing::warn!(path = self.path, detail = %error, "an answer that was passed on broke off");
    }
}

/// Passes one request on.
pub(super) async fn pass(state: &Arc<State>, request: Request<&mut Incoming>) -> Result<Response<ReplyBody>, ApiError> {
    let (parts, incoming) = request.into_parts();
    let path = parts.uri.path().to_owned();
    allowed(state, &path)?;
    let permit = state.admission.enter()?;
    let body = receive::body(incoming, state.options.max_body_bytes, state.options.client_timeout).await?;
    let reply = send(state, parts, body).await.inspect_err(|error| {
        tracing::warn!(path, detail = %error, "a request could not be passed on");
    })?;
    Ok(onward(reply, path, permit))
}

/// Refuses what this service does not pass on.
pub(super) fn allowed(state: &State, path: &str) -> Result<(), ApiError> {
    if state.options.provider_api {
        return Ok(());
    }
    Err(ApiError::not_found(
        "not_passed",
        format!(
            "{path} is not recorded, and this service passes no such requests on; set reef.provider-api to true to allow \
             them"
        ),
    ))
}

/// The provider's answer as it is.
pub(super) fn onward(reply: EngineReply, path: String, permit: Permit) -> Response<ReplyBody> {
    let body = Passing {
        bytes: reply.body,
        path,
        _permit: permit,
    };
    let mut response = Response::new(ReplyBody::Passing(Box::new(body)));
    *response.status_mut() = reply.status;
    *response.headers_mut() = reply.headers;
    response
}

/// Sends a request to the provider as it came.
pub(super) async fn send(state: &State, parts: Parts, body: Bytes) -> Result<EngineReply, EngineError> {
    let path = parts.uri.path().to_owned();
    let dialect = api::dialect(&path, &parts.headers).unwrap_or(Dialect::OpenaiChat);
    let mut headers: HeaderMap = parts.headers;
    headers::keep_for_engine(&mut headers);
    let request = PassRequest {
        method: parts.method,
        path,
        query: parts.uri.query().map(str::to_owned),
        headers,
        body,
        dialect,
    };
    let mut reply = state.engine.pass(request).await?;
    headers::keep_for_client(&mut reply.headers);
    Ok(reply)
}
