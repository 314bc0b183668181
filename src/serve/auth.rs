//! Who may call.

use http::HeaderMap;
use http::StatusCode;
use http::header::AUTHORIZATION;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::error::ApiError;
use crate::harness::episode::is_episode_token;
use crate::sys::net::bearer;

/// The accepted tokens, as digests; no plain token is kept.
#[derive(Clone)]
pub(super) struct Tokens {
    digests: Vec<[u8; 32]>,
}

impl Tokens {
    pub(super) fn new(tokens: &[String]) -> Self {
        let kept = tokens.iter().filter(|token| !token.is_empty());
        Self {
            digests: kept.map(|token| Sha256::digest(token.as_bytes()).into()).collect(),
        }
    }

    /// Whether anyone may call.
    pub(super) fn open(&self) -> bool {
        self.digests.is_empty()
    }

    /// The digests of the accepted tokens.
    pub(super) fn digests(&self) -> &[[u8; 32]] {
        &self.digests
    }

    /// Refuses agents of episodes, whoever else may call. Accepts a bearer token, or `x-api-key` where there is no `authorization` header at all.
    pub(super) fn check(&self, headers: &HeaderMap) -> Result<(), ApiError> {
        if from_an_episode(headers) {
            return Err(ApiError::new(
                StatusCode::FORBIDDEN,
                "episode_token",
                "this token is one of an episode, which reaches its model through its own gateway and nothing else; nothing \
                 an agent says while it is measured is recorded or trains",
            ));
        }
        if self.open() {
            return Ok(());
        }
        let presented = match headers.get(AUTHORIZATION) {
            Some(value) => bearer(value.as_bytes()),
            None => headers.get("x-api-key").map(http::HeaderValue::as_bytes),
        };
        let Some(presented) = presented else {
            return Err(refusal(
                "no service token; send `authorization: Bearer <token>` or `x-api-key: <token>`",
            ));
        };
        let digest: [u8; 32] = Sha256::digest(presented).into();
        // Every digest is compared, so that time tells nothing of which one was near.
        let found = self
            .digests
            .iter()
            .fold(subtle::Choice::from(0), |found, known| found | known.ct_eq(&digest));
        if found.into() {
            Ok(())
        } else {
            Err(refusal("invalid service token"))
        }
    }
}

/// Whether a call shows the token of an episode, in whatever place.
fn from_an_episode(headers: &HeaderMap) -> bool {
    let bearer = headers.get_all(AUTHORIZATION).iter().map(|value| {
        let bytes = value.as_bytes();
        let space = bytes.iter().position(u8::is_ascii_whitespace).map_or(0, |at| at + 1);
        bytes[space..].trim_ascii()
    });
    let keys = headers.get_all("x-api-key").iter().map(http::HeaderValue::as_bytes);
    bearer.chain(keys).any(is_episode_token)
}

fn refusal(message: &str) -> ApiError {
    ApiError::new(StatusCode::UNAUTHORIZED, "invalid_token", message)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn either_slot_opens_and_authorization_decides_when_both_are_there() {
        let tokens = Tokens::new(&["one".to_owned(), String::new(), "two".to_owned()]);
        let check = |headers: &[(&'static str, &'static str)]| {
            let map = headers
                .iter()
                .map(|(name, value)| (name.parse().unwrap(), HeaderValue::from_static(value)))
                .collect();
            tokens.check(&map).is_ok()
        };
        assert!(check(&[("authorization", "Bearer one")]));
        assert!(check(&[("authorization", "Bearer two")]));
        assert!(check(&[("x-api-key", "two")]));
        for value in ["bearer one", "BEARER one", "Bearer   one"] {
            assert!(check(&[("authorization", value)]), "{value}");
        }
        assert!(check(&[("authorization", "Bearer one"), ("x-api-key", "wrong")]));
        for refused in [
            &[][..],
            &[("authorization", "Bearer wrong")],
            &[("authorization", "bearer wrong")],
            &[("authorization", "Bearerone")],
            &[("authorization", "Basic one")],
            &[("authorization", "one")],
            &[("authorization", "Bearer ")],
            &[("authorization", "Bearer wrong"), ("x-api-key", "one")],
            &[("x-api-key", "")],
        ] {
            assert!(!check(refused), "{refused:?}");
        }
        assert!(Tokens::new(&[]).check(&HeaderMap::new()).is_ok());
    }

    #[test]
    fn an_agent_of_an_episode_is_refused_whoever_else_may_call() {
        for tokens in [Tokens::new(&[]), Tokens::new(&["one".to_owned()])] {
            for headers in [
                &[("authorization", "Bearer reef-episode-0a1b")][..],
                &[("authorization", "bearer  reef-episode-0a1b")],
                &[("authorization", "reef-episode-0a1b")],
                &[("x-api-key", "reef-episode-0a1b")],
                &[("authorization", "Bearer one"), ("x-api-key", "reef-episode-0a1b")],
            ] {
                let map = headers
                    .iter()
                    .map(|(name, value)| (name.parse().unwrap(), HeaderValue::from_static(value)))
                    .collect();
                let error = tokens.check(&map).unwrap_err();
                assert_eq!(error.code, "episode_token", "{headers:?}");
            }
        }
    }
}
