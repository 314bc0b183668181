//! `GET /reef/harness/requests/{id}/events`: the progress of a request as server-sent events.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{HeaderMap, Response};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use super::pages::{find, scenario};
use super::private;
use crate::domain::ScenarioName;
use crate::engine::EngineError;
use crate::serve::error::ApiError;
use crate::serve::reply::ReplyBody;
use crate::serve::state::State;
use crate::sys::task;

/// Time between two looks at the store.
const LOOK: Duration = Duration::from_millis(500);
/// Silence after which a comment shows that the stream is alive.
const SILENCE: Duration = Duration::from_secs(15);

/// An event `progress` whenever something changed, then `settled`, and the end.
pub(super) async fn events(
    state: &Arc<State>,
    id: &str,
    headers: &HeaderMap,
    query: Option<&str>,
) -> Result<Response<ReplyBody>, ApiError> {
    let name = scenario(headers, query)?;
    // What is not there is told now.
    find(state, &name, id).await?;
    let (send, receive) = mpsc::channel(4);
    let (following, id) = (Arc::clone(state), id.to_owned());
    let _following = task::spawn("following a request", async move {
        let cut = following.cut.clone();
        tokio::select! {
            () = follow(&following, &name, &id, &send) => {}
            () = cut.cancelled() => {}
            () = send.closed() => {}
        }
    });
    let mut response = Response::new(ReplyBody::Download(Box::pin(ReceiverStream::new(receive))));
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    private(&mut response, "no-store");
    Ok(response)
}

async fn follow(state: &Arc<State>, name: &ScenarioName, id: &str, send: &mpsc::Sender<Result<Bytes, EngineError>>) {
    let mut last = String::new();
    let mut silent = Duration::ZERO;
    loop {
        let text = match find(state, name, id).await {
            Ok(request) => {
                let event = if request.progress.settled() {
                    "settled"
                } else {
                    "progress"
                };
                format!("event: {event}\ndata: {}\n\n", request.progress.to_json())
            }
            Err(error) => format!(
                "event: error\ndata: {}\n\n",
                serde_json::json!({"message": error.message})
            ),
        };
        let over = !text.starts_with("event: progress");
        let said = if text != last {
            silent = Duration::ZERO;
            Some(text.clone())
        } else if silent >= SILENCE {
            silent = Duration::ZERO;
            Some(": still there\n\n".to_owned())
        } else {
            None
        };
        if let Some(said) = said
            && send.send(Ok(Bytes::from(said))).await.is_err()
        {
            return;
        }
        if over {
            return;
        }
        last = text;
        tokio::time::sleep(LOOK).await;
        silent += LOOK;
    }
}
