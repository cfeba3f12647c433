//! The smallest case of `cargo xtask study --part prediction`: what `bench` predicts of a replay on an emulated network is
//! what it measures. And what nobody has measured is told where something is learned from predictions.
//!
//! Sleeps and emulated links are never early, and late where the machine is busy: what a busy machine has spoilt is repeated,
//! which a wrong prediction survives no better.

mod support;

use std::fs;
use std::time::Duration;

use serde_json::{Value, json};
use support::folder::Folder;
use support::{paceline, run};

const LONG: Duration = Duration::from_secs(240);
const ATTEMPTS: usize = 5;
/// By so much a prediction may be off here, where communication takes longer than computation.
const OFF_MAX: f64 = 0.12;

/// Four tensors of two megabytes, 90 ms of computation.
fn profile() -> Value {
    let step = |tensor: usize, seconds: f64| json!({"tensor": tensor, "seconds": seconds});
    let tensors: Vec<Value> = (0..4).map(|tensor| json!({"name": format!("t{tensor}"), "elements": 500_000})).collect();
    json!({
        "schema": 1, "model": "four", "device": "none", "source": "a test", "local_batch": 8, "tensors": tensors,
        "forward": (0..4).map(|tensor| step(tensor, 0.0075)).collect::<Vec<_>>(),
        "backward": (0..4).rev().map(|tensor| step(tensor, 0.015)).collect::<Vec<_>>(),
        "update_s": 0.0,
    })
}

#[test]
fn a_replay_on_an_emulated_network_takes_what_was_predicted() {
    let folder = Folder::new("replay");
    let path = |name: &str| folder.path(name);
    fs::write(path("four.json"), profile().to_string()).expect("written");
    let mut last = String::new();
    for attempt in 0..ATTEMPTS {
        let (database, json, report) = (path(&format!("{attempt}.db")), path("out.json"), path("report.html"));
        let compute = format!("replay:{}", path("four.json"));
        // Eight megabytes between two hosts: 160 ms.
        let mut arguments = vec!["bench", "--compute", &compute, "--workers", "2", "--hosts", "2x1"];
        arguments.extend(["--emulate", "alpha=1ms,beta=20ns", "--methods", "bsp-a2a,wfbp-a2a,wfbp-ps"]);
        arguments.extend(["--warmup", "1", "--iterations", "4", "--runs", "1"]);
        // What a machine is late by, if it is always, counts the less the longer all takes.
        let dilation = (1 << attempt.min(2)).to_string();
        if attempt > 0 {
            arguments.extend(["--dilate", &dilation]);
        }
        arguments.extend(["--database", &database, "--json", &json, "--report", &report]);
        let outcome = run(paceline(&arguments), LONG);
        let results: Value = serde_json::from_str(&fs::read_to_string(&json).expect("the file")).expect("JSON");
        let group = &results["panels"][0]["groups"][0];
        let rows = group["rows"].as_array().expect("three methods");
        // Whatever was measured, all of it was predicted.
        assert!(rows.len() == 3 && rows.iter().all(|row| row["predicted"]["samples_per_s"].is_f64()), "{rows:?}");
        let bsp = &rows[0]["predicted"];
        assert!(bsp["iteration_s"].as_f64().is_some_and(|seconds| (0.24..0.28).contains(&seconds)), "{bsp}");
        let off: Vec<Option<f64>> = rows.iter().map(|row| row["prediction_error"].as_f64()).collect();
        if off.iter().all(|error| error.is_some_and(|error| error.abs() <= OFF_MAX)) {
            assert!(outcome.stdout.contains("predictions are off by"), "{outcome:#?}");
            assert!(results["prediction_error_median"].as_f64().is_some_and(|median| median <= OFF_MAX));
            let page = fs::read_to_string(&report).expect("the report");
            for words in ["Predicted and measured", "Error by method", "bandwidth between hosts", "local batch"] {
                assert!(page.contains(words), "no `{words}` on the page");
            }
            return;
        }
        last = format!("{off:?}, {}", group["rows"]);
    }
    panic!("predictions were off {ATTEMPTS} times: {last}");
}

/// What a tuner learns on links that nobody has measured may hold nowhere: it says so once, a single learner and all of them.
#[test]
fn what_is_learned_on_links_that_nobody_has_measured_says_so() {
    let folder = Folder::new("learned");
    let file = folder.path("learned.json");
    let links = "nothing of 25gbe+pcie4:2x2 was measured, as far as it says; its constants come from: 25gbe: ";
    for (cluster, times) in [("25gbe+pcie4:2x2", 1), ("study-10gbe", 0)] {
        let job = ["tune", "--simulate", cluster, "--workload", "data-parallel", "--iterations", "1"];
        let outcome = run(paceline(&[&job[..], &["--json", &file]].concat()), LONG).expect_code(0);
        assert_eq!(outcome.stdout.matches(&format!("  extrapolated    {links}")).count(), times, "{outcome:#?}");
        let report: Value = serde_json::from_str(&fs::read_to_string(&file).expect("the file")).expect("JSON");
        let doubts = report["extrapolated"].as_array().expect("a list");
        assert!(doubts.len() == times && doubts.iter().all(|doubt| doubt.to_string().contains(links)), "{doubts:?}");
        let outcome = run(paceline(&[&job[..], &["--learner", "all"]].concat()), LONG).expect_code(0);
        assert_eq!(outcome.stdout.matches(&format!("\nextrapolated: {links}")).count(), times, "{outcome:#?}");
    }
}
