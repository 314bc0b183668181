//! A store in which changes of a tree were tried, refused and asked for, as a loop leaves it.

use std::path::Path;

use reef::domain::{BatchId, RecordId, ReleaseId, ScenarioName};
use reef::experience::{
    AttemptChange, AttemptState, Experience, NewAttempt, NewInstruction, NewJob, NewProposal, StoreOptions,
};
use serde_json::{Map, Value, json};

/// The attempt that was refused by the gate.
pub const REJECTED: &str = "b:rejected";
/// The attempt under way, for an instruction.
pub const RUNNING: &str = "b:running";

fn rule(text: &str) -> Value {
    json!([{"op": "create", "id": "lint-rule", "options": {"name": "rules", "config": {"text": text}}}])
}

fn fields(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(fields) => fields,
        other => panic!("no object: {other}"),
    }
}

/// Fills the store at `database`; `receipt` is an exchange that went wrong, `base` what is served.
pub fn fill(database: &Path, scenario: &str, base: &str, receipt: &str) {
    let store = Experience::open(database, StoreOptions::default()).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let (scenario, base) = (ScenarioName::new(scenario).unwrap(), ReleaseId::new(base).unwrap());
    runtime.block_on(fill_in(&store, &scenario, &base, receipt));
}

async fn fill_in(store: &Experience, scenario: &ScenarioName, base: &ReleaseId, receipt: &str) {
    let instruction = RecordId::new("ask-1").unwrap();
    store
        .append_instruction(NewInstruction {
            id: instruction.clone(),
            scenario: scenario.clone(),
            payload: fields(json!({"text": "be kinder to beginners", "session": "ana", "release_id": base})),
        })
        .await
        .unwrap();
    let job = |batch: &str, manifest: Value| NewJob {
        scenario: scenario.clone(),
        batch: BatchId::new(batch).unwrap(),
        recipe: "evolve".to_owned(),
        manifest,
        instruction: None,
        base: base.clone(),
    };
    let sample = |report: &str, reward: f64, feedback: &str| {
        json!({"report": report, "sources": [receipt], "session": "s", "reward": reward, "feedback": feedback,
               "arrived_us": 1, "sequence": 1, "produced": []})
    };
    let lessons = json!({"train": [sample("r-2", 0.5, "half right"), sample("r-1", 0.0, "never ran the \u{1b}[31mlinter")], "holdout": []});
    let begin = |id: &str, source: &'static str, request: Option<String>| NewAttempt {
        id: id.to_owned(),
        scenario: scenario.clone(),
        source,
        request,
        base: base.clone(),
    };
    let sealed = store.job_begin(job(REJECTED, lessons)).await.unwrap();
    store.attempt_begin(begin(REJECTED, "failures", None)).await.unwrap();
    store
        .attempt_event(
            REJECTED.to_owned(),
            "trial",
            "candidate on one: score 0".to_owned(),
            true,
        )
        .await
        .unwrap();
    let verdict =
        json!({"outcome": "rejected", "reason": "won 1, lost 5 of 8 pairs", "figures": {"wins": 1, "losses": 5}});
    // The states of an attempt follow each other as they do in a step.
    let goes_on = async |id: &str, states: &[AttemptState]| {
        for state in states {
            let change = AttemptChange {
                state: Some(*state),
                ..AttemptChange::default()
            };
            store.attempt_change(id.to_owned(), change).await.unwrap();
        }
    };
    goes_on(REJECTED, &[AttemptState::Proposing, AttemptState::Evaluating]).await;
    store
        .attempt_change(
            REJECTED.to_owned(),
            AttemptChange {
                state: Some(AttemptState::Rejected),
                mutations: Some(rule("Run the linter.")),
                reason: Some("the linter was never run".to_owned()),
                outcome: Some("won 1, lost 5 of 8 pairs".to_owned()),
                notes: fields(json!({"verdict": verdict, "failing": ["one"], "design": "a rule"})),
                ..AttemptChange::default()
            },
        )
        .await
        .unwrap();
    store
        .job_end(sealed.id, "rejected", "won 1, lost 5".to_owned())
        .await
        .unwrap();
    store
        .attempt_begin(begin(RUNNING, "instruction", Some(instruction.to_string())))
        .await
        .unwrap();
    goes_on(RUNNING, &[AttemptState::Proposing, AttemptState::Evaluating]).await;
    let proposal = |id: &str, reason: &str, refused: Option<&str>| NewProposal {
        id: id.to_owned(),
        scenario: scenario.clone(),
        mutations: refused.map_or_else(|| rule("Start the database."), |_| json!([])),
        reason: reason.to_owned(),
        session: "reef-pi on ci-7".to_owned(),
        client_release: base.to_string(),
        head: base.clone(),
        refused: refused.map(str::to_owned),
        most_waiting: 10,
    };
    assert!(
        store
            .proposal_add(proposal("p-1", "the tests need a database", None))
            .await
            .unwrap()
    );
    let refused = proposal("p-2", "no reason", Some("lint-rule: there is an entry with this id"));
    assert!(store.proposal_add(refused).await.unwrap());
}
