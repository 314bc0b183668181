//! JSON of the HTTP interface, read back into what the screens show. What is absent stays empty.

use serde_json::{Map, Value};

use super::snapshot::{CaptureFacts, Live, RecordDetail, RecordFacts, ReportFacts, ScenarioFacts, StepFacts, became};

pub(super) fn text(value: &Value, key: &str) -> Option<String> {
    value.get(key).and_then(Value::as_str).map(str::to_owned)
}

pub(super) fn whole(value: &Value, key: &str) -> Option<u64> {
    value.get(key).and_then(Value::as_u64)
}

/// Seconds since the Unix epoch, as the interface has them, in microseconds.
pub(super) fn moment(value: &Value, key: &str) -> Option<i64> {
    value
        .get(key)
        .and_then(Value::as_f64)
        .map(|seconds| (seconds * 1e6) as i64)
}

fn strings(value: &Value) -> Vec<String> {
    let items = value.as_array().map(Vec::as_slice).unwrap_or_default();
    items.iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// The row of a record.
pub(super) fn record(row: &Value) -> RecordFacts {
    let release = row.get("artifact_ref").unwrap_or(&Value::Null);
    let tags = row.get("tags").and_then(Value::as_object);
    RecordFacts {
        sequence: row["sequence"].as_i64().unwrap_or(0),
        id: text(row, "agent_record_id").unwrap_or_default(),
        kind: text(row, "request_type").unwrap_or_default(),
        at_us: moment(row, "created_at").unwrap_or(0),
        status: whole(row, "status").and_then(|status| u16::try_from(status).ok()),
        route: text(row, "route"),
        model: text(row, "model"),
        stop_reason: text(row, "stop_reason"),
        input_tokens: whole(row, "input_tokens"),
        output_tokens: whole(row, "output_tokens"),
        total_us: whole(row, "total_us")
            .or_else(|| row["duration_seconds"].as_f64().map(|seconds| (seconds * 1e6) as u64)),
        release: text(release, "release_id"),
        load: text(release, "runtime_load_id"),
        score: row["score"].as_f64(),
        references: strings(&row["references"]),
        streamed: row["streamed"].as_bool().unwrap_or(false),
        captured: row["has_capture"].as_bool().unwrap_or(false),
        pruned: row.get("pruned_at").is_some_and(|at| !at.is_null()),
        text: super::text::gist(
            row["gist"]["asked"].as_str().unwrap_or_default(),
            row["gist"]["said"].as_str().unwrap_or_default(),
        ),
        tags: tags
            .into_iter()
            .flatten()
            .map(|(name, value)| format!("{name}={}", value.as_str().unwrap_or_default()))
            .collect(),
    }
}

/// A report's words, as one text.
pub(super) fn feedback(payload: &Value) -> String {
    match payload.get("feedback") {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    }
}

/// A request for reading. One that is no JSON object stands alone under `body`, where the tags have their place beside it.
fn request(mut payload: Map<String, Value>) -> Option<String> {
    let alone = payload.keys().all(|key| key == "body" || key == "metadata");
    match payload.remove("body") {
        Some(Value::String(text)) if alone => Some(text),
        Some(body) => {
            payload.insert("body".to_owned(), body);
            serde_json::to_string_pretty(&payload).ok()
        }
        None => serde_json::to_string_pretty(&payload).ok(),
    }
}

/// A response for reading: of a stream its events, of anything else JSON indented, or what came.
fn raw(mut response: Value) -> Option<String> {
    if response["stream"] == true {
        response = response["body"].take();
    }
    match response {
        Value::String(text) => Some(text).filter(|text| !text.is_empty()),
        Value::Null => None,
        other => serde_json::to_string_pretty(&other).ok(),
    }
}

/// A record as `GET …/records/{id}` gives it.
pub(super) fn detail(record: &Value) -> RecordDetail {
    let mut payload = record["payload"].as_object().cloned().unwrap_or_default();
    let response = payload.remove("response");
    let turn = &record["turn"];
    let reports = record["reports"].as_array().map(Vec::as_slice).unwrap_or_default();
    let calls = turn["tool_calls"].as_array().map(Vec::as_slice).unwrap_or_default();
    let capture = record.get("capture").filter(|capture| capture.is_object());
    let said = |key: &str| turn[key].as_str().is_some_and(|text| !text.is_empty());
    let turned = said("text") || said("reasoning") || !calls.is_empty();
    RecordDetail {
        facts: self::record(record),
        request: request(payload),
        response: response.filter(|_| !turned).and_then(raw),
        answer: text(turn, "text").unwrap_or_default(),
        reasoning: text(turn, "reasoning").unwrap_or_default(),
        tool_calls: calls
            .iter()
            .map(|call| {
                format!(
                    "{}({})",
                    call["name"].as_str().unwrap_or("?"),
                    call["arguments"].as_str().unwrap_or_default()
                )
            })
            .collect(),
        reports: reports
            .iter()
            .map(|report| ReportFacts {
                id: text(report, "agent_record_id").unwrap_or_default(),
                score: report["score"].as_f64(),
                feedback: feedback(&report["payload"]),
                at_us: moment(report, "created_at").unwrap_or(0),
            })
            .collect(),
        consumed: record["consumed"]
            .as_array()
            .map(Vec::as_slice)
            .unwrap_or_default()
            .iter()
            .map(|used| {
                let step = whole(used, "step").map_or(String::new(), |step| format!(" of step {step}"));
                format!(
                    "batch {}{step}: {}",
                    used["batch_id"].as_str().unwrap_or("?"),
                    used["outcome"].as_str().unwrap_or("?")
                )
            })
            .collect(),
        capture: capture.map(|capture| CaptureFacts {
            prompt: whole(capture, "prompt_tokens").unwrap_or(0) as usize,
            tokens: whole(capture, "tokens").unwrap_or(0) as usize,
            finish_reason: text(capture, "finish_reason").unwrap_or_default(),
            temperature: capture["temperature"].as_f64().unwrap_or(0.0) as f32,
            spans: capture["spans"]
                .as_array()
                .map(Vec::as_slice)
                .unwrap_or_default()
                .iter()
                .map(|span| {
                    (
                        whole(span, "start").unwrap_or(0) as usize,
                        whole(span, "end").unwrap_or(0) as usize,
                        text(span, "runtime_load_id").unwrap_or_default(),
                    )
                })
                .collect(),
        }),
    }
}

/// A row of the release catalog.
pub(super) fn step(row: &Value) -> StepFacts {
    let empty = Map::new();
    let metrics = row["metrics"].as_object().unwrap_or(&empty);
    StepFacts {
        step: whole(row, "step").unwrap_or(0),
        release: text(row, "release_id").unwrap_or_default(),
        parent: text(row, "parent_release_id"),
        operation: text(row, "operation").unwrap_or_default(),
        outcome: text(row, "outcome").unwrap_or_default(),
        state: text(row, "state").unwrap_or_default(),
        kind: text(row, "kind").unwrap_or_default(),
        bytes: whole(row, "bytes").unwrap_or(0),
        sequence: whole(row, "sequence").unwrap_or(0),
        target: text(row, "rollback_target_release_id").or_else(|| text(row, "promoted_release_id")),
        restorable: row["restorable"].as_bool().unwrap_or(true),
        note: text(row, "note"),
        reason: text(row, "reason"),
        at_us: moment(row, "at").or_else(|| moment(row, "recorded_at")).unwrap_or(0),
        batch: text(row, "batch_id"),
        asked: asked(metrics, "text"),
        asked_by: asked(metrics, "id"),
        metrics: numbers(metrics),
    }
}

/// The figures of a step that are numbers.
pub(super) fn numbers(metrics: &Map<String, Value>) -> std::collections::BTreeMap<String, f64> {
    metrics
        .iter()
        .filter_map(|(name, value)| Some((name.clone(), value.as_f64()?)))
        .collect()
}

/// The words, or the id, of the instruction that asked for a step.
pub(super) fn asked(metrics: &Map<String, Value>, what: &str) -> Option<String> {
    metrics.get("training_request").and_then(|request| text(request, what))
}

/// What a service's status adds to what the files say.
pub(super) fn live(status: &Value) -> Live {
    let (service, store) = (&status["service"], &status["store"]);
    Live {
        version: text(service, "version").unwrap_or_default(),
        engine: text(service, "engine").unwrap_or_default(),
        uptime_s: service["uptime_seconds"].as_f64().unwrap_or(0.0),
        in_flight: whole(service, "in_flight").unwrap_or(0),
        queue_depth: whole(store, "queue_depth").unwrap_or(0),
    }
}

/// What a service's status says of one scenario's loop.
pub(super) fn add_loop(facts: &mut ScenarioFacts, of: &Value) {
    let training = &of["training"];
    facts.phase = text(training, "phase").unwrap_or_default();
    facts.progress = training["progress"].as_f64();
    facts.pending = whole(&of["processor"], "pending_samples");
    facts.load = text(of, "current_runtime_load_id").or_else(|| facts.load.take());
    facts.trouble = text(training, "not_live")
        .map(|reason| format!("published, not live: {reason}"))
        .or_else(|| text(training, "error"))
        .or_else(|| text(&of["artifact_head_sync"], "error"))
        .or_else(|| text(training, "blocked"))
        .or_else(|| facts.trouble.take());
}

/// A scenario as a service's status shows it.
pub(super) fn scenario(name: &str, of: &Value) -> ScenarioFacts {
    let last = &of["last_committed_step"];
    let processor = &of["processor"];
    let sum = |value: &Value| -> u64 {
        let counts = value
            .as_object()
            .map(|counts| counts.values().filter_map(Value::as_f64).sum::<f64>());
        counts.unwrap_or(0.0) as u64
    };
    let mut facts = ScenarioFacts {
        name: name.to_owned(),
        mode: text(of, "training_mode").unwrap_or_default(),
        release: text(of, "release_id"),
        step: whole(last, "step"),
        outcome: text(last, "outcome")
            .map(|outcome| became(&outcome, &text(last, "state").unwrap_or_default()).to_owned()),
        step_us: moment(last, "recorded_at"),
        exchanges: whole(of, "exchanges").unwrap_or(0),
        reports: whole(of, "reports").unwrap_or(0),
        interrupted: sum(&of["interrupted"]),
        consumed: whole(of, "consumed").unwrap_or(0),
        input_tokens: whole(of, "input_tokens").unwrap_or(0),
        output_tokens: whole(of, "output_tokens").unwrap_or(0),
        instructions: whole(processor, "pending_instructions").unwrap_or(0),
        excluded: processor["excluded"]
            .as_object()
            .into_iter()
            .flatten()
            .filter_map(|(reason, count)| Some((reason.clone(), count.as_u64()?)))
            .collect(),
        mean_score: of["mean_score"].as_f64(),
        last_us: moment(of, "last_record_at"),
        ..ScenarioFacts::default()
    };
    add_loop(&mut facts, of);
    facts
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_cannot_be_read_is_shown_as_it_came() {
        let of = |request: Value, response: Value, turn: Value| {
            let mut payload = request;
            payload["response"] = response;
            let detail = detail(&json!({"payload": payload, "turn": turn}));
            (detail.request.unwrap(), detail.response)
        };
        let raw = r#"{"model":"m","x":"\ud83d"}"#;
        // As the service gives a body that is no JSON.
        for beside in [
            json!({"body": raw}),
            json!({"body": raw, "metadata": {"tags": {"a": "b"}}}),
        ] {
            let shown = of(beside, json!("no JSON"), Value::Null);
            assert_eq!(shown, (raw.to_owned(), Some("no JSON".to_owned())));
        }
        let (request, response) = of(json!({"model": "m"}), json!({"n": 1}), json!({"text": ""}));
        assert_eq!(
            (request.as_str(), response.as_deref()),
            ("{\n  \"model\": \"m\"\n}", Some("{\n  \"n\": 1\n}"))
        );
        // A stream, and an answer that was read.
        let stream = json!({"stream": true, "body": "data: {\n\n", "message": null});
        assert_eq!(of(json!({}), stream, Value::Null).1.as_deref(), Some("data: {\n\n"));
        assert_eq!(of(json!({}), json!({"n": 1}), json!({"text": "an answer"})).1, None);
        assert_eq!(
            of(json!({}), json!({}), json!({"tool_calls": [{"name": "look"}]})).1,
            None
        );
    }
}
