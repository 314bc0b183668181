//! Root mean square normalisation in one pass over a row, where a library makes seven operations of it.

use half::bf16;

use crate::{Matrix, WrongSizes};

/// `x / sqrt(mean(x^2) + epsilon) * weight` of each row of `vectors` `[rows, n]` with a `weight` of `n` elements
/// (arXiv 1910.07467, eq. 4). Computed in f32.
///
/// # Errors
/// [`WrongSizes`] if the lengths do not fit.
pub fn rms_norm(weight: Matrix<'_>, vectors: &[f32], results: &mut [f32], epsilon: f32) -> Result<(), WrongSizes> {
    let n = weight.len();
    if n == 0 || !vectors.len().is_multiple_of(n) || vectors.len() != results.len() {
        return Err(WrongSizes);
    }
    for (row, out) in vectors.chunks_exact(n).zip(results.chunks_exact_mut(n)) {
        let scale = 1.0 / (sum_of_squares(row) / n as f32 + epsilon).sqrt();
        match weight {
            Matrix::F32(weight) => scaled(row, scale, weight.iter().copied(), out),
            Matrix::Bf16(weight) => scaled(row, scale, weight.iter().copied().map(bf16::to_f32), out),
        }
    }
    Ok(())
}

fn scaled(row: &[f32], scale: f32, weight: impl Iterator<Item = f32>, out: &mut [f32]) {
    for ((out, x), weight) in out.iter_mut().zip(row).zip(weight) {
        *out = x * scale * weight;
    }
}

/// In sixteen sums, which vector registers hold.
fn sum_of_squares(row: &[f32]) -> f32 {
    let mut sums = [0.0f32; 16];
    let chunks = row.chunks_exact(16);
    let rest: f32 = chunks.remainder().iter().map(|x| x * x).sum();
    for chunk in chunks {
        for (sum, x) in sums.iter_mut().zip(chunk) {
            *sum += x * x;
        }
    }
    sums.iter().sum::<f32>() + rest
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::tiles::tests::random;

    #[test]
    fn rows_are_normalised_by_their_own_size() {
        for n in [1, 15, 16, 100, 576] {
            let (weight, vectors) = (random(n, 7), random(3 * n, 8));
            let halves: Vec<bf16> = weight.iter().map(|w| bf16::from_f32(*w)).collect();
            let mut got = [vec![0.0; 3 * n], vec![0.0; 3 * n]];
            rms_norm(Matrix::F32(&weight), &vectors, &mut got[0], 1e-5).unwrap();
            rms_norm(Matrix::Bf16(&halves), &vectors, &mut got[1], 1e-5).unwrap();
            for (i, x) in vectors.iter().enumerate() {
                let row = &vectors[i / n * n..][..n];
                let mean = row.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / n as f64;
                let normed = f64::from(*x) / (mean + 1e-5).sqrt();
                assert!((f64::from(got[0][i]) - normed * f64::from(weight[i % n])).abs() < 2e-6);
                assert!((f64::from(got[1][i]) - normed * f64::from(halves[i % n].to_f32())).abs() < 2e-6);
            }
        }
        let refused = |weight: &[f32], vectors: &[f32], n: usize| {
            rms_norm(Matrix::F32(weight), vectors, &mut vec![0.0; n], 0.0) == Err(WrongSizes)
        };
        assert!(refused(&[], &[], 0));
        assert!(refused(&[1.0; 2], &[1.0; 3], 3));
        assert!(refused(&[1.0; 2], &[1.0; 4], 2));
    }
}
