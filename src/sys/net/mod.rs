//! The way out of the machine: which proxy a connection takes, the connecting itself, and why it failed.

mod cause;
mod dial;
mod proxy;

pub use cause::Cause;
pub use dial::{DialError, Dialer, NoCertificates, Stream};
pub use proxy::{Proxies, Proxy, ProxyError, ProxyRules};

/// What a service sends as a credential is a header's value: visible ASCII, spaces inside it at most. Says what is wrong
/// with one that cannot be.
pub fn unfit_for_a_header(text: &str) -> Option<&'static str> {
    let visible = |byte: u8| (0x20..0x7f).contains(&byte);
    if text.bytes().any(|byte| byte < 0x20 || byte == 0x7f) {
        Some("holds a line end or another control character")
    } else if !text.bytes().all(visible) {
        Some("holds a character that is not ASCII")
    } else if text.starts_with(' ') || text.ends_with(' ') {
        Some("begins or ends with a space")
    } else {
        None
    }
}

/// The token of an `Authorization: Bearer` value. The scheme has no case, and any number of spaces follows it.
pub fn bearer(value: &[u8]) -> Option<&[u8]> {
    let end = value.iter().position(|byte| matches!(byte, b' ' | b'\t'))?;
    let (scheme, token) = value.split_at(end);
    scheme.eq_ignore_ascii_case(b"bearer").then(|| token.trim_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scheme_has_no_case_and_spaces_do_not_count() {
        for value in ["Bearer t k", "bearer t k", "BEARER   t k", "bEaReR\tt k "] {
            assert_eq!(bearer(value.as_bytes()), Some(&b"t k"[..]), "{value}");
        }
        assert_eq!(bearer(b"Bearer  "), Some(&b""[..]));
        for value in ["Bearert", "Basic t", "t", "", " Bearer t", "Bearer"] {
            assert_eq!(bearer(value.as_bytes()), None, "{value}");
        }
    }

    #[test]
    fn what_cannot_be_a_header_is_told_why() {
        for good in ["", "sk-abc", "a b", "~!\"'"] {
            assert_eq!(unfit_for_a_header(good), None, "{good}");
        }
        for (bad, why) in [
            ("a\nb", "line end"),
            ("a\0", "control"),
            ("a\u{7f}", "control"),
            ("pä", "not ASCII"),
            (" a", "space"),
            ("a ", "space"),
        ] {
            assert!(unfit_for_a_header(bad).unwrap().contains(why), "{bad:?}");
        }
    }
}
