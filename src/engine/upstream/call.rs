//! One call: tries, retries and fallbacks until a provider begins to answer.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::RETRY_AFTER;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::Full;
use tokio::time::Instant;

use super::body::ProviderBody;
use super::models::ModelCache;
use super::pool::{Lease, Pool};
use super::provider::{Provider, ProviderError};
use super::{HeadLimits, RetryOptions, UpstreamOptions};
use crate::engine::{
    BoxFuture, Engine, EngineError, EngineReply, EngineRequest, ModelCard, PassRequest, RequestOutline,
    strip_hop_by_hop,
};
use crate::sys::net::{Cause, DialError, Dialer};

/// The engine that asks providers.
pub struct Upstream {
    pub(super) ports: Vec<Port>,
    pub(super) models: ModelCache,
    first_byte_timeout: Duration,
    pub(super) idle_timeout: Duration,
    retry: RetryOptions,
    head: HeadLimits,
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
        let tls = providers.iter().any(|provider| provider.tls);
        let dialer = Dialer::new(options.connect_timeout, options.proxies.clone(), tls)?;
        let ports = providers
            .into_iter()
            .map(|provider| Port {
                pool: Pool::new(
                    provider.uri.clone(),
                    dialer.clone(),
                    options.head,
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
            head: options.head,
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
            let error = unreachable(error);
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
        let lost = |reason: String, source: Option<hyper::Error>, again| Failure::Lost {
            error: EngineError::Unavailable {
                reason,
                source: source.map(Into::into),
            },
            again,
        };
        match tokio::time::timeout(self.first_byte_timeout, lease.send(request)).await {
            // It is the proxy that asks, and the client has no credential for it.
            Ok(Ok(response)) if lease.forwarded() && response.status() == StatusCode::PROXY_AUTHENTICATION_REQUIRED => {
                Err(lost(Cause::ProxyLogin.to_string(), None, false))
            }
            Ok(Ok(response)) => Ok(response),
            Ok(Err(mut error)) => {
                let unsent = error.take_message().is_some();
                let error = error.into_error();
                // Sent in full and closed without one byte of answer: a server may have begun the work, so only a
                // reused connection, whose server was about to close it anyway, is asked again (by the caller).
                let closed = unsent || error.is_incomplete_message() || error.is_canceled() || is_io(&error);
                let reason = match Cause::of(&error) {
                    Cause::HeadTooLarge => self.head.passed(),
                    cause => cause.to_string(),
                };
                Err(lost(reason, Some(error), closed && (unsent || lease.reused)))
            }
            Err(_) => {
                let limit = self.first_byte_timeout.as_secs_f32();
                Err(lost(format!("no response within {limit} s"), None, false))
            }
        }
    }
}

/// No connection, in words.
pub(super) fn unreachable(error: DialError) -> EngineError {
    EngineError::Unavailable {
        reason: error.to_string(),
        source: Some(error.into()),
    }
}

impl HeadLimits {
    fn passed(&self) -> String {
        let Self { lines, bytes } = self;
        format!(
            "the head of the answer has more than {lines} lines or {bytes} bytes \
             (inference.max-head-lines, inference.max-head-size)"
        )
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
