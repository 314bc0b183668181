//! Low-rank adapters: parameters as `peft` keeps them for training, and a fused form for serving.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tch::{Device, Kind, Tensor, no_grad};

use super::tensor::{Doing, Tensors, size};
use crate::engine::models::{ModelConfig, ModelError};

/// A projection an adapter can change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Target {
    /// Query projection.
    Q,
    /// Key projection.
    K,
    /// Value projection.
    V,
    /// Attention output.
    O,
    /// MLP gate.
    Gate,
    /// MLP up.
    Up,
    /// MLP down.
    Down,
}

impl Target {
    /// Every projection of a decoder layer, in the order of computation.
    pub const ALL: [Self; 7] = [Self::Q, Self::K, Self::V, Self::O, Self::Gate, Self::Up, Self::Down];

    /// The module's name in checkpoints and in `target_modules`.
    pub fn module(self) -> &'static str {
        match self {
            Self::Q => "q_proj",
            Self::K => "k_proj",
            Self::V => "v_proj",
            Self::O => "o_proj",
            Self::Gate => "gate_proj",
            Self::Up => "up_proj",
            Self::Down => "down_proj",
        }
    }

    /// The target of a module's name.
    pub fn from_module(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|t| t.module() == name)
    }

    pub(super) fn block(self) -> &'static str {
        match self {
            Self::Q | Self::K | Self::V | Self::O => "self_attn",
            Self::Gate | Self::Up | Self::Down => "mlp",
        }
    }

    /// `(out, in)` of the projection.
    pub(super) fn shape(self, c: &ModelConfig) -> (usize, usize) {
        let (q, kv) = (c.n_heads * c.head_dim, c.n_kv_heads * c.head_dim);
        match self {
            Self::Q => (q, c.hidden_size),
            Self::K | Self::V => (kv, c.hidden_size),
            Self::O => (c.hidden_size, q),
            Self::Gate | Self::Up => (c.intermediate_size, c.hidden_size),
            Self::Down => (c.hidden_size, c.intermediate_size),
        }
    }
}

/// What defines an adapter besides its parameters.
#[derive(Debug, Clone, PartialEq)]
pub struct LoraSpec {
    /// The rank.
    pub rank: usize,
    /// The update is scaled by `alpha / rank`.
    pub alpha: f64,
    /// Rank-stabilised: scaled by `alpha / sqrt(rank)` instead (arXiv 2312.03732).
    pub rank_stabilized: bool,
    /// The projections changed.
    pub targets: Vec<Target>,
}

impl LoraSpec {
    /// What the product `B A` is multiplied by.
    pub fn scale(&self) -> f64 {
        let rank = self.rank as f64;
        self.alpha / if self.rank_stabilized { rank.sqrt() } else { rank }
    }
}

/// The two factors of one projection's update, in f32.
#[derive(Debug)]
pub struct LoraPair {
    /// `[rank, in]`.
    pub a: Tensor,
    /// `[out, rank]`.
    pub b: Tensor,
}

/// An adapter's parameters.
#[derive(Debug)]
pub struct Lora {
    pub(super) spec: LoraSpec,
    /// By layer, then by [`Target::ALL`].
    pub(super) layers: Vec<[Option<LoraPair>; 7]>,
}

impl Lora {
    /// A fresh adapter that changes nothing yet: `A` uniform in ±1/sqrt(in) as `peft` draws it, `B` zero.
    pub fn init(config: &ModelConfig, spec: LoraSpec, seed: u64, device: Device) -> Tensors<Self> {
        if spec.rank == 0 || spec.rank > 1024 || spec.targets.is_empty() {
            return Err(ModelError::request(format!(
                "an adapter needs a rank from 1 to 1024 and at least one target, not rank {} and {} targets",
                spec.rank,
                spec.targets.len()
            )));
        }
        let mut random = StdRng::seed_from_u64(seed);
        let mut pair = |target: Target| -> Tensors<LoraPair> {
            let (n_out, n_in) = target.shape(config);
            let bound = 1.0 / (n_in as f32).sqrt();
            let values: Vec<f32> = (0..spec.rank * n_in)
                .map(|_| random.random_range(-bound..bound))
                .collect();
            let a = Tensor::f_from_slice(&values)
                .and_then(|t| t.f_view([size(spec.rank), size(n_in)]))
                .and_then(|t| t.f_to_device(device))
                .doing("making an adapter")?;
            let b =
                Tensor::f_zeros([size(n_out), size(spec.rank)], (Kind::Float, device)).doing("making an adapter")?;
            Ok(LoraPair { a, b })
        };
        let mut layers = Vec::new();
        for _ in 0..config.n_layers {
            let mut layer: [Option<LoraPair>; 7] = Default::default();
            for (place, target) in layer.iter_mut().zip(Target::ALL) {
                if spec.targets.contains(&target) {
                    *place = Some(pair(target)?);
                }
            }
            layers.push(layer);
        }
        Ok(Self { spec, layers })
    }

    /// What defines it.
    pub fn spec(&self) -> &LoraSpec {
        &self.spec
    }

    /// Name and tensor of every parameter, named and ordered as `peft` writes them. The tensors share storage with the
    /// adapter, so an optimizer may update them in place.
    pub fn parameters(&self) -> Vec<(String, Tensor)> {
        let mut out = Vec::new();
        for (i, layer) in self.layers.iter().enumerate() {
            for (pair, target) in layer.iter().zip(Target::ALL) {
                let Some(pair) = pair else { continue };
                let base = parameter_base(i, target);
                out.push((format!("{base}.lora_A.weight"), pair.a.shallow_clone()));
                out.push((format!("{base}.lora_B.weight"), pair.b.shallow_clone()));
            }
        }
        out
    }

    /// Turns gradients of every parameter on or off.
    pub fn set_trainable(&mut self, on: bool) -> Tensors<()> {
        for pair in self.layers.iter_mut().flatten().flatten() {
            for tensor in [&mut pair.a, &mut pair.b] {
                *tensor = tensor.f_set_requires_grad(on).doing("marking parameters")?;
            }
        }
        Ok(())
    }

    /// An independent copy.
    pub fn deep_clone(&self) -> Tensors<Self> {
        let copy = |t: &Tensor| {
            no_grad(|| {
                let mut new = t.f_detach()?.f_empty_like()?;
                new.f_copy_(t).map(|()| new)
            })
            .doing("copying an adapter")
        };
        let mut layers = Vec::new();
        for layer in &self.layers {
            let mut new: [Option<LoraPair>; 7] = Default::default();
            for (place, pair) in new.iter_mut().zip(layer) {
                if let Some(pair) = pair {
                    *place = Some(LoraPair {
                        a: copy(&pair.a)?,
                        b: copy(&pair.b)?,
                    });
                }
            }
            layers.push(new);
        }
        Ok(Self {
            spec: self.spec.clone(),
            layers,
        })
    }

    pub(super) fn pair(&self, layer: usize, target: Target) -> Option<&LoraPair> {
        let at = Target::ALL.iter().position(|t| *t == target)?;
        self.layers.get(layer)?.get(at)?.as_ref()
    }

    /// The fused form that requests are served with.
    pub fn for_serving(&self, config: &ModelConfig, kind: Kind, device: Device) -> Tensors<ServingLora> {
        let fuse = |layer: usize, targets: &[Target]| self.fuse(config, layer, targets, kind, device);
        let layers = (0..self.layers.len())
            .map(|i| {
                Ok(ServingLayer {
                    qkv: fuse(i, &[Target::Q, Target::K, Target::V])?,
                    output: fuse(i, &[Target::O])?,
                    gate_up: fuse(i, &[Target::Gate, Target::Up])?,
                    down: fuse(i, &[Target::Down])?,
                })
            })
            .collect::<Tensors<_>>()?;
        Ok(ServingLora { layers })
    }

    /// `A` factors side by side, `B` factors on the diagonal of a block matrix, scale included.
    fn fuse(
        &self,
        config: &ModelConfig,
        layer: usize,
        targets: &[Target],
        kind: Kind,
        device: Device,
    ) -> Tensors<Option<FusedPair>> {
        let rank: i64 = targets
            .iter()
            .filter_map(|t| self.pair(layer, *t))
            .map(|p| p.a.size().first().copied().unwrap_or(0))
            .sum();
        if rank == 0 {
            return Ok(None);
        }
        let n_in = targets.first().map_or(0, |t| t.shape(config).1);
        let n_out: usize = targets.iter().map(|t| t.shape(config).0).sum();
        let build = || {
            let a = Tensor::f_zeros([size(n_in), rank], (Kind::Float, device))?;
            let b = Tensor::f_zeros([rank, size(n_out)], (Kind::Float, device))?;
            let (mut at_rank, mut at_out) = (0, 0);
            for target in targets {
                let rows = size(target.shape(config).0);
                if let Some(pair) = self.pair(layer, *target) {
                    let r = pair.a.size().first().copied().unwrap_or(0);
                    a.f_narrow(1, at_rank, r)?.f_copy_(&pair.a.f_transpose(0, 1)?)?;
                    let scaled = pair.b.f_transpose(0, 1)?.f_mul_scalar(self.spec.scale())?;
                    b.f_narrow(0, at_rank, r)?.f_narrow(1, at_out, rows)?.f_copy_(&scaled)?;
                    at_rank += r;
                }
                at_out += rows;
            }
            Ok(FusedPair {
                a: a.f_to_kind(kind)?,
                b: b.f_to_kind(kind)?,
            })
        };
        no_grad(build).doing("fusing an adapter").map(Some)
    }
}

pub(super) fn parameter_base(layer: usize, target: Target) -> String {
    format!(
        "base_model.model.model.layers.{layer}.{}.{}",
        target.block(),
        target.module()
    )
}

/// An adapter ready to serve: per fused projection `A^T` and the scaled `B^T`.
#[derive(Debug)]
pub struct ServingLora {
    pub(super) layers: Vec<ServingLayer>,
}

#[derive(Debug)]
pub(super) struct ServingLayer {
    pub(super) qkv: Option<FusedPair>,
    pub(super) output: Option<FusedPair>,
    pub(super) gate_up: Option<FusedPair>,
    pub(super) down: Option<FusedPair>,
}

/// `x A B` is added to a projection's output.
#[derive(Debug)]
pub(super) struct FusedPair {
    /// `[in, ranks]`.
    a: Tensor,
    /// `[ranks, out]`.
    b: Tensor,
}

impl FusedPair {
    /// Adds the update to rows `from..from + n` of `out`.
    pub(super) fn add_to(&self, out: &Tensor, x: &Tensor, from: i64, n: i64) -> Result<(), tch::TchError> {
        let low = x.f_narrow(0, from, n)?.f_mm(&self.a)?;
        out.f_narrow(0, from, n)?.f_addmm_(&low, &self.b).map(drop)
    }
}
