//! How fast a model runs here, beside what the memory of the machine would allow.

use std::path::Path;
use std::time::Instant;

use tch::{Device, Kind, Tensor};

use super::cache::KvCache;
use super::forward::{ForwardRow, LogitsOf, Model};
use super::tensor::{Doing, Tensors, size};
use crate::engine::models::{BenchPlan, BenchReport, ModelError};
use crate::engine::torch::Dtype;

/// Loads a folder and measures it with `threads` threads on this thread; takes seconds to minutes.
pub fn bench_model(dir: &Path, dtype: Dtype, threads: u16, plan: &BenchPlan) -> Result<BenchReport, ModelError> {
    if threads == 0 || plan.n_tokens == 0 || plan.n_prompt < 8 || plan.batches.iter().any(|&b| !(1..=64).contains(&b)) {
        return Err(ModelError::request(
            "a measurement needs a thread, a token, a prompt of 8 tokens and batches from 1 to 64",
        ));
    }
    tch::set_num_threads(i32::from(threads));
    let kind = match dtype {
        Dtype::F32 => Kind::Float,
        Dtype::Bf16 => Kind::BFloat16,
    };
    measure(&Model::load(dir, kind, Device::Cpu)?, plan)
}

fn measure(model: &Model, plan: &BenchPlan) -> Tensors<BenchReport> {
    let most = plan.batches.iter().copied().max().unwrap_or(1);
    let context = plan.n_prompt.max(plan.n_prompt / 8 + plan.n_tokens) + 1;
    let mut cache = model.new_cache(most, context)?;
    let vocab = u32::try_from(model.config().vocab_size).unwrap_or(u32::MAX);
    let prompt: Vec<u32> = (0..plan.n_prompt as u32).map(|i| (i * 7919 + 13) % vocab).collect();
    let mut prefill = 0.0f64;
    for _ in 0..plan.repeats.max(1) {
        cache.truncate(0, 0);
        let started = Instant::now();
        model.forward(&[row(0, &prompt, LogitsOf::Last)], &mut cache)?;
        prefill = prefill.max(prompt.len() as f64 / started.elapsed().as_secs_f64());
    }
    let mut decode = Vec::new();
    for &batch in &plan.batches {
        let mut best = 0.0f64;
        for _ in 0..plan.repeats.max(1) {
            best = best.max(decode_rate(
                model,
                &mut cache,
                &prompt[..plan.n_prompt / 8],
                batch,
                plan.n_tokens,
            )?);
        }
        decode.push((batch, best));
    }
    let config = model.config();
    let lookup = if config.tied_embeddings {
        0
    } else {
        (config.vocab_size * config.hidden_size) as u64
    };
    let bytes_per_token = (config.n_parameters() - lookup) * model.kind().elt_size_in_bytes() as u64;
    let copy_bandwidth = copy_bandwidth()?;
    Ok(BenchReport {
        dtype: if model.kind() == Kind::BFloat16 {
            "bfloat16"
        } else {
            "float32"
        }
        .to_owned(),
        threads: tch::get_num_threads(),
        bytes_per_token,
        copy_bandwidth,
        bandwidth_limit: copy_bandwidth / bytes_per_token as f64,
        prefill,
        decode,
    })
}

fn row(slot: usize, tokens: &[u32], logits: LogitsOf) -> ForwardRow<'_> {
    ForwardRow {
        slot,
        tokens,
        adapter: None,
        logits,
    }
}

fn decode_rate(model: &Model, cache: &mut KvCache, prompt: &[u32], batch: usize, n: usize) -> Tensors<f64> {
    for slot in 0..cache.n_slots() {
        cache.truncate(slot, 0);
    }
    for slot in 0..batch {
        model.forward(&[row(slot, prompt, LogitsOf::Nothing)], cache)?;
    }
    let mut next = vec![[1u32]; batch];
    let started = Instant::now();
    for _ in 0..n {
        let rows: Vec<_> = next
            .iter()
            .enumerate()
            .map(|(slot, token)| row(slot, token, LogitsOf::Last))
            .collect();
        let logits = model.forward(&rows, cache)?;
        let best = logits.values.f_argmax(-1, false).doing("choosing tokens")?;
        let ids = Vec::<i64>::try_from(&best).doing("choosing tokens")?;
        for (token, id) in next.iter_mut().zip(ids) {
            token[0] = u32::try_from(id).unwrap_or(0);
        }
    }
    Ok((batch * n) as f64 / started.elapsed().as_secs_f64())
}

/// Bytes read a second while copying a block far larger than any cache; best of five.
fn copy_bandwidth() -> Tensors<f64> {
    let n = 64 << 20;
    let make = || {
        let from = Tensor::f_ones([size(n)], (Kind::Float, Device::Cpu))?;
        let to = Tensor::f_zeros([size(n)], (Kind::Float, Device::Cpu))?;
        Ok((from, to))
    };
    let (from, mut to) = make().doing("measuring memory")?;
    let mut best = 0.0f64;
    for _ in 0..5 {
        let started = Instant::now();
        to.f_copy_(&from).doing("measuring memory")?;
        // A copy reads and writes; decoding only reads.
        best = best.max(8.0 * n as f64 / started.elapsed().as_secs_f64());
    }
    Ok(best)
}
