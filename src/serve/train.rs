//! `POST /reef/train`: an instruction to train; and what status and metrics say of the loop.

use std::collections::BTreeMap;
use std::sync::Arc;

use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use serde_json::{Map, Value, json};

use super::error::ApiError;
use super::reply::{ReplyBody, json};
use super::report::{invalid, object, record_id};
use super::state::State;
use super::{harness, headers, receive};
use crate::domain::{ScenarioName, TrainingMode};
use crate::experience::{LoopFacts, NewInstruction};
use crate::harness::tree::screen_text;
use crate::scenario::{OnMissing, driver_of};
use crate::sys::clock;

/// The longest instruction, in characters.
const MAX_TEXT: usize = 4000;
/// The most things an instruction may ask to be present.
const MAX_REQUIRES: usize = 8;
/// The longest prompt of such a thing.
const MAX_PROMPT: usize = 200;
/// The most commands a client may say it has.
const MAX_COMMANDS: usize = 64;

/// Queues an instruction.
pub(super) async fn train(
    state: &Arc<State>,
    request: Request<&mut Incoming>,
) -> Result<Response<ReplyBody>, ApiError> {
    let (parts, incoming) = request.into_parts();
    let scenario = headers::scenario(&parts.headers)?;
    let body = receive::body(incoming, state.options.max_body_bytes, state.options.client_timeout).await?;
    let mut fields = object(&body)?;
    let id = match fields.remove("agent_record_id") {
        None => State::fresh_id(),
        Some(value) => record_id("agent_record_id", &value)?,
    };
    let payload = parse(fields)?;
    let handle = state.directory.resolve(&scenario, OnMissing::Refuse, None).await?;
    // One that was accepted before may be sent again whatever the mode is now.
    let (name, wanted) = (scenario.clone(), id.clone());
    let known = state
        .read(move |experience| experience.record(Some(&name), &wanted))
        .await?;
    if known.is_none() && !followed(state, &scenario) {
        return Err(ApiError::bad_request(
            "no_recipe",
            format!(
                "nobody would follow an instruction for scenario {scenario}: this service only records, and no `reef \
                 train` drives the scenario; name a recipe that learns (reef.recipe)"
            ),
        ));
    }
    if known.is_none() && handle.mode() == TrainingMode::Auto {
        return Err(ApiError::bad_request(
            "training_mode",
            format!(
                "scenario {scenario} is in training mode auto, which takes no instructions; `reef scenario set {scenario} --mode \
                 hybrid` changes that, or POST /reef/scenarios/{scenario}/update with {{\"training_mode\": \"hybrid\"}}"
            ),
        ));
    }
    let appended = state
        .experience
        .append_instruction(NewInstruction {
            id,
            scenario: scenario.clone(),
            payload,
        })
        .await?;
    state.board.wake();
    Ok(json(
        StatusCode::OK,
        &json!({
            "agent_record_id": appended.id,
            "scenario": scenario,
            "request_type": "train",
            "page_path": harness::page_path(state, &scenario, &format!("requests/{}/page", appended.id)),
        }),
    ))
}

/// Whether somebody learns in a scenario: this service, or another process.
fn followed(state: &State, scenario: &ScenarioName) -> bool {
    let elsewhere = || {
        let dir = state.options.run_dir.as_deref()?;
        driver_of(dir, scenario)
    };
    state.options.recipe.is_some() || elsewhere().is_some()
}

/// Refuses what looks like a credential or an injected directive. The rule is named, never the text.
fn screen(field: &str, text: &str) -> Result<(), ApiError> {
    match screen_text(text) {
        Some(finding) => Err(ApiError::bad_request(
            "screened",
            format!("{field}: {}", finding.refusal()),
        )),
        None => Ok(()),
    }
}

/// Checks an instruction and keeps what it may carry.
fn parse(mut fields: Map<String, Value>) -> Result<Map<String, Value>, ApiError> {
    let mut payload = Map::new();
    let text = fields.remove("text").unwrap_or(Value::Null);
    match text.as_str() {
        Some(words) if !words.trim().is_empty() && words.chars().count() <= MAX_TEXT => {
            screen("text", words)?;
            payload.insert("text".into(), text)
        }
        _ => {
            return Err(invalid(
                "text",
                &format!("must be 1 to {MAX_TEXT} characters of text"),
                &text,
            ));
        }
    };
    for field in ["session", "release_id"] {
        let value = fields.remove(field).unwrap_or(Value::Null);
        if !value.is_string() {
            return Err(invalid(field, "must be a string", &value));
        }
        payload.insert(field.into(), value);
    }
    if let Some(requires) = fields.remove("requires").filter(|value| !value.is_null()) {
        payload.insert("requires".into(), parse_requires(&requires)?);
    }
    if let Some(client) = fields.remove("client").as_ref().and_then(Value::as_object) {
        let client = parse_client(client);
        if !client.is_empty() {
            payload.insert("client".into(), Value::Object(client));
        }
    }
    Ok(payload)
}

fn parse_requires(value: &Value) -> Result<Value, ApiError> {
    let items = value.as_array().filter(|items| items.len() <= MAX_REQUIRES);
    let items =
        items.ok_or_else(|| invalid("requires", &format!("must be a list of at most {MAX_REQUIRES}"), value))?;
    let mut kept = Vec::with_capacity(items.len());
    for (index, item) in items.iter().enumerate() {
        let field = |name: &str| format!("requires[{index}].{name}");
        let text = |name: &str| item[name].as_str();
        let name = text("name").filter(|name| is_name(name));
        let name = name.ok_or_else(|| {
            invalid(
                &field("name"),
                "must be letters, digits, '.', '_' or '-', starting with a letter or digit",
                &item["name"],
            )
        })?;
        let kind = text("kind").filter(|kind| matches!(*kind, "permission" | "env" | "service" | "binary"));
        let kind = kind.ok_or_else(|| {
            invalid(
                &field("kind"),
                "must be permission, env, service or binary",
                &item["kind"],
            )
        })?;
        let mut out = Map::new();
        out.insert("name".into(), json!(name));
        out.insert("kind".into(), json!(kind));
        match &item["check"] {
            Value::Null => {}
            Value::String(check) if !check.trim().is_empty() => {
                out.insert("check".into(), json!(check));
            }
            other => return Err(invalid(&field("check"), "must be text that says something", other)),
        }
        if kind == "env" {
            let variable = text("check").unwrap_or(name);
            if !is_variable(variable) {
                return Err(invalid(
                    &field("check"),
                    "must be the name of a variable",
                    &json!(variable),
                ));
            }
        }
        match &item["prompt"] {
            Value::Null => {}
            Value::String(prompt) if prompt.trim().is_empty() => {}
            Value::String(prompt) if prompt.trim().chars().count() <= MAX_PROMPT => {
                out.insert("prompt".into(), json!(prompt.trim()));
            }
            other => {
                return Err(invalid(
                    &field("prompt"),
                    &format!("must be text of at most {MAX_PROMPT} characters"),
                    other,
                ));
            }
        }
        for (name, value) in &out {
            screen(&field(name), value.as_str().unwrap_or_default())?;
        }
        kept.push(Value::Object(out));
    }
    Ok(Value::Array(kept))
}

/// What a client says of its machine; parts that make no sense are left out, never refused.
fn parse_client(client: &Map<String, Value>) -> Map<String, Value> {
    let mut kept = Map::new();
    for key in ["platform", "arch", "release"] {
        if let Some(word) = client.get(key).and_then(Value::as_str)
            && (1..=64).contains(&word.len())
            && word.bytes().all(|b| b.is_ascii_graphic())
        {
            kept.insert(key.into(), json!(word));
        }
    }
    if let Some(commands) = client.get("commands").and_then(Value::as_object) {
        let known: Map<String, Value> = commands
            .iter()
            .filter(|(name, present)| is_name(name) && present.is_boolean())
            .take(MAX_COMMANDS)
            .map(|(name, present)| (name.clone(), present.clone()))
            .collect();
        if !known.is_empty() {
            kept.insert("commands".into(), Value::Object(known));
        }
    }
    kept
}

fn is_name(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes.next().is_some_and(|b| b.is_ascii_alphanumeric())
        && bytes.all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
}

fn is_variable(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes.next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_')
        && bytes.all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

/// What the store says of the loop, for every scenario.
pub(super) async fn facts(state: &State) -> BTreeMap<ScenarioName, LoopFacts> {
    state
        .read(|experience| experience.loop_facts())
        .await
        .unwrap_or_default()
}

/// Adds to a scenario's status what its loop is doing.
pub(super) fn add_status(state: &State, scenario: &ScenarioName, facts: Option<&LoopFacts>, status: &mut Value) {
    let live = state.board.state(scenario);
    let none = LoopFacts::default();
    let facts = facts.unwrap_or(&none);
    status["scenario_step"] = json!(facts.step.as_ref().map_or(0, |step| step.step));
    status["last_committed_step"] = facts.step.as_ref().map_or(Value::Null, |step| {
        json!({
            "step": step.step,
            "outcome": step.outcome,
            "recorded_at": clock::seconds(step.at_us),
            "metrics": step.metrics,
            "base_release_id": step.base,
            "reason": step.reason,
            "state": step.state,
        })
    });
    // The ledger is ahead of what this process serves from the commit of a release until its load; whoever waits for a
    // step must not take the old release for its result.
    if let Some(step) = facts.step.as_ref().filter(|step| step.outcome == "released")
        && status["release_id"] != json!(step.release)
    {
        status["artifact_head_sync"]["state"] = json!("pending");
        status["artifact_head_sync"]["release_id"] = json!(step.release);
    }
    status["batch_ready"] = json!(facts.open.is_some());
    status["processor"] = json!({
        "pending_samples": live.as_ref().map_or(0, |live| live.pending),
        "pending_instructions": facts.instructions,
        "excluded": facts.excluded,
    });
    status["training"] = json!({
        "phase": live.as_ref().map_or("off", |live| live.phase),
        "progress": live.as_ref().and_then(|live| live.progress),
        "blocked": live.as_ref().and_then(|live| live.blocked.clone()),
        "error": facts.open.as_ref().and_then(|open| open.error.clone()).or_else(|| live.as_ref().and_then(|live| live.error.clone())),
        "retry_at": live.as_ref().and_then(|live| live.retry_at),
        "not_live": live.as_ref().and_then(|live| live.not_live.clone()),
        "last": live.as_ref().and_then(|live| live.last.clone()),
        "step_in_progress": facts.open.as_ref().map(|open| json!({
            "step": open.step, "batch_id": open.batch, "stage": open.stage, "attempts": open.attempts,
        })),
        "driver": state.options.run_dir.as_deref().and_then(|dir| driver_of(dir, scenario)),
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(value: &Value) -> Result<Map<String, Value>, String> {
        parse(value.as_object().unwrap().clone()).map_err(|error| error.message)
    }

    fn good() -> Value {
        json!({"text": "be brief", "session": "s", "release_id": "r"})
    }

    fn with(key: &str, value: Value) -> Value {
        let mut fields = good();
        fields[key] = value;
        fields
    }

    #[test]
    fn an_instruction_keeps_what_it_may_carry_and_nothing_else() {
        let mut sent = good();
        sent["surprise"] = json!(1);
        sent["requires"] = json!([{"name": "GH_TOKEN", "kind": "env", "prompt": "  a token  ", "odd": 1}]);
        sent["client"] = json!({"platform": "linux", "arch": 7, "commands": {"git": true, "bad name": true, "x": 1}});
        let kept = of(&sent).unwrap();
        assert_eq!(
            kept["requires"],
            json!([{"name": "GH_TOKEN", "kind": "env", "prompt": "a token"}])
        );
        assert_eq!(kept["client"], json!({"platform": "linux", "commands": {"git": true}}));
        assert!(!kept.contains_key("surprise"));
    }

    #[test]
    fn the_first_fault_is_named() {
        for (sent, named) in [
            (with("text", json!("")), "text"),
            (with("text", json!("x".repeat(4001))), "text"),
            (with("session", json!(1)), "session"),
            (with("release_id", Value::Null), "release_id"),
            (
                with("requires", json!([{}, {}, {}, {}, {}, {}, {}, {}, {}])),
                "requires",
            ),
            (
                with("requires", json!([{"name": "-x", "kind": "env"}])),
                "requires[0].name",
            ),
            (
                with("requires", json!([{"name": "x", "kind": "magic"}])),
                "requires[0].kind",
            ),
            (
                with("requires", json!([{"name": "a.b", "kind": "env"}])),
                "requires[0].check",
            ),
            (
                with("requires", json!([{"name": "x", "kind": "service", "check": " "}])),
                "requires[0].check",
            ),
        ] {
            let error = of(&sent).unwrap_err();
            assert!(error.starts_with(named), "{error}");
        }
    }
}
