//! Rows become micro-batches, none larger than the token budget unless a single row is: rectangles of tokens, sorted by
//! length so that little is padding; or, where all prompts begin alike, that beginning once and the rest of each row
//! behind it. A system prompt of a thousand tokens before answers of ten then costs a thousand tokens, not a thousand a row.

/// Indices of rows that run through the model together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MicroBatch {
    /// Indices into the lengths given to [`pack`].
    pub rows: Vec<usize>,
    /// The length of the longest row, to which the others are padded.
    pub width: usize,
    /// How many tokens at the beginning the rows share and run through the model once; 0 for a rectangle.
    pub prefix: usize,
}

/// Packs rows of these lengths, longest first (what would not fit fails at once, not at the end).
pub fn pack(lengths: &[usize], token_budget: usize) -> Vec<MicroBatch> {
    let mut order: Vec<usize> = (0..lengths.len()).collect();
    order.sort_by_key(|i| (std::cmp::Reverse(lengths[*i]), *i));
    let mut out: Vec<MicroBatch> = Vec::new();
    for i in order {
        match out.last_mut() {
            Some(last) if (last.rows.len() + 1) * last.width <= token_budget => last.rows.push(i),
            _ => out.push(MicroBatch {
                rows: vec![i],
                width: lengths[i],
                prefix: 0,
            }),
        }
    }
    out
}

/// Packs rows that all begin with the same `prefix` tokens, which every micro-batch then holds once.
pub fn pack_branches(lengths: &[usize], prefix: usize, token_budget: usize) -> Vec<MicroBatch> {
    let mut order: Vec<usize> = (0..lengths.len()).collect();
    order.sort_by_key(|i| (std::cmp::Reverse(lengths[*i]), *i));
    let mut out: Vec<MicroBatch> = Vec::new();
    let mut filled = 0;
    for i in order {
        let own = lengths[i].saturating_sub(prefix);
        match out.last_mut() {
            Some(last) if filled + own <= token_budget => {
                last.rows.push(i);
                filled += own;
            }
            _ => {
                out.push(MicroBatch {
                    rows: vec![i],
                    width: lengths[i],
                    prefix,
                });
                filled = prefix + own;
            }
        }
    }
    out
}

/// How many tokens the rows had better share: what all prompts begin with, if running it once saves at least a quarter
/// of the tokens; otherwise 0. Every row keeps a prompt token of its own, from which its first answer token is predicted.
pub fn shared_prefix(prompts: &[&[u32]], lengths: &[usize]) -> usize {
    let Some((first, others)) = prompts.split_first() else {
        return 0;
    };
    let common = others
        .iter()
        .map(|prompt| first.iter().zip(*prompt).take_while(|(a, b)| a == b).count())
        .min();
    let shortest = prompts.iter().map(|prompt| prompt.len()).min().unwrap_or(0);
    let prefix = common.unwrap_or(0).min(shortest.saturating_sub(1));
    let saved = prefix * others.len();
    if saved * 4 >= lengths.iter().sum::<usize>() {
        prefix
    } else {
        0
    }
}

/// What a step will hold in memory, in bytes, from the shape of the model. An estimate from above for the embedded
/// architectures: activations that autograd keeps for the layers between two checkpoints, one input per checkpointed
/// segment, and the logits of one chunk of the head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Width of the residual stream.
    pub hidden: usize,
    /// Width of the feed-forward layer.
    pub intermediate: usize,
    /// Attention heads.
    pub heads: usize,
    /// Layers.
    pub layers: usize,
    /// Vocabulary.
    pub vocabulary: usize,
    /// Bytes of one activation.
    pub element: usize,
}

impl Shape {
    /// Activations of one layer for `tokens` tokens: two norms, q, k, v, attention and its output, the residuals, and
    /// gate, up, their product.
    pub fn layer_bytes(&self, tokens: usize) -> usize {
        tokens * self.element * (10 * self.hidden + 4 * self.intermediate)
    }

    /// Logits, their log-softmax and the gradient of both, in f32.
    pub fn head_bytes(&self, tokens: usize) -> usize {
        3 * 4 * tokens * self.vocabulary
    }

    /// The whole step: with `recompute`, only one layer's activations live at a time.
    pub fn step_bytes(&self, tokens: usize, head_chunk: usize, recompute: bool) -> usize {
        let inputs = tokens * self.hidden * self.element * self.layers;
        let layers = if recompute {
            self.layer_bytes(tokens)
        } else {
            self.layer_bytes(tokens) * self.layers
        };
        inputs + layers + self.head_bytes(head_chunk.min(tokens))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn long_rows_first_and_little_padding() {
        let packed = pack(&[3, 10, 9, 2, 2], 20);
        let rows: Vec<_> = packed.iter().map(|m| m.rows.clone()).collect();
        assert_eq!(rows, [vec![1, 2], vec![0, 3, 4]]);
        // A row above the budget runs alone.
        assert_eq!(pack(&[50, 1], 20)[0].rows, [0]);
        assert!(pack(&[], 20).is_empty());
    }

    proptest! {
        #[test]
        fn every_row_once_within_the_budget(lengths in prop::collection::vec(1usize..300, 0..60), budget in 1usize..2000) {
            let packed = pack(&lengths, budget);
            let mut seen: Vec<usize> = packed.iter().flat_map(|m| m.rows.clone()).collect();
            seen.sort_unstable();
            prop_assert_eq!(seen, (0..lengths.len()).collect::<Vec<_>>());
            for m in &packed {
                prop_assert!(m.rows.len() * m.width <= budget || m.rows.len() == 1);
                prop_assert_eq!(m.rows.iter().map(|i| lengths[*i]).max(), Some(m.width));
            }
        }

        #[test]
        fn branches_once_within_the_budget(own in prop::collection::vec(1usize..300, 0..60), prefix in 0usize..300, budget in 1usize..2000) {
            let lengths: Vec<usize> = own.iter().map(|n| prefix + n).collect();
            let packed = pack_branches(&lengths, prefix, budget);
            let mut seen: Vec<usize> = packed.iter().flat_map(|m| m.rows.clone()).collect();
            seen.sort_unstable();
            prop_assert_eq!(seen, (0..lengths.len()).collect::<Vec<_>>());
            for m in &packed {
                let tokens = prefix + m.rows.iter().map(|i| own[*i]).sum::<usize>();
                prop_assert!(tokens <= budget || m.rows.len() == 1);
            }
        }
    }

    #[test]
    fn a_prefix_is_shared_where_it_pays() {
        let prompts: [&[u32]; 3] = [&[1, 2, 3, 4, 5], &[1, 2, 3, 4, 6], &[1, 2, 3, 4, 5]];
        assert_eq!(shared_prefix(&prompts, &[6, 6, 6]), 4);
        // The same prompt again and again: the last token of each stays its own.
        assert_eq!(shared_prefix(&[prompts[0], prompts[2]], &[6, 6]), 4);
        // Long answers: little would be saved.
        assert_eq!(shared_prefix(&prompts, &[60, 60, 60]), 0);
        assert_eq!(shared_prefix(&prompts[..1], &[6]), 0);
        assert_eq!(shared_prefix(&[&[1, 2], &[2, 2]], &[3, 3]), 0);
        assert_eq!(shared_prefix(&[], &[]), 0);
    }

    #[test]
    fn recomputing_needs_less() {
        let smol = Shape {
            hidden: 576,
            intermediate: 1536,
            heads: 9,
            layers: 30,
            vocabulary: 49152,
            element: 4,
        };
        assert!(smol.step_bytes(1024, 256, true) < smol.step_bytes(1024, 256, false) / 3);
        // The measured peak of this step was 3.4 GB with whole logits and 0.9 GB of weights and process.
        let whole = smol.step_bytes(1024, 1024, false);
        assert!((1_500_000_000..3_500_000_000).contains(&whole), "{whole}");
    }
}
