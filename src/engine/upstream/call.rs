//! One call: tries, retries and fallbacks until a provider begins to answer.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::RETRY_AFTER;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::Full;
use hyper_util::client::legacy::connect::HttpConnector;
use tokio::time::Instant;

use super::body::ProviderBody;
use super::models::ModelCache;
use super::pool::{Connector, Lease, Pool};
use super::provider::{Provider, ProviderError};
use super::{RetryOptions, UpstreamOptions};
use crate::engine::{
    BoxFuture, Engine, EngineError, EngineReply, EngineRequest, ModelCard, PassRequest, RequestOutline,
    strip_hop_by_hop,
};

/// The engine that asks providers.
pub struct Upstream {
    pub(super) ports: Vec<Port>,
    pub(super) models: ModelCache,
    first_byte_timeout: Duration,
    pub(super) idle_timeout: Duration,
    retry: RetryOptions,
}

/// A provider and the connections to it.
pub(super) struct Port {
    pub(super) provider: Provider,
    pub(super) pool: Arc<Pool>,
}

/// What one try came to, short of an answer to relay.
pub(super) enum Failure {
    /// The provider says to come back, perhaps when.
    Busy {
        reply: Box<EngineReply>,
        after: Option<Duration>,
    },
    /// No answer; `again` if the request may be sent once more.
    Lost { error: EngineError, again: bool },
}

impl Upstream {
    /// Prepares the providers; connects to none yet.
    pub fn new(options: &UpstreamOptions) -> Result<Self, ProviderError> {
        let providers = options
            .providers
            .iter()
            .map(Provider::new)
            .collect::<Result<Vec<_>, _>>()?;
        if providers.is_empty() {
            return Err(ProviderError::None);
        }
        let connector = connector(options.connect_timeout, providers.iter().any(|p| p.tls))?;
        let ports = providers
            .into_iter()
            .map(|provider| Port {
                pool: Pool::new(
                    provider.uri.clone(),
                    connector.clone(),
                    options.connect_timeout,
                    options.pool_idle_timeout,
                    options.pool_max_idle,
                ),
                provider,
            })
            .collect();
        Ok(Self {
            ports,
            models: ModelCache::default(),
            first_byte_timeout: options.first_byte_timeout,
            idle_timeout: options.idle_timeout,
            retry: options.retry,
        })
    }

    async fn answer(&self, request: EngineRequest) -> Result<EngineReply, EngineError> {
        let deadline = Instant::now() + self.retry.deadline;
        let mut last = None;
        for port in &self.ports {
            match self.ask(port, &request, deadline).await {
                Ok(reply) => return Ok(reply),
                Err(Failure::Lost {
                    error: error @ EngineError::Refused { .. },
                    ..
                }) => return Err(error),
                Err(failure) => last = Some(failure),
            }
        }
        match last {
            Some(Failure::Busy { reply, .. }) => Ok(*reply),
            Some(Failure::Lost { error, .. }) => Err(error),
            None => Err(EngineError::Unavailable {
                reason: "no provider is configured".to_owned(),
                source: None,
            }),
        }
    }

    /// Asks one provider until it answers, the tries are used up or the deadline is near.
    async fn ask(&self, port: &Port, request: &EngineRequest, deadline: Instant) -> Result<EngineReply, Failure> {
        let body = body_for(&port.provider, request)?;
        let mut delay = self.retry.initial;
        let mut tries = 0;
        let mut fresh = false;
        loop {
            let failure = match self.try_once(port, request, body.clone(), fresh).await {
                Ok((reply, _)) if !is_busy(reply.status) => return Ok(reply),
                Ok((reply, after)) => Failure::Busy {
                    reply: Box::new(reply),
                    after,
                },
                // A kept connection that had died says nothing of the provider: go again at once, on a new one.
                Err((Failure::Lost { again: true, .. }, true)) if !fresh => {
                    fresh = true;
                    continue;
                }
                Err((failure, _)) => failure,
            };
            let wait = match &failure {
                Failure::Busy { after: Some(after), .. } => *after,
                Failure::Busy { .. } | Failure::Lost { again: true, .. } => delay,
                Failure::Lost { .. } => return Err(failure),
            };
            if tries >= self.retry.retries || Instant::now() + wait >= deadline {
                return Err(failure);
            }
            // The refused answer's connection is not worth keeping open while waiting.
            drop(failure);
            tokio::time::sleep(wait).await;
            tries += 1;
            delay = (delay * 2).min(self.retry.max);
        }
    }

    /// Sends the request once. An error says whether the connection had been used before.
    async fn try_once(
        &self,
        port: &Port,
        request: &EngineRequest,
        body: Bytes,
        fresh: bool,
    ) -> Result<(EngineReply, Option<Duration>), (Failure, bool)> {
        let mut lease = port.pool.lease(fresh).await.map_err(|error| {
            let error = EngineError::Unavailable {
                reason: error.reason,
                source: error.source,
            };
            (Failure::Lost { error, again: true }, false)
        })?;
        let reused = lease.reused;
        let mut outgoing = Request::new(Full::new(body));
        *outgoing.method_mut() = Method::POST;
        *outgoing.uri_mut() = port.provider.target(request.route, request.query.as_deref());
        let mut headers = request.headers.clone();
        let streaming = request.outline.as_ref().is_some_and(|outline| outline.stream);
        port.provider.dress(&mut headers, request.route.dialect(), streaming);
        *outgoing.headers_mut() = headers;
        let response = self
            .send(&mut lease, outgoing)
            .await
            .map_err(|failure| (failure, reused))?;
        let (mut parts, incoming) = response.into_parts();
        strip_hop_by_hop(&mut parts.headers);
        let after = retry_after(&parts.headers);
        let reply = EngineReply {
            status: parts.status,
            headers: parts.headers,
            body: Box::pin(ProviderBody::new(incoming, lease, self.idle_timeout)),
            capture: None,
        };
        Ok((reply, after))
    }

    pub(super) async fn send(
        &self,
        lease: &mut Lease,
        request: Request<Full<Bytes>>,
    ) -> Result<http::Response<hyper::body::Incoming>, Failure> {
        let lost = |reason: &str, source: Option<hyper::Error>, again| Failure::Lost {
            error: EngineError::Unavailable {
                reason: reason.to_owned(),
                source: source.map(Into::into),
            },
            again,
        };
        let Some(sender) = lease.sender() else {
            return Err(lost("the connection is gone", None, true));
        };
        match tokio::time::timeout(self.first_byte_timeout, sender.try_send_request(request)).await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(mut error)) => {
                let unsent = error.take_message().is_some();
                let error = error.into_error();
                // Sent in full and closed without one byte of answer: a server may have begun the work, so only a
                // reused connection, whose server was about to close it anyway, is asked again (by the caller).
                let closed = unsent || error.is_incomplete_message() || error.is_canceled() || is_io(&error);
                Err(lost(
                    "the connection closed before an answer came",
                    Some(error),
                    closed && (unsent || lease.reused),
                ))
            }
            Err(_) => {
                let limit = self.first_byte_timeout.as_secs_f32();
                Err(lost(&format!("no response within {limit} s"), None, false))
            }
        }
    }
}

fn is_io(error: &hyper::Error) -> bool {
    std::error::Error::source(error).is_some_and(|source| source.is::<std::io::Error>())
}

/// The body as sent to this provider.
fn body_for(provider: &Provider, request: &EngineRequest) -> Result<Bytes, Failure> {
    let Some(model) = &provider.model else {
        return Ok(request.body.clone());
    };
    if request.headers.contains_key(http::header::CONTENT_ENCODING) {
        return Ok(request.body.clone());
    }
    let read;
    let outline = match &request.outline {
        Some(outline) => outline,
        None => {
            read = RequestOutline::read(&request.body).map_err(|error| Failure::Lost {
                error: EngineError::Refused {
                    status: StatusCode::BAD_REQUEST,
                    message: error.to_string(),
                },
                again: false,
            })?;
            &read
        }
    };
    if outline.model.is_some() && !provider.override_model {
        return Ok(request.body.clone());
    }
    Ok(outline.with_model(&request.body, model))
}

fn is_busy(status: StatusCode) -> bool {
    matches!(status.as_u16(), 429 | 502 | 503 | 504)
}

/// `Retry-After` in seconds; the date form is rare and is taken as absent.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds: u64 = headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}

fn connector(connect_timeout: Duration, tls: bool) -> Result<Connector, ProviderError> {
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    http.set_nodelay(true);
    http.set_connect_timeout(Some(connect_timeout));
    http.set_keepalive(Some(Duration::from_secs(60)));
    let ring = Arc::new(rustls::crypto::ring::default_provider());
    let roots = if tls {
        let found = rustls_native_certs::load_native_certs();
        let mut roots = rustls::RootCertStore::empty();
        let (added, _ignored) = roots.add_parsable_certificates(found.certs);
        if added == 0 {
            return Err(ProviderError::Certificates {
                source: std::io::Error::new(std::io::ErrorKind::NotFound, "no certificate found"),
            });
        }
        roots
    } else {
        rustls::RootCertStore::empty()
    };
    let config = rustls::ClientConfig::builder_with_provider(ring)
        .with_safe_default_protocol_versions()
        .map_err(|error| ProviderError::Certificates {
            source: std::io::Error::other(error),
        })?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(hyper_rustls::HttpsConnectorBuilder::new()
        .with_tls_config(config)
        .https_or_http()
        .enable_http1()
        .wrap_connector(http))
}

impl Engine for Upstream {
    fn call(&self, request: EngineRequest) -> BoxFuture<'_, Result<EngineReply, EngineError>> {
        Box::pin(self.answer(request))
    }

    fn pass(&self, request: PassRequest) -> BoxFuture<'_, Result<EngineReply, EngineError>> {
        Box::pin(self.pass_on(request))
    }

    fn models(&self) -> BoxFuture<'_, Result<Vec<ModelCard>, EngineError>> {
        Box::pin(async { Ok(self.list_models().await) })
    }

    fn kind(&self) -> &'static str {
        "upstream"
    }
}
