//! The embedded model against `transformers` and `peft`: golden outputs made by `scripts/golden/models.py`.
#![cfg(feature = "torch")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failed test may panic"
)]

use std::fs;
use std::path::{Path, PathBuf};

use reef::engine::models::write_synthetic;
use reef::engine::torch::model::{ForwardRow, KvCache, LogitsOf, Lora, Model, ServingLora};
use serde_json::Value;
use tch::{Device, Kind, Tensor};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/models")
}

fn read(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

fn ids(value: &Value) -> Vec<u32> {
    value
        .as_array()
        .unwrap()
        .iter()
        .map(|v| u32::try_from(v.as_u64().unwrap()).unwrap())
        .collect()
}

/// The model of a fixture, in `kind`.
fn model(fixture: &Value, kind: Kind) -> Model {
    let dir = tempfile::tempdir().unwrap();
    write_synthetic(dir.path(), &fixture["config"], fixture["seed"].as_u64().unwrap()).unwrap();
    Model::load(dir.path(), kind, Device::Cpu).unwrap()
}

fn row<'a>(slot: usize, tokens: &'a [u32], adapter: Option<&'a ServingLora>, logits: LogitsOf) -> ForwardRow<'a> {
    ForwardRow {
        slot,
        tokens,
        adapter,
        logits,
    }
}

fn best(logits: &Tensor, line: usize) -> u32 {
    let best = logits.get(i64::try_from(line).unwrap()).argmax(-1, false);
    u32::try_from(best.int64_value(&[])).unwrap()
}

fn greedy(model: &Model, cache: &mut KvCache, adapter: Option<&ServingLora>, prompt: &[u32], n: usize) -> Vec<u32> {
    let mut next = prompt.to_vec();
    let mut out = Vec::new();
    while out.len() < n {
        let logits = model.forward(&[row(0, &next, adapter, LogitsOf::Last)], cache).unwrap();
        let id = best(&logits.values, 0);
        out.push(id);
        next = vec![id];
    }
    out
}

/// Largest difference, relative to the largest expected magnitude.
fn distance(actual: &Tensor, expected: &Tensor) -> f64 {
    let scale = expected.abs().max().double_value(&[]);
    (actual.to_kind(Kind::Double) - expected.to_kind(Kind::Double))
        .abs()
        .max()
        .double_value(&[])
        / scale
}

fn expected_logits(fixture: &Value) -> (Tensor, Vec<i64>) {
    let lines: Vec<f64> = fixture["logits"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|line| line.as_array().unwrap().iter().map(|v| v.as_f64().unwrap()))
        .collect();
    let positions: Vec<i64> = fixture["positions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|p| p.as_i64().unwrap())
        .collect();
    let n = i64::try_from(positions.len()).unwrap();
    (Tensor::from_slice(&lines).view([n, -1]), positions)
}

fn variants() -> Vec<(String, Value)> {
    let mut all: Vec<(String, Value)> = fs::read_dir(fixtures())
        .unwrap()
        .map(|e| e.unwrap().path())
        .filter(|p| p.extension().is_some_and(|e| e == "json"))
        .map(|p| (p.file_stem().unwrap().to_string_lossy().into_owned(), read(&p)))
        .collect();
    all.sort_by(|a, b| a.0.cmp(&b.0));
    assert_eq!(all.len(), 10, "one fixture per architecture variant");
    all
}

#[test]
fn logits_and_greedy_tokens_equal_transformers() {
    tch::set_num_threads(1);
    for (name, fixture) in variants() {
        let model = model(&fixture, Kind::Float);
        let prompt = ids(&fixture["prompt"]);
        let (expected, positions) = expected_logits(&fixture);
        let positions = Tensor::from_slice(&positions);
        let mut cache = model.new_cache(1, 128).unwrap();
        let logits = model
            .forward(&[row(0, &prompt, None, LogitsOf::All)], &mut cache)
            .unwrap();
        let off = distance(&logits.values.index_select(0, &positions), &expected);
        assert!(off <= 1e-4, "{name}: logits differ by {off:e}");

        let tokens: Vec<i64> = prompt.iter().map(|&t| i64::from(t)).collect();
        let traced = model
            .forward_train(&Tensor::from_slice(&tokens).unsqueeze(0), None, None)
            .unwrap();
        let off = distance(&traced.get(0).index_select(0, &positions), &expected);
        assert!(off <= 1e-4, "{name}: training logits differ by {off:e}");

        cache.truncate(0, 0);
        let tokens = greedy(&model, &mut cache, None, &prompt, 64);
        assert_eq!(tokens, ids(&fixture["greedy"]), "{name}");
    }
}

#[test]
fn chunks_batches_and_copied_prefixes_give_the_same_logits() {
    tch::set_num_threads(1);
    for (name, fixture) in variants() {
        if name.contains("dynamic") {
            // Frequencies depend on the length at the time a key is made, so chunks differ by definition.
            continue;
        }
        let model = model(&fixture, Kind::Float);
        let prompt = ids(&fixture["prompt"]);
        let mut cache = model.new_cache(4, 128).unwrap();
        let whole = model
            .forward(&[row(0, &prompt, None, LogitsOf::Last)], &mut cache)
            .unwrap();
        // Slot 2: in chunks, together with a decoding row and with another prompt.
        model
            .forward(&[row(2, &prompt[..7], None, LogitsOf::Nothing)], &mut cache)
            .unwrap();
        cache.copy_prefix(2, 3, 5).unwrap();
        let mixed = model
            .forward(
                &[
                    row(3, &prompt[5..], None, LogitsOf::Last),
                    row(0, &[5], None, LogitsOf::Last),
                    row(2, &prompt[7..], None, LogitsOf::Last),
                ],
                &mut cache,
            )
            .unwrap();
        assert_eq!(mixed.rows, [0..1, 1..2, 2..3]);
        for line in [0, 2] {
            let off = distance(&mixed.values.get(line), &whole.values.get(0));
            assert!(off <= 1e-5, "{name}: row {line} differs by {off:e}");
        }
        // Three decoding rows of unequal length against one at a time.
        cache.truncate(2, 10);
        let mut alone = Vec::new();
        for (slot, token) in [(3, 9), (0, 17), (2, 33)] {
            let logits = model
                .forward(&[row(slot, &[token], None, LogitsOf::Last)], &mut cache)
                .unwrap();
            cache.truncate(slot, cache.len(slot) - 1);
            alone.push(logits.values);
        }
        let together = model
            .forward(
                &[
                    row(3, &[9], None, LogitsOf::Last),
                    row(0, &[17], None, LogitsOf::Last),
                    row(2, &[33], None, LogitsOf::Last),
                ],
                &mut cache,
            )
            .unwrap();
        for (line, alone) in alone.iter().enumerate() {
            let off = distance(&together.values.get(i64::try_from(line).unwrap()), &alone.get(0));
            assert!(off <= 1e-5, "{name}: decoding row {line} differs by {off:e}");
        }
    }
}

#[test]
fn adapters_equal_peft_forward_and_backward() {
    tch::set_num_threads(1);
    for name in ["lora-llama", "lora-qwen3"] {
        let dir = fixtures().join(name);
        let fixture = read(&dir.join("expected.json"));
        let model = model(&fixture, Kind::Float);
        let mut lora = Lora::load(&dir, model.config(), Device::Cpu).unwrap();
        let (expected, positions) = expected_logits(&fixture);
        let positions = Tensor::from_slice(&positions);
        let rows: Vec<Vec<i64>> = fixture["tokens"]
            .as_array()
            .unwrap()
            .iter()
            .map(|r| ids(r).into_iter().map(i64::from).collect())
            .collect();
        let tokens = Tensor::from_slice(&rows.concat()).view([2, -1]);
        lora.set_trainable(true).unwrap();
        let logits = model.forward_train(&tokens, None, Some(&lora)).unwrap();
        let off = distance(&logits.get(0).index_select(0, &positions), &expected);
        assert!(off <= 1e-5, "{name}: logits differ by {off:e}");

        let n = logits.size()[1];
        let flat = logits.narrow(1, 0, n - 1).reshape([-1, logits.size()[2]]);
        let loss = flat.cross_entropy_for_logits(&tokens.narrow(1, 1, n - 1).reshape([-1]));
        let off = (loss.double_value(&[]) - fixture["loss"].as_f64().unwrap()).abs();
        assert!(off <= 1e-5, "{name}: loss differs by {off:e}");
        loss.backward();
        let golden = Tensor::read_safetensors(dir.join("gradients.safetensors")).unwrap();
        let parameters = lora.parameters();
        assert_eq!(golden.len(), parameters.len());
        for (parameter, gradient) in golden {
            let (_, tensor) = parameters.iter().find(|(n, _)| *n == parameter).unwrap();
            let off = distance(&tensor.grad(), &gradient);
            assert!(off <= 1e-5, "{name}: gradient of {parameter} differs by {off:e}");
        }

        // Served: alone, beside the base, and beside another adapter, in one call.
        let prompt = ids(&fixture["tokens"][0]);
        let served = lora.for_serving(model.config(), Kind::Float, Device::Cpu).unwrap();
        let mut cache = model.new_cache(3, 128).unwrap();
        assert_eq!(
            greedy(&model, &mut cache, Some(&served), &prompt, 32),
            ids(&fixture["greedy"]),
            "{name}"
        );
        cache.truncate(0, 0);
        let other = Lora::init(model.config(), lora.spec().clone(), 1, Device::Cpu).unwrap();
        let other = other.for_serving(model.config(), Kind::Float, Device::Cpu).unwrap();
        let out = model
            .forward(
                &[
                    row(0, &prompt, None, LogitsOf::All),
                    row(2, &prompt, Some(&served), LogitsOf::All),
                    row(1, &prompt, Some(&other), LogitsOf::All),
                ],
                &mut cache,
            )
            .unwrap();
        let part = |i: usize| {
            let range = out.rows[i].clone();
            out.values.narrow(
                0,
                i64::try_from(range.start).unwrap(),
                i64::try_from(range.len()).unwrap(),
            )
        };
        let off = distance(&part(1).index_select(0, &positions), &expected);
        assert!(off <= 1e-5, "{name}: served logits differ by {off:e}");
        assert_eq!(
            part(0),
            part(2),
            "{name}: an adapter with B = 0 changes nothing, to the bit"
        );
        assert!(
            distance(&part(0), &part(1)) > 1e-2,
            "{name}: the adapter must change something"
        );
    }
}

#[test]
fn adapters_are_written_as_peft_writes_them() {
    let dir = fixtures().join("lora-llama");
    let fixture = read(&dir.join("expected.json"));
    let config = model(&fixture, Kind::Float).config().clone();
    let lora = Lora::load(&dir, &config, Device::Cpu).unwrap();
    let out = tempfile::tempdir().unwrap();
    lora.save(out.path(), "llama").unwrap();
    let tensors = |dir: &Path| {
        let mut all = Tensor::read_safetensors(dir.join("adapter_model.safetensors")).unwrap();
        all.sort_by(|a, b| a.0.cmp(&b.0));
        all
    };
    assert_eq!(tensors(&dir), tensors(out.path()));
    let (theirs, ours) = (
        read(&dir.join("adapter_config.json")),
        read(&out.path().join("adapter_config.json")),
    );
    for (key, value) in ours.as_object().unwrap() {
        if key == "target_modules" {
            let sorted = |v: &Value| {
                let mut names: Vec<String> = v.as_array().unwrap().iter().map(|n| n.to_string()).collect();
                names.sort();
                names
            };
            assert_eq!(sorted(value), sorted(&theirs[key]));
        } else if value.is_number() {
            assert_eq!(value.as_f64(), theirs[key].as_f64(), "{key}");
        } else {
            assert_eq!(*value, theirs[key], "{key}");
        }
    }
}

#[test]
fn padding_changes_nothing_for_real_tokens() {
    tch::set_num_threads(1);
    let fixture = read(&fixtures().join("qwen3.json"));
    let model = model(&fixture, Kind::Float);
    let tokens: Vec<i64> = ids(&fixture["prompt"]).into_iter().map(i64::from).collect();
    let alone = model
        .forward_train(&Tensor::from_slice(&tokens[..10]).unsqueeze(0), None, None)
        .unwrap();
    let mut padded = tokens[..10].to_vec();
    padded.extend([7; 14]);
    let batch = Tensor::from_slice(&[tokens, padded].concat()).view([2, 24]);
    let mask = Tensor::ones([2, 24], (Kind::Bool, Device::Cpu));
    mask.get(1)
        .narrow(0, 10, 14)
        .copy_(&Tensor::zeros([14], (Kind::Bool, Device::Cpu)));
    for mask in [None, Some(&mask)] {
        let logits = model.forward_train(&batch, mask, None).unwrap();
        assert_eq!(logits.isfinite().all(), Tensor::from(true));
        let off = distance(&logits.get(1).narrow(0, 0, 10), &alone.get(0));
        assert!(off <= 1e-5, "mask {}: differs by {off:e}", mask.is_some());
    }
}

#[test]
fn full_weights_train_and_come_back_from_disk() {
    tch::set_num_threads(1);
    for name in ["llama-tied", "llama-biased-mha", "qwen3-biased"] {
        let fixture = read(&fixtures().join(format!("{name}.json")));
        let base = tempfile::tempdir().unwrap();
        write_synthetic(base.path(), &fixture["config"], 1).unwrap();
        let model = Model::load(base.path(), Kind::Float, Device::Cpu).unwrap();
        let before = model.parameters();
        let student = model.trainable(Kind::Float).unwrap();
        let tokens: Vec<i64> = ids(&fixture["prompt"]).into_iter().map(i64::from).collect();
        let tokens = Tensor::from_slice(&tokens).unsqueeze(0);
        let loss = |m: &Model| {
            let logits = m.forward_train(&tokens, None, None).unwrap();
            logits
                .get(0)
                .narrow(0, 0, 23)
                .cross_entropy_for_logits(&tokens.get(0).narrow(0, 1, 23))
        };
        let first = loss(&student);
        first.backward();
        for (parameter, tensor) in student.parameters() {
            assert!(tensor.grad().defined(), "{name}: no gradient for {parameter}");
            tch::no_grad(|| tensor.shallow_clone().f_sub_(&(tensor.grad() * 0.05)).map(drop)).unwrap();
        }
        let second = tch::no_grad(|| loss(&student));
        assert!(second.double_value(&[]) < first.double_value(&[]), "{name}");
        let out = tempfile::tempdir().unwrap();
        student.save(out.path(), base.path(), Kind::Float).unwrap();
        let again = Model::load(out.path(), Kind::Float, Device::Cpu).unwrap();
        assert_eq!(loss(&again).double_value(&[]), second.double_value(&[]), "{name}");
        // The base is as it was.
        let fresh = Model::load(base.path(), Kind::Float, Device::Cpu).unwrap();
        assert_eq!(before, fresh.parameters(), "{name}");
        assert_eq!(loss(&model).double_value(&[]), first.double_value(&[]), "{name}");
    }
}

#[test]
fn bf16_stays_near_f32() {
    tch::set_num_threads(1);
    for (name, fixture) in variants() {
        let prompt = ids(&fixture["prompt"]);
        let (exact, rounded) = (model(&fixture, Kind::Float), model(&fixture, Kind::BFloat16));
        let logits = |model: &Model| {
            let mut cache = model.new_cache(1, 64).unwrap();
            let rows = [row(0, &prompt, None, LogitsOf::Last)];
            model.forward(&rows, &mut cache).unwrap().values
        };
        let off = distance(&logits(&rounded), &logits(&exact));
        assert!(off <= 0.06, "{name}: bf16 differs by {off:e}");
    }
}

#[test]
fn impossible_calls_are_refused_and_leave_the_cache_alone() {
    let fixture = read(&fixtures().join("llama.json"));
    let model = model(&fixture, Kind::Float);
    let mut cache = model.new_cache(2, 8).unwrap();
    model
        .forward(&[row(1, &[1, 2, 3], None, LogitsOf::Last)], &mut cache)
        .unwrap();
    let long = [1; 6];
    for (bad, word) in [
        (vec![], "without rows"),
        (vec![row(0, &[], None, LogitsOf::Last)], "without tokens"),
        (vec![row(2, &[1], None, LogitsOf::Last)], "slot 2"),
        (vec![row(1, &long, None, LogitsOf::Last)], "context of 8"),
        (vec![row(0, &[256], None, LogitsOf::Last)], "token 256"),
        (
            vec![row(0, &[1], None, LogitsOf::Last), row(0, &[1], None, LogitsOf::Last)],
            "two rows",
        ),
    ] {
        let error = model.forward(&bad, &mut cache).unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
        assert_eq!((cache.len(0), cache.len(1)), (0, 3));
    }
    assert!(cache.copy_prefix(1, 0, 4).is_err());
    let ragged = Tensor::from_slice(&[1i64, 2]);
    assert!(model.forward_train(&ragged, None, None).is_err());
}
