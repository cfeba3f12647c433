//! `paceline bench` without arguments, to its end: what the README says first. In a program of its own, as nothing else may
//! run meanwhile.

mod support;

use std::time::Duration;

use serde_json::Value;
use support::folder::Folder;
use support::{Outcome, paceline, run};

/// Four minutes. What tests are built with computes more slowly, and proves only that it ends.
const LIMIT: Duration = Duration::from_secs(if cfg!(debug_assertions) { 480 } else { 240 });

/// Runs of each cell, and methods: the study's seven, and what people have today.
const RUNS: u64 = 3;
const METHODS: usize = 8;

/// Each run of each row of a panel counts, or the screen says that its processor was late. Rows with a number, and all.
#[track_caller]
fn measured(panel: &Value, outcome: &Outcome) -> [usize; 2] {
    let groups = panel["groups"].as_array().expect("groups").iter();
    let rows: Vec<&Value> = groups.flat_map(|group| group["rows"].as_array().expect("rows")).collect();
    for row in &rows {
        let failures = row["failures"].as_array().expect("a list");
        let runs = row["result"]["samples_per_s"]["runs"].as_u64().unwrap_or(0);
        assert_eq!(runs + failures.len() as u64, RUNS, "{row:#}");
        for why in failures.iter().filter_map(Value::as_str) {
            let line = format!("  {}: {why}", row["method"].as_str().unwrap_or_default());
            let explained = why.contains("the processor was late by") && outcome.stdout.contains(&line);
            assert!(explained, "no `{line}`: {outcome:#?}");
        }
    }
    let with_number = rows.iter().filter(|row| row["result"]["samples_per_s"]["mean"].as_f64() > Some(0.0));
    [with_number.count(), rows.len()]
}

/// Both panels are measured, the report is written, and the screen says where it is.
#[test]
fn the_study_that_no_arguments_mean_ends_in_time() {
    if std::env::var_os("PACELINE_LONG_TESTS").is_none() {
        eprintln!("skipped: PACELINE_LONG_TESTS is not set");
        return;
    }
    let folder = Folder::new("alone");
    // The two files that it writes without being told, and one to read.
    let mut command = paceline(&["bench", "--json", "out.json"]);
    command.current_dir(&folder.0);
    let outcome = run(command, LIMIT);
    let (page, json) = (folder.read("paceline-report.html"), folder.read("out.json"));
    assert!(folder.0.join("paceline-runs.db").exists());
    // A machine that is busy with something else fails runs by being late, and says so; nothing else may fail.
    let late = |line: &&str| line.contains(" failed: ") && !line.contains("the processor was late by");
    let failed: Vec<&str> = outcome.stderr.lines().filter(late).collect();
    assert!(outcome.code() == 0 || outcome.code() == 1 && failed.is_empty(), "{outcome:#?}");
    assert!(outcome.stdout.contains("paceline-report.html"), "{outcome:#?}");
    let results: Value = serde_json::from_str(&json).expect("JSON");
    let facts = |panel: &Value| {
        let groups = panel["groups"].as_array().expect("groups");
        let workers: Vec<u64> = groups.iter().filter_map(|group| group["workers"].as_u64()).collect();
        (panel["setting"]["model"].as_str().unwrap_or_default().to_owned(), workers)
    };
    let panels: Vec<_> = results["panels"].as_array().expect("panels").iter().map(facts).collect();
    assert_eq!(panels, [("mlp".to_owned(), vec![1, 2, 4]), ("resnet50".to_owned(), vec![8])]);
    for words in ["replayed: resnet50@rtx2080ti", "emulated: 10GbE", "One iteration of bytescheduler-ps"] {
        assert!(page.contains(words), "no `{words}` on the page");
    }
    // What is computed is never late: all of it is there.
    assert_eq!(measured(&results["panels"][0], &outcome), [3 * METHODS; 2]);
    // A busy machine may fail some of the replayed cells, but not most of them; one core goes without some, and says so.
    let [with_number, all] = measured(&results["panels"][1], &outcome);
    let without = outcome.stdout.lines().find_map(|line| line.strip_prefix("without ")?.split_once(" in the cluster"));
    let spared = without.map_or(0, |(names, _)| names.split(", ").count());
    assert_eq!(all + spared, METHODS, "{outcome:#?}");
    assert!(2 * with_number >= all, "{with_number} of {all} replayed rows: {outcome:#?}");
    // The first run of a cell brings its timeline along.
    let mut sections = page.split("<section aria-labelledby=\"").filter(|section| section.starts_with("panel-"));
    let section =
        sections.find(|section| section.contains("replayed: resnet50@rtx2080ti")).expect("a panel of replays");
    let rows = results["panels"][1]["groups"][0]["rows"].as_array().expect("rows");
    for row in rows.iter().filter(|row| row["samples_per_s_of_runs"][0].is_number()) {
        let words = format!("One iteration of {}", row["method"].as_str().unwrap_or_default());
        assert!(section.contains(&words), "no `{words}` in the replayed panel");
    }
}
