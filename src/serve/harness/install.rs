//! `GET /reef/harness/install`: a script of a few lines that hands over to `reef harness install`.

use std::sync::Arc;

use http::header::{CONTENT_TYPE, HOST, HeaderValue};
use http::uri::Authority;
use http::{HeaderMap, Response};

use super::{HarnessOptions, adapter, manifest, options, private};
use crate::harness::adapter::Adapters;
use crate::serve::error::ApiError;
use crate::serve::headers::SCENARIO;
use crate::serve::query::Query;
use crate::serve::reply::ReplyBody;
use crate::serve::state::State;

const SCRIPT: &str = include_str!("../../../templates/harness/install.sh");

/// `GET /reef/harness/install?adapter=[&release_id=]`. Asking changes nothing: a scenario that does not exist yet is made
/// by the command that the script starts.
pub(super) async fn script(
    state: &Arc<State>,
    headers: &HeaderMap,
    query: Option<&str>,
) -> Result<Response<ReplyBody>, ApiError> {
    let query = Query::parse(query, &["adapter", "release_id"])?;
    let options = options(state)?;
    let wanted = query.one("adapter")?.filter(|name| !name.is_empty()).ok_or_else(|| {
        ApiError::bad_request(
            "missing_adapter",
            format!(
                "say which agent: ?adapter={}",
                options.adapters.names().join(", ?adapter=")
            ),
        )
    })?;
    let wanted = adapter(options, wanted)?;
    if wanted.install.is_none() {
        return Err(ApiError::bad_request(
            "not_installable",
            format!(
                "the adapter {} has no install section, so there is nothing to install",
                wanted.name
            ),
        ));
    }
    if !Adapters::is_built_in(&wanted.name) {
        return Err(ApiError::bad_request(
            "not_installable",
            format!(
                "the adapter {} is this deployment's own, and `reef harness install` knows only those that come with the \
                 program; fetch the files from /reef/harness?adapter={} instead",
                wanted.name, wanted.name
            ),
        ));
    }
    let url = address(options, headers)?;
    let release = query.one("release_id")?.filter(|id| !id.is_empty());
    let (mut whose, mut which, mut exactly) = ("a scenario of its own".to_owned(), String::new(), String::new());
    if headers.contains_key(SCENARIO) {
        let name = super::scenario(headers)?;
        // What cannot be installed is told now, and not by a script that fails.
        match manifest::find(state, &name, release, Some(wanted.clone())).await {
            Ok(found) if release.is_some() => exactly = format!(" --release '{}'", found.release_id),
            Ok(_) => {}
            Err(error) if error.code == "unknown_scenario" && release.is_none() && state.options.implicit_scenarios => {
            }
            Err(error) => return Err(error),
        }
        whose = format!("the scenario {name}");
        which = format!(" --scenario '{name}'");
    } else if release.is_some() {
        return Err(ApiError::bad_request(
            "missing_scenario",
            format!("a release belongs to a scenario; name it in the header {SCENARIO}"),
        ));
    }
    let script = SCRIPT
        .replace(
            "@TITLE@",
            &wanted
                .title
                .replace(|c: char| !c.is_ascii_alphanumeric() && c != ' ', ""),
        )
        .replace("@URL@", &url)
        .replace("@ADAPTER@", &wanted.name)
        .replace("@WHOSE@", &whose)
        .replace("@SCENARIO@", &which)
        .replace("@RELEASE@", &exactly);
    let mut response = Response::new(ReplyBody::full(script));
    response.headers_mut().insert(
        CONTENT_TYPE,
        HeaderValue::from_static("text/x-shellscript; charset=utf-8"),
    );
    private(&mut response, "no-store");
    Ok(response)
}

/// The address to install from: the configured one, or the one this request reached, in a proxy's words if there is
/// one. It becomes part of a script, so it is either plainly an address or refused.
fn address(options: &HarnessOptions, headers: &HeaderMap) -> Result<String, ApiError> {
    if let Some(url) = &options.url {
        return Ok(url.trim_end_matches('/').to_owned());
    }
    let refused = |what: &str| {
        ApiError::bad_request(
            "invalid_host",
            format!("the {what} is no host name with an optional port; it would become part of a shell script"),
        )
    };
    let one = |name: &str| -> Result<Option<String>, ApiError> {
        let Some(value) = headers.get(name) else {
            return Ok(None);
        };
        let text = value.to_str().map_err(|_| refused(&format!("{name} header")))?;
        Ok(text.split(',').next().map(|first| first.trim().to_owned()))
    };
    let scheme = match one("x-forwarded-proto")?.as_deref() {
        None | Some("http") => "http",
        Some("https") => "https",
        Some(_) => return Err(refused("x-forwarded-proto header")),
    };
    let (what, host) = match one("x-forwarded-host")? {
        Some(host) => ("x-forwarded-host header", host),
        None => ("host header", one(HOST.as_str())?.unwrap_or_default()),
    };
    let plain = host.len() <= 260
        && host
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_' | b':' | b'[' | b']'));
    if !plain || host.parse::<Authority>().is_err() {
        return Err(refused(what));
    }
    Ok(format!("{scheme}://{host}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(headers: &[(&str, &str)]) -> Result<String, ApiError> {
        let options = HarnessOptions {
            adapters: Adapters::built_in().unwrap(),
            adapter: "pi".to_owned(),
            policy: crate::harness::tree::Policy::default(),
            most_proposals: None,
            url: None,
            model: None,
            api: None,
        };
        let headers: HeaderMap = headers
            .iter()
            .map(|(name, value)| {
                (
                    name.parse().unwrap(),
                    HeaderValue::from_bytes(value.as_bytes()).unwrap(),
                )
            })
            .collect();
        address(&options, &headers)
    }

    #[test]
    fn the_address_is_the_one_the_request_reached() {
        assert_eq!(from(&[("host", "127.0.0.1:8900")]).unwrap(), "http://127.0.0.1:8900");
        assert_eq!(from(&[("host", "[::1]:8900")]).unwrap(), "http://[::1]:8900");
        let proxied = [
            ("host", "10.0.0.3:8900"),
            ("x-forwarded-host", "reef.example.com, inner"),
            ("x-forwarded-proto", "https"),
        ];
        assert_eq!(from(&proxied).unwrap(), "https://reef.example.com");
    }

    #[test]
    fn what_is_no_address_never_reaches_the_script() {
        for host in [
            "",
            "a'; touch x; '",
            "$(touch x)",
            "a b",
            "`id`",
            "h\"",
            "h;id",
            "user@h",
            "h/../x",
            "ü",
        ] {
            assert!(from(&[("host", host)]).is_err(), "{host}");
            assert!(from(&[("host", "h"), ("x-forwarded-host", host)]).is_err(), "{host}");
        }
        assert!(from(&[("host", "h"), ("x-forwarded-proto", "javascript")]).is_err());
    }
}
