//! `paceline tune`.

mod support;

use std::fs;
use std::time::Duration;

use paceline_tune::Random;
use serde_json::Value;
use support::folder::{Folder, scratch_file};
use support::{paceline, run};

const LIMIT: Duration = Duration::from_secs(60);

#[test]
fn nccls_tables_are_printed_as_nccl_prints_them() {
    let path = scratch_file("tables.json");
    let arguments = ["tune", "--nccl-table", "2.30.7", "--nvls", "--graph", "NVLS=16:20:40", "--bytes", "1KiB,1GiB"];
    let json = path.to_string_lossy();
    let outcome = run(paceline(&[&arguments[..], &["--json", &json]].concat()), LIMIT).expect_code(0);
    for words in [
        "    AllReduce |    15.2/  38.7 |    31.5/ 114.5 |    64.4/ 147.2 |    15.0/  80.6 |    40.6/ 168.2 |    56.0/ 182.9 |",
        "    25.0/ 291.4 |",
        "1KiB  Ring LL               1 channels of 96 threads",
        "1GiB  NVLS Simple          16 channels of 640 threads",
    ] {
        assert!(outcome.stdout.contains(words), "no `{words}`: {}", outcome.stdout);
    }
    let report: Value = serde_json::from_str(&fs::read_to_string(&path).expect("the file")).expect("JSON");
    fs::remove_file(&path).expect("our own file");
    assert_eq!(report["entries"].as_array().map(Vec::len), Some(5 * 7 * 3));
    assert_eq!(report["choices"][1]["algorithm"], "NVLS");
    // A host's only rank is a tree: benches/runs/2026-11-27-nvidia-h200/nccl-log.txt.gz.
    let hosts = ["--ranks", "4", "--hosts", "4", "--channels", "2", "--intra", "0.6", "--inter", "0.6"];
    let arguments = [&["tune", "--nccl-table", "2.28.9", "--inter-link", "PHB"], &hosts[..]].concat();
    let printed = run(paceline(&arguments), LIMIT).expect_code(0).stdout;
    let log = "    AllReduce |    26.8/   0.1 |    48.0/   0.0 |    64.4/   0.5 |    36.6/   0.4 |    65.0/   0.0 |    92.4/   0.8 |";
    assert!(printed.contains(log), "{printed}");
}

/// Seven sizes of messages: a row of the atlas and two lines of the table for each.
#[test]
fn what_is_learned_on_a_cluster_is_told_by_regime() {
    let json = scratch_file("learned.json");
    let file = json.to_string_lossy();
    let job = ["tune", "--simulate", "study-100gbe:4x1", "--workload", "data-parallel", "--iterations", "300"];
    let all = ["--atlas", "--table", "--json", &file];
    let outcome = run(paceline(&[&job[..], &all].concat()), LIMIT).expect_code(0);
    let report: Value = serde_json::from_str(&fs::read_to_string(&json).expect("the file")).expect("JSON");
    fs::remove_file(&json).expect("our own file");
    let contexts = report["contexts"].as_array().expect("a list");
    assert_eq!(contexts.len(), 7);
    let (_, shown) = outcome.stdout.split_once("collective      bytes").expect("the atlas");
    let (atlas, table) = shown.split_once("\n\n").expect("two parts");
    let rows: Vec<&str> = atlas.lines().skip(1).collect();
    assert_eq!(rows.len(), 7, "{outcome:#?}");
    for (row, context) in rows.iter().zip(contexts) {
        for field in ["regime", "rule"] {
            let words = context[field].as_str().expect("a text");
            assert!(row.contains(words), "no `{words}`: {row}");
        }
        let words = context["best"].as_str().expect("a text");
        assert!(table.contains(&format!("  {words} (")), "no `{words}`: {table}");
    }
    assert!(contexts.iter().any(|context| context["gain"].is_number()), "{report}");
    assert!(contexts.iter().all(|context| context["explored"].as_u64() > Some(0)), "{report}");
    let saturated = contexts.iter().filter(|context| context["lossless_saturated"] == true).count();
    assert_eq!(table.matches("lossless_saturated: ").count(), saturated, "{table}");
    let number = |field: &str| report[field].as_f64().expect("a number");
    assert!((number("regret_s") - (number("tuned_s") - number("oracle_s"))).abs() < 1e-9);
    assert!(number("tuned_s") < number("default_s") && number("oracle_s") < number("tuned_s"), "{report}");
}

/// What is learned of NCCL's calls is a policy for its plug-in, with what a plug-in can set and nothing else.
#[test]
fn what_nccls_calls_take_is_learned_by_its_own_model() {
    let policy = scratch_file("policy.toml");
    let file = policy.to_string_lossy();
    let nccl = ["--ranks", "32", "--hosts", "4", "--intra", "40", "--inter", "24", "--nvls"];
    let job = ["tune", "--simulate", "nccl:2.30.7", "--workload", "data-parallel", "--iterations", "420", "--table"];
    let outcome = run(paceline(&[&job[..], &nccl, &["-o", &file]].concat()), LIMIT).expect_code(0);
    let text = fs::read_to_string(&policy).expect("the policy");
    fs::remove_file(&policy).expect("our own file");
    for words in ["NCCL 2.30.7 among 32 ranks on 4 hosts", "not actuable    threads: NCCL_NTHREADS"] {
        assert!(outcome.stdout.contains(words), "no `{words}`: {outcome:#?}");
    }
    assert!(!outcome.stdout.contains(" threads,") && !outcome.stdout.contains("KiB)"), "{outcome:#?}");
    let rules = text.matches("[[call]]\nfunction = \"AllReduce\"").count();
    let found = outcome.stdout.matches("p = ").count() - outcome.stdout.matches("of an iteration's calls").count();
    assert!(rules > 0 && rules == found, "{rules} rules: {text}{outcome:#?}");
    assert!(text.contains("nccl_channels = 16") && text.contains("ranks = 32\nhosts = 4"), "{text}");
    for (arguments, words) in [
        (&["--simulate", "nccl:2.31"][..], "2.19 to 2.30 are"),
        (&["--simulate", "nccl:new"], "`new` is no version"),
        (&["--simulate", "nccl:2.30", "--hosts", "3"], "hosts = 3"),
    ] {
        run(paceline(&[&["tune"], arguments].concat()), LIMIT).expect_code(2).expect_stderr(&[words]);
    }
}

/// A mix is not the whole mix everywhere, and of what is missing nobody must think that it was learned.
#[test]
fn calls_that_nothing_is_learned_of_are_told_with_the_reason() {
    let json = scratch_file("left-out.json");
    let file = json.to_string_lossy();
    let nccl = ["tune", "--simulate", "nccl:2.30.7", "--ranks", "32", "--hosts", "4", "--iterations", "1"];
    let outcome = run(paceline(&[&nccl[..], &["--json", &file]].concat()), LIMIT).expect_code(0);
    let report: Value = serde_json::from_str(&fs::read_to_string(&json).expect("the file")).expect("JSON");
    fs::remove_file(&json).expect("our own file");
    let all_taken = "parallelism, not called: the stages of the pipeline and the parts of layers take all workers";
    let of_pipeline = ["5MiB", "20MiB", "40MiB"]
        .map(|size| format!("pipeline parallelism, send-receive of {size}: NCCL asks no tuner about it"));
    let told = [vec![format!("sharded {all_taken}"), format!("data {all_taken}")], of_pipeline.into()].concat();
    assert_eq!(report["left_out_calls"], serde_json::json!(told), "{report:#}");
    assert_eq!(report["not_actuable"], serde_json::json!(["threads"]));
    for words in &told {
        assert!(outcome.stdout.contains(&format!("  left out        {words}\n")), "no `{words}`: {outcome:#?}");
    }
    // Where there is a place for everything, and a choice, there is nothing to tell.
    let job = ["tune", "--simulate", "25gbe+pcie4:8x8", "--iterations", "1", "--ps-deployment"];
    let outcome = run(paceline(&[&job[..], &["--json", &file]].concat()), LIMIT).expect_code(0);
    let report: Value = serde_json::from_str(&fs::read_to_string(&json).expect("the file")).expect("JSON");
    fs::remove_file(&json).expect("our own file");
    let contexts = report["contexts"].as_array().expect("a list");
    assert!(!contexts.is_empty() && contexts.iter().all(|it| it["context"]["is_ps_deployment"] == true), "{report:#}");
    assert_eq!((&report["left_out_calls"], &report["not_actuable"]), (&serde_json::json!([]), &serde_json::json!([])));
    assert!(!outcome.stdout.contains("left out"), "{outcome:#?}");
}

#[test]
fn who_learns_and_what_is_called_must_be_known() {
    for (arguments, words) in [
        (&["--learner", "oracle"][..], "there is no learner `oracle`; there is: thompson"),
        (&["--workload", "llm-4d"], "`llm-4d` is no workload"),
        (&["--drift", "100"], "give an iteration and a factor"),
        (&["--learner", "all", "--table"], "are for a single learner"),
    ] {
        let job = ["tune", "--simulate", "study-10gbe:4x1", "--iterations", "1"];
        run(paceline(&[&job[..], arguments].concat()), LIMIT).expect_code(2).expect_stderr(&[words]);
    }
}

/// What one run has learned, the next one on the same cluster begins with: it explores less.
#[test]
fn the_next_run_begins_with_what_the_last_one_has_kept() {
    let (json, database) = (scratch_file("again.json"), scratch_file("again.sqlite"));
    let (json_file, database_file) = (json.to_string_lossy(), database.to_string_lossy());
    let job = ["tune", "--simulate", "study-100gbe:4x1", "--workload", "data-parallel", "--iterations", "300"];
    let files = ["--database", &database_file, "--json", &json_file];
    let explored: Vec<u64> = (0..2)
        .map(|_| {
            run(paceline(&[&job[..], &files].concat()), LIMIT).expect_code(0);
            let report: Value = serde_json::from_str(&fs::read_to_string(&json).expect("the file")).expect("JSON");
            let contexts = report["contexts"].as_array().expect("a list").iter();
            contexts.map(|context| context["explored"].as_u64().expect("a number")).sum()
        })
        .collect();
    assert!(3 * explored[1] < 2 * explored[0], "{explored:?}");
    fs::remove_file(&json).expect("our own file");
    for end in ["", "-wal", "-shm"] {
        let _ = fs::remove_file(format!("{database_file}{end}"));
    }
}

/// Sizes of the all-reduces of a job, and nanoseconds that they take, whatever makes them.
const ALIKE: [(u64, f64); 4] = [(1 << 14, 15e3), (1 << 18, 30e3), (1 << 20, 70e3), (1 << 22, 200e3)];

/// What two ranks have recorded of a round. One call in four takes 2.5 times as long as the others; nothing makes a difference.
fn bimodal(round: u64, policy: u64, rules: &str, random: &mut Random) -> String {
    let mut lines = String::new();
    for (kind, (bytes, ns)) in ALIKE.iter().enumerate() {
        let rule = rules.split("[[call]]").find(|rule| rule.contains(&format!("min_bytes = {bytes}\n")));
        let field = |name: &str| rule?.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(" = "));
        let algorithm = field("algorithm").unwrap_or("\"Ring\"");
        let protocol = field("protocol").unwrap_or("\"LL\"");
        let mode = if random.below(4) == 0 { 2.5 } else { 1.0 };
        let ns = (ns * mode * (0.02 * random.normal()).exp()) as u64;
        let sequence = ALIKE.len() as u64 * round + kind as u64;
        for rank in 0..2 {
            // The second one comes late, and waits for nobody.
            let longest_ns = ns + 5000 * (1 - rank);
            lines += &format!(
                "{{\"schema\": 1, \"round\": {round}, \"policy\": {policy}, \"communicator\": 1, \"sequence\": {sequence}, \
                 \"rank\": {rank}, \"ranks\": 2, \"hosts\": 1, \"function\": \"AllReduce\", \"bytes\": {bytes}, \
                 \"algorithm\": {algorithm}, \"protocol\": {protocol}, \"channels\": 1, \"longest_ns\": {longest_ns}}}\n"
            );
        }
    }
    lines
}

/// A job of NCCL's that plays what it is told, round after round, under noise of two modes: until the command has had a trial of what
/// looked better. It finds no significant gain, and writes no rule.
#[test]
fn samples_of_two_modes_without_a_difference_end_with_no_significant_gain() {
    const SEED: u64 = 11;
    const ROUNDS_MAX: u64 = 900;
    let folder = Folder::new("bimodal");
    let [samples, policy, json] = ["samples.jsonl", "policy.toml", "report.json"].map(|name| folder.path(name));
    let job =
        ["tune", "--nccl-samples", &samples, "--nccl-version", "2.29.7", "--table", "-o", &policy, "--json", &json];
    let (mut random, mut recorded, mut rules) = (Random::new(SEED, 1), String::new(), String::new());
    let (mut version, mut rounds) = (0, 0);
    let last = loop {
        rounds += 1;
        recorded += &bimodal(rounds, version, &rules, &mut random);
        fs::write(&samples, &recorded).expect("the samples");
        let outcome = run(paceline(&job), LIMIT).expect_code(0);
        let report: Value = serde_json::from_str(&folder.read("report.json")).expect("JSON");
        let counts = ["recorded_rounds", "dishonoured_calls", "standing_contexts"].map(|name| report[name].as_u64());
        assert_eq!(counts, [Some(rounds), Some(0), Some(0)], "{report:#}");
        if outcome.stdout.contains("default (no significant gain)") {
            break outcome;
        }
        assert!(rounds < ROUNDS_MAX, "no trial has ended: {outcome:#?}");
        version = report["policy_version"].as_u64().expect("a number");
        rules = folder.read("policy.toml");
    };
    println!("after {rounds} rounds: {}", last.stdout);
    let settled = run(paceline(&[&job[..], &["--no-tries"]].concat()), LIMIT).expect_code(0);
    for words in ["default (no significant gain)", "something better in 0 regimes, something to try in 0"] {
        assert!(settled.stdout.contains(words), "no `{words}`: {settled:#?}");
    }
    let written = folder.read("policy.toml");
    assert!(written.starts_with("# What paceline tune has found") && !written.contains("[[call]]"), "{written}");
}

#[test]
fn communicators_that_cannot_be_are_wrong_usage() {
    for (arguments, words) in [
        (&["--nccl-table", "2.31"][..], "2.19 to 2.30 are"),
        (&["--nccl-table", "2.30", "--hosts", "3"], "hosts = 3"),
        (&["--nccl-table", "2.30", "--graph", "Star=1:2:3"], "`Star` is no algorithm"),
        (&["--nccl-table", "2.30", "--graph", "Ring=1"], "give ALGORITHM=CHANNELS:INTRA:INTER"),
        (&["--nccl-table", "2.30", "--intra-link", "USB"], "`USB` is no link type"),
        (&["--nccl-table", "2.30", "--compute-capability", "many"], "give a compute capability"),
        (&["--nccl-table", "2.30", "--channels", "0"], "channels = 0"),
        (&[], "--nccl-table"),
    ] {
        run(paceline(&[&["tune"], arguments].concat()), LIMIT).expect_code(2).expect_stderr(&[words]);
    }
}
