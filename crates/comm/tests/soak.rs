//! Ranks that compute for seconds between their calls, on far fewer cores than ranks: nobody is taken for lost.
//!
//! Short by default; with `PACELINE_LONG_TESTS=1` 32 ranks for ten minutes, or for `PACELINE_SOAK_SECONDS`.

mod support;

use std::time::{Duration, Instant};

use paceline_comm::{CallOptions, Communicator, Reduction};
use support::{Links, on_all_ranks, random};

#[test]
fn busy_ranks_on_few_cores_are_not_lost() {
    let long = std::env::var_os("PACELINE_LONG_TESTS").is_some();
    let given = std::env::var("PACELINE_SOAK_SECONDS").ok();
    let given = given.map(|seconds| seconds.parse().expect("PACELINE_SOAK_SECONDS is a number of seconds"));
    let seconds = given.unwrap_or(if long { 600 } else { 5 });
    let ranks = if long { 32 } else { 8 };
    let rounds = on_all_ranks(Links::Mixed, ranks, move |comm| compute_and_reduce(&comm, Duration::from_secs(seconds)));
    assert!(rounds.iter().all(|count| *count == rounds[0] && *count > 0), "{rounds:?}");
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
