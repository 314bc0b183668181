use std::collections::HashSet;

use proptest::prelude::*;

use super::*;

const LIMITS: Limits = Limits {
    slots: 3,
    prompt_chunk: 100,
    prompt_chunk_beside_answers: 10,
    waiting: 20,
    waiting_per_scenario: 15,
};

fn scenario(name: &str) -> ScenarioName {
    ScenarioName::new(name).unwrap()
}

/// Admits all that may start, then runs one step. Returns the step.
fn step(state: &mut Scheduler) -> Vec<(SequenceId, Work)> {
    while let Some(id) = state.next() {
        state.start(id, 0);
    }
    let plan = state.plan();
    for (id, work) in &plan {
        state.did(*id, *work);
    }
    plan
}

#[test]
fn a_long_prompt_delays_answers_by_a_bounded_chunk_only() {
    let mut state = Scheduler::new(LIMITS);
    state.submit(SequenceId(1), &scenario("a"), 5, None).unwrap();
    assert_eq!(step(&mut state), [(SequenceId(1), Work::Prompt { n: 5, last: true })]);
    state.submit(SequenceId(2), &scenario("a"), 1000, None).unwrap();
    for _ in 0..50 {
        assert_eq!(
            step(&mut state),
            [
                (SequenceId(1), Work::Answer),
                (SequenceId(2), Work::Prompt { n: 10, last: false })
            ]
        );
    }
    assert!(state.remove(SequenceId(1)));
    assert_eq!(
        step(&mut state),
        [(SequenceId(2), Work::Prompt { n: 100, last: false })]
    );
}

#[test]
fn a_short_prompt_overtakes_a_long_one() {
    let mut state = Scheduler::new(LIMITS);
    state.submit(SequenceId(1), &scenario("a"), 1000, None).unwrap();
    state.submit(SequenceId(2), &scenario("a"), 7, None).unwrap();
    assert_eq!(
        step(&mut state),
        [
            (SequenceId(2), Work::Prompt { n: 7, last: true }),
            (SequenceId(1), Work::Prompt { n: 93, last: false })
        ]
    );
}

#[test]
fn a_busy_scenario_does_not_starve_another() {
    let mut state = Scheduler::new(Limits { slots: 1, ..LIMITS });
    for id in 0..10 {
        state.submit(SequenceId(id), &scenario("busy"), 10, None).unwrap();
    }
    step(&mut state);
    state.submit(SequenceId(100), &scenario("quiet"), 10, None).unwrap();
    state.remove(SequenceId(0));
    assert_eq!(state.next(), Some(SequenceId(100)));
}

#[test]
fn a_scenario_that_was_away_has_saved_up_nothing() {
    let mut state = Scheduler::new(Limits { slots: 1, ..LIMITS });
    state.submit(SequenceId(1), &scenario("a"), 500, None).unwrap();
    for _ in 0..5 {
        step(&mut state);
    }
    state.submit(SequenceId(2), &scenario("new"), 10, None).unwrap();
    let served = |state: &Scheduler, name: &str| state.queues[&scenario(name)].served;
    assert_eq!(served(&state, "new"), served(&state, "a"));
}

#[test]
fn another_answer_to_the_same_prompt_waits_for_the_first_ones_computation() {
    let mut state = Scheduler::new(LIMITS);
    state.submit(SequenceId(1), &scenario("a"), 150, None).unwrap();
    state
        .submit(SequenceId(2), &scenario("a"), 150, Some(SequenceId(1)))
        .unwrap();
    state.submit(SequenceId(3), &scenario("a"), 5, None).unwrap();
    step(&mut state);
    assert_eq!(state.n_running(), 2, "the sibling waits, the stranger does not");
    while state.entries[&SequenceId(1)].phase != Phase::Answer {
        step(&mut state);
    }
    assert_eq!(state.next(), Some(SequenceId(2)));
    state.start(SequenceId(2), 150);
    assert!(
        state
            .plan()
            .contains(&(SequenceId(2), Work::Prompt { n: 1, last: true }))
    );
    state
        .submit(SequenceId(4), &scenario("a"), 150, Some(SequenceId(9)))
        .unwrap();
    state.remove(SequenceId(3));
    assert_eq!(
        state.next(),
        Some(SequenceId(4)),
        "a leader that is gone holds nobody up"
    );
}

#[test]
fn the_queue_is_bounded_for_all_and_for_each() {
    let mut state = Scheduler::new(LIMITS);
    for id in 0..15 {
        state.submit(SequenceId(id), &scenario("a"), 1, None).unwrap();
    }
    assert_eq!(
        state.submit(SequenceId(90), &scenario("a"), 1, None),
        Err(Full { waiting: 15 })
    );
    for id in 20..25 {
        state.submit(SequenceId(id), &scenario("b"), 1, None).unwrap();
    }
    assert_eq!(
        state.submit(SequenceId(91), &scenario("c"), 1, None),
        Err(Full { waiting: 20 })
    );
}

#[derive(Debug, Clone)]
enum Action {
    Submit { scenario: u8, prompt: usize, sibling: bool },
    Step,
    End(usize),
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        (0_u8..4, 1_usize..300, any::<bool>()).prop_map(|(scenario, prompt, sibling)| Action::Submit {
            scenario,
            prompt,
            sibling
        }),
        Just(Action::Step),
        Just(Action::Step),
        (0_usize..50).prop_map(Action::End),
    ]
}

proptest! {
    #[test]
    fn whatever_happens_the_bounds_hold_and_everything_ends(actions in proptest::collection::vec(action(), 1..120)) {
        let mut state = Scheduler::new(LIMITS);
        let mut alive: Vec<SequenceId> = Vec::new();
        let mut computed: HashMap<SequenceId, usize> = HashMap::new();
        let mut prompts: HashMap<SequenceId, usize> = HashMap::new();
        let mut next = 0;
        let run = |state: &mut Scheduler, computed: &mut HashMap<SequenceId, usize>, prompts: &HashMap<SequenceId, usize>| {
            let plan = step(state);
            let ids: HashSet<_> = plan.iter().map(|(id, _)| *id).collect();
            assert_eq!(ids.len(), plan.len(), "nobody twice in a step");
            assert!(plan.len() <= LIMITS.slots);
            let answers = plan.iter().filter(|(_, w)| *w == Work::Answer).count();
            let mut prompt_tokens = 0;
            for (id, work) in &plan {
                if let Work::Prompt { n, last } = work {
                    prompt_tokens += n;
                    let sum = computed.entry(*id).or_default();
                    *sum += n;
                    assert!(*n >= 1 && *sum <= prompts[id]);
                    assert_eq!(*last, *sum == prompts[id]);
                }
            }
            let most = if answers > 0 { LIMITS.prompt_chunk_beside_answers } else { LIMITS.prompt_chunk };
            assert!(prompt_tokens <= most.max(LIMITS.slots));
            plan
        };
        for action in actions {
            match action {
                Action::Submit { scenario: s, prompt, sibling } => {
                    let id = SequenceId(next);
                    next += 1;
                    let after = alive.last().copied().filter(|_| sibling);
                    if state.submit(id, &scenario(&format!("s{s}")), prompt, after).is_ok() {
                        alive.push(id);
                        prompts.insert(id, prompt);
                    }
                }
                Action::Step => { run(&mut state, &mut computed, &prompts); }
                Action::End(at) if !alive.is_empty() => {
                    let id = alive.remove(at % alive.len());
                    state.remove(id);
                    prop_assert!(!state.remove(id), "gone is gone");
                }
                Action::End(_) => {}
            }
            prop_assert!(state.n_running() <= LIMITS.slots && state.n_waiting() <= LIMITS.waiting);
            prop_assert_eq!(state.n_running() + state.n_waiting(), alive.len());
        }
        // Everybody gets an answer: a bounded number of steps, each ending those that answer.
        for _ in 0..2000 {
            if state.is_idle() { break; }
            for (id, work) in run(&mut state, &mut computed, &prompts) {
                if work == Work::Answer {
                    state.remove(id);
                }
            }
        }
        prop_assert!(state.is_idle(), "somebody never ran: {:?}", state);
        prop_assert_eq!((state.n_running(), state.n_waiting()), (0, 0));
    }
}
