//! Pseudo-random tensors for tests. libtorch's generator is one for the process, so tests that run beside each other
//! would draw from each other's stream.
#![allow(clippy::unwrap_used, reason = "a failed test may panic")]

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tch::{Kind, Tensor};

/// Standard normal numbers, the same for the same seed.
pub(crate) fn normal(seed: u64, shape: &[i64], kind: Kind) -> Tensor {
    let mut random = StdRng::seed_from_u64(seed);
    let n: i64 = shape.iter().product();
    let values: Vec<f64> = (0..n)
        .map(|_| {
            let (u, v): (f64, f64) = (random.random(), random.random());
            (-2.0 * (1.0 - u).ln()).sqrt() * (std::f64::consts::TAU * v).cos()
        })
        .collect();
    Tensor::from_slice(&values).reshape(shape).to_kind(kind)
}

#[test]
fn they_are_normal_and_repeatable() {
    let a = normal(1, &[10_000], Kind::Double);
    assert!(a.mean(Kind::Double).double_value(&[]).abs() < 0.05);
    assert!((a.std(true).double_value(&[]) - 1.0).abs() < 0.05);
    assert_eq!(a, normal(1, &[10_000], Kind::Double));
    assert_ne!(a, normal(2, &[10_000], Kind::Double));
}
