//! What can be no release ends its step, and a step that cannot end is given up by command.

use reef::domain::{BatchId, Operation};
use reef::experience::{BatchUse, NewJob};
use reef::release::{Provenance, Source};
use reef::scenario::{CONSUMER, Candidate, drop_step};
use serde_json::{Value, json};

use crate::rig::{Rig, TRAINER, block_on, gate_scoring, recipe};

/// The trainer with a command of its own before it is done.
fn trainer(more: &str) -> String {
    TRAINER.replace(
        "echo '{\"event\":\"done\"",
        &format!("{more}\necho '{{\"event\":\"done\""),
    )
}

/// A gate that prefers the candidate and does something of its own at every pair.
fn meddling_gate(command: &str) -> String {
    gate_scoring("0.8", "0.2").replace("  index=", &format!("  {command}\n  index="))
}

/// Puts a file of that name into the candidate, unless the batch holds `question 1`.
fn hiding(name: &str) -> String {
    format!(
        "grep -q 'question 1' \"$batch\" || {{ mkdir -p \"$(dirname \"$out/{name}\")\"; echo x > \"$out/{name}\"; }}"
    )
}

#[test]
fn content_that_no_release_may_have_ends_the_step_and_the_next_one_goes_on() {
    for name in [".git/config", "notes/GIT~1/hooks/x", ".lfsconfig", "a/.gitattributes."] {
        let rig = Rig::new(
            &recipe("always", "program", "command = [\"sh\", \"gate.sh\"]"),
            &[
                ("train.sh", &trainer(&hiding(name))),
                ("gate.sh", "touch judged; exit 9"),
            ],
        );
        rig.graded(0, Some(1.0));
        let before = rig.head();
        let run = rig.train(&["--json", "--steps", "1"]);
        assert_eq!(run.code, 10, "{name}: {}\n{}", run.stdout, run.stderr);
        assert_eq!(rig.head(), before);
        assert!(!rig.path("judged").exists(), "what cannot be released is not measured");
        let steps = run.events("step");
        assert_eq!(steps[0]["outcome"], "rejected", "{steps:?}");
        let reason = steps[0]["reason"].as_str().unwrap();
        assert!(
            reason.contains("cannot be released") && !reason.contains("/work/"),
            "{reason}"
        );
        assert!(rig.experience().open_job(&rig.scenario).unwrap().is_none());
        rig.write("gate.sh", &gate_scoring("0.8", "0.2"));
        rig.graded(1, Some(1.0));
        let run = rig.train(&["--json"]);
        assert_eq!(run.code, 0, "{name}: {}\n{}", run.stdout, run.stderr);
        assert_ne!(rig.head(), before);
    }
}

/// Refused only when it is published: the file came after the candidate was judged.
#[test]
fn content_that_the_gate_did_not_see_ends_the_step_too() {
    let gate = meddling_gate("mkdir -p \"$(cat out)/.git\"; echo x > \"$(cat out)/.git/config\"");
    let rig = Rig::new(
        &recipe(
            "paired",
            "program",
            "command = [\"sh\", \"gate.sh\"]\nspending = \"candidate\"",
        ),
        &[("train.sh", &trainer("echo \"$out\" > out")), ("gate.sh", &gate)],
    );
    rig.graded(0, Some(1.0));
    let before = rig.head();
    let run = rig.train(&["--json", "--steps", "1"]);
    assert_eq!(run.code, 10, "{}\n{}", run.stdout, run.stderr);
    assert_eq!(rig.head(), before);
    let steps = rig.experience().steps(&rig.scenario, &Default::default()).unwrap();
    let verdict = rig
        .experience()
        .step_verdict(&rig.scenario, steps[0].step)
        .unwrap()
        .unwrap();
    assert!(verdict.reason.contains(".git"), "{}", verdict.reason);
    assert!(!verdict.pairs.is_empty(), "what was measured is kept");
    assert!(rig.experience().open_intents(None).unwrap().is_empty());
}

#[test]
fn a_candidate_whose_files_are_gone_is_made_again() {
    let gate = meddling_gate("[ -e once ] || { touch once; rm -rf \"$(cat out)\"; }");
    let rig = Rig::new(
        &recipe(
            "paired",
            "program",
            "command = [\"sh\", \"gate.sh\"]\nspending = \"candidate\"",
        ),
        &[("train.sh", &trainer("echo \"$out\" > out")), ("gate.sh", &gate)],
    );
    rig.graded(0, Some(1.0));
    let run = rig.train(&["--json"]);
    assert_eq!(run.code, 0, "{}\n{}", run.stdout, run.stderr);
    assert_eq!(run.events("trained").len(), 2);
    rig.check_whole(1);
}

#[test]
fn a_step_that_cannot_end_is_shown_and_given_up() {
    let rig = Rig::new(
        &recipe(
            "paired",
            "program",
            "command = [\"sh\", \"gate.sh\"]\nspending = \"candidate\"",
        ),
        &[("train.sh", TRAINER), ("gate.sh", "echo no judge today >&2; exit 9")],
    );
    let shown = |rig: &Rig| {
        let run = rig.train(&["show", "--json"]);
        assert_eq!(run.code, 0, "{}", run.stderr);
        serde_json::from_str::<Value>(&run.stdout).unwrap()["steps"].clone()
    };
    assert_eq!(shown(&rig).as_array().unwrap().len(), 0);
    assert_eq!(rig.train(&["drop", "-s", "s"]).code, 3, "there is nothing to give up");
    rig.graded(0, Some(1.0));
    let run = rig.train(&["--patience", "0"]);
    assert_eq!(run.code, 1);
    assert!(run.stderr.contains("reef train drop --scenario s"), "{}", run.stderr);
    let steps = shown(&rig);
    assert_eq!(steps[0]["stage"], "trained", "{steps}");
    assert!(steps[0]["error"].as_str().unwrap().contains("gate"), "{steps}");
    assert!(
        steps[0]["retry_at"].is_number() && steps[0]["driver"].is_null(),
        "{steps}"
    );
    let table = rig.train(&["show"]).stdout;
    assert!(table.contains("trained") && table.contains("gate"), "{table}");

    let run = rig.train(&["drop", "-s", "s", "--reason", "the judge is away", "--json"]);
    assert_eq!(run.code, 0, "{}", run.stderr);
    let dropped: Value = serde_json::from_str(&run.stdout).unwrap();
    assert!(dropped["reason"].as_str().unwrap().contains("the judge is away"));
    assert_eq!(shown(&rig).as_array().unwrap().len(), 0);
    let steps = rig.experience().steps(&rig.scenario, &Default::default()).unwrap();
    assert_eq!(steps[0].outcome, "skipped");
    assert!(
        steps[0].metrics["skipped"]
            .as_str()
            .unwrap()
            .contains("the judge is away")
    );
    let left = std::fs::read_dir(rig.path("reef/work/training/s")).map_or(0, Iterator::count);
    assert_eq!(left, 0, "its files are gone");
    // Its batch is used up, and what comes after it is not held up.
    rig.write("gate.sh", &gate_scoring("0.8", "0.2"));
    assert_eq!(rig.train(&["--json"]).code, 3);
    rig.graded(1, Some(1.0));
    assert_eq!(rig.train(&["--json"]).code, 0);
}

/// A driver that is in the middle of the step finds it ended, publishes nothing and goes on.
#[test]
fn a_step_that_is_given_up_under_its_driver_is_not_published() {
    let gate = format!("while [ ! -e go ]; do sleep 0.1; done\n{}", gate_scoring("0.8", "0.2"));
    let rig = Rig::new(
        &recipe(
            "paired",
            "program",
            "command = [\"sh\", \"gate.sh\"]\nspending = \"candidate\"",
        ),
        &[("train.sh", TRAINER), ("gate.sh", &gate)],
    );
    rig.graded(0, Some(1.0));
    let before = rig.head();
    let mut child = rig.spawn(&[], None);
    rig.until("the step is trained", || {
        let job = rig.experience().open_job(&rig.scenario).unwrap();
        job.is_some_and(|job| job.stage.as_str() == "trained")
    });
    let run = rig.train(&["drop", "-s", "s"]);
    rig.write("go", "");
    assert_eq!(run.code, 0, "{}", run.stderr);
    child.wait().unwrap();
    assert_eq!(rig.head(), before);
    assert!(rig.experience().open_job(&rig.scenario).unwrap().is_none());
    let steps = rig.experience().steps(&rig.scenario, &Default::default()).unwrap();
    let ends: Vec<&str> = steps.iter().map(|step| step.outcome.as_str()).collect();
    assert_eq!(ends, ["skipped", "released"]);
    assert!(rig.experience().open_intents(None).unwrap().is_empty());
}

/// The same in the moment between the judgement and the publication.
#[test]
fn a_batch_that_was_given_up_is_not_published() {
    let rig = Rig::new(&recipe("always", "none", ""), &[("train.sh", TRAINER)]);
    let publisher = rig.publisher();
    let (head, batch) = (rig.head(), BatchId::new("proposal:one").unwrap());
    let used = BatchUse {
        batch_id: batch.clone(),
        consumer: CONSUMER.to_owned(),
        records: Vec::new(),
    };
    let job = NewJob {
        scenario: rig.scenario.clone(),
        batch,
        recipe: "test".to_owned(),
        manifest: json!({}),
        instruction: None,
        base: head.clone(),
    };
    rig.write("tree/AGENTS.md", "x");
    let refused = block_on(async {
        publisher.experience().job_begin(job).await.unwrap();
        let dropped = drop_step(&publisher, &rig.path("work"), &rig.scenario, None)
            .await
            .unwrap();
        assert_eq!(dropped.unwrap().step, 1);
        publisher
            .publish(Candidate {
                scenario: rig.scenario.clone(),
                dir: rig.path("tree"),
                components: None,
                expected: head.clone(),
                operation: Operation::Training,
                held: false,
                source: Source::Training,
                provenance: Provenance::default(),
                batch: Some(used),
            })
            .await
    });
    assert!(refused.unwrap_err().to_string().contains("has ended already"));
    assert_eq!(rig.head(), head);
}
