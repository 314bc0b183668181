//! Providers reached over HTTP: any OpenAI- or Anthropic-compatible service, with retries before the first byte and
//! ordered fallbacks. Request and response bytes pass unchanged, save the configured model where the body names none.

mod body;
mod call;
mod models;
mod pass;
mod pool;
mod provider;

pub use call::Upstream;
pub use models::Hello;
pub use provider::{Api, ProviderError, ProviderOptions};

use std::time::Duration;

use crate::sys::net::Proxies;

/// How the upstream engine behaves.
#[derive(Debug, Clone)]
pub struct UpstreamOptions {
    /// Where requests go: the first, and the rest in order when those before it cannot answer.
    pub providers: Vec<ProviderOptions>,
    /// Longest wait for a connection, name lookup and TLS included.
    pub connect_timeout: Duration,
    /// Longest wait from sending a request to the head of its response.
    pub first_byte_timeout: Duration,
    /// Longest silence within a response body.
    pub idle_timeout: Duration,
    /// When and how often to try again.
    pub retry: RetryOptions,
    /// How long an unused connection is kept.
    pub pool_idle_timeout: Duration,
    /// How many unused connections are kept per provider.
    pub pool_max_idle: usize,
    /// The longest head of an answer.
    pub head: HeadLimits,
    /// The proxies on the way to providers.
    pub proxies: Proxies,
}

/// The longest head of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeadLimits {
    /// Header lines.
    pub lines: usize,
    /// Bytes, at least 8192.
    pub bytes: usize,
}

impl Default for HeadLimits {
    fn default() -> Self {
        Self {
            lines: 500,
            bytes: 256 * 1024,
        }
    }
}

/// Retries happen only before the first byte of an answer, on failed connections and on 429, 502, 503 and 504.
#[derive(Debug, Clone, Copy)]
pub struct RetryOptions {
    /// Tries after the first, per provider.
    pub retries: u32,
    /// No new try begins later than this after the first.
    pub deadline: Duration,
    /// First delay; it doubles from try to try.
    pub initial: Duration,
    /// Longest delay, save a longer one the provider asks for in `Retry-After`.
    pub max: Duration,
}

impl Default for RetryOptions {
    fn default() -> Self {
        Self {
            retries: 2,
            deadline: Duration::from_secs(30),
            initial: Duration::from_millis(50),
            max: Duration::from_secs(1),
        }
    }
}

impl UpstreamOptions {
    /// The defaults, for one provider.
    pub fn new(provider: ProviderOptions) -> Self {
        Self {
            providers: vec![provider],
            connect_timeout: Duration::from_secs(10),
            first_byte_timeout: Duration::from_secs(300),
            idle_timeout: Duration::from_secs(300),
            retry: RetryOptions::default(),
            pool_idle_timeout: Duration::from_secs(30),
            pool_max_idle: 256,
            head: HeadLimits::default(),
            proxies: Proxies::default(),
        }
    }
}
