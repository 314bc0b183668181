//! The SentencePiece tokenizer of Llama 2 as a BPE tokenizer.json: merges are recovered from the pieces' scores.

use std::collections::HashMap;

use serde_json::{Value, json};

use super::super::error::ModelError;
use super::reader::{Gguf, Meta};
use super::tokenizer::Vocabulary;

pub(super) fn tokenizer_json(gguf: &Gguf, vocabulary: &Vocabulary) -> Result<Value, ModelError> {
    let scores: Vec<f64> = gguf
        .get("tokenizer.ggml.scores")
        .and_then(Meta::as_array)
        .unwrap_or_default()
        .iter()
        .filter_map(Meta::as_f64)
        .collect();
    if scores.len() != vocabulary.tokens.len() {
        return Err(ModelError::malformed(
            gguf.path(),
            "tokenizer.ggml.scores is missing or of another length than tokens",
        ));
    }
    let prefix = gguf
        .get("tokenizer.ggml.add_space_prefix")
        .and_then(Meta::as_bool)
        .unwrap_or(true);
    let mut normalizers = vec![json!({ "type": "Replace", "pattern": { "String": " " }, "content": "▁" })];
    let mut decoders = vec![
        json!({ "type": "Replace", "pattern": { "String": "▁" }, "content": " " }),
        json!({ "type": "ByteFallback" }),
        json!({ "type": "Fuse" }),
    ];
    if prefix {
        normalizers.insert(0, json!({ "type": "Prepend", "prepend": "▁" }));
        decoders.push(json!({ "type": "Strip", "content": " ", "start": 1, "stop": 0 }));
    }
    let unknown = gguf
        .get("tokenizer.ggml.unknown_token_id")
        .and_then(Meta::as_u64)
        .and_then(|id| vocabulary.tokens.get(usize::try_from(id).ok()?));
    Ok(json!({
        "normalizer": { "type": "Sequence", "normalizers": normalizers },
        "pre_tokenizer": null,
        "post_processor": null,
        "decoder": { "type": "Sequence", "decoders": decoders },
        "model": {
            "type": "BPE", "dropout": null, "unk_token": unknown, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true, "ignore_merges": false,
            "vocab": vocabulary.map(), "merges": merges(&vocabulary.tokens, &scores),
        },
    }))
}

/// Every way to cut a piece into two pieces is a merge; the piece's score is its priority, and among the cuts of one
/// piece the one whose parts have the lower ids comes first.
fn merges(tokens: &[String], scores: &[f64]) -> Vec<Value> {
    let ids: HashMap<&str, usize> = tokens.iter().enumerate().map(|(id, t)| (t.as_str(), id)).collect();
    let mut found = Vec::new();
    for (id, token) in tokens.iter().enumerate() {
        for (at, _) in token.char_indices().skip(1) {
            let (left, right) = token.split_at(at);
            if let (Some(&l), Some(&r)) = (ids.get(left), ids.get(right)) {
                found.push((id, l, r));
            }
        }
    }
    found.sort_by(|a, b| scores[b.0].total_cmp(&scores[a.0]).then((a.1, a.2).cmp(&(b.1, b.2))));
    found
        .into_iter()
        .map(|(_, l, r)| json!([tokens[l], tokens[r]]))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merges_follow_scores() {
        let tokens: Vec<String> = ["a", "b", "ab", "ba", "aba"].map(str::to_owned).into();
        let found = merges(&tokens, &[0.0, 0.0, -1.0, -2.0, -3.0]);
        assert_eq!(
            found,
            [
                json!(["a", "b"]),
                json!(["b", "a"]),
                json!(["a", "ba"]),
                json!(["ab", "a"])
            ]
        );
    }
}
