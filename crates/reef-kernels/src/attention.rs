//! Attention of single new tokens over cached keys and values.
//!
//! Each sequence looks at its own positions and no others, so there is nothing to pad or to mask, and what it gets does
//! not depend on its company. The query heads that share a key head are computed together: keys and values are read
//! once for all of them.

use std::cell::Cell;

use crate::lanes::Lanes;
use crate::tiles::Element;

/// How many positions ahead keys and values are asked for; they lie further apart than the processor looks by itself.
const AHEAD: usize = 8;

thread_local! {
    /// Scores of the heads of one group.
    static SCORES: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
}

/// The cache `[slots, positions, 2, kv heads, dim]`, queries and results `[rows, heads, dim]`.
pub(crate) struct Attention<'a, W> {
    pub(crate) cache: *const W,
    pub(crate) queries: *const f32,
    pub(crate) results: *mut f32,
    /// Slot and number of positions of each row.
    pub(crate) rows: &'a [(usize, usize)],
    pub(crate) positions: usize,
    pub(crate) n_heads: usize,
    pub(crate) n_kv_heads: usize,
    pub(crate) dim: usize,
    pub(crate) scale: f32,
}

// SAFETY: parts read what nobody writes and write heads of their own.
#[allow(unsafe_code, reason = "raw pointers are shared between the threads of one call")]
unsafe impl<W: Sync> Sync for Attention<'_, W> {}

/// One group of query heads of one row.
struct Group<W> {
    keys: *const W,
    values: *const W,
    queries: *const f32,
    results: *mut f32,
    /// Elements from one position to the next.
    stride: usize,
    n_heads: usize,
    length: usize,
}

#[allow(unsafe_code, reason = "vector instructions work on pointers")]
impl<W: Element> Attention<'_, W> {
    /// Parts of the work: one for each row and key head.
    pub(crate) fn n_parts(&self) -> usize {
        self.rows.len() * self.n_kv_heads
    }

    /// # Safety
    /// The pointers are valid for the sizes and rows given while this runs, `part` is less than `n_parts` and taken once,
    /// and the processor has the instructions of `L`, which the caller enables.
    #[inline(always)]
    pub(crate) unsafe fn part<L: Lanes>(&self, part: usize) {
        let (row, kv_head) = (part / self.n_kv_heads, part % self.n_kv_heads);
        let (slot, length) = self.rows[row];
        let n_heads = self.n_heads / self.n_kv_heads;
        let stride = 2 * self.n_kv_heads * self.dim;
        let at = (row * self.n_heads + kv_head * n_heads) * self.dim;
        // SAFETY: as promised by the caller.
        unsafe {
            let keys = self.cache.add(slot * self.positions * stride + kv_head * self.dim);
            let group = Group {
                keys,
                values: keys.add(self.n_kv_heads * self.dim),
                queries: self.queries.add(at),
                results: self.results.add(at),
                stride,
                n_heads,
                length,
            };
            // Taken out rather than borrowed: vector instructions would not be inlined into a closure that the standard
            // library calls.
            let mut scores = SCORES.take();
            scores.resize(n_heads * length, 0.0);
            self.scores::<L>(&group, &mut scores);
            for scores in scores.chunks_exact_mut(length) {
                softmax(scores);
            }
            let mut head = 0;
            while head < n_heads {
                head += match n_heads - head {
                    1 => self.sum::<L, 1>(&group, &scores, head),
                    2 => self.sum::<L, 2>(&group, &scores, head),
                    3 => self.sum::<L, 3>(&group, &scores, head),
                    _ => self.sum::<L, 4>(&group, &scores, head),
                };
            }
            SCORES.set(scores);
        }
    }

    #[inline(always)]
    unsafe fn scores<L: Lanes>(&self, group: &Group<W>, scores: &mut [f32]) {
        let dim = self.dim;
        // SAFETY: as `part`; a prefetch may name any address.
        unsafe {
            for position in 0..group.length {
                let key = group.keys.add(position * group.stride);
                let ahead = key.wrapping_add(AHEAD * group.stride);
                for head in 0..group.n_heads {
                    let query = group.queries.add(head * dim);
                    let mut sum = L::zero();
                    let mut i = 0;
                    while i + L::N <= dim {
                        if head == 0 {
                            L::prefetch(ahead.wrapping_add(i).cast());
                        }
                        sum = W::load::<L>(key.add(i)).mul_add(L::load(query.add(i)), sum);
                        i += L::N;
                    }
                    let mut total = sum.total();
                    for i in i..dim {
                        total += (*key.add(i)).value() * *query.add(i);
                    }
                    scores[head * group.length + position] = total * self.scale;
                }
            }
        }
    }

    /// Adds up the values by weight for `H` heads from `head` on; returns `H`.
    #[inline(always)]
    unsafe fn sum<L: Lanes, const H: usize>(&self, group: &Group<W>, weights: &[f32], head: usize) -> usize {
        let (dim, length) = (self.dim, group.length);
        let weight = |h: usize, position: usize| weights[(head + h) * length + position];
        // SAFETY: as `part`; a prefetch may name any address.
        unsafe {
            let mut i = 0;
            while i + L::N <= dim {
                let mut sums = [L::zero(); H];
                for position in 0..length {
                    let value = group.values.add(position * group.stride + i);
                    L::prefetch(value.wrapping_add(AHEAD * group.stride).cast());
                    let value = W::load::<L>(value);
                    for (h, sum) in sums.iter_mut().enumerate() {
                        *sum = value.mul_add(L::all(weight(h, position)), *sum);
                    }
                }
                for (h, sum) in sums.into_iter().enumerate() {
                    sum.store(group.results.add((head + h) * dim + i));
                }
                i += L::N;
            }
            for i in i..dim {
                for h in 0..H {
                    let value = |position| (*group.values.add(position * group.stride + i)).value();
                    *group.results.add((head + h) * dim + i) =
                        (0..length).map(|position| value(position) * weight(h, position)).sum();
                }
            }
        }
        H
    }
}

/// Inlined into functions that enable vector instructions, so that the loops become some.
#[inline(always)]
fn softmax(scores: &mut [f32]) {
    let largest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sums = [0.0; 16];
    let mut chunks = scores.chunks_exact_mut(16);
    for chunk in &mut chunks {
        for (score, sum) in chunk.iter_mut().zip(&mut sums) {
            *score = exp(*score - largest);
            *sum += *score;
        }
    }
    let mut total = 0.0;
    for score in chunks.into_remainder() {
        *score = exp(*score - largest);
        total += *score;
    }
    total += sums.iter().sum::<f32>();
    for score in scores {
        *score /= total;
    }
}

/// e^x for x <= 0, within 2e-7 of its size: x = n ln 2 + r, and e^r by the first terms of its series, |r| <= ln 2 / 2.
/// NaN stays one.
#[inline(always)]
fn exp(x: f32) -> f32 {
    // Adding and taking away 1.5 * 2^23 rounds to a whole number.
    const ROUND: f32 = 12_582_912.0;
    // ln 2 in two parts, so that n ln 2 loses no digits.
    const LN2_HIGH: f32 = 0.693_145_75;
    const LN2_LOW: f32 = 1.428_606_8e-6;
    // Below this the result is zero to every use here.
    let x = if x < -87.0 { -87.0 } else { x };
    let n = (x * std::f32::consts::LOG2_E + ROUND) - ROUND;
    let r = (x - n * LN2_HIGH) - n * LN2_LOW;
    let series = [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0];
    let e_r = series.into_iter().fold(0.0, |sum, term| sum * r + term);
    // 2^n by its bits; n is between -126 and 0. A NaN turns to 0 here and stays NaN in e_r.
    let exponent = (n as i32 + 127) as u32;
    e_r * f32::from_bits(exponent << 23)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use half::bf16;

    use super::*;
    use crate::tiles::tests::{available, random};
    use crate::{AttentionShape, Matrix, WrongSizes, attend};

    #[test]
    fn the_exponential_is_right_to_its_last_digits() {
        for i in 0..=870_000 {
            let x = -(i as f32) / 10_000.0;
            let right = f64::from(x).exp();
            let off = (f64::from(exp(x)) - right).abs() / right;
            assert!(off < 4e-7, "e^{x} is off by {off:e}");
        }
        assert!(exp(f32::NAN).is_nan());
        assert!(exp(f32::NEG_INFINITY) < 1e-37);
    }

    /// In double precision, by the definition.
    fn right(cache: &[f32], queries: &[f32], shape: &AttentionShape, rows: &[(usize, usize)]) -> Vec<f64> {
        let (dim, group) = (shape.dim, shape.n_heads / shape.n_kv_heads);
        let at = |slot: usize, position: usize, part: usize, head: usize, i: usize| {
            let cell = ((slot * shape.positions + position) * 2 + part) * shape.n_kv_heads + head;
            f64::from(cache[cell * dim + i])
        };
        let mut out = Vec::new();
        for (row, &(slot, length)) in rows.iter().enumerate() {
            for head in 0..shape.n_heads {
                let query = &queries[(row * shape.n_heads + head) * dim..][..dim];
                let score = |position| -> f64 {
                    (0..dim)
                        .map(|i| f64::from(query[i]) * at(slot, position, 0, head / group, i))
                        .sum()
                };
                let weights: Vec<f64> = (0..length).map(|p| (score(p) / (dim as f64).sqrt()).exp()).collect();
                let total: f64 = weights.iter().sum();
                out.extend((0..dim).map(|i| {
                    weights
                        .iter()
                        .enumerate()
                        .map(|(p, w)| w * at(slot, p, 1, head / group, i))
                        .sum::<f64>()
                        / total
                }));
            }
        }
        out
    }

    #[test]
    fn rows_attend_to_their_own_positions_and_do_not_depend_on_their_company() {
        for (n_heads, n_kv_heads, dim) in [(9, 3, 64), (4, 4, 8), (8, 1, 20), (2, 1, 3), (10, 2, 32)] {
            let shape = AttentionShape {
                n_heads,
                n_kv_heads,
                dim,
                positions: 70,
            };
            let rows = [(2, 70), (0, 1), (3, 33), (1, 16)];
            let cache = random(4 * 70 * 2 * n_kv_heads * dim, 5);
            let halves: Vec<bf16> = cache.iter().map(|v| bf16::from_f32(*v)).collect();
            let widened: Vec<f32> = halves.iter().map(|v| v.to_f32()).collect();
            let queries: Vec<f32> = random(rows.len() * n_heads * dim, 6).iter().map(|q| q * 4.0).collect();
            for features in available() {
                let run = |cells: Matrix<'_>, queries: &[f32], rows: &[(usize, usize)], threads: usize| {
                    let mut out = vec![f32::NAN; queries.len()];
                    attend(features, cells, &shape, rows, queries, &mut out, threads).unwrap();
                    out
                };
                let full = run(Matrix::F32(&cache), &queries, &rows, 1);
                let half = run(Matrix::Bf16(&halves), &queries, &rows, 2);
                for (got, cells) in [(&full, &cache), (&half, &widened)] {
                    for (got, right) in got.iter().zip(right(cells, &queries, &shape, &rows)) {
                        assert!(
                            (f64::from(*got) - right).abs() < 2e-6,
                            "{features:?}: {got} for {right}"
                        );
                    }
                }
                assert_eq!(full, run(Matrix::F32(&cache), &queries, &rows, 3));
                let size = n_heads * dim;
                for (i, row) in rows.iter().enumerate() {
                    let alone = run(Matrix::F32(&cache), &queries[i * size..][..size], &[*row], 1);
                    assert_eq!(alone, full[i * size..][..size]);
                }
            }
        }
    }

    #[test]
    fn rows_outside_the_cache_are_refused() {
        let features = available()[0];
        let shape = AttentionShape {
            n_heads: 2,
            n_kv_heads: 1,
            dim: 4,
            positions: 3,
        };
        let cache = vec![0.0; 2 * 3 * 2 * 4];
        let refused = |rows: &[(usize, usize)], n: usize| {
            let queries = vec![0.0; n];
            attend(
                features,
                Matrix::F32(&cache),
                &shape,
                rows,
                &queries,
                &mut vec![0.0; n],
                1,
            ) == Err(WrongSizes)
        };
        assert!(!refused(&[(1, 3)], 8));
        assert!(!refused(&[], 0));
        assert!(refused(&[(2, 3)], 8));
        assert!(refused(&[(usize::MAX, 3)], 8));
        assert!(refused(&[(1, 4)], 8));
        assert!(refused(&[(1, 0)], 8));
        assert!(refused(&[(1, 3)], 9));
    }
}
