//! `paceline explain` and `paceline doctor`.

#[path = "../../fabric/tests/common/filter.rs"]
mod filter;
mod support;

use std::os::unix::process::CommandExt;
use std::time::Duration;

use filter::forbid_single_copies;
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
fn explain_says_the_methods_of_the_study() {
    let outcome = run(paceline(&["explain", "bytescheduler-ps"]), LIMIT).expect_code(0);
    for words in [
        "ByteScheduler (partitions of 4000KiB",
        "at most 16000KiB in flight, times the number of servers",
        "parameter servers that aggregate (shards: hosts, colocated",
        "It is lossless",
    ] {
        assert!(outcome.stdout.contains(words), "no `{words}`: {outcome:#?}");
    }
    let outcome = run(paceline(&["explain", "fusion:25MiB"]), LIMIT).expect_code(0);
    assert!(outcome.stdout.starts_with("sync=bsp,compress=none,schedule=fusion:25MiB,arch=a2a:"), "{outcome:#?}");
    let outcome = run(paceline(&["explain", "mg-wfbp,arch=ps:2"]), LIMIT).expect_code(2);
    outcome.expect_stderr(&["cut buckets into partitions again", "  mg-wfbp,arch=ps:2\n  ^^^^^^^\n"]);
}

#[test]
fn explain_marks_the_mistake() {
    let outcome = run(paceline(&["explain", "schedule=wbfp"]), LIMIT).expect_code(2);
    outcome.expect_stderr(&["did you mean `wfbp`?", "  schedule=wbfp\n           ^^^^\n"]);
    let outcome = run(paceline(&["explain", "fusion:25MB"]), LIMIT).expect_code(2);
    outcome.expect_stderr(&["BYTES in fusion:BYTES[:FIRST] is a number of bytes", "  fusion:25MB\n         ^^^^\n"]);
}

#[test]
fn explain_lists_what_there_is() {
    let outcome = run(paceline(&["explain"]), LIMIT).expect_code(0);
    for word in ["wfbp-a2a", "study-mg-wfbp", "ddp", "schedule=fusion:BYTES[:FIRST]", "ps[:SHARDS]", "protocol="] {
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

/// As in a container whose seccomp filter does not allow it.
#[test]
fn doctor_finds_that_single_copies_are_refused() {
    let over_hosts = ["doctor", "--hostfile", "tests/data/two-hosts", "--ssh", "sh tests/data/here.sh"];
    for arguments in [&["doctor", "--ranks", "2"][..], &over_hosts] {
        let mut command = paceline(arguments);
        // SAFETY: between fork and exec it makes two system calls; it allocates nothing and takes no lock.
        unsafe { command.pre_exec(forbid_single_copies) };
        let outcome = run(command, LIMIT).expect_code(0);
        let line = outcome.stdout.lines().find(|line| line.contains("single copies: ")).unwrap_or_default();
        assert!(line.starts_with("SLOW ") && line.contains("no single copy"), "{outcome:#?}");
        assert!(outcome.stdout.contains("fix: allow process_vm_readv"), "{outcome:#?}");
    }
}

#[test]
fn doctor_finds_a_limit_that_is_too_low() {
    for (limit, found, fix) in [
        ("-n 70", "BROKEN  open files: the limit is 70", "fix: ulimit -n "),
        // The kernel kills whoever grows a file beyond it.
        (
            "-f 512",
            "BROKEN  memory files: 64 MiB cannot be had: the limit on file sizes is ",
            "fix: ulimit -f unlimited",
        ),
    ] {
        let script = format!("ulimit {limit}; exec \"$0\" doctor --ranks 2");
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", &script, env!("CARGO_BIN_EXE_paceline")]);
        let outcome = run(shell, LIMIT).expect_code(1);
        assert!(outcome.stdout.contains(found) && outcome.stdout.contains(fix), "{outcome:#?}");
    }
}
