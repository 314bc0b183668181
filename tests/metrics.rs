//! The metrics page, the page that documents it, and the Grafana dashboard name the same things.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a failed test may panic; a skipped one says so"
)]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use common::reef::Reef;
use common::upstream::{Upstream, answer};
use serde_json::Value;

const CHAT: &str = include_str!("../src/engine/sse/fixtures/chat.json");

fn read(path: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

/// Name to type and labels, as documented.
fn documented() -> BTreeMap<String, (String, BTreeSet<String>)> {
    let words = |cell: &str| -> BTreeSet<String> {
        cell.split(',')
            .map(|word| word.trim().trim_matches('`').to_owned())
            .filter(|word| !word.is_empty())
            .collect()
    };
    read("docs/reference/metrics.md")
        .lines()
        .filter(|line| line.starts_with("| `reef_"))
        .map(|line| {
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            (
                cells[1].trim_matches('`').to_owned(),
                (cells[2].to_owned(), words(cells[3])),
            )
        })
        .collect()
}

/// Name to type and labels, as a page shows them.
fn shown(page: &str) -> BTreeMap<String, (String, BTreeSet<String>)> {
    let mut shown: BTreeMap<String, (String, BTreeSet<String>)> = page
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE "))
        .map(|line| line.split_once(' ').unwrap())
        .map(|(name, kind)| (name.to_owned(), (kind.to_owned(), BTreeSet::new())))
        .collect();
    for line in page.lines().filter(|line| !line.starts_with('#')) {
        let series = line.split([' ', '{']).next().unwrap();
        let base = ["_bucket", "_sum", "_count"]
            .iter()
            .find_map(|end| series.strip_suffix(end))
            .filter(|base| shown.contains_key(*base));
        let of = shown
            .get_mut(base.unwrap_or(series))
            .unwrap_or_else(|| panic!("{series} has no type"));
        if let Some((_, labels)) = line.split_once('{') {
            of.1.extend(
                labels
                    .split("=\"")
                    .filter_map(|part| Some(part.rsplit([',', '{', '"']).next()?.to_owned()))
                    .filter(|label| {
                        !label.is_empty() && label.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')
                    }),
            );
        }
    }
    shown
}

fn page() -> String {
    let upstream = Upstream::always(answer(200, "application/json", CHAT));
    let reef = Reef::start(&upstream.url(), &[]);
    for _ in 0..3 {
        let mut response = reef.post("/v1/chat/completions", r#"{"model":"m","messages":[]}"#);
        response.bytes();
    }
    reef.get("/metrics").text()
}

#[test]
fn every_metric_is_documented_with_its_type_and_labels_and_the_other_way_round() {
    let (documented, page) = (documented(), page());
    let shown = shown(&page);
    for (name, (kind, labels)) in &shown {
        let (documented_kind, documented_labels) = documented
            .get(name)
            .unwrap_or_else(|| panic!("{name} is not documented"));
        assert_eq!(documented_kind, kind, "{name}");
        assert!(
            labels.is_subset(documented_labels),
            "{name}: {labels:?} of {documented_labels:?}"
        );
        assert!(page.contains(&format!("# HELP {name} ")), "{name} has no help");
        assert_eq!(kind == "counter", name.ends_with("_total"), "{name} is a {kind}");
    }
    for name in documented.keys().filter(|name| !name.starts_with("reef_engine_")) {
        assert!(shown.contains_key(name), "{name} is documented and not there");
    }
    check_with_promtool(&page);
}

/// The dashboard asks only for metrics that exist.
#[test]
fn the_grafana_dashboard_asks_for_metrics_that_exist() {
    let documented = documented();
    let dashboard: Value = serde_json::from_str(&read("docs/grafana/reef.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let mut places = BTreeSet::new();
    for panel in panels {
        assert!(
            places.insert(panel["gridPos"].to_string()),
            "two panels at {}",
            panel["gridPos"]
        );
        for target in panel["targets"].as_array().unwrap() {
            let expression = target["expr"].as_str().unwrap();
            let names: Vec<&str> = expression
                .split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
                .filter(|word| word.starts_with("reef_"))
                .collect();
            assert!(!names.is_empty(), "{expression}");
            for name in names {
                let base = name.strip_suffix("_bucket").unwrap_or(name);
                assert!(documented.contains_key(base), "{expression} asks for {name}");
            }
        }
    }
    assert!(panels.len() >= 12);
}

/// Prometheus's own checker, where it is installed.
fn check_with_promtool(page: &str) {
    let tool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    match tool {
        Err(_) => eprintln!("skipped with promtool: it is not installed"),
        Ok(mut tool) => {
            tool.stdin.take().unwrap().write_all(page.as_bytes()).unwrap();
            let output = tool.wait_with_output().unwrap();
            assert!(output.status.success(), "{output:?}");
        }
    }
}
