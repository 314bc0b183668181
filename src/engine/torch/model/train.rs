//! The forward pass that leaves a trace for gradients: no cache, whole sequences.

use tch::{Device, Kind, TchError, Tensor};

use super::forward::Model;
use super::lora::{Lora, Target};
use super::rotary::Rotation;
use super::tensor::{Doing, Tensors, size};
use super::weights::Linear;
use crate::engine::models::ModelError;

/// What every layer of one training forward shares.
#[derive(Debug)]
pub struct TrainContext {
    rotation: Rotation,
    /// Additive, `[batch, 1, positions, positions]`; plain causal attention without it.
    mask: Option<Tensor>,
    batch: i64,
    positions: i64,
}

impl Model {
    /// Logits `[batch, positions, vocabulary]` of whole sequences, in the kind of the weights.
    ///
    /// `tokens` is `[batch, positions]` of i64. Sequences padded on the right need no `attention_mask`: a position sees
    /// only what is before it, and the loss masks the padding out. With one (`[batch, positions]`, true or non-zero for
    /// real tokens) padded keys are hidden from everyone; positions count from 0 at the left edge either way.
    pub fn forward_train(
        &self,
        tokens: &Tensor,
        attention_mask: Option<&Tensor>,
        adapter: Option<&Lora>,
    ) -> Tensors<Tensor> {
        let hidden = self.hidden_train(tokens, attention_mask, adapter)?;
        self.head_train(&hidden)
    }

    /// As [`Model::forward_train`], up to the last norm: `[batch, positions, hidden]`. A value head reads this, and a
    /// caller that needs the logits of some positions only selects them before [`Model::head_train`].
    pub fn hidden_train(
        &self,
        tokens: &Tensor,
        attention_mask: Option<&Tensor>,
        adapter: Option<&Lora>,
    ) -> Tensors<Tensor> {
        let context = self.train_context(tokens, attention_mask)?;
        self.hidden_in(tokens, &context, adapter)
    }

    /// As [`Model::hidden_train`], in a context made before.
    pub fn hidden_in(&self, tokens: &Tensor, context: &TrainContext, adapter: Option<&Lora>) -> Tensors<Tensor> {
        let mut hidden = self.embed_train(tokens)?;
        for layer in 0..self.config.n_layers {
            hidden = self.layer_train(layer, &hidden, context, adapter)?;
        }
        self.norm_train(&hidden)
    }

    /// The context of a single row of tokens that holds many sequences: `prefix` tokens with which all of them begin,
    /// then what follows in each, one after the other, in `branches` tokens. A branch sees the prefix and itself, and
    /// its positions count on from the prefix, so that every hidden state is that of the sequence on its own.
    pub fn branched_context(&self, prefix: usize, branches: &[usize]) -> Tensors<TrainContext> {
        let build = || {
            let (kind, device) = (self.kind(), self.device());
            let mut runs = vec![(0, prefix)];
            let mut owners = vec![0i64; prefix];
            for (branch, &n) in branches.iter().enumerate() {
                runs.push((prefix, n));
                owners.extend(std::iter::repeat_n(size(branch) + 1, n));
            }
            let positions = size(owners.len());
            Ok(TrainContext {
                rotation: Rotation::new(&self.config.rope, &runs, kind, device)?,
                mask: Some(branch_mask(&owners, kind)?.f_to_device(device)?),
                batch: 1,
                positions,
            })
        };
        build().doing("preparing a training step")
    }

    /// Begins a forward pass that the caller drives layer by layer, to recompute activations in the backward pass.
    pub fn train_context(&self, tokens: &Tensor, attention_mask: Option<&Tensor>) -> Tensors<TrainContext> {
        let &[batch, positions] = tokens.size().as_slice() else {
            return Err(ModelError::request(format!(
                "training tokens must be [batch, positions], not {:?}",
                tokens.size()
            )));
        };
        let n = usize::try_from(positions).unwrap_or(0);
        let build = || {
            let (kind, device) = (self.kind(), self.device());
            Ok(TrainContext {
                rotation: Rotation::new(&self.config.rope, &[(0, n)], kind, device)?,
                mask: attention_mask
                    .map(|m| key_mask(m, batch, positions, kind))
                    .transpose()?,
                batch,
                positions,
            })
        };
        build().doing("preparing a training step")
    }

    /// Embeddings `[batch, positions, hidden]`.
    pub fn embed_train(&self, tokens: &Tensor) -> Tensors<Tensor> {
        Tensor::f_embedding(&self.weights.embedding, tokens, -1, false, false).doing("embedding tokens")
    }

    /// One decoder layer.
    pub fn layer_train(
        &self,
        layer: usize,
        hidden: &Tensor,
        context: &TrainContext,
        adapter: Option<&Lora>,
    ) -> Tensors<Tensor> {
        if layer >= self.config.n_layers {
            return Err(ModelError::request(format!("there is no layer {layer}")));
        }
        self.layer_traced(layer, hidden, context, adapter)
            .doing("running a layer for training")
    }

    /// The last norm.
    pub fn norm_train(&self, hidden: &Tensor) -> Tensors<Tensor> {
        self.norm(hidden, &self.weights.norm).doing("normalising")
    }

    /// Logits of normalised hidden states `[.., hidden]`.
    pub fn head_train(&self, hidden: &Tensor) -> Tensors<Tensor> {
        self.weights.head.apply(hidden).doing("projecting to the vocabulary")
    }

    fn layer_traced(
        &self,
        i: usize,
        hidden: &Tensor,
        context: &TrainContext,
        adapter: Option<&Lora>,
    ) -> Result<Tensor, TchError> {
        let (c, layer) = (&self.config, &self.weights.layers[i]);
        let project = |x: &Tensor, linear: &Linear, targets: &[Target]| {
            let out = linear.apply(x)?;
            match adapter {
                Some(lora) => self.adapted(lora, i, targets, x, out),
                None => Ok(out),
            }
        };
        let (batch, n, dim) = (context.batch, context.positions, size(c.head_dim));
        let (heads, kv_heads) = (size(c.n_heads), size(c.n_kv_heads));
        let x = self.norm(hidden, &layer.input_norm)?;
        let qkv = project(&x, &layer.qkv, &[Target::Q, Target::K, Target::V])?;
        let part = |from: i64, n_heads: i64| {
            qkv.f_narrow(-1, from * dim, n_heads * dim)?
                .f_reshape([batch, n, n_heads, dim])
        };
        let (mut q, mut k, v) = (
            part(0, heads)?,
            part(heads, kv_heads)?,
            part(heads + kv_heads, kv_heads)?,
        );
        if let Some(norms) = &layer.qk_norm {
            q = q.f_rms_norm(dim, Some(&norms.q), c.rms_norm_eps)?;
            k = k.f_rms_norm(dim, Some(&norms.k), c.rms_norm_eps)?;
        }
        let (q, k) = (context.rotation.apply(&q)?, context.rotation.apply(&k)?);
        let attended = Tensor::f_scaled_dot_product_attention(
            &q.f_transpose(1, 2)?,
            &k.f_transpose(1, 2)?,
            &v.f_transpose(1, 2)?,
            context.mask.as_ref(),
            0.0,
            context.mask.is_none(),
            None,
            heads != kv_heads,
        )?;
        let attended = attended.f_transpose(1, 2)?.f_reshape([batch, n, heads * dim])?;
        let hidden = hidden.f_add(&project(&attended, &layer.output, &[Target::O])?)?;
        let x = self.norm(&hidden, &layer.mlp_norm)?;
        let gate_up = project(&x, &layer.gate_up, &[Target::Gate, Target::Up])?;
        let inner = size(c.intermediate_size);
        let gated = gate_up
            .f_narrow(-1, 0, inner)?
            .f_silu()?
            .f_mul(&gate_up.f_narrow(-1, inner, inner)?)?;
        hidden.f_add(&project(&gated, &layer.down, &[Target::Down])?)
    }

    /// Adds the low-rank updates to the parts of a fused projection's output. The update is computed in f32, as `peft`
    /// does, and rounded once.
    fn adapted(
        &self,
        lora: &Lora,
        layer: usize,
        targets: &[Target],
        x: &Tensor,
        out: Tensor,
    ) -> Result<Tensor, TchError> {
        if targets.iter().all(|t| lora.pair(layer, *t).is_none()) {
            return Ok(out);
        }
        let x = x.f_to_kind(Kind::Float)?;
        let mut from = 0;
        let mut parts = Vec::new();
        for target in targets {
            let rows = size(target.shape(&self.config).0);
            let part = out.f_narrow(-1, from, rows)?;
            from += rows;
            parts.push(match lora.pair(layer, *target) {
                Some(pair) => {
                    let update = x
                        .f_linear(&pair.a, None::<&Tensor>)?
                        .f_linear(&pair.b, None::<&Tensor>)?
                        .f_mul_scalar(lora.spec().scale())?;
                    part.f_add(&update)?.f_to_kind(out.kind())?
                }
                None => part,
            });
        }
        Tensor::f_cat(&parts, -1)
    }
}

/// Causal and padding mask in one, additive. Rows of padding attend to themselves so that no row is empty.
fn key_mask(mask: &Tensor, batch: i64, positions: i64, kind: Kind) -> Result<Tensor, TchError> {
    let device = mask.device();
    let shape = [positions, positions];
    let causal = Tensor::f_ones(shape, (Kind::Bool, device))?.f_tril(0)?;
    let own = Tensor::f_eye(positions, (Kind::Bool, device))?;
    let seen = mask
        .f_to_kind(Kind::Bool)?
        .f_view([batch, 1, 1, positions])?
        .f_logical_and(&causal)?
        .f_logical_or(&own)?;
    Tensor::f_zeros([batch, 1, positions, positions], (kind, device))?
        .f_masked_fill(&seen.f_logical_not()?, f64::NEG_INFINITY)
}

/// Lets a position see what is before it in its own branch, and the prefix, whose owner is 0; additive.
fn branch_mask(owners: &[i64], kind: Kind) -> Result<Tensor, TchError> {
    let n = size(owners.len());
    let key = Tensor::f_from_slice(owners)?;
    let seen = key
        .f_eq_tensor(&key.f_unsqueeze(1)?)?
        .f_logical_or(&key.f_eq(0)?)?
        .f_tril(0)?;
    Tensor::f_zeros([1, 1, n, n], (kind, Device::Cpu))?.f_masked_fill(&seen.f_logical_not()?, f64::NEG_INFINITY)
}
