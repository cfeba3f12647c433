//! Emulated networks with real processes: what is measured, how it is labelled, and what is refused.

mod support;

use std::fs;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::Value;
use support::folder::scratch_file;
use support::{Outcome, paceline, run};
use xtask::lab::LabOptions;
use xtask::needs;

const LIMIT: Duration = Duration::from_secs(60);

/// How often a measurement is repeated that other programs may have spoilt.
const TRIES: usize = 6;

/// How far time is stretched in an attempt: what a machine is late by, if it is always, counts the less the longer it takes.
fn further(stretched: usize, attempt: usize) -> String {
    (stretched << attempt.min(3)).to_string()
}

/// One measurement at a time, as long as the guard lives: those of another test would be what a busy machine is.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn perf(arguments: &[&str]) -> Outcome {
    run(paceline(&[&["perf"], arguments].concat()), LIMIT)
}

/// 1 MiB in 1.02 ms, as measured on 10GbE, with the dilation taken out.
#[test]
fn processes_measure_the_network_that_they_emulate_and_say_so() {
    let (_alone, path) = (alone(), scratch_file("10GbE"));
    let file = path.to_string_lossy();
    let size = ["--min", "1MiB", "--max", "1MiB", "--iterations", "5", "--chunk-bytes", "1MiB", "--alloc"];
    for attempt in 0..TRIES {
        let dilation = further(40, attempt);
        let network = ["--emulate", "10GbE", "--dilate", &dilation, "--json", &file];
        let outcome = perf(&[&["send-receive", "--ranks", "2"], &size[..], &network].concat()).expect_code(0);
        assert!(
            outcome.stdout.contains(&format!("# emulated network 10GbE, hosts 2x1, all times divided by {dilation}")),
            "{outcome:#?}"
        );
        outcome.expect_stderr(&[&format!("the network is emulated: 10GbE, hosts 2x1, dilation {dilation}")]);
        let report: Value = serde_json::from_str(&fs::read_to_string(&path).expect("the file")).expect("JSON");
        fs::remove_file(&path).expect("our own file");
        let emulated = &report["emulated"];
        assert_eq!([&emulated["network"], &emulated["hosts"]], ["10GbE", "2x1"]);
        assert_eq!(emulated["dilation"].as_f64(), dilation.parse().ok());
        let p50_us = report["rows"][0]["p50_us"].as_f64().expect("a time");
        println!("{p50_us} us");
        assert!(p50_us > 0.95 * 1020.0, "{p50_us} us: no machine is too busy to be too fast");
        if p50_us < 1.05 * 1020.0 {
            return;
        }
        println!("attempt {attempt} is too far off; is the machine busy?");
    }
    panic!("1 MiB never took 1.02 ms");
}

/// Four processes on two hosts: in an all-to-all both ranks of a host send a mebibyte to both of the other, through one
/// interface. Without sharing it would take half as long.
#[test]
fn processes_share_the_interfaces_of_their_hosts() {
    let _alone = alone();
    let size = ["--min", "4MiB", "--max", "4MiB", "--iterations", "3", "--chunk-bytes", "1MiB", "--alloc"];
    let network = ["--emulate", "alpha=1ms,beta=20ns,within-alpha=10us,within-beta=0.1ns", "--hosts", "2x2"];
    let formula_us = 1e3 + 4.0 * f64::from(1 << 20) * 20e-3;
    for attempt in 0..TRIES {
        let dilation = further(1, attempt);
        let network = [&network[..], &["--dilate", &dilation]].concat();
        let outcome = perf(&[&["all-to-all", "--ranks", "4"], &size[..], &network].concat()).expect_code(0);
        let measured = p50_us(&outcome.stdout);
        println!("{measured} us, by the formula {formula_us} us");
        // Ranks come out of the barrier before it a latency or two apart.
        assert!(measured > formula_us - 3e3, "{measured} us: the interface is not shared");
        if measured < 1.05 * formula_us {
            return;
        }
        println!("attempt {attempt} is too far off; is the machine busy?");
    }
    panic!("an all-to-all over two hosts never took {formula_us} us");
}

#[test]
fn a_training_on_an_emulated_network_says_so() {
    let (_alone, path) = (alone(), scratch_file("train"));
    let file = path.to_string_lossy();
    let training = ["train", "--workers", "2", "--model", "mlp", "--iterations", "2", "--json", &file];
    let network = ["--emulate", "alpha=100us,beta=1ns", "--hosts", "1x2"];
    run(paceline(&[&training[..], &network].concat()), LIMIT).expect_code(0);
    let report: Value = serde_json::from_str(&fs::read_to_string(&path).expect("the file")).expect("JSON");
    fs::remove_file(&path).expect("our own file");
    assert_eq!(report["emulated"]["hosts"], "1x2");
    let dilated = [&training[..], &network, &["--dilate", "2"]].concat();
    run(paceline(&dilated), LIMIT).expect_code(2).expect_stderr(&["cannot be slowed down with it"]);
}

#[test]
fn what_cannot_be_emulated_is_refused() {
    let _alone = alone();
    let small = ["all-reduce", "--max", "1KiB", "--seconds", "0"];
    for (options, says) in [
        (&["--emulate", "10GBE"][..], "`10GBE` is no network"),
        (&["--emulate", "alpha=1us"], "beta is missing"),
        (&["--emulate", "10GbE", "--hosts", "2x2"], "have 4 ranks, and the world has 2"),
        (&["--hosts", "2x1"], "--emulate"),
        (&["--emulate", "10GbE", "--dilate", "-1"], "a dilation of -1"),
    ] {
        // clap takes a negative number for an option unless it is joined.
        let options: Vec<String> = options.chunks(2).map(|pair| pair.join("=")).collect();
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        perf(&[&small[..], &options].concat()).expect_code(2).expect_stderr(&[says]);
    }
    let over_tcp = [&small[..], &["--emulate", "10GbE", "--transport", "tcp"]].concat();
    perf(&over_tcp).expect_code(1).expect_stderr(&["an emulated network is made of shared memory"]);
}

/// Time of the slowest rank for a size, from the table.
fn p50_us(said: &str) -> f64 {
    let line = said.lines().rfind(|line| line.starts_with(' ')).unwrap_or_else(|| panic!("no row in {said}"));
    line.split_whitespace().nth(6).and_then(|field| field.parse().ok()).unwrap_or_else(|| panic!("no time in {line}"))
}

/// 16 MiB in messages of one and of four, over the kernel's token bucket of 1 Gbit/s and over an emulated link of that
/// rate. TCP fills 1448 of the 1514 bytes of a frame that the bucket counts, so a byte of payload takes
/// 8 ns · 1514/1448. (After a pause the bucket lets 2 ms of data through at once, 1.5 % of these. With data in both
/// directions the lab was 4 to 12 % slower, probably for acknowledgements, which are not emulated.)
#[test]
fn an_emulated_link_is_as_fast_as_one_that_the_kernel_shapes() {
    let Some(lab) = needs::lab(&LabOptions { hosts: 2, ..LabOptions::default() }) else { return };
    let _alone = alone();
    let beta = format!("alpha=50us,beta={:.5}ns", 8.0 * 1514.0 / 1448.0);
    let size = ["--min", "16MiB", "--max", "16MiB", "--iterations", "5", "--alloc", "--chunk-bytes"];
    for message in ["1MiB", "4MiB"] {
        let measure = [&["perf", "send-receive"], &size[..], &[message]].concat();
        let in_lab = || {
            let command: Vec<_> = [&[env!("CARGO_BIN_EXE_paceline")], &measure[..]].concat();
            let command: Vec<_> = command.iter().map(std::ffi::OsString::from).collect();
            let ranks: Vec<_> = lab.ranks(1, &command).into_iter().map(support::start).collect();
            let said: Vec<_> = ranks.into_iter().map(|rank| rank.end_within(LIMIT).expect_code(0)).collect();
            p50_us(&said[0].stdout)
        };
        let emulated = || p50_us(&run(paceline(&[&measure[..], &["--emulate", &beta]].concat()), LIMIT).stdout);
        // Each may be slower than its network where the machine is late, and is never faster: the fastest counts.
        let mut fastest = (f64::INFINITY, f64::INFINITY);
        let found = (0..TRIES).any(|attempt| {
            fastest = (in_lab().min(fastest.0), emulated().min(fastest.1));
            let (lab, emulated) = fastest;
            println!("{message}: lab {lab} us, emulated {emulated} us: {:+.2} %", (emulated / lab - 1.0) * 100.0);
            let alike = (emulated / lab - 1.0).abs() <= 0.05;
            if !alike {
                println!("attempt {attempt} is too far off; is the machine busy?");
            }
            alike
        });
        assert!(found, "messages of {message}: the two never agreed");
    }
}
