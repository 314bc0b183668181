//! Calls from browser pages: off unless the page's exact origin is configured.

use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_METHOD, HeaderValue, ORIGIN, VARY,
};
use http::{HeaderMap, Method, Request, Response, StatusCode};

use super::error::ApiError;
use super::reply::ReplyBody;

/// What the origin of a request means.
pub(super) enum Verdict {
    /// Not from a page, or no page is configured: as any other request.
    Plain,
    /// From a configured page.
    Allowed(HeaderValue),
    /// A configured page asks whether it may call.
    Preflight(HeaderValue),
}

/// Looks at the origin before anything else does.
pub(super) fn check<B>(origins: &[String], request: &Request<B>) -> Result<Verdict, ApiError> {
    let Some(origin) = request.headers().get(ORIGIN).filter(|_| !origins.is_empty()) else {
        return Ok(Verdict::Plain);
    };
    if !origins.iter().any(|known| known.as_bytes() == origin.as_bytes()) {
        return Err(ApiError::new(
            StatusCode::FORBIDDEN,
            "origin_refused",
            "this origin is not one of reef.console_origins",
        ));
    }
    let asks = request.method() == Method::OPTIONS && request.headers().contains_key(ACCESS_CONTROL_REQUEST_METHOD);
    Ok(if asks {
        Verdict::Preflight(origin.clone())
    } else {
        Verdict::Allowed(origin.clone())
    })
}

/// The answer to a preflight request; it needs no token.
pub(super) fn preflight(origin: HeaderValue) -> Response<ReplyBody> {
    let mut response = Response::new(ReplyBody::full(""));
    *response.status_mut() = StatusCode::NO_CONTENT;
    let headers = response.headers_mut();
    headers.insert(
        ACCESS_CONTROL_ALLOW_METHODS,
        HeaderValue::from_static("GET, POST, DELETE"),
    );
    headers.insert(
        ACCESS_CONTROL_ALLOW_HEADERS,
        HeaderValue::from_static("Authorization, Content-Type, x-reef-scenario"),
    );
    headers.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
    allow(headers, origin);
    response
}

/// Lets the page read a response.
pub(super) fn allow(headers: &mut HeaderMap, origin: HeaderValue) {
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.append(VARY, HeaderValue::from_static("Origin"));
    headers.insert(
        ACCESS_CONTROL_EXPOSE_HEADERS,
        HeaderValue::from_static("x-reef-agent-record-id, x-reef-release-id, x-reef-recorded"),
    );
}
