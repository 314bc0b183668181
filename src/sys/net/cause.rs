//! Why a connection failed, in words: one reading of every library's errors.

use std::error::Error;
use std::fmt;
use std::io;

use rustls::{AlertDescription, CertificateError};

/// Why there is no connection, or no answer on it. The words name no address: a client may see them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cause {
    /// Nobody knows the host name.
    NameNotFound,
    /// The name servers gave no answer.
    NameServer,
    /// Nothing listens on the port.
    Refused,
    /// No reaction in time.
    TimedOut,
    /// No route.
    Unreachable,
    /// The other side dropped the connection.
    Reset,
    /// No descriptor is left.
    TooManyFiles,
    /// The certificate is signed by somebody unknown here.
    Untrusted,
    /// The certificate has expired.
    Expired,
    /// The certificate is not valid yet.
    NotYetValid,
    /// The certificate is for another name.
    OtherName,
    /// The certificate was revoked.
    Revoked,
    /// Another fault of the certificate.
    Certificate(String),
    /// No TLS is spoken there.
    NotTls,
    /// The TLS handshake failed otherwise.
    Tls(String),
    /// The proxy wants a user name and a password, or other ones.
    ProxyLogin,
    /// The proxy refused to connect.
    ProxyRefused(u16),
    /// What is there does not speak as a proxy does.
    NotProxy,
    /// The head of the answer is longer than what is taken.
    HeadTooLarge,
    /// The answer does not begin as HTTP does.
    HeadMalformed,
    /// Closed before an answer began.
    Unanswered,
    /// Closed in the middle of an answer.
    CutShort,
    /// The body is not framed as HTTP frames it.
    BodyMalformed,
    /// Something else, in the words of the library.
    Other(String),
}

impl Cause {
    /// Reads an error and what it was caused by.
    pub fn of(error: &(dyn Error + 'static)) -> Self {
        find(error).unwrap_or_else(|| Self::Other(innermost(error)))
    }

    /// What to do about it.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::NameNotFound => Some("check the host name for a typing error"),
            Self::NameServer => Some("check this machine's name servers"),
            Self::Untrusted => {
                Some("name the file with your authority's certificate in the environment variable SSL_CERT_FILE")
            }
            Self::Expired | Self::NotYetValid => Some("renew the certificate, or correct this machine's clock"),
            Self::OtherName => Some("use the name that the certificate is for"),
            Self::NotTls => Some("use http:// if no TLS is meant"),
            Self::ProxyLogin => Some("give user and password in the proxy's URL: http://user:password@host:port"),
            Self::TooManyFiles => Some("raise the limit of open files (ulimit -n)"),
            _ => None,
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NameNotFound => "host name not found",
            Self::NameServer => "host name lookup failed: the name servers gave no answer",
            Self::Refused => "connection refused",
            Self::TimedOut => "timed out",
            Self::Unreachable => "host unreachable",
            Self::Reset => "connection reset by the other side",
            Self::TooManyFiles => "too many open files",
            Self::Untrusted => "certificate not trusted: signed by an unknown authority",
            Self::Expired => "certificate expired",
            Self::NotYetValid => "certificate not valid yet",
            Self::OtherName => "certificate is for another host name",
            Self::Revoked => "certificate revoked",
            Self::Certificate(what) => return write!(f, "certificate not accepted: {what}"),
            Self::NotTls => "TLS handshake failed: the other side does not speak TLS",
            Self::Tls(what) => return write!(f, "TLS handshake failed: {what}"),
            Self::ProxyLogin => "the proxy asks for a user name and a password (407)",
            Self::ProxyRefused(status) => return write!(f, "the proxy refused to connect ({status})"),
            Self::NotProxy => "the proxy does not answer as a proxy",
            Self::HeadTooLarge => "the head of the answer is too large",
            Self::HeadMalformed => "the answer does not begin as an HTTP answer does",
            Self::Unanswered => "the connection was closed before an answer began",
            Self::CutShort => "the connection was closed in the middle of the answer",
            Self::BodyMalformed => "the body is not framed as HTTP frames it",
            Self::Other(text) => text,
        })
    }
}

fn find(error: &(dyn Error + 'static)) -> Option<Cause> {
    let mut cause = Some(error);
    // What an outer error says in general counts when nothing inside it says more.
    let mut general = None;
    while let Some(current) = cause {
        if let Some(cause) = current.downcast_ref::<Cause>() {
            return Some(cause.clone());
        }
        if let Some(error) = current.downcast_ref::<rustls::Error>() {
            return Some(of_tls(error));
        }
        if let Some(error) = current.downcast_ref::<io::Error>() {
            // An error inside an i/o error is no source of it.
            return match error.get_ref() {
                Some(inner) => find(inner).or_else(|| of_io(error)).or(general),
                None => of_io(error).or(general),
            };
        }
        if let Some(error) = current.downcast_ref::<hyper::Error>() {
            general = of_hyper(error).or(general);
        } else if let Some(error) = current.downcast_ref::<reqwest::Error>()
            && error.is_timeout()
        {
            general = Some(Cause::TimedOut);
        } else if current.is::<tokio::time::error::Elapsed>() {
            return Some(Cause::TimedOut);
        }
        cause = current.source();
    }
    general
}

impl Error for Cause {}

fn of_hyper(error: &hyper::Error) -> Option<Cause> {
    if error.is_parse_too_large() {
        Some(Cause::HeadTooLarge)
    } else if error.is_parse() {
        Some(Cause::HeadMalformed)
    } else if error.is_incomplete_message() || error.is_closed() || error.is_canceled() {
        Some(Cause::Unanswered)
    } else if error.is_timeout() {
        Some(Cause::TimedOut)
    } else {
        None
    }
}

fn of_tls(error: &rustls::Error) -> Cause {
    use rustls::Error as Tls;
    match error {
        Tls::InvalidCertificate(fault) => match fault {
            CertificateError::UnknownIssuer => Cause::Untrusted,
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => Cause::Expired,
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => Cause::NotYetValid,
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => Cause::OtherName,
            CertificateError::Revoked => Cause::Revoked,
            // A certificate that signed itself and may sign nothing is nobody's anyway.
            CertificateError::Other(other) if other.to_string().contains("CaUsedAsEndEntity") => Cause::Untrusted,
            other => Cause::Certificate(other.to_string()),
        },
        Tls::InvalidMessage(_) => Cause::NotTls,
        Tls::AlertReceived(AlertDescription::CertificateRequired) => {
            Cause::Tls("the other side asks for a client certificate".to_owned())
        }
        Tls::AlertReceived(alert) => Cause::Tls(format!("the other side refused it ({alert:?})")),
        other => Cause::Tls(other.to_string()),
    }
}

fn of_io(error: &io::Error) -> Option<Cause> {
    use io::ErrorKind as Kind;
    let text = error.to_string();
    // The resolver's errors have no kind of their own.
    if text.contains("failed to lookup address information") {
        let no_answer = text.contains("Temporary failure") || text.contains("try again");
        return Some(if no_answer {
            Cause::NameServer
        } else {
            Cause::NameNotFound
        });
    }
    Some(match error.kind() {
        Kind::ConnectionRefused => Cause::Refused,
        Kind::TimedOut => Cause::TimedOut,
        Kind::HostUnreachable | Kind::NetworkUnreachable | Kind::AddrNotAvailable => Cause::Unreachable,
        Kind::ConnectionReset | Kind::ConnectionAborted | Kind::BrokenPipe => Cause::Reset,
        Kind::UnexpectedEof => Cause::CutShort,
        Kind::InvalidData | Kind::InvalidInput => Cause::BodyMalformed,
        _ if matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) => Cause::TooManyFiles,
        Kind::Other => return None,
        // The system's own words, without Rust's name for a kind it has no name for.
        _ => Cause::Other(text.split(" (os error").next().unwrap_or_default().to_owned()),
    })
}

/// The innermost cause: the outer ones repeat addresses and say less.
fn innermost(error: &(dyn Error + 'static)) -> String {
    let mut last = error;
    while let Some(source) = last.source() {
        last = source;
    }
    last.to_string()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn wrapped(inner: impl Into<Box<dyn Error + Send + Sync>>) -> io::Error {
        io::Error::other(inner)
    }

    #[test]
    fn an_error_is_found_however_deep_it_lies() {
        let refused = wrapped(wrapped(io::Error::from(io::ErrorKind::ConnectionRefused)));
        assert_eq!(Cause::of(&refused), Cause::Refused);
        let lookup = wrapped(wrapped(
            "failed to lookup address information: Name or service not known",
        ));
        assert_eq!(Cause::of(&lookup), Cause::NameNotFound);
        let silent = wrapped("failed to lookup address information: Temporary failure in name resolution");
        assert_eq!(Cause::of(&silent), Cause::NameServer);
        assert_eq!(Cause::of(&wrapped("odd")), Cause::Other("odd".to_owned()));
        let files = io::Error::from_raw_os_error(libc::EMFILE);
        assert_eq!(Cause::of(&files), Cause::TooManyFiles);
    }

    #[test]
    fn faults_of_a_certificate_are_told_apart() {
        use rustls::Error as Tls;
        for (fault, cause) in [
            (CertificateError::UnknownIssuer, Cause::Untrusted),
            (CertificateError::Expired, Cause::Expired),
            (CertificateError::NotValidYet, Cause::NotYetValid),
            (CertificateError::NotValidForName, Cause::OtherName),
            (CertificateError::Revoked, Cause::Revoked),
            (
                CertificateError::Other(rustls::OtherError(Arc::new(wrapped("CaUsedAsEndEntity")))),
                Cause::Untrusted,
            ),
        ] {
            let error = io::Error::new(io::ErrorKind::InvalidData, Tls::InvalidCertificate(fault));
            assert_eq!(Cause::of(&error), cause);
        }
        let alert = wrapped(Tls::AlertReceived(AlertDescription::HandshakeFailure));
        assert!(Cause::of(&alert).to_string().contains("HandshakeFailure"));
    }

    #[test]
    fn no_word_is_rusts_own() {
        for code in 1..134 {
            let words = Cause::of(&io::Error::from_raw_os_error(code)).to_string();
            assert!(
                !words.contains("uncategorized") && !words.contains("os error"),
                "{code}: {words}"
            );
        }
    }
}
