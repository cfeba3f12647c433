//! The examples do what they say: their models, schedules and compressors are trained and measured like Paceline's own.

use std::path::PathBuf;
use std::process::{Command, Output};
use std::{env, fs};

/// An example, built beside this test.
fn example(name: &str) -> Command {
    let test = env::current_exe().expect("this test is a program");
    let folder = test.ancestors().nth(2).expect("target/debug/deps/TEST").join("examples");
    let mut command = Command::new(folder.join(name));
    for (variable, _) in env::vars_os() {
        if variable.to_string_lossy().starts_with("PACELINE_") {
            command.env_remove(variable);
        }
    }
    command
}

/// A study of a few iterations with an example, in a folder of its own.
fn bench(name: &str, arguments: &[&str]) -> (Output, String) {
    let folder: PathBuf = env::temp_dir().join(format!("paceline-example-{}-{name}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder");
    let (database, report) = (folder.join("runs.db"), folder.join("report.html"));
    let output = example(name)
        .args(["bench", "--workers", "2", "--iterations", "3", "--warmup", "1", "--runs", "1", "--database"])
        .arg(database)
        .arg("--report")
        .arg(&report)
        .args(arguments)
        .output()
        .expect("the example was built: `cargo test -p paceline` does so, unless it is told which targets to build");
    let page = fs::read_to_string(report).unwrap_or_default();
    let _ = fs::remove_dir_all(folder);
    assert!(output.status.success(), "{output:?}");
    (output, page)
}

#[test]
fn a_model_of_ones_own_is_measured() {
    let (output, page) = bench("own_model", &["--models", "softmax", "--methods", "wfbp-a2a,bsp-a2a"]);
    assert!(String::from_utf8_lossy(&output.stdout).contains("softmax, local batch"), "{output:?}");
    assert!(page.contains("7\u{202f}850 parameters"), "28 · 28 · 10 + 10");
}

#[test]
fn a_schedule_of_ones_own_is_measured() {
    let (output, page) = bench("own_schedule", &["--models", "mlp", "--methods", "schedule=pieces:3;wfbp-a2a"]);
    assert!(String::from_utf8_lossy(&output.stdout).contains("schedule=pieces:3"), "{output:?}");
    assert!(page.contains("schedule=pieces:3"));
}

#[test]
fn a_compressor_of_ones_own_is_measured() {
    let methods = "compress=sign;wfbp-ps,compress=sign;wfbp-a2a";
    let (output, page) = bench("own_compressor", &["--models", "mlp", "--methods", methods]);
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(printed.contains("compress=sign: no prediction: compress=sign is not predicted yet"), "{printed}");
    assert!(page.contains("as its compressor sign says") && page.contains("what sign makes of D out and D in"));
}

/// What `train` prints and writes with an example.
fn train(name: &str, arguments: &[&str]) -> (String, String) {
    let json = env::temp_dir().join(format!("paceline-example-{}-{name}-train.json", std::process::id()));
    let options = ["train", "--workers", "2", "--iterations", "6", "--json"];
    let output = example(name).args(options).arg(&json).args(arguments).output();
    let output = output.expect("the example was built beside this test");
    assert!(output.status.success(), "{output:?}");
    let report = fs::read_to_string(&json).expect("the report");
    let _ = fs::remove_file(json);
    (String::from_utf8_lossy(&output.stdout).into_owned(), report)
}

#[test]
fn a_model_of_ones_own_is_trained() {
    let (printed, report) = train("own_model", &["--model", "softmax", "--optimizer", "adamw"]);
    assert!(printed.contains("7850 parameters"), "{printed}");
    assert!(report.contains("\"model\": \"softmax\""), "{report}");
    let output = example("own_model").args(["train", "--model", "softmaxx"]).output().expect("it was built");
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && words.contains("did you mean `softmax`?"), "{output:?}");
}

#[test]
fn a_schedule_of_ones_own_is_trained_with_and_explained() {
    let (printed, report) = train("own_schedule", &["--model", "mlp", "--strategy", "schedule=pieces:3"]);
    assert!(printed.contains("in 2 buckets"), "4 tensors in pieces of 2: {printed}");
    assert!(report.contains("schedule=pieces:3"), "{report}");
    let output = example("own_schedule").args(["explain", "schedule=pieces:3"]).output().expect("it was built");
    assert!(String::from_utf8_lossy(&output.stdout).contains("tensors sent in 3 pieces"), "{output:?}");
}

#[test]
fn a_compressor_of_ones_own_is_trained_with_and_explained() {
    let strategy = ["--model", "mlp", "--strategy", "wfbp-a2a,compress=sign"];
    let (_, report) = train("own_compressor", &strategy);
    assert!(report.contains("compress=sign"), "{report}");
    let (_, report) = train("own_compressor", &["--model", "mlp", "--strategy", "wfbp-ps,compress=sign"]);
    assert!(report.contains("compress=sign,schedule=wfbp,arch=ps"), "{report}");
    let explained = |arguments: &[&str]| {
        let output = example("own_compressor").arg("explain").args(arguments).output().expect("it was built");
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    };
    let sentence = explained(&["compress=sign"]);
    assert!(sentence.contains("one bit for each number") && sentence.contains("It is lossy"), "{sentence}");
    assert!(explained(&[]).contains("  sign"), "it stands in the list");
    let refused = explained(&["wfbp-ps,arch=ps:apply,compress=sign"]);
    assert!(refused.contains("take plain numbers, and compress=sign makes bytes"), "{refused}");
}

#[test]
fn examples_are_short() {
    for (name, text) in [
        ("own_model", include_str!("../examples/own_model.rs")),
        ("own_schedule", include_str!("../examples/own_schedule.rs")),
        ("own_compressor", include_str!("../examples/own_compressor.rs")),
    ] {
        assert!(text.lines().count() < 60, "{name}");
    }
}
