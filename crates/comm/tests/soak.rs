//! Ranks that compute for seconds between their calls, on two processors: nobody is taken for lost. They are processes,
//! linked by shared memory and by TCP.
//!
//! Short by default; with `PACELINE_LONG_TESTS=1` 32 ranks for ten minutes, or for `PACELINE_SOAK_SECONDS`.

mod support;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use paceline_comm::{CallOptions, Communicator, Reduction, TransportChoice};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use support::processes::{Ranks, World, connect, part};
use support::random;

const PROCESSORS: usize = 2;

#[test]
fn busy_ranks_on_two_processors_are_not_lost() {
    const TEST: &str = "busy_ranks_on_two_processors_are_not_lost";
    if let Some(seconds) = part() {
        // Before there are other threads of ours.
        stay_on_two_processors();
        let seconds = seconds.parse().expect("a number of seconds");
        let comm = connect();
        return eprintln!("made {} calls", compute_and_reduce(&comm, Duration::from_secs(seconds)));
    }
    let long = std::env::var_os("PACELINE_LONG_TESTS").is_some();
    let given = std::env::var("PACELINE_SOAK_SECONDS").ok();
    let given = given.map(|seconds| seconds.parse().expect("PACELINE_SOAK_SECONDS is a number of seconds"));
    let seconds: u64 = given.unwrap_or(if long { 600 } else { 5 });
    // Those of even rank share memory; all others are linked by TCP.
    let even = [TransportChoice::Auto, TransportChoice::Tcp];
    let transports: Vec<_> = even.into_iter().cycle().take(if long { 32 } else { 8 }).collect();
    let part = seconds.to_string();
    let environment = BTreeMap::new();
    let ranks = Ranks::start(&World { test: TEST, part: &part, transports: &transports, environment });
    let all: Vec<usize> = (0..transports.len()).collect();
    // The last round begins late, and each takes its turn on the processors.
    let said = ranks.end_within(Duration::from_secs(seconds + 300), &all);
    let calls = |said: &String| said.lines().rfind(|line| line.starts_with("made ")).map(str::to_owned);
    let calls: Vec<_> = said.iter().map(calls).collect();
    assert!(calls[0].is_some() && calls.iter().all(|made| *made == calls[0]), "{calls:?}");
}

/// This thread and those that it starts.
fn stay_on_two_processors() {
    let allowed = sched_getaffinity(None).expect("the kernel says it");
    let mut few = CpuSet::new();
    (0..CpuSet::MAX_CPU)
        .filter(|&processor| allowed.is_set(processor))
        .take(PROCESSORS)
        .for_each(|processor| few.set(processor));
    sched_setaffinity(None, &few).expect("fewer processors are always allowed");
}

/// How many calls it made.
fn compute_and_reduce(comm: &Communicator, time: Duration) -> usize {
    let (start, mut random) = (Instant::now(), random(comm.rank() as u64 + 1));
    for round in 1.. {
        // Computing: no call, no sleep, and no processor to spare for the progress thread.
        let busy = Instant::now() + Duration::from_secs_f64(random() * 3.0).min(time / 3);
        while Instant::now() < busy {
            std::hint::black_box(random());
        }
        let done = if start.elapsed() < time { 0.0 } else { 1.0 };
        let mut data = [1.0, done];
        let reduced = comm.all_reduce(&mut data, Reduction::Sum, &CallOptions::default());
        reduced.unwrap_or_else(|error| panic!("after {:?}: {error}", start.elapsed()));
        assert_eq!(data[0], comm.world_size() as f64);
        if data[1] > 0.0 {
            return round;
        }
    }
    0
}
