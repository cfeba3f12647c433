//! `PACELINE_TUNE=off` in the environment: of all ranks it switches off what a command line asks for, of some of them it is a mistake.

mod support;

use std::fs;
use std::time::Duration;

use serde_json::Value;
use support::folder::Folder;
use support::{Outcome, paceline, run};

const LIMIT: Duration = Duration::from_secs(120);

/// There is none: whoever looks for it says so.
const NO_POLICY: [&str; 2] = ["--policy", "/no/such/policy.toml"];

/// A command with this word in the environment of all its ranks.
fn switched(switch: &str, words: &[&str]) -> Outcome {
    let mut command = paceline(words);
    command.env("PACELINE_TUNE", switch);
    run(command, LIMIT)
}

/// Two ranks of a command, on one of which the shell does something first.
fn with_one_apart(rank: usize, does: &str, words: &[&str]) -> Outcome {
    let program = env!("CARGO_BIN_EXE_paceline");
    let script = format!("[ $PACELINE_RANK != {rank} ] || {does}; exec '{program}' \"$@\"");
    // The word behind the script is the shell's name.
    let launch = ["launch", "--workers", "2", "--", "sh", "-c", &script, "sh"];
    run(paceline(&[&launch[..], words].concat()), LIMIT)
}

/// It says once that an option does nothing, and has not looked for the policy.
#[track_caller]
fn expect_off(outcome: &Outcome, option: &str) {
    let told = format!("PACELINE_TUNE=off in the environment: {option} does nothing");
    assert_eq!(outcome.stderr.matches(&told).count(), 1, "{outcome:#?}");
    assert!(!outcome.stderr.contains("policy.toml"), "{outcome:#?}");
}

/// A rank that is switched off alone would take the others' first words for those of its own first call. All say who it is instead.
#[test]
fn a_switch_of_some_ranks_is_told_to_all() {
    let folder = Folder::new("switch-of-some");
    let policy = folder.path("policy.toml");
    let text = format!("schema = 1\nstate_version = {}\nversion = 7\n", paceline_tune::STATE_VERSION);
    fs::write(&policy, text).expect("written");
    let perf = ["perf", "all-reduce", "--min", "1KiB", "--max", "1KiB", "--iterations", "2"];
    let train = ["train", "--model", "mlp", "--iterations", "2"];
    for (rank, command) in [(1, &perf[..]), (0, &train[..]), (1, &train[..])] {
        for option in ["--policy", "--tune"] {
            let mut words = command.to_vec();
            words.push(option);
            words.extend((option == "--policy").then_some(policy.as_str()));
            let outcome = with_one_apart(rank, "export PACELINE_TUNE=off", &words).expect_code(1);
            for reporter in 0..2 {
                let told = format!("error: rank {reporter} (host ");
                assert!(outcome.stderr.contains(&told), "no `{told}`: {outcome:#?}");
            }
            let who = format!("{option}: PACELINE_TUNE=off is in the environment of rank {rank} (host ");
            let others = format!("and not of rank {} (host ", 1 - rank);
            assert_eq!(outcome.stderr.matches(&who).count(), 2, "{outcome:#?}");
            let next = "help: set PACELINE_TUNE=off on all ranks, or on none of them";
            outcome.expect_stderr(&[who.as_str(), others.as_str(), next]);
        }
    }
}

#[test]
fn perf_does_not_read_a_policy_that_is_switched_off() {
    let perf = ["perf", "all-reduce", "--ranks", "2", "--min", "1KiB", "--max", "1KiB", "--iterations", "2"];
    let words = [&perf[..], &NO_POLICY].concat();
    let outcome = switched("off", &words).expect_code(0);
    expect_off(&outcome, "--policy");
    assert!(outcome.stdout.lines().any(|line| !line.starts_with('#')), "{outcome:#?}");
    let outcome = switched("of", &words).expect_code(2).expect_stderr(&["PACELINE_TUNE=of is neither `on` nor `off`"]);
    assert_eq!(outcome.stdout, "");
}

/// Servers are ranks of the same world, and know nothing of switches and policies: nobody waits for them.
#[test]
fn workers_with_servers_agree_among_themselves() {
    let train = |strategy: &'static str| {
        let job = ["train", "--model", "mlp", "--workers", "2", "--iterations", "4", "--strategy", strategy];
        [&job[..], &NO_POLICY].concat()
    };
    for strategy in ["wfbp-ps", "auto"] {
        expect_off(&switched("off", &train(strategy)).expect_code(0), "--policy");
    }
    let outcome = switched("on", &train("auto")).expect_code(0);
    outcome.expect_stderr(&["cannot read the policy: ", "calls are made as without a policy"]);
}

/// Each method is measured once, as without the options.
#[test]
fn a_study_that_is_switched_off_neither_tunes_nor_follows() {
    let folder = Folder::new("switch-of-a-study");
    let (database, page, json) = (folder.path("runs.db"), folder.path("report.html"), folder.path("out.json"));
    let study = ["bench", "--models", "mlp", "--methods", "wfbp-a2a", "--workers", "2", "--local-batch", "8"];
    let length = ["--runs", "1", "--iterations", "3", "--warmup", "1"];
    let files = ["--database", &database, "--report", &page, "--json", &json];
    let words = [&study[..], &length, &files, &NO_POLICY].concat();
    let outcome = switched("off", &[&words[..], &["--tune"]].concat()).expect_code(0);
    expect_off(&outcome, "--tune");
    expect_off(&outcome, "--policy");
    let json: Value = serde_json::from_str(&folder.read("out.json")).expect("JSON");
    let rows = json["panels"][0]["groups"][0]["rows"].as_array().expect("rows");
    let methods: Vec<&str> = rows.iter().filter_map(|row| row["method"].as_str()).collect();
    assert_eq!(methods, ["wfbp-a2a"]);
    for more in [&[][..], &["--tune"]] {
        let outcome = switched("of", &[&words[..], more].concat()).expect_code(2);
        outcome.expect_stderr(&["PACELINE_TUNE=of is neither `on` nor `off`"]);
    }
}

/// An option that only some ranks have is no switch that only some have: nobody is told of a variable that is not set.
#[test]
fn an_option_of_some_ranks_is_told_as_one() {
    let train = ["train", "--model", "mlp", "--iterations", "4"];
    for option in [&["--tune"][..], &NO_POLICY] {
        let outcome = with_one_apart(0, &format!("set -- \"$@\" {}", option.join(" ")), &train).expect_code(1);
        assert!(!outcome.stderr.contains("PACELINE_TUNE"), "{outcome:#?}");
        outcome.expect_stderr(&[option[0], "is asked for here, and not of rank 1 (host "]);
    }
}
