//! Whether what Reef connects to can be reached, the way Reef would reach it: name, proxy, port, certificate.

use std::path::Path;
use std::time::Duration;

use super::{Finding, Health, bad, good, warning, with_causes};
use crate::cli::Context;
use crate::config::Settings;
use crate::sys::net::Dialer;

const PATIENCE: Duration = Duration::from_secs(5);

pub(super) fn collector(context: &Context, settings: &Settings) -> Option<Finding> {
    let url = settings.observability.otlp_endpoint.as_ref()?;
    let fix = "start the collector there, or correct observability.otlp-endpoint; requests do not wait for it";
    // Traces are lost, nothing else.
    reachable(context, settings, "collector", url, fix).map(lenient)
}

/// Where releases are pushed. A push that fails is made good by the next, so this is never more than a warning.
pub(super) fn mirror(context: &Context, settings: &Settings, offline: bool) -> Option<Finding> {
    let (check, fix) = (
        "remote",
        "correct release.remote, or make the repository there: git init --bare",
    );
    let url = settings.release.remote.as_ref().filter(|_| settings.release.push)?;
    let path = url.strip_prefix("file://").unwrap_or(url);
    // `host:path` is an address of ssh.
    let here = !path.contains("://") && !path.split('/').next().is_some_and(|first| first.contains(':'));
    if here {
        let missing = !Path::new(path).is_dir();
        return missing.then(|| {
            warning(
                check,
                format!("there is no repository at {path}; nothing is pushed"),
                fix,
            )
        });
    }
    let found = (!offline && path.starts_with("http"))
        .then(|| reachable(context, settings, check, url, fix))
        .flatten()?;
    Some(lenient(found))
}

/// What fails here stops no request.
pub(super) fn lenient(found: Finding) -> Finding {
    match found.health {
        Health::Bad => Finding {
            health: Health::Warning,
            ..found
        },
        _ => found,
    }
}

/// A connection, with TLS where the address wants it, and no request: one could cost money.
pub(super) fn reachable(
    context: &Context,
    settings: &Settings,
    check: &'static str,
    url: &str,
    fix: &str,
) -> Option<Finding> {
    let uri: http::Uri = url.parse().ok()?;
    let host = uri.host()?;
    let tls = uri.scheme_str() == Some("https");
    let port = uri.port_u16().unwrap_or(if tls { 443 } else { 80 });
    let proxies = match settings.proxies() {
        Ok(proxies) => proxies,
        Err(error) => return Some(bad(check, with_causes(error), "correct the proxy's URL")),
    };
    let dialer = match Dialer::new(PATIENCE, proxies, tls) {
        Ok(dialer) => dialer,
        Err(error) => return Some(bad(check, error.to_string(), "install the package ca-certificates")),
    };
    let way = dialer
        .proxy(&uri)
        .map(|proxy| format!(" through the proxy {proxy} ({})", proxy.named()))
        .unwrap_or_default();
    let dialled = context.block_on(async { Ok(dialer.dial(&uri).await.map(drop)) }).ok()?;
    Some(match dialled {
        Ok(()) => good(check, format!("{host}:{port} accepts connections{way}")),
        Err(error) => {
            let fix = error.cause.hint().unwrap_or(fix);
            bad(check, format!("no connection to {host}:{port}{way}: {error}"), fix)
        }
    })
}
