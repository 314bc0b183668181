//! Which corrections are unbiased, by exact enumeration: a tabular policy over four tokens and two positions, every one
//! of its sixteen sequences summed. There is no sampling noise, so these are proofs to rounding.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failed test may panic"
)]

use tch::{Device, Kind, Tensor};

use super::centering::{RatioWeight, centering_term};
use super::{Correction, KlEstimator, Surrogate, tensor};
use crate::train::testing::normal;

const V: i64 = 4;
const CPU: (Kind, Device) = (Kind::Double, Device::Cpu);

struct World {
    policy: Tensor,
    sampler: Tensor,
    sequences: Tensor,
    reward: Tensor,
}

impl World {
    /// `noise` is the distance of the sampler's logits from the policy's.
    fn new(seed: u64, noise: f64, constant_reward: bool) -> Self {
        let policy = normal(3 * seed, &[2, V], Kind::Double);
        let sampler = &policy + normal(3 * seed + 1, &[2, V], Kind::Double) * noise;
        let sequences: Vec<i64> = (0..V * V).flat_map(|i| [i / V, i % V]).collect();
        let reward = if constant_reward {
            Tensor::ones([V * V], CPU)
        } else {
            normal(3 * seed + 2, &[V * V], Kind::Double)
        };
        Self {
            policy,
            sampler,
            sequences: Tensor::from_slice(&sequences).reshape([V * V, 2]),
            reward,
        }
    }

    fn log_probs(&self, logits: &Tensor) -> Tensor {
        let rows = logits.unsqueeze(0).expand([V * V, 2, V], false);
        tensor::token_log_probs(&rows, &self.sequences, 1.0).unwrap()
    }

    /// Probability of each sequence under the sampler.
    fn weights(&self) -> Tensor {
        self.log_probs(&self.sampler)
            .sum_dim_intlist(&[-1i64][..], false, Kind::Double)
            .exp()
    }

    /// −∇ E_p[R], the gradient every estimator is after.
    fn truth(&self) -> Tensor {
        let logits = self.policy.detach().copy().set_requires_grad(true);
        let p = self
            .log_probs(&logits)
            .sum_dim_intlist(&[-1i64][..], false, Kind::Double)
            .exp();
        (-(p * &self.reward).sum(Kind::Double)).backward();
        logits.grad()
    }

    /// E_q of the gradient of a token loss, with no baseline.
    fn expected(&self, loss: &dyn Fn(&Tensor, &Tensor, &Tensor, &Tensor) -> Tensor) -> Tensor {
        let logits = self.policy.detach().copy().set_requires_grad(true);
        let current = self.log_probs(&logits);
        let old = self.log_probs(&self.sampler);
        let mask = current.ones_like().detach();
        let advantage = self.reward.unsqueeze(-1).expand_as(&mask);
        let per_sequence = loss(&current, &old, &advantage, &mask).sum_dim_intlist(&[-1i64][..], false, Kind::Double);
        (per_sequence * self.weights()).sum(Kind::Double).backward();
        logits.grad()
    }
}

fn family(surrogate: Surrogate) -> impl Fn(&Tensor, &Tensor, &Tensor, &Tensor) -> Tensor {
    move |current, old, advantage, mask| surrogate.token_loss(current, old, advantage, mask).unwrap().loss
}

fn corrected(correction: Correction) -> impl Fn(&Tensor, &Tensor, &Tensor, &Tensor) -> Tensor {
    move |current, old, advantage, mask| {
        let w = correction.weights(current, old, mask).unwrap().unwrap();
        Surrogate::Reinforce
            .token_loss(current, old, advantage, mask)
            .unwrap()
            .loss
            * w
    }
}

fn size(t: &Tensor) -> f64 {
    t.norm().double_value(&[])
}

#[test]
fn only_the_uncapped_sequence_weight_is_unbiased() {
    for seed in 0..20 {
        for noise in [0.1, 0.5, 1.0] {
            let world = World::new(seed, noise, false);
            let truth = world.truth();
            let error = |c| size(&(world.expected(&corrected(c)) - &truth)) / size(&truth);
            assert!(error(Correction::Sequence { high: None }) < 1e-12);
            assert!(
                error(Correction::Token { low: 0.0, high: 1e9 }) > 1e-4,
                "seed {seed} noise {noise}"
            );
        }
    }
}

#[test]
fn an_untruncated_token_weight_never_drifts_and_a_bounded_one_does() {
    let mut bounded = 0.0;
    for seed in 0..20 {
        let world = World::new(seed, 0.5, true);
        let drift = |loss: &dyn Fn(&Tensor, &Tensor, &Tensor, &Tensor) -> Tensor| size(&world.expected(loss));
        assert!(drift(&family(Surrogate::ImportanceSampling)) < 1e-14);
        assert!(drift(&corrected(Correction::Sequence { high: None })) < 1e-14);
        bounded += drift(&family(Surrogate::Dis { low: 0.3, high: 5.0 }));
        assert!(drift(&family(Surrogate::Reinforce)) > 1e-3);
    }
    assert!(bounded / 20.0 > 0.05, "mean drift {}", bounded / 20.0);
}

/// The loss of SAO with its centring term over the sampler's `k` most likely tokens.
fn centred(world: &World, k: i64) -> Tensor {
    let logits = world.policy.detach().copy().set_requires_grad(true);
    let current = world.log_probs(&logits);
    let old = world.log_probs(&world.sampler);
    let mask = current.ones_like().detach();
    let dis = Surrogate::Dis { low: 0.3, high: 5.0 };
    let loss = dis
        .token_loss(&current, &old, &world.reward.unsqueeze(-1).expand_as(&mask), &mask)
        .unwrap()
        .loss;
    let head = world.sampler.topk(k, -1, true, true).1;
    let p = logits.log_softmax(-1, Kind::Double).gather(-1, &head, false);
    let q = world.sampler.log_softmax(-1, Kind::Double).gather(-1, &head, false);
    let weight = RatioWeight::Masked { lower: 0.7, upper: 6.0 };
    let term = centering_term(&p, &q, &Tensor::ones([2], CPU), weight, 1e-6).unwrap();
    let total = (loss.sum_dim_intlist(&[-1i64][..], false, Kind::Double) + term.sum(Kind::Double)) * world.weights();
    total.sum(Kind::Double).backward();
    logits.grad()
}

#[test]
fn centring_removes_the_drift_of_the_hard_mask() {
    let (mut one, mut two) = (0.0, 0.0);
    for seed in 0..20 {
        let world = World::new(seed, 0.5, true);
        // With all tokens but one in the head the correction is exact.
        assert!(size(&centred(&world, 3)) < 1e-14 && size(&centred(&world, 4)) < 1e-14);
        one += size(&centred(&world, 1));
        two += size(&centred(&world, 2));
    }
    let plain: f64 = (0..20)
        .map(|s| size(&World::new(s, 0.5, true).expected(&family(Surrogate::Dis { low: 0.3, high: 5.0 }))))
        .sum();
    assert!(two < one && one < plain, "{two} {one} {plain}");
}

#[test]
fn on_policy_every_family_has_the_same_gradient() {
    let world = World::new(3, 0.0, false);
    let reference = world.expected(&family(Surrogate::Reinforce));
    assert!(size(&(&reference - world.truth())) < 1e-14);
    for surrogate in [
        Surrogate::ImportanceSampling,
        Surrogate::Ppo {
            low: 0.2,
            high: 0.28,
            dual_clip: Some(3.0),
        },
        Surrogate::Cispo { low: 1.0, high: 4.0 },
        Surrogate::Dis { low: 0.3, high: 5.0 },
    ] {
        let gradient = world.expected(&family(surrogate));
        assert!(size(&(gradient - &reference)) < 1e-14, "{surrogate:?}");
    }
}

#[test]
fn the_mean_gradient_of_the_kl_loss_is_that_of_the_divergence() {
    // By enumeration over three tokens: p = softmax(z), every token weighed by its probability.
    let logits = Tensor::from_slice(&[0.6f64.ln(), 0.3f64.ln(), 0.1f64.ln()]).set_requires_grad(true);
    let reference = Tensor::from_slice(&[0.2f64.ln(), 0.3f64.ln(), 0.5f64.ln()]).reshape([1, 3]);
    let mask = Tensor::ones([1, 3], CPU);
    let mean_gradient = |of: &dyn Fn(&Tensor) -> Tensor| {
        let current = logits.log_softmax(-1, Kind::Double).reshape([1, 3]);
        let mean = (of(&current) * current.exp().detach()).sum(Kind::Double);
        let gradient = Tensor::run_backward(&[mean], &[&logits], false, false).remove(0);
        Vec::<f64>::try_from(gradient).unwrap()
    };
    let right = [0.360_129, -0.149_157, -0.210_972];
    for estimator in [KlEstimator::K1, KlEstimator::K2, KlEstimator::K3] {
        let got = mean_gradient(&|current| estimator.straight_through(current, &reference, &mask).unwrap());
        for (got, want) in got.iter().zip(right) {
            assert!((got - want).abs() < 1e-3, "{estimator:?}: {got} {want}");
        }
    }
    // Without it k3's is p - ref, the gradient of KL(ref, p).
    let plain = mean_gradient(&|current| KlEstimator::K3.per_token(current, &reference, &mask).unwrap());
    for (got, want) in plain.iter().zip([0.4, 0.0, -0.4]) {
        assert!((got - want).abs() < 1e-9, "{got} {want}");
    }
}
