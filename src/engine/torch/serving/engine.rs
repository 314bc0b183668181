//! The embedded model as an [`Engine`].

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, StatusCode};
use tokio::sync::mpsc;

use super::actor::{Command, Submission};
use super::handle::TorchHandle;
use super::prepare::{Prepared, Preparer};
use super::reply::{self, Answer};
use super::sequence::{GenerationEvent, Refusal};
use crate::domain::{Route, RuntimeLoadId};
use crate::engine::chat::{ReplyMeta, RequestFault, error_body, usage_of_count};
use crate::engine::torch::{TorchError, TorchOptions};
use crate::engine::{BoxFuture, Engine, EngineError, EngineReply, EngineRequest, Figure, ModelCard};
use crate::sys::task::{self, Lost};
use crate::sys::{clock, random};

/// Answers requests with the embedded model.
#[derive(Clone)]
pub struct TorchEngine {
    handle: TorchHandle,
    preparer: Arc<Preparer>,
}

impl TorchEngine {
    /// Loads the model and starts its thread. Blocks while it loads.
    pub fn start(options: TorchOptions) -> Result<Self, TorchError> {
        let handle = TorchHandle::start(options)?;
        let preparer = Arc::new(Preparer::new(&handle)?);
        Ok(Self { handle, preparer })
    }

    /// The handle for new weights, for training and for status.
    pub fn handle(&self) -> &TorchHandle {
        &self.handle
    }

    async fn answer(&self, request: EngineRequest) -> Result<EngineReply, EngineError> {
        let route = request.route;
        if route == Route::CountTokens {
            return self.count(request.body).await;
        }
        let seed = random_seed();
        let body = request.body.clone();
        let prepared = self
            .prepare("preparing a request", move |preparer| {
                preparer.prepare(route, &body, seed)
            })
            .await?;
        match prepared {
            Ok(prepared) => self.generate(&request, prepared).await,
            Err(fault) => Ok(refused(route, &fault)),
        }
    }

    /// Templates, tokenizer and schema compiler may take milliseconds.
    async fn prepare<T: Send + 'static>(
        &self,
        work: &'static str,
        run: impl FnOnce(&Preparer) -> Result<T, RequestFault> + Send + 'static,
    ) -> Result<Result<T, RequestFault>, EngineError> {
        if let Some(fault) = self.preparer.overdue() {
            return Ok(Err(fault));
        }
        let preparer = Arc::clone(&self.preparer);
        let mut prepared = task::blocking(work, move || run(&preparer));
        loop {
            tokio::select! {
                prepared = &mut prepared => return prepared.map_err(|error| lost(&error)),
                () = tokio::time::sleep(Duration::from_secs(1)) => {
                    if let Some(fault) = self.preparer.overdue() {
                        return Ok(Err(fault));
                    }
                }
            }
        }
    }

    async fn count(&self, body: Bytes) -> Result<EngineReply, EngineError> {
        let counted = self
            .prepare("counting tokens", move |preparer| {
                preparer.count(Route::CountTokens, &body)
            })
            .await?;
        Ok(match counted {
            Ok(tokens) => json_reply(StatusCode::OK, usage_of_count(tokens).to_string().into()),
            Err(fault) => refused(Route::CountTokens, &fault),
        })
    }

    async fn generate(&self, request: &EngineRequest, prepared: Prepared) -> Result<EngineReply, EngineError> {
        let n = prepared.request.n;
        // Room for all that the answers can say, so that the engine thread never waits for a client.
        let (sender, mut events) = mpsc::channel(n * (prepared.goal.max_new + 4));
        let submission = Submission {
            scenario: request.scenario.clone(),
            frozen: request.release.runtime_load_id.clone(),
            goal: prepared.goal.clone(),
            n,
            constraint: prepared.constraint.clone(),
            events: sender,
        };
        self.handle
            .commands()
            .try_send(Command::Submit(Box::new(submission)))
            .map_err(|error| match error {
                mpsc::error::TrySendError::Full(_) => overloaded("its command queue is full; retry in a second"),
                mpsc::error::TrySendError::Closed(_) => stopped(),
            })?;
        let (cached, load) = self.admission(&mut events).await?;
        let capture = Arc::new(OnceLock::new());
        let streaming = prepared.request.stream;
        let answer = Answer {
            route: request.route,
            meta: ReplyMeta {
                id: random::hex_token(),
                created: clock::now_us() / 1_000_000,
                model: self.handle.options().model_name.clone(),
                fingerprint: load.to_string(),
            },
            prepared,
            events,
            capture: Arc::clone(&capture),
            vocabulary: Arc::clone(self.handle.vocabulary()),
            cached,
        };
        let mut reply = if streaming {
            let mut headers = HeaderMap::new();
            headers.insert(
                CONTENT_TYPE,
                HeaderValue::from_static("text/event-stream; charset=utf-8"),
            );
            headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
            EngineReply {
                status: StatusCode::OK,
                headers,
                body: reply::streamed(answer),
                capture: None,
            }
        } else {
            json_reply(StatusCode::OK, reply::whole(answer).await?)
        };
        reply.capture = Some(capture);
        Ok(reply)
    }

    /// Waits for a slot: nothing is said to the client before there is one.
    async fn admission(
        &self,
        events: &mut mpsc::Receiver<GenerationEvent>,
    ) -> Result<(usize, RuntimeLoadId), EngineError> {
        let patience = self.handle.options().queue_timeout;
        match tokio::time::timeout(patience, events.recv()).await {
            Err(_) => Err(overloaded(&format!(
                "no slot came free within {} s; retry later or raise inference.max-batch",
                patience.as_secs()
            ))),
            Ok(Some(GenerationEvent::Admitted { cached, load })) => Ok((cached, load)),
            Ok(Some(GenerationEvent::Refused(Refusal::Full { waiting }))) => Err(overloaded(&format!(
                "{waiting} requests wait already; retry in a few seconds"
            ))),
            Ok(Some(GenerationEvent::Refused(Refusal::LoadGone))) => Err(EngineError::Refused {
                status: StatusCode::CONFLICT,
                message: "the weights this request was admitted under are no longer loaded; send it again".to_owned(),
            }),
            Ok(Some(GenerationEvent::Failed { reason })) => Err(EngineError::Broken { reason }),
            Ok(Some(GenerationEvent::Token { .. } | GenerationEvent::Finished { .. }) | None) => Err(stopped()),
        }
    }
}

impl Engine for TorchEngine {
    fn call(&self, request: EngineRequest) -> BoxFuture<'_, Result<EngineReply, EngineError>> {
        Box::pin(self.answer(request))
    }

    fn models(&self) -> BoxFuture<'_, Result<Vec<ModelCard>, EngineError>> {
        let card = ModelCard {
            id: self.handle.options().model_name.clone(),
            owned_by: "reef".to_owned(),
        };
        Box::pin(std::future::ready(Ok(vec![card])))
    }

    fn kind(&self) -> &'static str {
        "torch"
    }

    fn wants_plain_bodies(&self) -> bool {
        true
    }

    fn figures(&self) -> Vec<Figure> {
        let status = self.handle.status();
        let loads = status.residency;
        let now = |name, help, value| Figure {
            name,
            help,
            counts: false,
            value,
        };
        let total = |name, help, value| Figure {
            name,
            help,
            counts: true,
            value,
        };
        vec![
            now("running", "Answers being generated.", status.running),
            now("waiting", "Answers waiting for a slot.", status.waiting),
            now(
                "loads_resident",
                "Loads resident beside the base model.",
                loads.resident as u64,
            ),
            now(
                "loads_draining",
                "Replaced loads that requests still use.",
                loads.draining as u64,
            ),
            total("prompt_tokens_total", "Prompt tokens computed.", status.prompt_tokens),
            total(
                "reused_tokens_total",
                "Prompt tokens reused from the cache.",
                status.reused_tokens,
            ),
            total("generated_tokens_total", "Tokens generated.", status.generated_tokens),
            total("finished_total", "Answers finished.", status.finished),
            total(
                "cancelled_total",
                "Answers given up because their client went away.",
                status.cancelled,
            ),
            total("failed_total", "Answers that failed.", status.failed),
            total("swaps_total", "Loads swapped in.", status.swaps),
        ]
    }
}

fn json_reply(status: StatusCode, body: Bytes) -> EngineReply {
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    EngineReply {
        status,
        headers,
        body: Box::pin(stream::once(std::future::ready(Ok(body)))),
        capture: None,
    }
}

fn refused(route: Route, fault: &RequestFault) -> EngineReply {
    let body = error_body(route.dialect(), fault).to_string();
    let status = if fault.is_the_clients() {
        StatusCode::BAD_REQUEST
    } else {
        StatusCode::BAD_GATEWAY
    };
    json_reply(status, body.into())
}

fn lost(lost: &Lost) -> EngineError {
    EngineError::Unavailable {
        reason: lost.to_string(),
        source: None,
    }
}

fn stopped() -> EngineError {
    EngineError::Unavailable {
        reason: "the embedded engine has stopped".to_owned(),
        source: None,
    }
}

fn overloaded(reason: &str) -> EngineError {
    EngineError::Overloaded {
        reason: reason.to_owned(),
    }
}

fn random_seed() -> u64 {
    let token = random::hex_token();
    u64::from_str_radix(token.get(..16).unwrap_or("0"), 16).unwrap_or(0)
}
