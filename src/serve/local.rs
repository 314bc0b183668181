//! A service without a token trusts whoever runs on its machine. A web page in a browser on it is not meant: it must
//! not call the service directly, nor through a host name of its own that it made resolve to this machine.

use std::net::IpAddr;

use http::header::{HOST, ORIGIN};
use http::uri::Authority;
use http::{HeaderValue, Request, StatusCode};

use super::error::ApiError;

/// Refuses what only a web page of somebody else sends. `host` is the configured address of the service, and `known`
/// are the origins that may call it.
pub(super) fn check<B>(host: &str, known: &[String], request: &Request<B>) -> Result<(), ApiError> {
    let headers = request.headers();
    let local = |name: &[u8]| Authority::try_from(name).is_ok_and(|name| is_local(&name, host));
    // No host at all is no browser's request; one that cannot be read is nobody's.
    let mut named = headers.get_all(HOST).iter().map(HeaderValue::as_bytes);
    let target = request.uri().authority().map(Authority::as_str);
    if !named.all(local) || !target.is_none_or(|target| local(target.as_bytes())) {
        return Err(ApiError::new(
            StatusCode::FORBIDDEN,
            "host_refused",
            "this service has no token and answers only to its own address, an IP address or localhost; set reef.tokens \
             to serve it under other names",
        ));
    }
    let Some(origin) = headers.get(ORIGIN) else {
        // A picture or a script of a page elsewhere names no origin; following a link to a page here is harmless.
        let said = |name: &str, value: &str| {
            headers
                .get(name)
                .is_some_and(|said| said.as_bytes() == value.as_bytes())
        };
        return if said("sec-fetch-site", "cross-site") && !said("sec-fetch-mode", "navigate") {
            Err(foreign_page())
        } else {
            Ok(())
        };
    };
    if known.iter().any(|known| known.as_bytes() == origin.as_bytes()) || !from_elsewhere(origin.as_bytes(), host) {
        return Ok(());
    }
    Err(foreign_page())
}

fn foreign_page() -> ApiError {
    ApiError::new(
        StatusCode::FORBIDDEN,
        "origin_refused",
        "this service has no token and takes no calls from web pages of other origins; list the origin in \
         reef.console_origins, or set reef.tokens",
    )
}

/// Whether an origin is a web page that this machine does not serve. Programs that show pages of their own (editors,
/// desktop shells) have schemes of their own.
fn from_elsewhere(origin: &[u8], host: &str) -> bool {
    let Ok(origin) = std::str::from_utf8(origin) else {
        return true;
    };
    match origin.split_once("://") {
        Some(("http" | "https", rest)) => !rest.parse().is_ok_and(|authority| is_local(&authority, host)),
        Some(_) => false,
        // "null" is what a page says that hides where it comes from.
        None => true,
    }
}

fn is_local(authority: &Authority, host: &str) -> bool {
    let name = authority.host();
    let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
    let bare = bare.unwrap_or(name).trim_end_matches('.');
    let lower = bare.to_ascii_lowercase();
    lower == "localhost"
        || lower.ends_with(".localhost")
        || bare.parse::<IpAddr>().is_ok()
        || lower == host.to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(headers: &[(&str, &str)]) -> Result<(), &'static str> {
        let mut request = Request::builder().uri("/reef/status");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let known = ["https://console.example".to_owned()];
        check("reef-box", &known, &request.body(()).unwrap()).map_err(|error| error.code)
    }

    #[test]
    fn own_names_pass_and_a_name_that_was_made_to_resolve_here_does_not() {
        for host in [
            "127.0.0.1:8900",
            "[::1]:8900",
            "localhost:8900",
            "LOCALHOST",
            "reef.localhost:1",
            "192.0.2.7:8900",
            "reef-box:8900",
        ] {
            assert_eq!(verdict(&[("host", host)]), Ok(()), "{host}");
        }
        for host in [
            "evil.example",
            "localhost.evil.example:8900",
            "127.0.0.1.evil.example",
            "",
            "a b",
        ] {
            assert_eq!(verdict(&[("host", host)]), Err("host_refused"), "{host}");
        }
        assert_eq!(verdict(&[]), Ok(()));
    }

    #[test]
    fn pages_from_elsewhere_may_not_call() {
        let at = |origin| verdict(&[("host", "127.0.0.1:8900"), ("origin", origin)]);
        for origin in [
            "http://localhost:3000",
            "http://127.0.0.1:8900",
            "https://console.example",
            "vscode-webview://abc",
        ] {
            assert_eq!(at(origin), Ok(()), "{origin}");
        }
        for origin in [
            "https://evil.example",
            "http://localhost.evil.example",
            "null",
            "https://",
        ] {
            assert_eq!(at(origin), Err("origin_refused"), "{origin}");
        }
    }
}
