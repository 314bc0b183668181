//! Grading runs: which one, how often, and when the service is away.

use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};

use crate::common::wait_for;
use crate::rig::{Rig, Service, fails, ok, ok_json, release};

#[test]
fn the_most_recent_run_is_graded_once() {
    let rig = Rig::installed("s");
    let said = fails(&mut rig.wrapper(&["report", "--score", "1"]), 3);
    assert!(said.contains("nothing to grade"), "{said}");
    ok(&mut rig.wrapper(&["ask"]));
    ok(&mut rig.wrapper(&["ask"]));
    // A run without a receipt is not the one that is meant.
    ok(&mut rig.wrapper(&["exit", "0"]));
    let graded = ok_json(&mut rig.wrapper(&["report", "--score", "-0.5", "--feedback", "too slow", "--json"]));
    assert_eq!(graded["waiting"], json!([]));
    let reports = rig.service.reports();
    assert_eq!(reports.len(), 1);
    assert_eq!(reports[0]["score"], -0.5);
    assert_eq!(reports[0]["feedback"], "too slow");
    assert_eq!(reports[0]["references"], json!(["receipt-1"]));
    assert_eq!(reports[0]["metadata"]["client_release"], "r1");
    assert_eq!(reports[0]["agent_record_id"], graded["sent"][0]);

    let again = ok_json(&mut rig.wrapper(&["report", "--score", "-0.5", "--feedback", "too slow", "--json"]));
    assert_eq!(again["sent"], graded["sent"]);
    let said = fails(&mut rig.wrapper(&["report", "--score", "1"]), 2);
    assert!(said.contains("graded already") && said.contains("--run"), "{said}");
    let run = graded["run"].as_str().unwrap();
    ok(&mut rig.wrapper(&["report", "--score", "1", "--run", run]));
    assert_eq!(rig.service.reports().len(), 2);

    let listed = ok_json(&mut rig.wrapper(&["report", "--list", "--json"]));
    let runs = listed["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 3);
    assert_eq!(runs[0]["turns"], json!([]));
    assert_eq!(runs[1]["reports"], json!({"sent": 2, "waiting": 0, "refused": 0}));
    assert_eq!(runs[2]["reports"], json!({"sent": 0, "waiting": 0, "refused": 0}));
}

#[test]
fn a_report_that_says_nothing_or_no_number_is_refused() {
    let rig = Rig::installed("s");
    ok(&mut rig.wrapper(&["ask"]));
    for (args, words) in [
        (&["report"][..], "says nothing"),
        (&["report", "--feedback", "  "], "says nothing"),
        (&["report", "--score", "NaN"], "-1e12 to 1e12"),
        (&["report", "--score", "1e308"], "-1e12 to 1e12"),
        (&["report", "--score", "good"], "invalid value"),
        (&["report", "--score", "1", "--run", "zzz"], "no run"),
    ] {
        let said = fails(&mut rig.wrapper(args), 2);
        assert!(said.contains(words), "{args:?}: {said}");
    }
    assert!(rig.service.reports().is_empty());
}

#[test]
fn a_report_waits_for_its_service_and_arrives_once() {
    let mut rig = Rig::installed("s");
    ok(&mut rig.wrapper(&["ask"]));
    let old = std::mem::replace(&mut rig.service, Service::start(release("r1")));
    drop(old);
    // The first try may still find the old address closing.
    let graded = ok_json(&mut rig.wrapper(&["report", "--score", "1", "--json"]));
    assert_eq!(graded["waiting"].as_array().unwrap().len(), 1, "{graded}");
    let said = fails(&mut rig.wrapper(&["uninstall"]), 1);
    assert!(
        said.contains("1 reports") && said.contains("--discard-reports"),
        "{said}"
    );
    let said = fails(&mut rig.wrapper(&["report", "--flush"]), 30);
    assert!(said.contains("still wait"), "{said}");

    // The service comes back at another address; the next run sends what waits.
    ok(&mut rig.install("s", &[]));
    ok(&mut rig.wrapper(&["exit", "0"]));
    let reports = wait_for("the report", || {
        Some(rig.service.reports()).filter(|reports| !reports.is_empty())
    });
    assert_eq!(reports.len(), 1);
    assert_eq!(reports[0]["agent_record_id"], graded["waiting"][0]);
    ok(&mut rig.wrapper(&["report", "--flush"]));
    assert_eq!(rig.service.reports().len(), 1);
    ok(&mut rig.wrapper(&["uninstall"]));
}

#[test]
fn a_report_the_service_will_never_take_is_told_and_not_sent_again() {
    let rig = Rig::installed("s");
    ok(&mut rig.wrapper(&["ask"]));
    rig.service.state.lock().unwrap().report_status = Some(400);
    let said = fails(&mut rig.wrapper(&["report", "--score", "1"]), 2);
    assert!(said.contains("not this one"), "{said}");
    rig.service.state.lock().unwrap().report_status = Some(503);
    let waiting = ok_json(&mut rig.wrapper(&["report", "--score", "2", "--json"]));
    assert_eq!(waiting["waiting"].as_array().unwrap().len(), 1);
    rig.service.state.lock().unwrap().report_status = None;
    ok(&mut rig.wrapper(&["report", "--flush"]));
    let reports = rig.service.reports();
    assert_eq!(reports.len(), 1);
    assert_eq!(reports[0]["score"], 2.0);
}

#[test]
fn every_receipt_can_have_a_report_of_its_own() {
    let rig = Rig::installed("s");
    ok(&mut rig.wrapper(&["ask"]));
    let graded: Value = ok_json(&mut rig.wrapper(&["report", "--score", "1", "--per-receipt", "--json"]));
    assert_eq!(graded["sent"].as_array().unwrap().len(), 1);
    assert_eq!(rig.service.reports()[0]["references"], json!(["receipt-0"]));
}

fn run_and_grade(rig: &Rig, score: &str) -> Value {
    ok(&mut rig.wrapper(&["ask"]));
    ok_json(&mut rig.wrapper(&["report", "--score", score, "--json"]))
}

#[test]
fn a_report_that_cannot_be_read_or_makes_the_service_fail_holds_up_nothing() {
    let rig = Rig::installed("s");
    rig.service.state.lock().unwrap().report_breaks = Some(1.0);
    assert_eq!(run_and_grade(&rig, "1")["waiting"].as_array().unwrap().len(), 1);
    let broken = rig.place("s").join("runs/x.report.json");
    std::fs::write(&broken, "{").unwrap();
    assert_eq!(run_and_grade(&rig, "2")["sent"].as_array().unwrap().len(), 1);
    assert_eq!(rig.service.reports()[0]["score"], 2.0);
    ok(&mut rig.wrapper(&["report", "--list"]));
    let doctor = rig.wrapper(&["doctor"]).output().unwrap();
    let said = String::from_utf8_lossy(&doctor.stdout).into_owned();
    assert!(
        said.contains("x.report.json") && doctor.status.code() == Some(1),
        "{said}"
    );
    rig.service.state.lock().unwrap().report_breaks = None;
    ok(&mut rig.wrapper(&["report", "--flush"]));
    assert_eq!(rig.service.reports().len(), 2);
    ok(&mut rig.wrapper(&["uninstall"]));
}

#[test]
fn a_gateway_is_not_the_service_and_refuses_nothing_for_good() {
    let rig = Rig::installed("s");
    rig.service.state.lock().unwrap().gateway = true;
    assert_eq!(run_and_grade(&rig, "1")["waiting"].as_array().unwrap().len(), 1);
    rig.service.state.lock().unwrap().gateway = false;
    ok(&mut rig.wrapper(&["report", "--flush"]));
    assert_eq!(rig.service.reports().len(), 1);
}

#[test]
fn a_report_waits_for_the_service_whose_receipts_it_quotes() {
    let mut rig = Rig::installed("s");
    rig.service.state.lock().unwrap().report_status = Some(503);
    run_and_grade(&rig, "1");
    // Another service knows nothing of them.
    let first = std::mem::replace(&mut rig.service, Service::start(release("r1")));
    rig.service.state.lock().unwrap().report_status = Some(400);
    ok(&mut rig.install("s", &[]));
    let said = fails(&mut rig.wrapper(&["report", "--flush"]), 30);
    assert!(said.contains("1 reports still wait"), "{said}");
    first.state.lock().unwrap().report_status = None;
    rig.service = first;
    ok(&mut rig.install("s", &[]));
    ok(&mut rig.wrapper(&["report", "--flush"]));
    assert_eq!(rig.service.reports().len(), 1);
}

#[test]
fn two_that_send_at_once_send_once() {
    let rig = Rig::installed("s");
    rig.service.state.lock().unwrap().report_status = Some(503);
    run_and_grade(&rig, "1");
    let sent = || {
        rig.service
            .upstream
            .seen()
            .iter()
            .filter(|seen| seen.target == "/reef/report")
            .count()
    };
    let before = sent();
    {
        let mut state = rig.service.state.lock().unwrap();
        state.report_status = None;
        state.report_delay = Some(Duration::from_secs(2));
    }
    let mut both: Vec<_> = (0..2)
        .map(|_| {
            rig.wrapper(&["report", "--flush"])
                .stderr(Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    for child in &mut both {
        assert!(child.wait().unwrap().success());
    }
    assert_eq!(sent() - before, 1);
}

#[test]
fn a_report_refused_behind_somebodys_back_is_told() {
    let rig = Rig::installed("s");
    rig.service.state.lock().unwrap().report_status = Some(503);
    run_and_grade(&rig, "1");
    rig.service.state.lock().unwrap().report_status = Some(400);
    let output = rig.wrapper(&["inner", "sleep", "1"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.contains("refused the report"), "{said}");
    let listed = ok_json(&mut rig.wrapper(&["report", "--list", "--json"]));
    assert_eq!(
        listed["runs"][1]["reports"],
        json!({"sent": 0, "waiting": 0, "refused": 1})
    );
}
