//! `paceline probe` with real processes: what it finds, what it writes, and how it ends.

mod support;

use std::fs;
use std::path::PathBuf;
use std::sync::{PoisonError, RwLock, RwLockReadGuard};
use std::thread;
use std::time::Duration;

use paceline_plan::{Cluster, NetworkModel};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use support::folder::scratch_file;
use support::{Outcome, Running, children_of, paceline, run, start, until};

const LIMIT: Duration = Duration::from_secs(150);

/// How far time is stretched, one try after the other: others may have spoilt a measurement, and where a machine always
/// wakes late (by 0.3 ms here and there, a twentieth of 60 times alpha), that is less of a longer time.
const DILATIONS: [&str; 5] = ["60", "60", "120", "120", "240"];

/// Whoever measures what must be right writes to it, all others read: their probes would be what a busy machine is.
static MACHINE: RwLock<()> = RwLock::new(());

/// Beside others that do not mind.
fn beside() -> RwLockReadGuard<'static, ()> {
    MACHINE.read().unwrap_or_else(PoisonError::into_inner)
}

fn probe(arguments: &[&str]) -> Outcome {
    run(paceline(&[&["probe"], arguments].concat()), LIMIT)
}

/// Reads a file that `-o` has written, and removes it.
fn cluster(path: &PathBuf) -> Cluster {
    let text = fs::read_to_string(path).expect("the file");
    fs::remove_file(path).expect("our own file");
    let cluster = Cluster::from_toml(&text).unwrap_or_else(|error| panic!("{error} in {text}"));
    assert_eq!(cluster.to_toml(), text, "the file is the cluster, and nothing else");
    cluster
}

/// The line through the two points of data/p2p_points.csv, between hosts.
#[test]
fn a_probe_finds_the_network_that_is_emulated() {
    let _alone = MACHINE.write().unwrap_or_else(PoisonError::into_inner);
    let path = scratch_file("10GbE.toml");
    let expected = NetworkModel::TEN_GBE.across;
    for dilation in DILATIONS {
        let network = ["--emulate", "10GbE", "--hosts", "2x2", "--dilate", dilation];
        let output = ["--workers", "4", "--rounds", "6", "-o", &path.to_string_lossy()];
        let outcome = probe(&[&output[..], &network].concat()).expect_code(0);
        assert!(
            outcome.stdout.contains(&format!("# emulated network 10GbE, hosts 2x2, all times divided by {dilation}")),
            "{outcome:#?}"
        );
        let found = cluster(&path);
        assert_eq!((found.hosts, found.workers_per_host, &*found.name), (2, 2, "10GbE"));
        assert!(found.source.contains("an emulated network 10GbE, hosts 2x2"), "{}", found.source);
        let alpha = found.across.alpha_s.value / expected.alpha_s;
        let beta = found.across.beta_s_per_byte.value / expected.beta_s_per_byte;
        println!("alpha {alpha:.4} and beta {beta:.4} of the network's\n{}", outcome.stdout);
        // Each of the two measured sizes, too. (A message that comes late is taken for one that is too long to go on with.)
        let sizes: Vec<u64> = found.across.points.iter().map(|(bytes, _)| *bytes).collect();
        let has_both = sizes.contains(&(16 << 10)) && sizes.contains(&(1 << 20));
        let off =
            found.across.points.iter().map(|(bytes, took)| took.value / expected.message_s(*bytes as usize) - 1.0);
        assert!(off.clone().all(|off| off > -0.05), "no machine is too busy to be too fast");
        // Line and points: where only the short messages are late, the line is less steep than the network's.
        if has_both && [alpha, beta].iter().all(|it| (0.95..1.05).contains(it)) && off.clone().all(|off| off < 0.05) {
            return;
        }
        println!("{sizes:?}: {dilation} times as slow it is still too far off; is the machine busy?");
    }
    panic!("the network was never found");
}

#[test]
fn the_table_the_file_and_the_json_agree() {
    let _beside = beside();
    let (toml, json) = (scratch_file("here.toml"), scratch_file("here.json"));
    let files = ["-o", &toml.to_string_lossy(), "--json", &json.to_string_lossy()];
    let mut starts = Vec::new();
    for transport in ["shm", "tcp"] {
        let options = ["--workers", "2", "--rounds", "6", "--name", "here", "--transport", transport];
        let outcome = probe(&[&options[..], &files].concat()).expect_code(0);
        let found = cluster(&toml);
        assert_eq!((&*found.name, found.hosts, found.workers_per_host), ("here", 1, 2));
        assert!(found.source.contains("measured by `paceline probe") && found.source.contains(transport), "{found:?}");
        assert!(found.measured.is_some_and(|range| range.workers == [2, 2]), "{found:?}");
        let within = &found.within;
        for constant in [within.alpha_s, within.beta_s_per_byte, found.combine_s_per_byte] {
            assert!(0.0 < constant.low && constant.high < 1.0, "{found:?}");
        }
        assert!(within.points.iter().all(|(_, took)| took.low <= took.value && took.value <= took.high), "{within:?}");
        assert!(within.points.len() >= 4 && within.overhead_s.value <= within.alpha_s.value, "{within:?}");
        // In seconds, of operations that take microseconds; and in seconds lost for each second.
        let (start, kappa) = (found.operation.start_s, found.interference.computation);
        assert!((0.0..0.1).contains(&start.value) && (0.0..100.0).contains(&kappa.value), "{start:?}, {kappa:?}");
        starts.push(start.value);
        let report: Value = serde_json::from_str(&fs::read_to_string(&json).expect("the file")).expect("JSON");
        fs::remove_file(&json).expect("our own file");
        let constants = report["constants"].as_array().expect("a list");
        assert_eq!(constants.len(), found.constants().len());
        for (written, (name, constant)) in constants.iter().zip(found.constants()) {
            assert_eq!([&written["constant"], &report["name"]], [&*name, "here"]);
            assert_eq!(written["value"].as_f64(), Some(constant.value), "{name}");
            assert_eq!(written["high"].as_f64(), Some(constant.high), "{name}");
        }
        for words in ["within a host   alpha", "gamma", "each operation  start", "computation loses", "64KiB"] {
            assert!(outcome.stdout.contains(words), "no `{words}` in {outcome:#?}");
        }
    }
    // On a busy machine one of them may be noise, which counts as nothing.
    assert!(starts.iter().any(|start_s| *start_s > 0.0), "{starts:?}");
}

/// In one file, which `plan` chooses from.
#[test]
fn several_protocols_are_measured_each_in_a_world_of_its_own() {
    let _beside = beside();
    let (toml, json) = (scratch_file("protocols.toml"), scratch_file("protocols.json"));
    let (toml_path, json_path) = (toml.to_string_lossy(), json.to_string_lossy());
    let options = ["--workers", "2", "--rounds", "6", "--transport", "shm,tcp", "-o", &toml_path, "--json", &json_path];
    let outcome = probe(&options).expect_code(0);
    for words in ["transport shm, 6 rounds", "# over tcp"] {
        assert!(outcome.stdout.contains(words), "no `{words}` in {outcome:#?}");
    }
    let plan = ["plan", "--cluster", &toml_path, "--model", "resnet50", "--json", &json_path];
    let report: Value = serde_json::from_str(&fs::read_to_string(&json).expect("the file")).expect("JSON");
    let planned = run(paceline(&plan), LIMIT).expect_code(0);
    assert!(planned.stdout.contains("protocol=tcp"), "{planned:#?}");
    fs::remove_file(&json).expect("our own file");
    let found = cluster(&toml);
    assert!(found.protocols.shm.is_none(), "that is what the cluster costs by itself");
    let tcp = found.protocols.get("tcp").expect("it was measured");
    let within = tcp.within.as_ref().expect("two workers are on the host");
    for constant in [within.alpha_s, within.beta_s_per_byte] {
        assert!(0.0 < constant.low && constant.high < 1.0, "{found:?}");
    }
    assert!(within.points.len() >= 4 && !within.fetched && tcp.across.is_none(), "{found:?}");
    assert!(tcp.operation.is_some() && tcp.interference.is_some(), "{found:?}");
    let constants = report["constants"].as_array().expect("a list");
    assert_eq!(constants.len(), found.constants().len());
    assert!(constants.iter().any(|constant| constant["constant"] == "protocols.tcp.within.alpha_s"), "{constants:?}");
    let points = report["points"].as_array().expect("a list");
    let over = |protocol: Option<&str>| points.iter().filter(|point| point["protocol"].as_str() == protocol).count();
    assert_eq!((over(None), over(Some("tcp"))), (found.within.points.len(), within.points.len()));
}

#[test]
fn a_launchers_ranks_are_probed() {
    let _beside = beside();
    let options = ["launch", "--workers", "2", "--", env!("CARGO_BIN_EXE_paceline"), "probe", "--rounds", "6"];
    let outcome = run(paceline(&options), LIMIT).expect_code(0);
    assert!(outcome.stdout.contains("2 ranks on 1 host"), "{outcome:#?}");
}

#[test]
fn what_cannot_be_probed_is_refused() {
    let _beside = beside();
    for (options, code, says) in [
        (&["--workers", "1"][..], 2, "a single rank has no links"),
        (&["--workers", "2", "--rounds", "5"], 2, "give 6 to 1000"),
        (&["--workers", "2", "--hosts", "2x1"], 2, "--emulate"),
        (&["--workers", "2", "--transport", "tcp,shm"], 2, "the first is what `protocol=auto` costs"),
        (&["--workers", "2", "--transport", "shm,auto"], 2, "only the first can be auto"),
        (&["--workers", "2", "--transport", "auto,tcp,tcp"], 2, "each is measured once"),
        (&["--emulate", "10GbE", "--transport", "auto,tcp"], 2, "an emulated network is made of shared memory"),
        (&["--workers", "2", "--transport", "auto,tpc"], 2, "unknown transport `tpc`"),
        (&["--workers", "2", "--rounds", "6", "-o", "/nowhere/here.toml"], 1, "cannot write the results"),
    ] {
        probe(options).expect_code(code).expect_stderr(&[says]);
    }
}

/// A probe that would take many minutes, once its ranks have formed a world.
fn long_probe() -> Running {
    let running = start(paceline(&["probe", "--workers", "3", "--rounds", "1000"]));
    let has_formed = |pid: &u32| threads_of(*pid) > 1;
    let have_formed = || {
        let ranks = children_of(running.pid());
        ranks.len() == 3 && ranks.iter().all(has_formed)
    };
    assert!(until(LIMIT, have_formed), "{}", running.stderr_so_far());
    thread::sleep(Duration::from_millis(1500));
    running
}

/// The second one of a rank looks after its world.
fn threads_of(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count)
}

#[test]
fn a_lost_rank_and_an_interruption_end_it_with_a_sentence() {
    let _beside = beside();
    let running = long_probe();
    let lost = children_of(running.pid())[1];
    kill_process(Pid::from_raw(lost as i32).expect("a process id"), Signal::KILL).expect("it is still there");
    let outcome = running.end_within(LIMIT).expect_code(1);
    let says = format!("(pid {lost}) was killed by SIGKILL");
    outcome.expect_stderr(&[&says, "is lost"]);

    let running = long_probe();
    running.signal(Signal::INT);
    running.end_within(LIMIT).expect_code(130);
}
