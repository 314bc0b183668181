//! What decoding spends its time on, at the speed that a CPU's memory allows: `x W^T` for a few rows of `x`,
//! attention of single tokens, and the normalisation between them.
//!
//! Decoding a token reads every weight for a handful of rows. Libraries of linear algebra pack or transpose a matrix
//! for each product, which pays with many rows and costs more than the arithmetic with few. Here the matrix is read
//! once, in the order it lies in, for all rows, and what comes next is asked for ahead of time.
//!
//! A crate of its own, so that it is optimised in debug builds too: the rest of such a build passes arguments on, this
//! is the inner loop.

mod attention;
mod lanes;
mod norm;
mod team;
mod tiles;

use std::cell::RefCell;
use std::sync::atomic::{AtomicUsize, Ordering};

use half::bf16;

use attention::Attention;
pub use norm::rms_norm;
use team::Team;
pub use tiles::Features;
use tiles::{BLOCK, Element, Product};

/// A part of the work that a thread takes at once, in elements of the matrix.
const PART: usize = 1 << 16;

thread_local! {
    /// The threads that help this one, and how many threads that makes. They end with it.
    static TEAM: RefCell<Option<(usize, Team)>> = const { RefCell::new(None) };
}

/// The elements of a matrix.
#[derive(Debug, Clone, Copy)]
pub enum Matrix<'a> {
    /// Single precision.
    F32(&'a [f32]),
    /// The upper half of single precision; widened exactly before it is multiplied.
    Bf16(&'a [bf16]),
}

impl Matrix<'_> {
    fn len(&self) -> usize {
        match self {
            Self::F32(elements) => elements.len(),
            Self::Bf16(elements) => elements.len(),
        }
    }
}

/// The sizes of an operation do not fit together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WrongSizes;

impl std::fmt::Display for WrongSizes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the lengths of matrix, vectors and results are not those of one operation")
    }
}

impl std::error::Error for WrongSizes {}

/// Multiplies `matrix` `[out, in]` with each of the `vectors` `[rows, in]` and writes `results` `[rows, out]`, all of
/// them row by row, with up to `threads` threads of which this one is the first.
///
/// Sums are taken in f32. A row of the results has the same bits whatever the other rows are, with any number of
/// threads.
///
/// # Errors
/// [`WrongSizes`] if the lengths are not those of one product.
pub fn product(
    features: Features,
    matrix: Matrix<'_>,
    vectors: &[f32],
    results: &mut [f32],
    n_in: usize,
    threads: usize,
) -> Result<(), WrongSizes> {
    if n_in == 0 || !matrix.len().is_multiple_of(n_in) || !vectors.len().is_multiple_of(n_in) {
        return Err(WrongSizes);
    }
    let (n_out, n_rows) = (matrix.len() / n_in, vectors.len() / n_in);
    if n_rows.checked_mul(n_out) != Some(results.len()) {
        return Err(WrongSizes);
    }
    if n_rows == 0 || n_out == 0 {
        return Ok(());
    }
    match matrix {
        Matrix::F32(elements) => multiply(features, elements, vectors, results, n_in, threads),
        Matrix::Bf16(elements) => multiply(features, elements, vectors, results, n_in, threads),
    }
    Ok(())
}

/// Runs a product whose sizes fit.
fn multiply<W: Element>(
    features: Features,
    elements: &[W],
    vectors: &[f32],
    results: &mut [f32],
    n_in: usize,
    threads: usize,
) {
    let n_out = elements.len() / n_in;
    let product = Product {
        matrix: elements.as_ptr(),
        vectors: vectors.as_ptr(),
        results: results.as_mut_ptr(),
        n_in,
        n_out,
        n_rows: vectors.len() / n_in,
    };
    let columns = (PART / n_in).next_multiple_of(BLOCK).max(BLOCK);
    share_out(n_out.div_ceil(columns), threads, &|part| {
        let from = part * columns;
        // SAFETY: the lengths were checked and outlive this call, each part is taken once, and `Features` exist only for
        // what this processor has.
        #[allow(unsafe_code, reason = "the tiles work on pointers")]
        unsafe {
            product.columns(features, from, (from + columns).min(n_out));
        }
    });
}

/// The shape of a cache `[slots, positions, 2, kv heads, dim]`, keys before values, and of what looks at it.
#[derive(Debug, Clone, Copy)]
pub struct AttentionShape {
    /// Query heads; a multiple of the key heads, neighbours share one.
    pub n_heads: usize,
    /// Key heads.
    pub n_kv_heads: usize,
    /// Elements of a head.
    pub dim: usize,
    /// Positions of a slot.
    pub positions: usize,
}

/// Attention of one new token for each of the `rows`, which name a slot of the `cache` and how many of its first
/// positions to look at, at least one. `queries` and `results` are `[rows, heads, dim]`; scores are scaled by
/// 1/sqrt(dim). Nothing of the cache but those positions is read.
///
/// Sums are taken in f32. A row of the results has the same bits whatever the other rows are, with any number of
/// threads.
///
/// # Errors
/// [`WrongSizes`] if the lengths do not fit or a row is outside the cache.
pub fn attend(
    features: Features,
    cache: Matrix<'_>,
    shape: &AttentionShape,
    rows: &[(usize, usize)],
    queries: &[f32],
    results: &mut [f32],
    threads: usize,
) -> Result<(), WrongSizes> {
    let &AttentionShape {
        n_heads,
        n_kv_heads,
        dim,
        positions,
    } = shape;
    let of_slot = [positions, 2, n_kv_heads, dim]
        .into_iter()
        .try_fold(1, usize::checked_mul);
    let of_row = n_heads.checked_mul(dim);
    let (Some(of_slot @ 1..), Some(of_row @ 1..)) = (of_slot, of_row) else {
        return Err(WrongSizes);
    };
    let n_slots = cache.len() / of_slot;
    let fits = n_heads.is_multiple_of(n_kv_heads)
        && cache.len().is_multiple_of(of_slot)
        && rows.len().checked_mul(of_row) == Some(queries.len())
        && queries.len() == results.len()
        && rows
            .iter()
            .all(|&(slot, length)| slot < n_slots && (1..=positions).contains(&length));
    if !fits {
        return Err(WrongSizes);
    }
    match cache {
        Matrix::F32(cells) => look(features, cells, shape, rows, queries, results, threads),
        Matrix::Bf16(cells) => look(features, cells, shape, rows, queries, results, threads),
    }
    Ok(())
}

/// Runs attention whose sizes fit.
fn look<W: Element>(
    features: Features,
    cells: &[W],
    shape: &AttentionShape,
    rows: &[(usize, usize)],
    queries: &[f32],
    results: &mut [f32],
    threads: usize,
) {
    let attention = Attention {
        cache: cells.as_ptr(),
        queries: queries.as_ptr(),
        results: results.as_mut_ptr(),
        rows,
        positions: shape.positions,
        n_heads: shape.n_heads,
        n_kv_heads: shape.n_kv_heads,
        dim: shape.dim,
        scale: 1.0 / (shape.dim as f32).sqrt(),
    };
    let looked_at: usize =
        attention.rows.iter().map(|(_, length)| length).sum::<usize>() * attention.n_kv_heads * attention.dim;
    // A piece this short is over before another thread has seen it.
    let threads = if looked_at < PART / 8 { 1 } else { threads };
    share_out(attention.n_parts(), threads, &|part| {
        // SAFETY: the lengths were checked and outlive this call, each part is taken once, and `Features` exist only for
        // what this processor has.
        #[allow(unsafe_code, reason = "vector instructions work on pointers")]
        unsafe {
            attention.compute(features, part);
        }
    });
}

/// Does parts `0..parts`, each once. Threads take them as they get to them: one that starts late or shares its core does
/// less.
fn share_out(parts: usize, threads: usize, part: &(dyn Fn(usize) + Sync)) {
    let next = AtomicUsize::new(0);
    let work = || {
        while let i = next.fetch_add(1, Ordering::Relaxed)
            && i < parts
        {
            part(i);
        }
    };
    if threads <= 1 || parts <= 1 {
        return work();
    }
    TEAM.with_borrow_mut(|team| {
        let (_, team) = match team {
            Some(there) if there.0 == threads => there,
            other => other.insert((threads, Team::new(threads - 1))),
        };
        team.run(&work);
    });
}
