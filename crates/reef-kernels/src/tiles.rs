//! Products of a row-major matrix with a few vectors.
//!
//! Decoding reads every weight once for a handful of rows, so memory sets the limit. The matrix is walked once, four of
//! its rows at a time, and each element is used for every vector while it is at hand. The order of the additions of one
//! element of the result depends on the length of a row alone: a vector gives the same bits alone and among others.

use half::bf16;

use crate::attention::Attention;
use crate::lanes::Lanes;

/// What this processor can do. [`Features::detect`] is the only way to one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Features(Kind);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Vectors of 16 floats.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// Vectors of 8 floats.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(any(test, not(target_arch = "x86_64")))]
    /// Whatever the compiler makes of groups of 8 floats; fast where a fused multiplication needs no extra feature.
    Plain,
}

impl Features {
    /// The best of this processor; `None` where the kernels gain nothing.
    #[cfg(target_arch = "x86_64")]
    #[must_use]
    pub fn detect() -> Option<Self> {
        if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw") {
            Some(Self(Kind::Avx512))
        } else if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            Some(Self(Kind::Avx2))
        } else {
            None
        }
    }

    /// The best of this processor; `None` where the kernels gain nothing.
    #[cfg(not(target_arch = "x86_64"))]
    #[must_use]
    pub fn detect() -> Option<Self> {
        cfg!(target_arch = "aarch64").then_some(Self(Kind::Plain))
    }

    /// Whether this processor multiplies bf16 by itself, as far as can be told.
    #[must_use]
    pub fn multiplies_bf16(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        return is_x86_feature_detected!("avx512bf16");
        #[cfg(not(target_arch = "x86_64"))]
        return true;
    }
}

/// Rows of the matrix that are walked together.
pub(crate) const BLOCK: usize = 4;

const CACHE_LINE: usize = 64;

/// A matrix `[out, in]`, vectors `[rows, in]` and results `[rows, out]`, each row by row without gaps.
pub(crate) struct Product<W> {
    pub(crate) matrix: *const W,
    pub(crate) vectors: *const f32,
    pub(crate) results: *mut f32,
    pub(crate) n_in: usize,
    pub(crate) n_out: usize,
    pub(crate) n_rows: usize,
}

// SAFETY: parts of a product read what nobody writes and write columns of their own.
#[allow(unsafe_code, reason = "raw pointers are shared between the threads of one product")]
unsafe impl<W: Sync> Sync for Product<W> {}

#[allow(unsafe_code, reason = "vector instructions work on pointers")]
impl<W: Element> Product<W> {
    /// Computes columns `from..to` of the results.
    ///
    /// # Safety
    /// The pointers are valid for the sizes given while this runs, no other thread touches these columns, and this
    /// processor has `features`.
    pub(crate) unsafe fn columns(&self, features: Features, from: usize, to: usize) {
        debug_assert!(from <= to && to <= self.n_out);
        // SAFETY: as promised by the caller.
        unsafe {
            match features.0 {
                #[cfg(target_arch = "x86_64")]
                Kind::Avx512 => self.avx512(from, to),
                #[cfg(target_arch = "x86_64")]
                Kind::Avx2 => self.avx2(from, to),
                #[cfg(any(test, not(target_arch = "x86_64")))]
                Kind::Plain => self.walk::<[f32; 8], 2>(from, to),
            }
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn avx512(&self, from: usize, to: usize) {
        // 32 registers: sixteen sums, four vectors of the matrix, one of the input.
        // SAFETY: as promised by the caller of `columns`.
        unsafe { self.walk::<std::arch::x86_64::__m512, 4>(from, to) }
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma")]
    unsafe fn avx2(&self, from: usize, to: usize) {
        // 16 registers: eight sums, four vectors of the matrix, one of the input.
        // SAFETY: as promised by the caller of `columns`.
        unsafe { self.walk::<std::arch::x86_64::__m256, 2>(from, to) }
    }

    #[inline(always)]
    unsafe fn walk<L: Lanes, const AT_ONCE: usize>(&self, from: usize, to: usize) {
        let mut column = from;
        // SAFETY: `column + R <= to` and `row + M <= n_rows` at each call.
        unsafe {
            while column + BLOCK <= to {
                self.rows::<L, BLOCK, AT_ONCE>(column);
                column += BLOCK;
            }
            while column < to {
                self.rows::<L, 1, AT_ONCE>(column);
                column += 1;
            }
        }
    }

    #[inline(always)]
    unsafe fn rows<L: Lanes, const R: usize, const AT_ONCE: usize>(&self, column: usize) {
        // The first tile waits for memory; the others find the rows of the matrix in the cache.
        let mut row = AT_ONCE.min(self.n_rows);
        // SAFETY: as `walk`.
        unsafe {
            match row {
                1 => self.tile::<L, R, 1, true>(column, 0),
                2 if AT_ONCE > 2 => self.tile::<L, R, 2, true>(column, 0),
                3 if AT_ONCE > 3 => self.tile::<L, R, 3, true>(column, 0),
                _ => self.tile::<L, R, AT_ONCE, true>(column, 0),
            }
            while row + AT_ONCE <= self.n_rows {
                self.tile::<L, R, AT_ONCE, false>(column, row);
                row += AT_ONCE;
            }
            match self.n_rows - row {
                0 => {}
                1 => self.tile::<L, R, 1, false>(column, row),
                2 => self.tile::<L, R, 2, false>(column, row),
                _ => self.tile::<L, R, 3, false>(column, row),
            }
        }
    }

    /// `R` columns of `M` rows of the results. `FETCH` asks for the rows of the matrix two tiles ahead: each is too
    /// short for the processor to find the pattern by itself.
    #[allow(
        clippy::needless_range_loop,
        reason = "two arrays are walked in step, by row and by column"
    )]
    #[inline(always)]
    unsafe fn tile<L: Lanes, const R: usize, const M: usize, const FETCH: bool>(&self, column: usize, row: usize) {
        let n = self.n_in;
        // SAFETY: every index below is less than the sizes of the product; a prefetch may name any address.
        unsafe {
            let matrix = self.matrix.add(column * n);
            let vectors = self.vectors.add(row * n);
            let mut sums = [[L::zero(); M]; R];
            let mut i = 0;
            while i + L::N <= n {
                let mut elements = [L::zero(); R];
                for (r, element) in elements.iter_mut().enumerate() {
                    *element = W::load(matrix.add(r * n + i));
                    if FETCH && (i * size_of::<W>()).is_multiple_of(CACHE_LINE) {
                        L::prefetch(matrix.wrapping_add((r + 2 * R) * n + i).cast());
                    }
                }
                for m in 0..M {
                    let vector = L::load(vectors.add(m * n + i));
                    for r in 0..R {
                        sums[r][m] = elements[r].mul_add(vector, sums[r][m]);
                    }
                }
                i += L::N;
            }
            for (r, sums) in sums.iter().enumerate() {
                for (m, sum) in sums.iter().enumerate() {
                    let mut total = sum.total();
                    for at in i..n {
                        total += (*matrix.add(r * n + at)).value() * *vectors.add(m * n + at);
                    }
                    *self.results.add((row + m) * self.n_out + column + r) = total;
                }
            }
        }
    }
}

#[allow(unsafe_code, reason = "vector instructions work on pointers")]
impl<W: Element> Attention<'_, W> {
    /// Computes one part.
    ///
    /// # Safety
    /// As [`Attention::part`]; this processor has `features`.
    pub(crate) unsafe fn compute(&self, features: Features, part: usize) {
        // SAFETY: as promised by the caller.
        unsafe {
            match features.0 {
                #[cfg(target_arch = "x86_64")]
                Kind::Avx512 => self.avx512(part),
                #[cfg(target_arch = "x86_64")]
                Kind::Avx2 => self.avx2(part),
                #[cfg(any(test, not(target_arch = "x86_64")))]
                Kind::Plain => self.part::<[f32; 8]>(part),
            }
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn avx512(&self, part: usize) {
        // SAFETY: as promised by the caller of `compute`.
        unsafe { self.part::<std::arch::x86_64::__m512>(part) }
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma")]
    unsafe fn avx2(&self, part: usize) {
        // SAFETY: as promised by the caller of `compute`.
        unsafe { self.part::<std::arch::x86_64::__m256>(part) }
    }
}

/// An element of a matrix.
pub(crate) trait Element: Copy + Sync {
    #[allow(unsafe_code, reason = "vector instructions work on pointers")]
    unsafe fn load<L: Lanes>(at: *const Self) -> L;
    fn value(self) -> f32;
}

#[allow(unsafe_code, reason = "vector instructions work on pointers")]
impl Element for f32 {
    #[inline(always)]
    unsafe fn load<L: Lanes>(at: *const Self) -> L {
        // SAFETY: as promised by the caller.
        unsafe { L::load(at) }
    }

    fn value(self) -> f32 {
        self
    }
}

#[allow(unsafe_code, reason = "vector instructions work on pointers")]
impl Element for bf16 {
    #[inline(always)]
    unsafe fn load<L: Lanes>(at: *const Self) -> L {
        // SAFETY: as promised by the caller.
        unsafe { L::load_half(at) }
    }

    fn value(self) -> f32 {
        self.to_f32()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    #![allow(clippy::unwrap_used, clippy::print_stderr, reason = "tests")]

    use half::bf16;

    use super::*;
    use crate::{Matrix, WrongSizes, product};

    pub(crate) fn random(n: usize, seed: u32) -> Vec<f32> {
        let mut state = seed;
        (0..n)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 8) as f32 / (1 << 23) as f32 - 1.0
            })
            .collect()
    }

    pub(crate) fn available() -> Vec<Features> {
        let mut out = vec![Features(Kind::Plain)];
        #[cfg(target_arch = "x86_64")]
        match Features::detect() {
            Some(Features(Kind::Avx512)) => out.extend([Features(Kind::Avx512), Features(Kind::Avx2)]),
            Some(Features(Kind::Avx2)) => out.push(Features(Kind::Avx2)),
            _ => eprintln!("vector instructions skipped: this processor has neither AVX-512 nor AVX2"),
        }
        out
    }

    fn run(features: Features, matrix: Matrix<'_>, vectors: &[f32], n_in: usize, threads: usize) -> Vec<f32> {
        let n_out = match matrix {
            Matrix::F32(elements) => elements.len(),
            Matrix::Bf16(elements) => elements.len(),
        } / n_in;
        let mut results = vec![f32::NAN; vectors.len() / n_in * n_out];
        product(features, matrix, vectors, &mut results, n_in, threads).unwrap();
        results
    }

    #[test]
    fn products_of_every_shape_are_right_and_do_not_depend_on_their_company() {
        for features in available() {
            for (n_out, n_in) in [(1, 1), (3, 7), (4, 16), (9, 33), (64, 48), (13, 130)] {
                let matrix = random(n_out * n_in, 1);
                let halves: Vec<bf16> = matrix.iter().map(|v| bf16::from_f32(*v)).collect();
                for n_rows in 1..=9 {
                    let vectors = random(n_rows * n_in, 2);
                    let full = run(features, Matrix::F32(&matrix), &vectors, n_in, 1);
                    let half = run(features, Matrix::Bf16(&halves), &vectors, n_in, 1);
                    for row in 0..n_rows {
                        let vector = &vectors[row * n_in..(row + 1) * n_in];
                        for column in 0..n_out {
                            let exact = |element: &dyn Fn(usize) -> f32| -> f64 {
                                (0..n_in)
                                    .map(|i| f64::from(element(column * n_in + i)) * f64::from(vector[i]))
                                    .sum()
                            };
                            let at = row * n_out + column;
                            let tolerance = 1e-6 * n_in as f64;
                            assert!((f64::from(full[at]) - exact(&|i| matrix[i])).abs() <= tolerance);
                            assert!((f64::from(half[at]) - exact(&|i| halves[i].to_f32())).abs() <= tolerance);
                        }
                        let alone = run(features, Matrix::F32(&matrix), vector, n_in, 1);
                        assert_eq!(
                            alone,
                            full[row * n_out..(row + 1) * n_out],
                            "{features:?} {n_out}x{n_in} row {row}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn threads_share_a_product_out_without_changing_a_bit() {
        let (n_out, n_in, n_rows) = (1001, 300, 5);
        let matrix = random(n_out * n_in, 3);
        let vectors = random(n_rows * n_in, 4);
        for features in available() {
            let alone = run(features, Matrix::F32(&matrix), &vectors, n_in, 1);
            for threads in [2, 3, 2, 64] {
                assert_eq!(
                    alone,
                    run(features, Matrix::F32(&matrix), &vectors, n_in, threads),
                    "{threads} threads"
                );
            }
        }
    }

    #[test]
    fn sizes_that_do_not_fit_are_refused() {
        let features = Features(Kind::Plain);
        let refused = |matrix: usize, vectors: usize, results: usize, n_in: usize| {
            let (matrix, vectors) = (vec![0.0; matrix], vec![0.0; vectors]);
            product(
                features,
                Matrix::F32(&matrix),
                &vectors,
                &mut vec![0.0; results],
                n_in,
                2,
            ) == Err(WrongSizes)
        };
        assert!(refused(6, 3, 2, 0));
        assert!(refused(7, 3, 2, 3));
        assert!(refused(6, 4, 2, 3));
        assert!(refused(6, 3, 3, 3));
        assert!(!refused(6, 3, 2, 3));
        assert!(!refused(0, 0, 0, 3));
    }
}
