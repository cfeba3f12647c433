//! What happens when ranks die, stay away or disagree.

#[path = "../../fabric/tests/common/meeting.rs"]
mod meeting;
mod support;

use std::collections::BTreeSet;
use std::fs;
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use meeting::free_port;
use rustix::process::{Pid, Signal, kill_process};
use support::left_over::Held;
use support::{Outcome, Running, SOON, children_of, expect_nothing_left, is_alive, paceline, run, start, until};

const LIMIT: Duration = Duration::from_secs(60);

/// A training that would take minutes, once all its workers are in the middle of it. Gives their process ids by rank.
fn long_training(transport: &str) -> (Running, Vec<u32>, MutexGuard<'static, ()>) {
    let options = ["--workers", "3", "--transport", transport, "--epochs", "1000", "--model", "mlp"];
    in_the_middle(paceline(&[&["train"], &options[..]].concat()))
}

/// The same, in which nobody takes silence for a loss: only a connection that ends tells of one, and it does so at once.
fn unwatched_training(transport: &str, more: &[&str]) -> (Running, Vec<u32>, MutexGuard<'static, ()>) {
    let options = ["train", "--workers", "3", "--transport", transport, "--epochs", "1000", "--model", "mlp"];
    let mut command = paceline(&[&options[..], more].concat());
    command.env("PACELINE_HEARTBEAT", "0");
    in_the_middle(command)
}

/// One at a time, as long as the guard lives: workers that compete with another test's for the cores notice a loss later
/// than those of a user.
fn in_the_middle(command: Command) -> (Running, Vec<u32>, MutexGuard<'static, ()>) {
    static ONE: Mutex<()> = Mutex::new(());
    let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let running = start(command);
    assert!(until(LIMIT, || running.stdout_so_far().contains("epoch 1:")), "{}", running.stderr_so_far());
    let mut ranks: Vec<(u32, u32)> =
        children_of(running.pid()).into_iter().filter_map(|pid| Some((rank_of(pid)?, pid))).collect();
    ranks.sort_unstable();
    assert_eq!(ranks.len(), 3, "three ranks are running");
    (running, ranks.into_iter().map(|(_, pid)| pid).collect(), one)
}

/// The rank in the environment of a process.
fn rank_of(pid: u32) -> Option<u32> {
    let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
    let variables = environment.split(|byte| *byte == 0).filter_map(|variable| str::from_utf8(variable).ok());
    variables.filter_map(|variable| variable.strip_prefix("PACELINE_RANK=")).find_map(|rank| rank.parse().ok())
}

fn kill(pid: u32) {
    signal(pid, Signal::KILL);
}

fn signal(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(pid as i32).expect("a process id");
    kill_process(pid, signal).expect("it is still there");
}

fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

#[test]
fn survivors_of_a_killed_worker_end_in_time_and_say_who_where_and_what() {
    for transport in ["shm", "tcp"] {
        let (running, ranks, _one) = unwatched_training(transport, &[]);
        let held = Held::by(&ranks);
        assert!(held.is_something(transport == "shm"), "{transport}: nothing is found while it runs");
        kill(ranks[1]);
        let gone = until(SOON, || !ranks.iter().any(|pid| is_alive(*pid)));
        assert!(gone, "{transport}: survivors still run: {}", running.stderr_so_far());
        let outcome = running.end_within(SOON).expect_code(1);
        let launcher = format!("rank 1 (pid {}) was killed by SIGKILL", ranks[1]);
        let outcome = outcome.expect_stderr(&[&launcher]);
        for survivor in [0, 2] {
            let reports = format!("rank {survivor} on {}", host());
            let said = outcome.stderr.lines().find(|line| line.contains(&reports));
            let said = said.unwrap_or_else(|| panic!("{transport}: rank {survivor} said nothing: {outcome:#?}"));
            let names_the_lost_one = said.contains("rank 1") && said.contains(&format!("host {}", host()));
            assert!(names_the_lost_one && said.contains("all-reduce"), "{transport}: {said}");
        }
        expect_nothing_left(&held, transport);
    }
}

/// In an operation, or where the ranks tell each other what they have measured.
#[test]
fn survivors_of_a_worker_that_is_killed_while_calls_are_tuned_name_it() {
    let (running, ranks, _one) = unwatched_training("tcp", &["--tune"]);
    let held = Held::by(&ranks);
    kill(ranks[1]);
    let gone = until(SOON, || !ranks.iter().any(|pid| is_alive(*pid)));
    assert!(gone, "survivors still run: {}", running.stderr_so_far());
    let outcome = running.end_within(SOON).expect_code(1);
    for survivor in [0, 2] {
        let reports = format!("rank {survivor} on {}", host());
        let said = outcome.stderr.lines().find(|line| line.contains(&reports));
        assert!(said.is_some_and(|said| said.contains("rank 1")), "rank {survivor}: {outcome:#?}");
    }
    expect_nothing_left(&held, "tcp");
}

/// Its connections stay open: only its silence tells.
#[test]
fn survivors_of_a_stopped_worker_end_in_time_and_name_it() {
    for transport in ["shm", "tcp"] {
        let (running, ranks, _one) = long_training(transport);
        let held = Held::by(&ranks);
        signal(ranks[1], Signal::STOP);
        let gone = until(SOON, || !is_alive(ranks[0]) && !is_alive(ranks[2]));
        assert!(gone, "{transport}: survivors still run: {}", running.stderr_so_far());
        // The launcher ends the stopped one, which cannot obey.
        let outcome = running.end_within(SOON).expect_code(1);
        assert!(!is_alive(ranks[1]), "{transport}: the stopped rank is still there: {outcome:#?}");
        for survivor in [0, 2] {
            let reports = format!("rank {survivor} on {}", host());
            let said = outcome.stderr.lines().find(|line| line.contains(&reports) && line.contains("failed"));
            let said = said.unwrap_or_else(|| panic!("{transport}: rank {survivor} said nothing: {outcome:#?}"));
            let (_, silent) = said
                .split_once("rank 1 is lost: it has given no sign of life for ")
                .unwrap_or_else(|| panic!("{transport}: {said}"));
            assert!(silent.contains("host") && said.contains("all-reduce"), "{transport}: {said}");
            // As they have heard it while they listened: two signs of life that did not come, and half of one. What else
            // it takes until all is over, the machine decides.
            let silent_s = silent.split_once(" s").and_then(|(seconds, _)| seconds.parse::<f64>().ok());
            assert!(silent_s.is_some_and(|seconds| (2.5..3.5).contains(&seconds)), "{transport}: {said}");
        }
        expect_nothing_left(&held, transport);
    }
}

#[test]
fn a_rank_that_does_not_take_part_is_named_and_may_come_back() {
    let options = ["--workers", "3", "--epochs", "1000", "--model", "mlp"];
    let mut command = paceline(&[&["train"], &options[..]].concat());
    command.env("PACELINE_HEARTBEAT", "0").env("PACELINE_STALL", "0.5");
    let (running, ranks, _one) = in_the_middle(command);
    signal(ranks[1], Signal::STOP);
    let named = || {
        let said = running.stderr_so_far();
        said.lines()
            .any(|line| line.contains("has not moved for") && line.contains(&format!("rank 1 (host {})", host())))
    };
    assert!(until(SOON, named), "nobody is named: {}", running.stderr_so_far());
    signal(ranks[1], Signal::CONT);
    let epochs = || running.stdout_so_far().matches("epoch ").count();
    let before = epochs();
    assert!(until(LIMIT, || epochs() > before + 1), "it does not go on: {}", running.stderr_so_far());
    running.signal(Signal::INT);
    running.end_within(SOON).expect_code(130);
}

#[test]
fn a_killed_first_rank_ends_the_others_too() {
    let (running, ranks, _one) = unwatched_training("shm", &[]);
    let held = Held::by(&ranks);
    kill(ranks[0]);
    assert!(until(SOON, || !ranks.iter().any(|pid| is_alive(*pid))), "survivors still run");
    running.end_within(SOON).expect_code(1).expect_stderr(&["rank 0 (pid "]);
    expect_nothing_left(&held, "shm");
}

#[test]
fn an_interrupted_training_leaves_nothing() {
    let (running, ranks, _one) = long_training("shm");
    let held = Held::by(&ranks);
    running.signal(Signal::INT);
    let outcome = running.end_within(SOON).expect_code(130);
    assert!(!ranks.iter().any(|pid| is_alive(*pid)), "{outcome:#?}");
    expect_nothing_left(&held, "shm");
}

/// One rank, started by hand. It waits for others for longer than a busy machine takes to start them.
fn lone_rank(rank: &str, world_size: &str, address: &str, arguments: &[&str]) -> Command {
    let mut command = paceline(arguments);
    command.env("PACELINE_RANK", rank).env("PACELINE_WORLD_SIZE", world_size).env("PACELINE_RENDEZVOUS", address);
    command.env("PACELINE_JOB", "faults").env("PACELINE_TIMEOUT", "30");
    command
}

/// The same, which waits for so many seconds for somebody who never comes.
fn patient_rank(seconds: &str, rank: &str, world_size: &str, address: &str) -> Command {
    let mut command = lone_rank(rank, world_size, address, &SHORT);
    command.env("PACELINE_TIMEOUT", seconds);
    command
}

const SHORT: [&str; 6] = ["perf", "all-reduce", "--max", "1KiB", "--seconds", "0"];

/// Waits for the end of programs. Of what they and their children were seen to hold until then nothing is left, and none
/// of the children runs on. Who ends within milliseconds may do so before anybody has looked.
#[track_caller]
fn end_with_nothing_left<const N: usize>(programs: [Running; N]) -> [Outcome; N] {
    watched_to_the_end(programs).1
}

/// The same of programs that wait for somebody for seconds, so that something is seen.
#[track_caller]
fn end_a_wait_with_nothing_left<const N: usize>(programs: [Running; N]) -> [Outcome; N] {
    let (held, outcomes) = watched_to_the_end(programs);
    assert!(held.is_something(false), "nothing was found while they waited: {outcomes:#?}");
    outcomes
}

/// What was seen of programs, and how they have ended.
#[track_caller]
fn watched_to_the_end<const N: usize>(programs: [Running; N]) -> (Held, [Outcome; N]) {
    let (mut held, mut seen) = (Held::default(), BTreeSet::new());
    let pids: Vec<u32> = programs.iter().map(Running::pid).collect();
    until(LIMIT, || {
        let processes: Vec<u32> = pids.iter().flat_map(|pid| std::iter::once(*pid).chain(children_of(*pid))).collect();
        held.add(Held::by(&processes));
        seen.extend(processes);
        !pids.iter().any(|pid| is_alive(*pid))
    });
    let outcomes = programs.map(|program| program.end_within(SOON));
    assert!(until(SOON, || !seen.iter().any(|pid| is_alive(*pid))), "a child still runs: {outcomes:#?}");
    expect_nothing_left(&held, "no world has formed");
    (held, outcomes)
}

/// A rank that was started by hand, in a message of others.
fn named(rank: u32, running: &Running) -> String {
    format!("rank {rank} (host {}, process {})", host(), running.pid())
}

/// An address on which nobody listens.
fn free_address() -> String {
    format!("127.0.0.1:{}", free_port())
}

#[test]
fn a_peer_that_never_comes_is_named() {
    let address = free_address();
    // By default they wait for 30 s.
    let [alone] = end_a_wait_with_nothing_left([start(patient_rank("2", "0", "3", &address))]);
    assert!(alone.elapsed < Duration::from_secs(20), "{alone:#?}");
    alone.expect_code(1).expect_stderr(&[
        &format!("rank 0 on {}: ranks 1, 2 never came within 2 s", host()),
        "look at the output of ranks 1, 2, and raise PACELINE_TIMEOUT",
    ]);
    let [alone] = end_a_wait_with_nothing_left([start(patient_rank("2", "1", "2", &address))]);
    assert!(alone.elapsed < Duration::from_secs(20), "{alone:#?}");
    alone.expect_code(1).expect_stderr(&[
        &format!("rank 1 on {}: rank 0 at {address} did not answer within 2 s", host()),
        "see whether it is running, and whether the address is right",
    ]);
}

#[test]
fn a_port_in_use_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("its address").to_string();
    let outcome = run(lone_rank("0", "2", &address, &SHORT), LIMIT).expect_code(1);
    let port = address.rsplit(':').next().expect("a port");
    outcome.expect_stderr(&[
        "rank 0 on ",
        &format!("port {port} on 127.0.0.1 is already in use"),
        "PACELINE_RENDEZVOUS",
    ]);
}

#[test]
fn different_world_sizes_are_named() {
    let address = free_address();
    let first = start(lone_rank("0", "2", &address, &SHORT));
    let second = start(lone_rank("1", "3", &address, &SHORT));
    let says = format!("{} says the world has 3 ranks, rank 0 says 2: start all with", named(1, &second));
    for (rank, outcome) in end_with_nothing_left([first, second]).into_iter().enumerate() {
        outcome.expect_code(1).expect_stderr(&[&format!("rank {rank} on {}: ", host()), &says]);
    }
}

#[test]
fn calls_that_do_not_fit_each_other_are_named_by_each_rank() {
    let options = |options: &[&'static str]| [&["perf", "all-reduce", "--seconds", "0"][..], options].concat();
    let different: [(&[&str], [&str; 2]); 3] = [
        (&["--max", "1KiB", "--dtype", "f64"], ["of 256 f32 elements", "of 128 f64 elements"]),
        (&["--max", "1KiB", "--op", "max"], ["all-reduce (sum,", "all-reduce (max,"]),
        (&["--min", "2KiB", "--max", "2KiB"], ["of 256 f32 elements", "of 512 f32 elements"]),
    ];
    for (second, values) in different {
        let address = free_address();
        let first = start(lone_rank("0", "2", &address, &options(&["--max", "1KiB"])));
        let second = start(lone_rank("1", "2", &address, &options(second)));
        for (rank, running) in [first, second].into_iter().enumerate() {
            let (reports, other) = (format!("rank {rank} on {}: all-reduce (operation ", host()), 1 - rank);
            let other = format!("on rank {other} (host {})", host());
            let outcome = running.end_within(LIMIT).expect_code(1).expect_stderr(&values);
            outcome.expect_stderr(&[&reports, &other, "Make all ranks call the same collectives"]);
        }
    }
}

#[test]
fn variables_that_make_no_sense_are_wrong_usage() {
    let outcome = run(lone_rank("5", "2", &free_address(), &SHORT), LIMIT).expect_code(2);
    outcome.expect_stderr(&["PACELINE_RANK", "5", "help:"]);
}

#[test]
fn two_processes_of_one_rank_are_named_by_all() {
    let address = free_address();
    let ranks = ["0", "1", "1"];
    let running = ranks.map(|rank| start(lone_rank(rank, "3", &address, &SHORT)));
    let claim = |running: &Running| format!("host {}, process {}", host(), running.pid());
    let claims = [claim(&running[1]), claim(&running[2])];
    for (rank, outcome) in ranks.into_iter().zip(end_with_nothing_left(running)) {
        let reports = format!("rank {rank} on {}: ", host());
        let said: [&str; 5] =
            ["two processes claim rank 1: ", "; start each rank once", &claims[0], &claims[1], &reports];
        outcome.expect_code(1).expect_stderr(&said);
    }
}

#[test]
fn a_rank_of_another_job_is_turned_away_and_named() {
    let address = free_address();
    // Long enough for the other one to come.
    let first = start(patient_rank("5", "0", "2", &address));
    let mut other = lone_rank("1", "2", &address, &SHORT);
    other.env("PACELINE_JOB", "another");
    let other = start(other);
    let belongs = format!("{} belongs to job \"another\", rank 0 to job \"faults\": ", named(1, &other));
    let [first, other] = end_a_wait_with_nothing_left([first, other]);
    first.expect_code(1).expect_stderr(&[
        &format!("rank 0 on {}: rank 1 never came within 5 s (have 0); turned away 127.0.0.1:", host()),
        &belongs,
        "look at the output of rank 1, and",
    ]);
    other.expect_code(1).expect_stderr(&[
        &format!("rank 1 on {}: rank 0 at {address} ended the rendezvous: {belongs}", host()),
        "give all ranks of a job the same PACELINE_JOB",
    ]);
}

#[test]
fn a_rank_of_another_version_is_turned_away_and_named() {
    let address = free_address();
    let first = start(patient_rank("5", "0", "2", &address));
    let mut socket = None;
    let dialled = || {
        socket = TcpStream::connect(&address).ok();
        socket.is_some()
    };
    assert!(until(LIMIT, dialled), "rank 0 does not listen");
    // Magic, version 65535, two zeros, and a message of one byte.
    let hello = b"PcLc\xff\xff\0\0\x01\0\0\0x";
    std::io::Write::write_all(&mut socket.expect("a connection"), hello).expect("room");
    let [outcome] = end_a_wait_with_nothing_left([first]);
    outcome.expect_code(1).expect_stderr(&[
        &format!("rank 0 on {}: rank 1 never came within 5 s", host()),
        "it speaks version 65535 of the control protocol",
        "run the same Paceline on all ranks",
        "look at the output of rank 1, and",
    ]);
}

/// Ranks under a limit of the shell.
fn limited(limit: &str, options: &str) -> Outcome {
    let script = format!(
        "ulimit {limit}; exec {} perf all-reduce --max 64KiB --seconds 0 {options}",
        env!("CARGO_BIN_EXE_paceline")
    );
    let mut command = paceline(&["launch", "--workers", "2", "--", "sh", "-c", &script]);
    command.env("PACELINE_TIMEOUT", "30");
    let [outcome] = end_with_nothing_left([start(command)]);
    outcome
}

#[test]
fn too_few_descriptors_are_an_error_that_names_the_limit() {
    // A link over TCP takes one descriptor, and shared memory several more.
    for (transport, limits) in [("shm", ["6", "8", "10", "12", "14"]), ("tcp", ["4", "7", "8", "10", "12"])] {
        let mut failures = 0;
        for descriptors in limits {
            let outcome = limited(&format!("-n {descriptors}"), &format!("--transport {transport}"));
            if outcome.code() == 0 {
                continue; // It was enough for this transport.
            }
            let outcome = outcome.expect_code(1);
            assert!(!outcome.stderr.contains("panicked"), "{descriptors}, {transport}: {outcome:#?}");
            let limit = format!("the limit on open files is {descriptors}: raise it with `ulimit -n`");
            let reports = [0, 1].map(|rank| format!("rank {rank} on {}: ", host()));
            let says = |line: &str| line.contains(&limit) && reports.iter().any(|reports| line.contains(reports));
            assert!(outcome.stderr.lines().any(says), "{descriptors}, {transport}: {outcome:#?}");
            failures += 1;
        }
        assert!(failures > 0, "{transport}: no limit was too low");
    }
}

/// Growing a file beyond the limit raises a signal that kills: it must not come to that.
#[test]
fn a_limit_on_file_sizes_leaves_tcp() {
    // 512 KiB: neither rings nor arena fit.
    let outcome = limited("-f 512", "").expect_code(0);
    outcome.expect_stderr(&["no shared memory", "ulimit -f"]);
    limited("-f 512", "--transport shm").expect_code(1).expect_stderr(&["ulimit -f"]);
}
