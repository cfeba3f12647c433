//! `paceline perf` with real processes: the table, the file, every collective on both transports, and wrong usage.

mod support;

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;
use support::folder::scratch_file;
use support::{Outcome, paceline, run};

const LIMIT: Duration = Duration::from_secs(60);

fn perf(arguments: &[&str]) -> Outcome {
    run(paceline(&[&["perf"], arguments].concat()), LIMIT)
}

/// By the option or by the environment; one that has not a place for each of their hosts is refused.
#[test]
fn ranks_are_told_of_a_torus() {
    let call = ["all-reduce", "--ranks", "4", "--algorithm", "2d-torus", "--max", "4KiB", "--iterations", "2"];
    let call = [&call[..], &["--emulate", "10GbE", "--hosts", "4x1"]].concat();
    perf(&[&call[..], &["--topology", "torus:4x1"]].concat()).expect_code(0);
    let told = |shape: &str| {
        let mut command = paceline(&[&["perf"], &call[..]].concat());
        command.env("PACELINE_TOPOLOGY", shape);
        run(command, LIMIT)
    };
    told("torus:4x1").expect_code(0);
    let other = perf(&[&call[..], &["--topology", "torus:2x1"]].concat());
    other.expect_code(1).expect_stderr(&["the topology torus:2x1 has room for 2 hosts"]);
    let places = "the topology torus:3x1 has room for 3 hosts, exactly, and the cluster has 4; give --topology";
    told("torus:3x1").expect_code(1).expect_stderr(&[places]);
    told("tree:2:2").expect_code(2).expect_stderr(&["PACELINE_TOPOLOGY", "changes no program"]);
}

/// Calls are made as a policy says where it has a rule for them, and as ever elsewhere; one that cannot be used is told, and fails
/// no call.
#[test]
fn a_policy_says_how_calls_are_made() {
    let path = |name: &str| scratch_file(name).to_string_lossy().into_owned();
    let (json, policy) = (path("policy"), path("policy.toml"));
    let kind = paceline_plan::CollectiveKind::AllReduce;
    let tree =
        paceline_collective::registry::find(kind, "binary-tree").ok().and_then(paceline_collective::registry::index_of);
    let text = format!(
        r#"
            schema = 1
            state_version = {}
            version = 9
            [[rule]]
            algorithm = {}
            protocol = "simple"
            chunk_log2 = 14
            [rule.context]
            collective = "all-reduce"
            size_log2 = 16
            ranks = 4
            hosts = 1
            transport = "shm"
            topology = "one-host"
            has_nvlink = false
            is_ps_deployment = false
            is_pipelined_layer = true
            is_fused_call = false
            parallelism = "data"
            intensity_log2 = 6
            inverse_ratio_log2 = 9
            congestion = "none"
        "#,
        paceline_tune::STATE_VERSION,
        tree.expect("a tree")
    );
    let measured = |text: &str| {
        fs::write(&policy, text).expect("written");
        let sizes = ["--min", "64KiB", "--max", "1MiB", "--factor", "16", "--seconds", "0.02", "--json", &json];
        let place = ["all-reduce", "--ranks", "4", "--transport", "shm", "--policy", &policy];
        let outcome = perf(&[&place[..], &sizes].concat()).expect_code(0);
        let report: Value = serde_json::from_str(&fs::read_to_string(&json).expect("the file")).expect("JSON");
        let algorithms: Vec<String> =
            report["rows"].as_array().expect("rows").iter().map(|row| row["algorithm"].to_string()).collect();
        (outcome, algorithms)
    };
    let (outcome, with) = measured(&text);
    outcome.expect_stderr(&["paceline: following ", "version 9, rules: 1"]);
    let (outcome, without) = measured(&text.replace("schema = 1", "schema = 3"));
    outcome.expect_stderr(&["the policy has schema 3", "calls are made as without a policy"]);
    assert_eq!((&*with[0], &with[1], with.len()), ("\"binary-tree\"", &without[1], 2));
    assert_ne!(without[0], with[0]);
    perf(&["all-reduce", "--policy", &policy, "--algorithm", "ring"]).expect_code(2);
    perf(&["all-reduce", "--policy", &policy, "--tune"]).expect_code(2);
    [json, policy].iter().for_each(|file| fs::remove_file(file).expect("our own file"));
}

#[test]
fn the_table_and_the_file_agree_and_nothing_is_wrong() {
    for transport in ["shm", "tcp"] {
        let path = scratch_file(transport);
        let file = path.to_string_lossy();
        let sizes = ["--min", "1KiB", "--max", "300KiB", "--factor", "8", "--seconds", "0.02"];
        let options = ["all-reduce", "--ranks", "4", "--transport", transport, "--json", &file];
        let outcome = perf(&[&options[..], &sizes].concat()).expect_code(0);
        let report: Value = serde_json::from_str(&fs::read_to_string(&path).expect("the file")).expect("JSON");
        fs::remove_file(&path).expect("our own file");
        assert_eq!(report["schema"], 1);
        assert!(report["machine"]["cores"].as_u64().is_some_and(|cores| cores > 0), "{report:#}");
        assert_eq!(report["command"][1], "perf");
        let rows = report["rows"].as_array().expect("rows");
        let bytes: Vec<_> = rows.iter().filter_map(|row| row["bytes"].as_u64()).collect();
        assert_eq!(bytes, [1 << 10, 8 << 10, 64 << 10, 300 << 10]);
        let lines: Vec<_> = outcome.stdout.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(lines.len(), rows.len(), "{outcome:#?}");
        for (row, line) in rows.iter().zip(lines) {
            check_row(row, transport);
            let first = line.split_whitespace().next().and_then(|word| word.parse().ok());
            assert_eq!(first, row["bytes"].as_u64(), "{line}");
            assert!(line.ends_with(" 0"), "wrong must be 0: {line}");
        }
    }
}

/// Every field that scripts rely on is there and makes sense.
fn check_row(row: &Value, transport: &str) {
    assert_eq!([&row["collective"], &row["transport"], &row["dtype"]], ["all-reduce", transport, "f32"], "{row:#}");
    assert_eq!([&row["ranks"], &row["wrong"]], [4, 0], "{row:#}");
    assert!(row["algorithm"].as_str().is_some_and(|name| name != "auto" && !name.is_empty()), "{row:#}");
    let number = |name: &str| row[name].as_f64().unwrap_or_else(|| panic!("{name} is no number in {row:#}"));
    assert!(number("iterations") >= 3.0);
    assert!(0.0 < number("min_us") && number("min_us") <= number("p50_us"));
    assert!(number("p50_us") <= number("p99_us") && number("p99_us") <= number("max_us"));
    let algbw = number("bytes") / number("p50_us") / 1e3;
    assert!((number("algbw_gbps") / algbw - 1.0).abs() < 1e-9, "{row:#}");
    assert!((number("busbw_gbps") / algbw - 1.5).abs() < 1e-9, "{row:#}");
}

#[test]
fn every_collective_runs_between_processes() {
    let collectives = [
        "all-reduce",
        "reduce-scatter",
        "all-gather",
        "broadcast",
        "reduce",
        "gather",
        "scatter",
        "all-to-all",
        "barrier",
        "send-receive",
        "push-pull",
        "push",
    ];
    for (index, collective) in collectives.iter().enumerate() {
        // Alternately one transport, type and place of the data, so that all are seen.
        let transport = ["shm", "tcp"][index % 2];
        let dtype = ["f16", "i64", "bf16"][index % 3];
        let mut options = vec![*collective, "--ranks", "3", "--transport", transport, "--dtype", dtype, "--root", "2"];
        options.extend(["--min", "5000", "--max", "200kB", "--factor", "50", "--iterations", "3", "--warmup", "0"]);
        // Both places on both transports, in the course of four collectives.
        if index % 4 < 2 {
            options.push("--alloc");
        }
        let outcome = perf(&options).expect_code(0);
        let rows = outcome.stdout.lines().filter(|line| !line.starts_with('#')).count();
        assert_eq!(rows, if *collective == "barrier" { 1 } else { 2 }, "{outcome:#?}");
    }
}

#[test]
fn algorithms_operations_and_places_can_be_named() {
    for algorithm in ["ring", "recursive-doubling", "direct"] {
        let options = ["all-reduce", "--ranks", "3", "--algorithm", algorithm, "--op", "max", "--in-place"];
        let sizes = ["--min", "64KiB", "--max", "64KiB", "--iterations", "5", "--dtype", "i32"];
        let outcome = perf(&[&options[..], &sizes].concat()).expect_code(0);
        assert!(outcome.stdout.contains(&format!(" {algorithm} ")), "{outcome:#?}");
    }
}

/// Each option arrives in the calls, as their records show; and at the links, which notice that ranks differ.
#[test]
fn protocol_lanes_threads_chunks_and_connections_can_be_chosen() {
    let path = scratch_file("options");
    let file = path.to_string_lossy();
    for protocol in ["inline", "eager", "rendezvous"] {
        let options =
            ["all-reduce", "--ranks", "2", "--transport", "tcp", "--tcp-streams", "3", "--protocol", protocol];
        let cut = ["--lanes", "2", "--reducing-threads", "2", "--chunk-bytes", "128KiB", "--telemetry", &file];
        let sizes = ["--min", "1MiB", "--max", "1MiB", "--iterations", "3"];
        perf(&[&options[..], &cut, &sizes].concat()).expect_code(0);
        let text = fs::read_to_string(&path).expect("the file");
        let calls = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
        let calls: Vec<Value> = calls.filter(|call| call["bytes"] == 1 << 20).collect();
        assert!(calls.len() >= 3, "{text}");
        for call in calls {
            assert_eq!(call["protocol"], protocol);
            assert_eq!((&call["lanes"], &call["reducing_threads"]), (&2.into(), &2.into()), "{call}");
            assert_eq!(call["chunk_bytes"], 128 << 10, "{call}");
        }
    }
    fs::remove_file(format!("{file}.rank1")).and_then(|()| fs::remove_file(&path)).expect("our own files");
    let program = env!("CARGO_BIN_EXE_paceline");
    let differ =
        format!("exec '{program}' perf all-reduce --transport tcp --max 1KiB --tcp-streams $((PACELINE_RANK + 2))");
    let outcome = run(paceline(&["launch", "--workers", "2", "--", "sh", "-c", &differ]), LIMIT).expect_code(1);
    outcome.expect_stderr(&["3 connections per link", "2"]);
}

#[test]
fn one_rank_needs_nobody() {
    perf(&["all-reduce", "--ranks", "1", "--max", "1MiB", "--seconds", "0.01"]).expect_code(0);
}

#[test]
fn under_another_launcher_nothing_is_spawned() {
    let options = ["perf", "all-reduce", "--max", "4KiB", "--seconds", "0.01"];
    let program = env!("CARGO_BIN_EXE_paceline");
    let launched = [&["launch", "--workers", "2", "--", program], &options[..]].concat();
    let outcome = run(paceline(&launched), LIMIT).expect_code(0);
    assert_eq!(outcome.stdout.matches("# all-reduce, 2 ranks").count(), 1, "{outcome:#?}");
    let launched = [&launched[..], &["--ranks", "3"]].concat();
    run(paceline(&launched), LIMIT).expect_code(1).expect_stderr(&["--ranks 3", "has started 2 ranks"]);
}

#[test]
fn wrong_usage_is_told_before_anything_starts() {
    let cases: [(&[&str], &[&str]); 15] = [
        (&["all-redcue"], &["all-redcue", "all-reduce"]),
        (&["all-reduce", "--ranks", "0"], &["there must be at least one"]),
        (&["all-reduce", "--algorithm", "rign"], &["no algorithm `rign`", "ring"]),
        (&["all-reduce", "--dtype", "f31"], &["f31", "bf16"]),
        (&["all-reduce", "--min", "2MiB", "--max", "1MiB"], &["--min 2MiB is more than --max 1MiB"]),
        (&["all-reduce", "--max", "1.5MiB"], &["64KiB, 1MiB, 4MB"]),
        (&["broadcast", "--root", "7"], &["--root 7 is not one of 2 ranks"]),
        (&["all-gather", "--in-place"], &["--in-place is for all-reduce"]),
        (&["send-receive", "--ranks", "1"], &["at least two ranks"]),
        (&["push-pull", "--ranks", "1"], &["push-pull needs at least two ranks"]),
        (&["all-reduce", "--protocol", "inlien"], &["inlien", "rendezvous"]),
        (&["all-reduce", "--lanes", "0"], &["--lanes", "1.."]),
        (&["all-reduce", "--reducing-threads", "65"], &["--reducing-threads", "64"]),
        (&["all-reduce", "--chunk-bytes", "0"], &["--chunk-bytes", "at least one byte"]),
        (&["all-reduce", "--tcp-streams", "0"], &["--tcp-streams", "1..=64"]),
    ];
    for (arguments, fragments) in cases {
        let outcome = perf(arguments).expect_code(2).expect_stderr(fragments);
        assert_eq!(outcome.stdout, "", "{arguments:?}");
    }
}

#[test]
fn more_memory_than_there_is_is_a_failure_and_no_crash() {
    let outcome =
        perf(&["all-reduce", "--ranks", "2", "--min", "1000000000GiB", "--max", "1000000000GiB"]).expect_code(1);
    outcome.expect_stderr(&["has no memory for", "help:", "--max"]);
}

#[test]
fn a_file_that_cannot_be_written_is_found_out_before_measuring() {
    let outcome = perf(&["all-reduce", "--json", "/no/such/directory/rows.json"]).expect_code(1);
    outcome.expect_stderr(&["cannot write the results to /no/such/directory/rows.json", "help:"]);
}

#[test]
fn telemetry_has_a_line_for_each_call() {
    let path = scratch_file("telemetry");
    let file = path.to_string_lossy();
    perf(&["all-gather", "--ranks", "2", "--min", "4KiB", "--max", "4KiB", "--iterations", "5", "--telemetry", &file])
        .expect_code(0);
    for path in [path.clone(), PathBuf::from(format!("{file}.rank1"))] {
        let text = fs::read_to_string(&path).expect("a file of each rank");
        fs::remove_file(&path).expect("our own file");
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        let documented = include_str!("../../../docs/telemetry.md");
        let calls = lines.iter().filter(|line| line["collective"] == "all-gather" && line["bytes"] == 4096);
        assert!(calls.clone().count() >= 5, "{text}");
        for call in calls {
            assert!(call["end_us"].as_f64() > call["start_us"].as_f64() && call["failed"] == false, "{call}");
            let fields = call.as_object().expect("an object").keys();
            fields.for_each(|field| assert!(documented.contains(&format!("`{field}`")), "{field} is not documented"));
        }
    }
}

#[test]
fn an_urgent_call_and_a_computation_are_measured_beside_a_long_one() {
    let path = scratch_file("overlap");
    let file = path.to_string_lossy();
    for (what, options) in [("urgent", &["--urgent", "4KiB"][..]), ("compute", &["--compute"])] {
        let common = ["all-reduce", "--ranks", "2", "--transport", "tcp", "--max", "32MiB", "--iterations", "3"];
        let calls = format!("{file}.calls");
        let files = ["--json", &file, "--telemetry", &calls];
        let outcome = perf(&[&common[..], options, &files].concat()).expect_code(0);
        let recorded = fs::read_to_string(&calls).expect("the file").matches("\"bytes\":33554432").count();
        assert!(recorded >= 3, "only {recorded} of the calls in the background are in the telemetry");
        fs::remove_file(format!("{calls}.rank1")).and_then(|()| fs::remove_file(&calls)).expect("our own files");
        assert!(outcome.stdout.contains("beside an all-reduce of 32MiB"), "{outcome:#?}");
        let report: Value = serde_json::from_str(&fs::read_to_string(&path).expect("the file")).expect("JSON");
        let overlap = &report["overlap"];
        assert_eq!((overlap["what"].as_str(), overlap["wrong"].as_u64()), (Some(what), Some(0)), "{report:#}");
        let rounds = ["rounds", "too_short"].map(|name| overlap[name].as_u64().expect("a number"));
        assert_eq!(rounds.iter().sum::<u64>(), 3, "{report:#}");
        assert!(rounds[0] == 0 || overlap["alone_p50_us"].as_f64().is_some_and(|time| time > 0.0), "{report:#}");
        let documented = include_str!("../../../docs/json.md");
        let fields = overlap.as_object().expect("an object").keys();
        fields.for_each(|field| assert!(documented.contains(&format!("`{field}`")), "{field} is not documented"));
        let computation = ["processor_ratio", "slices"].map(|name| overlap[name].is_number());
        assert_eq!(computation, [what == "compute"; 2], "{report:#}");
    }
    fs::remove_file(&path).expect("our own file");
    perf(&["broadcast", "--ranks", "2", "--compute"]).expect_code(2).expect_stderr(&["for all-reduce"]);
}
