//! Ranks that a launcher of others has started. A launcher that is not installed is skipped, with a word about it; mpirun must be
//! there in CI, which installs it ([`needs`]).

mod support;

use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use support::folder::scratch_file;
use support::{paceline, run};
use xtask::needs;

const LIMIT: Duration = Duration::from_secs(60);

/// Starts three ranks of `perf`, which must meet, measure and say that they are three.
fn three_ranks(launcher: &str, options: &[&str]) {
    let path = scratch_file(&format!("{launcher}.json"));
    // Without the variables of whatever started this test.
    let ours = paceline(&["perf", "all-reduce", "--max", "4KiB", "--seconds", "0", "--json", &path.to_string_lossy()]);
    let mut command = Command::new(launcher);
    command.args(options).arg(ours.get_program()).args(ours.get_args());
    for (name, _) in ours.get_envs() {
        command.env_remove(name);
    }
    let outcome = run(command, LIMIT).expect_code(0);
    assert!(outcome.stdout.contains("# all-reduce, 3 ranks, "), "{outcome:#?}");
    let report: Value = serde_json::from_str(&fs::read_to_string(&path).expect("the file")).expect("JSON");
    fs::remove_file(path).expect("our own file");
    let rows = report["rows"].as_array().expect("rows");
    assert!(!rows.is_empty() && rows.iter().all(|row| row["ranks"] == 3 && row["wrong"] == 0), "{report:#}");
}

#[test]
fn mpirun() {
    if needs::program(&["mpirun"], "openmpi-bin").is_some() {
        three_ranks("mpirun", &["--allow-run-as-root", "--oversubscribe", "-n", "3"]);
    }
}

#[test]
fn torchrun() {
    let there = Command::new("torchrun").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if !there.is_ok_and(|status| status.success()) {
        eprintln!("skipped: torchrun is not installed: it comes with PyTorch");
        return;
    }
    three_ranks("torchrun", &["--standalone", "--nproc-per-node", "3", "--no-python"]);
}
