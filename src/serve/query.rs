//! Query strings of Reef's own routes.

use super::error::ApiError;

/// A parsed query string.
#[derive(Debug)]
pub(super) struct Query(Vec<(String, String)>);

impl Query {
    /// Splits and decodes; a parameter the route does not know is an error.
    pub(super) fn parse(query: Option<&str>, known: &[&str]) -> Result<Self, ApiError> {
        let mut pairs = Vec::new();
        for part in query.unwrap_or("").split('&').filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            let (name, value) = (decode(name)?, decode(value)?);
            if !known.contains(&name.as_str()) {
                let known = if known.is_empty() {
                    "no parameters".to_owned()
                } else {
                    known.join(", ")
                };
                return Err(ApiError::bad_request(
                    "unknown_parameter",
                    format!(
                        "unknown query parameter \"{}\"; this route takes {known}",
                        name.escape_default()
                    ),
                ));
            }
            pairs.push((name, value));
        }
        Ok(Self(pairs))
    }

    /// A parameter that may be given once.
    pub(super) fn one(&self, name: &str) -> Result<Option<&str>, ApiError> {
        let mut values = self
            .0
            .iter()
            .filter(|(known, _)| known == name)
            .map(|(_, value)| value.as_str());
        match (values.next(), values.next()) {
            (_, Some(_)) => Err(ApiError::bad_request(
                "invalid_request",
                format!("{name} is given twice"),
            )),
            (value, None) => Ok(value),
        }
    }

    /// Every value of a parameter that may be repeated.
    pub(super) fn all(&self, name: &str) -> Vec<String> {
        self.0
            .iter()
            .filter(|(known, _)| known == name)
            .map(|(_, value)| value.clone())
            .collect()
    }

    /// A whole number between two bounds.
    pub(super) fn number(&self, name: &str, least: u64, most: u64) -> Result<Option<u64>, ApiError> {
        let Some(text) = self.one(name)? else { return Ok(None) };
        match text.parse::<u64>() {
            Ok(number) if (least..=most).contains(&number) => Ok(Some(number)),
            _ => {
                let shown: String = text.chars().take(30).flat_map(char::escape_default).collect();
                Err(ApiError::bad_request(
                    "invalid_request",
                    format!("{name} must be a whole number from {least} to {most}, not \"{shown}\""),
                ))
            }
        }
    }
}

/// Percent-decodes one path segment or query part.
pub(super) fn decode(text: &str) -> Result<String, ApiError> {
    let bad = || ApiError::bad_request("invalid_url", "the URL holds a malformed percent escape");
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'%' => {
                let mut digit = || bytes.next().and_then(|b| char::from(b).to_digit(16)).ok_or_else(bad);
                (digit()? * 16 + digit()?) as u8
            }
            b'+' => b' ',
            other => other,
        });
    }
    String::from_utf8(out).map_err(|_| bad())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_decoded_bounded_and_known() {
        let query = Query::parse(Some("limit=10&record_id=a%2Fb&record_id=c"), &["limit", "record_id"]).unwrap();
        assert_eq!(query.number("limit", 1, 100).unwrap(), Some(10));
        assert_eq!(query.all("record_id"), ["a/b", "c"]);
        assert!(query.one("record_id").is_err());
        assert!(query.number("limit", 1, 5).is_err());
        assert!(Query::parse(Some("x=1"), &["limit"]).is_err());
        for bad in ["limit=%", "limit=%2", "limit=%zz", "limit=%ff"] {
            assert!(Query::parse(Some(bad), &["limit"]).is_err(), "{bad}");
        }
        for bad in ["limit=", "limit=-1", "limit=1.5", "limit=99999999999999999999"] {
            assert!(
                Query::parse(Some(bad), &["limit"])
                    .unwrap()
                    .number("limit", 0, 9)
                    .is_err(),
                "{bad}"
            );
        }
    }
}
