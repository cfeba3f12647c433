//! `paceline simulate --graph`.

mod support;

use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use support::folder::scratch_file;
use support::{paceline, run};

const LIMIT: Duration = Duration::from_secs(60);

fn read(path: &Path) -> Value {
    let value = serde_json::from_str(&fs::read_to_string(path).expect("the file")).expect("JSON");
    fs::remove_file(path).expect("our own file");
    value
}

#[test]
fn tasks_of_a_file_are_played() {
    let json = scratch_file("graph.json");
    let arguments = ["simulate", "--graph", "tests/data/graph.json", "--json", &json.to_string_lossy()];
    let outcome = run(paceline(&arguments), LIMIT).expect_code(0);
    assert!(outcome.stdout.contains("backward 1, send 1, send 0"), "{outcome:#?}");
    let played = read(&json);
    assert_eq!((&played["seconds"], &played["links"]), (&json!(5.5), &json!([])));
    let bad = scratch_file("bad.json");
    let file = bad.to_string_lossy();
    for (text, words) in [
        (r#"{"tasks": [{"name": "a", "resource": "x"}]}"#, "missing field `seconds`"),
        (r#"{"tasks": [{"name": "a", "resource": "x", "seconds": 1, "after": ["b"]}]}"#, "waits for `b`"),
        (r#"{"tasks": [{"name": "a", "seconds": 1, "bytes": 1}]}"#, "both seconds and bytes"),
        (r#"{"tasks": [{"name": "a", "bytes": 1, "route": ["b"]}]}"#, "route names `b`"),
        (r#"{"links": [{"name": "b", "bytes_per_s": 0}], "tasks": []}"#, "bytes_per_s is 0"),
    ] {
        fs::write(&bad, text).expect("a file");
        run(paceline(&["simulate", "--graph", &file]), LIMIT).expect_code(2).expect_stderr(&[&file, words]);
    }
    fs::remove_file(bad).expect("our own file");
}

#[test]
fn transfers_of_a_file_share_links() {
    let [graph, json, trace] = ["links.json", "links-played.json", "links-trace.json"].map(scratch_file);
    let text = r#"{"links": [{"name": "wire", "bytes_per_s": 100}], "tasks": [
        {"name": "fetch", "bytes": 200, "route": ["wire"]},
        {"name": "load", "bytes": 100, "route": ["wire"], "latency_s": 1.5},
        {"name": "compute", "resource": "gpu", "seconds": 1, "after": ["fetch"]}]}"#;
    fs::write(&graph, text).expect("a file");
    let [graph_path, json_path, trace_path] = [&graph, &json, &trace].map(|path| path.to_string_lossy());
    let arguments = ["simulate", "--graph", &graph_path, "--json", &json_path, "--trace", &trace_path];
    let outcome = run(paceline(&arguments), LIMIT).expect_code(0);
    assert!(outcome.stdout.contains("busy 3.000000 s, 86 %, with 300 bytes"), "{outcome:#?}");
    let (played, trace) = (read(&json), read(&trace));
    assert_eq!(played["links"], json!([{"link": "wire", "bytes": 300.0, "busy_s": 3.0}]));
    let load = json!({"name": "load", "route": ["wire"], "start_s": 0.0, "end_s": 3.0});
    assert_eq!((&played["seconds"], &played["tasks"][1]), (&json!(3.5), &load));
    // A thread for the resource, and two for transfers, as they meet.
    let events = trace["traceEvents"].as_array().expect("a list");
    let names = events.iter().filter(|event| event["ph"] == "M").map(|event| &event["args"]["name"]);
    assert_eq!(names.collect::<Vec<_>>(), ["gpu", "transfers", "transfers"]);
    fs::remove_file(graph).expect("our own file");
}
