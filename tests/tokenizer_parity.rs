//! Tokenisation against Python's `tokenizers` on a multilingual corpus (`scripts/golden/tokenizer_corpus.py`).
#![cfg(feature = "torch")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failed test may panic"
)]

use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use reef::engine::models::{ModelConfig, synthetic_config, write_synthetic};
use reef::engine::torch::model::Tokenizer;
use serde_json::Value;

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tokenizers")
}

fn read(name: &str) -> Value {
    serde_json::from_slice(&fs::read(fixtures().join(name)).unwrap()).unwrap()
}

fn config() -> ModelConfig {
    ModelConfig::from_value(&synthetic_config(), Path::new("config.json")).unwrap()
}

fn tokenizer(name: &str) -> Tokenizer {
    let dir = tempfile::tempdir().unwrap();
    fs::copy(
        fixtures().join(format!("{name}.json")),
        dir.path().join("tokenizer.json"),
    )
    .unwrap();
    Tokenizer::load(dir.path(), &config()).unwrap()
}

fn ids(value: &Value) -> Vec<u32> {
    serde_json::from_value(value.clone()).unwrap()
}

/// Streams `ids` and returns the pieces.
fn streamed(tokenizer: &Tokenizer, ids: &[u32], skip_special: bool) -> Vec<String> {
    let mut stream = tokenizer.stream(skip_special);
    let mut pieces: Vec<String> = ids.iter().map(|&id| stream.push(tokenizer, id).unwrap()).collect();
    pieces.push(stream.finish(tokenizer).unwrap());
    pieces
}

const NAMES: [&str; 5] = ["gpt2", "smollm", "qwen2", "llama3", "sentencepiece"];

#[test]
fn ids_text_and_streams_equal_python() {
    let corpus = read("corpus.json");
    for name in NAMES {
        let tokenizer = tokenizer(name);
        let golden = &corpus["tokenizers"][name];
        for (i, text) in corpus["texts"].as_array().unwrap().iter().enumerate() {
            let text = text.as_str().unwrap();
            let expected = ids(&golden["ids"][i]);
            assert_eq!(tokenizer.encode(text, false).unwrap(), expected, "{name}: {text:?}");
            let decoded = golden["decoded"][i].as_str().unwrap();
            assert_eq!(tokenizer.decode(&expected, false).unwrap(), decoded, "{name}: {text:?}");
            let pieces = streamed(&tokenizer, &expected, false);
            assert_eq!(pieces.concat(), decoded, "{name}: {text:?}");
        }
    }
}

#[test]
fn a_stream_never_shows_half_a_character() {
    let tokenizer = tokenizer("gpt2");
    let text = "👩‍👩‍👧‍👦 ก็ 서울";
    let ids = tokenizer.encode(text, false).unwrap();
    for piece in streamed(&tokenizer, &ids, false) {
        assert!(!piece.contains('\u{FFFD}'), "{piece:?}");
    }
    // Cut inside a character: the rest comes out as a replacement, at the end only.
    let clef = tokenizer.encode("𝄞", false).unwrap();
    assert_eq!(clef.len(), 4);
    let cut = streamed(&tokenizer, &clef[..1], false);
    assert_eq!(cut[0], "");
    assert_eq!(cut[1], "\u{FFFD}");
    // A replacement character that the text itself holds is not an incomplete one, however many there are.
    let tokenizer = self::tokenizer("llama3");
    for text in [
        "\u{FFFD}\u{FFFD}\u{DCA}",
        "\u{FFFD}".repeat(9).as_str(),
        "\u{FFFD}\u{FFFD}\u{FFFD}𝄞",
    ] {
        let ids = tokenizer.encode(text, false).unwrap();
        assert_eq!(streamed(&tokenizer, &ids, false).concat(), text);
    }
}

#[test]
fn special_tokens_are_recognised_and_can_be_left_out() {
    let tokenizer = tokenizer("qwen2");
    let ids = tokenizer.encode("<|im_start|>hi<|im_end|>", false).unwrap();
    let end = tokenizer.token_id("<|im_end|>").unwrap();
    assert_eq!(ids.last(), Some(&end));
    assert!(tokenizer.is_special(end) && !tokenizer.is_special(ids[1]));
    assert_eq!(tokenizer.decode(&ids, true).unwrap(), "hi");
    assert_eq!(streamed(&tokenizer, &ids, true).concat(), "hi");
    assert_eq!(streamed(&tokenizer, &ids, false).concat(), "<|im_start|>hi<|im_end|>");
}

#[test]
fn a_synthetic_model_brings_a_tokenizer_and_its_defaults() {
    let dir = tempfile::tempdir().unwrap();
    let config = write_synthetic(dir.path(), &synthetic_config(), 1).unwrap();
    let tokenizer = Tokenizer::load(dir.path(), &config).unwrap();
    let text = "<|im_start|>user\nWould you think of the people?<|im_end|>\n";
    let ids = tokenizer.encode(text, false).unwrap();
    assert!(ids.iter().all(|&id| (id as usize) < config.vocab_size));
    assert!(ids.len() < text.len() / 2, "words must merge: {ids:?}");
    assert_eq!(tokenizer.decode(&ids, false).unwrap(), text);
    assert_eq!(tokenizer.generation().eos_token_ids, [2]);
    assert!(tokenizer.chat_template().unwrap().contains("add_generation_prompt"));
    assert_eq!(tokenizer.special_tokens().eos.as_deref(), Some("<|im_end|>"));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Any tokens at all: the pieces make up the text, and text comes back from its own ids.
    #[test]
    fn streams_add_up(raw in prop::collection::vec(0u32..600, 0..40), text in "\\PC{0,60}") {
        let tokenizer = tokenizer("llama3");
        let whole = tokenizer.decode(&raw, false).unwrap();
        let pieces = streamed(&tokenizer, &raw, false).concat();
        // A run of broken bytes may be cut into more replacement characters when it is shown in parts.
        let strip = |s: &str| s.replace('\u{FFFD}', "");
        prop_assert_eq!(strip(&pieces), strip(&whole));
        let ids = tokenizer.encode(&text, false).unwrap();
        prop_assert_eq!(streamed(&tokenizer, &ids, false).concat(), text);
    }
}
