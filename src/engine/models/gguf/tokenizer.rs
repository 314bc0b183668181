//! A tokenizer's files from GGUF metadata: tokenizer.json, tokenizer_config.json and generation_config.json.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::super::error::ModelError;
use super::convert::write_json;
use super::reader::{Gguf, Meta};
use super::sentencepiece;

/// `tokenizer.ggml.token_type` values.
const UNKNOWN: u64 = 2;
const CONTROL: u64 = 3;
const USER_DEFINED: u64 = 4;

pub(super) fn write(gguf: &Gguf, dir: &Path) -> Result<(), ModelError> {
    let vocabulary = Vocabulary::read(gguf)?;
    let model = gguf.get("tokenizer.ggml.model").and_then(Meta::as_str);
    let mut json = match model {
        Some("gpt2") => byte_level(gguf, &vocabulary)?,
        Some("llama") => sentencepiece::tokenizer_json(gguf, &vocabulary)?,
        other => {
            return Err(ModelError::unsupported(
                format!("the GGUF tokenizer {other:?}"),
                "import the Hugging Face directory of this model instead",
            ));
        }
    };
    json["version"] = "1.0".into();
    json["truncation"] = Value::Null;
    json["padding"] = Value::Null;
    json["added_tokens"] = vocabulary.added_tokens();
    json["post_processor"] = post_processor(gguf, &vocabulary, &json["post_processor"], model == Some("llama"));
    write_json(&dir.join("tokenizer.json"), &json)?;
    write_json(&dir.join("tokenizer_config.json"), &tokenizer_config(gguf, &vocabulary))?;
    write_json(&dir.join("generation_config.json"), &generation_config(gguf))
}

/// The tokens in id order with their kinds.
pub(super) struct Vocabulary {
    pub(super) tokens: Vec<String>,
    pub(super) kinds: Vec<u64>,
}

impl Vocabulary {
    fn read(gguf: &Gguf) -> Result<Self, ModelError> {
        let wrong = |what: &str| ModelError::malformed(gguf.path(), what);
        let tokens = gguf
            .get("tokenizer.ggml.tokens")
            .and_then(Meta::as_array)
            .ok_or_else(|| wrong("tokenizer.ggml.tokens is missing"))?;
        let tokens: Vec<String> = tokens
            .iter()
            .map(|t| t.as_str().map(str::to_owned))
            .collect::<Option<_>>()
            .ok_or_else(|| wrong("tokenizer.ggml.tokens holds something that is not a string"))?;
        let kinds: Vec<u64> = gguf
            .get("tokenizer.ggml.token_type")
            .and_then(Meta::as_array)
            .unwrap_or_default()
            .iter()
            .map(|k| k.as_u64().unwrap_or(1))
            .collect();
        if !kinds.is_empty() && kinds.len() != tokens.len() {
            return Err(wrong("tokenizer.ggml.token_type and tokens differ in length"));
        }
        Ok(Self { tokens, kinds })
    }

    fn kind(&self, id: usize) -> u64 {
        self.kinds.get(id).copied().unwrap_or(1)
    }

    fn added_tokens(&self) -> Value {
        self.tokens
            .iter()
            .enumerate()
            .filter(|(id, _)| [UNKNOWN, CONTROL, USER_DEFINED].contains(&self.kind(*id)))
            .map(|(id, token)| {
                json!({ "id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": false,
                        "normalized": false, "special": self.kind(id) != USER_DEFINED })
            })
            .collect()
    }

    /// Token to id. Of tokens that occur twice the first is found, as in llama.cpp.
    pub(super) fn map(&self) -> Map<String, Value> {
        let mut map = Map::new();
        for (id, token) in self.tokens.iter().enumerate() {
            map.entry(token.clone()).or_insert_with(|| id.into());
        }
        map
    }
}

fn byte_level(gguf: &Gguf, vocabulary: &Vocabulary) -> Result<Value, ModelError> {
    let merges = gguf
        .get("tokenizer.ggml.merges")
        .and_then(Meta::as_array)
        .ok_or_else(|| ModelError::malformed(gguf.path(), "tokenizer.ggml.merges is missing"))?;
    let merges: Vec<Value> = merges
        .iter()
        .map(|m| m.as_str().and_then(|m| m.split_once(' ')).map(|(a, b)| json!([a, b])))
        .collect::<Option<_>>()
        .ok_or_else(|| ModelError::malformed(gguf.path(), "tokenizer.ggml.merges holds something other than pairs"))?;
    let scheme = gguf
        .get("tokenizer.ggml.pre")
        .and_then(Meta::as_str)
        .unwrap_or("default");
    let Some(split) = Split::of(scheme) else {
        return Err(ModelError::unsupported(
            format!("the GGUF pre-tokenizer {scheme:?}"),
            "import the Hugging Face directory of this model instead",
        ));
    };
    Ok(json!({
        "normalizer": split.normalizer,
        "pre_tokenizer": split.pre_tokenizer,
        "post_processor": { "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false },
        "decoder": { "type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true },
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
            "ignore_merges": split.ignore_merges, "vocab": vocabulary.map(), "merges": merges,
        },
    }))
}

/// How text is cut before merging, by the name GGUF gives it.
struct Split {
    normalizer: Value,
    pre_tokenizer: Value,
    ignore_merges: bool,
}

impl Split {
    fn of(scheme: &str) -> Option<Self> {
        let by_pattern = |pattern: &str| {
            json!({ "type": "Sequence", "pretokenizers": [
                { "type": "Split", "pattern": { "Regex": pattern }, "behavior": "Isolated", "invert": false },
                { "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false },
            ]})
        };
        let gpt2 = json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true });
        let contractions = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+";
        let rest = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
        let (normalizer, pre_tokenizer, ignore_merges) = match scheme {
            "default" | "gpt-2" => (Value::Null, gpt2, false),
            "smollm" => (
                Value::Null,
                json!({ "type": "Sequence", "pretokenizers": [{ "type": "Digits", "individual_digits": true }, gpt2] }),
                false,
            ),
            "qwen2" => (
                json!({ "type": "NFC" }),
                by_pattern(&format!(r"{contractions}|\p{{N}}{rest}")),
                false,
            ),
            "llama-bpe" | "llama3" | "llama-v3" => (
                Value::Null,
                by_pattern(&format!(r"{contractions}|\p{{N}}{{1,3}}{rest}")),
                true,
            ),
            _ => return None,
        };
        Some(Self {
            normalizer,
            pre_tokenizer,
            ignore_merges,
        })
    }
}

fn id_of(gguf: &Gguf, which: &str) -> Option<u64> {
    gguf.get(&format!("tokenizer.ggml.{which}_token_id"))
        .and_then(Meta::as_u64)
}

/// The template that adds the first token, where the model wants one.
fn post_processor(gguf: &Gguf, vocabulary: &Vocabulary, plain: &Value, default: bool) -> Value {
    let wanted = gguf
        .get("tokenizer.ggml.add_bos_token")
        .and_then(Meta::as_bool)
        .unwrap_or(default);
    let bos = id_of(gguf, "bos").and_then(|id| Some((id, vocabulary.tokens.get(usize::try_from(id).ok()?)?)));
    let (true, Some((id, token))) = (wanted, bos) else {
        return plain.clone();
    };
    let special = |kind: u8| json!({ "SpecialToken": { "id": token, "type_id": kind } });
    let sequence = |name: &str, kind: u8| json!({ "Sequence": { "id": name, "type_id": kind } });
    json!({
        "type": "TemplateProcessing",
        "single": [special(0), sequence("A", 0)],
        "pair": [special(0), sequence("A", 0), special(1), sequence("B", 1)],
        "special_tokens": { token.as_str(): { "id": token, "ids": [id], "tokens": [token] } },
    })
}

fn tokenizer_config(gguf: &Gguf, vocabulary: &Vocabulary) -> Value {
    let mut config = json!({ "tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": false });
    for (ours, theirs) in [
        ("bos_token", "bos"),
        ("eos_token", "eos"),
        ("unk_token", "unknown"),
        ("pad_token", "padding"),
    ] {
        let token = id_of(gguf, theirs)
            .and_then(|id| usize::try_from(id).ok())
            .and_then(|id| vocabulary.tokens.get(id));
        if let Some(token) = token {
            config[ours] = token.as_str().into();
        }
    }
    if let Some(template) = gguf.get("tokenizer.chat_template").and_then(Meta::as_str) {
        config["chat_template"] = template.into();
    }
    config
}

fn generation_config(gguf: &Gguf) -> Value {
    let mut ends: Vec<u64> = ["eos", "eot", "eom"]
        .into_iter()
        .filter_map(|which| id_of(gguf, which))
        .collect();
    ends.dedup();
    let mut config = json!({ "eos_token_id": ends });
    if let Some(bos) = id_of(gguf, "bos") {
        config["bos_token_id"] = bos.into();
    }
    if let Some(pad) = id_of(gguf, "padding") {
        config["pad_token_id"] = pad.into();
    }
    config
}
