//! The wire dialects a client may speak.

use serde::{Deserialize, Serialize};

/// Whose API a request follows; it decides the shape of errors, of stream framing and of the receipt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Dialect {
    /// OpenAI chat completions.
    OpenaiChat,
    /// OpenAI responses.
    OpenaiResponses,
    /// Anthropic messages, token counting included.
    Anthropic,
}

/// One inference route.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Route {
    /// `POST /v1/chat/completions`
    ChatCompletions,
    /// `POST /v1/responses`
    Responses,
    /// `POST /v1/messages`
    Messages,
    /// `POST /v1/messages/count_tokens`
    CountTokens,
    /// `POST /v1/completions`
    Completions,
}

impl Route {
    /// Every inference route, each at its own number (`route as usize`).
    pub const ALL: [Self; 5] = [
        Self::ChatCompletions,
        Self::Responses,
        Self::Messages,
        Self::CountTokens,
        Self::Completions,
    ];

    /// The path, from the root of the service.
    pub fn path(self) -> &'static str {
        match self {
            Self::ChatCompletions => "/v1/chat/completions",
            Self::Responses => "/v1/responses",
            Self::Messages => "/v1/messages",
            Self::CountTokens => "/v1/messages/count_tokens",
            Self::Completions => "/v1/completions",
        }
    }

    /// The dialect spoken on this route.
    pub fn dialect(self) -> Dialect {
        match self {
            Self::ChatCompletions | Self::Completions => Dialect::OpenaiChat,
            Self::Responses => Dialect::OpenaiResponses,
            Self::Messages | Self::CountTokens => Dialect::Anthropic,
        }
    }

    /// The route with this path.
    pub fn from_path(path: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|route| route.path() == path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_route_stands_at_its_number_and_is_found_by_its_path() {
        for (at, route) in Route::ALL.into_iter().enumerate() {
            assert_eq!(route as usize, at);
            assert_eq!(Route::from_path(route.path()), Some(route));
        }
    }
}
