//! Ranks on several hosts: network namespaces of this machine. Where there can be none, the tests say why and pass
//! ([`needs`]).

#[path = "../../fabric/tests/common/meeting.rs"]
mod meeting;
// What the communicator's tests of faults do with ranks that are processes of the test's own program.
#[allow(dead_code)]
#[path = "../../comm/tests/support/processes.rs"]
mod processes;
#[path = "../../comm/tests/support/reports.rs"]
mod reports;
mod support;

use std::ffi::OsString;
use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use paceline_comm::{Cause, TransportChoice};
use paceline_plan::Cluster;
use processes::Ranks;
use support::{Running, left_over, start, until};
use xtask::lab::{Fault, Harm, Job, Lab, LabError, LabOptions, host_name};
use xtask::needs;

fn lab(hosts: usize) -> Option<Lab> {
    needs::lab(&LabOptions { hosts, ..LabOptions::default() })
}

fn words(words: &[&str]) -> Vec<OsString> {
    words.iter().map(OsString::from).collect()
}

/// Standard output of all ranks, which must end with status 0 if `good`, and with another one if not: soon, if they cannot
/// meet.
#[track_caller]
fn run(lab: &Lab, per_host: usize, good: bool, command: &[&str]) -> Vec<String> {
    end(lab.ranks(per_host, &words(command)), good, if good { "60" } else { "3" })
}

/// The same of one rank on each host, which have these variables to let each other in. Nothing else does.
#[track_caller]
fn run_with(lab: &Lab, variables: [&[(&str, &str)]; 2], good: bool, command: &[&str]) -> Vec<String> {
    let ranks = lab.ranks(1, &words(command)).into_iter().zip(variables).map(|(mut rank, variables)| {
        rank.env_remove("PACELINE_INSECURE").envs(variables.iter().copied());
        rank
    });
    // Those that are to be refused have to come first, on a busy machine.
    end(ranks.collect(), good, if good { "60" } else { "5" })
}

/// Starts ranks, that wait for each other for so many seconds, and waits for them.
#[track_caller]
fn end(ranks: Vec<Command>, good: bool, timeout: &str) -> Vec<String> {
    let start = |mut rank: Command| {
        let rank = rank.env("PACELINE_TIMEOUT", timeout).stdin(Stdio::null());
        rank.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("nsenter starts")
    };
    let ranks: Vec<_> = ranks.into_iter().map(start).collect();
    let outputs = ranks.into_iter().map(|rank| rank.wait_with_output().expect("it is our child"));
    outputs
        .map(|output| {
            let said = [output.stdout, output.stderr].map(|said| String::from_utf8_lossy(&said).into_owned()).concat();
            assert_eq!(output.status.success(), good, "{said}");
            said
        })
        .collect()
}

const PERF: [&str; 8] =
    [env!("CARGO_BIN_EXE_paceline"), "perf", "all-reduce", "--max", "1MiB", "--seconds", "0.05", "--transport"];

#[test]
fn ranks_of_different_hosts_share_no_memory_and_all_reduce_over_tcp() {
    let Some(lab) = lab(2) else { return };
    // What `cargo xtask lab` prints first.
    let queues = "tbf rate 1gbit burst 250000 limit 1250000 (at most 10.0 ms in the queue)";
    assert!(lab.to_string().contains(queues), "{lab}");
    let said = run(&lab, 1, true, &[&PERF[..], &["auto"]].concat());
    assert!(said[0].contains("2 ranks, transport tcp"), "{}", said[0]);
    // A mebibyte crosses a link of 1 Gbit/s, in each direction, in 8.4 ms; a burst and little more comes for free.
    let last = said[0].lines().rfind(|line| line.contains("1048576")).expect("the largest size");
    let fastest_us: f64 = last.split_whitespace().nth(5).and_then(|field| field.parse().ok()).expect("a time");
    assert!(fastest_us > 4000.0, "the links are not shaped: {last}");
    let refused = run(&lab, 1, false, &[&PERF[..], &["shm"]].concat());
    assert!(refused.iter().any(|said| said.contains("lab-host")), "hosts have names: {refused:?}");
}

/// Each host counts on its own processors, and no host on another one's unless there are too few.
#[test]
fn each_host_has_its_share_of_the_processors() {
    let Some(lab) = lab(2) else { return };
    let allowed = |text: &str| {
        let list = text.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).expect("Linux says it");
        list.trim().to_owned()
    };
    let here = allowed(&fs::read_to_string("/proc/self/status").expect("Linux has it"));
    let hosts: Vec<String> =
        run(&lab, 1, true, &["cat", "/proc/self/status"]).iter().map(|said| allowed(said)).collect();
    let are_several = std::thread::available_parallelism().is_ok_and(|count| count.get() > 1);
    assert!(hosts[0] != hosts[1] && !hosts.contains(&here) || !are_several, "{hosts:?} of {here}");
    assert!(lab.to_string().contains("processors, host by host"), "{lab}");
}

#[test]
fn ranks_of_one_host_share_memory() {
    let Some(lab) = lab(2) else { return };
    let said = run(&lab, 2, true, &[&PERF[..], &["auto"]].concat());
    assert!(said[0].contains("4 ranks, transport mixed"), "{}", said[0]);
}

/// Two hosts, two ranks on each: links within a host and across are told apart, and those across are as slow as they are.
#[test]
fn a_probe_across_hosts_finds_both_classes_of_links() {
    let Some(lab) = lab(2) else { return };
    let path = std::env::temp_dir().join(format!("paceline-lab-probe-{}.toml", std::process::id()));
    let file = path.to_string_lossy().into_owned();
    let said = run(&lab, 2, true, &[env!("CARGO_BIN_EXE_paceline"), "probe", "--rounds", "6", "-o", &file]);
    assert!(said[0].contains("4 ranks on 2 hosts"), "{}", said[0]);
    let text = fs::read_to_string(&path).expect("rank 0 has written it");
    fs::remove_file(path).expect("our own file");
    let cluster = Cluster::from_toml(&text).unwrap_or_else(|error| panic!("{error} in {text}"));
    assert_eq!((cluster.hosts, cluster.workers_per_host), (2, 2), "{text}");
    let (within, across) = (cluster.within.beta_s_per_byte, cluster.across.beta_s_per_byte);
    // 8.4 ns at line rate; the first bytes after a pause are a burst, which comes for free.
    assert!(across.low <= across.value && across.value <= across.high, "{across:?}");
    assert!((2e-9..4e-8).contains(&across.value) && within.value < across.value, "{within:?}, {across:?}");
    assert!(cluster.combine_s_per_byte.value > 0.0 && cluster.operation.start_s.value >= 0.0, "{text}");
}

#[test]
fn a_link_can_be_cut_in_two_ways_and_restored() {
    let Some(lab) = lab(2) else { return };
    let meet = [&PERF[..], &["tcp"]].concat();
    lab.drop_traffic(1).expect("host 1 is there");
    let carrier = || {
        let read = lab.command(1, "cat").arg("/sys/class/net/eth0/operstate").output().expect("nsenter starts");
        String::from_utf8_lossy(&read.stdout).trim().to_owned()
    };
    assert_eq!(carrier(), "up", "dropping is silent");
    run(&lab, 1, false, &meet);
    lab.restore(1).expect("host 1 is there");
    run(&lab, 1, true, &meet);
    lab.take_down(1).expect("host 1 is there");
    assert_eq!(carrier(), "down");
    run(&lab, 1, false, &meet);
    assert!(matches!(lab.take_down(2), Err(LabError::Usage(_))));
}

#[test]
fn a_job_ends_with_its_first_failure_and_leaves_nothing() {
    let Some(lab) = lab(2) else { return };
    let script = "[ $PACELINE_RANK != 1 ] || exit 7; setsid sleep 61.25 & trap '' TERM; sleep 61.25";
    let fault = Fault { host: 1, after: Duration::from_millis(10) };
    let mut job = Job {
        command: words(&["sh", "-c", script]),
        ranks_per_host: 1,
        // Long enough for rank 1 to begin on a busy machine.
        timeout: Duration::from_secs(4),
        faults: vec![(Harm::Down, fault)],
        tag: true,
    };
    let start = Instant::now();
    let end = lab.run(&job).expect("it runs");
    assert!(end.timed_out && !end.is_success(), "{end:?}");
    assert_eq!(end.ranks[1].and_then(|status| status.code()), Some(7), "{end:?}");
    assert_eq!(end.ranks[0], None, "{end:?}");
    assert!(start.elapsed() < PATIENCE / 2, "{:?}", start.elapsed());
    (job.command, job.timeout) = (words(&["true"]), PATIENCE);
    assert!(lab.run(&job).expect("it runs").is_success());
    drop(lab);
    assert!(until(PATIENCE / 2, || !somebody_runs("61.25")), "left behind");
}

/// Long enough for a start on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Hurts the link of host 1, of three, once rank 0 has written `begun`. All ranks end in time; those that can still reach
/// each other say that rank 1 is lost, where it ran, and in the middle of what; rank 1 misses one of them.
fn a_lost_host_is_named(harm: Harm, command: &[&str], begun: &str) {
    let Some(lab) = lab(3) else { return };
    let ranks: Vec<Running> = lab.ranks(1, &words(command)).into_iter().map(start).collect();
    assert!(until(PATIENCE, || ranks[0].stdout_so_far().contains(begun)), "{}", ranks[0].stderr_so_far());
    Fault { host: 1, after: Duration::ZERO }.happen(harm, &lab).expect("host 1 is there");
    let outcomes: Vec<_> = ranks.into_iter().map(|rank| rank.end_within(PATIENCE).expect_code(1)).collect();
    for (rank, outcome) in outcomes.iter().enumerate() {
        let lost: &[usize] = if rank == 1 { &[0, 2] } else { &[1] };
        let named = outcome.stderr.lines().any(|line| {
            let names = |lost: &usize| {
                // Two signs of life that did not come, and half of one, as it was heard while somebody listened. What else
                // it takes until all is over, the machine decides.
                let silent = format!("rank {lost} is lost: it has given no sign of life for ");
                let silent_s =
                    line.split_once(&silent).and_then(|(_, rest)| rest.split_once(" s")?.0.parse::<f64>().ok());
                silent_s.is_some_and(|seconds| (2.5..3.5).contains(&seconds))
                    && line.contains(&format!("host {}", host_name(*lost)))
            };
            // From what it has seen itself, or from the words of another.
            line.contains(&format!("rank {rank} on {}: ", host_name(rank)))
                && line.contains(" (operation ")
                && line.contains("Look at the output of")
                && lost.iter().any(names)
        });
        assert!(named, "{harm:?}: rank {rank} names no lost one: {outcome:#?}");
    }
}

#[test]
fn a_link_taken_down_ends_a_measurement_in_time_and_the_lost_one_is_named() {
    let long = ["perf", "all-reduce", "--min", "1KiB", "--max", "1MiB", "--seconds", "2"];
    let command = [&[env!("CARGO_BIN_EXE_paceline")], &long[..]].concat();
    a_lost_host_is_named(Harm::Down, &command, " 1024 ");
}

#[test]
fn a_link_that_drops_everything_ends_a_training_in_time_and_the_lost_one_is_named() {
    let long = ["train", "--epochs", "1000", "--model", "mlp"];
    let command = [&[env!("CARGO_BIN_EXE_paceline")], &long[..]].concat();
    a_lost_host_is_named(Harm::Drop, &command, "epoch 1:");
}

/// Cuts host 1, of three, off in the middle of calls. The error of each rank says in its type that a peer is lost, and which;
/// the next call fails at once; and nothing of the ranks is left.
fn each_rank_has_lost_a_peer(test: &str, harm: Harm) {
    if processes::part().is_some() {
        let comm = processes::connect();
        eprintln!("calling");
        return reports::report(&comm, &reports::until_it_fails(&comm, 50_000));
    }
    let Some(lab) = lab(3) else { return };
    let program = std::env::current_exe().expect("this program");
    let command = [&[program.into_os_string()], &words(&[test, "--exact", "--nocapture"])[..]].concat();
    let ranks = lab.ranks(1, &command).into_iter().map(|mut rank| {
        rank.envs(processes::environment("call", TransportChoice::Tcp)).env("PACELINE_TIMEOUT", "120");
        rank
    });
    let ranks = Ranks::spawn(ranks.collect(), &[0, 1, 2].map(|host| lab.first_process(host)), false);
    (0..3).for_each(|rank| ranks.wait_until(rank, PATIENCE, "calling"));
    Fault { host: 1, after: Duration::ZERO }.happen(harm, &lab).expect("host 1 is there");
    let said = ranks.end_within(PATIENCE, &[0, 1, 2]);
    for (rank, said) in said.iter().enumerate() {
        let lost: &[usize] = if rank == 1 { &[0, 2] } else { &[1] };
        let line = reports::reported(said, Cause::PeerLost);
        let names = |lost: &usize| {
            let (typed, host) = (format!("PeerLost of rank {lost}: "), host_name(*lost));
            line.starts_with(&typed) && line.contains(&format!("rank {lost} is lost: ")) && line.contains(&host)
        };
        assert!(lost.iter().any(names) && line.contains("all-reduce"), "{harm:?}: rank {rank}: {line}");
    }
}

#[test]
fn a_link_taken_down_is_a_lost_peer_in_the_type_of_each_error() {
    each_rank_has_lost_a_peer("a_link_taken_down_is_a_lost_peer_in_the_type_of_each_error", Harm::Down);
}

#[test]
fn a_link_that_drops_everything_is_a_lost_peer_in_the_type_of_each_error() {
    each_rank_has_lost_a_peer("a_link_that_drops_everything_is_a_lost_peer_in_the_type_of_each_error", Harm::Drop);
}

const SECRET: (&str, &str) = ("PACELINE_SECRET", "a secret that nobody guesses");

#[test]
fn ranks_of_different_hosts_that_share_a_secret_need_no_trust_in_their_network() {
    let Some(lab) = lab(2) else { return };
    let encrypted = [&PERF[..], &["tcp", "--encrypt"]].concat();
    let said = run_with(&lab, [&[SECRET]; 2], true, &encrypted);
    assert!(said[0].contains("2 ranks, transport tcp"), "{}", said[0]);
    let plain = [&PERF[..], &["tcp"]].concat();
    run_with(&lab, [&[SECRET]; 2], true, &plain);
    let said = run_with(&lab, [&[SECRET, ("PACELINE_ENCRYPT", "1")], &[SECRET]], false, &plain);
    assert!(said[0].contains("turned away 10.77.0.2:") && said[0].contains("this rank encrypts and it does not"));
    assert!(said[1].contains("it encrypts and this rank does not"), "{}", said[1]);
}

#[test]
fn ranks_of_different_hosts_that_nothing_vouches_for_are_refused_with_the_reason() {
    let Some(lab) = lab(2) else { return };
    let command = [&PERF[..], &["tcp"]].concat();
    let reason = |host| {
        format!(
            "{} is another host, and without a shared secret nothing proves who is there",
            xtask::lab::address(host)
        )
    };
    // Who dials trusts nobody: rank 0 hears of nobody.
    let said = run_with(&lab, [&[], &[]], false, &command);
    assert!(said[0].contains("rank 1 never came within 5 s"), "{}", said[0]);
    assert!(said[1].contains(&reason(0)) && said[1].contains("PACELINE_INSECURE=1"), "{}", said[1]);
    // Who dials trusts the network, and who is called does not.
    let said = run_with(&lab, [&[], &[("PACELINE_INSECURE", "1")]], false, &command);
    assert!(said[0].contains("turned away 10.77.0.2:"), "{}", said[0]);
    for said in &said {
        assert!(said.contains(&reason(1)) && said.contains("PACELINE_SECRET_FILE"), "{said}");
    }
    // Another secret is as good as none.
    let said = run_with(&lab, [&[SECRET], &[("PACELINE_SECRET", "a secret of another job")]], false, &command);
    assert!(said[0].contains("turned away 10.77.0.2:") && said[0].contains("it has another secret"), "{}", said[0]);
    assert!(said[1].contains("it refuses our handshake"), "{}", said[1]);
}

/// Is there a process with this word on its command line?
fn somebody_runs(word: &str) -> bool {
    let processes = fs::read_dir("/proc").expect("it is there").flatten();
    let lines = processes.filter_map(|process| fs::read(process.path().join("cmdline")).ok());
    lines.into_iter().any(|line| line.split(|byte| *byte == 0).any(|found| found == word.as_bytes()))
}
