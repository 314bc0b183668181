//! What comes out of the sampler, and what is recorded of it.

use std::sync::Arc;

use reef::domain::Route;
use serde_json::{Value, json};

use crate::rig::{Rig, all, assert_close, chat, recomputed, runtime, scenario};

#[test]
fn the_same_seed_gives_the_same_tokens_alone_and_in_a_batch() {
    let rig = Arc::new(Rig::new(|_| {}));
    runtime().block_on(async {
        let mine = chat("tell me of the water", &json!({"seed": 42, "temperature": 1.0}));
        let alone = rig.answer(&mine).await;
        assert_eq!(
            alone.capture.token_ids,
            rig.answer(&mine).await.capture.token_ids,
            "and again"
        );
        let mut bodies = vec![(scenario("s"), mine.clone())];
        for n in 0..7 {
            let other = chat(&format!("number {n} of many"), &json!({"seed": n, "temperature": 0.7}));
            bodies.push((scenario("t"), other));
        }
        let batch = all(&rig, bodies).await;
        let again = batch[0].as_ref().unwrap();
        assert_eq!(alone.capture.token_ids, again.capture.token_ids);
        assert_close(&alone.capture.logprobs, &again.capture.logprobs, 1e-4);
        let other = rig
            .answer(&chat("tell me of the water", &json!({"seed": 43, "temperature": 1.0})))
            .await;
        assert_ne!(alone.capture.token_ids, other.capture.token_ids);
    });
}

#[test]
fn recorded_logprobs_are_those_of_a_forward_pass_of_their_own() {
    let rig = Rig::new(|options| options.capture_top_k = 5);
    runtime().block_on(async {
        for extra in [
            json!({"temperature": 0.0}),
            json!({"temperature": 1.0}),
            json!({"temperature": 0.6, "top_p": 0.8, "top_k": 20, "min_p": 0.01, "presence_penalty": 0.5,
                   "repetition_penalty": 1.2, "logit_bias": {"5": 3}}),
            json!({"temperature": 1.0, "stream": true}),
        ] {
            let capture = rig.answer(&chat("how many words", &extra)).await.capture;
            assert!(!capture.token_ids.is_empty());
            assert_close(&capture.logprobs, &recomputed(&rig.model_dir, None, &capture), 1e-4);
            assert_eq!(capture.spans.len(), 1);
            assert_eq!(
                (capture.spans[0].start, capture.spans[0].end),
                (0, capture.token_ids.len())
            );
            let current = rig.engine.handle().current_load(&scenario("s")).unwrap();
            assert_eq!(capture.spans[0].runtime_load_id, current);
            let top = capture.top_k.as_ref().unwrap();
            assert_eq!(top.len(), capture.token_ids.len());
            for ((top, id), logprob) in top.iter().zip(&capture.token_ids).zip(&capture.logprobs) {
                assert_eq!(top.len(), 5);
                assert!(top[0].logprob >= *logprob - 1e-6);
                if let Some(found) = top.iter().find(|t| t.id == *id) {
                    assert_close(&[found.logprob], &[*logprob], 1e-6);
                }
            }
        }
    });
}

#[test]
fn a_reused_prefix_changes_nothing() {
    let rig = Rig::new(|_| {});
    runtime().block_on(async {
        let long = "the water and the sound of it ".repeat(8);
        let body = chat(&long, &json!({"temperature": 0.0}));
        let first = rig.answer(&body).await;
        let second = rig.answer(&body).await;
        assert_eq!(first.json()["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
        let cached = second.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
            .as_u64()
            .unwrap();
        assert_eq!(
            usize::try_from(cached).unwrap(),
            first.capture.prompt_token_ids.len() - 1
        );
        assert_eq!(first.capture.token_ids, second.capture.token_ids);
        // Another conversation with the same beginning gets a copy.
        let other = rig
            .answer(&chat(&format!("{long} but not the end"), &json!({"temperature": 0.0})))
            .await;
        assert!(
            other.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
                .as_u64()
                .unwrap()
                > 16
        );
        assert_close(
            &other.capture.logprobs,
            &recomputed(&rig.model_dir, None, &other.capture),
            1e-4,
        );
    });
}

#[test]
fn prompts_in_chunks_are_prompts() {
    let whole = Rig::new(|_| {});
    let chunked = Rig::new(|options| options.prompt_chunk = 7);
    runtime().block_on(async {
        let body = chat(&"many words to say about time ".repeat(6), &json!({"temperature": 0.0}));
        let a = whole.answer(&body).await.capture;
        let b = chunked.answer(&body).await.capture;
        assert_eq!(a.token_ids, b.token_ids);
        assert_close(&a.logprobs, &b.logprobs, 1e-4);
    });
}

#[test]
fn several_answers_share_the_prompt_and_differ() {
    let rig = Rig::new(|_| {});
    runtime().block_on(async {
        let body = chat("say a word", &json!({"n": 6, "seed": 5, "max_tokens": 8}));
        let answer = rig.answer(&body).await;
        let json = answer.json();
        let choices = json["choices"].as_array().unwrap();
        assert_eq!(choices.len(), 6);
        let texts: std::collections::HashSet<&str> = choices
            .iter()
            .map(|c| c["message"]["content"].as_str().unwrap())
            .collect();
        assert!(texts.len() > 1, "{texts:?}");
        assert_eq!(json["usage"]["completion_tokens"], 48);
        let alone = rig
            .answer(&chat("say a word", &json!({"seed": 5, "max_tokens": 8})))
            .await;
        assert_eq!(
            answer.capture.token_ids, alone.capture.token_ids,
            "the first choice has the seed itself"
        );
        let prompt = u64::try_from(answer.capture.prompt_token_ids.len()).unwrap();
        assert!(
            rig.status().prompt_tokens < 2 * prompt + 10,
            "computed once: {:?}",
            rig.status()
        );
    });
}

#[test]
fn limits_and_stops_end_an_answer() {
    let rig = Rig::new(|_| {});
    runtime().block_on(async {
        let free = rig
            .answer(&chat("on and on", &json!({"temperature": 0.0, "ignore_eos": true})))
            .await;
        assert_eq!(free.capture.finish_reason, "length");
        assert_eq!(free.capture.token_ids.len(), 24);
        let text = free.json()["choices"][0]["message"]["content"]
            .as_str()
            .unwrap()
            .to_owned();
        // A stop text from the middle of what greedy decoding says.
        let middle: String = text.chars().skip(10).take(4).collect();
        let stopped = rig
            .answer(&chat(
                "on and on",
                &json!({"temperature": 0.0, "ignore_eos": true, "stop": [middle]}),
            ))
            .await;
        let shorter = stopped.json()["choices"][0]["message"]["content"]
            .as_str()
            .unwrap()
            .to_owned();
        assert_eq!(shorter, text[..text.find(&middle).unwrap()]);
        assert_eq!(stopped.capture.finish_reason, "stop");
        assert!(stopped.capture.token_ids.len() < 24);
        // No max_tokens: as far as the context goes.
        let mut body = chat("on and on", &json!({"temperature": 0.0, "ignore_eos": true}));
        body.as_object_mut().unwrap().remove("max_tokens");
        let full = rig.answer(&body).await.capture;
        assert_eq!(full.prompt_token_ids.len() + full.token_ids.len(), 512);
    });
}

#[test]
fn a_schema_is_held_to_whatever_the_model_would_rather_say() {
    let rig = Rig::new(|_| {});
    runtime().block_on(async {
        let schema = json!({
            "type": "object",
            "properties": {
                "kind": {"enum": ["river", "lake"]},
                "depth": {"type": "integer", "minimum": 0, "maximum": 99},
                "name": {"$ref": "#/$defs/name"},
            },
            "required": ["kind", "depth", "name"], "additionalProperties": false,
            "$defs": {"name": {"type": "string", "maxLength": 5}},
        });
        for seed in 0..4 {
            let body = chat(
                "describe water",
                &json!({
                    "seed": seed, "temperature": 1.0, "max_tokens": 200,
                    "response_format": {"type": "json_schema", "json_schema": {"name": "water", "schema": schema}},
                }),
            );
            let answer = rig.answer(&body).await;
            let value: Value =
                serde_json::from_str(answer.json()["choices"][0]["message"]["content"].as_str().unwrap()).unwrap();
            assert!(jsonschema::is_valid(&schema, &value), "{value}");
            assert_eq!(answer.capture.finish_reason, "stop");
            assert_close(
                &answer.capture.logprobs,
                &recomputed(&rig.model_dir, None, &answer.capture),
                1e-4,
            );
        }
        let (status, body) = rig
            .refusal(
                Route::ChatCompletions,
                &chat(
                    "x",
                    &json!({
                        "response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "no such type"}}},
                    }),
                ),
            )
            .await;
        assert_eq!(
            (status.as_u16(), &body["error"]["code"]),
            (400, &json!("invalid_json_schema")),
            "{body}"
        );
    });
}

#[test]
fn a_required_tool_is_called_with_valid_arguments() {
    let rig = Rig::new(|options| options.max_context = Some(1024));
    runtime().block_on(async {
        let tool = |name: &str| {
            json!({"type": "function", "function": {"name": name, "parameters": {
                "type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}},
                "required": ["n"], "additionalProperties": false,
            }}})
        };
        for (choice, stream) in [
            (json!("required"), false),
            (json!({"type": "function", "function": {"name": "second"}}), true),
        ] {
            let body = chat("count", &json!({
                "tools": [tool("first"), tool("second")], "tool_choice": choice, "max_tokens": 100, "stream": stream,
            }));
            let answer = rig.answer(&body).await;
            assert_eq!(answer.capture.finish_reason, "tool_calls");
            if stream {
                assert!(answer.body.contains("\"name\":\"second\""), "{}", answer.body);
                continue;
            }
            let json = answer.json();
            let call = &json["choices"][0]["message"]["tool_calls"][0]["function"];
            assert!(["first", "second"].contains(&call["name"].as_str().unwrap()));
            let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
            assert!(arguments["n"].is_u64(), "{arguments}");
        }
    });
}
