//! Values whose type is right and that can do nothing.

use super::{Fault, Settings, Source};
use crate::telemetry;

/// Faults of single values, each at its place.
pub(super) fn faults(settings: &Settings) -> Vec<Fault> {
    let mut faults = Vec::new();
    let observability = &settings.observability;
    if let Err(problem) = telemetry::check_filter(&observability.log) {
        let fault = settings.fault("observability.log", problem);
        faults
            .push(fault.hint("a level (error, warn, info, debug, trace), or a filter such as info,reef::serve=debug"));
    }
    // Other programs read the variable too, and may understand more.
    let key = "observability.otlp-endpoint";
    if let Some(endpoint) = &observability.otlp_endpoint
        && !matches!(settings.source(key), Source::Environment(_))
        && !is_http(endpoint)
    {
        let fault = settings.fault(key, "expected a URL that starts with http:// or https://");
        faults.push(fault.hint("for example http://127.0.0.1:4318"));
    }
    for (at, origin) in settings.reef.console_origins.iter().enumerate() {
        if !is_origin(origin) {
            let key = format!("reef.console-origins[{at}]");
            let fault = settings.fault(&key, "expected the origin of a page: scheme, host and port alone");
            faults.push(fault.hint("for example https://console.example, without a slash at the end"));
        }
    }
    for (at, setting) in settings.release.git_settings.iter().enumerate() {
        // `section.key=value`, as `git -c` takes it.
        let name = setting.expose().split_once('=').map(|(name, _)| name);
        if !name.is_some_and(|name| name.contains('.') && !name.starts_with(['.', '-']) && !name.ends_with('.')) {
            let key = format!("release.git-settings[{at}]");
            let fault = settings.fault(&key, "expected a setting of git: section.key=value");
            faults.push(fault.hint("for example credential.helper=store"));
        }
    }
    faults
}

fn is_http(text: &str) -> bool {
    text.parse::<http::Uri>()
        .is_ok_and(|uri| matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some())
}

/// What a browser sends in `origin`.
fn is_origin(text: &str) -> bool {
    let Some((scheme, host)) = text.split_once("://") else {
        return false;
    };
    let plain = !host.contains(['/', '?', '#', '@', '*', ' ']);
    plain && text == text.to_ascii_lowercase() && matches!(scheme, "http" | "https") && is_http(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_is_what_a_browser_sends() {
        for right in ["https://a.example", "http://localhost:3000", "http://[::1]:8080"] {
            assert!(is_origin(right), "{right}");
        }
        for wrong in [
            "a.example",
            "https://a.example/",
            "https://a.example/x",
            "https://*.example",
            "https://u:p@a.example",
            "HTTPS://a.example",
            "ftp://a.example",
            "null",
        ] {
            assert!(!is_origin(wrong), "{wrong}");
        }
    }
}
