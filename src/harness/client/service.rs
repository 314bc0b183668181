//! The service as an installation sees it.

use std::fmt;
use std::time::Duration;

use reqwest::{Method, StatusCode, Url};
use serde_json::{Value, json};

use super::error::{ClientError, Kind};
use crate::domain::ScenarioName;
use crate::sys::net::{Cause, unfit_for_a_header};
use crate::sys::terminal;

/// Longest wait for an answer.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The longest message of a service that is passed on.
const MAX_SAID: usize = 1000;

/// A connection to the service of one scenario.
#[derive(Clone)]
pub struct Service {
    base: String,
    token: Option<String>,
    scenario: ScenarioName,
    http: reqwest::Client,
}

impl fmt::Debug for Service {
    /// Without the token.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Service")
            .field("base", &self.base)
            .field("scenario", &self.scenario)
            .finish_non_exhaustive()
    }
}

/// What the service says about a scenario's tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Known {
    /// It serves this release.
    Release(String),
    /// It serves no tree for the scenario.
    NoTree,
}

/// Why a request was not answered with success.
#[derive(Debug)]
pub(super) enum Failed {
    /// Nobody answered, or the service could not.
    Unavailable(ClientError),
    /// It failed over this request; another one may go better.
    Broke(ClientError),
    /// It answered no, under this code.
    Refused(StatusCode, Option<String>, ClientError),
    /// Something in front of it did, in words that are not the service's.
    Foreign(StatusCode, ClientError),
}

impl From<Failed> for ClientError {
    fn from(failed: Failed) -> Self {
        match failed {
            Failed::Unavailable(error)
            | Failed::Broke(error)
            | Failed::Refused(_, _, error)
            | Failed::Foreign(_, error) => error,
        }
    }
}

/// The root of a service as written by a person: `http` or `https`, without credentials, query or a trailing `/v1`.
pub(super) fn root_of(url: &str) -> Result<String, ClientError> {
    let usage = |reason: &str| {
        ClientError::new(Kind::Usage, format!("the service's URL {reason}"))
            .hint("for example --url http://127.0.0.1:8900")
    };
    let parsed = Url::parse(url).map_err(|error| usage(&format!("is not one: {error}")))?;
    if !matches!(parsed.scheme(), "http" | "https") || parsed.host_str().is_none() {
        return Err(usage("has to start with http:// or https://"));
    }
    if !parsed.username().is_empty() || parsed.password().is_some() {
        return Err(usage(
            "may not hold a user name or a password; the token comes from REEF_TOKEN",
        ));
    }
    if parsed.query().is_some() || parsed.fragment().is_some() {
        return Err(usage("may not have a query"));
    }
    let text = parsed.as_str().trim_end_matches('/');
    Ok(text.strip_suffix("/v1").unwrap_or(text).to_owned())
}

/// A client for HTTP, without a proxy: a service is reached directly, as by every other command.
pub(super) fn http_client(timeout: Option<Duration>) -> Result<reqwest::Client, ClientError> {
    // Fails only if somebody else installed one first, which serves as well.
    let _already = rustls::crypto::ring::default_provider().install_default();
    let mut builder = reqwest::Client::builder()
        .connect_timeout(Duration::from_secs(10))
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none());
    if let Some(timeout) = timeout {
        builder = builder.timeout(timeout);
    }
    builder
        .build()
        .map_err(|error| ClientError::new(Kind::Machine, format!("no HTTP client can be made: {error}")))
}

impl Service {
    /// The service at `url`, asked about `scenario`.
    pub fn new(url: &str, token: Option<String>, scenario: ScenarioName) -> Result<Self, ClientError> {
        if let Some(problem) = token.as_deref().and_then(unfit_for_a_header) {
            return Err(ClientError::new(Kind::Usage, format!("the token {problem}"))
                .hint("no header can carry it; check REEF_TOKEN"));
        }
        Ok(Self {
            base: root_of(url)?,
            token,
            scenario,
            http: http_client(Some(TIMEOUT))?,
        })
    }

    /// Its root.
    pub fn base(&self) -> &str {
        &self.base
    }

    /// The scenario asked about.
    pub fn scenario(&self) -> &ScenarioName {
        &self.scenario
    }

    /// The manifest of the served release, or of another one, for an agent.
    pub async fn manifest(&self, adapter: &str, release: Option<&str>) -> Result<Value, ClientError> {
        let mut path = format!("/reef/harness?adapter={}", escaped(adapter));
        if let Some(id) = release {
            path.push_str("&release_id=");
            path.push_str(&escaped(id));
        }
        match self.send(Method::GET, &path, None, TIMEOUT).await {
            Err(Failed::Refused(StatusCode::NOT_FOUND, _, error) | Failed::Foreign(StatusCode::NOT_FOUND, error)) => {
                Err(ClientError::new(
                    Kind::Nothing,
                    format!(
                        "{} serves no such harness for the scenario {}: {error}",
                        self.base, self.scenario
                    ),
                ))
            }
            other => Ok(other?),
        }
    }

    /// The same, for an installation: a scenario that does not exist yet is made first, as its first request would make
    /// it. Whether one was made comes with the manifest.
    pub async fn manifest_for_installing(
        &self,
        adapter: &str,
        release: Option<&str>,
    ) -> Result<(Value, bool), ClientError> {
        let asked = self.send(Method::GET, "/reef/harness", None, TIMEOUT).await;
        let missing = matches!(&asked, Err(Failed::Refused(_, Some(code), _)) if code == "unknown_scenario");
        let made = missing && release.is_none();
        if made {
            self.create_scenario(true).await?;
        }
        Ok((self.manifest(adapter, release).await?, made))
    }

    /// Which release it serves, asked with little patience.
    pub async fn served(&self, patience: Duration) -> Result<Known, ClientError> {
        match self.send(Method::GET, "/reef/harness", None, patience).await {
            Ok(value) => Ok(value
                .get("release_id")
                .and_then(Value::as_str)
                .map_or(Known::NoTree, |id| Known::Release(id.to_owned()))),
            Err(Failed::Refused(status, ..) | Failed::Foreign(status, _))
                if matches!(status, StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED) =>
            {
                Ok(Known::NoTree)
            }
            Err(other) => Err(other.into()),
        }
    }

    /// The chain of releases with a tree, oldest first.
    pub async fn releases(&self) -> Result<Vec<Value>, ClientError> {
        let value = self.send(Method::GET, "/reef/harness/releases", None, TIMEOUT).await?;
        Ok(value
            .get("releases")
            .and_then(Value::as_array)
            .cloned()
            .unwrap_or_default())
    }

    /// The first model it lists.
    pub async fn first_model(&self) -> Result<Option<String>, ClientError> {
        let value = match self.send(Method::GET, "/v1/models", None, TIMEOUT).await {
            Ok(value) => value,
            Err(Failed::Refused(..) | Failed::Foreign(..)) => return Ok(None),
            Err(other) => return Err(other.into()),
        };
        Ok(value.pointer("/data/0/id").and_then(Value::as_str).map(str::to_owned))
    }

    /// Makes the scenario if there is none of its name; `implicit` only where requests may make one too.
    pub async fn create_scenario(&self, implicit: bool) -> Result<(), ClientError> {
        let mut body = json!({"scenario": self.scenario});
        if implicit {
            body["implicit"] = json!(true);
        }
        self.send(Method::POST, "/reef/scenarios", Some(&body), TIMEOUT).await?;
        Ok(())
    }

    /// Takes a scenario back that was made a moment ago for something that then failed.
    pub async fn drop_scenario(&self) -> Result<(), ClientError> {
        let path = format!("/reef/scenarios/{}", escaped(self.scenario.as_str()));
        self.send(Method::DELETE, &path, None, TIMEOUT).await?;
        Ok(())
    }

    /// Asks for a training step, in words.
    pub async fn instruct(&self, body: &Value) -> Result<Value, ClientError> {
        Ok(self.send(Method::POST, "/reef/train", Some(body), TIMEOUT).await?)
    }

    /// How far such a request is.
    pub async fn progress(&self, id: &str) -> Result<Value, ClientError> {
        let path = format!("/reef/harness/requests/{}/progress", escaped(id));
        Ok(self.send(Method::GET, &path, None, TIMEOUT).await?)
    }

    pub(super) async fn post_report(&self, body: &Value) -> Result<Value, Failed> {
        self.send(Method::POST, "/reef/report", Some(body), TIMEOUT).await
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        patience: Duration,
    ) -> Result<Value, Failed> {
        let mut request = self
            .http
            .request(method, format!("{}{path}", self.base))
            .timeout(patience)
            .header("x-reef-scenario", self.scenario.as_str());
        if let Some(token) = &self.token {
            request = request.bearer_auth(token);
        }
        if let Some(body) = body {
            request = request.json(body);
        }
        let unreachable = |error: reqwest::Error| {
            Failed::Unavailable(
                ClientError::new(
                    Kind::Unavailable,
                    format!("no service answers at {} ({})", self.base, reason(&error)),
                )
                .hint("is reef serve running there, and can this machine reach it?"),
            )
        };
        let response = request.send().await.map_err(unreachable)?;
        let status = response.status();
        let bytes = response.bytes().await.map_err(unreachable)?;
        let value: Option<Value> = crate::sys::json::read(&bytes).ok();
        if status.is_success() {
            return value.ok_or_else(|| {
                Failed::Unavailable(
                    ClientError::new(
                        Kind::Unavailable,
                        format!("{} answered with something other than JSON", self.base),
                    )
                    .hint("is it a Reef service, and is its URL the root of it?"),
                )
            });
        }
        let message = value
            .as_ref()
            .and_then(|value| value.get("error"))
            .and_then(|error| error.get("message").unwrap_or(error).as_str())
            .map(said);
        let own = message.is_some();
        let code = value
            .as_ref()
            .and_then(|value| value.pointer("/error/code"))
            .and_then(Value::as_str)
            .map(str::to_owned);
        let said = message.unwrap_or_else(|| format!("it answered {status}"));
        if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS || status == StatusCode::REQUEST_TIMEOUT
        {
            let error = ClientError::new(
                Kind::Unavailable,
                format!("the service at {} cannot answer: {said}", self.base),
            );
            return Err(if status == StatusCode::INTERNAL_SERVER_ERROR {
                Failed::Broke(error)
            } else {
                Failed::Unavailable(error)
            });
        }
        let error = match status {
            StatusCode::UNAUTHORIZED => {
                ClientError::new(Kind::Usage, format!("{} refused the token: {said}", self.base))
                    .hint("set REEF_TOKEN to one of the service's tokens")
            }
            _ => ClientError::new(Kind::Usage, said),
        };
        Err(if own {
            Failed::Refused(status, code, error)
        } else {
            Failed::Foreign(status, error)
        })
    }
}

/// What a service says becomes part of one line, however it is written.
fn said(text: &str) -> String {
    let text: String = text.trim().chars().take(MAX_SAID).collect();
    terminal::line(&text).into_owned()
}

/// Why, without the URL, which the message names already.
pub(super) fn reason(error: &reqwest::Error) -> String {
    if error.is_timeout() {
        return "it did not answer in time".to_owned();
    }
    Cause::of(error).to_string()
}

/// A value of a query.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~') {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_taken_as_people_write_it_and_never_with_a_secret() {
        for (written, root) in [
            ("http://127.0.0.1:8900", "http://127.0.0.1:8900"),
            ("http://127.0.0.1:8900/", "http://127.0.0.1:8900"),
            ("https://reef.example/team/v1", "https://reef.example/team"),
        ] {
            assert_eq!(root_of(written).unwrap(), root);
        }
        for bad in [
            "",
            "localhost:8900",
            "ftp://x",
            "http://u:secret@x",
            "http://x/?token=1",
            "http://",
            "file:///x",
        ] {
            let error = root_of(bad).unwrap_err().to_string();
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
