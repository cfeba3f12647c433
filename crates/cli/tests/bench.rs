//! `paceline bench` and `paceline report` as a user runs them, with studies of seconds.

mod support;

use std::fs;
use std::process::Command;
use std::time::Duration;

use image::{GrayImage, Luma};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use support::folder::Folder;
use support::policies::policy_for;
use support::{SOON, children_of, is_alive, paceline, run, start, until};

const LONG: Duration = Duration::from_secs(120);

/// A study of the smallest model, in this folder.
fn bench(folder: &Folder, more: &[&str]) -> Command {
    let (database, report) = (folder.path("runs.db"), folder.path("report.html"));
    let mut arguments = vec!["bench", "--models", "mlp", "--local-batch", "8", "--warmup", "1"];
    arguments.extend(["--database", &database, "--report", &report]);
    for usual in [["--methods", "bsp-a2a,wfbp-a2a"], ["--iterations", "3"]] {
        if !more.contains(&usual[0]) {
            arguments.extend(usual);
        }
    }
    arguments.extend(more);
    paceline(&arguments)
}

#[test]
fn a_study_ends_with_tables_a_report_and_files() {
    let folder = Folder::new("whole");
    let (json, csv, trace) = (folder.path("out.json"), folder.path("out.csv"), folder.path("trace.json"));
    let mut more = vec!["--methods", "bsp-a2a,wfbp-a2a,wfbp-ps", "--workers", "1,2", "--runs", "2"];
    more.extend(["--json", &json, "--csv", &csv, "--trace", &trace]);
    let outcome = run(bench(&folder, &more), LONG).expect_code(0);
    for words in
        ["mlp, local batch 8", "2 workers", "speedup 1 = ", "one worker here (bsp-a2a)", "report.html", "out.csv"]
    {
        assert!(outcome.stdout.contains(words), "no `{words}`: {outcome:#?}");
    }
    let page = folder.read("report.html");
    assert!(page.contains("<svg") && page.contains("not decidable") && page.contains("One iteration of wfbp-a2a"));
    let json: Value = serde_json::from_str(&folder.read("out.json")).expect("JSON");
    let group = &json["panels"][0]["groups"][1];
    assert_eq!((group["workers"].as_u64(), group["rows"].as_array().map(Vec::len)), (Some(2), Some(3)));
    let result = &group["rows"][1]["result"];
    assert_eq!(result["samples_per_s"]["runs"].as_u64(), Some(2));
    assert!(result["bytes_per_iteration"].as_f64().is_some_and(|bytes| bytes > 1e5), "{result}");
    assert!(group["noise"].is_number() && json["panels"][0]["baseline"]["samples_per_s"].is_number());
    let rows = group["rows"].as_array().expect("rows");
    let fastest =
        rows.iter().reduce(|best, row| if first_run(best) < first_run(row) { row } else { best }).expect("three");
    assert_eq!(group["noise_of"], fastest["method"], "the fastest in the first round is measured twice");
    assert_eq!(folder.read("out.csv").lines().count(), 1 + 6);
    let trace: Value = serde_json::from_str(&folder.read("trace.json")).expect("JSON");
    check_trace(trace["traceEvents"].as_array().expect("events"));
    // The database says the same again.
    let (database, again) = (folder.path("runs.db"), folder.path("again.html"));
    let outcome = run(paceline(&["report", &database, "--report", &again]), LONG).expect_code(0);
    assert!(outcome.stdout.contains("again.html"));
    assert_eq!(folder.read("again.html"), page);
}

/// Samples per second of a row's first run.
fn first_run(row: &Value) -> Option<f64> {
    row["samples_per_s_of_runs"][0].as_f64()
}

/// Each method has a process for each of its workers and its shard, in which something happened in every lane.
fn check_trace(events: &[Value]) {
    let named = |what: &str| -> Vec<&Value> { events.iter().filter(|event| event["name"] == what).collect() };
    let processes: Vec<&str> =
        named("process_name").iter().filter_map(|event| event["args"]["name"].as_str()).collect();
    // On one host, servers are one shard, also of one worker.
    assert_eq!(processes.len(), 2 * (1 + 2) + (1 + 2) + 2, "{processes:?}");
    let check = |method: &str, process: &str, lanes: &[&str]| {
        let is_it = |name: &&str| name.starts_with(&format!("{method}, 2 workers, mlp")) && name.ends_with(process);
        let pid = processes.iter().position(is_it).unwrap_or_else(|| panic!("no {process} of {method}: {processes:?}"));
        let is_piece = |event: &&Value| event["ph"] == "X" && event["pid"].as_u64() == Some(pid as u64);
        let pieces: Vec<&Value> = events.iter().filter(is_piece).collect();
        for lane in lanes {
            let spans = pieces.iter().filter(|piece| piece["cat"] == **lane);
            assert!(spans.count() > 0, "{method}, {process} has nothing in `{lane}`");
        }
        let starts = pieces.iter().filter_map(|piece| piece["ts"].as_f64());
        assert!(starts.fold(f64::INFINITY, f64::min) >= 0.0, "readers drop what lies before 0");
    };
    let own = ["forward", "backward", "update", "communication"];
    for (worker, peer) in [("worker 0", "worker 1"), ("worker 1", "worker 0")] {
        for (method, peer) in [("bsp-a2a", peer), ("wfbp-a2a", peer), ("wfbp-ps", "shard 0")] {
            check(method, worker, &own);
            check(method, worker, &[format!("to {peer}").as_str(), format!("from {peer}").as_str()]);
        }
    }
    check("wfbp-ps", "shard 0", &["receiving", "adding", "sending"]);
}

#[test]
fn what_a_killed_study_has_finished_is_not_run_again() {
    let folder = Folder::new("killed");
    let more = ["--workers", "2", "--runs", "3"];
    let running = start(bench(&folder, &more));
    assert!(until(LONG, || has_runs(&folder)), "{}", running.stderr_so_far());
    let ranks = children_of(running.pid());
    running.signal(Signal::KILL);
    let outcome = running.end_within(LONG);
    assert_eq!(outcome.code(), 137);
    assert!(until(SOON, || !ranks.iter().any(|pid| is_alive(*pid))), "ranks outlive their study");
    let finished = runs(&folder);
    assert!(!finished.is_empty());
    let more = [&more[..], &["--resume"]].concat();
    let all = resumed(&folder, &more, &finished);
    let (json, more) = (folder.path("out.json"), [&more[..], &["--json"]].concat());
    run(bench(&folder, &[&more[..], &[&json]].concat()), LONG).expect_code(0);
    assert_eq!(runs(&folder), all, "nothing was left to run");
    // Page and file are those of the call that began it.
    let json: Value = serde_json::from_str(&folder.read("out.json")).expect("JSON");
    let command: Vec<&str> = json["command"].as_array().expect("words").iter().filter_map(Value::as_str).collect();
    assert_eq!(command[..2], ["paceline", "bench"]);
    assert!(!command.contains(&"--resume") && !command.contains(&"--json"), "{command:?}");
    assert!(!folder.read("report.html").contains("--resume"));
}

/// Goes on with a study of four cells with three runs each; what has ended is kept as it was. All runs.
#[track_caller]
fn resumed(folder: &Folder, more: &[&str], finished: &[Run]) -> Vec<Run> {
    run(bench(folder, more), LONG).expect_code(0);
    let all = runs(folder);
    assert_eq!(all.len(), (1 + 3) * 3);
    for run in finished {
        assert!(all.contains(run), "{run:?} was run again");
    }
    all
}

/// Each method with all-reduces stands there once more, and what was learned is in the database, apart from the runs.
#[test]
fn methods_are_measured_tuned_as_well() {
    let folder = Folder::new("tuned");
    let json = folder.path("out.json");
    let outcome = run(bench(&folder, &["--workers", "2", "--runs", "1", "--tune", "--json", &json]), LONG);
    let outcome = outcome.expect_code(0);
    assert!(outcome.stdout.contains("  wfbp-a2a+tune: "), "{outcome:#?}");
    let json: Value = serde_json::from_str(&folder.read("out.json")).expect("JSON");
    let rows = json["panels"][0]["groups"][0]["rows"].as_array().expect("rows");
    let methods: Vec<&str> = rows.iter().filter_map(|row| row["method"].as_str()).collect();
    assert_eq!(methods, ["bsp-a2a", "wfbp-a2a", "bsp-a2a+tune", "wfbp-a2a+tune"]);
    for (row, tuned) in rows.iter().zip([false, false, true, true]) {
        let tuning = &row["result"]["tuning"];
        assert_eq!(tuning["tuned_iterations"].as_u64().is_some_and(|count| count > 20), tuned, "{row:#}");
        assert!(tuning.get("lessons").is_none(), "{row:#}");
    }
    let database = rusqlite::Connection::open(folder.0.join("runs.db")).expect("a database");
    let lessons: i64 =
        database.query_row("SELECT count(*) FROM experience", [], |row| row.get(0)).expect("the table is there");
    assert!(lessons > 0);
    let refused = run(bench(&folder, &["--workers", "1", "--tune"]), LONG).expect_code(2);
    refused.expect_stderr(&["--tune tunes all-reduces, and nothing here makes any"]);
    follows(&folder, &rows[3]["result"]["tuning"]["contexts"]);
}

/// With rules for those contexts, each method stands there once more; a file that cannot be used is told, and changes nothing.
fn follows(folder: &Folder, contexts: &Value) {
    let (json, policy) = (folder.path("followed.json"), folder.path("policy.toml"));
    let text = policy_for(contexts, "direct");
    let measured = |text: &str| {
        fs::write(&policy, text).expect("written");
        let more = ["--workers", "2", "--runs", "1", "--policy", &policy, "--json", &json];
        let outcome = run(bench(folder, &more), LONG).expect_code(0);
        let json: Value = serde_json::from_str(&folder.read("followed.json")).expect("JSON");
        (outcome, json["panels"][0]["groups"][0]["rows"].as_array().expect("rows").clone())
    };
    let (outcome, rows) = measured(&text);
    let methods: Vec<&str> = rows.iter().filter_map(|row| row["method"].as_str()).collect();
    assert_eq!(methods, ["bsp-a2a", "wfbp-a2a", "bsp-a2a+policy", "wfbp-a2a+policy"]);
    let followed = &rows[3]["result"]["followed"];
    assert!(followed["operations"].as_u64().is_some_and(|count| count > 0), "{followed:#}");
    assert_eq!(rows[1]["result"].get("followed"), None);
    assert!(outcome.stdout.contains("  wfbp-a2a+policy: the policy says how "), "{outcome:#?}");
    let (outcome, rows) = measured(&text.replacen("schema = 1", "schema = 7", 1));
    assert_eq!(rows.len(), 2);
    outcome.expect_stderr(&["policy.toml: the policy has schema 7", "nothing is measured with it"]);
    fs::write(&policy, &text).expect("written");
    let servers = ["--methods", "bsp-ps", "--workers", "2", "--policy", &policy];
    let refused = run(bench(folder, &servers), LONG).expect_code(2);
    refused.expect_stderr(&["--policy is for all-reduces, and nothing here makes any"]);
}

/// Standard error says of each run what `auto` chose, why, and whether it came true; the file has the same decisions.
#[test]
fn what_auto_chose_is_told_with_what_became_of_it() {
    let folder = Folder::new("auto");
    let json = folder.path("out.json");
    let more = ["--methods", "auto", "--workers", "2", "--runs", "1", "--json", &json];
    let outcome = run(bench(&folder, &more), LONG).expect_code(0);
    let told = "paceline: run 1 of mlp, auto, 2 workers: auto: from iteration ";
    let lines: Vec<&str> = outcome.stderr.lines().filter(|line| line.starts_with(told)).collect();
    let json: Value = serde_json::from_str(&folder.read("out.json")).expect("JSON");
    let result = &json["panels"][0]["groups"][0]["rows"][0]["result"];
    let mut decisions: Vec<&Value> = result["abandoned"].as_array().into_iter().flatten().collect();
    decisions.push(&result["decision"]);
    assert_eq!(lines.len(), decisions.len(), "{outcome:#?}");
    assert!(lines[0].contains(" ms an iteration; the best of "), "{lines:#?}");
    for (line, decision) in lines.into_iter().zip(decisions) {
        let strategy = decision["strategy"].as_str().expect("a strategy");
        assert!(line.contains(&format!(" on runs {strategy}, predicted ")), "{strategy}: {line}");
        assert!(line.contains(" ms, measured "), "{line}");
        assert!(line.ends_with(": it came true") || line.ends_with(": it did not come true"), "{line}");
    }
}

/// A finished run: its cell, its number, and its measured times.
type Run = (i64, i64, String);

/// What the database has kept.
fn runs(folder: &Folder) -> Vec<Run> {
    kept(folder).expect("a database with runs")
}

/// Is something kept of a study that runs? With such a file, whoever reads holds up nobody who writes.
fn has_runs(folder: &Folder) -> bool {
    folder.0.join("runs.db-wal").exists() && kept(folder).is_ok_and(|runs| !runs.is_empty())
}

fn kept(folder: &Folder) -> rusqlite::Result<Vec<Run>> {
    let database = rusqlite::Connection::open(folder.0.join("runs.db"))?;
    let mut query = database.prepare(
        "SELECT cell, number, json_extract(measured, '$.iteration_s') FROM run WHERE measured IS NOT NULL ORDER BY 1, 2",
    )?;
    let rows = query.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    rows.collect()
}

#[test]
fn a_killed_worker_fails_its_cell_and_the_study_goes_on() {
    let folder = Folder::new("worker");
    let more = ["--workers", "2", "--runs", "1", "--iterations", "100"];
    let running = start(bench(&folder, &more));
    let mut victim = None;
    // A world of two, not the baseline.
    assert!(until(LONG, || {
        let ranks = children_of(running.pid());
        victim = (ranks.len() == 2).then(|| ranks[1]);
        victim.is_some()
    }));
    let victim = victim.and_then(|pid| Pid::from_raw(pid as i32)).expect("there is one");
    kill_process(victim, Signal::KILL).expect("it is still there");
    let outcome = running.end_within(LONG).expect_code(1);
    let outcome = outcome.expect_stderr(&["was killed by SIGKILL", "1 runs gave no result"]);
    assert!(outcome.stdout.contains("wfbp-a2a"), "{outcome:#?}");
    assert!(folder.read("report.html").contains("was killed by SIGKILL"));
    assert_eq!(runs(&folder).len(), 1 + 3 - 1);
}

#[test]
fn an_interrupted_study_shows_what_it_has() {
    let folder = Folder::new("interrupted");
    let running = start(bench(&folder, &["--workers", "2", "--runs", "50"]));
    assert!(until(LONG, || has_runs(&folder)));
    running.signal(Signal::INT);
    let outcome = running.end_within(LONG).expect_code(130);
    outcome.expect_stderr(&["interrupted; what has ended is kept in", "--resume goes on"]);
    assert!(folder.read("report.html").contains("<svg"));
}

/// Two folders of ten grey images, a text of a kilobyte, and the files of Fashion-MNIST.
#[test]
fn data_of_ones_own_is_trained_on() {
    let folder = Folder::new("data");
    for class in ["dark", "light"] {
        let path = folder.0.join("images").join(class);
        fs::create_dir_all(&path).expect("a folder of the test");
        for number in 0..10u8 {
            let pixel = |x: u32, y: u32| Luma([if class == "dark" { number } else { (x * y % 256) as u8 }]);
            GrayImage::from_fn(28, 28, pixel).save(path.join(format!("{number}.png"))).expect("room for an image");
        }
    }
    fs::write(folder.0.join("play.txt"), "To be, or not to be: that is the question. ".repeat(32)).expect("room");
    let (database, report, json) = (folder.path("runs.db"), folder.path("report.html"), folder.path("out.json"));
    for (model, data) in [
        ("mlp", format!("images:{}", folder.path("images"))),
        ("transformer-lm", format!("text:{}", folder.path("play.txt"))),
        ("mlp", format!("idx:{}", concat!(env!("CARGO_MANIFEST_DIR"), "/../../data/fashion-mnist"))),
    ] {
        let mut arguments =
            vec!["bench", "--models", model, "--data", &data, "--methods", "wfbp-a2a", "--workers", "2"];
        arguments.extend(["--local-batch", "2", "--warmup", "1", "--iterations", "2", "--runs", "1"]);
        arguments.extend(["--database", &database, "--report", &report, "--json", &json]);
        let outcome = run(paceline(&arguments), LONG).expect_code(0);
        assert!(outcome.stdout.contains(&format!("{model}, local batch 2")), "{outcome:#?}");
        let results: Value = serde_json::from_str(&folder.read("out.json")).expect("JSON");
        let panel = &results["panels"][0];
        assert_eq!(panel["setting"]["data"], *data, "{panel:#}");
        let throughput = &panel["groups"][0]["rows"][0]["result"]["samples_per_s"]["mean"];
        assert!(throughput.as_f64().is_some_and(|throughput| throughput > 0.0), "{panel:#}");
    }
}

#[test]
fn senseless_studies_are_refused_before_anything_starts() {
    let folder = Folder::new("refused");
    let refused = |arguments: &[&str], reason: &str| {
        let database = folder.path("runs.db");
        let arguments = [&["bench", "--database", &database], arguments].concat();
        run(paceline(&arguments), LONG).expect_code(2).expect_stderr(&[reason]);
        assert!(!folder.0.join("runs.db").exists());
    };
    refused(&["--models", "cn"], "did you mean `cnn`?");
    refused(&["--methods", "wfpb-a2a"], "did you mean `wfbp-a2a`?");
    refused(&["--models", "cnn", "--compute", "replay"], "no built-in profile of cnn");
    refused(&["--models", "cnn", "--dilate", "2"], "real computation cannot be slowed");
    refused(&["--compute", "replay", "--dilate", "2"], "real links cannot be slowed");
    refused(&["--emulate", "10GbX"], "10GbE");
    refused(&["--hosts", "2x4"], "--emulate");
    refused(&["--servers-on", "node1"], "no launcher has started this program");
    let hosts = ["--compute", "replay", "--emulate", "10GbE", "--hosts", "2x2", "--servers-on", "2"];
    refused(&hosts, "there is no host 2; the hosts are 0 (2 ranks), 1 (2 ranks)");
    refused(&["--compute", "replay:/nowhere.json"], "/nowhere.json");
    refused(&["--full", "--iterations", "3"], "cannot be used with");
    let emulated = ["--compute", "replay", "--emulate", "10GbE", "--hosts", "2x2", "--methods"];
    refused(&[&emulated[..], &["wfbp-a2a,protocol=tcp"]].concat(), "an emulated network is made of shared memory");
    let chosen = "ddp;schedule=auto,arch=ps:1:apply";
    refused(&["--models", "mlp", "--methods", chosen], "schedule=auto plans again from what it has measured");
    // The images that come with the program are fewer.
    let many = ["--models", "mlp", "--local-batch", "7000", "--workers", "2"];
    refused(&many, "2 workers take 14000 samples in an iteration, and the data holds 6000");
    // Gradients of 1.3 GB for each of them.
    let many = ["--models", "bert-large", "--compute", "replay", "--methods", "bsp-a2a", "--workers", "16384"];
    refused(&many, "bert-large would not fit in memory: 16384 workers take about 1.4 GB each (gradients 1.3 GB");
}

/// Shards that are processes of their own: one is killed in the middle of its cell.
#[test]
fn a_killed_server_fails_its_cell_and_the_study_goes_on() {
    let folder = Folder::new("server");
    let (database, report) = (folder.path("runs.db"), folder.path("report.html"));
    let running = start(paceline(&[
        "bench",
        "--models",
        "mlp",
        "--methods",
        "schedule=wfbp,arch=ps:1:64KiB:dedicated;bsp-a2a",
        "--workers",
        "2",
        "--local-batch",
        "8",
        "--warmup",
        "1",
        "--iterations",
        "100",
        "--runs",
        "1",
        "--database",
        &database,
        "--report",
        &report,
    ]));
    let mut victim = None;
    // The world of two workers and a server.
    assert!(until(LONG, || {
        let ranks = children_of(running.pid());
        victim = (ranks.len() == 3).then(|| ranks[2]);
        victim.is_some()
    }));
    let pid = victim.expect("there is one");
    kill_process(Pid::from_raw(pid as i32).expect("a process"), Signal::KILL).expect("it is still there");
    let outcome = running.end_within(LONG).expect_code(1);
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let what = format!("rank 2, server 0 (pid {pid} on {host}) was killed by SIGKILL");
    let outcome = outcome.expect_stderr(&[&what, "1 runs gave no result"]);
    assert!(!outcome.stderr.contains("has not moved"), "servers wait, and that is no stall: {outcome:#?}");
    assert!(folder.read("report.html").contains("server 0 (pid "));
    // The baseline, the other method, and the other method once more.
    assert_eq!(runs(&folder).len(), 3);
}

#[test]
fn a_study_of_another_program_is_not_gone_on_with() {
    let folder = Folder::new("program");
    let more = ["--workers", "2"];
    run(bench(&folder, &more), LONG).expect_code(0);
    // It does the same; but who knows that?
    let (ours, other) = (env!("CARGO_BIN_EXE_paceline"), folder.path("paceline"));
    // Not by us: what another test starts meanwhile would have the file open for writing, too, and it could not be run.
    let copied = Command::new("sh").args(["-c", "cp \"$0\" \"$1\" && echo >>\"$1\"", ours, &other]).status();
    assert!(copied.expect("a shell").success(), "no room for a copy");
    let ours = bench(&folder, &[&more[..], &["--resume"]].concat());
    let mut others = Command::new(&other);
    others.args(ours.get_args());
    for (name, value) in ours.get_envs() {
        match value {
            Some(value) => others.env(name, value),
            None => others.env_remove(name),
        };
    }
    let outcome = run(others, LONG).expect_code(2);
    outcome
        .expect_stderr(&["--resume: study 1 in the database is of these cells, but the program was ", "to begin anew"]);
    let outcome = run(ours, LONG).expect_code(0);
    assert!(outcome.stdout.contains("goes on with what is there"), "{outcome:#?}");
}

/// A file system of its own, in a namespace of its own, which is filled once a run has been kept; where that is not
/// permitted, a limit on the size of files.
#[test]
fn a_full_disk_keeps_what_has_ended_and_says_so() {
    let folder = Folder::new("full");
    let more = ["--workers", "2", "--runs", "3"];
    let study = bench(&folder, &more);
    let words = |command: &Command| {
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        words.map(|word| format!("'{}'", word.to_string_lossy())).collect::<Vec<_>>().join(" ")
    };
    let (small, database, kept) = (folder.path("small"), folder.path("small/runs.db"), folder.path("runs.db"));
    let bench = words(&study).replace(&folder.path(""), &format!("{small}/"));
    let script = format!(
        "mkdir {small} && mount -t tmpfs -o size=8m none {small}\n\
         {bench} & pid=$!\n\
         while kill -0 $pid && [ $(stat -c %s {database}-wal 2>/dev/null || echo 0) -lt 60000 ]; do sleep 0.05; done\n\
         cat /dev/zero >{small}/ballast\n\
         wait $pid; status=$?\n\
         cp {database}* {folder}; exit $status",
        folder = folder.path("")
    );
    let in_namespace = |script: &str| {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--mount", "sh", "-c", script]);
        for (name, value) in study.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command
    };
    let may = in_namespace(&format!("mount -t tmpfs none {}", folder.path(""))).status();
    let outcome = if may.is_ok_and(|status| status.success()) {
        run(in_namespace(&script), LONG)
    } else {
        // Blocks of 1,024 bytes; a signal would end the program where a full disk does not.
        let limited = format!("trap '' XFSZ; ulimit -f 100; exec {}", words(&study));
        let mut command = Command::new("bash");
        command.args(["-c", &limited]);
        run(command, LONG)
    };
    let outcome = outcome.expect_code(1).expect_stderr(&["the results cannot be kept", "is full", "--resume"]);
    assert!(outcome.stderr.contains("make room and go on with --resume"), "{outcome:#?}");
    let finished = runs(&folder);
    assert!((1..(1 + 3) * 3).contains(&finished.len()), "{finished:?} were kept in {kept}: {outcome:#?}");
    // Where it lies now, there is room.
    resumed(&folder, &[&more[..], &["--resume"]].concat(), &finished);
}

#[test]
fn a_database_of_somebody_else_is_left_alone() {
    let folder = Folder::new("foreign");
    fs::write(
        folder.0.join("runs.db"),
        "my letters to a friend, which are much longer than a header of SQLite, and mine",
    )
    .expect("written");
    let before = folder.read("runs.db");
    let outcome = run(bench(&folder, &["--workers", "2", "--runs", "1"]), LONG).expect_code(1);
    outcome.expect_stderr(&["runs.db", "--database"]);
    assert_eq!(folder.read("runs.db"), before);
}
