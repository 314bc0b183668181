//! Decoding on a CPU by `reef-kernels`: products of a few rows and attention of single tokens. Other devices, kinds and
//! prompts use the library's operations.

use half::bf16;
use reef_kernels::{AttentionShape, Features, Matrix, WrongSizes};
use tch::{Device, Kind, TchError, Tensor};

use super::tensor::size;
use crate::engine::models::ModelConfig;

/// Above this many rows arithmetic is the limit and the library's product is the faster one.
const MOST_ROWS: usize = 32;

/// Whether tensors of this kind are computed with here.
pub(super) fn fit(kind: Kind, device: Device) -> bool {
    matches!(kind, Kind::Float | Kind::BFloat16) && device == Device::Cpu && Features::detect().is_some()
}

/// Whether a product of many rows is faster in f32, the conversion of the weights included: where the processor has no
/// arithmetic on halves, the library's product of them is three times slower.
pub(super) fn widen(kind: Kind, device: Device) -> bool {
    kind == Kind::BFloat16 && device == Device::Cpu && Features::detect().is_some_and(|f| !f.multiplies_bf16())
}

/// `x W^T` for `x` of `n_rows` rows in f32, without gradients; `None` where the library's product should be used.
pub(super) fn product(x: &Tensor, weight: &Tensor, n_rows: usize) -> Result<Option<Tensor>, TchError> {
    if n_rows == 0 || n_rows > MOST_ROWS {
        return Ok(None);
    }
    let (n_out, n_in) = weight.size2()?;
    computed(weight, x, &[size(n_rows), n_out], |features, matrix, x, out| {
        let n_in = usize::try_from(n_in).unwrap_or(0);
        reef_kernels::product(features, matrix, x, out, n_in, threads())
    })
}

/// Root mean square normalisation of a few rows, without gradients; `None` where the library's should be used.
pub(super) fn norm(x: &Tensor, weight: &Tensor, epsilon: f64) -> Result<Option<Tensor>, TchError> {
    match x.size2() {
        Ok((rows, n)) if rows <= size(MOST_ROWS) => computed(weight, x, &[rows, n], |_, weight, x, out| {
            reef_kernels::rms_norm(weight, x, out, epsilon as f32)
        })
        .and_then(|out| rounded(out, weight)),
        _ => Ok(None),
    }
}

/// Attention of one new token of each of `rows` (slot and positions looked at) over one layer of a cache; `None` where
/// the library's should be used.
pub(super) fn attention(
    queries: &Tensor,
    cache: &Tensor,
    config: &ModelConfig,
    rows: &[(usize, usize)],
) -> Result<Option<Tensor>, TchError> {
    let positions = cache.size().get(1).copied().unwrap_or(0);
    let shape = AttentionShape {
        n_heads: config.n_heads,
        n_kv_heads: config.n_kv_heads,
        dim: config.head_dim,
        positions: usize::try_from(positions).unwrap_or(0),
    };
    let sizes = [size(rows.len()), size(config.n_heads * config.head_dim)];
    computed(cache, queries, &sizes, |features, cache, queries, out| {
        reef_kernels::attend(features, cache, &shape, rows, queries, out, threads())
    })
    .and_then(|out| rounded(out, cache))
}

/// In the kind of `like`.
fn rounded(out: Option<Tensor>, like: &Tensor) -> Result<Option<Tensor>, TchError> {
    out.map(|out| out.f_to_kind(like.f_kind()?)).transpose()
}

fn threads() -> usize {
    usize::try_from(tch::get_num_threads()).unwrap_or(1)
}

/// A tensor of `sizes` in f32, computed from `matrix` and `x`.
fn computed(
    matrix: &Tensor,
    x: &Tensor,
    sizes: &[i64],
    compute: impl FnOnce(Features, Matrix<'_>, &[f32], &mut [f32]) -> Result<(), WrongSizes>,
) -> Result<Option<Tensor>, TchError> {
    let kind = matrix.f_kind()?;
    let features = match Features::detect() {
        // A tensor of nothing has no address.
        Some(features)
            if fit(kind, matrix.device()) && matrix.is_contiguous() && matrix.numel() > 0 && x.numel() > 0 =>
        {
            features
        }
        _ => return Ok(None),
    };
    let x = x.f_to_kind(Kind::Float)?.f_contiguous()?;
    let results = Tensor::f_empty(sizes, (Kind::Float, Device::Cpu))?;
    // SAFETY: the tensors are contiguous and of the kinds named; they are kept for as long as the slices, and nobody
    // else has `results`.
    #[allow(unsafe_code, reason = "a tensor's memory has no safe form")]
    let fitted = unsafe {
        let (elements, n) = (matrix.data_ptr().cast_const(), matrix.numel());
        let matrix = match kind {
            Kind::BFloat16 => Matrix::Bf16(std::slice::from_raw_parts(elements.cast::<bf16>(), n)),
            _ => Matrix::F32(std::slice::from_raw_parts(elements.cast::<f32>(), n)),
        };
        let x = std::slice::from_raw_parts(x.data_ptr().cast_const().cast::<f32>(), x.numel());
        let out = std::slice::from_raw_parts_mut(results.data_ptr().cast::<f32>(), results.numel());
        compute(features, matrix, x, out)
    };
    match fitted {
        Ok(()) => Ok(Some(results)),
        // The library names the shapes in its error.
        Err(WrongSizes) => Ok(None),
    }
}
