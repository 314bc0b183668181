//! The models providers offer, asked for rarely and answered always.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use serde_json::Value;
use tokio::time::Instant;

use super::call::{Port, Upstream};
use crate::domain::Dialect;
use crate::engine::ModelCard;

/// Clients probe the list at start and give up within seconds, so the provider gets less.
const WAIT: Duration = Duration::from_millis(2500);
/// A person who asks about a provider waits longer.
const PATIENT_WAIT: Duration = Duration::from_secs(10);
const FRESH: Duration = Duration::from_secs(60);
const LARGEST_LIST: usize = 4 * 1024 * 1024;

/// The last list, and when it was got.
#[derive(Default)]
pub(super) struct ModelCache(ArcSwapOption<(Instant, Vec<ModelCard>)>);

/// What a provider says when it is asked for its models, which costs nothing.
#[derive(Debug, Clone)]
pub struct Hello {
    /// The status of its answer.
    pub status: u16,
    /// The ids of the models it lists; empty where it lists none.
    pub models: Vec<String>,
}

impl Upstream {
    /// Asks every provider for its models, in the order of the configuration; `None` for one that gives no answer in
    /// time.
    pub async fn hello(&self) -> Vec<Option<Hello>> {
        let mut answers = Vec::with_capacity(self.ports.len());
        for port in &self.ports {
            let answer = tokio::time::timeout(PATIENT_WAIT, ask(port)).await.ok().flatten();
            answers.push(answer.map(|(status, cards)| Hello {
                status: status.as_u16(),
                models: cards.into_iter().map(|card| card.id).collect(),
            }));
        }
        answers
    }

    /// The first provider's list, or what is configured if it gives none in time.
    pub(super) async fn list_models(&self) -> Vec<ModelCard> {
        if let Some(cached) = self.models.0.load().as_deref()
            && cached.0.elapsed() < FRESH
        {
            return cached.1.clone();
        }
        let configured = self.ports.iter().filter_map(|port| port.provider.model.clone());
        let mut cards: Vec<ModelCard> = configured
            .map(|id| ModelCard {
                id,
                owned_by: "upstream".to_owned(),
            })
            .collect();
        let listed = match self.ports.first() {
            Some(port) => tokio::time::timeout(WAIT, fetch(port)).await.ok().flatten(),
            None => None,
        };
        if let Some(listed) = listed {
            for card in listed {
                if !cards.iter().any(|known| known.id == card.id) {
                    cards.push(card);
                }
            }
            self.models.0.store(Some(Arc::new((Instant::now(), cards.clone()))));
        }
        cards
    }
}

async fn fetch(port: &Port) -> Option<Vec<ModelCard>> {
    let (status, cards) = ask(port).await?;
    status.is_success().then_some(cards)
}

/// The status of the answer, and the models in it.
async fn ask(port: &Port) -> Option<(StatusCode, Vec<ModelCard>)> {
    let mut request = Request::new(Full::new(Bytes::new()));
    *request.method_mut() = Method::GET;
    *request.uri_mut() = port.provider.target_path("/v1/models")?;
    let mut headers = HeaderMap::new();
    port.provider.dress(&mut headers, Dialect::OpenaiChat, true);
    *request.headers_mut() = headers;
    let mut lease = port.pool.lease(false).await.ok()?;
    let response = lease.send(request).await.ok()?;
    let status = response.status();
    if !status.is_success() {
        return Some((status, Vec::new()));
    }
    let body = Limited::new(response.into_body(), LARGEST_LIST)
        .collect()
        .await
        .ok()?
        .to_bytes();
    lease.give_back();
    let list: Value = crate::sys::json::read(&body).unwrap_or_default();
    let listed = list["data"].as_array().map(Vec::as_slice).unwrap_or_default();
    let cards = listed.iter().filter_map(|model| {
        Some(ModelCard {
            id: model.get("id")?.as_str()?.to_owned(),
            owned_by: model
                .get("owned_by")
                .and_then(Value::as_str)
                .unwrap_or("upstream")
                .to_owned(),
        })
    });
    Some((status, cards.collect()))
}
