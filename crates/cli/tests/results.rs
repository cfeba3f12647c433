//! Files of results: they are whole or not there, whoever reads standard output, and every field is documented.

mod support;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use support::folder::scratch_file;
use support::{paceline, run, start_into};

const LIMIT: Duration = Duration::from_secs(60);

/// A small run of every command that writes a file.
const RUNS: [&[&str]; 24] = [
    &[
        "program",
        "verify",
        concat!(env!("CARGO_MANIFEST_DIR"), "/../collective/tests/msccl/ring_of_three.xml"),
        "--cluster=10gbe:3x1",
    ],
    &["program", "simulate", "all-reduce", "--algorithm=ring", "--ranks=3", "--cluster=10gbe:3x1"],
    &["explain", "wfbp-a2a"],
    &["tune", "--nccl-table", "2.30"],
    &["fit", "--study", "tests/data/study.csv", "--output", "/dev/null"],
    &["simulate", "--cluster", "study-10gbe", "--model", "resnet50", "--strategy", "mg-wfbp", "--workers", "32"],
    &["simulate", "--by-message", "--cluster", "10gbe:2x1", "--model", "resnet50", "--strategy", "ddp"],
    &["simulate", "--study", "tests/data/study.csv"],
    &["simulate", "--graph", "tests/data/graph.json"],
    // Long enough for something to be found: what a gain is stands in the file, too.
    &["tune", "--simulate", "study-100gbe:4x1", "--workload", "data-parallel", "--iterations", "300"],
    &["doctor", "--ranks", "2"],
    &["doctor", "--hostfile", "tests/data/two-hosts", "--ssh", "sh tests/data/here.sh"],
    &["perf", "all-reduce", "--max", "1KiB", "--seconds", "0", "--emulate", "10GbE"],
    &["perf", "all-reduce", "--max", "8MiB", "--iterations", "1", "--urgent", "1KiB"],
    &["perf", "all-reduce", "--max", "8MiB", "--iterations", "1", "--compute"],
    &["train", "--workers", "2", "--model", "mlp", "--iterations", "10", "--strategy", "auto", "--tune"],
    &["plan", "--cluster", "study-10gbe", "--model", "resnet50", "--workers", "8", "--price", "3"],
    &["perf", "all-reduce", "--min=1KiB", "--max=1KiB", "--tune", "--tune-calls=20", "--tune-rehearsal=0.1"],
    &["perf", "all-reduce", "--max", "1KiB", "--tune", "--tune-drift", "--tune-calls", "20", "--tune-compared", "4"],
    &["perf", "all-reduce", "--max", "1KiB", "--tune", "--tune-alike", "1", "--tune-calls", "20"],
    &["perf", "all-reduce", "--tune-mix", "100000", "--tune-calls", "2", "--tune-compared", "2"],
    &["probe", "--workers", "2", "--rounds", "6"],
    &["profile", "--model", "mlp", "--iterations", "3"],
    &[
        "bench",
        "--models=mlp",
        "--methods=wfbp-a2a,bsp-a2a,auto",
        "--workers=2",
        "--iterations=2",
        "--runs=1",
        "--report=/dev/null",
    ],
];

/// One of these runs, with its file, and a database of its own: two tests run them at the same time.
fn with_files(arguments: &[&str], json: &Path) -> Command {
    let mut command = paceline(arguments);
    command.arg("--json").arg(json);
    if arguments[0] == "bench" {
        command.arg("--database").arg(json.with_extension("db"));
    }
    command
}

fn remove_files(json: &Path) {
    fs::remove_file(json).expect("our own file");
    for of_database in ["db", "db-wal", "db-shm"] {
        let _ = fs::remove_file(json.with_extension(of_database));
    }
}

#[test]
fn a_reader_that_leaves_early_gets_the_file_all_the_same() {
    for arguments in RUNS {
        let path = scratch_file(&format!("closed-{}", arguments[0]));
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let command = with_files(arguments, &path);
        let outcome = start_into(command, Stdio::from(writer)).end_within(LIMIT).expect_code(0);
        assert!(!outcome.stderr.contains("error"), "{outcome:#?}");
        let report: Value = serde_json::from_str(&fs::read_to_string(&path).expect("the file")).expect("JSON");
        assert_eq!(report["schema"], 1, "{arguments:?}");
        remove_files(&path);
    }
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    start_into(paceline(&["explain"]), Stdio::from(writer)).end_within(LIMIT).expect_code(0);
}

#[test]
fn a_full_disk_is_a_failure() {
    let full = fs::File::options().write(true).open("/dev/full").expect("the device");
    let outcome = start_into(paceline(&["explain", "ddp"]), Stdio::from(full)).end_within(LIMIT).expect_code(1);
    outcome.expect_stderr(&["cannot write to standard output", "No space left"]);
}

#[test]
fn a_run_that_fails_leaves_the_older_file() {
    let path = scratch_file("older");
    fs::write(&path, "older").expect("a scratch file");
    let file = path.to_string_lossy();
    let diverges = ["train", "--workers", "1", "--model", "mlp", "--lr", "1e30", "--json", &file];
    run(paceline(&diverges), LIMIT).expect_code(1).expect_stderr(&["not finite"]);
    assert_eq!(fs::read_to_string(&path).expect("the file"), "older");
    assert!(!PathBuf::from(format!("{file}.tmp")).exists(), "the unfinished file is left behind");
    run(paceline(&["explain", "ddp", "--json", &file]), LIMIT).expect_code(0);
    assert!(fs::read_to_string(&path).expect("the file").contains("\"sentence\""));
    assert!(!PathBuf::from(format!("{file}.tmp")).exists(), "it has been renamed");
    fs::remove_file(path).expect("our own file");
}

#[test]
fn devices_are_written_to_in_place() {
    let outcome = run(paceline(&["explain", "ddp", "--json", "/dev/stdout"]), LIMIT).expect_code(0);
    assert!(outcome.stdout.contains("\"sentence\"") && outcome.stdout.contains("It is lossless"), "{outcome:#?}");
}

/// docs/json.md has a row for every field that any command writes.
#[test]
fn every_field_is_documented() {
    let page = include_str!("../../../docs/json.md");
    // Profiles are read, not written, by these commands.
    let page = page.split("\n# Profiles\n").next().unwrap_or_default();
    let (always, sometimes) = page.split_once("### Not in every file").expect("the page has such a part");
    let rows = |part: &'static str| part.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    let (documented, sometimes): (BTreeSet<&str>, BTreeSet<&str>) = (rows(always).collect(), rows(sometimes).collect());
    let mut written = BTreeSet::new();
    for arguments in RUNS {
        let path = scratch_file(&format!("fields-{}", arguments[0]));
        run(with_files(arguments, &path), LIMIT).expect_code(0);
        let report = serde_json::from_str(&fs::read_to_string(&path).expect("the file")).expect("JSON");
        fields(&report, &mut written);
        remove_files(&path);
    }
    let written: BTreeSet<&str> = written.iter().map(String::as_str).filter(|name| !sometimes.contains(name)).collect();
    assert_eq!(written, documented, "left: what is written; right: the rows of docs/json.md");
}

/// The names of all fields, at any depth.
fn fields(value: &Value, names: &mut BTreeSet<String>) {
    match value {
        Value::Object(object) => object.iter().for_each(|(name, value)| {
            names.insert(name.clone());
            fields(value, names);
        }),
        Value::Array(array) => array.iter().for_each(|value| fields(value, names)),
        _ => {}
    }
}
