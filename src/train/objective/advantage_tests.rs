//! Golden values (computed by the formulas in f64 and, where PyTorch has them, by PyTorch) and identities.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failed test may panic"
)]

use proptest::prelude::*;

use super::*;

#[track_caller]
fn close(got: &[f64], want: &[f64], tolerance: f64) {
    assert_eq!(got.len(), want.len(), "{got:?} vs {want:?}");
    for (g, w) in got.iter().zip(want) {
        assert!((g - w).abs() <= tolerance * w.abs().max(1.0), "{got:?} vs {want:?}");
    }
}

#[test]
fn entropic_golden() {
    let a = |r: &[f64]| entropic(r).1;
    close(&a(&[0.0, 0.0, 1.0, 1.0]), &[-1.0, -1.0, 2.0, 2.0], 1e-9);
    close(
        &a(&[0.0, 1.0, 2.0, 3.0]),
        &[-0.9696330791, -0.8666980593, -0.3387005578, 8.865417943],
        5e-10,
    );
    close(
        &a(&[0.0, 0.0, 0.0, 1.0]),
        &[-0.7979625081, -0.7979625081, -0.7979625081, 11.84872917],
        5e-10,
    );
    close(
        &a(&[2.60, 2.61, 2.62, 2.6359]),
        &[-0.9461857902, -0.8396202764, -0.4865477133, 9.985498146],
        5e-10,
    );
    close(
        &a(&[0.0, 0.0, 2.5, 2.6]),
        &[-0.9983138098, -0.9983138098, 1.294904485, 2.903835875],
        5e-10,
    );
    close(&a(&[1.0; 4]), &[-1.0e-12; 4], 1e-15);
    assert_eq!(entropic(&[1.0; 4]).0, ENTROPIC_BETA_CAP);
    // Two distinct rewards explode: the floor is the only bound. Recipes must ask for three or more.
    close(&a(&[0.0, 1.0]), &[-1.0, 1.0e12], 1e-3);
    let (beta, _) = entropic(&[0.0, 1.0, 2.0, 3.0]);
    assert!((beta - 1.4458592238).abs() < 1e-9, "{beta}");
    // More than half at the maximum: β stops at the cap.
    close(&a(&[0.0, 1.0, 1.0, 1.0]), &[-1.0, 0.5, 0.5, 0.5], 1e-9);
    assert_eq!(entropic(&[7.0]).0, 0.0);
}

#[test]
fn group_golden() {
    close(
        &grpo(&[0.0, 0.0, 1.0, 1.0]),
        &[-0.8660239038, -0.8660239038, 0.8660239038, 0.8660239038],
        1e-10,
    );
    close(
        &grpo(&[1.0, 0.0, 0.0, 0.0]),
        &[1.499997, -0.499999, -0.499999, -0.499999],
        1e-10 + 6e-12,
    );
    close(
        &grpo(&[0.2, 0.5, 0.5, 1.4]),
        &[-0.8660237371, -0.288674579, -0.288674579, 1.443372895],
        3e-10,
    );
    close(
        &mean_centred(&[0.2, 0.5, 0.5, 1.4]),
        &[-0.45, -0.15, -0.15, 0.75],
        1e-12,
    );
    close(&rloo(&[0.2, 0.5, 0.5, 1.4]), &[-0.6, -0.2, -0.2, 1.0], 1e-12);
    let third = 1.0 / 3.0;
    close(&rloo(&[1.0, 0.0, 0.0, 0.0]), &[1.0, -third, -third, -third], 1e-12);
    close(&opo(&[1.0, 0.0], &[3.0, 1.0]), &[0.25, -0.75], 1e-12);
}

#[test]
fn a_group_of_one_has_no_signal() {
    assert!(is_uniform(&[1.0]) && is_uniform(&[]) && is_uniform(&[0.5, 0.5]) && !is_uniform(&[0.0, 0.5]));
    assert_eq!(grpo(&[1.0]), [0.0]);
    assert_eq!(rloo(&[1.0]), [0.0]);
    assert_eq!(grpo(&[0.3, 0.3, 0.3]), [0.0; 3]);
}

#[test]
fn skip_observation_gae_golden() {
    let v = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6];
    let mask = [true, true, false, false, true, true];
    let g = gae(&v, &mask, 1.0, None, 1.0, 1.0);
    close(&g.advantages, &[0.9, 0.8, 0.0, 0.0, 0.5, 0.4], 1e-12);
    close(&g.returns, &[1.0, 1.0, 0.0, 0.0, 1.0, 1.0], 1e-12);
    let lambda = adaptive_lambda(1.5, 6);
    assert!((lambda - 8.0 / 9.0).abs() < 1e-15);
    let g = gae(&v, &mask, 1.0, None, 1.0, lambda);
    close(
        &g.advantages,
        &[0.726611797, 0.7049382716, 0.0, 0.0, 0.4555555556, 0.4],
        1e-10,
    );
    close(
        &g.returns,
        &[0.826611797, 0.9049382716, 0.0, 0.0, 0.9555555556, 1.0],
        1e-10,
    );
    let g = gae(&v, &mask, 1.0, None, 0.9, 0.5);
    close(&g.advantages, &[0.23705, 0.349, 0.0, 0.0, 0.22, 0.4], 1e-12);
    close(&g.returns, &[0.33705, 0.549, 0.0, 0.0, 0.72, 1.0], 1e-12);
}

#[test]
fn the_outcome_lands_on_the_last_action_when_observations_end_the_response() {
    let g = gae(&[0.0; 4], &[true, true, false, false], 2.0, None, 1.0, 1.0);
    assert_eq!(g.advantages, [2.0, 2.0, 0.0, 0.0]);
}

#[test]
fn adaptive_lambda_table() {
    for (length, want) in [
        (0, 0.0),
        (1, 1.0 / 3.0),
        (2, 2.0 / 3.0),
        (10, 0.9333333333),
        (100, 0.9933333333),
    ] {
        assert!((adaptive_lambda(1.5, length) - want).abs() < 1e-10, "{length}");
    }
    assert_eq!(adaptive_lambda(0.5, 1), 0.0);
}

#[test]
fn base_kl_shaping_golden() {
    let shaped = centred_kl_shaping(
        &[0.8, -0.4],
        &[vec![-1.0, -0.5, -2.0], vec![-0.3, -0.9]],
        &[vec![-1.2, -0.4, -2.5], vec![-0.6, -0.8]],
        &[vec![true, true, false], vec![true, true]],
        0.1,
    )
    .unwrap();
    close(&shaped[0], &[0.7875, 0.8175, 0.8], 1e-12);
    close(&shaped[1], &[-0.4225, -0.3825], 1e-12);
    assert!(centred_kl_shaping(&[1.0], &[vec![0.0]], &[vec![0.0]], &[vec![false]], 0.1).is_none());
}

#[test]
fn reinforce_plus_plus_whitens_over_the_batch() {
    let masks = vec![vec![true, true, false], vec![true, false, false]];
    let rows = reinforce_plus_plus(&[1.0, 0.0], &[0.0, 0.0], &masks, None, 0.0, 1.0);
    // Returns 1, 1, 0: mean 2/3, unbiased variance 1/3.
    let s = (1.0_f64 / 3.0 + 1e-8).sqrt();
    close(&rows[0], &[1.0 / 3.0 / s, 1.0 / 3.0 / s, 0.0], 1e-12);
    close(&rows[1], &[-2.0 / 3.0 / s, 0.0, 0.0], 1e-12);
    let kl = vec![vec![0.5, 0.25, 9.0], vec![0.0, 0.0, 0.0]];
    let mut want = vec![vec![1.0 - 0.075, 1.0 - 0.025, 0.0], vec![0.0, 0.0, 0.0]];
    whiten(&mut want, &masks, true);
    let got = reinforce_plus_plus(&[1.0, 0.0], &[0.0, 0.0], &masks, Some(&kl), 0.1, 1.0);
    close(&got[0], &want[0], 1e-12);
}

proptest! {
    #[test]
    fn entropic_ignores_a_shift_and_never_falls_below_minus_one(
        rewards in prop::collection::vec(0.0f64..1.0, 3..12), shift in -5.0f64..5.0,
    ) {
        let (beta, a) = entropic(&rewards);
        prop_assert!(a.iter().all(|x| *x >= -1.0 - 1e-9));
        // Where β ran into rounding, the comparison would test the rounding.
        prop_assume!(beta < 1e3);
        let moved: Vec<f64> = rewards.iter().map(|r| r + shift).collect();
        for (x, y) in a.iter().zip(entropic(&moved).1) {
            prop_assert!((x - y).abs() <= 1e-6 * x.abs().max(1.0), "{x} {y}");
        }
    }

    #[test]
    fn rloo_is_the_scaled_centred_reward_and_sums_to_zero(rewards in prop::collection::vec(-3.0f64..3.0, 2..20)) {
        let a = rloo(&rewards);
        prop_assert!(a.iter().sum::<f64>().abs() < 1e-9);
        for (i, got) in a.iter().enumerate() {
            let others: f64 = rewards.iter().enumerate().filter(|(j, _)| *j != i).map(|(_, r)| r).sum();
            prop_assert!((got - (rewards[i] - others / (rewards.len() - 1) as f64)).abs() < 1e-9);
        }
    }

    #[test]
    fn gae_with_no_critic_and_lambda_one_is_the_outcome(mask in prop::collection::vec(any::<bool>(), 1..30), r in -2.0f64..2.0) {
        let g = gae(&vec![0.0; mask.len()], &mask, r, None, 1.0, 1.0);
        for (a, m) in g.advantages.iter().zip(&mask) {
            prop_assert_eq!(*a, if *m { r } else { 0.0 });
        }
    }
}
