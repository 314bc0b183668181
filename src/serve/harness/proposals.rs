//! `POST /reef/harness/proposals`

use std::sync::Arc;

use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use serde_json::json;

use super::{options, scenario};
use crate::scenario::{Inbox, Offer, OfferError};
use crate::serve::error::ApiError;
use crate::serve::receive;
use crate::serve::reply::{ReplyBody, json as reply};
use crate::serve::report::object;
use crate::serve::scenarios::existing;
use crate::serve::state::State;

/// Admits or refuses a proposal now; a step tries it later.
pub(in crate::serve) async fn propose(
    state: &Arc<State>,
    request: Request<&mut Incoming>,
) -> Result<Response<ReplyBody>, ApiError> {
    let (parts, incoming) = request.into_parts();
    let name = scenario(&parts.headers)?;
    let options = options(state)?;
    let Some(most_waiting) = options.most_proposals else {
        return Err(ApiError::not_found(
            "no_evolution",
            "this service evolves no harness tree; name a recipe that does (reef.recipe: evolve)",
        ));
    };
    let body = receive::body(incoming, state.options.max_body_bytes, state.options.client_timeout).await?;
    let offer = Offer::read(object(&body)?).map_err(refused)?;
    existing(state, &name).await?;
    let inbox = Inbox {
        publisher: state.directory.publisher().clone(),
        adapters: options.adapters.clone(),
        usual: options.adapter.clone(),
        policy: options.policy.clone(),
        most_waiting,
    };
    let answer = inbox.offer(&name, offer).await.map_err(refused)?;
    if answer.admitted {
        state.board.wake();
    }
    Ok(reply(
        StatusCode::OK,
        &json!({
            "proposal_id": answer.proposal_id,
            "admitted": answer.admitted,
            "reason": answer.reason,
            "release_id": answer.release_id,
        }),
    ))
}

fn refused(error: OfferError) -> ApiError {
    match error {
        OfferError::Shape(message) => ApiError::bad_request("invalid_proposal", message),
        OfferError::Publish(error) => error.into(),
    }
}
