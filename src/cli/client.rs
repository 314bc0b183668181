//! A running service as seen from a command: JSON over HTTP, with errors that say what to do.

use std::time::Duration;

use clap::Args;
use reqwest::{Method, StatusCode};
use serde_json::Value;

use super::{CliError, Context, Exit};
use crate::sys::net::Cause;
use crate::sys::{json, terminal};

/// Longest wait for any answer to a command.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Options of commands that can ask a service instead of reading the files.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct ServerArgs {
    /// Ask the service at this URL instead of reading the files; the token comes from REEF_TOKEN or the configuration
    #[arg(long, value_name = "URL")]
    pub(crate) url: Option<String>,
}

/// A connection to a service.
#[derive(Debug)]
pub(crate) struct Client {
    base: String,
    token: Option<String>,
    http: reqwest::Client,
}

impl Client {
    /// A client of the service at this URL.
    pub(crate) fn new(context: &Context, url: &str) -> Result<Self, CliError> {
        let base = url.trim_end_matches('/').trim_end_matches("/v1").to_owned();
        if !(base.starts_with("http://") || base.starts_with("https://")) {
            return Err(
                CliError::new(Exit::Usage, "--url needs a URL that starts with http:// or https://")
                    .hint("for example --url http://127.0.0.1:8900"),
            );
        }
        // Fails only if somebody else installed one first, which serves as well.
        let _already = rustls::crypto::ring::default_provider().install_default();
        let http = reqwest::Client::builder()
            .timeout(TIMEOUT)
            .no_proxy()
            .build()
            .map_err(|error| CliError::from_error(Exit::Unexpected, error))?;
        let token = context
            .settings()?
            .tokens()
            .first()
            .map(|token| token.expose().to_owned());
        Ok(Self { base, token, http })
    }

    /// The URL in use.
    pub(crate) fn base(&self) -> &str {
        &self.base
    }

    pub(crate) async fn get(&self, path: &str) -> Result<Value, CliError> {
        self.send(Method::GET, path, None, None).await
    }

    /// The same for something that may not be there.
    pub(crate) async fn find(&self, path: &str) -> Result<Option<Value>, CliError> {
        let (status, body) = self.exchange(Method::GET, path, None, None).await?;
        let json = serde_json::from_slice(&body).ok();
        match status {
            StatusCode::NOT_FOUND => Ok(None),
            status if status.is_success() => Ok(json),
            status => Err(refused(status, json.as_ref())),
        }
    }

    /// The body of an answer as it is.
    pub(crate) async fn bytes(&self, path: &str) -> Result<Vec<u8>, CliError> {
        let (status, body) = self.exchange(Method::GET, path, None, None).await?;
        if status.is_success() {
            return Ok(body.to_vec());
        }
        Err(refused(status, json::read(&body).ok().as_ref()))
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Result<Value, CliError> {
        self.send(Method::POST, path, None, Some(body)).await
    }

    pub(crate) async fn delete(&self, path: &str) -> Result<Value, CliError> {
        self.send(Method::DELETE, path, None, None).await
    }

    /// One request; `scenario` goes into its header. Any status but 2xx is a failure.
    pub(crate) async fn send(
        &self,
        method: Method,
        path: &str,
        scenario: Option<&str>,
        body: Option<&Value>,
    ) -> Result<Value, CliError> {
        let (status, body) = self.exchange(method, path, scenario, body).await?;
        let json = json::read(&body).ok();
        if status.is_success() {
            return json.ok_or_else(|| {
                CliError::new(
                    Exit::Unavailable,
                    format!("{} answered with something other than JSON", self.base),
                )
                .hint("is it a Reef service?")
            });
        }
        Err(refused(status, json.as_ref()))
    }

    async fn exchange(
        &self,
        method: Method,
        path: &str,
        scenario: Option<&str>,
        body: Option<&Value>,
    ) -> Result<(StatusCode, bytes::Bytes), CliError> {
        let mut request = self.http.request(method, format!("{}{path}", self.base));
        if let Some(token) = &self.token {
            request = request.bearer_auth(token);
        }
        if let Some(scenario) = scenario {
            request = request.header("x-reef-scenario", scenario);
        }
        if let Some(body) = body {
            request = request.json(body);
        }
        let unreachable = |error: reqwest::Error| {
            CliError::new(Exit::Unavailable, format!("no service answers at {}", self.base))
                .hint(format!("is reef serve running there? ({})", reason(&error)))
        };
        let response = request.send().await.map_err(unreachable)?;
        let status = response.status();
        Ok((status, response.bytes().await.map_err(unreachable)?))
    }
}

/// Why, without the URL, which the message names already.
fn reason(error: &reqwest::Error) -> String {
    if error.is_timeout() {
        return format!("no answer within {} s", TIMEOUT.as_secs());
    }
    let cause = Cause::of(error);
    match cause.hint() {
        Some(hint) => format!("{cause}; {hint}"),
        None => cause.to_string(),
    }
}

fn refused(status: StatusCode, body: Option<&Value>) -> CliError {
    let message = body
        .and_then(|body| body.get("error"))
        .and_then(|error| error.get("message").unwrap_or(error).as_str())
        .map_or_else(|| format!("the service answered {status}"), said);
    let exit = match status.as_u16() {
        409 => Exit::Conflict,
        400..=499 => Exit::Usage,
        _ => Exit::Unavailable,
    };
    let error = CliError::new(exit, message);
    match status.as_u16() {
        401 => error.hint("set REEF_TOKEN to one of the service's tokens"),
        500.. => error.hint("see the service's log"),
        _ => error,
    }
}

/// What a service says is one line of a message, however it is written.
fn said(text: &str) -> String {
    terminal::line(text.trim()).into_owned()
}

/// A part of a path; whatever is not plain is percent-encoded.
pub(crate) fn segment(text: &str) -> String {
    use std::fmt::Write;
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~') {
            out.push(char::from(byte));
        } else {
            // Writing to a String cannot fail.
            let _infallible = write!(out, "%{byte:02X}");
        }
    }
    out
}
