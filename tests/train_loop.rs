//! `reef train` on stored experience with a real external trainer and a real external gate: the whole loop without a
//! model. Crash tests kill the process at every window and look at what is left.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failed test may panic"
)]

#[path = "train_loop/refused.rs"]
mod refused;
#[path = "train_loop/rig.rs"]
mod rig;

use reef::domain::{Outcome, TrainingMode};
use reef::experience::StepQuery;
use rig::{Rig, TRAINER, gate_scoring, recipe};
use serde_json::json;

#[test]
fn reports_become_releases_each_record_once() {
    let rig = Rig::new(&recipe("always", "none", ""), &[("train.sh", TRAINER)]);
    for n in 0..3 {
        rig.graded(n, Some(f64::from(n)));
    }
    let run = rig.train(&["--json"]);
    assert_eq!(run.code, 0, "{}", run.stderr);
    let steps: Vec<_> = run.events("step");
    assert_eq!(steps.len(), 3);
    assert!(steps.iter().all(|step| step["outcome"] == "released"), "{steps:?}");
    assert_eq!(steps[0]["metrics"]["samples"], 1);
    assert_eq!(steps[0]["metrics"]["loss"], 0.5, "the trainer's own figures are kept");
    assert!(!run.events("sealed").is_empty() && !run.events("trained").is_empty());
    rig.check_whole(3);
    let again = rig.train(&["--json"]);
    assert_eq!(again.code, 3, "nothing is left: {}", again.stderr);
    // Said in one object, as everything is.
    assert_eq!(again.stdout.lines().count(), 1, "{}", again.stdout);
    let ended = &again.events("ended")[0];
    assert_eq!(
        (&ended["version"], &ended["steps"], &ended["released"]),
        (&json!(1), &json!(0), &json!(0))
    );
    assert_eq!(run.events("ended")[0]["steps"], json!(steps.len()));
}

#[test]
fn a_refused_candidate_leaves_the_head_and_keeps_the_evidence() {
    let rig = Rig::new(
        &recipe("paired", "program", "command = [\"sh\", \"gate.sh\"]"),
        &[("train.sh", TRAINER), ("gate.sh", &gate_scoring("0.2", "0.8"))],
    );
    rig.graded(0, Some(1.0));
    let before = rig.head();
    let run = rig.train(&["--json"]);
    assert_eq!(run.code, 10, "{}", run.stderr);
    assert_eq!(run.events("judged")[0]["outcome"], "rejected");
    assert_eq!(rig.head(), before);
    let steps = rig.experience().steps(&rig.scenario, &StepQuery::default()).unwrap();
    assert_eq!(steps[0].outcome, "rejected");
    let verdict = rig
        .experience()
        .step_verdict(&rig.scenario, steps[0].step)
        .unwrap()
        .unwrap();
    assert_eq!(verdict.outcome, Outcome::Rejected);
    assert!(verdict.pairs.len() >= 8 && verdict.figures["effect"].as_f64().unwrap() < 0.0);
    rig.check_whole(0);
}

#[test]
fn a_better_candidate_passes_and_a_lasting_failure_to_measure_keeps_the_batch() {
    let rig = Rig::new(
        &recipe(
            "paired",
            "program",
            "command = [\"sh\", \"gate.sh\"]\nspending = \"candidate\"",
        ),
        &[("train.sh", TRAINER), ("gate.sh", "exit 9")],
    );
    rig.graded(0, Some(1.0));
    let before = rig.head();
    let run = rig.train(&["--json", "--patience", "3"]);
    assert_eq!(run.code, 1, "{}", run.stderr);
    assert!(run.stderr.contains("gate"), "{}", run.stderr);
    assert_eq!(rig.head(), before);
    let job = rig.experience().open_job(&rig.scenario).unwrap().unwrap();
    assert_eq!(
        job.stage.as_str(),
        "trained",
        "the candidate waits for a gate that works"
    );
    assert!(job.attempts > 0 && job.error.is_some());
    rig.write("gate.sh", &gate_scoring("0.8", "0.2"));
    let run = rig.train(&["--json"]);
    assert_eq!(run.code, 0, "{}", run.stderr);
    assert!(
        run.events("trained").is_empty(),
        "the finished candidate is not trained again"
    );
    rig.check_whole(1);
}

#[test]
fn a_failing_trainer_is_tried_again_and_says_why() {
    let flaky = format!(
        "n=$(cat tries 2>/dev/null || echo 0); echo $((n + 1)) > tries\nif [ $n -lt 2 ]; then echo out of memory >&2; exit 3; fi\n{TRAINER}"
    );
    let rig = Rig::new(&recipe("always", "none", ""), &[("train.sh", &flaky)]);
    rig.graded(0, Some(1.0));
    let run = rig.train(&["--json"]);
    assert_eq!(run.code, 0, "{}", run.stderr);
    let failures = run.events("failed");
    assert_eq!(failures.len(), 2);
    assert!(
        failures[0]["error"].as_str().unwrap().contains("out of memory"),
        "{failures:?}"
    );
    rig.check_whole(1);
}

#[test]
fn age_is_exact_in_releases_and_what_is_too_old_is_counted() {
    for (window, released) in [(0, 1), (1, 2), (2, 3)] {
        let rig = Rig::new(
            &recipe("always", "none", "").replace("max-staleness = 100", &format!("max-staleness = {window}")),
            &[("train.sh", TRAINER)],
        );
        // All four were answered by the first release; each step makes them one release older.
        for n in 0..4 {
            rig.graded(n, Some(1.0));
        }
        let run = rig.train(&["--json"]);
        assert_eq!(run.code, 0, "{}", run.stderr);
        assert_eq!(run.events("step").len(), released, "window {window}");
        let excluded = rig.experience().excluded(&rig.scenario).unwrap();
        assert_eq!(excluded["policy_lag_exceeded"], 4 - released as u64, "window {window}");
    }
}

#[test]
fn what_cannot_teach_is_excluded_or_skipped_with_a_reason() {
    let rig = Rig::new(
        &recipe("always", "none", "")
            .replace("size = 1", "size = 2")
            .replace("kind = \"reported\"", "kind = \"reported\"\nskip-equal-scores = true"),
        &[("train.sh", TRAINER)],
    );
    rig.graded(0, None);
    rig.graded(1, Some(0.5));
    rig.graded(2, Some(0.5));
    let run = rig.train(&["--json"]);
    assert_eq!(run.code, 0, "{}", run.stderr);
    let steps = run.events("step");
    assert_eq!((steps.len(), &steps[0]["outcome"]), (1, &json!("skipped")));
    assert!(steps[0]["reason"].as_str().unwrap().contains("equal"), "{steps:?}");
    assert_eq!(rig.experience().excluded(&rig.scenario).unwrap()["no_score"], 1);
    rig.check_whole(0);
}

#[test]
fn manual_mode_waits_for_an_instruction_and_follows_it_once() {
    let rig = Rig::new(
        &recipe("always", "none", "").replace("size = 1", "size = 8"),
        &[("train.sh", TRAINER)],
    );
    rig.set_mode(TrainingMode::Manual);
    rig.graded(0, Some(1.0));
    let run = rig.train(&[]);
    assert_eq!(run.code, 3);
    assert!(run.stderr.contains("manual"), "{}", run.stderr);
    rig.instruct("i1", "be brief");
    let run = rig.train(&["--json"]);
    assert_eq!(run.code, 0, "{}", run.stderr);
    let steps = run.events("step");
    assert_eq!(steps.len(), 1);
    assert_eq!(steps[0]["metrics"]["training_request"]["text"], "be brief");
    assert_eq!(steps[0]["batch_id"], format!("{}:instruction:i1", rig.scenario));
    assert_eq!(rig.train(&[]).code, 3, "an instruction is followed once");
    rig.check_whole(1);
}

#[test]
fn a_second_driver_is_told_who_is_first() {
    let rig = Rig::new(&recipe("always", "none", ""), &[("train.sh", TRAINER)]);
    let mut first = rig.spawn(&["--watch"], None);
    rig.wait_for_driver();
    let second = rig.train(&[]);
    assert_eq!(second.code, 50, "{}", second.stderr);
    assert!(second.stderr.contains("reef train"), "{}", second.stderr);
    first.kill().unwrap();
    first.wait().unwrap();
    assert_eq!(rig.train(&[]).code, 3);
}

/// Every window between two durable states of a step.
#[cfg(feature = "failpoints")]
const WINDOWS: [&str; 15] = [
    "loop::before_seal",
    "loop::after_seal",
    "loop::before_step",
    "loop::after_step",
    "loop::before_trained",
    "loop::after_trained",
    "loop::before_judge",
    "loop::before_judged",
    "loop::after_judged",
    "loop::before_publish",
    "release::after_intent",
    "release::after_commit",
    "release::after_ref",
    "loop::before_load",
    "loop::before_end",
];

#[cfg(feature = "failpoints")]
#[test]
fn a_kill_in_any_window_loses_nothing_and_trains_nothing_twice() {
    for window in WINDOWS {
        let rig = Rig::new(
            &recipe(
                "paired",
                "program",
                "command = [\"sh\", \"gate.sh\"]\nspending = \"candidate\"",
            ),
            &[("train.sh", TRAINER), ("gate.sh", &gate_scoring("0.9", "0.1"))],
        );
        rig.graded(0, Some(1.0));
        rig.graded(1, Some(0.0));
        // Twice: what the first kill left behind is gone through again, up to the next passage of the window.
        for time in ["first", "second"] {
            let killed = rig.train_with(&["--json"], Some(&format!("{window}=return(kill)")));
            assert_eq!(killed.code, -9, "{window}, {time} time: {}", killed.stderr);
        }
        let run = rig.train(&["--json"]);
        assert!(run.code == 0 || run.code == 3, "{window}: {} {}", run.code, run.stderr);
        rig.check_whole(2);
    }
}

#[cfg(feature = "failpoints")]
#[test]
fn a_kill_while_a_refusal_is_recorded_loses_nothing() {
    for window in ["loop::before_record", "loop::after_record"] {
        let rig = Rig::new(
            &recipe("paired", "program", "command = [\"sh\", \"gate.sh\"]"),
            &[("train.sh", TRAINER), ("gate.sh", &gate_scoring("0.1", "0.9"))],
        );
        rig.graded(0, Some(1.0));
        let killed = rig.train_with(&[], Some(&format!("{window}=return(kill)")));
        assert_eq!(killed.code, -9, "{window}");
        let run = rig.train(&[]);
        assert!(run.code == 10 || run.code == 3, "{window}: {}", run.stderr);
        rig.check_whole(0);
        let steps = rig.experience().steps(&rig.scenario, &StepQuery::default()).unwrap();
        assert_eq!(
            steps.iter().filter(|step| step.outcome == "rejected").count(),
            1,
            "{window}"
        );
    }
}

#[test]
fn somebody_elses_release_during_a_step_makes_it_begin_again_on_the_new_head() {
    // The trainer itself rolls the scenario's head on, once, through the command line: a concurrent publisher.
    let meddler = format!(
        "if [ ! -e meddled ]; then touch meddled; \"$REEF\" --dir \"$REEF_FILES\" release import other --scenario s >/dev/null 2>&1; fi\n{TRAINER}"
    );
    let rig = Rig::new(
        &recipe("always", "none", ""),
        &[("train.sh", &meddler), ("other/AGENTS.md", "be brief")],
    );
    rig.graded(0, Some(1.0));
    let run = rig.train(&["--json"]);
    assert_eq!(run.code, 0, "{}", run.stderr);
    assert!(rig.path("meddled").exists());
    let steps = rig
        .experience()
        .steps(
            &rig.scenario,
            &StepQuery {
                oldest_first: true,
                ..StepQuery::default()
            },
        )
        .unwrap();
    let kinds: Vec<&str> = steps.iter().map(|step| step.operation.as_str()).collect();
    assert_eq!(
        kinds,
        ["creation", "import", "training"],
        "the foreign release stays, ours is built on it"
    );
    assert_eq!(steps[2].base_release_id.as_ref(), Some(&steps[1].release.release_id));
}

/// A grader of what follows: thanks is good, "no" is bad, anything else says nothing.
const FOLLOWED: &str = r#"
read -r ask
echo asked >> graded.log
case "$ask" in
  *'"next":'*thanks*) echo '{"score": 1, "feedback": "was thanked"}' ;;
  *'"next":'*'no, wrong'*) echo '{"score": 0}' ;;
  *) echo '{"skip": "nothing can be told from it"}' ;;
esac
"#;

#[test]
fn what_a_session_asks_next_grades_the_answer_before_it_once() {
    let recipe = recipe("always", "none", "").replace(
        "kind = \"reported\"",
        "kind = \"computed\"\ncommand = [\"sh\", \"follow.sh\"]",
    );
    let rig = Rig::new(&recipe, &[("train.sh", TRAINER), ("follow.sh", FOLLOWED)]);
    rig.asked("a1", "a", "what is 2 + 2?");
    rig.asked("b1", "b", "name a fruit");
    rig.asked("a2", "a", "thanks! and 3 + 3?");
    rig.asked("b2", "b", "no, wrong");
    rig.asked("a3", "a", "well");
    rig.asked("c1", "c", "nothing follows this");
    let run = rig.train(&["--json"]);
    assert_eq!(run.code, 0, "{}", run.stderr);
    let steps = run.events("step");
    assert_eq!(
        steps.len(),
        2,
        "a1 and b1 are graded; a2 is skipped; the last answers wait: {steps:?}"
    );
    assert_eq!(
        (&steps[0]["metrics"]["reward_mean"], &steps[1]["metrics"]["reward_mean"]),
        (&json!(1.0), &json!(0.0))
    );
    let asked = || std::fs::read_to_string(rig.path("graded.log")).unwrap().lines().count();
    assert_eq!(asked(), 3);
    let scenario = rig.scenario.clone();
    let reports = rig.experience().reports_on(&scenario, &"a1".parse().unwrap()).unwrap();
    assert_eq!((reports.len(), reports[0].row.score), (1, Some(1.0)));
    assert_eq!(rig.experience().excluded(&scenario).unwrap()["not_eligible"], 1);
    // Another run reads the traffic again, and neither grades nor trains anything twice.
    let again = rig.train(&["--json"]);
    assert_eq!(again.code, 3, "{}", again.stderr);
    assert_eq!(asked(), 3);
}

/// The page is written when training went well and when the gate refused, and needs nothing but itself.
#[test]
fn a_report_on_training_holds_every_step_and_the_gates_words() {
    let rig = Rig::new(&recipe("always", "none", ""), &[("train.sh", TRAINER)]);
    rig.graded(0, Some(0.25));
    rig.graded(1, Some(0.75));
    let run = rig.train(&["--report", "/nonexistent/out.html"]);
    assert_eq!(run.code, 2, "{}", run.stderr);
    assert!(
        run.stderr.contains("cannot write /nonexistent/out.html"),
        "{}",
        run.stderr
    );
    let steps = rig.experience().steps(&rig.scenario, &StepQuery::default()).unwrap();
    assert!(
        steps.len() < 2,
        "nothing is trained for a report that cannot be written: {steps:?}"
    );
    let run = rig.train(&["--report", "out.html"]);
    assert_eq!(run.code, 0, "{}", run.stderr);
    assert!(run.stderr.contains("wrote out.html"), "{}", run.stderr);
    let page = std::fs::read_to_string(rig.path("out.html")).unwrap();
    assert!(page.starts_with("<!doctype html>"), "{page}");
    for outside in ["src=", "<link", "<script", "https://"] {
        assert!(!page.contains(outside), "{outside}");
    }
    assert!(
        page.contains("<h2>s</h2>") && page.contains(rig.head().as_str().get(..12).unwrap()),
        "{page}"
    );
    assert_eq!(
        page.matches("<td class=\"n\">").count(),
        3,
        "the creation and two steps: {page}"
    );
    assert_eq!(page.matches("<dt>loss</dt><dd>0.5000</dd>").count(), 2, "{page}");
    // A curve of the figures, not only a table.
    assert!(page.contains("<h3>loss") && page.contains("<svg"), "{page}");
    let gate = recipe("paired", "program", "command = [\"sh\", \"gate.sh\"]");
    let rig = Rig::new(
        &gate,
        &[("train.sh", TRAINER), ("gate.sh", &gate_scoring("0.2", "0.8"))],
    );
    rig.graded(0, Some(1.0));
    let run = rig.train(&["--json", "--report", "out.html"]);
    assert_eq!(run.code, 10, "{}", run.stderr);
    let page = std::fs::read_to_string(rig.path("out.html")).unwrap();
    let steps = rig.experience().steps(&rig.scenario, &StepQuery::default()).unwrap();
    let reason = steps[0].reason.clone().unwrap();
    let words = reason.split(|c: char| !c.is_alphanumeric() && c != ' ').next().unwrap();
    assert!(
        page.contains("✗ rejected") && page.contains(words),
        "{reason} in {page}"
    );
}

#[test]
fn files_of_a_step_that_ended_in_a_killed_process_are_removed() {
    let rig = Rig::new(&recipe("always", "none", ""), &[("train.sh", TRAINER)]);
    rig.write(
        "reef/work/training/s/000007-batch-of-the-dead/candidate/half",
        "left over",
    );
    rig.graded(0, Some(1.0));
    let run = rig.train(&["--json"]);
    assert_eq!(run.code, 0, "{}", run.stderr);
    rig.check_whole(1);
}

/// `scripts/experiments/kills.sh` runs this with fifty kills.
#[test]
fn kills_at_random_moments_lose_nothing_and_train_nothing_twice() {
    let number = |name: &str, default: u64| std::env::var(name).map_or(default, |text| text.parse().unwrap());
    let (kills, mut random) = (number("REEF_KILLS", 6), number("REEF_KILL_SEED", 1) | 1);
    let rig = Rig::new(&recipe("always", "none", ""), &[("train.sh", TRAINER)]);
    let reports = u32::try_from(kills).unwrap() + 2;
    for n in 0..reports {
        rig.graded(n, Some(f64::from(n % 2)));
    }
    for kill in 0..kills {
        // xorshift64: moments from the start of the process to well within its second step.
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let mut run = rig.spawn(&["--steps", "2"], None);
        std::thread::sleep(std::time::Duration::from_millis(random % 700));
        run.kill().unwrap();
        run.wait().unwrap();
        if kill % 10 == 9 {
            eprintln!(
                "{} kills, {} steps",
                kill + 1,
                rig.experience()
                    .steps(&rig.scenario, &StepQuery::default())
                    .unwrap()
                    .len()
            );
        }
    }
    let run = rig.train(&["--json"]);
    assert!([0, 3].contains(&run.code), "{}", run.stderr);
    rig.check_whole(reports as usize);
}

/// The trainer with training state of 300 KB that differs from step to step. It notes what was given to it, and what the
/// large files took at that moment.
fn trainer_with_state() -> String {
    format!(
        r#"{}
mkdir "$out/training"
{{ cat "$batch"; head -c 300000 /dev/zero; }} > "$out/training/optimizer.safetensors"
echo "{{}}" > "$out/training/step.json"
du -sk "$REEF_FILES/artifacts.git/lfs" | cut -f1 >> sizes
field parent_state > state
[ -z "$parent" ] || ls "$parent" > files
echo '{{"event":"done","metrics":{{"loss":0.5,"tokens":10}}}}'
"#,
        TRAINER.replace("echo '{\"event\":\"done\"", "true '{\"event\":\"done\"")
    )
}

/// Nobody configured anything, and nobody runs a collection: the loop itself keeps within its bounds.
#[test]
fn a_loop_does_not_fill_the_disk() {
    let rig = Rig::new(&recipe("always", "none", ""), &[("train.sh", &trainer_with_state())]);
    for n in 0..40 {
        rig.graded(n, Some(1.0));
    }
    let run = rig.train(&["--json"]);
    assert_eq!(run.code, 0, "{}", run.stderr);
    rig.check_whole(40);
    let sizes = std::fs::read_to_string(rig.path("sizes")).unwrap();
    let sizes: Vec<u64> = sizes.lines().map(|line| line.parse().unwrap()).collect();
    let peak = *sizes.iter().max().unwrap();
    // Forty states would be 12 MB. Three are kept; eight are made before the next thinning, and a few while it goes on.
    assert!(peak < 5_500, "{sizes:?}");
    let publisher = rig.publisher();
    let repository = publisher.repository();
    let chain = repository.chain(&rig.head(), None, 100).unwrap();
    let whole: Vec<usize> = (0..chain.len())
        .filter(|age| repository.missing_object(&chain[*age].release_id).unwrap().is_none())
        .collect();
    // The last one is the creation, which has no files.
    assert_eq!(whole, [&(0..=16).collect::<Vec<_>>()[..], &[24, 40]].concat());

    // Going on from where the training state is gone: it serves, and it is said.
    let old = chain[10].release_id.clone();
    let rolled = publisher.clone();
    let (scenario, target) = (rig.scenario.clone(), old);
    rig::block_on(async move { rolled.rollback(&scenario, &target, None, None).await.unwrap() });
    rig.graded(40, Some(1.0));
    let run = rig.train(&["--json"]);
    assert_eq!(run.code, 0, "{}", run.stderr);
    let fresh = &run.events("fresh_state")[0];
    assert_eq!((&fresh["thinned"], &fresh["scenario"]), (&json!(true), &json!("s")));
    assert_eq!(run.events("step")[0]["metrics"]["fresh_training_state"], "thinned");
    let read = |name: &str| std::fs::read_to_string(rig.path(name)).unwrap();
    assert_eq!(read("state"), "thinned");
    assert!(!read("files").contains("training") && read("files").contains("adapter_model.safetensors"));
    // The step after that has its state again.
    rig.graded(41, Some(1.0));
    let run = rig.train(&["--json"]);
    assert_eq!((run.code, run.events("fresh_state").len()), (0, 0), "{}", run.stderr);
    assert_eq!(read("state"), "whole");
}

#[test]
fn without_room_no_step_begins_and_the_reason_is_told() {
    let rig = Rig::new(&recipe("always", "none", ""), &[("train.sh", &trainer_with_state())]);
    rig.graded(0, Some(1.0));
    let full = rig.train(&["--json", "--storage.min-free", "8000TiB"]);
    assert_eq!(full.code, 3, "{}", full.stderr);
    let reason = full.events("ended")[0]["blocked"][0]["reason"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(reason.contains("is free on the disk (storage.min-free)"), "{reason}");
    // Room for the first one, and not for what must be kept of it.
    let run = rig.train(&["--json", "--release.retention-max-bytes", "100KB"]);
    assert_eq!(run.code, 0, "{}", run.stderr);
    rig.graded(1, Some(1.0));
    let over = rig.train(&["--json", "--release.retention-max-bytes", "100KB"]);
    assert_eq!(over.code, 3, "{}", over.stderr);
    let reason = over.events("ended")[0]["blocked"][0]["reason"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(
        reason.contains("releases that must stay take") && reason.contains("retention-max-bytes"),
        "{reason}"
    );
    let run = rig.train(&["--json"]);
    assert_eq!(run.code, 0, "{}", run.stderr);
    rig.check_whole(2);
}
