//! `network`

use crate::config::{ConfigError, Fault, Secret, Settings, Source, section};
use crate::sys::net::{Proxies, ProxyRules};

section! {
    /// The way out: to providers, model hubs, git remotes and collectors. Without these settings `HTTP_PROXY`,
    /// `HTTPS_PROXY`, `ALL_PROXY` and `NO_PROXY` count, in lower case too. The machine itself is never reached through a
    /// proxy, nor is a Reef service that a command talks to.
    pub Network in "network" {
        /// The proxy for every address: `http://host:port`, `https://`, `socks5://` or `socks5h://`, with
        /// `user:password@` before the host where it wants them; `none` uses no proxy whatever the environment says.
        proxy: Option<Secret>;
        /// What is reached directly, as in `NO_PROXY`: hosts, which include all below them, addresses, networks such as
        /// `10.0.0.0/8`, each with `:port` if it is that port alone, or `*`; separated by commas.
        no_proxy: Option<String>;
    }
}

impl Settings {
    /// The proxies on the way out.
    pub fn proxies(&self) -> Result<Proxies, ConfigError> {
        let said = |names: [&str; 2]| {
            let found = names.into_iter().find_map(|name| Some((name, self.variable(name)?)));
            found.map(|(name, value)| (name.to_owned(), value.to_owned()))
        };
        let direct = match &self.network.no_proxy {
            Some(list) => Some(list.clone()),
            None => said(["no_proxy", "NO_PROXY"]).map(|(_, list)| list),
        };
        let rules = match &self.network.proxy {
            Some(proxy) if proxy.expose() == "none" => ProxyRules::default(),
            Some(proxy) => ProxyRules {
                all: Some(("network.proxy".to_owned(), proxy.expose().to_owned())),
                direct,
                ..ProxyRules::default()
            },
            None => ProxyRules {
                http: said(["http_proxy", "HTTP_PROXY"]),
                https: said(["https_proxy", "HTTPS_PROXY"]),
                all: said(["all_proxy", "ALL_PROXY"]),
                direct,
            },
        };
        Proxies::new(&rules).map_err(|error| {
            if error.named == "network.proxy" {
                return self.fault("network.proxy", error.problem).into();
            }
            Fault::new(Source::Environment(error.named), "", error.problem)
                .hint("correct it, or set network.proxy to `none` or to the proxy that Reef should use")
                .into()
        })
    }
}
