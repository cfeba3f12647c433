//! `paceline simulate --by-message`.

mod support;

use std::fs;
use std::time::Duration;

use serde_json::Value;
use support::folder::scratch_file;
use support::{paceline, run};

const LIMIT: Duration = Duration::from_secs(60);

fn simulate<'a>(cluster: &'a str, strategy: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let cell =
        ["simulate", "--by-message", "--model", "resnet50@rtx2080ti", "--cluster", cluster, "--strategy", strategy];
    [&cell[..], more].concat()
}

/// The same iteration twice, each with its time; the timeline and the trace are those of messages.
#[test]
fn an_iteration_is_played_beside_its_prediction() {
    let (json, trace) = (scratch_file("played.json"), scratch_file("played-trace.json"));
    let (json_path, trace_path) = (json.to_string_lossy(), trace.to_string_lossy());
    let files = ["--json", &*json_path, "--trace", &*trace_path];
    let outcome = run(paceline(&simulate("10gbe:4x1", "wfbp-a2a", &files)), LIMIT).expect_code(0);
    assert!(outcome.stdout.contains("by message"), "{outcome:#?}");
    let read = |path| -> Value { serde_json::from_str(&fs::read_to_string(path).expect("the file")).expect("JSON") };
    let (report, events) = (read(&json), read(&trace));
    [&json, &trace].into_iter().for_each(|path| fs::remove_file(path).expect("our own file"));
    let played = &report["by_message"];
    let number = |field: &str| played[field].as_f64().unwrap_or_else(|| panic!("{field}: {played}"));
    let predicted_s = report["prediction"]["iteration_s"].as_f64().expect("a time");
    assert!((number("iteration_s") / predicted_s - number("over_prediction")).abs() < 1e-9);
    assert!((number("over_prediction") - 1.0).abs() < 0.02 && number("elapsed_us") > 0.0, "{played}");
    assert!(number("messages") > 161.0 * 12.0 && number("deviation_s") == 0.0, "{played}");
    let spans = report["timeline"].as_array().expect("a list");
    let sent = spans.iter().filter(|span| span["lane"] == "network").count();
    assert_eq!(
        sent as u64,
        report["prediction"]["operations"].as_u64().expect("a number"),
        "from when it begins to its end"
    );
    let drawn = events["traceEvents"].as_array().expect("a list").iter().filter(|event| event["ph"] == "X");
    assert_eq!(drawn.count(), spans.len());
}

/// Whatever constants the cluster has that are no links: servers on its hosts copy and add.
#[test]
fn what_is_not_among_messages_is_named() {
    let outcome = run(paceline(&simulate("10gbe:2x1", "wfbp-ps", &["--workers", "2"])), LIMIT).expect_code(0);
    assert!(outcome.stdout.contains("not among messages: ") && outcome.stdout.contains("(server."), "{outcome:#?}");
}

#[test]
fn what_cannot_be_played_is_wrong_usage() {
    for (cluster, strategy, workers, words) in [
        ("10gbe:4x1", "wfbp-a2a", "1", "a worker is alone"),
        ("10gbe+pcie4:1x4", "wfbp-ps", "4", "servers of a single host"),
        ("10gbe:512x1", "schedule=wfbp,arch=a2a:ring", "512", "messages"),
        ("10gbe:100000x1", "schedule=wfbp,arch=a2a:ring", "100000", "messages"),
    ] {
        let arguments = simulate(cluster, strategy, &["--workers", workers]);
        run(paceline(&arguments), LIMIT).expect_code(2).expect_stderr(&["cannot be played message by message", words]);
    }
    run(paceline(&["simulate", "--by-message", "--graph", "tests/data/graph.json"]), LIMIT).expect_code(2);
}
