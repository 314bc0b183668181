//! Which proxy a connection takes.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use http::{HeaderValue, Uri};
use hyper_util::client::proxy::matcher::{Intercept, Matcher};
use ipnet::IpNet;

/// Where proxies are said, each with the name of who says it, for messages.
#[derive(Debug, Clone, Default)]
pub struct ProxyRules {
    /// For `http://` addresses.
    pub http: Option<(String, String)>,
    /// For `https://` addresses.
    pub https: Option<(String, String)>,
    /// For addresses of either kind that have no proxy of their own.
    pub all: Option<(String, String)>,
    /// Hosts that are reached directly.
    pub direct: Option<String>,
}

/// A proxy that cannot be used. The message does not hold its URL, which may hold a password.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{named}: {problem}")]
pub struct ProxyError {
    /// Who says it: a setting or a variable.
    pub named: String,
    /// What is wrong.
    pub problem: &'static str,
}

/// The proxies of this deployment. The default is none.
#[derive(Debug, Clone, Default)]
pub struct Proxies {
    http: Option<Arc<Proxy>>,
    https: Option<Arc<Proxy>>,
    direct: Arc<[Entry]>,
    /// As given, for other programs.
    direct_text: Arc<str>,
}

/// One proxy.
#[derive(Clone)]
pub struct Proxy {
    intercept: Intercept,
    named: String,
    /// With its credential, as other programs want it.
    url: String,
}

/// A line of `NO_PROXY`.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Entry {
    Everything,
    Network(IpNet),
    Address(IpAddr, Option<u16>),
    /// This name and everything below it.
    Domain(String, Option<u16>),
}

impl Proxies {
    /// Reads the rules.
    pub fn new(rules: &ProxyRules) -> Result<Self, ProxyError> {
        let read = |said: &Option<(String, String)>| {
            let Some((named, url)) = said else { return Ok(None) };
            Proxy::new(named, url).map(|proxy| Some(Arc::new(proxy)))
        };
        let all = read(&rules.all)?;
        let direct = rules.direct.as_deref().unwrap_or_default();
        Ok(Self {
            http: read(&rules.http)?.or_else(|| all.clone()),
            https: read(&rules.https)?.or(all),
            direct: split(direct).map(Entry::read).collect(),
            direct_text: direct.into(),
        })
    }

    /// The proxy on the way to this address, unless it is reached directly. The machine itself always is.
    pub fn on_the_way_to(&self, uri: &Uri) -> Option<&Arc<Proxy>> {
        let host = uri.host()?;
        let (proxy, port) = match uri.scheme_str() {
            Some("http") => (self.http.as_ref()?, 80),
            Some("https") => (self.https.as_ref()?, 443),
            _ => return None,
        };
        let host = Host::read(host);
        let port = uri.port_u16().unwrap_or(port);
        let direct = host.is_this_machine() || self.direct.iter().any(|entry| entry.holds(&host, port));
        (!direct).then_some(proxy)
    }

    /// Whether one of them is spoken to in TLS.
    pub(super) fn any_needs_tls(&self) -> bool {
        let tls = |proxy: &Option<Arc<Proxy>>| {
            proxy
                .as_ref()
                .is_some_and(|proxy| proxy.uri().scheme_str() == Some("https"))
        };
        tls(&self.http) || tls(&self.https)
    }

    /// The same for clients of the library.
    pub fn for_client(&self) -> reqwest::Proxy {
        let proxies = self.clone();
        reqwest::Proxy::custom(move |url| {
            let uri: Uri = url.as_str().parse().ok()?;
            reqwest::Url::parse(&proxies.on_the_way_to(&uri)?.url).ok()
        })
    }

    /// The variables by which other programs, git and git-lfs, find the same way to these addresses. An empty value means
    /// that the variable must not be set.
    pub fn variables<'a>(&self, addresses: impl Iterator<Item = &'a str>) -> Vec<(&'static str, String)> {
        let url = |proxy: &Option<Arc<Proxy>>| proxy.as_ref().map_or(String::new(), |proxy| proxy.url.clone());
        let mut direct: Vec<String> = ["localhost", "127.0.0.1", "127.0.0.0/8", "::1"]
            .map(str::to_owned)
            .into();
        // Programs differ in what they understand of such a list, so the answer for each address is given plainly.
        for uri in addresses.filter_map(|address| address.parse::<Uri>().ok()) {
            if self.on_the_way_to(&uri).is_none() {
                direct.extend(uri.host().map(str::to_owned));
            }
        }
        direct.extend(split(&self.direct_text).map(str::to_owned));
        let any = self.http.is_some() || self.https.is_some();
        let direct = if any { direct.join(",") } else { String::new() };
        vec![
            ("http_proxy", url(&self.http)),
            ("HTTP_PROXY", url(&self.http)),
            ("https_proxy", url(&self.https)),
            ("HTTPS_PROXY", url(&self.https)),
            ("all_proxy", String::new()),
            ("ALL_PROXY", String::new()),
            ("no_proxy", direct.clone()),
            ("NO_PROXY", direct),
        ]
    }
}

impl Proxy {
    fn new(named: &str, text: &str) -> Result<Self, ProxyError> {
        let refuse = |problem| ProxyError {
            named: named.to_owned(),
            problem,
        };
        let text = text.trim();
        let url = if text.contains("://") {
            text.to_owned()
        } else {
            format!("http://{text}")
        };
        let scheme = url.split("://").next().unwrap_or_default().to_ascii_lowercase();
        if !matches!(scheme.as_str(), "http" | "https" | "socks5" | "socks5h") {
            return Err(refuse(
                "is not the URL of a proxy that Reef can use; it begins with http://, https://, socks5:// or socks5h://",
            ));
        }
        let mut url = format!("{scheme}{}", &url[scheme.len()..]);
        let has_port = |url: &str| reqwest::Url::parse(url).is_ok_and(|url| url.port().is_some());
        if scheme.starts_with("socks") && !has_port(&url) {
            let end = url[scheme.len() + 3..]
                .find('/')
                .map_or(url.len(), |at| scheme.len() + 3 + at);
            url.insert_str(end, ":1080");
        }
        // A scheme of its own decides nothing here: the matcher reads URL and credential.
        let intercept = Matcher::builder()
            .all(url.as_str())
            .build()
            .intercept(&Uri::from_static("http://anywhere"))
            .filter(|found| found.uri().host().is_some_and(|host| !host.is_empty()))
            .filter(|_| reqwest::Url::parse(&url).is_ok())
            .ok_or_else(|| refuse("is not the URL of a proxy; for example http://user:password@proxy.example:3128"))?;
        Ok(Self {
            intercept,
            named: named.to_owned(),
            url,
        })
    }

    /// Scheme, host and port.
    pub(super) fn uri(&self) -> &Uri {
        self.intercept.uri()
    }

    /// Whether it is spoken to in HTTP; else it speaks SOCKS.
    pub(super) fn is_http(&self) -> bool {
        matches!(self.uri().scheme_str(), Some("http" | "https"))
    }

    /// The credential as a header of HTTP.
    pub fn authorization(&self) -> Option<HeaderValue> {
        let mut value = self.intercept.basic_auth()?.clone();
        value.set_sensitive(true);
        Some(value)
    }

    /// The credential as SOCKS sends it.
    pub(super) fn login(&self) -> Option<(String, String)> {
        let (user, password) = self.intercept.raw_auth()?;
        Some((user.to_owned(), password.to_owned()))
    }

    /// Who says that it is used.
    pub fn named(&self) -> &str {
        &self.named
    }
}

/// Without the credential.
impl fmt::Display for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let uri = self.uri();
        let authority = uri.authority().map_or("", |authority| authority.as_str());
        write!(f, "{}://{authority}", uri.scheme_str().unwrap_or_default())
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self} ({})", self.named)
    }
}

/// A host as an address or a name.
enum Host {
    Address(IpAddr),
    Name(String),
}

impl Host {
    fn read(text: &str) -> Self {
        match text.trim_matches(['[', ']']).parse::<IpAddr>() {
            Ok(address) => Self::Address(address.to_canonical()),
            Err(_) => Self::Name(text.trim_end_matches('.').to_ascii_lowercase()),
        }
    }

    fn is_this_machine(&self) -> bool {
        match self {
            Self::Address(address) => address.is_loopback() || address.is_unspecified(),
            Self::Name(name) => name == "localhost" || name.ends_with(".localhost"),
        }
    }
}

fn split(list: &str) -> impl Iterator<Item = &str> {
    list.split(|c: char| c == ',' || c.is_ascii_whitespace())
        .filter(|entry| !entry.is_empty())
}

impl Entry {
    fn read(text: &str) -> Self {
        if text == "*" {
            return Self::Everything;
        }
        if let Ok(network) = text.parse::<IpNet>() {
            return Self::Network(network.trunc());
        }
        if let Ok(address) = text.trim_matches(['[', ']']).parse::<IpAddr>() {
            return Self::Address(address.to_canonical(), None);
        }
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) => match port.parse() {
                Ok(port) => (host, Some(port)),
                Err(_) => (text, None),
            },
            None => (text, None),
        };
        match host.trim_matches(['[', ']']).parse::<IpAddr>() {
            Ok(address) => Self::Address(address.to_canonical(), port),
            Err(_) => {
                let name = host.strip_prefix('*').unwrap_or(host).trim_matches('.');
                Self::Domain(name.to_ascii_lowercase(), port)
            }
        }
    }

    fn holds(&self, host: &Host, port: u16) -> bool {
        let on_port = |wanted: &Option<u16>| wanted.is_none_or(|wanted| wanted == port);
        match (self, host) {
            (Self::Everything, _) => true,
            (Self::Network(network), Host::Address(address)) => network.contains(address),
            (Self::Address(wanted, at), Host::Address(address)) => wanted == address && on_port(at),
            (Self::Domain(domain, at), Host::Name(name)) => {
                let below = name.strip_suffix(domain.as_str());
                let within = below.is_some_and(|below| below.is_empty() || below.ends_with('.'));
                !domain.is_empty() && within && on_port(at)
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(url: &str) -> Option<(String, String)> {
        Some(("HTTPS_PROXY".to_owned(), url.to_owned()))
    }

    fn all(url: &str, direct: &str) -> Proxies {
        Proxies::new(&ProxyRules {
            all: said(url),
            direct: Some(direct.to_owned()),
            ..ProxyRules::default()
        })
        .unwrap()
    }

    fn proxied(proxies: &Proxies, uri: &str) -> bool {
        proxies.on_the_way_to(&uri.parse().unwrap()).is_some()
    }

    #[test]
    fn what_is_reached_directly_is_named_by_host_suffix_network_and_port() {
        let direct = "exact.example, .suffix.example,*.star.example\t10.0.0.0/8 192.168.1.7 [fd00::]/8,2001:db8::1,\
                      port.example:8443,[2001:db8::2]:81,UPPER.example.";
        let proxies = all("http://proxy:3128", direct);
        for uri in [
            "http://exact.example",
            "https://below.exact.example/v1",
            "http://suffix.example",
            "http://a.b.suffix.example",
            "http://a.star.example",
            "http://star.example",
            "http://10.200.3.4:8000",
            "http://192.168.1.7",
            "http://[2001:db8::1]:9",
            "https://port.example:8443",
            "http://[2001:db8::2]:81",
            "http://upper.example",
            "http://exact.example.",
            "http://[::ffff:10.1.2.3]",
        ] {
            assert!(!proxied(&proxies, uri), "{uri}");
        }
        for uri in [
            "http://notexact.example",
            "http://example",
            "http://11.0.0.1",
            "http://192.168.1.70",
            "https://port.example",
            "https://port.example:443",
            "http://[2001:db8::2]:82",
            "http://10.example",
        ] {
            assert!(proxied(&proxies, uri), "{uri}");
        }
        assert!(!proxied(&all("http://proxy", "*"), "http://anything.example"));
    }

    #[test]
    fn this_machine_is_never_reached_through_a_proxy() {
        let proxies = all("http://proxy:3128", "");
        for uri in [
            "http://127.0.0.1:8000",
            "https://127.9.9.9",
            "http://localhost",
            "http://LocalHost.:1",
            "http://a.localhost",
            "http://[::1]:8000",
            "http://[::ffff:127.0.0.1]",
            "http://0.0.0.0:8000",
        ] {
            assert!(!proxied(&proxies, uri), "{uri}");
        }
        assert!(proxied(&proxies, "http://localhost.example"));
        assert!(!proxied(&Proxies::default(), "http://x.example"));
    }

    #[test]
    fn each_scheme_has_its_proxy_and_the_rest_the_one_for_all() {
        let proxies = Proxies::new(&ProxyRules {
            http: said("http://plain:1"),
            all: said("socks5h://rest:2"),
            ..ProxyRules::default()
        })
        .unwrap();
        let shown = |uri: &str| proxies.on_the_way_to(&uri.parse().unwrap()).unwrap().to_string();
        assert_eq!(shown("http://x.example"), "http://plain:1");
        assert_eq!(shown("https://x.example"), "socks5h://rest:2");
    }

    #[test]
    fn a_credential_is_used_and_never_shown() {
        let proxies = all("HTTP://us%40er:p%3Aw@proxy:3128", "");
        let proxy = proxies.on_the_way_to(&Uri::from_static("http://x.example")).unwrap();
        // us@er:p:w
        assert_eq!(proxy.authorization().unwrap(), "Basic dXNAZXI6cDp3");
        for text in [
            proxy.to_string(),
            format!("{proxies:?}"),
            format!("{:?}", proxy.authorization()),
        ] {
            assert!(!text.contains("p%3Aw") && !text.contains("dXNAZXI6cDp3"), "{text}");
        }
        let socks = all("socks5://u:secret@proxy", "");
        let proxy = socks.on_the_way_to(&Uri::from_static("http://x.example")).unwrap();
        assert_eq!(proxy.login(), Some(("u".to_owned(), "secret".to_owned())));
        let bare = all("u:pw@proxy:3128", "");
        let proxy = bare.on_the_way_to(&Uri::from_static("http://x.example")).unwrap();
        assert_eq!(proxy.to_string(), "http://proxy:3128");
        for bad in [
            "ftp://u:secret@h",
            "socks4://h",
            "http://",
            "http://secret pass@h",
            "://secret",
        ] {
            let rules = ProxyRules {
                https: said(bad),
                ..ProxyRules::default()
            };
            let error = Proxies::new(&rules).unwrap_err().to_string();
            assert!(
                error.starts_with("HTTPS_PROXY: ") && !error.contains("secret"),
                "{bad}: {error}"
            );
        }
    }

    #[test]
    fn other_programs_are_told_the_same_way() {
        let value = |proxies: &Proxies, address: &str, name: &str| {
            let all = proxies.variables([address].into_iter());
            all.into_iter().find(|(known, _)| *known == name).unwrap().1
        };
        let proxies = all("http://u:p@proxy:3128", "git.example:8443");
        assert_eq!(
            value(&proxies, "https://x.example/r", "https_proxy"),
            "http://u:p@proxy:3128"
        );
        assert_eq!(value(&proxies, "https://x.example/r", "ALL_PROXY"), "");
        assert!(
            !value(&proxies, "https://git.example/r", "NO_PROXY")
                .split(',')
                .any(|e| e == "git.example")
        );
        assert!(
            value(&proxies, "https://git.example:8443/r", "no_proxy")
                .split(',')
                .any(|e| e == "git.example")
        );
        assert!(value(&proxies, "", "no_proxy").contains("localhost"));
        assert_eq!(value(&Proxies::default(), "https://x.example", "no_proxy"), "");
    }
}
