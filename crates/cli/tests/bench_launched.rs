//! `paceline bench` on ranks that a launcher has started: one study, whose worlds are processes of their own.

mod support;

use std::net::{Ipv4Addr, TcpListener};
use std::process::Command;
use std::time::Duration;

use paceline_fabric::environment::job_port;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use support::folder::Folder;
use support::{Outcome, SOON, children_of, is_alive, paceline, run, start, until};
use xtask::lab::LabOptions;
use xtask::needs;

const LONG: Duration = Duration::from_secs(120);

/// Cells and runs of them that have ended well.
fn finished(folder: &Folder) -> Vec<(String, i64, i64, i64)> {
    let Ok(database) = rusqlite::Connection::open(folder.0.join("runs.db")) else { return Vec::new() };
    let query = "SELECT json_extract(key, '$.method'), json_extract(key, '$.workers'), json_extract(key, '$.shards'),
                 number FROM run JOIN cell ON run.cell = cell.id WHERE measured IS NOT NULL ORDER BY cell.id, number";
    let Ok(mut query) = database.prepare(query) else { return Vec::new() };
    let rows = query.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)));
    rows.and_then(Iterator::collect).unwrap_or_default()
}

/// The words of a study of the smallest model.
fn bench(folder: &Folder, more: &[&str]) -> Vec<String> {
    let (database, report) = (folder.path("runs.db"), folder.path("report.html"));
    let paceline = env!("CARGO_BIN_EXE_paceline");
    let mut words = vec![paceline, "bench", "--models", "mlp", "--local-batch", "8", "--warmup", "1"];
    words.extend(["--database", &database, "--report", &report]);
    if !more.contains(&"--iterations") {
        words.extend(["--iterations", "3"]);
    }
    if !more.contains(&"--runs") {
        words.extend(["--runs", "1"]);
    }
    words.iter().chain(more).map(|word| (*word).to_owned()).collect()
}

/// The same as so many ranks of `paceline launch`.
fn launched(workers: &str, words: &[String]) -> Command {
    let mut command = paceline(&["launch", "--workers", workers, "--"]);
    command.args(words);
    command
}

/// Two methods, with two and four of four ranks.
const METHODS: [&str; 4] = ["--methods", "bsp-a2a,wfbp-ps", "--workers", "2,4"];

#[track_caller]
fn expect_the_whole(folder: &Folder, launcher: &str, outcome: Outcome) {
    let outcome = outcome.expect_code(0);
    assert_eq!(outcome.stdout.matches("speedup 1 = ").count(), 1, "one rank speaks: {outcome:#?}");
    assert!(outcome.stdout.contains("2 workers") && outcome.stdout.contains("4 workers"), "{outcome:#?}");
    let cell = |method: &str, workers, shards| (method.to_owned(), workers, shards, 1);
    let finished = finished(folder);
    assert_eq!(finished.first(), Some(&cell("bsp-a2a", 1, 0)));
    let groups: Vec<&[_]> = finished[1..].chunks(3).collect();
    assert_eq!(groups.len(), 2, "{finished:?}");
    for (group, workers) in groups.into_iter().zip([2, 4]) {
        let both = [cell("bsp-a2a", workers, 0), cell("wfbp-ps", workers, 1)];
        // And once more the one that was faster.
        assert!(group.len() == 3 && group[..2] == both && both.contains(&group[2]), "{finished:?}");
    }
    let page = folder.read("report.html");
    let place = format!("{launcher} on 1 host: {} (4 ranks)", this_host());
    for part in ["<svg", &format!("links of {}", this_host()), &place, "machine of rank 0"] {
        assert!(page.contains(part), "the report does not say {part}");
    }
    assert!(!page.contains("this machine"), "a launcher's hosts are named");
    assert!(outcome.stdout.contains(&place), "{outcome:#?}");
}

fn this_host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

#[test]
fn ranks_of_paceline_launch_measure_one_study_together() {
    let folder = Folder::new("launch");
    let outcome = run(launched("4", &bench(&folder, &METHODS)), LONG);
    expect_the_whole(&folder, "paceline launch", outcome);
}

#[test]
fn ranks_of_mpirun_do_too() {
    if needs::program(&["mpirun"], "openmpi-bin").is_none() {
        return;
    }
    let folder = Folder::new("mpirun");
    // Without the variables of whatever started this test.
    let mut command = paceline(&[]);
    let variables: Vec<_> = command.get_envs().map(|(name, _)| name.to_owned()).collect();
    command = Command::new("mpirun");
    variables.iter().for_each(|name| _ = command.env_remove(name));
    command.args(["--allow-run-as-root", "--oversubscribe", "-n", "4"]).args(bench(&folder, &METHODS));
    let outcome = run(command, LONG);
    expect_the_whole(&folder, "mpirun (Open MPI)", outcome);
}

/// A step of four tasks on this host, with what srun sets for each of them.
#[test]
fn tasks_of_srun_do_too() {
    let folder = Folder::new("srun");
    let host = this_host();
    let is_free = |job: &String| TcpListener::bind((Ipv4Addr::UNSPECIFIED, job_port(&format!("{job}.0")))).is_ok();
    let job = (std::process::id()..).map(|job| job.to_string()).find(is_free).expect("a port of some job is free");
    let words = bench(&folder, &METHODS);
    let words: Vec<&str> = words[1..].iter().map(String::as_str).collect();
    let tasks: Vec<_> = (0..4)
        .map(|rank| {
            let rank = rank.to_string();
            let mut task = paceline(&words);
            task.env("SLURM_PROCID", &rank).env("SLURM_LOCALID", &rank).env("SLURM_NODEID", "0");
            task.env("SLURM_JOB_ID", &job)
                .env("SLURM_STEP_ID", "0")
                .env("SLURM_NTASKS", "4")
                .env("SLURM_STEP_NUM_TASKS", "4");
            task.env("SLURM_STEP_NUM_NODES", "1")
                .env("SLURM_STEP_TASKS_PER_NODE", "4")
                .env("SLURM_STEP_NODELIST", &host);
            task.env("SLURM_JOB_NODELIST", &host).env("SLURM_LAUNCH_NODE_IPADDR", "127.0.0.1");
            start(task)
        })
        .collect();
    // All of them, or none: whoever fails is told with what the others said.
    let mut outcomes: Vec<Outcome> = tasks.into_iter().map(|task| task.end_within(LONG)).collect();
    assert!(outcomes.iter().all(|outcome| outcome.code() == 0), "{outcomes:#?}");
    let mut first = outcomes.remove(0);
    outcomes.iter().for_each(|other| first.stdout.push_str(&other.stdout));
    expect_the_whole(&folder, "srun", first);
}

/// Gradients of a replay travel on the links of the launcher's ranks. A batch of 16 takes 63 ms, beside which a sleep that ends late
/// is short; where the machine is too busy for that, the study says so, and nothing else may fail.
#[test]
fn replays_run_under_a_launcher() {
    let folder = Folder::new("replayed");
    let (database, report, json) = (folder.path("runs.db"), folder.path("report.html"), folder.path("out.json"));
    let mut words = vec![env!("CARGO_BIN_EXE_paceline"), "bench", "--models", "resnet50", "--compute", "replay"];
    words.extend(["--local-batch", "16", "--methods", "wfbp-a2a", "--warmup", "1", "--iterations", "2", "--runs", "1"]);
    words.extend(["--database", &database, "--report", &report, "--json", &json]);
    let words: Vec<String> = words.into_iter().map(str::to_owned).collect();
    let outcome = run(launched("2", &words), LONG);
    assert!(folder.0.join("out.json").exists(), "{outcome:#?}");
    let results: Value = serde_json::from_str(&folder.read("out.json")).expect("JSON");
    let (panel, host) = (&results["panels"][0], this_host());
    for label in ["replayed: resnet50@rtx2080ti", "scaled from a local batch of 64", &host] {
        let labels = panel["labels"].as_array().expect("labels");
        let has = |text: &Value| text.as_str().is_some_and(|text| text.contains(label));
        assert!(labels.iter().any(has), "no `{label}`: {panel:#}");
    }
    let group = &panel["groups"][0];
    let row = &group["rows"][0];
    assert_eq!((&group["workers"], &row["method"]), (&Value::from(2), &Value::from("wfbp-a2a")), "{group:#}");
    assert!(folder.read("report.html").contains(&format!("links of {host}")));
    if outcome.code() == 0 {
        let result = &row["result"];
        assert!(result["late_share"].is_number() && result["exposed_share"].is_number(), "{row:#}");
        // Of 102 MB each of two workers sends as much.
        let sent = result["bytes_per_iteration"].as_f64();
        assert!(sent.is_some_and(|bytes| (50e6..210e6).contains(&bytes)), "{row:#}");
        return;
    }
    let late = |why: &Value| why.as_str().is_some_and(|why| why.contains("the processor was late by"));
    let failures = row["failures"].as_array().expect("a list");
    assert!(outcome.code() == 1 && failures.len() == 1 && failures.iter().all(late), "{outcome:#?}\n{row:#}");
}

/// The rank of the launcher, and its children: ranks of a world.
fn ranks_of_a_world(launcher: u32, rank: usize) -> (Option<u32>, Vec<u32>) {
    let rank = children_of(launcher).get(rank).copied();
    (rank, rank.map_or(Vec::new(), children_of))
}

fn kill(pid: u32) {
    kill_process(Pid::from_raw(pid as i32).expect("a process"), Signal::KILL).expect("it is still there");
}

#[test]
fn a_killed_rank_of_a_world_fails_its_cell_and_the_study_goes_on() {
    let folder = Folder::new("cell");
    let words = bench(&folder, &["--methods", "bsp-a2a,wfbp-a2a", "--workers", "3", "--iterations", "60"]);
    let running = start(launched("3", &words));
    let mut victim = None;
    assert!(until(LONG, || {
        victim = ranks_of_a_world(running.pid(), 2).1.first().copied();
        victim.is_some()
    }));
    kill(victim.expect("there is one"));
    let outcome = running.end_within(LONG).expect_code(1);
    let host = this_host();
    let victim = format!("rank 2 (pid {} on {host}) was killed by SIGKILL", victim.expect("there is one"));
    outcome.expect_stderr(&[&victim, "1 runs gave no result", "rank 0 (pid "]);
    assert_eq!(finished(&folder).len(), 1 + 3 - 1);
}

#[test]
fn a_killed_rank_of_the_launcher_ends_the_job_and_keeps_what_has_ended() {
    let folder = Folder::new("rank");
    let running = start(launched("3", &bench(&folder, &["--methods", "bsp-a2a", "--workers", "3", "--runs", "40"])));
    assert!(until(LONG, || finished(&folder).len() > 2), "{}", running.stderr_so_far());
    let (rank, _) = ranks_of_a_world(running.pid(), 1);
    let all = children_of(running.pid());
    let worlds: Vec<u32> = all.iter().flat_map(|rank| children_of(*rank)).collect();
    kill(rank.expect("it is there"));
    let outcome = running.end_within(LONG).expect_code(1).expect_stderr(&["rank 1 (pid ", "was killed by SIGKILL"]);
    assert!(
        outcome.stderr.contains("what has ended is kept") && outcome.stderr.contains("--resume"),
        "rank 0 says what is left: {outcome:#?}"
    );
    assert!(finished(&folder).len() > 2);
    let alive = || all.iter().chain(&worlds).any(|pid| is_alive(*pid));
    assert!(until(SOON, || !alive()), "ranks outlive their study");
}

#[test]
fn hosts_that_are_not_there_cannot_serve() {
    let folder = Folder::new("nowhere");
    let host = this_host();
    let refused = |server: &str, reason: &str| {
        let words = bench(&folder, &["--methods", "wfbp-ps", "--servers-on", server]);
        run(launched("2", &words), LONG).expect_code(1).expect_stderr(&[reason]);
        assert!(!folder.0.join("runs.db").exists());
    };
    refused("nowhere", &format!("there is no host nowhere; the hosts are 0 {host} (2 ranks)"));
    refused("0", "no host is left for workers");
    let words = bench(&folder, &["--methods", "study-bsp-ps"]);
    run(launched("2", &words), LONG)
        .expect_code(1)
        .expect_stderr(&["nothing says which hosts serve", "--servers-on HOST"]);
}

/// Two hosts of two ranks: all of them work, with a shard on each host; or those of one host serve.
#[test]
fn servers_live_on_real_hosts() {
    let Some(lab) = needs::lab(&LabOptions { hosts: 2, ..LabOptions::default() }) else { return };
    let study = |name: &str, more: &[&str]| {
        let folder = Folder::new(name);
        let words = bench(&folder, &[&["--methods", "wfbp-ps"], more].concat());
        let words: Vec<std::ffi::OsString> = words.into_iter().map(Into::into).collect();
        let ranks: Vec<_> = lab.ranks(2, &words).into_iter().map(start).collect();
        ranks.into_iter().for_each(|rank| _ = rank.end_within(LONG).expect_code(0));
        let page = folder.read("report.html");
        (finished(&folder), page)
    };
    let (beside, page) = study("beside", &[]);
    assert_eq!(beside[1..], [("wfbp-ps".to_owned(), 4, 2, 1)]);
    assert!(page.contains("links of 2 hosts") && page.contains("(2 ranks), "), "the report names the hosts");
    let (apart, page) = study("apart", &["--servers-on", "1"]);
    assert_eq!(apart[1..], [("wfbp-ps".to_owned(), 2, 1, 1)]);
    assert!(page.contains("servers on lab-host"), "the report says who serves");
    assert!(
        page.contains("on hosts of their own") && !page.contains("beside workers"),
        "the survey's table says where"
    );
    // Where rank 0 is, which conducts: the workers meet on the other host.
    let (elsewhere, _) = study("elsewhere", &["--servers-on", "lab-host0"]);
    assert_eq!(elsewhere[1..], [("wfbp-ps".to_owned(), 2, 1, 1)]);
}
