//! `paceline program` and `paceline perf --program`: an algorithm becomes a file, which is proved and measured.

mod support;

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;
use support::{paceline, run};

const LIMIT: Duration = Duration::from_secs(60);

/// A file that goes when the test ends.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        Scratch(PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("program-{}-{name}", std::process::id())))
    }

    fn path(&self) -> &str {
        self.0.to_str().expect("a path in UTF-8")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[test]
fn an_exported_algorithm_is_proved_and_measured() {
    let (file, json, rows) = (Scratch::new("file.xml"), Scratch::new("proof.json"), Scratch::new("rows.json"));
    let export = ["program", "export", "broadcast", "--algorithm", "hierarchical", "--ranks", "4", "--hosts", "2x2"];
    let to = ["--root", "3", "--output", file.path()];
    run(paceline(&[&export[..], &to].concat()), LIMIT).expect_code(0);

    let outcome = run(paceline(&["program", "verify", file.path(), "--json", json.path()]), LIMIT).expect_code(0);
    assert!(outcome.stdout.starts_with("\"hierarchical\" is right: broadcast, 4 ranks, root 3, "), "{outcome:#?}");
    assert!(outcome.stdout.ends_with("messages: 3, rounds: 2\n"), "{outcome:#?}");
    let proof: Value = serde_json::from_str(&fs::read_to_string(json.path()).expect("the file")).expect("JSON");
    assert_eq!([&proof["collective"], &proof["algorithm"]], ["broadcast", "hierarchical"], "{proof:#}");
    assert_eq!([&proof["ranks"], &proof["root"], &proof["messages"]], [4, 3, 3], "{proof:#}");

    let measure = ["perf", "broadcast", "--program", file.path(), "--json", rows.path()];
    let sizes = ["--min", "1KiB", "--max", "100KiB", "--factor", "100", "--iterations", "3", "--chunk-bytes", "16KiB"];
    run(paceline(&[&measure[..], &sizes].concat()), LIMIT).expect_code(0);
    let report: Value = serde_json::from_str(&fs::read_to_string(rows.path()).expect("the file")).expect("JSON");
    for row in report["rows"].as_array().expect("rows") {
        assert_eq!([&row["ranks"], &row["wrong"]], [4, 0], "as many ranks as the program has: {row:#}");
        assert_eq!(row["algorithm"], "hierarchical");
    }
}

/// What a file would take on a cluster that nobody has: a ring of 125 MB on four hosts, at 1 ns per byte.
#[test]
fn a_file_is_simulated_on_a_cluster() {
    let (file, toml, json) = (Scratch::new("ring.xml"), Scratch::new("four.toml"), Scratch::new("predicted.json"));
    let export = ["program", "export", "all-reduce", "--algorithm", "ring", "--ranks", "4", "-o", file.path()];
    run(paceline(&export), LIMIT).expect_code(0);
    let cluster = "schema = 1\nname = \"four\"\nsource = \"by hand\"\nhosts = 4\nworkers_per_host = 1\n\
                   [across]\nalpha_s = 1e-6\nbeta_s_per_byte = 1e-9\n";
    fs::write(&toml.0, cluster).expect("our own file");
    let verify = ["program", "verify", file.path(), "--cluster", toml.path()];
    let outcome = run(paceline(&[&verify[..], &["--bytes", "125MB", "--json", json.path()]].concat()), LIMIT);
    let outcome = outcome.expect_code(0);
    assert!(outcome.stdout.contains("on four, a block of 125000000 would take 187.5"), "{outcome:#?}");
    let answer: Value = serde_json::from_str(&fs::read_to_string(json.path()).expect("the file")).expect("JSON");
    let seconds = answer["predicted"]["predicted_s"].as_f64().expect("seconds");
    assert!((seconds / 0.187_506 - 1.0).abs() < 1e-3, "{answer:#}");
    let unmeasured = "nothing of four was measured, as far as it says; its constants come from: by hand";
    assert_eq!(answer["predicted"]["extrapolated"], Value::from(vec![unmeasured]), "{answer:#}");
    assert!(outcome.stdout.ends_with(&format!("\nextrapolated: {unmeasured}\n")), "{outcome:#?}");
    fs::write(&toml.0, format!("{cluster}[measured]\nworkers = [2, 3]\nbytes = [4, 1000]\n")).expect("our own file");
    let outcome = run(paceline(&verify), LIMIT).expect_code(0);
    assert!(!outcome.stdout.contains("was measured, as far as"), "{outcome:#?}");
    for doubt in ["extrapolated: 4 workers, and constants", "extrapolated: operations of 104857600 bytes, and"] {
        assert!(outcome.stdout.contains(doubt), "{outcome:#?}");
    }
    // Fewer workers than ranks; a topology that would have empty places; a size without a cluster.
    fs::write(&toml.0, cluster.replace("hosts = 4", "hosts = 2")).expect("our own file");
    run(paceline(&verify), LIMIT).expect_code(2).expect_stderr(&[toml.path(), "has room for 2"]);
    let torus = cluster.replace("hosts = 4", "hosts = 9").replace("[across]", "topology = \"torus:3x3\"\n[across]");
    fs::write(&toml.0, torus).expect("our own file");
    let places = "topology torus:3x3 has 9 hosts, exactly, and 4 workers take 4";
    run(paceline(&verify), LIMIT).expect_code(2).expect_stderr(&[toml.path(), places]);
    run(paceline(&["program", "verify", file.path(), "--bytes", "1MiB"]), LIMIT).expect_code(2);
}

/// The same without a file; among more ranks than anybody writes into one; and what does not fit.
#[test]
fn an_algorithm_is_simulated_on_a_cluster() {
    let (toml, json) = (Scratch::new("hosts.toml"), Scratch::new("simulated.json"));
    let cluster = "schema = 1\nname = \"made\"\nsource = \"by hand\"\nhosts = 256\nworkers_per_host = 1\n\
                   [across]\nalpha_s = 1e-6\nbeta_s_per_byte = 1e-9\n";
    fs::write(&toml.0, cluster).expect("our own file");
    let simulate = |ranks: &str, more: &[&str]| {
        let words =
            ["program", "simulate", "all-reduce", "--ranks", ranks, "--cluster", toml.path(), "--json", json.path()];
        run(paceline(&[&words[..], more].concat()), LIMIT)
    };
    // f(N)·S·β: 2·(N − 1)/N of 125 MB at 1 ns a byte; and 2·(N − 1) latencies.
    for (ranks, expected_s) in [("4", 0.187_506), ("256", 0.249_023 + 510e-6)] {
        simulate(ranks, &["--algorithm", "ring", "--bytes", "125MB"]).expect_code(0);
        let answer: Value = serde_json::from_str(&fs::read_to_string(json.path()).expect("the file")).expect("JSON");
        let seconds = answer["predicted"]["predicted_s"].as_f64().expect("seconds");
        assert!((seconds / expected_s - 1.0).abs() < 1e-3, "{answer:#}");
        assert!(answer["elapsed_us"].as_f64().is_some_and(|us| us > 0.0), "{answer:#}");
    }
    simulate("257", &["--algorithm", "ring"]).expect_code(2).expect_stderr(&["has 257 ranks, and", "has room for 256"]);
    simulate("4", &["--algorithm", "rings"])
        .expect_code(2)
        .expect_stderr(&["all-reduce has no algorithm `rings`; it has: "]);
    simulate("4", &["--algorithm", "ring", "--chunk-bytes", "1"])
        .expect_code(2)
        .expect_stderr(&["--chunk-bytes 1 makes"]);
}

#[test]
fn an_export_goes_to_standard_output_where_no_file_is_named() {
    let export = ["program", "export", "all-reduce", "--algorithm", "ring", "--ranks", "3"];
    let outcome = run(paceline(&export), LIMIT).expect_code(0);
    assert!(outcome.stdout.starts_with("<algo name=\"ring\" "), "{outcome:#?}");
    assert!(outcome.stdout.ends_with("</algo>\n"), "{outcome:#?}");
}

#[test]
fn a_wrong_file_is_refused_with_its_line() {
    let file = Scratch::new("wrong.xml");
    let ring = run(paceline(&["program", "export", "all-reduce", "--algorithm", "ring", "--ranks", "2"]), LIMIT);
    fs::write(&file.0, ring.stdout.replacen("type=\"s\"", "type=\"x\"", 1)).expect("our own file");
    let fault = format!("{}: line 4: type=\"x\" is not one of s, r,", file.path());
    for command in [&["program", "verify"][..], &["perf", "all-reduce", "--program"]] {
        run(paceline(&[command, &[file.path()]].concat()), LIMIT).expect_code(2).expect_stderr(&[&fault]);
    }
    refused_because_it_would_wait_for_ever(&file);
    fs::write(&file.0, ring.stdout).expect("our own file");
    for (arguments, fault) in [
        (&["perf", "all-gather", "--program", file.path()][..], "the program is of all-reduce, not all-gather"),
        (&["perf", "all-reduce", "--ranks", "3", "--program", file.path()], "the program is for 2 ranks, not 3"),
        (&["perf", "all-reduce", "--program", file.path(), "--algorithm", "ring"], "cannot be used with"),
        (&["perf", "all-reduce", "--program", "nowhere.xml"], "cannot read the program nowhere.xml"),
        (&["program", "export", "all-reduce", "--algorithm", "rings", "--ranks", "2"], "ring"),
        (
            &["program", "export", "all-reduce", "--algorithm", "ring", "--ranks", "2", "--hosts", "3x1"],
            "--hosts 3x1 has 3 ranks, not 2",
        ),
        (&["program", "export", "send-receive", "--algorithm", "point-to-point", "--ranks", "3"], "is not for 3 ranks"),
        (&["program", "export", "reduce", "--algorithm", "binomial", "--ranks", "3", "--root", "3"], "--root 3"),
    ] {
        run(paceline(arguments), LIMIT).expect_code(2).expect_stderr(&[fault]);
    }
}

/// Two ranks each of which sends only after it has received: refused wherever it goes, before it is run or simulated.
fn refused_because_it_would_wait_for_ever(file: &Scratch) {
    fs::write(&file.0, include_str!("../../collective/tests/msccl/deadlock.xml")).expect("our own file");
    let (begins, reason) = (format!("{}: line ", file.path()), "waits, in the end, for itself, through lines ");
    let verify = ["program", "verify", file.path()];
    let simulate = [&verify[..], &["--cluster", "25gbe+pcie4:2x1"]].concat();
    for arguments in [&verify[..], &simulate, &["perf", "all-reduce", "--program", file.path()]] {
        run(paceline(arguments), LIMIT).expect_code(2).expect_stderr(&[&begins, reason]);
    }
}
