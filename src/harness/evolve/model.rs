//! The model a proposer asks: whatever answers for this deployment, within a number of calls.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use http::HeaderMap;
use http::header::{ACCEPT_ENCODING, CONTENT_TYPE, HeaderValue};
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use super::ProposerError;
use crate::domain::{Route, Turn};
use crate::engine::EngineRequest;
use crate::engine::sse::turn_of_body;
use crate::harness::episode::{Meter, ModelSource};

/// The longest answer that is read.
const MAX_ANSWER: usize = 8 * 1024 * 1024;

/// A model with a budget of calls.
#[derive(Clone)]
pub struct ProposerModel {
    source: ModelSource,
    meter: Arc<Meter>,
    limit: Duration,
    left: Arc<AtomicU64>,
}

impl ProposerModel {
    /// `calls` may be made, each within `limit`.
    pub fn new(source: ModelSource, meter: Arc<Meter>, calls: u64, limit: Duration) -> Self {
        Self {
            source,
            meter,
            limit,
            left: Arc::new(AtomicU64::new(calls)),
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.source.model
    }

    /// One chat completion.
    pub async fn ask(
        &self,
        mut body: Map<String, Value>,
        cancel: &CancellationToken,
    ) -> Result<(Turn, Value), ProposerError> {
        let spent = self
            .left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1))
            .is_err();
        if spent {
            return Err(ProposerError::Budget {
                reason: "the proposer's calls of this step are spent (evolution.budget.proposer-calls)".to_owned(),
            });
        }
        body.insert("model".to_owned(), json!(self.source.model));
        body.insert("stream".to_owned(), json!(false));
        let bytes = Bytes::from(Value::Object(body).to_string());
        let asked = bytes.len() as u64;
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        let request = EngineRequest {
            route: Route::ChatCompletions,
            query: None,
            headers,
            outline: crate::engine::RequestOutline::read(&bytes).ok(),
            body: bytes,
            scenario: self.source.scenario.clone(),
            release: self.source.release.clone(),
        };
        let failed = |reason: String| ProposerError::Model { reason };
        let work = async {
            let mut reply = self
                .source
                .engine
                .call(request)
                .await
                .map_err(|error| failed(error.to_string()))?;
            let mut whole = Vec::new();
            while let Some(chunk) = reply.body.next().await {
                let chunk = chunk.map_err(|error| failed(error.to_string()))?;
                if whole.len() + chunk.len() > MAX_ANSWER {
                    return Err(failed(format!("the answer has more than {MAX_ANSWER} bytes")));
                }
                whole.extend_from_slice(&chunk);
            }
            if !reply.status.is_success() {
                let start: String = String::from_utf8_lossy(&whole).chars().take(200).collect();
                return Err(failed(format!("status {}: {start}", reply.status)));
            }
            Ok(whole)
        };
        let whole = tokio::select! {
            done = tokio::time::timeout(self.limit, work) => {
                done.map_err(|_| failed(format!("no answer within {} s", self.limit.as_secs_f64())))??
            }
            () = cancel.cancelled() => return Err(ProposerError::Stopped),
        };
        let turn = turn_of_body(Route::ChatCompletions, &whole);
        let usage = turn.usage.clone().unwrap_or_default();
        self.meter.call(
            &self.source.model,
            usage.input_tokens.unwrap_or(asked / 4),
            usage.output_tokens.unwrap_or(whole.len() as u64 / 4),
        );
        let value = crate::sys::json::read(&whole).unwrap_or(Value::Null);
        Ok((turn, value))
    }
}
