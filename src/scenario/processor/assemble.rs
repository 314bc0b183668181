//! One trajectory from the captured tokens of its turns. Nothing is tokenised again: a later turn's prompt shows how the
//! engine rendered the conversation so far.

use super::Exclusion;
use crate::domain::{LoadSpan, TokenCapture};
use crate::recipe::Recipe;

/// How far a later prompt may differ from the transcript.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Assembly {
    /// Tokens before the latest response that a template may drop.
    pub scaffold_tolerance: usize,
    /// Tokens of the latest turn that may be rendered anew.
    pub realign_threshold: usize,
    /// The tokens must be drawn from the model's own distribution.
    pub plain_sampling: bool,
}

impl Assembly {
    /// The rule of a recipe.
    pub fn of(recipe: &Recipe) -> Self {
        Self {
            scaffold_tolerance: recipe.processor.scaffold_tolerance,
            realign_threshold: recipe.processor.realign_threshold,
            plain_sampling: recipe.wants_plain_sampling(),
        }
    }
}

/// The tokens of one sample. All vectors but `prompt` have one entry for each response token.
#[derive(Debug, Clone, PartialEq)]
pub struct Assembled {
    /// Before the first response.
    pub prompt: Vec<u32>,
    /// The responses, and between them what the environment said.
    pub response: Vec<u32>,
    /// Which of them the policy sampled and may learn from.
    pub loss_mask: Vec<bool>,
    /// Their log-probabilities; 0 where not sampled.
    pub log_probs: Vec<f32>,
    /// Which load sampled which of them.
    pub spans: Vec<LoadSpan>,
    /// The temperature of `log_probs`.
    pub temperature: f32,
    /// Sampled tokens that a later rendering replaced; they do not train.
    pub realigned: usize,
}

/// Joins the turns of one conversation.
pub fn assemble(turns: &[&TokenCapture], rule: Assembly) -> Result<Assembled, Exclusion> {
    let first = turns.first().ok_or(Exclusion::NoTokens)?;
    for turn in turns {
        check(turn)?;
        if rule.plain_sampling {
            match &turn.sampler {
                None => return Err(Exclusion::SamplerUnknown),
                Some(sampler) if !sampler.is_plain() => return Err(Exclusion::OffPolicySampling),
                Some(_) => {}
            }
        }
        if turn.temperature.to_bits() != first.temperature.to_bits() {
            return Err(Exclusion::MixedTemperatures);
        }
    }
    let mut transcript = Transcript {
        tokens: first.prompt_token_ids.clone(),
        mask: vec![false; first.prompt_token_ids.len()],
        log_probs: vec![0.0; first.prompt_token_ids.len()],
        spans: Vec::new(),
        prompt_len: first.prompt_token_ids.len(),
        latest_response: first.prompt_token_ids.len(),
        realigned: 0,
    };
    for (index, turn) in turns.iter().enumerate() {
        if index > 0 {
            transcript.continue_with(&turn.prompt_token_ids, rule)?;
        }
        transcript.respond(turn);
    }
    transcript.finish(first.temperature)
}

fn check(turn: &TokenCapture) -> Result<(), Exclusion> {
    let n = turn.token_ids.len();
    let sound = n > 0
        && !turn.prompt_token_ids.is_empty()
        && turn.logprobs.len() == n
        && turn
            .logprobs
            .iter()
            .all(|logprob| logprob.is_finite() && *logprob <= 0.0)
        && turn.temperature.is_finite()
        && covers(&turn.spans, n);
    if sound { Ok(()) } else { Err(Exclusion::MalformedTokens) }
}

/// Spans are contiguous from 0 to `n`.
fn covers(spans: &[LoadSpan], n: usize) -> bool {
    let mut at = 0;
    for span in spans {
        if span.start != at || span.end <= span.start {
            return false;
        }
        at = span.end;
    }
    at == n
}

struct Transcript {
    tokens: Vec<u32>,
    mask: Vec<bool>,
    log_probs: Vec<f32>,
    spans: Vec<LoadSpan>,
    prompt_len: usize,
    latest_response: usize,
    realigned: usize,
}

impl Transcript {
    /// Brings the transcript to where the next turn's prompt ends.
    fn continue_with(&mut self, prompt: &[u32], rule: Assembly) -> Result<(), Exclusion> {
        let common = self.tokens.iter().zip(prompt).take_while(|(a, b)| a == b).count();
        if common < self.tokens.len() {
            let near = common + rule.scaffold_tolerance >= self.latest_response;
            if !near || self.tokens.len() - common > rule.realign_threshold {
                return Err(Exclusion::Fork);
            }
            self.cut(common.min(self.latest_response));
        }
        let from = self.tokens.len();
        let delta = prompt.get(from..).ok_or(Exclusion::Fork)?;
        self.tokens.extend_from_slice(delta);
        self.mask.resize(self.tokens.len(), false);
        self.log_probs.resize(self.tokens.len(), 0.0);
        Ok(())
    }

    fn cut(&mut self, at: usize) {
        self.realigned += self.mask[at..].iter().filter(|sampled| **sampled).count();
        self.tokens.truncate(at);
        self.mask.truncate(at);
        self.log_probs.truncate(at);
        self.spans.retain(|span| span.start < at);
        if let Some(last) = self.spans.last_mut() {
            last.end = last.end.min(at);
        }
        self.prompt_len = self.prompt_len.min(at);
    }

    fn respond(&mut self, turn: &TokenCapture) {
        let start = self.tokens.len();
        self.latest_response = start;
        self.tokens.extend_from_slice(&turn.token_ids);
        self.mask.resize(self.tokens.len(), true);
        self.log_probs.extend_from_slice(&turn.logprobs);
        self.spans.extend(turn.spans.iter().map(|span| LoadSpan {
            start: start + span.start,
            end: start + span.end,
            runtime_load_id: span.runtime_load_id.clone(),
        }));
    }

    fn finish(mut self, temperature: f32) -> Result<Assembled, Exclusion> {
        let prompt_len = self.prompt_len;
        let loss_mask = self.mask.split_off(prompt_len);
        if prompt_len == 0 || !loss_mask.contains(&true) {
            return Err(Exclusion::MalformedTokens);
        }
        let response = self.tokens.split_off(prompt_len);
        let log_probs = self.log_probs.split_off(prompt_len);
        for span in &mut self.spans {
            span.start -= prompt_len;
            span.end -= prompt_len;
        }
        Ok(Assembled {
            prompt: self.tokens,
            response,
            loss_mask,
            log_probs,
            spans: self.spans,
            temperature,
            realigned: self.realigned,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const RULE: Assembly = Assembly {
        scaffold_tolerance: 0,
        realign_threshold: 4,
        plain_sampling: false,
    };

    fn turn(prompt: &[u32], response: &[u32]) -> TokenCapture {
        TokenCapture {
            prompt_token_ids: prompt.to_vec(),
            token_ids: response.to_vec(),
            logprobs: response.iter().map(|id| -(*id as f32) / 100.0).collect(),
            spans: vec![LoadSpan {
                start: 0,
                end: response.len(),
                runtime_load_id: "ab:1".parse().unwrap(),
            }],
            finish_reason: "stop".into(),
            temperature: 1.0,
            top_k: None,
            sampler: None,
        }
    }

    #[test]
    fn one_turn_is_its_own_tokens() {
        let one = assemble(&[&turn(&[1, 2], &[3, 4])], RULE).unwrap();
        assert_eq!(
            (one.prompt, one.response, one.loss_mask),
            (vec![1, 2], vec![3, 4], vec![true, true])
        );
        assert_eq!(one.log_probs, [-0.03, -0.04]);
    }

    #[test]
    fn what_the_environment_said_is_kept_and_not_trained() {
        let (a, b) = (turn(&[1, 2], &[3]), turn(&[1, 2, 3, 9, 9], &[4, 5]));
        let two = assemble(&[&a, &b], RULE).unwrap();
        assert_eq!(two.response, [3, 9, 9, 4, 5]);
        assert_eq!(two.loss_mask, [true, false, false, true, true]);
        assert_eq!(two.log_probs, [-0.03, 0.0, 0.0, -0.04, -0.05]);
        let ranges: Vec<_> = two.spans.iter().map(|span| (span.start, span.end)).collect();
        assert_eq!(ranges, [(0, 1), (3, 5)]);
    }

    #[test]
    fn a_rerendered_end_loses_its_gradient_and_is_counted() {
        // The template rewrites token 4 of the first answer as 7.
        let (a, b) = (turn(&[1, 2], &[3, 4]), turn(&[1, 2, 3, 7, 9], &[5]));
        let two = assemble(&[&a, &b], RULE).unwrap();
        assert_eq!(two.response, [3, 7, 9, 5]);
        assert_eq!(two.loss_mask, [false, false, false, true]);
        assert_eq!(two.realigned, 2);
        assert_eq!(two.spans.len(), 1);
    }

    #[test]
    fn a_scaffold_may_be_dropped_within_its_tolerance_only() {
        // The prompt ended with 8 (say, an opened reasoning tag), which the next rendering leaves out.
        let (a, b) = (turn(&[1, 2, 8], &[3]), turn(&[1, 2, 3, 9], &[5]));
        assert_eq!(assemble(&[&a, &b], RULE), Err(Exclusion::Fork));
        let rule = Assembly {
            scaffold_tolerance: 1,
            ..RULE
        };
        let two = assemble(&[&a, &b], rule).unwrap();
        assert_eq!((two.prompt, two.response), (vec![1, 2], vec![3, 9, 5]));
        assert_eq!(two.loss_mask, [false, false, true]);
    }

    #[test]
    fn a_fork_and_broken_tokens_are_refused() {
        let a = turn(&[1, 2], &[3, 4]);
        assert_eq!(assemble(&[&a, &turn(&[5, 6, 7], &[8])], RULE), Err(Exclusion::Fork));
        let long = turn(&[1, 2], &[3, 4, 5, 6, 7, 8]);
        assert_eq!(assemble(&[&long, &turn(&[1, 2, 9], &[8])], RULE), Err(Exclusion::Fork));
        for broken in [
            TokenCapture {
                token_ids: vec![],
                ..a.clone()
            },
            TokenCapture {
                prompt_token_ids: vec![],
                ..a.clone()
            },
            TokenCapture {
                logprobs: vec![-0.1],
                ..a.clone()
            },
            TokenCapture {
                logprobs: vec![f32::NAN, -0.1],
                ..a.clone()
            },
            TokenCapture {
                spans: vec![],
                ..a.clone()
            },
        ] {
            assert_eq!(assemble(&[&broken], RULE), Err(Exclusion::MalformedTokens));
        }
        let hot = TokenCapture {
            temperature: 0.5,
            ..turn(&[1, 2, 3, 4, 9], &[5])
        };
        assert_eq!(assemble(&[&a, &hot], RULE), Err(Exclusion::MixedTemperatures));
        assert_eq!(assemble(&[], RULE), Err(Exclusion::NoTokens));
    }

    #[test]
    fn only_plain_sampling_trains_where_its_log_probabilities_count() {
        let rule = Assembly {
            plain_sampling: true,
            ..RULE
        };
        let plain = crate::domain::Sampler {
            temperature: 1.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            biased_tokens: 0,
            constrained: false,
        };
        let with = |sampler| TokenCapture {
            sampler,
            ..turn(&[1, 2], &[3])
        };
        assert_eq!(assemble(&[&with(None)], rule), Err(Exclusion::SamplerUnknown));
        assert!(assemble(&[&with(Some(plain))], rule).is_ok());
        assert!(assemble(&[&with(None)], RULE).is_ok());
        for off in [
            crate::domain::Sampler {
                temperature: 0.0,
                ..plain
            },
            crate::domain::Sampler { top_p: 0.9, ..plain },
            crate::domain::Sampler { top_k: 40, ..plain },
            crate::domain::Sampler {
                repetition_penalty: 1.1,
                ..plain
            },
            crate::domain::Sampler {
                constrained: true,
                ..plain
            },
        ] {
            assert_eq!(assemble(&[&with(Some(off))], rule), Err(Exclusion::OffPolicySampling));
        }
    }

    proptest! {
        /// Whatever the conversation, an exact continuation keeps every sampled token with its own log-probability.
        #[test]
        fn exact_continuations_lose_nothing(
            prompt in prop::collection::vec(0u32..50, 1..6),
            parts in prop::collection::vec((prop::collection::vec(0u32..50, 1..6), prop::collection::vec(0u32..50, 0..4)), 1..5),
        ) {
            let mut history = prompt;
            let mut turns = Vec::new();
            let mut sampled = Vec::new();
            for (response, said) in &parts {
                turns.push(turn(&history, response));
                sampled.extend(response.iter().copied());
                history.extend(response);
                history.extend(said);
            }
            let refs: Vec<&TokenCapture> = turns.iter().collect();
            let all = assemble(&refs, RULE).unwrap();
            let trained: Vec<u32> = all.response.iter().zip(&all.loss_mask).filter(|(_, m)| **m).map(|(t, _)| *t).collect();
            prop_assert_eq!(&trained, &sampled);
            prop_assert_eq!(all.realigned, 0);
            for (token, (mask, log_prob)) in all.response.iter().zip(all.loss_mask.iter().zip(&all.log_probs)) {
                let want = if *mask { -(*token as f32) / 100.0 } else { 0.0 };
                prop_assert_eq!(*log_prob, want);
            }
            let covered: usize = all.spans.iter().map(|span| span.end - span.start).sum();
            prop_assert_eq!(covered, sampled.len());
        }
    }
}
