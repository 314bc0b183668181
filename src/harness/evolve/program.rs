//! A proposer in any language: a program that speaks JSON lines.
//!
//! ```text
//! -> {"event":"propose","version":1,"scenario":…,"adapter":…,"kinds":[…],"entries":[…],"traces":[…],"instruction":…,
//!     "past":[…]}
//! <- {"event":"model","id":1,"body":{"messages":[…]}}       any number of times, within the budget of calls
//! -> {"event":"reply","id":1,"body":{…}}                    or "error":"why"
//! <- {"event":"check","id":2,"mutations":[…]}               any number of times
//! -> {"event":"checked","id":2,"admitted":false,"reason":"…"}
//! <- {"event":"proposal","reason":"…","mutations":[…],"notes":{…}}   or   {"event":"nothing","reason":"…"}
//! ```

use std::path::Path;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use super::{Context, Proposal, Proposed, ProposerError, ProposerModel, clipped};
use crate::harness::tree::Mutation;
use crate::sys::program::Program;

#[derive(Deserialize)]
#[serde(tag = "event", rename_all = "lowercase")]
enum Said {
    Model {
        #[serde(default)]
        id: Value,
        body: Map<String, Value>,
    },
    Check {
        #[serde(default)]
        id: Value,
        mutations: Value,
    },
    Note {
        #[serde(default)]
        text: String,
    },
    Proposal {
        #[serde(default)]
        reason: String,
        mutations: Value,
        #[serde(default)]
        notes: Map<String, Value>,
    },
    Nothing {
        #[serde(default)]
        reason: String,
    },
}

/// Asks a program for a change.
pub async fn propose_by_program(
    context: &Context<'_>,
    command: &[String],
    directory: Option<&Path>,
    limit: Duration,
    model: &ProposerModel,
    cancel: &CancellationToken,
    told: &(dyn Fn(&str, String, bool) + Send + Sync),
) -> Result<Proposed, ProposerError> {
    let failed = |error: std::io::Error| {
        if cancel.is_cancelled() {
            ProposerError::Stopped
        } else {
            ProposerError::Program {
                reason: error.to_string(),
            }
        }
    };
    let mut program = Program::start(command, directory, limit, cancel).map_err(failed)?;
    let mut ask = context.to_json();
    ask["event"] = json!("propose");
    ask["version"] = json!(1);
    program.send(&ask).await.map_err(failed)?;
    loop {
        let Some(value) = program.receive().await.map_err(failed)? else {
            let fate = program.fate().await;
            return Err(ProposerError::Program {
                reason: format!("it ended without a proposal: {fate}"),
            });
        };
        let said: Said = serde_json::from_value(value).map_err(|error| ProposerError::Malformed {
            reason: format!("the program wrote something unexpected: {error}"),
        })?;
        match said {
            Said::Model { id, body } => {
                let answer = match model.ask(body, cancel).await {
                    Ok((_, body)) => {
                        told("model", format!("{} answered", model.name()), false);
                        json!({"event": "reply", "id": id, "body": body})
                    }
                    Err(ProposerError::Stopped) => return Err(ProposerError::Stopped),
                    Err(error) => {
                        told("model", error.to_string(), true);
                        json!({"event": "reply", "id": id, "error": error.to_string()})
                    }
                };
                program.send(&answer).await.map_err(failed)?;
            }
            Said::Check { id, mutations } => {
                let checked = Mutation::list(&mutations)
                    .map_err(|refusal| refusal.to_string())
                    .and_then(|mutations| context.check(&mutations).map(drop));
                let answer = match checked {
                    Ok(()) => json!({"event": "checked", "id": id, "admitted": true}),
                    Err(reason) => json!({"event": "checked", "id": id, "admitted": false, "reason": reason}),
                };
                program.send(&answer).await.map_err(failed)?;
            }
            Said::Note { text } => told("proposer", clipped(&text, 1000), false),
            Said::Nothing { reason } => return Ok(Proposed::Nothing(clipped(&reason, 2000))),
            Said::Proposal {
                reason,
                mutations,
                notes,
            } => {
                let mutations = Mutation::list(&mutations).map_err(|refusal| ProposerError::Malformed {
                    reason: refusal.to_string(),
                })?;
                return Ok(Proposed::Change(Proposal {
                    mutations,
                    reason: clipped(&reason, 2000),
                    notes,
                }));
            }
        }
    }
}
