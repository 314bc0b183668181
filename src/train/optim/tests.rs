//! The optimizer against PyTorch's (fixture), against its own saved state, and against gradients that are not finite.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failed test may panic"
)]

use tch::{Device, Kind, Tensor};

use super::*;

fn settings() -> OptimizerSettings {
    OptimizerSettings {
        learning_rate: 0.01,
        weight_decay: 0.1,
        max_grad_norm: 1.0,
        ..OptimizerSettings::default()
    }
}

fn parameters(kind: Kind) -> Vec<(String, Tensor)> {
    let make = |name: &str, shape: &[i64]| {
        let n: i64 = shape.iter().product();
        let t = Tensor::arange(n, (Kind::Double, Device::Cpu))
            .sin()
            .reshape(shape)
            .to_kind(kind);
        (name.to_owned(), t.set_requires_grad(true))
    };
    vec![make("a", &[3, 4]), make("b", &[5])]
}

fn backward(parameters: &[(String, Tensor)], round: u64) {
    let mut loss = Tensor::from(0.0f64);
    for (_, p) in parameters {
        loss += (p.to_kind(Kind::Double) - 0.1 * round as f64)
            .pow_tensor_scalar(2)
            .sum(Kind::Double);
    }
    loss.backward();
}

#[test]
fn saved_state_resumes_bit_for_bit() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("optimizer.safetensors");
    let run = |restart_at: Option<u64>| {
        let mut p = parameters(Kind::Float);
        let mut adam = AdamW::new(settings(), &p).unwrap();
        for round in 0..6 {
            if restart_at == Some(round) {
                adam.save(&path).unwrap();
                p = p
                    .iter()
                    .map(|(n, t)| (n.clone(), t.detach().copy().set_requires_grad(true)))
                    .collect();
                adam = AdamW::new(settings(), &p).unwrap();
                adam.restore(&path).unwrap();
                assert_eq!(adam.steps(), round);
            }
            backward(&p, round);
            assert!(adam.step().unwrap().applied);
        }
        p.iter()
            .flat_map(|(_, t)| Vec::<f32>::try_from(t.flatten(0, -1)).unwrap())
            .collect::<Vec<_>>()
    };
    let whole: Vec<u32> = run(None).iter().map(|x| x.to_bits()).collect();
    let resumed: Vec<u32> = run(Some(3)).iter().map(|x| x.to_bits()).collect();
    assert_eq!(whole, resumed);
}

#[test]
fn a_gradient_that_is_not_finite_changes_nothing() {
    for poison in [f64::NAN, f64::INFINITY] {
        let p = parameters(Kind::Float);
        let mut adam = AdamW::new(settings(), &p).unwrap();
        backward(&p, 1);
        adam.step().unwrap();
        let before: Vec<Vec<f32>> = p
            .iter()
            .map(|(_, t)| Vec::try_from(t.flatten(0, -1)).unwrap())
            .collect();
        (&p[1].1 * poison).sum(Kind::Float).backward();
        let update = adam.step().unwrap();
        assert!(!update.applied && !update.grad_norm.is_finite());
        assert_eq!(adam.steps(), 1);
        for ((_, t), old) in p.iter().zip(&before) {
            assert_eq!(&Vec::<f32>::try_from(t.flatten(0, -1)).unwrap(), old);
        }
        // And the poison is gone: the next update is an ordinary one.
        backward(&p, 2);
        assert!(adam.step().unwrap().applied);
    }
}

#[test]
fn state_of_other_parameters_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("optimizer.safetensors");
    AdamW::new(settings(), &parameters(Kind::Float)[..1])
        .unwrap()
        .save(&path)
        .unwrap();
    let mut whole = AdamW::new(settings(), &parameters(Kind::Float)).unwrap();
    let error = whole.restore(&path).unwrap_err();
    assert!(error.to_string().contains("restoring optimizer state"), "{error}");
    let mut wide = AdamW::new(settings(), &parameters(Kind::Double)[..1]).unwrap();
    assert!(wide.restore(&path).is_err());
    std::fs::write(&path, b"not tensors").unwrap();
    assert!(whole.restore(&path).is_err());
}

#[test]
fn clipping_bounds_the_global_norm() {
    let mut g = vec![Tensor::from_slice(&[3.0f64]), Tensor::from_slice(&[4.0f64])];
    assert_eq!(clip_by_global_norm(&mut g, 0.0).unwrap(), 5.0);
    assert_eq!(global_norm(&g).unwrap(), 5.0);
    assert_eq!(clip_by_global_norm(&mut g, 2.5).unwrap(), 5.0);
    assert!((global_norm(&g).unwrap() - 2.5).abs() < 1e-6);
    // Squares that overflow f32 do not make the norm infinite.
    let big = vec![Tensor::from_slice(&[1e30f32])];
    assert!((global_norm(&big).unwrap() / 1e30 - 1.0).abs() < 1e-6);
}

#[test]
fn the_decay_is_decoupled() {
    let p = vec![("a".to_owned(), Tensor::from_slice(&[2.0f64]).set_requires_grad(true))];
    let mut adam = AdamW::new(settings(), &p).unwrap();
    // No gradient at all: only the decay moves the parameter.
    assert_eq!(adam.step().unwrap().grad_norm, 0.0);
    assert!((p[0].1.double_value(&[0]) - 2.0 * (1.0 - 0.01 * 0.1)).abs() < 1e-15);
}
