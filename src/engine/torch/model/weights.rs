//! The frozen weights of a decoder, laid out for speed: q, k and v in one matrix, gate and up in another.

use std::path::Path;

use tch::{Device, Kind, TchError, Tensor};

use super::kernels;
use super::tensor::{Doing, Tensors, size};
use super::tensor_file::TensorFiles;
use crate::engine::models::{ModelConfig, weight_files};

/// A projection: `x W^T + b`.
#[derive(Debug)]
pub(crate) struct Linear {
    /// `[out, in]`; laid out as [`lay_out`] says.
    pub(crate) weight: Tensor,
    pub(crate) bias: Option<Tensor>,
}

impl Linear {
    pub(crate) fn apply(&self, x: &Tensor) -> Result<Tensor, TchError> {
        x.f_linear(&self.weight, self.bias.as_ref())
    }

    /// As [`Linear::apply`] for `[rows, in]` without gradients.
    pub(crate) fn apply_rows(&self, x: &Tensor, n_rows: usize) -> Result<Tensor, TchError> {
        let kind = self.weight.kind();
        let wide = |t: &Tensor| t.f_to_kind(Kind::Float);
        let bias = || self.bias.as_ref().map(wide).transpose();
        // Rounded once, after the bias, whichever way it goes.
        if let Some(sums) = kernels::product(x, &self.weight, n_rows)? {
            return match bias()? {
                Some(bias) => sums.f_add(&bias)?,
                None => sums,
            }
            .f_to_kind(kind);
        }
        if n_rows > 0 && kernels::widen(kind, self.weight.device()) {
            let sums = wide(x)?.f_linear(&wide(&self.weight)?, bias()?.as_ref())?;
            return sums.f_to_kind(kind);
        }
        self.apply(x)
    }

    fn shallow_clone(&self) -> Self {
        Self {
            weight: self.weight.shallow_clone(),
            bias: self.bias.as_ref().map(Tensor::shallow_clone),
        }
    }
}

/// The weights of one decoder layer.
#[derive(Debug)]
pub(crate) struct LayerWeights {
    pub(crate) input_norm: Tensor,
    /// Rows: q heads, k heads, v heads.
    pub(crate) qkv: Linear,
    pub(crate) qk_norm: Option<HeadNorms>,
    pub(crate) output: Linear,
    pub(crate) mlp_norm: Tensor,
    /// Rows: gate, up.
    pub(crate) gate_up: Linear,
    pub(crate) down: Linear,
}

/// RMS norms of q heads and k heads, for the families that have them.
#[derive(Debug)]
pub(crate) struct HeadNorms {
    pub(crate) q: Tensor,
    pub(crate) k: Tensor,
}

impl HeadNorms {
    /// One row per head, q first: `[heads + kv heads, head dim]`, so that one product scales them all.
    pub(crate) fn rows(&self, n_heads: usize, n_kv_heads: usize) -> Result<Tensor, TchError> {
        let rows = |t: &Tensor, n: usize| t.f_unsqueeze(0)?.f_expand([size(n), -1], false);
        Tensor::f_cat(&[rows(&self.q, n_heads)?, rows(&self.k, n_kv_heads)?], 0)
    }
}

/// Every weight of a decoder.
#[derive(Debug)]
pub struct Weights {
    pub(crate) embedding: Tensor,
    pub(crate) layers: Vec<LayerWeights>,
    pub(crate) norm: Tensor,
    pub(crate) head: Linear,
}

impl Weights {
    /// Reads a Hugging Face folder, converting to `kind`. Every tensor's shape is checked against `config`.
    pub fn load(dir: &Path, config: &ModelConfig, kind: Kind, device: Device) -> Tensors<Self> {
        let files = TensorFiles::open(&weight_files(dir)?)?;
        let reader = Reader {
            files: &files,
            config,
            kind,
            device,
        };
        let (hidden, vocab) = (config.hidden_size, config.vocab_size);
        let embedding = reader.get("model.embed_tokens.weight", &[vocab, hidden])?;
        let (embedding, head) = if config.tied_embeddings {
            let both = lay_out(embedding)?;
            (both.shallow_clone(), both)
        } else {
            (embedding, lay_out(reader.get("lm_head.weight", &[vocab, hidden])?)?)
        };
        let layers = (0..config.n_layers).map(|i| reader.layer(i)).collect::<Tensors<_>>()?;
        Ok(Self {
            embedding,
            layers,
            norm: reader.get("model.norm.weight", &[hidden])?,
            head: Linear {
                weight: head,
                bias: None,
            },
        })
    }

    /// The kind of the weights.
    pub fn kind(&self) -> Kind {
        self.embedding.kind()
    }

    /// Where the weights are.
    pub fn device(&self) -> Device {
        self.embedding.device()
    }

    /// The same tensors, for use on another thread.
    pub fn shallow_clone(&self) -> Self {
        Self {
            embedding: self.embedding.shallow_clone(),
            layers: self.layers.iter().map(LayerWeights::shallow_clone).collect(),
            norm: self.norm.shallow_clone(),
            head: self.head.shallow_clone(),
        }
    }
}

impl LayerWeights {
    fn shallow_clone(&self) -> Self {
        Self {
            input_norm: self.input_norm.shallow_clone(),
            qkv: self.qkv.shallow_clone(),
            qk_norm: self.qk_norm.as_ref().map(|n| HeadNorms {
                q: n.q.shallow_clone(),
                k: n.k.shallow_clone(),
            }),
            output: self.output.shallow_clone(),
            mlp_norm: self.mlp_norm.shallow_clone(),
            gate_up: self.gate_up.shallow_clone(),
            down: self.down.shallow_clone(),
        }
    }
}

struct Reader<'a> {
    files: &'a TensorFiles,
    config: &'a ModelConfig,
    kind: Kind,
    device: Device,
}

impl Reader<'_> {
    fn get(&self, name: &str, shape: &[usize]) -> Tensors<Tensor> {
        self.files.get(name, shape, self.kind, self.device)
    }

    fn layer(&self, i: usize) -> Tensors<LayerWeights> {
        let c = self.config;
        let (hidden, inner) = (c.hidden_size, c.intermediate_size);
        let (q, kv) = (c.n_heads * c.head_dim, c.n_kv_heads * c.head_dim);
        let base = format!("model.layers.{i}");
        let attention = |part: &str| format!("{base}.self_attn.{part}_proj");
        let mlp = |part: &str| format!("{base}.mlp.{part}_proj");
        Ok(LayerWeights {
            input_norm: self.get(&format!("{base}.input_layernorm.weight"), &[hidden])?,
            qkv: self.fused(
                &[(attention("q"), q), (attention("k"), kv), (attention("v"), kv)],
                hidden,
                c.qkv_bias,
            )?,
            qk_norm: c.qk_norm.then(|| self.head_norms(&base)).transpose()?,
            output: self.fused(&[(attention("o"), hidden)], q, c.output_bias)?,
            mlp_norm: self.get(&format!("{base}.post_attention_layernorm.weight"), &[hidden])?,
            gate_up: self.fused(&[(mlp("gate"), inner), (mlp("up"), inner)], hidden, c.mlp_bias)?,
            down: self.fused(&[(mlp("down"), hidden)], inner, c.mlp_bias)?,
        })
    }

    fn fused(&self, parts: &[(String, usize)], n_in: usize, bias: bool) -> Tensors<Linear> {
        let mut weights = Vec::new();
        let mut biases = Vec::new();
        for (name, n_out) in parts {
            weights.push(self.get(&format!("{name}.weight"), &[*n_out, n_in])?);
            if bias {
                biases.push(self.get(&format!("{name}.bias"), &[*n_out])?);
            }
        }
        Ok(Linear {
            weight: lay_out(join(weights)?)?,
            bias: bias.then(|| join(biases)).transpose()?,
        })
    }

    fn head_norms(&self, base: &str) -> Tensors<HeadNorms> {
        let norm = |part: &str| self.get(&format!("{base}.self_attn.{part}_norm.weight"), &[self.config.head_dim]);
        Ok(HeadNorms {
            q: norm("q")?,
            k: norm("k")?,
        })
    }
}

/// The order in memory that products are fastest with: as in the file for [`kernels::product`]. Where that cannot run and
/// the library multiplies, the elements of one input lie together in f32 on a CPU: measured on the shapes of SmolLM2,
/// decoding one sequence then gains a tenth and eight sequences a fifth.
fn lay_out(weight: Tensor) -> Tensors<Tensor> {
    if weight.kind() != Kind::Float || weight.device() != Device::Cpu || kernels::fit(weight.kind(), weight.device()) {
        return Ok(weight);
    }
    weight
        .f_transpose(0, 1)
        .and_then(|t| t.f_contiguous()?.f_transpose(0, 1))
        .doing("laying out weights")
}

fn join(mut parts: Vec<Tensor>) -> Tensors<Tensor> {
    match parts.pop() {
        Some(only) if parts.is_empty() => Ok(only),
        Some(last) => {
            parts.push(last);
            Tensor::f_cat(&parts, 0).doing("fusing projections")
        }
        None => Tensor::f_cat(&parts, 0).doing("fusing projections"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_in_half_precision_is_rounded_once_after_the_bias() {
        let half = |values: &[f32]| Tensor::from_slice(values).to_kind(Kind::BFloat16);
        let linear = Linear {
            weight: half(&[1.0, 1.0]).view([1, 2]),
            bias: Some(half(&[-1000.0])),
        };
        for rows in [1, 2, 40] {
            let x = half(&[1000.0, 0.25]).view([1, 2]).repeat([rows, 1]);
            let out = linear.apply_rows(&x, usize::try_from(rows).unwrap()).unwrap();
            assert_eq!((out.size(), out.kind()), (vec![rows, 1], Kind::BFloat16));
            // What the library makes of it is not ours.
            if kernels::widen(Kind::BFloat16, Device::Cpu) {
                assert_eq!(out.double_value(&[rows - 1, 0]), 0.25, "{rows} rows");
            }
        }
        let nothing = linear.apply_rows(&half(&[]).view([0, 2]), 0).unwrap();
        assert_eq!((nothing.size(), nothing.kind()), (vec![0, 1], Kind::BFloat16));
    }
}
