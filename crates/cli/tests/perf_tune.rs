//! `paceline perf --tune` with real processes: what `cargo xtask study --part tuning` runs, in its smallest cases.

mod support;

use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use support::{paceline, run};
use xtask::lab::{LabOptions, Rate, Shaper};
use xtask::needs;

const LIMIT: Duration = Duration::from_secs(120);

fn scratch_file(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("perf-tune-{}-{name}.json", std::process::id()))
}

/// What stands in the file about tuning, which is removed.
fn tuned(path: &Path) -> Value {
    let report: Value = serde_json::from_str(&fs::read_to_string(path).expect("the file")).expect("JSON");
    fs::remove_file(path).expect("our own file");
    assert_eq!(report["tuned"]["wrong"], 0, "{report:#}");
    report["tuned"].clone()
}

#[test]
fn sizes_are_searched_learned_and_compared() {
    for (transport, streams) in [("shm", "1"), ("tcp", "2")] {
        let (path, policy) = (scratch_file(transport), scratch_file(&format!("{transport}-policy")));
        let (file, policy_file) = (path.to_string_lossy(), policy.to_string_lossy());
        let place = ["perf", "all-reduce", "--ranks", "2", "--transport", transport, "--tcp-streams", streams];
        let sizes = ["--min", "1KiB", "--max", "64KiB", "--factor", "64", "--json", &file];
        let tune = ["--tune", "--tune-calls", "100", "--tune-compared", "20", "--tune-search", "1"];
        let tune = [&tune[..], &["--tune-rehearsal", "0.1"]].concat();
        let written = ["--policy-out", &policy_file];
        let outcome = run(paceline(&[&place[..], &sizes, &tune, &written].concat()), LIMIT).expect_code(0);
        assert_eq!(outcome.stdout.lines().filter(|line| !line.starts_with('#')).count(), 2, "{outcome:#?}");
        let found = tuned(&path);
        // What stands is in a file that `--policy` takes.
        let rules =
            paceline_tune::policy_file::read(&fs::read_to_string(&policy).expect("the policy")).expect("a policy");
        let sizes_tuned = found["sizes"].as_array().expect("sizes").iter().filter(|size| size["chosen"] != "default");
        assert_eq!(rules.entries().count(), sizes_tuned.count(), "{found:#}");
        let again = ["--min", "1KiB", "--max", "1KiB", "--iterations", "2", "--policy", &policy_file];
        run(paceline(&[&place[..], &again].concat()), LIMIT).expect_code(0).expect_stderr(&["paceline: following "]);
        fs::remove_file(&policy).expect("our own file");
        assert_eq!((&found["ranks"], &found["transport"]), (&Value::from(2), &Value::from(transport)));
        for (size, bytes) in found["sizes"].as_array().expect("sizes").iter().zip([1 << 10, 64 << 10]) {
            let number = |name: &str| size[name].as_f64().unwrap_or_else(|| panic!("{name} is no number in {size:#}"));
            assert_eq!(number("bytes"), f64::from(bytes));
            assert!(number("called") > 1.0 && number("called") <= number("choices"), "{size:#}");
            assert!(number("oracle_us") > 0.0 && number("tuned_us") > 0.0 && number("default_us") > 0.0, "{size:#}");
            assert!(number("worst_prefix") > 0.0 && number("default_over_itself") > 0.0, "{size:#}");
            let rehearsal = &size["rehearsal"];
            assert!(rehearsal["called"].as_u64() > Some(1) && rehearsal["seconds"].as_f64() > Some(0.0), "{size:#}");
            assert!(number("jobs") >= 1.0, "{size:#}");
            // What the tuner takes besides its calls is counted.
            assert!(number("boundary_us") > 0.0 && number("reward_over_oracle") > 0.0, "{size:#}");
            assert!(number("tuned_over_oracle") > number("calls_over_oracle"), "{size:#}");
            assert!(number("worst_prefix") > number("calls_worst_prefix"), "{size:#}");
        }
    }
}

/// Whatever the command line says; and whoever misspells it is not tuned.
#[test]
fn the_environment_switches_tuning_off() {
    let words = ["perf", "all-reduce", "--ranks", "2", "--min", "1KiB", "--max", "1KiB", "--iterations", "2", "--tune"];
    let switched = |switch: &str| {
        let mut command = paceline(&words);
        command.env("PACELINE_TUNE", switch);
        run(command, LIMIT)
    };
    let off = switched("off").expect_code(0);
    assert_eq!(off.stderr.matches("PACELINE_TUNE=off in the environment: --tune does nothing").count(), 1, "{off:#?}");
    assert!(off.stdout.contains("all-reduce") && !off.stdout.contains("tuned"), "{off:#?}");
    switched("of").expect_code(2).expect_stderr(&["PACELINE_TUNE=of is neither `on` nor `off`"]);
}

/// Programs of files are choices like others: they are searched, tried, and give right sums. Those for other calls are refused.
#[test]
fn programs_of_files_are_chosen_from() {
    let directory =
        PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("perf-tune-{}-programs", std::process::id()));
    fs::create_dir_all(&directory).expect("a directory");
    let export = |algorithm: &str, ranks: &str| {
        let path = directory.join(format!("{algorithm}-{ranks}.xml")).to_string_lossy().into_owned();
        let words = ["program", "export", "all-reduce", "--algorithm", algorithm, "--ranks", ranks, "-o", &path];
        run(paceline(&words), LIMIT).expect_code(0);
        path
    };
    let (ring, direct, three) = (export("ring", "2"), export("direct", "2"), export("ring", "3"));
    // It says that it is for smaller calls.
    let small = directory.join("small.xml").to_string_lossy().into_owned();
    let text = fs::read_to_string(&direct).expect("the file").replacen("<algo ", "<algo maxBytes=\"1000\" ", 1);
    fs::write(&small, text).expect("written");
    let measured = |programs: &[&str]| {
        let path = scratch_file("programs");
        let file = path.to_string_lossy();
        let place = ["perf", "all-reduce", "--ranks", "2", "--min", "64KiB", "--max", "64KiB", "--json", &file];
        let tune = ["--tune", "--tune-calls", "100", "--tune-compared", "20", "--tune-search", "1"];
        run(paceline(&[&place[..], &tune, programs].concat()), LIMIT).expect_code(0);
        tuned(&path)["sizes"][0]["choices"].as_u64().expect("a number")
    };
    let without = measured(&[]);
    assert_eq!(measured(&["--program", &small]), without, "a program for smaller calls is no choice");
    assert!(measured(&["--program", &ring, "--program", &direct]) > without + 4, "of {without}");
    let refused = |words: &[&str], what: &str| {
        run(paceline(&[&["perf", "all-reduce", "--ranks", "2"], words].concat()), LIMIT)
            .expect_code(2)
            .expect_stderr(&[what]);
    };
    refused(&["--tune", "--program", &three], "the program is for 3 ranks, not 2");
    refused(&["--program", &ring, "--program", &direct], "only --tune chooses among several programs");
    refused(&["--tune-mix", "65536", "--program", &ring], "--program");
    fs::remove_dir_all(directory).expect("our own directory");
}

#[test]
fn a_mix_meets_its_best_static_configuration() {
    let path = scratch_file("mix");
    let file = path.to_string_lossy();
    let mix = ["--tune-mix", "65536", "--tune-calls", "6", "--tune-compared", "4", "--tune-search", "0.5"];
    let place = ["perf", "all-reduce", "--ranks", "4", "--transport", "shm", "--json", &file];
    run(paceline(&[&place[..], &mix].concat()), LIMIT).expect_code(0);
    let found = tuned(&path);
    let mix = &found["mix"];
    let numbers = ["scale", "calls", "compared"].map(|name| mix[name].as_u64());
    assert_eq!(numbers, [Some(65_536), Some(6), Some(4)], "{mix:#}");
    assert!(mix["tuned_over_static"].as_f64().is_some_and(|ratio| ratio > 0.0), "{mix:#}");
    let kinds: Vec<&str> =
        mix["mix_calls"].as_array().expect("calls").iter().filter_map(|it| it["collective"].as_str()).collect();
    for kind in ["all-reduce", "all-gather", "reduce-scatter", "send-receive"] {
        assert!(kinds.contains(&kind), "{kinds:?}");
    }
}

#[test]
fn tuners_of_calls_that_are_alike_say_what_they_found() {
    let path = scratch_file("alike");
    let file = path.to_string_lossy();
    let place = ["perf", "all-reduce", "--ranks", "2", "--transport", "shm", "--json", &file];
    let tune = ["--min", "4KiB", "--max", "4KiB", "--tune", "--tune-alike", "3", "--tune-calls", "330"];
    for rehearsal in [&[][..], &["--tune-rehearsal", "0.1"]] {
        let outcome = run(paceline(&[&place[..], &tune, rehearsal].concat()), LIMIT).expect_code(0);
        assert!(outcome.stdout.contains("3 jobs of 330 calls"), "{outcome:#?}");
        let found = tuned(&path);
        let alike = &found["alike"][0];
        let number = |name: &str| alike[name].as_f64().unwrap_or_else(|| panic!("{name} is no number in {alike:#}"));
        assert_eq!((number("bytes"), number("jobs"), number("calls")), (4096.0, 3.0, 330.0));
        assert!(number("reported") <= 3.0 && number("found") <= 3.0 && number("call_us") > 0.0, "{alike:#}");
        assert!(number("deviation") > 0.0 && (0.0..=1.0).contains(&number("late")), "{alike:#}");
        assert_eq!(number("rehearsal_s") > 0.0, !rehearsal.is_empty(), "{alike:#}");
        assert!(number("rehearsal_reported") <= number("reported"), "{alike:#}");
    }
}

#[test]
fn what_says_how_calls_are_made_leaves_nothing_to_tune() {
    for more in [&["--algorithm", "ring"][..], &["--lanes", "1"], &["--urgent", "1KiB"], &["--emulate", "10GbE"]] {
        run(paceline(&[&["perf", "all-reduce", "--tune"], more].concat()), LIMIT).expect_code(2);
    }
    run(paceline(&["perf", "broadcast", "--tune"]), LIMIT).expect_code(2).expect_stderr(&["for all-reduce"]);
    run(paceline(&["perf", "all-reduce", "--tune", "--tune-search", "-1"]), LIMIT).expect_code(2);
    run(paceline(&["perf", "all-reduce", "--tune-alike", "2"]), LIMIT).expect_code(2);
}

/// The network changes while the world lives, when it asks for that.
#[test]
fn a_network_that_changes_is_told_apart() {
    let Some(lab) = needs::lab(&LabOptions { hosts: 2, ..LabOptions::default() }) else { return };
    let path = scratch_file("drift");
    let mut words: Vec<OsString> =
        [env!("CARGO_BIN_EXE_paceline"), "perf", "all-reduce", "--max", "256KiB"].map(OsString::from).into();
    words.extend(["--tune", "--tune-drift", "--tune-calls", "16", "--tune-compared", "120"].map(OsString::from));
    words.extend(["--json".into(), path.clone().into_os_string()]);
    let mut ranks: Vec<_> = lab
        .ranks(1, &words)
        .into_iter()
        .map(|mut rank| rank.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("nsenter starts"))
        .collect();
    let (stdout, mut stdin) = (ranks[0].stdout.take().expect("a pipe"), ranks[0].stdin.take().expect("a pipe"));
    let mut changes = Vec::new();
    for line in BufReader::new(stdout).lines().map_while(Result::ok) {
        let Some(network) = line.strip_prefix("network: ") else { continue };
        let rate: Rate = if network == "slow" { "100mbit" } else { "1gbit" }.parse().expect("a rate");
        lab.set_shaper(Shaper::new(rate)).expect("tc changes it");
        changes.push(network.to_owned());
        writeln!(stdin).expect("rank 0 waits");
    }
    for mut rank in ranks {
        assert!(rank.wait().expect("it is our child").success());
    }
    assert_eq!(changes, ["usual", "slow", "usual", "slow", "usual"]);
    let found = tuned(&path);
    let phases = found["drift"]["phases"].as_array().expect("phases");
    let us: Vec<f64> = phases.iter().filter_map(|phase| phase["oracle_us"].as_f64()).collect();
    // Each of the two sends 256 KiB: at 100 Mbit/s that takes 21 ms, less what a bucket of tokens lets through at once. How long it
    // takes at 1 Gbit/s, other programs decide, too.
    assert!(us.len() == 3 && us[1] > 15e3 && us[0] < us[1] && us[2] < us[1], "a tenth of the rate: {us:?}");
}
