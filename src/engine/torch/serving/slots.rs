//! What each cache slot holds, and which slot a new prompt gets: the one that spares the most computation.

use super::state::SequenceId;

/// What keys and values depend on besides the tokens: one number per load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct CacheKey(pub(crate) u64);

#[derive(Debug)]
struct Slot {
    user: Option<SequenceId>,
    /// `None` once several loads contributed: nobody may reuse that.
    key: Option<CacheKey>,
    tokens: Vec<u32>,
    last_used: u64,
}

/// Where a prompt goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Placement {
    pub(crate) slot: usize,
    /// Tokens of the prompt that need no computation.
    pub(crate) reused: usize,
    /// The slot to copy them from, if they lie in another one.
    pub(crate) copy_from: Option<usize>,
}

/// A shorter common beginning is not worth a copy.
const WORTH_COPYING: usize = 16;

/// The slots.
#[derive(Debug)]
pub(crate) struct Slots {
    slots: Vec<Slot>,
    clock: u64,
}

impl Slots {
    pub(crate) fn new(n: usize) -> Self {
        let slots = (0..n)
            .map(|_| Slot {
                user: None,
                key: None,
                tokens: Vec::new(),
                last_used: 0,
            })
            .collect();
        Self { slots, clock: 0 }
    }

    /// Gives a free slot to `user`. `None` if none is free.
    pub(crate) fn place(&mut self, user: SequenceId, prompt: &[u32], key: CacheKey) -> Option<Placement> {
        let most = prompt.len().saturating_sub(1);
        let common = |slot: &Slot| {
            if slot.key == Some(key) {
                common_prefix(&slot.tokens, prompt).min(most)
            } else {
                0
            }
        };
        let lengths: Vec<usize> = self.slots.iter().map(common).collect();
        let free = |at: &usize| self.slots[*at].user.is_none();
        // An own continuation goes on in place; what merely begins alike is copied, so that both remain.
        let in_place = (0..self.slots.len())
            .filter(free)
            .filter(|at| lengths[*at] > 0 && lengths[*at] * 2 >= self.slots[*at].tokens.len())
            .max_by_key(|at| (lengths[*at], std::cmp::Reverse(*at)));
        let donor = (0..self.slots.len()).max_by_key(|at| (lengths[*at], std::cmp::Reverse(*at)));
        let oldest = (0..self.slots.len())
            .filter(free)
            .min_by_key(|at| (self.slots[*at].last_used, *at))?;
        let in_place_length = in_place.map_or(0, |at| lengths[at]);
        let placement = match (in_place, donor) {
            (_, Some(donor)) if donor != oldest && lengths[donor] >= in_place_length + WORTH_COPYING => Placement {
                slot: oldest,
                reused: lengths[donor],
                copy_from: Some(donor),
            },
            (Some(slot), _) => Placement {
                slot,
                reused: lengths[slot],
                copy_from: None,
            },
            _ => Placement {
                slot: oldest,
                reused: lengths[oldest],
                copy_from: None,
            },
        };
        self.clock += 1;
        let slot = &mut self.slots[placement.slot];
        slot.user = Some(user);
        slot.key = Some(key);
        slot.last_used = self.clock;
        slot.tokens.clear();
        slot.tokens.extend_from_slice(&prompt[..placement.reused]);
        Some(placement)
    }

    /// The model computed these tokens into the slot, under `key`.
    pub(crate) fn computed(&mut self, slot: usize, tokens: &[u32], key: CacheKey) {
        if let Some(slot) = self.slots.get_mut(slot) {
            slot.tokens.extend_from_slice(tokens);
            if slot.key != Some(key) {
                slot.key = None;
            }
        }
    }

    /// The slot's user is done; what it holds stays for others.
    pub(crate) fn release(&mut self, slot: usize) {
        self.clock += 1;
        if let Some(slot) = self.slots.get_mut(slot) {
            slot.user = None;
            slot.last_used = self.clock;
            if slot.key.is_none() {
                slot.tokens.clear();
            }
        }
    }

    /// The slot's content is not to be trusted.
    pub(crate) fn forget(&mut self, slot: usize) {
        if let Some(slot) = self.slots.get_mut(slot) {
            slot.key = None;
            slot.tokens.clear();
        }
    }

    /// A load is gone for good: nobody will ask for what it computed.
    pub(crate) fn forget_load(&mut self, key: CacheKey) {
        for slot in &mut self.slots {
            if slot.key == Some(key) && slot.user.is_none() {
                slot.key = None;
                slot.tokens.clear();
                slot.last_used = 0;
            }
        }
    }
}

fn common_prefix(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: CacheKey = CacheKey(1);

    fn tokens(range: std::ops::Range<u32>) -> Vec<u32> {
        range.collect()
    }

    fn served(slots: &mut Slots, id: u64, prompt: &[u32], answer: &[u32], key: CacheKey) -> Placement {
        let placement = slots.place(SequenceId(id), prompt, key).unwrap();
        slots.computed(placement.slot, &prompt[placement.reused..], key);
        slots.computed(placement.slot, answer, key);
        slots.release(placement.slot);
        placement
    }

    #[test]
    fn a_conversation_goes_on_in_its_slot() {
        let mut slots = Slots::new(2);
        let first = served(&mut slots, 1, &tokens(0..50), &[900, 901], KEY);
        assert_eq!(
            first,
            Placement {
                slot: 0,
                reused: 0,
                copy_from: None
            }
        );
        let mut longer = tokens(0..50);
        longer.extend([900, 901, 5, 6]);
        let second = served(&mut slots, 2, &longer, &[7], KEY);
        assert_eq!(
            second,
            Placement {
                slot: 0,
                reused: 52,
                copy_from: None
            }
        );
    }

    #[test]
    fn the_same_prompt_still_computes_its_last_token() {
        let mut slots = Slots::new(1);
        served(&mut slots, 1, &tokens(0..50), &[], KEY);
        assert_eq!(served(&mut slots, 2, &tokens(0..50), &[], KEY).reused, 49);
        assert_eq!(served(&mut slots, 3, &[0], &[], KEY).reused, 0);
    }

    #[test]
    fn a_shared_beginning_is_copied_and_both_remain() {
        let mut slots = Slots::new(3);
        let mut long = tokens(0..30);
        long.extend(tokens(100..200));
        served(&mut slots, 1, &long, &[], KEY);
        let mut other = tokens(0..30);
        other.extend(tokens(300..310));
        let placement = served(&mut slots, 2, &other, &[], KEY);
        assert_eq!(
            placement,
            Placement {
                slot: 1,
                reused: 30,
                copy_from: Some(0)
            }
        );
        assert_eq!(served(&mut slots, 3, &long, &[], KEY).reused, 129);
    }

    #[test]
    fn a_busy_slot_gives_what_it_has_computed() {
        let mut slots = Slots::new(2);
        let prompt = tokens(0..40);
        let first = slots.place(SequenceId(1), &prompt, KEY).unwrap();
        slots.computed(first.slot, &prompt, KEY);
        let second = slots.place(SequenceId(2), &prompt, KEY).unwrap();
        assert_eq!(
            second,
            Placement {
                slot: 1,
                reused: 39,
                copy_from: Some(0)
            }
        );
        assert_eq!(slots.place(SequenceId(3), &prompt, KEY), None);
    }

    #[test]
    fn another_load_reuses_nothing_and_a_mixture_is_reused_by_nobody() {
        let mut slots = Slots::new(1);
        served(&mut slots, 1, &tokens(0..50), &[], KEY);
        assert_eq!(served(&mut slots, 2, &tokens(0..50), &[], CacheKey(2)).reused, 0);
        let placement = slots.place(SequenceId(3), &tokens(0..50), CacheKey(2)).unwrap();
        assert_eq!(placement.reused, 49);
        slots.computed(placement.slot, &[1], CacheKey(3));
        slots.release(placement.slot);
        for key in [2, 3] {
            assert_eq!(served(&mut slots, 4, &tokens(0..50), &[], CacheKey(key)).reused, 0);
            let placement = slots.place(SequenceId(5), &tokens(0..9), CacheKey(key)).unwrap();
            slots.computed(placement.slot, &[1], CacheKey(9));
            slots.release(placement.slot);
        }
    }

    #[test]
    fn a_forgotten_load_leaves_free_slots() {
        let mut slots = Slots::new(2);
        served(&mut slots, 1, &tokens(0..50), &[], KEY);
        slots.forget_load(KEY);
        assert_eq!(served(&mut slots, 2, &tokens(0..50), &[], KEY).reused, 0);
    }
}
