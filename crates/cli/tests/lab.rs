//! Ranks on several hosts: network namespaces of this machine. Where there can be none, the tests say why and pass.

use std::ffi::OsString;
use std::fs;
use std::process::Stdio;
use std::time::{Duration, Instant};

use xtask::lab::{Fault, Harm, Job, Lab, LabError, LabOptions};

/// A lab, or the reason why it is not tested here.
fn lab(hosts: usize) -> Option<Lab> {
    match Lab::build(&LabOptions { hosts, ..LabOptions::default() }) {
        Ok(lab) => Some(lab),
        Err(LabError::NotPermitted(reason)) => {
            eprintln!("skipped: {reason}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn words(words: &[&str]) -> Vec<OsString> {
    words.iter().map(OsString::from).collect()
}

/// Standard output of all ranks, which must end with status 0 if `good`, and with another one if not.
#[track_caller]
fn run(lab: &Lab, per_host: usize, good: bool, command: &[&str]) -> Vec<String> {
    let ranks: Vec<_> = lab
        .ranks(per_host, &words(command))
        .into_iter()
        .map(|mut rank| {
            let rank = rank.env("PACELINE_TIMEOUT", "3").stdin(Stdio::null());
            rank.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("nsenter starts")
        })
        .collect();
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
    let said = run(&lab, 1, true, &[&PERF[..], &["auto"]].concat());
    assert!(said[0].contains("2 ranks, transport tcp"), "{}", said[0]);
    // A mebibyte crosses a link of 1 Gbit/s, in each direction, in 8.4 ms; a burst and little more comes for free.
    let last = said[0].lines().rfind(|line| line.contains("1048576")).expect("the largest size");
    let fastest_us: f64 = last.split_whitespace().nth(5).and_then(|field| field.parse().ok()).expect("a time");
    assert!(fastest_us > 4000.0, "the links are not shaped: {last}");
    let refused = run(&lab, 1, false, &[&PERF[..], &["shm"]].concat());
    assert!(refused.iter().any(|said| said.contains("lab-host")), "hosts have names: {refused:?}");
}

#[test]
fn ranks_of_one_host_share_memory() {
    let Some(lab) = lab(2) else { return };
    let said = run(&lab, 2, true, &[&PERF[..], &["auto"]].concat());
    assert!(said[0].contains("4 ranks, transport mixed"), "{}", said[0]);
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
        timeout: Duration::from_secs(1),
        faults: vec![(Harm::Down, fault)],
        tag: true,
    };
    let start = Instant::now();
    let end = lab.run(&job).expect("it runs");
    assert!(end.timed_out && !end.is_success(), "{end:?}");
    assert_eq!(end.ranks[1].and_then(|status| status.code()), Some(7), "{end:?}");
    assert_eq!(end.ranks[0], None, "{end:?}");
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    job.command = words(&["true"]);
    assert!(lab.run(&job).expect("it runs").is_success());
    drop(lab);
    assert!(!somebody_runs("61.25"), "left behind");
}

/// Is there a process with this word on its command line?
fn somebody_runs(word: &str) -> bool {
    let processes = fs::read_dir("/proc").expect("it is there").flatten();
    let lines = processes.filter_map(|process| fs::read(process.path().join("cmdline")).ok());
    lines.into_iter().any(|line| line.split(|byte| *byte == 0).any(|found| found == word.as_bytes()))
}
