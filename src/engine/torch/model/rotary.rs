//! Rotation of q and k by position.

use tch::{Device, Kind, TchError, Tensor};

use super::tensor::size;
use crate::engine::models::Rope;

/// cos and signed sin of a list of positions, `[positions, 1, head dim]`.
///
/// A head `[x1, x2]` rotates to `[x1 cos - x2 sin, x2 cos + x1 sin]`, which is `x cos + roll(x) s` with
/// `s = [-sin, sin]`: three operations instead of seven.
#[derive(Debug)]
pub(super) struct Rotation {
    cos: Tensor,
    sin: Tensor,
    half: i64,
}

impl Rotation {
    /// `sequences` are runs of positions `(first, n)`; frequencies may depend on where a run ends.
    pub(super) fn new(rope: &Rope, sequences: &[(usize, usize)], kind: Kind, device: Device) -> Result<Self, TchError> {
        let half = size(rope.dim / 2);
        let angles = if rope.depends_on_length() {
            let runs = sequences
                .iter()
                .map(|&(first, n)| angles(rope, &positions(&[(first, n)]), first + n))
                .collect::<Result<Vec<_>, _>>()?;
            Tensor::f_cat(&runs, 0)?
        } else {
            angles(rope, &positions(sequences), 0)?
        };
        let factor = rope.attention_factor();
        let place = |t: Tensor| {
            t.f_mul_scalar(factor)?
                .f_to_kind(kind)?
                .f_to_device(device)?
                .f_unsqueeze(1)
        };
        let (cos, sin) = (angles.f_cos()?, angles.f_sin()?);
        Ok(Self {
            cos: place(Tensor::f_cat(&[&cos, &cos], -1)?)?,
            sin: place(Tensor::f_cat(&[&sin.f_neg()?, &sin], -1)?)?,
            half,
        })
    }

    /// Rotates `[positions, heads, head dim]` in place.
    pub(super) fn apply_(&self, heads: &mut Tensor) -> Result<(), TchError> {
        let rolled = heads.f_roll(self.half, -1)?;
        heads.f_mul_(&self.cos).map(drop)?;
        heads.f_addcmul_(&rolled, &self.sin).map(drop)
    }

    /// Rotates `[batch, positions, heads, head dim]`, leaving a trace for gradients.
    pub(super) fn apply(&self, heads: &Tensor) -> Result<Tensor, TchError> {
        let rolled = heads.f_roll(self.half, -1)?;
        heads.f_mul(&self.cos)?.f_addcmul(&rolled, &self.sin)
    }
}

fn positions(sequences: &[(usize, usize)]) -> Vec<f32> {
    sequences
        .iter()
        .flat_map(|&(first, n)| (first..first + n).map(|p| p as f32))
        .collect()
}

fn angles(rope: &Rope, positions: &[f32], length: usize) -> Result<Tensor, TchError> {
    let frequencies = Tensor::f_from_slice(&rope.inverse_frequencies(length))?;
    Tensor::f_from_slice(positions)?.f_outer(&frequencies)
}
