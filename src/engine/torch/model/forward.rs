//! Inference: chunks of prompts and single decoding steps of many sequences in one call.

use std::ops::Range;
use std::path::Path;

use tch::{Device, Kind, TchError, Tensor, no_grad};

use super::cache::KvCache;
use super::kernels;
use super::lora::{FusedPair, ServingLayer, ServingLora};
use super::rotary::Rotation;
use super::tensor::{Doing, Tensors, size};
use super::weights::{LayerWeights, Linear, Weights};
use crate::engine::models::{ModelConfig, ModelError};

/// A decoder: its configuration and weights. Cheap to clone shallowly; used from one thread at a time.
#[derive(Debug)]
pub struct Model {
    pub(super) config: ModelConfig,
    pub(super) weights: Weights,
    /// Head norms laid out per head, for the families that have them.
    head_norms: Vec<Option<Tensor>>,
}

/// Which positions of a row yield logits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogitsOf {
    /// None: a chunk of a prompt that goes on.
    Nothing,
    /// The last.
    Last,
    /// All.
    All,
}

/// One sequence's share of a forward call: `tokens` follow the positions its slot already holds.
#[derive(Debug, Clone, Copy)]
pub struct ForwardRow<'a> {
    /// The cache slot. No two rows of a call may share one.
    pub slot: usize,
    /// New tokens: one while decoding, a chunk of the prompt before.
    pub tokens: &'a [u32],
    /// The adapter that applies to this row.
    pub adapter: Option<&'a ServingLora>,
    /// What to return for it.
    pub logits: LogitsOf,
}

/// The logits of a forward call.
#[derive(Debug)]
pub struct Logits {
    /// `[n, vocabulary]` in f32.
    pub values: Tensor,
    /// The lines of `values` that belong to each row, in the order of the rows.
    pub rows: Vec<Range<usize>>,
}

impl Model {
    /// Loads a Hugging Face folder.
    pub fn load(dir: &Path, kind: Kind, device: Device) -> Tensors<Self> {
        let config = ModelConfig::load(dir)?;
        let weights = no_grad(|| Weights::load(dir, &config, kind, device))?;
        Self::new(config, weights)
    }

    pub(super) fn new(config: ModelConfig, weights: Weights) -> Tensors<Self> {
        let head_norms = no_grad(|| {
            weights
                .layers
                .iter()
                .map(|l| {
                    l.qk_norm
                        .as_ref()
                        .map(|n| n.rows(config.n_heads, config.n_kv_heads))
                        .transpose()
                })
                .collect::<Result<_, _>>()
        })
        .doing("laying out head norms")?;
        Ok(Self {
            config,
            weights,
            head_norms,
        })
    }

    /// The configuration.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The kind of weights and activations.
    pub fn kind(&self) -> Kind {
        self.weights.kind()
    }

    /// Where the weights are.
    pub fn device(&self) -> Device {
        self.weights.device()
    }

    /// The same weights for another thread: storage is shared, nothing is copied.
    pub fn shallow_clone(&self) -> Self {
        Self {
            config: self.config.clone(),
            weights: self.weights.shallow_clone(),
            head_norms: self
                .head_norms
                .iter()
                .map(|n| n.as_ref().map(Tensor::shallow_clone))
                .collect(),
        }
    }

    /// An empty cache that fits this model.
    pub fn new_cache(&self, slots: usize, max_context: usize) -> Tensors<KvCache> {
        KvCache::new(&self.config, slots, max_context, self.kind(), self.device())
    }

    /// Runs every row's new tokens through the model and appends their keys and values to the cache.
    ///
    /// On an error the cache holds what it held before.
    pub fn forward(&self, rows: &[ForwardRow<'_>], cache: &mut KvCache) -> Tensors<Logits> {
        let plan = Plan::new(rows, cache, &self.config)?;
        if let Some((span, longest)) = plan.looked_at_together()
            && !kernels::fit(self.kind(), self.device())
        {
            cache.fill(span, longest)?;
        }
        let out = no_grad(|| self.run(rows, &plan, cache)).doing("running the model")?;
        for row in rows {
            cache.grow(row.slot, row.tokens.len());
        }
        Ok(out)
    }

    fn run(&self, rows: &[ForwardRow<'_>], plan: &Plan<'_>, cache: &mut KvCache) -> Result<Logits, TchError> {
        let (kind, device) = (self.kind(), self.device());
        let tokens = Tensor::f_from_slice(&plan.tokens)?.f_to_device(device)?;
        let places = Tensor::f_from_slice(&plan.places)?.f_to_device(device)?;
        let rotation = Rotation::new(&self.config.rope, &plan.sequences, kind, device)?;
        let attention = Attention::new(plan, &self.config, kind, device)?;
        let mut hidden = Tensor::f_embedding(&self.weights.embedding, &tokens, -1, false, false)?;
        for (i, layer) in self.weights.layers.iter().enumerate() {
            let step = LayerStep {
                model: self,
                layer,
                i,
                plan,
            };
            step.run(&mut hidden, &rotation, &attention, &places, &cache.layers[i])?;
        }
        let (wanted, ranges) = plan.wanted(rows);
        let chosen = if wanted.len() == plan.tokens.len() && wanted.iter().enumerate().all(|(i, &w)| size(i) == w) {
            hidden
        } else {
            hidden.f_index_select(0, &Tensor::f_from_slice(&wanted)?.f_to_device(device)?)?
        };
        let chosen = self.norm_rows(&chosen, &self.weights.norm)?;
        Ok(Logits {
            values: self
                .weights
                .head
                .apply_rows(&chosen, wanted.len())?
                .f_to_kind(Kind::Float)?,
            rows: ranges,
        })
    }

    /// As [`Model::norm`] for `[rows, hidden]` without gradients.
    fn norm_rows(&self, x: &Tensor, weight: &Tensor) -> Result<Tensor, TchError> {
        match kernels::norm(x, weight, self.config.rms_norm_eps)? {
            Some(out) => Ok(out),
            None => self.norm(x, weight),
        }
    }

    pub(super) fn norm(&self, x: &Tensor, weight: &Tensor) -> Result<Tensor, TchError> {
        x.f_rms_norm(size(self.config.hidden_size), Some(weight), self.config.rms_norm_eps)
    }
}

/// Where everything of a call lies in the flat list of tokens.
struct Plan<'a> {
    /// All tokens, rows in `order`.
    tokens: Vec<i64>,
    /// Flat cache position of each token.
    places: Vec<i64>,
    /// `(first position, n)` of each row, in `order`.
    sequences: Vec<(usize, usize)>,
    /// First flat token of each row, in `order`.
    starts: Vec<usize>,
    slots: Vec<usize>,
    /// Caller's row at each place. Decoding rows come first, and rows of one adapter together where that allows.
    order: Vec<usize>,
    n_decode: usize,
    /// Runs of flat tokens with one adapter.
    adapters: Vec<(i64, i64, &'a ServingLora)>,
}

impl<'a> Plan<'a> {
    fn new(rows: &[ForwardRow<'a>], cache: &KvCache, config: &ModelConfig) -> Tensors<Self> {
        check(rows, cache, config)?;
        let key = |row: &ForwardRow<'_>| row.adapter.map_or(0, |a| std::ptr::from_ref(a).addr());
        let mut order: Vec<usize> = (0..rows.len()).collect();
        order.sort_by_key(|&i| (rows[i].tokens.len() > 1, key(&rows[i]), rows[i].slot));
        let mut plan = Self {
            tokens: Vec::new(),
            places: Vec::new(),
            sequences: Vec::new(),
            starts: Vec::new(),
            slots: Vec::new(),
            n_decode: rows.iter().filter(|r| r.tokens.len() == 1).count(),
            order,
            adapters: Vec::new(),
        };
        for &i in &plan.order {
            let row = &rows[i];
            let (first, n, start) = (cache.len(row.slot), row.tokens.len(), plan.tokens.len());
            plan.tokens.extend(row.tokens.iter().map(|&t| i64::from(t)));
            plan.places
                .extend((first..first + n).map(|p| size(row.slot * cache.max_context() + p)));
            plan.sequences.push((first, n));
            plan.starts.push(start);
            plan.slots.push(row.slot);
            let Some(adapter) = row.adapter else { continue };
            match plan.adapters.last_mut() {
                Some((from, len, last)) if std::ptr::eq(*last, adapter) && *from + *len == size(start) => {
                    *len += size(n);
                }
                _ => plan.adapters.push((size(start), size(n), adapter)),
            }
        }
        Ok(plan)
    }

    /// How many slots the decoding rows look at together and how far; `None` if they are not more than one.
    fn looked_at_together(&self) -> Option<(usize, usize)> {
        let slots = &self.slots[..self.n_decode];
        if slots.len() < 2 {
            return None;
        }
        let span = slots.iter().max().map_or(0, |slot| slot + 1);
        let longest = self.sequences[..self.n_decode].iter().map(|(first, _)| first + 1).max();
        Some((span, longest.unwrap_or(0)))
    }

    /// Flat indices whose logits are wanted, in the caller's order, and each row's range among them.
    fn wanted(&self, rows: &[ForwardRow<'_>]) -> (Vec<i64>, Vec<Range<usize>>) {
        let mut starts = vec![0; rows.len()];
        for (place, &i) in self.order.iter().enumerate() {
            starts[i] = self.starts[place];
        }
        let mut wanted = Vec::new();
        let mut ranges = Vec::new();
        for (row, start) in rows.iter().zip(starts) {
            let end = start + row.tokens.len();
            let from = match row.logits {
                LogitsOf::Nothing => end,
                LogitsOf::Last => end - 1,
                LogitsOf::All => start,
            };
            let first = wanted.len();
            wanted.extend((from..end).map(size));
            ranges.push(first..wanted.len());
        }
        (wanted, ranges)
    }
}

fn check(rows: &[ForwardRow<'_>], cache: &KvCache, config: &ModelConfig) -> Tensors<()> {
    let mut seen = vec![false; cache.n_slots()];
    for row in rows {
        let problem = match seen.get_mut(row.slot) {
            None => Some(format!("there is no cache slot {}", row.slot)),
            Some(true) => Some(format!("cache slot {} is used by two rows of one call", row.slot)),
            Some(free) => {
                *free = true;
                None
            }
        };
        let full = cache.len(row.slot) + row.tokens.len() > cache.max_context();
        let stranger = row.tokens.iter().find(|&&t| t as usize >= config.vocab_size);
        let problem = problem
            .or_else(|| row.tokens.is_empty().then(|| "a row without tokens".to_owned()))
            .or_else(|| {
                full.then(|| {
                    format!(
                        "{} tokens after {} exceed the context of {} positions",
                        row.tokens.len(),
                        cache.len(row.slot),
                        cache.max_context()
                    )
                })
            })
            .or_else(|| {
                stranger.map(|t| format!("token {t} is outside the vocabulary of {} tokens", config.vocab_size))
            });
        if let Some(reason) = problem {
            return Err(ModelError::request(reason));
        }
    }
    if rows.is_empty() {
        return Err(ModelError::request("a forward call without rows"));
    }
    Ok(())
}

/// One layer of one call.
struct LayerStep<'a> {
    model: &'a Model,
    layer: &'a LayerWeights,
    i: usize,
    plan: &'a Plan<'a>,
}

impl LayerStep<'_> {
    fn run(
        &self,
        hidden: &mut Tensor,
        rotation: &Rotation,
        attention: &Attention<'_>,
        places: &Tensor,
        cache: &Tensor,
    ) -> Result<(), TchError> {
        let c = &self.model.config;
        let (n, dim) = (size(self.plan.tokens.len()), size(c.head_dim));
        let (heads, kv_heads) = (size(c.n_heads), size(c.n_kv_heads));
        let x = self.model.norm_rows(hidden, &self.layer.input_norm)?;
        let qkv = self.project(&x, &self.layer.qkv, |l| l.qkv.as_ref())?;
        let mut rotated = qkv
            .f_narrow(1, 0, (heads + kv_heads) * dim)?
            .f_view([n, heads + kv_heads, dim])?;
        if let Some(norms) = &self.model.head_norms[self.i] {
            let normed = rotated.f_rms_norm(dim, None::<&Tensor>, c.rms_norm_eps)?.f_mul(norms)?;
            rotated.f_copy_(&normed)?;
        }
        rotation.apply_(&mut rotated)?;
        let keys_and_values = qkv
            .f_narrow(1, heads * dim, 2 * kv_heads * dim)?
            .f_view([n, 2, kv_heads, dim])?;
        cache
            .f_view([-1, 2, kv_heads, dim])?
            .f_index_copy_(0, places, &keys_and_values)
            .map(drop)?;
        let attended = attention.run(&qkv.f_narrow(1, 0, heads * dim)?, cache)?;
        let out = self.project(&attended, &self.layer.output, |l| l.output.as_ref())?;
        hidden.f_add_(&out).map(drop)?;
        let x = self.model.norm_rows(hidden, &self.layer.mlp_norm)?;
        let gate_up = self.project(&x, &self.layer.gate_up, |l| l.gate_up.as_ref())?;
        let inner = size(c.intermediate_size);
        let mut gated = gate_up.f_narrow(1, 0, inner)?.f_silu()?;
        gated.f_mul_(&gate_up.f_narrow(1, inner, inner)?).map(drop)?;
        let out = self.project(&gated, &self.layer.down, |l| l.down.as_ref())?;
        hidden.f_add_(&out).map(drop)
    }

    fn project(
        &self,
        x: &Tensor,
        linear: &Linear,
        part: impl Fn(&ServingLayer) -> Option<&FusedPair>,
    ) -> Result<Tensor, TchError> {
        let out = linear.apply_rows(x, self.plan.tokens.len())?;
        for (from, n, adapter) in &self.plan.adapters {
            if let Some(pair) = adapter.layers.get(self.i).and_then(&part) {
                pair.add_to(&out, x, *from, *n)?;
            }
        }
        Ok(out)
    }
}

/// What attention needs of a call, the same in every layer.
struct Attention<'a> {
    plan: &'a Plan<'a>,
    config: &'a ModelConfig,
    /// Slot and positions of each decoding row, where they are looked at one by one.
    one_by_one: Option<Vec<(usize, usize)>>,
    /// Slots `0..span` are looked at by the decoding rows together.
    span: usize,
    longest: usize,
    /// Adds minus infinity where a slot is shorter than the longest; `None` when none is.
    decode_mask: Option<Tensor>,
    /// Slot of each decoding row, unless they are `0..span` in order.
    decode_slots: Option<Tensor>,
    /// One mask per prompt row that follows cached positions.
    prompt_masks: Vec<Option<Tensor>>,
    n_heads: i64,
    n_kv_heads: i64,
    dim: i64,
}

impl<'a> Attention<'a> {
    fn new(plan: &'a Plan<'a>, config: &'a ModelConfig, kind: Kind, device: Device) -> Result<Self, TchError> {
        let n = plan.n_decode;
        let slots = &plan.slots[..n];
        let lengths: Vec<usize> = plan.sequences[..n].iter().map(|(first, _)| first + 1).collect();
        let longest = lengths.iter().copied().max().unwrap_or(0);
        let span = slots.iter().copied().max().map_or(0, |s| s + 1);
        let in_order = slots.iter().enumerate().all(|(i, &s)| i == s);
        let even = in_order && lengths.iter().all(|&l| l == longest);
        let one_by_one =
            kernels::fit(kind, device).then(|| slots.iter().copied().zip(lengths.iter().copied()).collect());
        // A single sequence is read alone, whatever its slot.
        let alone = n == 1 || one_by_one.is_some();
        let decode_mask = if alone || even {
            None
        } else {
            let mut values = vec![0.0f32; span * longest];
            let mut of_slot = vec![longest; span];
            for (&slot, &length) in slots.iter().zip(&lengths) {
                of_slot[slot] = length;
            }
            for (slot, &length) in of_slot.iter().enumerate() {
                values[slot * longest + length..(slot + 1) * longest].fill(f32::NEG_INFINITY);
            }
            let mask = Tensor::f_from_slice(&values)?.f_view([size(span), 1, 1, size(longest)])?;
            Some(mask.f_to_kind(kind)?.f_to_device(device)?)
        };
        let decode_slots = if alone || in_order {
            None
        } else {
            let slots: Vec<i64> = slots.iter().map(|&s| size(s)).collect();
            Some(Tensor::f_from_slice(&slots)?.f_to_device(device)?)
        };
        let prompt_masks = plan.sequences[n..]
            .iter()
            .map(|&(first, len)| {
                let mask = |()| {
                    Tensor::f_full([size(len), size(first + len)], f64::NEG_INFINITY, (kind, device))?
                        .f_triu(size(first) + 1)
                };
                (first > 0).then_some(()).map(mask).transpose()
            })
            .collect::<Result<_, _>>()?;
        Ok(Self {
            plan,
            config,
            one_by_one,
            span,
            longest,
            decode_mask,
            decode_slots,
            prompt_masks,
            n_heads: size(config.n_heads),
            n_kv_heads: size(config.n_kv_heads),
            dim: size(config.head_dim),
        })
    }

    /// `queries` is `[tokens, heads * head dim]`, and so is the result.
    fn run(&self, queries: &Tensor, cache: &Tensor) -> Result<Tensor, TchError> {
        let mut parts = Vec::new();
        if self.plan.n_decode > 0 {
            parts.push(self.decode(&queries.f_narrow(0, 0, size(self.plan.n_decode))?, cache)?);
        }
        for (mask, row) in self.prompt_masks.iter().zip(self.plan.n_decode..) {
            parts.push(self.prompt(queries, cache, row, mask.as_ref())?);
        }
        match parts.pop() {
            Some(only) if parts.is_empty() => Ok(only),
            Some(last) => {
                parts.push(last);
                Tensor::f_cat(&parts, 0)
            }
            None => Tensor::f_cat(&parts, 0),
        }
    }

    /// The query heads that share a key head stand where the positions of a prompt would: `[slots, kv heads, group,
    /// dim]` against `[slots, kv heads, positions, dim]`, so keys and values are read once per group.
    fn decode(&self, queries: &Tensor, cache: &Tensor) -> Result<Tensor, TchError> {
        if let Some(rows) = &self.one_by_one {
            return kernels::attention(queries, cache, self.config, rows)?
                .ok_or_else(|| TchError::Shape("the cache is not of the model's shape".to_owned()));
        }
        let n = size(self.plan.n_decode);
        let group = self.n_heads / self.n_kv_heads;
        let grouped = queries.f_reshape([n, self.n_kv_heads, group, self.dim])?;
        let (first, count) = if n == 1 {
            (size(self.plan.slots[0]), 1)
        } else {
            (0, size(self.span))
        };
        let past = cache.f_narrow(0, first, count)?.f_narrow(1, 0, size(self.longest))?;
        let keys = past.f_select(2, 0)?.f_transpose(1, 2)?;
        let values = past.f_select(2, 1)?.f_transpose(1, 2)?;
        let spread = match &self.decode_slots {
            Some(slots) => {
                let shape = [count, self.n_kv_heads, group, self.dim];
                Tensor::f_zeros(shape, (grouped.kind(), grouped.device()))?.f_index_copy(0, slots, &grouped)?
            }
            None => grouped,
        };
        let mask = self.decode_mask.as_ref();
        let out = Tensor::f_scaled_dot_product_attention(&spread, &keys, &values, mask, 0.0, false, None, false)?;
        let out = match &self.decode_slots {
            Some(slots) => out.f_index_select(0, slots)?,
            None => out,
        };
        out.f_reshape([n, self.n_heads * self.dim])
    }

    fn prompt(&self, queries: &Tensor, cache: &Tensor, row: usize, mask: Option<&Tensor>) -> Result<Tensor, TchError> {
        let (first, n) = self.plan.sequences[row];
        let queries = queries
            .f_narrow(0, size(self.plan.starts[row]), size(n))?
            .f_reshape([1, size(n), self.n_heads, self.dim])?
            .f_transpose(1, 2)?;
        let past = cache
            .f_narrow(0, size(self.plan.slots[row]), 1)?
            .f_narrow(1, 0, size(first + n))?;
        let keys = past.f_select(2, 0)?.f_transpose(1, 2)?;
        let values = past.f_select(2, 1)?.f_transpose(1, 2)?;
        let causal = mask.is_none();
        let grouped = self.n_heads != self.n_kv_heads;
        let out = Tensor::f_scaled_dot_product_attention(&queries, &keys, &values, mask, 0.0, causal, None, grouped)?;
        out.f_transpose(1, 2)?.f_reshape([size(n), self.n_heads * self.dim])
    }
}
