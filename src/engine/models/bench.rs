//! The measurement of a model's speed: what is asked and what comes out. The engine that has tensors performs it.

use serde::Serialize;

/// What to measure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BenchPlan {
    /// Numbers of sequences decoded together.
    pub batches: Vec<usize>,
    /// Tokens decoded by each sequence.
    pub n_tokens: usize,
    /// Length of the prompt that is measured alone, and that each decoding sequence has before it, divided by 8.
    pub n_prompt: usize,
    /// Repetitions; the best counts.
    pub repeats: usize,
}

/// What was measured.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BenchReport {
    /// `float32`, `bfloat16`.
    pub dtype: String,
    /// Threads of the tensor library.
    pub threads: i32,
    /// Bytes of weights read for one token.
    pub bytes_per_token: u64,
    /// Bytes a second that this machine copies out of memory with as many threads.
    pub copy_bandwidth: f64,
    /// Tokens a second if decoding alone did nothing but read the weights at that speed.
    pub bandwidth_limit: f64,
    /// Tokens a second of the prompt.
    pub prefill: f64,
    /// Tokens a second of all sequences together, by their number.
    pub decode: Vec<(usize, f64)>,
}
