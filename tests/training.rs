//! A training step in a child process: the real program as the child, a tiny decoder as the model.
#![cfg(feature = "torch")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failed test may panic"
)]

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use reef::domain::{BatchId, RecordId, ScenarioName};
use reef::train::objective::ObjectiveSettings;
use reef::train::{
    Backend, Control, Method, StepEvent, StepJob, StepOutcome, StepResult, TrainBatch, TrainError, TrainRow,
    TrainSettings, Trainer,
};
use serde_json::{Map, json};
use tch::{Device, Kind, Tensor};

/// A decoder of the given shape, its weights a fixed pattern.
fn write_model(dir: &Path, hidden: i64, layers: i64) {
    std::fs::create_dir_all(dir).unwrap();
    let (inner, vocab) = (2 * hidden, 32);
    let config = json!({
        "model_type": "llama", "hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": vocab, "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": true,
    });
    std::fs::write(dir.join("config.json"), config.to_string()).unwrap();
    let mut drawn = 0.0;
    let mut pattern = |shape: &[i64]| {
        drawn += 1.0;
        let n: i64 = shape.iter().product();
        let line = Tensor::arange(n, (Kind::Float, Device::Cpu)) * 12.9898 + drawn;
        (line.sin() * 0.2).reshape(shape)
    };
    let ones = || Tensor::ones([hidden], (Kind::Float, Device::Cpu));
    let mut named = vec![("model.embed_tokens.weight".to_owned(), pattern(&[vocab, hidden]))];
    for i in 0..layers {
        let base = format!("model.layers.{i}");
        for (name, out, input) in [
            ("self_attn.q_proj", hidden, hidden),
            ("self_attn.k_proj", hidden / 2, hidden),
            ("self_attn.v_proj", hidden / 2, hidden),
            ("self_attn.o_proj", hidden, hidden),
            ("mlp.gate_proj", inner, hidden),
            ("mlp.up_proj", inner, hidden),
            ("mlp.down_proj", hidden, inner),
        ] {
            named.push((format!("{base}.{name}.weight"), pattern(&[out, input])));
        }
        named.push((format!("{base}.input_layernorm.weight"), ones()));
        named.push((format!("{base}.post_attention_layernorm.weight"), ones()));
    }
    named.push(("model.norm.weight".to_owned(), ones()));
    Tensor::write_safetensors(&named, dir.join("model.safetensors")).unwrap();
}

fn job(root: &Path, name: &str, rows: usize, length: u32) -> StepJob {
    let row = |i: usize| TrainRow {
        sources: vec![RecordId::new(format!("r{i}")).unwrap()],
        prompt: vec![1, 2, 3],
        response: (0..length).map(|t| (t + i as u32) % 32).collect(),
        loss_mask: vec![true; length as usize],
        action_mask: None,
        log_probs: Some(vec![-3.4; length as usize]),
        temperature: 1.0,
        reward: Some((i % 2) as f64),
        group: Some("g".into()),
        spans: Vec::new(),
        truncated: false,
    };
    let objective = ObjectiveSettings::from_family("grpo", &Map::new()).unwrap();
    let mut settings = TrainSettings::new(objective);
    settings.limits.threads = 1;
    settings.method = Method::Lora {
        rank: 4,
        alpha: 4.0,
        targets: vec!["q_proj".into(), "down_proj".into()],
        seed: 1,
    };
    StepJob {
        step: 1,
        batch: TrainBatch {
            id: BatchId::new("b").unwrap(),
            scenario: ScenarioName::new("s").unwrap(),
            rows: (0..rows).map(row).collect(),
        },
        base: root.join("base"),
        base_name: "tiny".into(),
        parent: None,
        output: root.join("work").join(name),
        settings,
    }
}

fn process() -> Backend {
    Backend::Process {
        program: PathBuf::from(env!("CARGO_BIN_EXE_reef")),
    }
}

#[track_caller]
fn trained(outcome: StepOutcome) -> StepResult {
    match outcome {
        StepOutcome::Trained(result) => result,
        StepOutcome::Skipped { skip } => panic!("{}", skip.reason()),
    }
}

fn adapter(result: &StepResult) -> Vec<u8> {
    std::fs::read(result.candidate.join("adapter_model.safetensors")).unwrap()
}

#[test]
fn a_child_makes_the_same_candidate_as_a_thread() {
    let root = tempfile::tempdir().unwrap();
    write_model(&root.path().join("base"), 16, 2);
    let control = Control::default();
    let mut events = Vec::new();
    let there = trained(
        process()
            .run(&job(root.path(), "there", 4, 6), &control, &mut |e| events.push(e))
            .unwrap(),
    );
    let inline = Backend::Inline(Trainer::new());
    let here = trained(
        inline
            .run(&job(root.path(), "here", 4, 6), &control, &mut |_| {})
            .unwrap(),
    );
    assert_eq!(adapter(&there), adapter(&here));
    assert!(
        matches!(events[0], StepEvent::Started { rows: 4, .. }) && events.contains(&StepEvent::Saving),
        "{events:?}"
    );
    let again = trained(
        process()
            .run(&job(root.path(), "there", 4, 6), &control, &mut |_| {})
            .unwrap(),
    );
    assert!(again.reused);
}

#[test]
fn an_error_of_the_step_comes_back_in_words() {
    let root = tempfile::tempdir().unwrap();
    write_model(&root.path().join("base"), 16, 1);
    let mut bad = job(root.path(), "bad", 2, 4);
    bad.batch.rows[1].response[2] = 99;
    let error = process().run(&bad, &Control::default(), &mut |_| {}).unwrap_err();
    assert!(
        matches!(&error, TrainError::Child { message } if message.contains("token 99")),
        "{error}"
    );
    let mut gone = job(root.path(), "gone", 2, 4);
    gone.base = root.path().join("nowhere");
    let error = process().run(&gone, &Control::default(), &mut |_| {}).unwrap_err();
    assert!(error.to_string().contains("nowhere"), "{error}");
}

#[test]
fn a_child_that_dies_is_a_typed_error_with_its_last_words() {
    let root = tempfile::tempdir().unwrap();
    let script = root.path().join("child");
    std::fs::write(
        &script,
        "#!/bin/sh\nread job\necho '{\"event\":{\"event\":\"saving\"}}'\necho 'out of memory' >&2\nkill -9 $$\n",
    )
    .unwrap();
    std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let backend = Backend::Process { program: script };
    let mut events = Vec::new();
    let error = backend
        .run(&job(root.path(), "x", 2, 4), &Control::default(), &mut |e| {
            events.push(e);
        })
        .unwrap_err();
    assert_eq!(events, [StepEvent::Saving]);
    assert!(
        matches!(&error, TrainError::Process { fate, last_words }
            if fate == "was killed by signal 9" && last_words == "out of memory"),
        "{error:?}"
    );
    let nobody = Backend::Process {
        program: root.path().join("nobody"),
    };
    let error = nobody
        .run(&job(root.path(), "x", 2, 4), &Control::default(), &mut |_| {})
        .unwrap_err();
    assert!(error.to_string().contains("could not be started"), "{error}");
}

/// A step long enough to be interrupted: many micro-batches of one row.
fn long_job(root: &Path) -> StepJob {
    let mut long = job(root, "long", 400, 256);
    long.settings.limits.token_budget = 1;
    long
}

#[test]
fn a_child_pauses_goes_on_and_is_cancelled_leaving_nothing() {
    let root = tempfile::tempdir().unwrap();
    write_model(&root.path().join("base"), 64, 4);
    let control = Control::default();
    let (send, receive) = std::sync::mpsc::channel();
    let worker = {
        let (control, long) = (control.clone(), long_job(root.path()));
        std::thread::spawn(move || process().run(&long, &control, &mut |e| send.send(e).unwrap()))
    };
    let patience = Duration::from_secs(60);
    let micro = |e: &StepEvent| matches!(e, StepEvent::MicroBatch { .. });
    while !micro(&receive.recv_timeout(patience).unwrap()) {}
    control.pause();
    // The word takes a moment to arrive; then there is silence.
    let quiet = Instant::now();
    while receive.recv_timeout(Duration::from_secs(2)).is_ok() {
        assert!(quiet.elapsed() < patience, "it does not pause");
    }
    assert!(!worker.is_finished());
    control.resume();
    assert!(micro(&receive.recv_timeout(patience).unwrap()));
    control.cancel();
    let outcome = worker.join().unwrap();
    assert!(matches!(outcome, Err(TrainError::Cancelled)), "{outcome:?}");
    assert_eq!(
        std::fs::read_dir(root.path().join("work")).map_or(0, Iterator::count),
        0
    );
}

#[test]
fn a_child_whose_parent_dies_stops() {
    use std::io::Write;
    let root = tempfile::tempdir().unwrap();
    write_model(&root.path().join("base"), 64, 4);
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_reef"))
        .arg("__train-step")
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    writeln!(stdin, "{}", serde_json::to_string(&long_job(root.path())).unwrap()).unwrap();
    drop(stdin);
    let begun = Instant::now();
    while child.try_wait().unwrap().is_none() {
        assert!(begun.elapsed() < Duration::from_secs(60), "the orphan goes on");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(
        std::fs::read_dir(root.path().join("work")).map_or(0, Iterator::count),
        0
    );
}

/// Killed before or after the candidate gets its name: absent or whole, and the next try completes or finds it.
#[cfg(feature = "failpoints")]
#[test]
fn a_child_killed_around_the_rename_leaves_it_whole_or_absent() {
    let root = tempfile::tempdir().unwrap();
    write_model(&root.path().join("base"), 16, 1);
    for (point, there) in [("train::before_rename", false), ("train::after_rename", true)] {
        let script = root.path().join("child");
        let text = format!(
            "#!/bin/sh\nFAILPOINTS='{point}=return(kill)' exec '{}' \"$@\"\n",
            env!("CARGO_BIN_EXE_reef")
        );
        std::fs::write(&script, text).unwrap();
        std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let name = point.replace(':', "-");
        let job = job(root.path(), &name, 2, 4);
        let dying = Backend::Process { program: script };
        let error = dying.run(&job, &Control::default(), &mut |_| {}).unwrap_err();
        assert!(
            matches!(&error, TrainError::Process { fate, .. } if fate == "was killed by signal 9"),
            "{error}"
        );
        assert_eq!(job.output.exists(), there, "{point}");
        let result = trained(process().run(&job, &Control::default(), &mut |_| {}).unwrap());
        assert_eq!(result.reused, there, "{point}");
        let parts = std::fs::read_dir(root.path().join("work")).unwrap();
        let left = parts.filter(|e| e.as_ref().unwrap().file_name().to_string_lossy().contains(".part-"));
        assert_eq!(left.count(), 0, "{point}");
    }
}
