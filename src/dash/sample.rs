//! Fixed data for the tests of the screens and for the pictures: one deployment on one afternoon.

mod evolution;

pub(super) use evolution::tried;

use serde_json::{Map, json};

use super::snapshot::{
    CaptureFacts, DiffFile, Evidence, FileFacts, Focus, JobFacts, Live, Newest, RecordDetail, RecordFacts, ReportFacts,
    ScenarioFacts, Service, Snapshot, StepFacts, StoreFacts,
};
use crate::domain::{Outcome, PairedScore, Verdict};
use crate::telemetry::LogLine;

/// 2026-03-14 15:09:26 UTC.
pub(super) const NOW: i64 = 1_773_500_966_000_000;

fn release(n: u64) -> String {
    use sha2::Digest;
    hex::encode(sha2::Sha256::digest(n.to_le_bytes()))[..40].to_owned()
}

fn record_id(n: u64) -> String {
    format!(
        "019cec1f{:08x}7{:03x}8a{:010x}",
        n * 1375,
        n % 4096,
        n * 0x0bed_cba9 % 0x100_0000_0000
    )
}

fn step(n: u64) -> StepFacts {
    let (outcome, state, reason) = match n {
        0 | 19 => ("released", "released", None),
        5 | 9 | 14 => (
            "rejected",
            "released",
            Some("won 9, lost 11 of 40 pairs; p = 0.67, wanted at most 0.05"),
        ),
        12 => (
            "held",
            "rejected",
            Some("a person must decide: the recipe names the rule review"),
        ),
        17 => (
            "skipped",
            "released",
            Some("failed 10 times: the trainer ran out of memory"),
        ),
        23 => (
            "held",
            "held",
            Some("a person must decide: the recipe names the rule review"),
        ),
        _ => ("released", "released", Some("won 21, lost 4 of 40 pairs; p = 0.0009")),
    };
    let kept = |n: u64| {
        if outcome == "released" || outcome == "held" {
            n
        } else {
            n - 1
        }
    };
    let x = n as f64;
    StepFacts {
        step: n,
        release: release(kept(n)),
        parent: (n > 0).then(|| release(n - 1)),
        operation: if n == 0 {
            "creation"
        } else if n == 19 {
            "rollback"
        } else {
            "training"
        }
        .to_owned(),
        outcome: outcome.to_owned(),
        state: state.to_owned(),
        kind: if n == 0 { "empty" } else { "lora-adapter" }.to_owned(),
        bytes: if n == 0 { 0 } else { 3_690_000 + n * 128 },
        sequence: n,
        target: (n == 19).then(|| release(16)),
        restorable: n != 2,
        note: (n == 12).then(|| "answers got longer, not better".to_owned()),
        reason: reason.map(str::to_owned),
        at_us: NOW - (24 - n as i64) * 341_000_000,
        batch: (n > 0 && n != 19).then(|| format!("b{:063x}", n * 0xabc_def1)),
        metrics: if n == 0 || n == 19 {
            Default::default()
        } else {
            [
                ("loss", 1.9 * (-x / 9.0).exp() + 0.2 + 0.07 * (x * 1.7).sin()),
                ("reward_mean", 0.85 - 0.7 * (-x / 8.0).exp() + 0.04 * (x * 2.3).sin()),
                ("kl", 0.002 * x + 0.003 * (x * 0.9).cos().abs()),
                ("grad_norm", 0.8 + 0.5 * (x * 1.1).sin().abs()),
                ("tokens", 3100.0 + 40.0 * x),
                ("seconds", 6.5 + (x * 0.7).sin()),
                ("samples", 24.0),
                ("staleness/lag_mean", (n % 3) as f64 * 0.5),
            ]
            .map(|(name, value)| (name.to_owned(), value))
            .into()
        },
        asked: (n == 21).then(|| "answer with the label alone, in lower case".to_owned()),
        asked_by: (n == 21).then(|| record_id(52)),
    }
}

fn record(n: u64) -> RecordFacts {
    let kind = match n {
        52 => "train",
        n if n % 4 == 3 => "report",
        _ => "inference",
    };
    let exchange = kind == "inference";
    let failed = n == 41;
    RecordFacts {
        sequence: n as i64,
        id: record_id(n),
        kind: kind.to_owned(),
        at_us: NOW - (64 - n as i64) * 1_375_000,
        status: exchange.then_some(if failed { 422 } else { 200 }),
        route: exchange.then(|| "/v1/chat/completions".to_owned()),
        model: exchange.then(|| "smollm2-135m-instruct".to_owned()),
        stop_reason: exchange.then(|| "stop".to_owned()),
        input_tokens: exchange.then_some(212 + n % 7),
        output_tokens: (exchange && !failed).then_some(24 + n % 11),
        total_us: exchange.then_some(310_000 + n * 1_700),
        release: exchange.then(|| release(22)),
        load: exchange.then(|| "7f3a90:23".to_owned()),
        score: (kind == "report").then_some(if n % 8 == 3 { 1.0 } else { 0.25 }),
        references: if kind == "report" {
            vec![record_id(n - 1)]
        } else {
            Vec::new()
        },
        streamed: n.is_multiple_of(2),
        captured: exchange,
        pruned: false,
        tags: if exchange {
            vec![format!("session=s{}", n / 8)]
        } else {
            Vec::new()
        },
        text: match (kind, n % 3) {
            ("train", _) => "answer with the label alone, in lower case".to_owned(),
            ("report", _) => "the label is billing".to_owned(),
            (_, 0) => "I was charged twice for one month. → billing".to_owned(),
            (_, 1) => "The page stays white after I log in. → error".to_owned(),
            _ => "How do I add a person to my team? → question".to_owned(),
        },
    }
}

fn scenario(name: &str, at: u64) -> ScenarioFacts {
    ScenarioFacts {
        name: name.to_owned(),
        mode: ["auto", "hybrid", "manual"][at as usize % 3].to_owned(),
        release: Some(release(22 - at)),
        load: Some(format!("7f3a90:{}", 23 - at)),
        step: Some(23 - at),
        outcome: Some(["held", "released", "rejected"][at as usize % 3].to_owned()),
        step_us: Some(NOW - 341_000_000),
        phase: ["training", "idle", "waiting"][at as usize % 3].to_owned(),
        progress: (at == 0).then_some(0.62),
        trouble: (at == 2).then(|| "the trainer cannot be started: no such file".to_owned()),
        exchanges: 15_310 >> (at * 3),
        reports: 5_208 >> (at * 3),
        interrupted: 12,
        consumed: 4_890,
        input_tokens: 3_245_880,
        output_tokens: 440_120,
        pending: Some(17 * (at + 1)),
        instructions: at,
        excluded: [("no_score", 31), ("truncated", 12), ("stale_load", 5), ("fork", 1)]
            .map(|(reason, count)| (reason.to_owned(), count))
            .into(),
        mean_score: Some(0.61 - at as f64 * 0.1),
        rewards: (0..23)
            .map(|n| 0.85 - 0.7 * (-f64::from(n) / 8.0).exp() + 0.04 * (f64::from(n) * 2.3).sin())
            .collect(),
        last_us: Some(NOW - 1_400_000 - at as i64 * 250_000_000),
    }
}

/// One look.
pub(super) fn snapshot() -> Snapshot {
    Snapshot {
        at_us: NOW,
        source: ".reef".to_owned(),
        service: Some(Service {
            url: "http://127.0.0.1:8900".to_owned(),
            pid: Some(4242),
            live: Some(Live {
                version: "0.1.0".to_owned(),
                engine: "torch".to_owned(),
                uptime_s: 8_480.0,
                in_flight: 3,
                queue_depth: 0,
            }),
        }),
        store: StoreFacts {
            error: None,
            file_bytes: Some(58_720_256),
            stored_bytes: 31_457_280,
            pruned: 210,
        },
        scenarios: vec![
            scenario("support-tickets", 0),
            scenario("sql-writer", 1),
            scenario("triage", 2),
        ],
        focus: Some(Focus {
            scenario: "support-tickets".to_owned(),
            records: (1..=64).rev().map(record).collect(),
            steps: (0..=23).rev().map(step).collect(),
            jobs: (1..=23)
                .rev()
                .map(|n: i64| JobFacts {
                    step: n as u64,
                    stage: "judged".to_owned(),
                    outcome: Some("released".to_owned()),
                    attempts: 0,
                    error: None,
                    sealed_us: NOW - (24 - n) * 341_000_000 - 21_300_000,
                    ended_us: Some(NOW - (24 - n) * 341_000_000),
                })
                .collect(),
            files: [
                ("pi-agent/AGENTS.md", 812),
                ("pi-agent/commands/triage.md", 1_430),
                ("pi-agent/skills/invoices/SKILL.md", 3_974),
                ("reef-tree.json", 9_210),
            ]
            .map(|(path, bytes)| FileFacts {
                path: path.to_owned(),
                bytes,
            })
            .into(),
            evolution: evolution::evolution(),
            newest: Newest::default(),
        }),
    }
}

/// One record, whole.
pub(super) fn detail() -> RecordDetail {
    RecordDetail {
        facts: record(62),
        request: Some("{\n  \"model\": \"smollm2-135m-instruct\",\n  \"messages\": [\n    {\n      \"role\": \"user\",\n      \"content\": \"My invoice from March shows two charges.\"\n    }\n  ]\n}".to_owned()),
        response: None,
        answer: "billing".to_owned(),
        reasoning: String::new(),
        tool_calls: vec!["lookup({\"invoice\":\"2026-03\"})".to_owned()],
        reports: vec![ReportFacts {
            id: record_id(63),
            score: Some(1.0),
            feedback: "the right label".to_owned(),
            at_us: NOW - 1_375_000,
        }],
        consumed: vec!["batch b00000000adf1 of step 23: committed".to_owned()],
        capture: Some(CaptureFacts {
            prompt: 218,
            tokens: 31,
            finish_reason: "stop".to_owned(),
            temperature: 1.0,
            spans: vec![(0, 19, "7f3a90:22".to_owned()), (19, 31, "7f3a90:23".to_owned())],
        }),
    }
}

/// Why a step ended as it did.
pub(super) fn evidence() -> Evidence {
    let pair = |n: u32| PairedScore {
        task: format!("ticket-{:02}", n + 1),
        repeat: n / 10,
        candidate: (n != 6).then_some(if n % 5 == 3 { 0.0 } else { 1.0 }),
        current: Some(if n.is_multiple_of(3) { 0.0 } else { 1.0 }),
        protected: n == 1,
        failure: (n == 6).then(|| "the grader timed out after 30 s".to_owned()),
        ..PairedScore::default()
    };
    Evidence {
        step: 23,
        verdict: Some(Verdict {
            outcome: Outcome::Held,
            selector: "review".to_owned(),
            reason: "a person must decide: the recipe names the rule review".to_owned(),
            evaluator: "tasks/tickets".to_owned(),
            pairs: (0..12).map(pair).collect(),
            figures: Map::from_iter([
                ("wins".to_owned(), json!(4)),
                ("losses".to_owned(), json!(1)),
                ("p".to_owned(), json!(0.1875)),
            ]),
        }),
        failures: vec![(record_id(59), 0.25, "named two labels".to_owned())],
    }
}

/// What a release changed.
pub(super) fn diff() -> Vec<DiffFile> {
    vec![
        DiffFile {
            path: "adapter_model.safetensors".to_owned(),
            lines: vec![
                "2 tensors differ, 58 are equal".to_owned(),
                "layers.0.q_proj.lora_A F32 [8, 576]  |change| 1.204e-2  relative 3.100e-3".to_owned(),
            ],
        },
        DiffFile {
            path: "rules/style.md".to_owned(),
            lines: [
                "--- a/rules/style.md",
                "+++ b/rules/style.md",
                "@@ -1,2 +1,2 @@",
                " # Style",
                "-Be brief.",
                "+Answer with the label alone.",
            ]
            .map(str::to_owned)
            .into(),
        },
    ]
}

/// A log.
pub(super) fn logs() -> Vec<LogLine> {
    let line = |n: i64, level: &str, target: &str, message: &str| LogLine {
        at_us: NOW - (40 - n) * 7_000_000,
        level: level.to_owned(),
        target: target.to_owned(),
        message: message.to_owned(),
        fields: Map::from_iter([("scenario".to_owned(), json!("support-tickets"))]),
    };
    (0..40)
        .map(|n| match n % 10 {
            3 => line(n, "WARN", "reef::scenario::drive", "the step is tried again"),
            7 => line(n, "ERROR", "reef::scenario::live", "a release could not be loaded"),
            5 => line(n, "DEBUG", "reef::serve::server", "connection ended"),
            _ => line(n, "INFO", "reef::scenario::supervisor", "released"),
        })
        .collect()
}
