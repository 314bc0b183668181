//! The rest of a provider's API. What an id in a path means only the provider that gave it knows, so these requests go to
//! the first one and to no fallback; and what they do once they must not do twice, so none
//! is tried again but on a kept connection that had died.

use http::Request;
use http_body_util::Full;

use super::body::ProviderBody;
use super::call::{Failure, Upstream, unreachable};
use crate::engine::{EngineError, EngineReply, PassRequest, strip_hop_by_hop};

impl Upstream {
    pub(super) async fn pass_on(&self, request: PassRequest) -> Result<EngineReply, EngineError> {
        let port = self.ports.first().ok_or_else(|| EngineError::Unavailable {
            reason: "no provider is configured".to_owned(),
            source: None,
        })?;
        let path = match &request.query {
            None => request.path.clone(),
            Some(query) => format!("{}?{query}", request.path),
        };
        let target = port.provider.target_path(&path).ok_or_else(|| EngineError::Refused {
            status: http::StatusCode::BAD_REQUEST,
            message: "the path cannot be sent to the provider".to_owned(),
        })?;
        let mut headers = request.headers;
        port.provider.dress_passed(&mut headers, request.dialect);
        let mut fresh = false;
        loop {
            let mut lease = port.pool.lease(fresh).await.map_err(unreachable)?;
            let mut outgoing = Request::new(Full::new(request.body.clone()));
            *outgoing.method_mut() = request.method.clone();
            *outgoing.uri_mut() = target.clone();
            *outgoing.headers_mut() = headers.clone();
            let reused = lease.reused;
            match self.send(&mut lease, outgoing).await {
                Ok(response) => {
                    let (mut parts, incoming) = response.into_parts();
                    strip_hop_by_hop(&mut parts.headers);
                    return Ok(EngineReply {
                        status: parts.status,
                        headers: parts.headers,
                        body: Box::pin(ProviderBody::new(incoming, lease, self.idle_timeout)),
                        capture: None,
                    });
                }
                Err(Failure::Lost { again: true, .. }) if reused && !fresh => fresh = true,
                Err(Failure::Lost { error, .. }) => return Err(error),
                Err(Failure::Busy { reply, .. }) => return Ok(*reply),
            }
        }
    }
}
