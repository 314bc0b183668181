//! The real model: SmolLM2-135M-Instruct, imported from its GGUF file. Runs when `REEF_SMOLLM2_GGUF` names the file
//! (`scripts/fetch-model.py` prints its path).
#![cfg(feature = "torch")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failed test may panic"
)]

use std::path::Path;

use reef::engine::models::{ModelStore, StoredDtype};
use reef::engine::torch::model::{ForwardRow, LogitsOf, Model, Tokenizer};
use tch::{Device, Kind};

fn greedy(model: &Model, prompt: &[u32], n: usize) -> Vec<u32> {
    let mut cache = model.new_cache(1, 512).unwrap();
    let mut next = prompt.to_vec();
    let mut out = Vec::new();
    while out.len() < n {
        let row = ForwardRow {
            slot: 0,
            tokens: &next,
            adapter: None,
            logits: LogitsOf::Last,
        };
        let logits = model.forward(&[row], &mut cache).unwrap();
        let id = u32::try_from(logits.values.argmax(-1, false).int64_value(&[0])).unwrap();
        out.push(id);
        next = vec![id];
    }
    out
}

#[test]
#[ignore = "needs the real model; see the head of this file"]
fn answers_as_transformers_does() {
    let gguf = std::env::var("REEF_SMOLLM2_GGUF").expect("REEF_SMOLLM2_GGUF must name the file");
    let dir = tempfile::tempdir().unwrap();
    let store = ModelStore::new(dir.path());
    let summary = store.import(Path::new(&gguf), "smollm2", StoredDtype::F32).unwrap();
    assert_eq!(summary.parameters, 134_515_008);
    let model = Model::load(&summary.path, Kind::Float, Device::Cpu).unwrap();
    let tokenizer = Tokenizer::load(&summary.path, model.config()).unwrap();
    let golden: serde_json::Value = serde_json::from_str(include_str!("fixtures/tokenizers/smollm2-ids.json")).unwrap();
    for (text, ids) in golden["texts"]
        .as_array()
        .unwrap()
        .iter()
        .zip(golden["ids"].as_array().unwrap())
    {
        let expected: Vec<u32> = serde_json::from_value(ids.clone()).unwrap();
        assert_eq!(
            tokenizer.encode(text.as_str().unwrap(), false).unwrap(),
            expected,
            "{text}"
        );
    }
    let prompt = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n\
                  <|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n";
    let ids = tokenizer.encode(prompt, false).unwrap();
    let answer = greedy(&model, &ids, 8);
    assert_eq!(answer[..7], [504, 3575, 282, 4649, 314, 7042, 30]);
    assert_eq!(
        tokenizer.decode(&answer, true).unwrap(),
        "The capital of France is Paris."
    );
    assert!(tokenizer.generation().eos_token_ids.contains(&answer[7]));
}
