//! One provider: where it is, what it is asked for, and how Reef proves itself to it.

use http::header::{ACCEPT_ENCODING, AUTHORIZATION, CONTENT_LENGTH, COOKIE, HOST};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, HeaderName, HeaderValue, Uri};

use crate::domain::{Dialect, Route};
use crate::sys::net::NoCertificates;

/// The API a provider is at home in; it decides how the credential is sent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Api {
    /// OpenAI chat completions, and everything compatible with it.
    #[default]
    Openai,
    /// OpenAI responses.
    Responses,
    /// Anthropic messages.
    Anthropic,
}

impl std::str::FromStr for Api {
    type Err = ProviderError;

    fn from_str(s: &str) -> Result<Self, ProviderError> {
        match s {
            "openai" => Ok(Self::Openai),
            "responses" => Ok(Self::Responses),
            "anthropic" => Ok(Self::Anthropic),
            other => Err(ProviderError::UnknownApi {
                value: other.to_owned(),
            }),
        }
    }
}

/// A provider as configured.
#[derive(Clone, Default)]
pub struct ProviderOptions {
    /// Base URL, with or without a final `/v1`.
    pub url: String,
    /// Put into requests that name no model; see `override_model`.
    pub model: Option<String>,
    /// Whether `model` also replaces the model a request names.
    pub override_model: bool,
    /// The credential.
    pub api_key: Option<String>,
    /// How the credential is sent.
    pub api: Api,
}

impl ProviderOptions {
    /// Whether a provider can be used as configured.
    pub fn check(&self) -> Result<(), ProviderError> {
        Provider::new(self).map(drop)
    }
}

// By hand, so that no log ever shows the credential.
impl std::fmt::Debug for ProviderOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ProviderOptions")
            .field("url", &self.url)
            .field("model", &self.model)
            .field("override_model", &self.override_model)
            .field("api_key", &self.api_key.as_ref().map(|_| "***"))
            .field("api", &self.api)
            .finish()
    }
}

/// A provider that cannot be used as configured.
#[derive(Debug, thiserror::Error)]
pub enum ProviderError {
    /// No provider at all.
    #[error("no upstream provider is configured; give its base URL, for example http://127.0.0.1:8000")]
    None,
    /// Not a usable URL.
    #[error("upstream url {url:?} cannot be used: {reason}")]
    Url {
        /// As given, without credentials.
        url: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A key that cannot be sent in a header.
    #[error("the upstream api key holds characters that cannot be sent in a header")]
    Key,
    /// Not an API Reef knows.
    #[error("upstream api {value:?} is not one of openai, responses, anthropic")]
    UnknownApi {
        /// As given.
        value: String,
    },
    /// No trusted certificates, so no TLS.
    #[error(transparent)]
    Certificates(#[from] NoCertificates),
}

/// A provider ready to be called.
#[derive(Debug)]
pub(super) struct Provider {
    pub(super) uri: Uri,
    pub(super) tls: bool,
    pub(super) model: Option<String>,
    pub(super) override_model: bool,
    host: HeaderValue,
    prefix: String,
    /// In the order of [`Route::ALL`].
    paths: Vec<PathAndQuery>,
    bearer: Option<HeaderValue>,
    key: Option<HeaderValue>,
    api: Api,
}

const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");
const ANTHROPIC_VERSION: HeaderName = HeaderName::from_static("anthropic-version");

impl Provider {
    pub(super) fn new(options: &ProviderOptions) -> Result<Self, ProviderError> {
        let refuse = |reason| ProviderError::Url {
            url: without_credentials(&options.url).to_owned(),
            reason,
        };
        let uri: Uri = options.url.trim().parse().map_err(|_| refuse("it is not a URL"))?;
        let tls = match uri.scheme() {
            Some(s) if *s == Scheme::HTTP => false,
            Some(s) if *s == Scheme::HTTPS => true,
            _ => return Err(refuse("it must begin with http:// or https://")),
        };
        let authority: &Authority = uri.authority().ok_or_else(|| refuse("it names no host"))?;
        if authority.as_str().contains('@') {
            return Err(refuse("it holds a user name or password; use the api key setting"));
        }
        if uri.query().is_some() {
            return Err(refuse("it must have no query string"));
        }
        let path = uri.path().trim_end_matches('/');
        let prefix = path.strip_suffix("/v1").unwrap_or(path).to_owned();
        let path = |path: &str| {
            PathAndQuery::try_from(format!("{prefix}{path}")).map_err(|_| refuse("its path cannot be sent"))
        };
        let mut paths = Vec::with_capacity(Route::ALL.len());
        for route in Route::ALL {
            paths.push(path(route.path())?);
        }
        let secret = |text: &str| {
            let mut value = HeaderValue::from_str(text).map_err(|_| ProviderError::Key)?;
            value.set_sensitive(true);
            Ok::<_, ProviderError>(value)
        };
        let api_key = options.api_key.as_deref().filter(|key| !key.is_empty());
        Ok(Self {
            tls,
            model: options.model.clone().filter(|model| !model.is_empty()),
            override_model: options.override_model,
            host: HeaderValue::from_str(authority.as_str()).map_err(|_| refuse("its host cannot be sent"))?,
            bearer: api_key.map(|key| secret(&format!("Bearer {key}"))).transpose()?,
            key: api_key.map(secret).transpose()?,
            api: options.api,
            paths,
            prefix,
            uri,
        })
    }

    /// The request target for `route`.
    pub(super) fn target(&self, route: Route, query: Option<&str>) -> Uri {
        let at = route as usize;
        let path = match query {
            None | Some("") => self.paths[at].clone(),
            // A query that came in a valid request line is valid in another.
            Some(query) => {
                PathAndQuery::try_from(format!("{}?{query}", self.paths[at])).unwrap_or_else(|_| self.paths[at].clone())
            }
        };
        Uri::from(path)
    }

    /// The request target of a path of the provider's own.
    pub(super) fn target_path(&self, path: &str) -> Option<Uri> {
        PathAndQuery::try_from(format!("{}{path}", self.prefix))
            .ok()
            .map(Uri::from)
    }

    /// Makes the headers of a passed request fit for this provider, whichever API it is at home in.
    pub(super) fn dress_passed(&self, headers: &mut HeaderMap, dialect: Dialect) {
        let dialect = if self.api == Api::Anthropic {
            Dialect::Anthropic
        } else {
            dialect
        };
        self.dress(headers, dialect, false);
    }

    /// Makes `headers` fit for this provider: its host, Reef's credential, nobody else's.
    pub(super) fn dress(&self, headers: &mut HeaderMap, dialect: Dialect, streaming: bool) {
        headers.remove(CONTENT_LENGTH);
        headers.remove(COOKIE);
        headers.remove(AUTHORIZATION);
        headers.remove(X_API_KEY);
        headers.insert(HOST, self.host.clone());
        if streaming {
            // A compressed event stream could carry no receipt.
            headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        }
        let anthropic = dialect == Dialect::Anthropic;
        if anthropic {
            if let Some(key) = &self.key {
                headers.insert(X_API_KEY, key.clone());
            }
            headers
                .entry(ANTHROPIC_VERSION)
                .or_insert(HeaderValue::from_static("2023-06-01"));
        }
        // OpenAI-compatible servers that also speak messages read the bearer; Anthropic itself refuses two credentials.
        if let (false, Some(bearer)) = (anthropic && self.api == Api::Anthropic, &self.bearer) {
            headers.insert(AUTHORIZATION, bearer.clone());
        }
    }
}

/// The part of a URL that holds no credential: no user and password, no query.
fn without_credentials(url: &str) -> &str {
    let end = url.find(['?', '#']).unwrap_or(url.len());
    let (before, after) = url.split_at(end);
    match before.rsplit_once('@') {
        Some((_, host)) => host,
        // What looked like a query may be the end of a password.
        None if after.contains('@') => "",
        None => before,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn provider(url: &str) -> Result<Provider, ProviderError> {
        Provider::new(&ProviderOptions {
            url: url.to_owned(),
            api_key: Some("sk-secret".to_owned()),
            ..ProviderOptions::default()
        })
    }

    #[test]
    fn base_urls_with_and_without_v1_are_the_same() {
        for (url, expected) in [
            ("http://h:1", "/v1/messages?beta=true"),
            ("http://h:1/", "/v1/messages?beta=true"),
            ("http://h:1/v1", "/v1/messages?beta=true"),
            ("http://h:1/v1/", "/v1/messages?beta=true"),
            ("https://h/api/v1", "/api/v1/messages?beta=true"),
            ("https://h/api", "/api/v1/messages?beta=true"),
        ] {
            let target = provider(url).unwrap().target(Route::Messages, Some("beta=true"));
            assert_eq!(target.to_string(), expected, "{url}");
        }
    }

    #[test]
    fn unusable_urls_are_refused_without_showing_a_password() {
        for url in [
            "",
            "h:1",
            "ftp://h",
            "http://user:pw@h/",
            "http://user:pw?w@h/",
            "http://h/?a=1",
            "http://h/?a=pw",
            "http://h/?a=@pw",
            "http://",
        ] {
            let error = provider(url).unwrap_err().to_string();
            assert!(!error.contains("pw"), "{error}");
        }
    }

    #[test]
    fn only_the_configured_credential_leaves() {
        let provider = provider("http://h:1").unwrap();
        let client = || {
            let mut headers = HeaderMap::new();
            headers.insert("authorization", HeaderValue::from_static("Bearer mine"));
            headers.insert("x-api-key", HeaderValue::from_static("mine"));
            headers.insert("cookie", HeaderValue::from_static("mine"));
            headers.insert("anthropic-version", HeaderValue::from_static("2030-01-01"));
            headers
        };
        let mut chat = client();
        provider.dress(&mut chat, Dialect::OpenaiChat, true);
        assert_eq!(chat["authorization"], "Bearer sk-secret");
        assert!(chat.get("x-api-key").is_none() && chat.get("cookie").is_none());
        assert_eq!(chat["accept-encoding"], "identity");
        let mut messages = client();
        provider.dress(&mut messages, Dialect::Anthropic, false);
        assert_eq!(messages["x-api-key"], "sk-secret");
        assert_eq!(messages["anthropic-version"], "2030-01-01");
        assert!(!format!("{messages:?}").contains("sk-secret"));
    }
}
