//! Counters of the service, and their Prometheus text. Labels come from fixed sets, never from what a client sends,
//! save scenario names, of which only the oldest have a label of their own.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::StatusCode;

use super::api::Kept;
use super::state::State;
use crate::domain::{Route, ScenarioName};
use crate::experience::{Health, InterruptionReason, LoopFacts, Stats};
use crate::sys::task;

/// Scenarios with a label of their own; the rest counts under `other`.
const LABELLED_SCENARIOS: usize = 100;

const BOUNDS_US: [u64; 14] = [
    50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 100_000, 500_000, 2_000_000, 10_000_000, 60_000_000,
];
const CLASSES: [&str; 6] = ["1xx", "2xx", "3xx", "4xx", "5xx", "other"];
const ROUTES: usize = Route::ALL.len();

/// Why an answer went to the client without a receipt although the client had not opted out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unrecorded {
    StoreFailed,
    TooLarge,
    Undecodable,
}

/// Everything counted.
#[derive(Debug, Default)]
pub(super) struct Metrics {
    responses: [[AtomicU64; CLASSES.len()]; ROUTES],
    passed_responses: [AtomicU64; CLASSES.len()],
    other_responses: [AtomicU64; CLASSES.len()],
    interrupted: [AtomicU64; InterruptionReason::ALL.len()],
    unrecorded: [AtomicU64; 3],
    pub(super) receipts: AtomicU64,
    pub(super) opted_out: AtomicU64,
    pub(super) too_large_requests: AtomicU64,
    pub(super) refused_tokens: AtomicU64,
    pub(super) connections: AtomicU64,
    pub(super) open_connections: AtomicU64,
    overhead: Histogram,
    first_byte: Histogram,
    total: Histogram,
}

#[derive(Debug, Default)]
struct Histogram {
    buckets: [AtomicU64; BOUNDS_US.len()],
    count: AtomicU64,
    sum_us: AtomicU64,
}

impl Histogram {
    fn observe(&self, value: Duration) {
        let us = u64::try_from(value.as_micros()).unwrap_or(u64::MAX);
        if let Some(bucket) = BOUNDS_US.iter().position(|bound| us <= *bound) {
            self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        }
        self.count.fetch_add(1, Ordering::Relaxed);
        self.sum_us.fetch_add(us, Ordering::Relaxed);
    }

    fn render(&self, out: &mut Page, name: &str, help: &str) {
        out.head(name, "histogram", help);
        let mut cumulative = 0;
        for (bound, bucket) in BOUNDS_US.iter().zip(&self.buckets) {
            cumulative += bucket.load(Ordering::Relaxed);
            out.line(
                &format!("{name}_bucket{{le=\"{}\"}}", *bound as f64 / 1e6),
                cumulative as f64,
            );
        }
        // Read after the buckets, so that the sum of the buckets never exceeds it.
        let count = self.count.load(Ordering::Relaxed).max(cumulative);
        out.line(&format!("{name}_bucket{{le=\"+Inf\"}}"), count as f64);
        out.line(&format!("{name}_sum"), self.sum_us.load(Ordering::Relaxed) as f64 / 1e6);
        out.line(&format!("{name}_count"), count as f64);
    }
}

fn class(status: StatusCode) -> usize {
    match status.as_u16() / 100 {
        class @ 1..=5 => usize::from(class) - 1,
        _ => 5,
    }
}

fn add(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Metrics {
    pub(super) fn responded(&self, kept: Option<Kept>, status: StatusCode) {
        let row = match kept {
            Some(Kept::Recorded(route) | Kept::Fetched(route)) => &self.responses[route as usize],
            Some(Kept::Passed) => &self.passed_responses,
            Some(Kept::Answered) | None => &self.other_responses,
        };
        add(&row[class(status)]);
    }

    pub(super) fn interrupted(&self, reason: InterruptionReason) {
        if let Some(at) = InterruptionReason::ALL.iter().position(|known| *known == reason) {
            add(&self.interrupted[at]);
        }
    }

    pub(super) fn unrecorded(&self, why: Unrecorded) {
        add(&self.unrecorded[why as usize]);
    }

    /// Of a finished exchange: what Reef itself added, the time to the first byte, and the whole.
    pub(super) fn finished(&self, overhead: Duration, first_byte: Duration, total: Duration) {
        self.overhead.observe(overhead);
        self.first_byte.observe(first_byte);
        self.total.observe(total);
    }

    pub(super) fn interruptions(&self) -> Vec<(&'static str, u64)> {
        InterruptionReason::ALL
            .iter()
            .zip(&self.interrupted)
            .map(|(reason, count)| (reason.as_str(), count.load(Ordering::Relaxed)))
            .collect()
    }
}

struct Page(String);

impl Page {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a string cannot fail.
        let _ok = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn line(&mut self, series: &str, value: f64) {
        let _ok = writeln!(self.0, "{series} {value}");
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.head(name, "counter", help);
        self.line(name, value as f64);
    }

    fn gauge(&mut self, name: &str, help: &str, value: f64) {
        self.head(name, "gauge", help);
        self.line(name, value);
    }
}

/// The metrics page. `stats` has the scenarios oldest first.
pub(super) fn render(state: &State, stats: &[(String, Stats)], facts: &BTreeMap<ScenarioName, LoopFacts>) -> String {
    let metrics = &state.metrics;
    let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let mut page = Page(String::with_capacity(16 * 1024));
    page.head(
        "reef_responses_total",
        "counter",
        "Responses by route and class of status.",
    );
    let rows = Route::ALL.iter().map(|route| route.path()).zip(&metrics.responses);
    let others = [
        ("passed", &metrics.passed_responses),
        ("other", &metrics.other_responses),
    ];
    for (path, row) in rows.chain(others) {
        for (class, count) in CLASSES.iter().zip(row) {
            let count = load(count);
            if count > 0 {
                page.line(
                    &format!("reef_responses_total{{route=\"{path}\",status=\"{class}\"}}"),
                    count as f64,
                );
            }
        }
    }
    page.gauge(
        "reef_in_flight",
        "Inference requests admitted and not finished.",
        state.admission.active() as f64,
    );
    for figure in state.engine.figures() {
        let name = format!("reef_engine_{}", figure.name);
        if figure.counts {
            page.counter(&name, figure.help, figure.value);
        } else {
            page.gauge(&name, figure.help, figure.value as f64);
        }
    }
    page.gauge(
        "reef_open_connections",
        "Client connections open.",
        load(&metrics.open_connections) as f64,
    );
    page.counter(
        "reef_connections_total",
        "Client connections accepted.",
        load(&metrics.connections),
    );
    page.counter(
        "reef_panics_total",
        "Panics of this process, each a fault in Reef that its log tells.",
        task::panics().0,
    );
    page.counter(
        "reef_receipts_total",
        "Receipts handed out, each after its record was durable.",
        load(&metrics.receipts),
    );
    page.counter(
        "reef_opted_out_total",
        "Exchanges not recorded because the client said so.",
        load(&metrics.opted_out),
    );
    page.head(
        "reef_unrecorded_total",
        "counter",
        "Answers delivered without a receipt, by reason.",
    );
    for (why, count) in ["store_failed", "too_large", "undecodable"]
        .iter()
        .zip(&metrics.unrecorded)
    {
        page.line(
            &format!("reef_unrecorded_total{{reason=\"{why}\"}}"),
            load(count) as f64,
        );
    }
    page.head(
        "reef_interrupted_total",
        "counter",
        "Exchanges that began and did not finish, by reason.",
    );
    for (reason, count) in metrics.interruptions() {
        page.line(&format!("reef_interrupted_total{{reason=\"{reason}\"}}"), count as f64);
    }
    page.counter(
        "reef_too_large_requests_total",
        "Requests refused for their size.",
        load(&metrics.too_large_requests),
    );
    page.counter(
        "reef_refused_tokens_total",
        "Requests refused for their token.",
        load(&metrics.refused_tokens),
    );
    metrics.overhead.render(
        &mut page,
        "reef_overhead_seconds",
        "Time Reef itself adds to an exchange: before the engine is called and after its last byte.",
    );
    metrics.first_byte.render(
        &mut page,
        "reef_first_byte_seconds",
        "Arrival to first response byte from the engine.",
    );
    metrics.total.render(
        &mut page,
        "reef_exchange_seconds",
        "Arrival to last response byte from the engine.",
    );
    store(&mut page, state);
    learning(&mut page, state);
    scenarios(&mut page, stats);
    excluded(&mut page, stats, facts);
    page.0
}

/// Reasons come from Reef itself; scenarios are labelled as everywhere else.
fn excluded(page: &mut Page, stats: &[(String, Stats)], facts: &BTreeMap<ScenarioName, LoopFacts>) {
    page.head(
        "reef_excluded_total",
        "counter",
        "Records left out of training, by scenario and reason.",
    );
    let mut counts: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    for (at, (name, _)) in stats.iter().enumerate() {
        let label = if at < LABELLED_SCENARIOS {
            name.as_str()
        } else {
            "other"
        };
        let of = facts.iter().find(|(scenario, _)| scenario.as_str() == name);
        for (reason, count) in of.iter().flat_map(|(_, facts)| &facts.excluded) {
            *counts.entry((label, reason)).or_default() += count;
        }
    }
    for ((scenario, reason), count) in counts {
        page.line(
            &format!("reef_excluded_total{{scenario=\"{scenario}\",reason=\"{reason}\"}}"),
            count as f64,
        );
    }
}

fn learning(page: &mut Page, state: &State) {
    let counters = state.board.counters();
    page.head(
        "reef_training_steps_total",
        "counter",
        "Training steps that ended in this process, by outcome.",
    );
    for (outcome, count) in &counters.steps {
        page.line(
            &format!("reef_training_steps_total{{outcome=\"{outcome}\"}}"),
            *count as f64,
        );
    }
    page.counter(
        "reef_training_failures_total",
        "Attempts at a training step that failed and are tried again.",
        counters.failures,
    );
    page.gauge(
        "reef_training_running",
        "Scenarios whose step is being made or judged now.",
        counters.running as f64,
    );
}

fn store(page: &mut Page, state: &State) {
    let store = state.experience.metrics();
    let healthy = state.experience.health() == Health::Ok;
    page.gauge(
        "reef_store_healthy",
        "1 while the last write to the store worked.",
        f64::from(u8::from(healthy)),
    );
    page.gauge(
        "reef_store_queue_depth",
        "Writes waiting for the store.",
        store.queue_depth as f64,
    );
    page.counter("reef_store_commits_total", "Transactions committed.", store.commits);
    page.counter(
        "reef_store_failed_commits_total",
        "Transactions that failed.",
        store.failed_commits,
    );
    page.counter("reef_store_writes_total", "Writes committed.", store.writes);
    let histograms = [
        (
            "reef_store_batch_writes",
            "Writes in one transaction.",
            &store.batch_writes,
            1.0,
            store.writes as f64,
        ),
        (
            "reef_store_commit_seconds",
            "Time of one transaction.",
            &store.commit_time_us,
            1e6,
            store.commit_us as f64 / 1e6,
        ),
    ];
    for (name, help, buckets, unit, sum) in histograms {
        page.head(name, "histogram", help);
        let mut cumulative = 0;
        for (bound, count) in buckets {
            cumulative += count;
            let bound = if *bound == u64::MAX {
                "+Inf".to_owned()
            } else {
                (*bound as f64 / unit).to_string()
            };
            page.line(&format!("{name}_bucket{{le=\"{bound}\"}}"), cumulative as f64);
        }
        page.line(&format!("{name}_sum"), sum);
        page.line(&format!("{name}_count"), cumulative as f64);
    }
}

fn scenarios(page: &mut Page, stats: &[(String, Stats)]) {
    let mut other = Stats::default();
    for (_, stats) in stats.iter().skip(LABELLED_SCENARIOS) {
        other.add(stats);
    }
    let labelled = stats
        .iter()
        .take(LABELLED_SCENARIOS)
        .map(|(name, stats)| (name.as_str(), stats));
    let all: Vec<(&str, &Stats)> = labelled
        .chain((stats.len() > LABELLED_SCENARIOS).then_some(("other", &other)))
        .collect();
    page.gauge("reef_scenarios", "Active scenarios.", stats.len() as f64);
    page.head("reef_records_total", "counter", "Records stored, by scenario and kind.");
    for (name, stats) in &all {
        for (kind, count) in [
            ("inference", stats.exchanges),
            ("report", stats.reports),
            ("train", stats.instructions),
        ] {
            page.line(
                &format!("reef_records_total{{scenario=\"{name}\",kind=\"{kind}\"}}"),
                count as f64,
            );
        }
    }
    page.head(
        "reef_tokens_total",
        "counter",
        "Tokens the engine counted, by scenario and direction.",
    );
    for (name, stats) in &all {
        for (direction, count) in [("input", stats.input_tokens), ("output", stats.output_tokens)] {
            page.line(
                &format!("reef_tokens_total{{scenario=\"{name}\",direction=\"{direction}\"}}"),
                count as f64,
            );
        }
    }
}
