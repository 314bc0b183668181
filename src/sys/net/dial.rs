//! Connecting: name, address, proxy, TLS, each with its own way to fail.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::Uri;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::proxy::SocksV5;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;
use tower::Service;

use super::{Cause, Proxies, Proxy};

/// The longest answer of a proxy to CONNECT.
const MAX_PROXY_HEAD: usize = 16 * 1024;

/// What a connection can do.
pub trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// A connection, whatever it goes through.
pub type Stream = Box<dyn Duplex>;

/// Makes connections to HTTP servers.
#[derive(Clone)]
pub struct Dialer {
    tcp: HttpConnector,
    tls: Option<TlsConnector>,
    proxies: Proxies,
    timeout: Duration,
}

/// Why there is no connection.
#[derive(Debug)]
pub struct DialError {
    /// Why, in words without addresses.
    pub cause: Cause,
    /// It is the proxy that was not reached.
    pub at_proxy: bool,
    /// What took too long, and how long it had.
    late: Option<(&'static str, Duration)>,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl fmt::Display for DialError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.at_proxy {
            f.write_str("no connection to the proxy: ")?;
        }
        match self.late {
            Some((what, limit)) => write!(f, "timed out after {} s {what}", limit.as_secs_f32()),
            None => self.cause.fmt(f),
        }
    }
}

impl std::error::Error for DialError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

impl From<hyper::Error> for DialError {
    fn from(error: hyper::Error) -> Self {
        Self::new(Cause::of(&error), error)
    }
}

impl DialError {
    fn new(cause: Cause, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self {
            cause,
            at_proxy: false,
            late: None,
            source: Some(source.into()),
        }
    }

    fn bare(cause: Cause) -> Self {
        Self {
            cause,
            at_proxy: false,
            late: None,
            source: None,
        }
    }

    fn of_the_proxy(mut self) -> Self {
        self.at_proxy = true;
        self
    }
}

/// No certificate is trusted, so nothing can be reached by TLS.
#[derive(Debug, thiserror::Error)]
#[error("no trusted certificates are found{}", if *.named { " where SSL_CERT_FILE and SSL_CERT_DIR point" } else { "; install ca-certificates" })]
pub struct NoCertificates {
    /// The environment names where they should be.
    named: bool,
    #[source]
    source: Option<rustls_native_certs::Error>,
}

impl Dialer {
    /// Connections that come about within `timeout`, through these proxies. `tls`: addresses with `https://` too.
    pub fn new(timeout: Duration, proxies: Proxies, tls: bool) -> Result<Self, NoCertificates> {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(timeout));
        tcp.set_keepalive(Some(Duration::from_secs(60)));
        let tls = if tls || proxies.any_needs_tls() {
            Some(tls_connector()?)
        } else {
            None
        };
        Ok(Self {
            tcp,
            tls,
            proxies,
            timeout,
        })
    }

    /// Connects to the host and port of an address, and speaks TLS with it where the address says so.
    pub async fn dial(&self, uri: &Uri) -> Result<Stream, DialError> {
        let deadline = Instant::now() + self.timeout;
        let stream: Stream = match self.proxies.on_the_way_to(uri) {
            None => {
                let connecting = self.tcp(uri);
                Box::new(self.within(deadline, "while connecting", connecting).await?)
            }
            Some(proxy) if proxy.is_http() => {
                let asking = self.through_http(proxy, uri);
                self.within(deadline, "on the way through the proxy", asking).await?
            }
            Some(proxy) => {
                let asking = self.through_socks(proxy, uri);
                Box::new(self.within(deadline, "on the way through the proxy", asking).await?)
            }
        };
        if uri.scheme_str() == Some("https") {
            let handshake = self.encrypt(uri, stream);
            return self.within(deadline, "in the TLS handshake", handshake).await;
        }
        Ok(stream)
    }

    async fn within<T>(
        &self,
        deadline: Instant,
        what: &'static str,
        work: impl Future<Output = Result<T, DialError>>,
    ) -> Result<T, DialError> {
        tokio::time::timeout_at(deadline, work).await.unwrap_or_else(|_| {
            Err(DialError {
                late: Some((what, self.timeout)),
                ..DialError::bare(Cause::TimedOut)
            })
        })
    }

    /// The proxy that requests to this address are sent to as they are, in absolute form: plain HTTP through an HTTP
    /// proxy. Everything else goes through a tunnel, and the other end does not notice.
    pub fn forwards(&self, uri: &Uri) -> Option<&Arc<Proxy>> {
        let plain = uri.scheme_str() == Some("http");
        self.proxies.on_the_way_to(uri).filter(|proxy| plain && proxy.is_http())
    }

    /// The proxy on the way to an address.
    pub fn proxy(&self, uri: &Uri) -> Option<&Arc<Proxy>> {
        self.proxies.on_the_way_to(uri)
    }

    async fn tcp(&self, uri: &Uri) -> Result<TcpStream, DialError> {
        // A clone, because connecting needs `&mut`; it shares everything inside.
        let connected = self.tcp.clone().call(uri.clone()).await;
        connected
            .map(TokioIo::into_inner)
            .map_err(|error| DialError::new(Cause::of(&error), error))
    }

    async fn encrypt(&self, uri: &Uri, stream: Stream) -> Result<Stream, DialError> {
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        let named = ServerName::try_from(host).map_err(|error| DialError::new(Cause::NameNotFound, error))?;
        let Some(tls) = &self.tls else {
            return Err(DialError::bare(Cause::Tls("TLS is not prepared".to_owned())));
        };
        match tls.connect(named, stream).await {
            Ok(stream) => Ok(Box::new(stream)),
            Err(error) => {
                let cause = match Cause::of(&error) {
                    Cause::CutShort | Cause::Reset => Cause::Tls("the other side closed the connection".to_owned()),
                    cause => cause,
                };
                Err(DialError::new(cause, error))
            }
        }
    }

    async fn through_http(&self, proxy: &Proxy, uri: &Uri) -> Result<Stream, DialError> {
        let mut stream: Stream = Box::new(self.tcp(proxy.uri()).await.map_err(DialError::of_the_proxy)?);
        if proxy.uri().scheme_str() == Some("https") {
            stream = self
                .encrypt(proxy.uri(), stream)
                .await
                .map_err(DialError::of_the_proxy)?;
        }
        if uri.scheme_str() == Some("https") {
            open_tunnel(&mut stream, proxy, uri).await?;
        }
        Ok(stream)
    }

    async fn through_socks(&self, proxy: &Proxy, uri: &Uri) -> Result<TcpStream, DialError> {
        let (host, port) = host_and_port(uri);
        // With `socks5` names are looked up here, with `socks5h` over there, as everywhere.
        let place = if proxy.uri().scheme_str() == Some("socks5") {
            let found = tokio::net::lookup_host((host.trim_matches(['[', ']']), port)).await;
            let mut found = found.map_err(|error| DialError::new(Cause::of(&error), error))?;
            let address = found.next().ok_or_else(|| DialError::bare(Cause::NameNotFound))?;
            address.to_string()
        } else {
            format!("{host}:{port}")
        };
        let target: Uri = format!("http://{place}/")
            .parse()
            .map_err(|error: http::uri::InvalidUri| DialError::new(Cause::NameNotFound, error))?;
        let mut socks = SocksV5::new(proxy.uri().clone(), self.tcp.clone());
        if let Some((user, password)) = proxy.login() {
            socks = socks.with_auth(user, password);
        }
        let connected = socks.call(target).await;
        connected.map(TokioIo::into_inner).map_err(|error| {
            let cause = Cause::of(&error);
            DialError::new(cause, error).of_the_proxy()
        })
    }
}

/// Asks an HTTP proxy for a connection to the host of an address.
async fn open_tunnel(stream: &mut Stream, proxy: &Proxy, uri: &Uri) -> Result<(), DialError> {
    let (host, port) = host_and_port(uri);
    let mut request = format!("CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n").into_bytes();
    if let Some(credential) = proxy.authorization() {
        request.extend_from_slice(b"Proxy-Authorization: ");
        request.extend_from_slice(credential.as_bytes());
        request.extend_from_slice(b"\r\n");
    }
    request.extend_from_slice(b"\r\n");
    let broke = |error: std::io::Error| DialError::new(Cause::of(&error), error).of_the_proxy();
    stream.write_all(&request).await.map_err(broke)?;
    stream.flush().await.map_err(broke)?;
    let mut head = Vec::new();
    // Byte by byte: what follows the head belongs to the other end.
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() == MAX_PROXY_HEAD {
            return Err(DialError::bare(Cause::NotProxy));
        }
        match stream.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof && head.is_empty() => {
                return Err(DialError::new(Cause::Unanswered, error).of_the_proxy());
            }
            Err(error) => return Err(broke(error)),
        }
    }
    let mut headers = [httparse::EMPTY_HEADER; 128];
    let mut answer = httparse::Response::new(&mut headers);
    match answer.parse(&head).map(|_| answer.code) {
        Ok(Some(200..=299)) => Ok(()),
        Ok(Some(407)) => Err(DialError::bare(Cause::ProxyLogin)),
        Ok(Some(status)) => Err(DialError::bare(Cause::ProxyRefused(status))),
        Ok(None) => Err(DialError::bare(Cause::NotProxy)),
        Err(error) => Err(DialError::new(Cause::NotProxy, error)),
    }
}

fn host_and_port(uri: &Uri) -> (&str, u16) {
    let otherwise = if uri.scheme_str() == Some("https") { 443 } else { 80 };
    (uri.host().unwrap_or_default(), uri.port_u16().unwrap_or(otherwise))
}

/// The certificates that this system trusts, or those that `SSL_CERT_FILE` and `SSL_CERT_DIR` name.
fn tls_connector() -> Result<TlsConnector, NoCertificates> {
    let mut found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    let (added, _unreadable) = roots.add_parsable_certificates(found.certs);
    let nothing = |source| NoCertificates {
        named: std::env::var_os("SSL_CERT_FILE").is_some() || std::env::var_os("SSL_CERT_DIR").is_some(),
        source,
    };
    if added == 0 {
        return Err(nothing(found.errors.pop()));
    }
    let ring = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(ring)
        .with_safe_default_protocol_versions()
        .map_err(|_| nothing(None))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}
