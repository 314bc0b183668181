//! `reef train` on a recipe that evolves a harness tree: a scripted model behind a real service loop, a real agent (or a
//! small shell agent where none is installed) in real sandboxes, the real gate.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a failed test may panic"
)]
#![cfg(target_os = "linux")]

mod common;
#[path = "evolution/model.rs"]
mod model;
#[path = "train_loop/rig.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod rig;

use common::upstream::Upstream;
use model::{LESSON, Scripted};
use reef::domain::{ReleaseId, TrainingMode};
use reef::experience::{Attempt, AttemptState, ProposalState};
use reef::harness::tree::{TREE_FILE, Tree};
use rig::Rig;
use serde_json::json;

/// Speaks to the model like an agent does: the rules first, then the prompt, over the address and key of its files.
const AGENT: &str = r#"#!/bin/bash
rules=$(cat "$PI_CODING_AGENT_DIR/AGENTS.md" 2>/dev/null | tr '\n"' '  ')
prompt=$(printf '%s' "${@: -1}" | tr '\n"' '  ')
field() { sed -n "s/.*\"$1\": \"\([^\"]*\)\".*/\1/p" "$PI_CODING_AGENT_DIR/models.json" | head -1; }
body="{\"model\":\"m\",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"bash\"}}],\"messages\":[{\"role\":\"system\",\"content\":\"$rules\"},{\"role\":\"user\",\"content\":\"$prompt\"}]}"
answer=$(curl -sS -H "Authorization: Bearer $(field apiKey)" -H 'content-type: application/json' -d "$body" "$(field baseUrl)/chat/completions")
printf '%s\n' "$answer" > answer.json
echo "$answer"
"#;

const SUITE: &str = r#"
{"id": "one", "prompt": "What is the first word?", "answer": "alpha"}
{"id": "two", "prompt": "What is the second word?", "answer": "alpha"}
{"id": "three", "prompt": "What is the third word?", "answer": "alpha"}
{"id": "known", "prompt": "What is already known?", "answer": "known", "protected": true}
"#;

/// A rig whose recipe evolves, with a shell agent and a scripted model.
fn rig(upstream: &Upstream, more: &str) -> Rig {
    let recipe = format!(
        "format = 1\nname = \"test\"\nextends = \"evolve\"\n[batch]\nsize = 1\n[gate]\nparallel = 2\nmaximum-pairs = 40\n\
         protected-repeats = 1\n[evolution]\nbinary = \"AGENT\"\n{more}"
    );
    let rig = Rig::new(
        "format = 1\nname = \"none\"\n",
        &[
            ("agent/pi", AGENT),
            ("tasks/tasks.jsonl", SUITE),
            ("tasks/suite.toml", "name = \"words\"\n[checker]\nkind = \"exact\"\n"),
        ],
    );
    let agent = rig.path("agent/pi");
    std::process::Command::new("chmod")
        .arg("755")
        .arg(&agent)
        .status()
        .unwrap();
    rig.write("recipe.toml", &recipe.replace("AGENT", agent.to_str().unwrap()));
    rig.write(
        "serve.toml",
        &format!(
            "[recipe]\nimplementation = \"recipe.toml\"\n[inference]\nupstream-url = \"{}\"\nupstream-model = \"scripted\"\n\
             upstream-api-key = \"provider-secret-key\"\n",
            upstream.url()
        ),
    );
    rig
}

fn no_namespaces(run: &rig::Run) -> bool {
    let missing = run.stderr.contains("programs cannot be isolated here");
    if missing {
        eprintln!("skipped: no namespaces here");
    }
    missing
}

fn attempts(rig: &Rig) -> Vec<Attempt> {
    rig.experience().attempts(&rig.scenario, 100).unwrap()
}

fn tree_of(rig: &Rig, release: &ReleaseId) -> Tree {
    let bytes = rig.publisher().repository().read_file(release, TREE_FILE).unwrap();
    Tree::from_json(&serde_json::from_slice(&bytes.unwrap()).unwrap()).unwrap()
}

#[test]
fn a_failure_becomes_a_rule_that_the_agent_does_better_with() {
    let scripted = Scripted::good();
    let upstream = Upstream::start(scripted.clone().script());
    let rig = rig(&upstream, "");
    rig.graded(0, Some(0.0));
    rig.graded(1, Some(1.0));
    let run = rig.train(&["--json"]);
    if no_namespaces(&run) {
        return;
    }
    assert_eq!(run.code, 0, "{}\n{}", run.stdout, run.stderr);
    let steps = run.events("step");
    assert_eq!(steps.len(), 1, "what went well starts nothing: {steps:?}");
    assert_eq!(steps[0]["outcome"], "released", "{steps:?}");
    let head = rig.head();
    assert!(tree_of(&rig, &head).entries_json().to_string().contains(LESSON));
    let rules = rig
        .publisher()
        .repository()
        .read_file(&head, "pi-agent/AGENTS.md")
        .unwrap();
    assert!(String::from_utf8(rules.unwrap()).unwrap().contains(LESSON));
    let attempt = attempts(&rig).remove(0);
    assert_eq!(
        (attempt.state, attempt.source.as_str()),
        (AttemptState::Published, "failures")
    );
    assert_eq!(attempt.release, Some(head));
    let events = rig.experience().attempt_events(&attempt.id, 1000).unwrap();
    assert!(
        events
            .iter()
            .any(|event| event.kind == "trial" && event.text.contains("candidate on one: score 1"))
    );
    // The provider's key is for the provider: no episode, no record of one, no artifact holds it.
    let seen = upstream.seen();
    assert!(
        seen.iter()
            .all(|seen| seen.header("authorization") == Some("Bearer provider-secret-key"))
    );
    assert!(
        !seen
            .iter()
            .any(|seen| String::from_utf8_lossy(&seen.body).contains("provider-secret-key"))
    );
    // The proposer saw what was answered, as data.
    let asked = scripted.asked.all();
    assert!(
        asked[0].contains("an answer") && asked[0].contains("<<<TRACE"),
        "{}",
        asked[0]
    );
}

#[test]
fn a_change_that_does_not_help_is_rejected_once_and_remembered() {
    let scripted = Scripted::saying(&["Be polite.", "Be polite.", "Be brief."]);
    let upstream = Upstream::start(scripted.clone().script());
    let rig = rig(&upstream, "");
    let before = rig.head();
    for n in 0..3 {
        rig.graded(n, Some(0.0));
    }
    let run = rig.train(&["--json"]);
    if no_namespaces(&run) {
        return;
    }
    assert!(matches!(run.code, 10 | 11), "{}\n{}", run.stdout, run.stderr);
    assert_eq!(rig.head(), before);
    let mut states: Vec<(AttemptState, String)> = attempts(&rig)
        .into_iter()
        .map(|attempt| (attempt.state, attempt.outcome.unwrap_or_default()))
        .collect();
    states.reverse();
    assert_eq!(states[0].0, AttemptState::Rejected, "{states:?}");
    assert_eq!(states[1].0, AttemptState::Skipped, "{states:?}");
    assert!(states[1].1.contains("tried before"), "{states:?}");
    assert_eq!(states[2].0, AttemptState::Rejected, "{states:?}");
    let asked = scripted.asked.all();
    assert!(!asked[0].contains("Be polite."), "{}", asked[0]);
    assert!(
        asked[1].contains("Be polite.") && asked[1].contains("rejected"),
        "{}",
        asked[1]
    );
}

#[test]
fn an_answer_that_broke_off_changes_nothing_and_says_so() {
    let scripted = Scripted::raw("```json\n{\"reason\": \"r\", \"mutations\": [{\"op\": \"create\"");
    let upstream = Upstream::start(scripted.clone().script());
    let rig = rig(&upstream, "");
    rig.graded(0, Some(0.0));
    let before = rig.head();
    let run = rig.train(&["--json"]);
    assert_eq!(run.code, 0, "{}\n{}", run.stdout, run.stderr);
    assert_eq!(rig.head(), before);
    let step = &run.events("step")[0];
    assert_eq!(step["outcome"], "skipped", "{step}");
    assert!(
        step["reason"].as_str().unwrap().contains("malformed proposal"),
        "{step}"
    );
    assert_eq!(scripted.asked.all().len(), 2, "it is asked once more, not for ever");
    rig.check_whole(0);
}

#[test]
fn an_instruction_runs_in_manual_mode_and_breaking_a_protected_task_is_never_released() {
    let scripted = Scripted::saying(&[&format!("{LESSON} FORGET-THE-KNOWN")]);
    let upstream = Upstream::start(scripted.clone().script());
    let rig = rig(&upstream, "");
    rig.graded(0, Some(0.0));
    rig.set_mode(TrainingMode::Manual);
    rig.instruct("i1", "always answer with the first word");
    let run = rig.train(&["--json"]);
    if no_namespaces(&run) {
        return;
    }
    assert_eq!(run.code, 10, "{}\n{}", run.stdout, run.stderr);
    let verdict = &run.events("judged")[0];
    assert!(
        verdict["reason"].as_str().unwrap().contains("protected task known"),
        "{verdict}"
    );
    let attempt = rig.experience().attempt_of(&rig.scenario, "i1").unwrap().unwrap();
    assert_eq!(
        (attempt.state, attempt.source.as_str()),
        (AttemptState::Rejected, "instruction")
    );
    assert!(scripted.asked.all()[0].contains("always answer with the first word"));
}

#[test]
fn a_kill_at_any_stage_loses_nothing_and_repeats_nothing() {
    let places = [
        "evolve::before_proposal",
        "evolve::after_proposal",
        "loop::after_trained",
        "evolve::before_episodes",
        "loop::before_judged",
        "loop::after_judged",
        "loop::before_publish",
        "release::after_settle",
        "loop::before_end",
    ];
    for place in places {
        let upstream = Upstream::start(Scripted::good().script());
        let rig = rig(&upstream, "");
        rig.graded(0, Some(0.0));
        let first = rig.train_with(&["--json"], Some(&format!("{place}=return(kill)")));
        if no_namespaces(&first) {
            return;
        }
        assert_eq!(first.code, -9, "{place}: {}\n{}", first.stdout, first.stderr);
        let second = rig.train(&["--json"]);
        assert!(
            matches!(second.code, 0 | 3),
            "{place}: {}\n{}",
            second.stdout,
            second.stderr
        );
        rig.check_whole(1);
        let attempts = attempts(&rig);
        assert_eq!(attempts.len(), 1, "{place}: {attempts:?}");
        assert_eq!(attempts[0].state, AttemptState::Published, "{place}");
        assert_eq!(attempts[0].release, Some(rig.head()), "{place}");
    }
}

/// Another command of the program on the rig's files.
fn reef(rig: &Rig, args: &[&str]) -> std::process::Output {
    std::process::Command::new(env!("CARGO_BIN_EXE_reef"))
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap())
        .env("HOME", rig.path("home"))
        .env(
            "LD_LIBRARY_PATH",
            std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default(),
        )
        .args([
            "-c",
            "serve.toml",
            "--dir",
            rig.path("reef").to_str().unwrap(),
            "--json",
        ])
        .args(args)
        .current_dir(rig.path(""))
        .output()
        .unwrap()
}

fn proposal(text: &str) -> String {
    json!({"reason": "it helps", "mutations": [
        {"op": "create", "id": "words", "options": {"name": "rules", "config": {"text": text}}},
    ]})
    .to_string()
}

#[test]
fn a_proposal_waits_is_tried_and_settles_and_a_bad_one_is_refused_at_once() {
    let upstream = Upstream::start(Scripted::good().script());
    let rig = rig(&upstream, "maximum-pending = 1\n");
    rig.write("good.json", &proposal(LESSON));
    rig.write(
        "bad.json",
        &proposal("use the key sk-abcdefghijklmnopqrstuvwx0123456789"),
    );
    let propose = |file: &str| {
        let output = reef(&rig, &["harness", "propose", file, "-s", "s"]);
        let answer: serde_json::Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)));
        (output.status.code().unwrap(), answer)
    };
    let (code, answer) = propose("bad.json");
    assert_eq!((code, &answer["admitted"]), (10, &json!(false)), "{answer}");
    assert!(
        !answer.to_string().contains("sk-abc"),
        "the text itself is never repeated: {answer}"
    );
    let (code, answer) = propose("good.json");
    assert_eq!((code, &answer["admitted"]), (0, &json!(true)), "{answer}");
    let id = answer["proposal_id"].as_str().unwrap().to_owned();
    let (code, answer) = propose("good.json");
    assert_eq!(code, 10, "{answer}");
    assert!(answer["reason"].as_str().unwrap().contains("wait already"), "{answer}");
    let run = rig.train(&["--json"]);
    if no_namespaces(&run) {
        return;
    }
    assert_eq!(run.code, 0, "{}\n{}", run.stdout, run.stderr);
    let attempt = rig.experience().attempt_of(&rig.scenario, &id).unwrap().unwrap();
    assert_eq!(
        (attempt.state, attempt.source.as_str()),
        (AttemptState::Published, "proposal")
    );
    let settled = rig.experience().proposal(&id).unwrap().unwrap();
    assert_eq!(settled.state, ProposalState::Settled);
    assert!(settled.outcome.unwrap().starts_with("published"));
    assert!(
        tree_of(&rig, &rig.head()).entries_json().to_string().contains(&id),
        "the tree says who made the entry"
    );
    let stored = std::fs::read(rig.path("reef/experience.db")).unwrap();
    assert!(!String::from_utf8_lossy(&stored).contains("sk-abcdefghijklmnopqrstuvwx"));
}

#[test]
fn a_tree_that_proves_worse_later_goes_back_to_the_one_it_replaced() {
    let upstream = Upstream::start(Scripted::good().script());
    let rig = rig(&upstream, "recheck-every = 2\n");
    let first = rig.head();
    rig.graded(0, Some(0.0));
    let run = rig.train(&["--json"]);
    if no_namespaces(&run) {
        return;
    }
    assert_eq!(run.code, 0, "{}\n{}", run.stdout, run.stderr);
    let published = rig.head();
    // What counts as right has changed: now the rule does harm.
    rig.write("tasks/tasks.jsonl", &SUITE.replace("\"alpha\"", "\"I do not know.\""));
    rig.graded(1, Some(0.0));
    let run = rig.train(&["--json"]);
    let steps = run.events("step");
    let last = steps.last().unwrap();
    assert_eq!(last["metrics"]["recheck"], true, "{}\n{}", run.stdout, run.stderr);
    assert_eq!(last["outcome"], "released", "{last}");
    assert_ne!(rig.head(), published);
    assert_eq!(tree_of(&rig, &rig.head()).entries.len(), 0, "as it was at {first}");
    let behind = rig
        .experience()
        .attempt_behind(&rig.scenario, &published)
        .unwrap()
        .unwrap();
    assert_eq!(behind.state, AttemptState::RolledBack);
    let again = rig.train(&["--json"]);
    assert_eq!(again.code, 3, "it does not go back and forth: {}", again.stdout);
}

#[test]
fn a_budget_ends_a_step_undecided_and_blocks_the_next() {
    let upstream = Upstream::start(Scripted::good().script());
    let rig = rig(&upstream, "[evolution.budget]\nepisodes = 6\nepisodes-per-day = 6\n");
    let before = rig.head();
    rig.graded(0, Some(0.0));
    rig.graded(1, Some(0.0));
    let run = rig.train(&["--json"]);
    if no_namespaces(&run) {
        return;
    }
    assert_eq!(rig.head(), before, "{}", run.stdout);
    let steps = run.events("step");
    assert!(steps.len() <= 1, "{steps:?}");
    let attempt = attempts(&rig).remove(0);
    let figures = &attempt.notes["verdict"]["figures"];
    assert!(
        figures["stopped"]
            .as_str()
            .unwrap()
            .contains("evolution.budget.episodes"),
        "{figures}"
    );
    assert!(figures["episodes"].as_u64().unwrap() <= 8, "{figures}");
    let spent = rig.experience().spent_today(&rig.scenario).unwrap();
    assert!(spent.episodes >= 6 && spent.tokens > 0, "{spent:?}");
}

#[test]
fn a_model_that_is_down_is_no_evidence() {
    let answer = Scripted::good().script();
    let upstream = Upstream::start(move |seen, n| {
        if String::from_utf8_lossy(&seen.body).contains("You improve the harness") || seen.method == "GET" {
            return answer(seen, n);
        }
        common::upstream::answer(500, "application/json", "{\"error\":{\"message\":\"down\"}}")
    });
    let rig = rig(&upstream, "");
    let before = rig.head();
    rig.graded(0, Some(0.0));
    let run = rig.train(&["--json", "--patience", "0"]);
    if no_namespaces(&run) {
        return;
    }
    assert_eq!(rig.head(), before);
    assert!(
        run.events("step").is_empty(),
        "the candidate waits for a measurement that works: {}",
        run.stdout
    );
    assert!(
        format!("{}{}", run.stdout, run.stderr).contains("could not measure"),
        "{}\n{}",
        run.stdout,
        run.stderr
    );
    assert_eq!(attempts(&rig)[0].state, AttemptState::Evaluating);
}

#[test]
fn harbor_task_folders_are_run_as_they_are() {
    let upstream = Upstream::start(Scripted::good().script());
    let rig = rig(&upstream, "");
    std::fs::remove_file(rig.path("tasks/tasks.jsonl")).unwrap();
    rig.write("tasks/suite.toml", "sealed = [\"third\"]\n");
    for name in ["first", "second", "third"] {
        let file = |part: &str| format!("tasks/{name}/{part}");
        rig.write(
            &file("task.toml"),
            "version = \"1.0\"\n[verifier]\ntimeout_sec = 30.0\n",
        );
        rig.write(&file("instruction.md"), &format!("What is the {name} word?"));
        rig.write(
            &file("environment/Dockerfile"),
            "FROM ubuntu:24.04\nWORKDIR /work\nCOPY hint.txt ./\nRUN sed -i s/hint/tip/ hint.txt && git config --global user.name me \\\n  && mkdir -p /srv/tips && cp hint.txt /srv/tips\nCOPY more.txt ./\nRUN cat more.txt >> hint.txt\n",
        );
        rig.write(&file("environment/hint.txt"), "a hint");
        rig.write(&file("environment/more.txt"), " and more");
        rig.write(
            &file("tests/test.sh"),
            "test \"$(cat /work/hint.txt)\" = 'a tip and more' || exit 1\ntest \"$(cat /srv/tips/hint.txt)\" = 'a tip' || exit 1\ntest \"$(git config --global user.name)\" = me || exit 1\nif grep -q alpha /work/answer.json; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n",
        );
    }
    rig.graded(0, Some(0.0));
    let run = rig.train(&["--json"]);
    if no_namespaces(&run) {
        return;
    }
    assert_eq!(run.code, 0, "{}\n{}", run.stdout, run.stderr);
    assert_eq!(run.events("step")[0]["outcome"], "released");
    let attempt = attempts(&rig).remove(0);
    let figures = &attempt.notes["verdict"]["figures"];
    assert_eq!(
        figures["sealed"],
        json!({"tasks": 1, "measured": 1, "mean": 1.0}),
        "{figures}"
    );
    let events = rig.experience().attempt_events(&attempt.id, 1000).unwrap();
    let gate_saw_sealed = events.iter().filter(|event| event.text.contains("on third")).count();
    assert_eq!(gate_saw_sealed, 1, "a sealed task is scored once, after the verdict");
}

#[test]
fn a_task_that_cannot_be_set_up_measures_nothing_and_says_why() {
    let upstream = Upstream::start(Scripted::good().script());
    let rig = rig(&upstream, "");
    std::fs::remove_file(rig.path("tasks/tasks.jsonl")).unwrap();
    rig.write("tasks/suite.toml", "name = \"broken\"\n");
    rig.write("tasks/one/task.toml", "version = \"1.0\"\n");
    rig.write("tasks/one/instruction.md", "What is the first word?");
    rig.write("tasks/one/tests/test.sh", "echo 1 > /logs/verifier/reward.txt\n");
    let run_line = "RUN echo about to fail && cat /work/nothing\n";
    rig.write(
        "tasks/one/environment/Dockerfile",
        &format!("FROM x\nWORKDIR /work\n{run_line}"),
    );
    let before = rig.head();
    rig.graded(0, Some(0.0));
    let run = rig.train(&["--json", "--patience", "0"]);
    if no_namespaces(&run) {
        return;
    }
    assert_eq!(rig.head(), before);
    let attempt = attempts(&rig).remove(0);
    let events = rig.experience().attempt_events(&attempt.id, 1000).unwrap();
    let why = "the task cannot be set up: Dockerfile line 3 ended with status 1: about to fail";
    assert!(events.iter().any(|event| event.text.contains(why)), "{events:?}");
}

#[test]
fn a_program_in_any_language_proposes_and_its_code_waits_for_a_person() {
    let upstream = Upstream::start(Scripted::good().script());
    let rig = rig(
        &upstream,
        "proposer = \"program\"\ncommand = [\"bash\", \"propose.sh\"]\nkinds = [\"rules\", \"code_extension\"]\n",
    );
    rig.write(
        "propose.sh",
        &format!(
            r#"read -r context
case "$context" in *'"traces":['*) ;; *) exit 9 ;; esac
echo '{{"event":"model","id":1,"body":{{"messages":[{{"role":"user","content":"What is the first word?"}}]}}}}'
read -r reply
case "$reply" in *'I do not know.'*) ;; *) exit 8 ;; esac
echo '{{"event":"check","id":2,"mutations":[{{"op":"remove","id":"nothing"}}]}}'
read -r checked
case "$checked" in *'"admitted":false'*) ;; *) exit 7 ;; esac
echo '{{"event":"proposal","reason":"asked and checked","mutations":[{{"op":"create","id":"words","options":{{"name":"rules","config":{{"text":"{LESSON}"}}}}}},{{"op":"create","id":"x","options":{{"name":"code_extension","config":{{"name":"x","code":"export default function () {{}}"}}}}}}]}}'
"#
        ),
    );
    rig.graded(0, Some(0.0));
    let before = rig.head();
    let run = rig.train(&["--json"]);
    if no_namespaces(&run) {
        return;
    }
    assert_eq!(run.code, 0, "{}\n{}", run.stdout, run.stderr);
    let step = &run.events("step")[0];
    assert_eq!(step["outcome"], "held", "{step}");
    assert!(step["reason"].as_str().unwrap().contains("code_extension"), "{step}");
    assert_eq!(rig.head(), before, "what is held is not served");
    let attempt = attempts(&rig).remove(0);
    assert_eq!(attempt.state, AttemptState::Held);
    let held = attempt.release.unwrap();
    let promoted = reef(&rig, &["release", "promote", held.as_str(), "--scenario", "s"]);
    assert!(
        promoted.status.success(),
        "{}",
        String::from_utf8_lossy(&promoted.stderr)
    );
    assert!(tree_of(&rig, &rig.head()).get("x").is_some());
}
