//! Reading request fields strictly: a known field of a wrong type or range is refused by name; unknown fields and nulls
//! are let pass.

use serde_json::{Map, Value};

/// Why a request cannot be answered as asked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RequestFault {
    /// The body is no JSON object.
    #[error("the request body is not a JSON object: {reason}")]
    NotJson { reason: String },
    /// A required field is absent.
    #[error("missing required field '{param}'")]
    Missing { param: String },
    /// A field of the wrong type.
    #[error("'{param}' must be {expected}")]
    WrongType { param: String, expected: &'static str },
    /// A value outside its range.
    #[error("'{param}' must be {rule}")]
    OutOfRange { param: String, rule: String },
    /// Something this engine does not do.
    #[error("'{param}': {what} is not supported by the embedded engine; {next}")]
    Unsupported {
        param: String,
        what: String,
        next: &'static str,
    },
    /// The prompt leaves no room for an answer.
    #[error(
        "this model's maximum context length is {limit} tokens, but the messages alone have {prompt}; shorten them"
    )]
    ContextLength { limit: usize, prompt: usize },
    /// The chat template refused the messages.
    #[error("the model's chat template refuses these messages: {reason}")]
    Template { reason: String },
    /// The chat template is at fault, whatever the request: the model's, not the client's.
    #[error("this model's chat template is at fault: {reason}")]
    BadTemplate { reason: String },
    /// A schema that cannot be followed.
    #[error("'{param}' holds a JSON schema that cannot be followed: {reason}")]
    Schema { param: String, reason: String },
}

impl RequestFault {
    /// The field at fault, where one field is.
    pub(crate) fn param(&self) -> Option<&str> {
        match self {
            Self::Missing { param }
            | Self::WrongType { param, .. }
            | Self::OutOfRange { param, .. }
            | Self::Unsupported { param, .. }
            | Self::Schema { param, .. } => Some(param),
            Self::ContextLength { .. } | Self::Template { .. } => Some("messages"),
            Self::NotJson { .. } | Self::BadTemplate { .. } => None,
        }
    }

    /// Whether the client could do better.
    pub(crate) fn is_the_clients(&self) -> bool {
        !matches!(self, Self::BadTemplate { .. })
    }

    /// OpenAI's word for it, where it has one.
    pub(crate) fn code(&self) -> Option<&'static str> {
        match self {
            Self::ContextLength { .. } => Some("context_length_exceeded"),
            Self::Missing { .. } => Some("missing_required_parameter"),
            Self::WrongType { .. } => Some("invalid_type"),
            Self::OutOfRange { .. } | Self::Template { .. } => Some("invalid_value"),
            Self::Unsupported { .. } => Some("unsupported_parameter"),
            Self::Schema { .. } => Some("invalid_json_schema"),
            Self::BadTemplate { .. } => Some("chat_template_failed"),
            Self::NotJson { .. } => None,
        }
    }
}

pub(super) type Read<T> = Result<T, RequestFault>;

/// A JSON object with the path that leads to it.
#[derive(Clone, Copy)]
pub(super) struct Fields<'a, 'p> {
    map: &'a Map<String, Value>,
    at: &'p str,
}

impl<'a, 'p> Fields<'a, 'p> {
    pub(super) fn root(map: &'a Map<String, Value>) -> Self {
        Self { map, at: "" }
    }

    /// The object `value`, found at `at`.
    pub(super) fn of(value: &'a Value, at: &'p str) -> Read<Self> {
        match value {
            Value::Object(map) => Ok(Self { map, at }),
            _ => Err(RequestFault::WrongType {
                param: at.to_owned(),
                expected: "an object",
            }),
        }
    }

    pub(super) fn path(&self, name: &str) -> String {
        if self.at.is_empty() {
            name.to_owned()
        } else {
            format!("{}.{name}", self.at)
        }
    }

    pub(super) fn wrong<T>(&self, name: &str, expected: &'static str) -> Read<T> {
        Err(RequestFault::WrongType {
            param: self.path(name),
            expected,
        })
    }

    pub(super) fn unsupported<T>(&self, name: &str, what: impl Into<String>, next: &'static str) -> Read<T> {
        Err(RequestFault::Unsupported {
            param: self.path(name),
            what: what.into(),
            next,
        })
    }

    /// The value, null counting as absent.
    pub(super) fn get(&self, name: &str) -> Option<&'a Value> {
        self.map.get(name).filter(|value| !value.is_null())
    }

    pub(super) fn need(&self, name: &str) -> Read<&'a Value> {
        self.get(name)
            .ok_or_else(|| RequestFault::Missing { param: self.path(name) })
    }

    pub(super) fn string(&self, name: &str) -> Read<Option<&'a str>> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => self.wrong(name, "a string"),
        }
    }

    pub(super) fn need_string(&self, name: &str) -> Read<&'a str> {
        match self.need(name)? {
            Value::String(text) => Ok(text),
            _ => self.wrong(name, "a string"),
        }
    }

    pub(super) fn boolean(&self, name: &str) -> Read<Option<bool>> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(*flag)),
            Some(_) => self.wrong(name, "true or false"),
        }
    }

    pub(super) fn number(&self, name: &str, low: f64, high: f64) -> Read<Option<f32>> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let Some(number) = value.as_f64() else {
            return self.wrong(name, "a number");
        };
        if number.is_finite() && low <= number && number <= high {
            Ok(Some(number as f32))
        } else {
            Err(RequestFault::OutOfRange {
                param: self.path(name),
                rule: format!("between {low} and {high}"),
            })
        }
    }

    /// A whole number; a float without a fraction counts, as several clients send one.
    pub(super) fn integer(&self, name: &str, low: i64, high: i64) -> Read<Option<i64>> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let whole = value
            .as_i64()
            .or_else(|| value.as_u64().map(|n| i64::try_from(n).unwrap_or(i64::MAX)))
            .or_else(|| value.as_f64().filter(|f| f.fract() == 0.0).map(|f| f as i64));
        match whole {
            None => self.wrong(name, "an integer"),
            Some(number) if low <= number && number <= high => Ok(Some(number)),
            Some(_) => Err(RequestFault::OutOfRange {
                param: self.path(name),
                rule: if high == i64::MAX {
                    format!("at least {low}")
                } else {
                    format!("between {low} and {high}")
                },
            }),
        }
    }

    pub(super) fn count(&self, name: &str, low: i64) -> Read<Option<usize>> {
        Ok(self
            .integer(name, low, i64::MAX)?
            .map(|n| usize::try_from(n).unwrap_or(usize::MAX)))
    }

    pub(super) fn array(&self, name: &str) -> Read<Option<&'a [Value]>> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::Array(items)) => Ok(Some(items)),
            Some(_) => self.wrong(name, "an array"),
        }
    }

    pub(super) fn object(&self, name: &str) -> Read<Option<&'a Map<String, Value>>> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::Object(map)) => Ok(Some(map)),
            Some(_) => self.wrong(name, "an object"),
        }
    }
}
