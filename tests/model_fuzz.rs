//! Damaged and hostile model files: every one ends in an error that names the file, none in a crash or a huge buffer.
//! The same helper writes whole GGUF files, so the conversion itself is held to the model it came from.
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
use reef::engine::models::{ModelStore, StoredDtype, synthetic_config, write_synthetic};
use reef::engine::torch::model::{ForwardRow, LogitsOf, Lora, LoraSpec, Model, Target, Tokenizer};
use serde_json::{Value, json};
use tch::{Device, Kind, Tensor};

fn small_config() -> Value {
    let mut config = synthetic_config();
    for (key, value) in [("hidden_size", 32), ("intermediate_size", 48), ("num_hidden_layers", 2)] {
        config[key] = value.into();
    }
    config
}

/// A folder with a small model, made once for each test.
fn folder() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    write_synthetic(dir.path(), &small_config(), 3).unwrap();
    dir
}

#[derive(Default)]
struct GgufWriter {
    entries: Vec<u8>,
    n_entries: u64,
    infos: Vec<u8>,
    n_infos: u64,
    data: Vec<u8>,
}

impl GgufWriter {
    fn text(out: &mut Vec<u8>, text: &str) {
        out.extend((text.len() as u64).to_le_bytes());
        out.extend(text.as_bytes());
    }

    fn entry(&mut self, key: &str, kind: u32, bytes: &[u8]) {
        Self::text(&mut self.entries, key);
        self.entries.extend(kind.to_le_bytes());
        self.entries.extend(bytes);
        self.n_entries += 1;
    }

    fn number(&mut self, key: &str, value: u32) {
        self.entry(key, 4, &value.to_le_bytes());
    }

    fn float(&mut self, key: &str, value: f32) {
        self.entry(key, 6, &value.to_le_bytes());
    }

    fn string(&mut self, key: &str, value: &str) {
        let mut bytes = Vec::new();
        Self::text(&mut bytes, value);
        self.entry(key, 8, &bytes);
    }

    fn strings(&mut self, key: &str, values: &[String]) {
        let mut bytes = 8u32.to_le_bytes().to_vec();
        bytes.extend((values.len() as u64).to_le_bytes());
        for value in values {
            Self::text(&mut bytes, value);
        }
        self.entry(key, 9, &bytes);
    }

    fn numbers(&mut self, key: &str, values: &[i32]) {
        let mut bytes = 5u32.to_le_bytes().to_vec();
        bytes.extend((values.len() as u64).to_le_bytes());
        for value in values {
            bytes.extend(value.to_le_bytes());
        }
        self.entry(key, 9, &bytes);
    }

    fn tensor(&mut self, name: &str, shape: &[i64], values: &[f32]) {
        Self::text(&mut self.infos, name);
        self.infos.extend(u32::try_from(shape.len()).unwrap().to_le_bytes());
        for dim in shape.iter().rev() {
            self.infos.extend(dim.to_le_bytes());
        }
        self.infos.extend(0u32.to_le_bytes());
        self.infos.extend((self.data.len() as u64).to_le_bytes());
        self.n_infos += 1;
        self.data.extend(values.iter().flat_map(|v| v.to_le_bytes()));
        self.data.resize(self.data.len().next_multiple_of(32), 0);
    }

    fn finish(self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(3u32.to_le_bytes());
        out.extend(self.n_infos.to_le_bytes());
        out.extend(self.n_entries.to_le_bytes());
        out.extend(self.entries);
        out.extend(self.infos);
        out.resize(out.len().next_multiple_of(32), 0);
        out.extend(self.data);
        out
    }
}

/// The GGUF name of a tensor, as llama.cpp's converter gives it.
fn gguf_name(name: &str) -> String {
    let mut name = name.to_owned();
    for (from, to) in [
        ("model.embed_tokens", "token_embd"),
        ("model.norm", "output_norm"),
        ("model.layers.", "blk."),
        ("post_attention_layernorm", "ffn_norm"),
        ("input_layernorm", "attn_norm"),
        ("self_attn.o_proj", "attn_output"),
        ("self_attn.", "attn_"),
        ("mlp.", "ffn_"),
        ("_proj", ""),
    ] {
        name = name.replace(from, to);
    }
    name
}

/// `dir`, a llama model, as one GGUF file in F32.
fn gguf(dir: &Path) -> Vec<u8> {
    let read = |name: &str| -> Value { serde_json::from_slice(&fs::read(dir.join(name)).unwrap()).unwrap() };
    let (config, tokenizer, settings) = (
        read("config.json"),
        read("tokenizer.json"),
        read("tokenizer_config.json"),
    );
    let size = |key: &str| u32::try_from(config[key].as_u64().unwrap()).unwrap();
    let mut out = GgufWriter::default();
    out.string("general.architecture", "llama");
    for (key, value) in [
        ("llama.block_count", size("num_hidden_layers")),
        ("llama.embedding_length", size("hidden_size")),
        ("llama.feed_forward_length", size("intermediate_size")),
        ("llama.attention.head_count", size("num_attention_heads")),
        ("llama.attention.head_count_kv", size("num_key_value_heads")),
        ("llama.context_length", size("max_position_embeddings")),
        ("tokenizer.ggml.bos_token_id", 0),
        ("tokenizer.ggml.eos_token_id", 2),
    ] {
        out.number(key, value);
    }
    out.float("llama.attention.layer_norm_rms_epsilon", 1e-5);
    out.float("llama.rope.freq_base", 10_000.0);
    let vocab = tokenizer["model"]["vocab"].as_object().unwrap();
    let mut tokens = vec![String::new(); vocab.len()];
    for (token, id) in vocab {
        tokens[usize::try_from(id.as_u64().unwrap()).unwrap()].clone_from(token);
    }
    let kinds: Vec<i32> = (0..tokens.len()).map(|id| if id < 3 { 3 } else { 1 }).collect();
    let merges: Vec<String> = tokenizer["model"]["merges"]
        .as_array()
        .unwrap()
        .iter()
        .map(|m| format!("{} {}", m[0].as_str().unwrap(), m[1].as_str().unwrap()))
        .collect();
    out.string("tokenizer.ggml.model", "gpt2");
    out.string("tokenizer.ggml.pre", "gpt-2");
    out.strings("tokenizer.ggml.tokens", &tokens);
    out.numbers("tokenizer.ggml.token_type", &kinds);
    out.strings("tokenizer.ggml.merges", &merges);
    out.string("tokenizer.chat_template", settings["chat_template"].as_str().unwrap());
    for (name, tensor) in Tensor::read_safetensors(dir.join("model.safetensors")).unwrap() {
        let heads = if name.contains("q_proj") {
            i64::from(size("num_attention_heads"))
        } else if name.contains("k_proj") {
            i64::from(size("num_key_value_heads"))
        } else {
            0
        };
        let shape = tensor.size();
        let tensor = if heads > 0 {
            // Halves of a head become neighbours.
            tensor.view([heads, 2, -1, shape[1]]).transpose(1, 2).contiguous()
        } else {
            tensor
        };
        let values = Vec::<f32>::try_from(tensor.reshape([-1])).unwrap();
        out.tensor(&gguf_name(&name), &shape, &values);
    }
    out.finish()
}

fn logits(dir: &Path) -> Tensor {
    let model = Model::load(dir, Kind::Float, Device::Cpu).unwrap();
    let mut cache = model.new_cache(1, 32).unwrap();
    let row = ForwardRow {
        slot: 0,
        tokens: &[5, 6, 7, 200, 9],
        adapter: None,
        logits: LogitsOf::All,
    };
    model.forward(&[row], &mut cache).unwrap().values
}

#[test]
fn a_model_comes_through_gguf_unchanged() {
    let source = folder();
    let work = tempfile::tempdir().unwrap();
    let file = work.path().join("tiny.gguf");
    fs::write(&file, gguf(source.path())).unwrap();
    let store = ModelStore::new(work.path().join("models"));
    let imported = store.import(&file, "tiny", StoredDtype::F32).unwrap();
    assert_eq!(logits(&imported.path), logits(source.path()));
    let load = |dir: &Path| {
        let config = reef::engine::models::ModelConfig::load(dir).unwrap();
        Tokenizer::load(dir, &config).unwrap()
    };
    let (ours, theirs) = (load(&imported.path), load(source.path()));
    let text = "<|im_start|>user\nWould you say that this is more than the other?<|im_end|>\n";
    assert_eq!(ours.encode(text, false).unwrap(), theirs.encode(text, false).unwrap());
    assert_eq!(ours.chat_template(), theirs.chat_template());
    assert_eq!(ours.generation().eos_token_ids, [2]);
    // Half the bytes, nearly the same numbers.
    let halved = store.import(&file, "half", StoredDtype::Bf16).unwrap();
    assert!(halved.weight_bytes < imported.weight_bytes * 6 / 10);
    let off = (logits(&halved.path) - logits(source.path()))
        .abs()
        .max()
        .double_value(&[]);
    assert!(off < 0.2, "{off}");
}

#[test]
fn announced_sizes_are_checked_before_memory_is_taken() {
    let work = tempfile::tempdir().unwrap();
    let store = ModelStore::new(work.path().join("models"));
    let huge = u64::MAX.to_le_bytes();
    let with_entry = |kind: u32, tail: &[u8]| {
        let mut out = b"GGUF\x03\0\0\0".to_vec();
        out.extend(0u64.to_le_bytes());
        out.extend(1u64.to_le_bytes());
        GgufWriter::text(&mut out, "key");
        out.extend(kind.to_le_bytes());
        out.extend(tail);
        out
    };
    let with_tensor = |dims: &[u64], kind: u32| {
        let mut out = b"GGUF\x03\0\0\0".to_vec();
        out.extend(1u64.to_le_bytes());
        out.extend(0u64.to_le_bytes());
        GgufWriter::text(&mut out, "token_embd.weight");
        out.extend(u32::try_from(dims.len()).unwrap().to_le_bytes());
        out.extend(dims.iter().flat_map(|d| d.to_le_bytes()));
        out.extend(kind.to_le_bytes());
        out.extend(0u64.to_le_bytes());
        out
    };
    let nested = |depth: usize| {
        let mut tail = Vec::new();
        for _ in 0..depth {
            tail.extend(9u32.to_le_bytes());
            tail.extend(1u64.to_le_bytes());
        }
        with_entry(9, &tail)
    };
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("counts", [b"GGUF\x03\0\0\0".as_slice(), &huge, &huge].concat()),
        ("string", with_entry(8, &huge)),
        ("array", with_entry(9, &[4u32.to_le_bytes().as_slice(), &huge].concat())),
        ("nested arrays", nested(64)),
        ("unknown type", with_entry(77, &[])),
        ("large tensor", with_tensor(&[1 << 40, 1 << 10], 0)),
        ("overflowing tensor", with_tensor(&[u64::MAX, u64::MAX], 0)),
        ("ragged blocks", with_tensor(&[7], 8)),
        ("many dimensions", with_tensor(&[1; 9], 0)),
        ("unknown encoding", with_tensor(&[32], 99)),
        ("nothing", Vec::new()),
    ];
    for (what, bytes) in cases {
        let file = work.path().join("bad.gguf");
        fs::write(&file, bytes).unwrap();
        let error = store.import(&file, "bad", StoredDtype::F32).unwrap_err();
        assert!(!error.to_string().is_empty(), "{what}");
    }
    assert_eq!(fs::read_dir(store.dir()).unwrap().count(), 0, "nothing is left behind");

    // A config that promises far more than the weights hold.
    let dir = folder();
    for (key, value) in [
        ("vocab_size", 4_000_000),
        ("hidden_size", 131_072),
        ("num_hidden_layers", 1024),
    ] {
        let mut config = small_config();
        config[key] = value.into();
        fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
        Model::load(dir.path(), Kind::Float, Device::Cpu).unwrap_err();
    }
    // A cache larger than any address space.
    fs::write(dir.path().join("config.json"), small_config().to_string()).unwrap();
    let model = Model::load(dir.path(), Kind::Float, Device::Cpu).unwrap();
    model.new_cache(1 << 30, 1 << 40).unwrap_err();
}

#[test]
fn shards_and_their_index_are_checked() {
    let dir = folder();
    let weights = dir.path().join("model.safetensors");
    let expected = logits(dir.path());
    let tensors = Tensor::read_safetensors(&weights).unwrap();
    let (a, b) = tensors.split_at(tensors.len() / 2);
    let (one, two) = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors");
    Tensor::write_safetensors(a, dir.path().join(one)).unwrap();
    Tensor::write_safetensors(b, dir.path().join(two)).unwrap();
    fs::remove_file(&weights).unwrap();
    let index = dir.path().join("model.safetensors.index.json");
    let write = |map: Value| fs::write(&index, json!({ "weight_map": map }).to_string()).unwrap();
    write(json!({ "a": one, "b": two }));
    assert_eq!(logits(dir.path()), expected);
    for (map, word) in [
        (json!({ "a": one }), "missing"),
        (json!({ "a": "../x.safetensors" }), "this folder"),
        (json!({}), "this folder"),
    ] {
        write(map);
        let error = Model::load(dir.path(), Kind::Float, Device::Cpu).unwrap_err();
        assert!(error.to_string().contains(word), "{error}");
    }
    // The same tensor in two shards.
    fs::copy(dir.path().join(one), dir.path().join(two)).unwrap();
    write(json!({ "a": one, "b": two }));
    let error = Model::load(dir.path(), Kind::Float, Device::Cpu).unwrap_err();
    assert!(error.to_string().contains("is also in"), "{error}");
}

/// How a file is damaged.
#[derive(Debug, Clone)]
enum Damage {
    Cut(prop::sample::Index),
    Flip(Vec<(prop::sample::Index, u8)>),
    Insert(prop::sample::Index, Vec<u8>),
}

fn damage() -> impl Strategy<Value = Damage> {
    prop_oneof![
        any::<prop::sample::Index>().prop_map(Damage::Cut),
        prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..12).prop_map(Damage::Flip),
        (any::<prop::sample::Index>(), prop::collection::vec(any::<u8>(), 1..9))
            .prop_map(|(at, bytes)| Damage::Insert(at, bytes)),
    ]
}

/// Damages the first `reach` bytes, where the structure is.
fn damaged(bytes: &[u8], damage: &Damage, reach: usize) -> Vec<u8> {
    let mut out = bytes.to_vec();
    let reach = reach.min(out.len());
    match damage {
        Damage::Cut(at) => out.truncate(at.index(reach)),
        Damage::Flip(flips) => {
            for (at, value) in flips {
                out[at.index(reach)] = *value;
            }
        }
        Damage::Insert(at, new) => {
            let at = at.index(reach);
            out.splice(at..at, new.iter().copied());
        }
    }
    out
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn damaged_gguf_files_are_errors(harm in damage()) {
        thread_local!(static WHOLE: Vec<u8> = gguf(folder().path()));
        let work = tempfile::tempdir().unwrap();
        let file = work.path().join("x.gguf");
        WHOLE.with(|whole| fs::write(&file, damaged(whole, &harm, 24_000))).unwrap();
        let store = ModelStore::new(work.path().join("models"));
        if let Ok(model) = store.import(&file, "x", StoredDtype::F32) {
            // Some damage only changes values or names; what was imported must load or be refused.
            let _either = Model::load(&model.path, Kind::Float, Device::Cpu);
        }
    }

    #[test]
    fn damaged_folders_are_errors(harm in damage(), which in 0usize..4) {
        thread_local!(static WHOLE: tempfile::TempDir = folder());
        let names = ["model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json"];
        let work = tempfile::tempdir().unwrap();
        WHOLE.with(|whole| for entry in fs::read_dir(whole.path()).unwrap() {
            let from = entry.unwrap().path();
            fs::copy(&from, work.path().join(from.file_name().unwrap())).unwrap();
        });
        let file = work.path().join(names[which]);
        let whole = fs::read(&file).unwrap();
        fs::write(&file, damaged(&whole, &harm, 6_000)).unwrap();
        if let Ok(model) = Model::load(work.path(), Kind::Float, Device::Cpu)
            && let Ok(tokenizer) = Tokenizer::load(work.path(), model.config())
        {
            let _either = tokenizer.encode("the people said 12 ½", false);
            let _either = tokenizer.decode(&[0, 3, 77, 511, 90_000], false);
        }
    }

    #[test]
    fn damaged_adapters_are_errors(harm in damage(), weights in any::<bool>()) {
        thread_local!(static WHOLE: (tempfile::TempDir, Model, PathBuf) = {
            let dir = folder();
            let model = Model::load(dir.path(), Kind::Float, Device::Cpu).unwrap();
            let spec = LoraSpec { rank: 2, alpha: 4.0, rank_stabilized: false, targets: Target::ALL.to_vec() };
            let adapter = dir.path().join("adapter");
            Lora::init(model.config(), spec, 1, Device::Cpu).unwrap().save(&adapter, "tiny").unwrap();
            (dir, model, adapter)
        });
        WHOLE.with(|(_dir, model, adapter)| {
            let work = tempfile::tempdir().unwrap();
            for (name, harmed) in [("adapter_model.safetensors", weights), ("adapter_config.json", !weights)] {
                let bytes = fs::read(adapter.join(name)).unwrap();
                let bytes = if harmed { damaged(&bytes, &harm, 4_000) } else { bytes };
                fs::write(work.path().join(name), bytes).unwrap();
            }
            if let Ok(lora) = Lora::load(work.path(), model.config(), Device::Cpu) {
                let _either = lora.for_serving(model.config(), Kind::Float, Device::Cpu);
            }
        });
    }
}
