//! `paceline bench` and `paceline report` as a user runs them, with studies of seconds.

mod support;

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use support::{children_of, is_alive, paceline, run, start, until};

const LONG: Duration = Duration::from_secs(120);

/// A folder for one test, removed with everything in it.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("paceline-bench-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).expect("a folder for the test");
        Folder(path)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.0.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A study of the smallest model, in this folder.
fn bench(folder: &Folder, more: &[&str]) -> Command {
    let (database, report) = (folder.path("runs.db"), folder.path("report.html"));
    let mut arguments = vec!["bench", "--models", "mlp", "--methods", "bsp-a2a,wfbp-a2a", "--local-batch", "8"];
    arguments.extend(["--warmup", "1", "--database", &database, "--report", &report]);
    if !more.contains(&"--iterations") {
        arguments.extend(["--iterations", "3"]);
    }
    arguments.extend(more);
    paceline(&arguments)
}

#[test]
fn a_study_ends_with_tables_a_report_and_files() {
    let folder = Folder::new("whole");
    let (json, csv, trace) = (folder.path("out.json"), folder.path("out.csv"), folder.path("trace.json"));
    let more = ["--workers", "1,2", "--runs", "2", "--json", &json, "--csv", &csv, "--trace", &trace];
    let outcome = run(bench(&folder, &more), LONG).expect_code(0);
    for words in
        ["mlp, local batch 8", "2 workers", "speedup 1 = ", "one worker here (bsp-a2a)", "report.html", "out.csv"]
    {
        assert!(outcome.stdout.contains(words), "no `{words}`: {outcome:#?}");
    }
    let page = folder.read("report.html");
    assert!(page.contains("<svg") && page.contains("not decidable"));
    let json: Value = serde_json::from_str(&folder.read("out.json")).expect("JSON");
    let group = &json["panels"][0]["groups"][1];
    assert_eq!((group["workers"].as_u64(), group["rows"].as_array().map(Vec::len)), (Some(2), Some(2)));
    let result = &group["rows"][1]["result"];
    assert_eq!(result["samples_per_s"]["runs"].as_u64(), Some(2));
    assert!(result["bytes_per_iteration"].as_f64().is_some_and(|bytes| bytes > 1e5), "{result}");
    assert!(group["noise"].is_number() && json["panels"][0]["baseline"]["samples_per_s"].is_number());
    assert_eq!(folder.read("out.csv").lines().count(), 1 + 4);
    let trace: Value = serde_json::from_str(&folder.read("trace.json")).expect("JSON");
    assert!(trace["traceEvents"].is_array());
    // The database says the same again.
    let (database, again) = (folder.path("runs.db"), folder.path("again.html"));
    let outcome = run(paceline(&["report", &database, "--report", &again]), LONG).expect_code(0);
    assert!(outcome.stdout.contains("again.html"));
    assert_eq!(folder.read("again.html"), page);
}

#[test]
fn what_a_killed_study_has_finished_is_not_run_again() {
    let folder = Folder::new("killed");
    let more = ["--workers", "2", "--runs", "3"];
    let running = start(bench(&folder, &more));
    // Five worlds are the baseline and two runs of the other two cells: some have ended by now.
    let wal = folder.0.join("runs.db-wal");
    let has_runs = || fs::metadata(&wal).is_ok_and(|file| file.len() > 60_000);
    assert!(until(LONG, has_runs), "{}", running.stderr_so_far());
    let ranks = children_of(running.pid());
    running.signal(Signal::KILL);
    let outcome = running.end_within(LONG);
    assert_eq!(outcome.code(), 137);
    assert!(until(Duration::from_secs(5), || !ranks.iter().any(|pid| is_alive(*pid))), "ranks outlive their study");
    let finished = runs(&folder);
    assert!(!finished.is_empty());
    let more = [&more[..], &["--resume"]].concat();
    run(bench(&folder, &more), LONG).expect_code(0);
    let all = runs(&folder);
    assert_eq!(all.len(), (1 + 3) * 3);
    for run in &finished {
        assert!(all.contains(run), "{run:?} was run again");
    }
    let again = run(bench(&folder, &more), LONG).expect_code(0);
    assert!(again.elapsed < Duration::from_secs(20), "nothing was left to run");
    assert_eq!(runs(&folder), all);
}

/// What the database has kept: each finished run with its measured times.
fn runs(folder: &Folder) -> Vec<(i64, i64, String)> {
    let database = rusqlite::Connection::open(folder.0.join("runs.db")).expect("a database");
    let mut query = database
        .prepare("SELECT cell, number, json_extract(measured, '$.iteration_s') FROM run WHERE measured IS NOT NULL ORDER BY 1, 2")
        .expect("the table is there");
    let rows = query.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).expect("rows");
    rows.collect::<Result<_, _>>().expect("rows")
}

#[test]
fn a_killed_worker_fails_its_cell_and_the_study_goes_on() {
    let folder = Folder::new("worker");
    let more = ["--workers", "2", "--runs", "1", "--iterations", "100"];
    let running = start(bench(&folder, &more));
    let mut victim = None;
    // A world of two, not the baseline.
    assert!(until(LONG, || {
        let ranks = children_of(running.pid());
        victim = (ranks.len() == 2).then(|| ranks[1]);
        victim.is_some()
    }));
    let victim = victim.and_then(|pid| Pid::from_raw(pid as i32)).expect("there is one");
    kill_process(victim, Signal::KILL).expect("it is still there");
    let outcome = running.end_within(LONG).expect_code(1);
    let outcome = outcome.expect_stderr(&["was killed by SIGKILL", "1 runs gave no result"]);
    assert!(outcome.stdout.contains("wfbp-a2a"), "{outcome:#?}");
    assert!(folder.read("report.html").contains("was killed by SIGKILL"));
    assert_eq!(runs(&folder).len(), 1 + 3 - 1);
}

#[test]
fn an_interrupted_study_shows_what_it_has() {
    let folder = Folder::new("interrupted");
    let running = start(bench(&folder, &["--workers", "2", "--runs", "50"]));
    let database = folder.0.join("runs.db-wal");
    assert!(until(LONG, || fs::metadata(&database).is_ok_and(|file| file.len() > 60_000)));
    running.signal(Signal::INT);
    let outcome = running.end_within(Duration::from_secs(20)).expect_code(130);
    outcome.expect_stderr(&["interrupted; what has ended is kept in", "--resume goes on"]);
    assert!(folder.read("report.html").contains("<svg"));
}

#[test]
fn senseless_studies_are_refused_before_anything_starts() {
    let folder = Folder::new("refused");
    let refused = |arguments: &[&str], reason: &str| {
        let database = folder.path("runs.db");
        let arguments = [&["bench", "--database", &database], arguments].concat();
        run(paceline(&arguments), LONG).expect_code(2).expect_stderr(&[reason]);
        assert!(!folder.0.join("runs.db").exists());
    };
    refused(&["--models", "cn"], "did you mean `cnn`?");
    refused(&["--methods", "wfpb-a2a"], "did you mean `wfbp-a2a`?");
    refused(&["--models", "cnn", "--compute", "replay"], "no built-in profile of cnn");
    refused(&["--models", "cnn", "--dilate", "2"], "real computation cannot be slowed");
    refused(&["--emulate", "10GbX"], "10GbE");
    refused(&["--hosts", "2x4"], "--emulate");
    refused(&["--servers-on", "node1"], "none has started this program");
    refused(&["--compute", "replay:/nowhere.json"], "/nowhere.json");
    refused(&["--full", "--iterations", "3"], "cannot be used with");
}

#[test]
fn a_launchers_ranks_do_not_each_measure_the_whole() {
    let folder = Folder::new("launched");
    let mut command = bench(&folder, &["--workers", "2"]);
    command.envs([("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "29500")]);
    run(command, LONG).expect_code(2).expect_stderr(&["torchrun has started this program as a rank"]);
}

#[test]
fn a_database_of_somebody_else_is_left_alone() {
    let folder = Folder::new("foreign");
    fs::write(
        folder.0.join("runs.db"),
        "my letters to a friend, which are much longer than a header of SQLite, and mine",
    )
    .expect("written");
    let before = folder.read("runs.db");
    let outcome = run(bench(&folder, &["--workers", "2", "--runs", "1"]), LONG).expect_code(1);
    outcome.expect_stderr(&["runs.db", "--database"]);
    assert_eq!(folder.read("runs.db"), before);
}
