//! Keys and values of past positions, by slot.

use tch::{Device, Kind, Tensor, no_grad};

use super::tensor::{Doing, Tensors, size};
use crate::engine::models::{ModelConfig, ModelError};

/// The cache of one engine: `slots` sequences of up to `max_context` positions each, laid out once. Pages that no
/// sequence reached are not resident.
///
/// One tensor per layer of shape `[slots, positions, 2, kv heads, head dim]`, so that the keys and values of a token,
/// which come out of one matrix product, go in by one copy.
#[derive(Debug)]
pub struct KvCache {
    pub(super) layers: Vec<Tensor>,
    lengths: Vec<usize>,
    /// Leading positions of each slot that hold numbers, whether or not they still mean anything.
    written: Vec<usize>,
    max_context: usize,
}

/// Positions zeroed at a time.
const ZEROED_AT_ONCE: usize = 256;

impl KvCache {
    /// Lays the cache out.
    pub fn new(config: &ModelConfig, slots: usize, max_context: usize, kind: Kind, device: Device) -> Tensors<Self> {
        let shape = [slots, max_context, 2, config.n_kv_heads, config.head_dim].map(size);
        let layers = (0..config.n_layers)
            .map(|_| Tensor::f_empty(shape, (kind, device)).doing("laying out the cache"))
            .collect::<Tensors<_>>()?;
        Ok(Self {
            layers,
            lengths: vec![0; slots],
            written: vec![0; slots],
            max_context,
        })
    }

    /// How many slots there are.
    pub fn n_slots(&self) -> usize {
        self.lengths.len()
    }

    /// Positions a slot can hold.
    pub fn max_context(&self) -> usize {
        self.max_context
    }

    /// Positions a slot holds; 0 for a slot that does not exist.
    pub fn len(&self, slot: usize) -> usize {
        self.lengths.get(slot).copied().unwrap_or(0)
    }

    /// Whether a slot holds nothing.
    pub fn is_empty(&self, slot: usize) -> bool {
        self.len(slot) == 0
    }

    /// Forgets the positions of a slot from `len` on; 0 frees it.
    pub fn truncate(&mut self, slot: usize, len: usize) {
        if let Some(length) = self.lengths.get_mut(slot) {
            *length = len.min(*length);
        }
    }

    /// Makes the first `len` positions of `to` those of `from`; what `to` held is gone.
    pub fn copy_prefix(&mut self, from: usize, to: usize, len: usize) -> Tensors<()> {
        let n = self.n_slots();
        if from >= n || to >= n || len > self.len(from) {
            return Err(ModelError::request(format!(
                "cannot copy {len} positions from slot {from} to slot {to} of {n}"
            )));
        }
        if from != to {
            let part = |layer: &Tensor, slot| layer.f_select(0, size(slot))?.f_narrow(0, 0, size(len));
            for layer in &self.layers {
                no_grad(|| part(layer, to).and_then(|mut to| to.f_copy_(&part(layer, from)?)))
                    .doing("copying a cached prefix")?;
            }
        }
        if let Some(length) = self.lengths.get_mut(to) {
            *length = len;
        }
        self.note_written(to, len);
        Ok(())
    }

    /// Makes sure that positions `0..len` of the first `slots` slots hold numbers. Memory that nothing was written to may
    /// read as NaN, and a masked NaN is still one: its weight is zero, and zero times NaN is NaN.
    pub(super) fn fill(&mut self, slots: usize, len: usize) -> Tensors<()> {
        let target = len.next_multiple_of(ZEROED_AT_ONCE).min(self.max_context);
        for slot in 0..slots.min(self.written.len()) {
            let from = self.written[slot];
            if from >= len {
                continue;
            }
            for layer in &self.layers {
                let zero = || {
                    let rest = layer.f_select(0, size(slot))?;
                    rest.f_narrow(0, size(from), size(target - from))?.f_zero_()
                };
                no_grad(zero).doing("clearing the cache").map(drop)?;
            }
            self.written[slot] = target;
        }
        Ok(())
    }

    fn note_written(&mut self, slot: usize, len: usize) {
        if let Some(written) = self.written.get_mut(slot) {
            *written = len.max(*written);
        }
    }

    pub(super) fn grow(&mut self, slot: usize, by: usize) {
        if let Some(length) = self.lengths.get_mut(slot) {
            *length += by;
        }
        self.note_written(slot, self.len(slot));
    }
}

#[cfg(test)]
mod tests {
    use tch::Kind;

    use crate::engine::models::{synthetic_config, write_synthetic};
    use crate::engine::torch::model::{ForwardRow, LogitsOf, Model};

    #[test]
    fn what_memory_held_before_does_not_reach_the_logits() {
        let dir = tempfile::tempdir().unwrap();
        write_synthetic(dir.path(), &synthetic_config(), 1).unwrap();
        let model = Model::load(dir.path(), Kind::Float, tch::Device::Cpu).unwrap();
        let mut cache = model.new_cache(3, 600).unwrap();
        for layer in &cache.layers {
            drop(layer.shallow_clone().fill_(f64::NAN));
        }
        let row = |slot, tokens| ForwardRow {
            slot,
            tokens,
            adapter: None,
            logits: LogitsOf::Last,
        };
        let long: Vec<u32> = (1..300).collect();
        model.forward(&[row(0, &[5, 6]), row(2, &long)], &mut cache).unwrap();
        let logits = model.forward(&[row(0, &[7]), row(2, &[8])], &mut cache).unwrap().values;
        assert_eq!(logits.isfinite().all().int64_value(&[]), 1);
        cache.copy_prefix(2, 1, 10).unwrap();
        let logits = model.forward(&[row(1, &[7]), row(2, &[8])], &mut cache).unwrap().values;
        assert_eq!(logits.isfinite().all().int64_value(&[]), 1);
    }
}
