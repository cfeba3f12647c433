//! `paceline explain` and `paceline doctor`.

mod support;

use std::time::Duration;

use support::{paceline, run};

const LIMIT: Duration = Duration::from_secs(30);

#[test]
fn explain_says_a_strategy_in_words() {
    let outcome = run(paceline(&["explain", "wfbp-a2a,protocol=tcp"]), LIMIT).expect_code(0);
    let lines: Vec<&str> = outcome.stdout.lines().collect();
    assert!(lines[0].starts_with("sync=bsp,compress=none,schedule=wfbp,arch=a2a:"), "{outcome:#?}");
    assert!(lines[0].ends_with(",protocol=tcp"), "{outcome:#?}");
    assert!(lines[1].starts_with("It exploits "), "{outcome:#?}");
    assert!(lines[2].starts_with("It is lossless"), "{outcome:#?}");
}

#[test]
fn explain_marks_the_mistake() {
    let outcome = run(paceline(&["explain", "schedule=wbfp"]), LIMIT).expect_code(2);
    outcome.expect_stderr(&["did you mean `wfbp`?", "  schedule=wbfp\n           ^^^^\n"]);
}

#[test]
fn explain_lists_what_there_is() {
    let outcome = run(paceline(&["explain"]), LIMIT).expect_code(0);
    for word in ["wfbp-a2a", "ddp", "fusion:BYTES", "protocol="] {
        assert!(outcome.stdout.contains(word), "no `{word}`: {outcome:#?}");
    }
}

#[test]
fn doctor_looks_at_the_machine_and_lets_ranks_meet() {
    let outcome = run(paceline(&["doctor", "--ranks", "3"]), LIMIT).expect_code(0);
    for subject in ["cores: ", "open files: ", "memory files: ", "shared memory: ", "single copies: ", "links: "] {
        assert_eq!(outcome.stdout.matches(subject).count(), 1, "{subject}: {outcome:#?}");
    }
}

#[test]
fn doctor_finds_a_limit_that_is_too_low() {
    let script = "ulimit -n 70; exec \"$0\" doctor --ranks 2";
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", script, env!("CARGO_BIN_EXE_paceline")]);
    let outcome = run(shell, LIMIT).expect_code(1);
    assert!(outcome.stdout.contains("BROKEN  open files: the limit is 70"), "{outcome:#?}");
    assert!(outcome.stdout.contains("fix: ulimit -n "), "{outcome:#?}");
}
