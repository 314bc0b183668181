//! Models with made-up weights: for tests, trials and benchmarks that need a shape and not an answer.
//!
//! The weights are a pure function of tensor name, index and seed, simple enough that any other program can compute the
//! same ones; `scripts/golden/models.py` does, and holds this engine to `transformers`.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::config::ModelConfig;
use super::error::ModelError;
use super::safetensors_out::{SafetensorsOut, StoredDtype};

/// Words merged by the tokenizer of a synthetic model, most common first.
const WORDS: &str = "the of and to in is that it for was on are as with his they at be this have from or had by hot but \
                     some what there we can out other were all your when up use word how said an each she which do \
                     their time if will way about many then them would write like so these her long make thing see \
                     him two has look more day could go come did my sound no most number who over know water than call";

/// Writes a folder in Hugging Face layout: `config` as config.json, weights drawn from `seed`, and a byte-level tokenizer
/// with a ChatML template where the vocabulary has at least 512 tokens.
pub fn write_synthetic(dir: &Path, config: &Value, seed: u64) -> Result<ModelConfig, ModelError> {
    let parsed = ModelConfig::from_value(config, &dir.join("config.json"))?;
    fs::create_dir_all(dir).map_err(|e| ModelError::io(dir, e))?;
    write_json(dir, "config.json", config)?;
    let tensors = parsed.tensors();
    let mut out = SafetensorsOut::create(&dir.join("model.safetensors"), StoredDtype::F32, &tensors)?;
    for (name, shape) in &tensors {
        out.write(&values(name, shape, seed))?;
    }
    out.finish()?;
    if parsed.vocab_size >= 512 {
        write_tokenizer(dir, parsed.vocab_size)?;
    }
    Ok(parsed)
}

/// The configuration of a model of about one million parameters.
pub fn synthetic_config() -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 128, "intermediate_size": 384,
        "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512,
        "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": true,
        "hidden_act": "silu", "torch_dtype": "float32", "bos_token_id": 0, "eos_token_id": 2,
    })
}

/// The values of one tensor: norms around 1, embeddings and biases small, projections of unit gain.
pub(crate) fn values(name: &str, shape: &[usize], seed: u64) -> Vec<f32> {
    let n: usize = shape.iter().product();
    let n_in = shape.last().copied().unwrap_or(1) as f64;
    let (centre, scale) = if name.ends_with("norm.weight") {
        (1.0, 0.1)
    } else if name.ends_with("bias") {
        (0.0, 0.1)
    } else if name.contains("embed_tokens") {
        (0.0, 0.25)
    } else {
        (0.0, (3.0 / n_in).sqrt() as f32)
    };
    let stream = fnv1a(name.as_bytes()) ^ seed;
    (0..n as u64)
        .map(|i| {
            let bits = splitmix(stream.wrapping_add(i.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
            let unit = (bits >> 40) as f32 / (1 << 23) as f32 - 1.0;
            centre + scale * unit
        })
        .collect()
}

fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &b| {
        (hash ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3)
    })
}

fn splitmix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn write_json(dir: &Path, name: &str, value: &Value) -> Result<(), ModelError> {
    let path = dir.join(name);
    fs::write(&path, format!("{value:#}\n")).map_err(|e| ModelError::io(path, e))
}

/// Three special tokens, 256 bytes, then merges that spell out [`WORDS`] with a space before.
fn write_tokenizer(dir: &Path, vocab_size: usize) -> Result<(), ModelError> {
    let specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];
    let mut tokens: Vec<String> = specials.map(str::to_owned).into();
    tokens.extend((0..=255).map(|b| byte_character(b).to_string()));
    let mut merges = Vec::new();
    for word in WORDS.split_whitespace() {
        let mut whole = byte_character(b' ').to_string();
        for letter in word.chars() {
            let longer = format!("{whole}{letter}");
            if !tokens.contains(&longer) && tokens.len() < vocab_size {
                merges.push(json!([whole, letter.to_string()]));
                tokens.push(longer.clone());
            }
            whole = longer;
        }
    }
    let vocab: Value = tokens
        .iter()
        .enumerate()
        .map(|(id, t)| (t.clone(), json!(id)))
        .collect();
    let added: Value = specials
        .iter()
        .enumerate()
        .map(|(id, t)| {
            json!({ "id": id, "content": t, "single_word": false, "lstrip": false, "rstrip": false,
                    "normalized": false, "special": true })
        })
        .collect();
    let bytes = json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true });
    write_json(
        dir,
        "tokenizer.json",
        &json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": null,
            "pre_tokenizer": bytes, "post_processor": bytes, "decoder": bytes,
            "model": { "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                       "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
                       "ignore_merges": false, "vocab": vocab, "merges": merges },
        }),
    )?;
    let template = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + \
                    '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";
    write_json(
        dir,
        "tokenizer_config.json",
        &json!({ "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|endoftext|>",
                 "eos_token": "<|im_end|>", "chat_template": template }),
    )?;
    write_json(
        dir,
        "generation_config.json",
        &json!({ "bos_token_id": 0, "eos_token_id": 2 }),
    )
}

/// The printable character that byte-level tokenizers write for a byte.
fn byte_character(byte: u8) -> char {
    let printable = |b: u8| matches!(b, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if printable(byte) {
        return char::from(byte);
    }
    let rank = (0..byte).filter(|&b| !printable(b)).count();
    char::from_u32(256 + rank as u32).unwrap_or('\u{FFFD}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_written_as_gpt2_writes_them() {
        assert_eq!(byte_character(b' '), 'Ġ');
        assert_eq!(byte_character(b'\n'), 'Ċ');
        assert_eq!(byte_character(0xad), 'Ń');
        assert_eq!(byte_character(b'a'), 'a');
    }

    #[test]
    fn values_are_fixed_for_ever() {
        // The golden generator computes the same; a change here must be made there.
        let v = values("model.layers.0.self_attn.q_proj.weight", &[2, 3], 7);
        assert_eq!(v, values("model.layers.0.self_attn.q_proj.weight", &[2, 3], 7));
        assert_ne!(v, values("model.layers.0.self_attn.q_proj.weight", &[2, 3], 8));
        assert!(v.iter().all(|x| x.abs() <= 1.0));
        assert!(
            values("model.norm.weight", &[64], 7)
                .iter()
                .all(|x| (0.9..=1.1).contains(x))
        );
    }

    #[test]
    fn the_small_model_has_about_a_million_parameters() {
        let config = ModelConfig::from_value(&synthetic_config(), Path::new("config.json")).unwrap();
        assert!((800_000..1_200_000).contains(&config.n_parameters()));
        let written: usize = config.tensors().iter().map(|(_, s)| s.iter().product::<usize>()).sum();
        assert_eq!(written as u64, config.n_parameters());
    }
}
