use proptest::prelude::*;

use super::*;

fn greedy() -> Sampling {
    Sampling {
        temperature: 0.0,
        ..Sampling::default()
    }
}

fn take(logits: &[f32], sampling: &Sampling, step: u64) -> Sampled {
    let history = History::new(sampling, &[]);
    sample(&mut logits.to_vec(), sampling, &history, step, 0, None).unwrap()
}

/// How often each token comes in `n` draws.
fn shares(logits: &[f32], sampling: &Sampling, n: u64) -> Vec<f64> {
    let mut counts = vec![0.0; logits.len()];
    for step in 0..n {
        counts[take(logits, sampling, step).token as usize] += 1.0 / n as f64;
    }
    counts
}

fn softmax(logits: &[f32], temperature: f32) -> Vec<f64> {
    let weights: Vec<f64> = logits.iter().map(|l| f64::from(l / temperature).exp()).collect();
    let total: f64 = weights.iter().sum();
    weights.iter().map(|w| w / total).collect()
}

#[test]
fn the_recorded_logprob_is_of_the_full_vocabulary_after_temperature() {
    let logits = [1.0, 3.0, 2.0, -1.0];
    let sampling = Sampling {
        temperature: 0.5,
        top_k: 1,
        presence_penalty: 2.0,
        logit_bias: vec![(1, 5.0)],
        ..Sampling::default()
    };
    let sampled = take(&logits, &sampling, 0);
    assert_eq!(sampled.token, 1);
    let expected = softmax(&logits, 0.5)[1].ln();
    assert!((f64::from(sampled.logprob) - expected).abs() < 1e-6, "{sampled:?}");
    let sampled = take(&logits, &greedy(), 0);
    let expected = softmax(&logits, 1.0)[1].ln();
    assert!((f64::from(sampled.logprob) - expected).abs() < 1e-6, "{sampled:?}");
}

#[test]
fn draws_follow_the_distribution() {
    let logits = [0.0, 1.0, 2.0, -30.0];
    for temperature in [0.7, 1.0, 1.5] {
        let sampling = Sampling {
            temperature,
            seed: 7,
            ..Sampling::default()
        };
        for (share, p) in shares(&logits, &sampling, 20_000)
            .iter()
            .zip(softmax(&logits, temperature))
        {
            assert!((share - p).abs() < 0.015, "{share} {p} at {temperature}");
        }
    }
}

#[test]
fn filters_keep_what_they_say() {
    // Probabilities 0.5, 0.25, 0.125, 0.0625, 0.0625.
    let logits: Vec<f32> = [8.0_f32, 4.0, 2.0, 1.0, 1.0].iter().map(|w| w.ln()).collect();
    let kept = |sampling: Sampling| -> Vec<usize> {
        let shares = shares(&logits, &sampling, 4_000);
        (0..5).filter(|i| shares[*i] > 0.0).collect()
    };
    let base = Sampling::default();
    assert_eq!(
        kept(Sampling {
            top_k: 2,
            ..base.clone()
        }),
        [0, 1]
    );
    assert_eq!(
        kept(Sampling {
            top_p: 0.5,
            ..base.clone()
        }),
        [0]
    );
    assert_eq!(
        kept(Sampling {
            top_p: 0.51,
            ..base.clone()
        }),
        [0, 1]
    );
    assert_eq!(
        kept(Sampling {
            top_p: 0.0,
            ..base.clone()
        }),
        [0]
    );
    assert_eq!(
        kept(Sampling {
            min_p: 0.25,
            ..base.clone()
        }),
        [0, 1, 2]
    );
    assert_eq!(
        kept(Sampling {
            min_p: 1.0,
            ..base.clone()
        }),
        [0]
    );
    assert_eq!(
        kept(Sampling {
            top_k: 99,
            ..base.clone()
        }),
        [0, 1, 2, 3, 4]
    );
    // Top-k leaves 2/3 and 1/3; the nucleus is of those.
    assert_eq!(
        kept(Sampling {
            top_k: 2,
            top_p: 0.6,
            ..base
        }),
        [0]
    );
}

#[test]
fn penalties_and_biases_move_tokens() {
    let logits = [2.0, 1.9, -1.0];
    let with = |sampling: &Sampling, answer: &[u32], prompt: &[u32]| {
        let mut history = History::new(sampling, prompt);
        answer.iter().for_each(|t| history.push(*t));
        sample(&mut logits.to_vec(), sampling, &history, 0, 0, None)
            .unwrap()
            .token
    };
    let presence = Sampling {
        presence_penalty: 0.2,
        ..greedy()
    };
    assert_eq!(with(&presence, &[0], &[]), 1);
    assert_eq!(with(&presence, &[], &[0]), 0, "the prompt does not count");
    let frequency = Sampling {
        frequency_penalty: 0.06,
        ..greedy()
    };
    assert_eq!(with(&frequency, &[0], &[]), 0);
    assert_eq!(with(&frequency, &[0, 0], &[]), 1);
    let repetition = Sampling {
        repetition_penalty: 1.2,
        ..greedy()
    };
    assert_eq!(with(&repetition, &[], &[0]), 1, "the prompt counts");
    let bias = Sampling {
        logit_bias: vec![(2, 100.0), (77, 1.0)],
        ..greedy()
    };
    assert_eq!(with(&bias, &[], &[]), 2);
}

struct Only(u32);

impl Allowed for Only {
    fn allows(&self, token: u32) -> bool {
        token == self.0
    }
}

#[test]
fn only_allowed_tokens_come_and_keep_their_logprob() {
    let logits = [5.0, 1.0, 0.0];
    for sampling in [greedy(), Sampling::default()] {
        let history = History::new(&sampling, &[]);
        let sampled = sample(&mut logits.to_vec(), &sampling, &history, 3, 2, Some(&Only(2))).unwrap();
        assert_eq!(sampled.token, 2);
        assert!((f64::from(sampled.logprob) - softmax(&logits, 1.0)[2].ln()).abs() < 1e-6);
        assert_eq!(sampled.top.iter().map(|t| t.id).collect::<Vec<_>>(), [0, 1]);
        assert!(sample(&mut logits.to_vec(), &sampling, &history, 3, 0, Some(&Only(9))).is_none());
    }
}

#[test]
fn numbers_that_are_none_give_no_token() {
    for logits in [
        vec![f32::NAN, 1.0],
        vec![f32::INFINITY, 1.0],
        vec![f32::NEG_INFINITY; 2],
        vec![],
    ] {
        let sampling = Sampling::default();
        let history = History::new(&sampling, &[]);
        assert_eq!(
            sample(&mut logits.clone(), &sampling, &history, 0, 3, None),
            None,
            "{logits:?}"
        );
    }
}

#[test]
fn choices_of_one_seed_differ_and_the_first_is_the_seed_itself() {
    assert_eq!(seed_of_choice(5, 0), 5);
    assert_ne!(seed_of_choice(5, 1), seed_of_choice(5, 2));
    assert_ne!(unit(1, 0), unit(2, 0));
}

proptest! {
    #[test]
    fn sampling_is_a_function_of_its_arguments(
        logits in proptest::collection::vec(-20.0_f32..20.0, 1..60),
        seed in any::<u64>(), step in 0_u64..1000,
        temperature in 0.0_f32..2.0, top_p in 0.0_f32..=1.0, top_k in 0_usize..10, min_p in 0.0_f32..=1.0,
        n_top in 0_usize..5,
    ) {
        let sampling = Sampling { temperature, top_p, top_k, min_p, seed, ..Sampling::default() };
        let history = History::new(&sampling, &[]);
        let once = sample(&mut logits.clone(), &sampling, &history, step, n_top, None).unwrap();
        let again = sample(&mut logits.clone(), &sampling, &history, step, n_top, None).unwrap();
        prop_assert_eq!(&once, &again);
        prop_assert!((once.token as usize) < logits.len());
        prop_assert!(once.logprob <= 1e-4 && once.logprob.is_finite());
        prop_assert_eq!(once.top.len(), n_top.min(logits.len()));
        prop_assert!(once.top.windows(2).all(|w| w[0].logprob >= w[1].logprob));
        // A filter never drops the most likely token, so greedy and top-k 1 agree.
        let one = Sampling { top_k: 1, temperature: 1.0, ..sampling };
        prop_assert_eq!(take(&logits, &one, step).token, take(&logits, &greedy(), step).token);
    }

    #[test]
    fn the_top_p_shortcut_drops_nothing_that_belongs(
        logits in proptest::collection::vec(-6.0_f32..6.0, 2..80), top_p in 0.01_f32..0.999,
    ) {
        let sampling = Sampling { top_p, ..Sampling::default() };
        let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let kept: Vec<u32> = filter(&logits, most, &sampling).into_iter().map(|(t, _)| t).collect();
        let p = softmax(&logits, 1.0);
        let mut order: Vec<u32> = (0..u32::try_from(logits.len()).unwrap()).collect();
        order.sort_by(|a, b| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b)));
        let mut sum = 0.0;
        let mut expected = Vec::new();
        for token in order {
            expected.push(token);
            sum += p[token as usize];
            if sum >= f64::from(top_p) + 1e-6 { break; }
        }
        // Rounding may move the border by one token.
        prop_assert!(kept.len().abs_diff(expected.len()) <= 1, "{} {}", kept.len(), expected.len());
        let n = kept.len().min(expected.len());
        prop_assert_eq!(&kept[..n], &expected[..n]);
    }
}
