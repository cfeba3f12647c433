//! What goes wrong between real processes. Every survivor, by itself, has an error that names the culprit in its type and
//! in its text; the communicator is poisoned; and nothing of the world is left (see [`Ranks::end_within`]).
//!
//! A world that has formed opens no descriptor any more, so being out of them afterwards is no fault, which is tested here;
//! `crates/cli/tests/faults.rs` has worlds that cannot form. Shared memory lies in memory files, not in a file system that
//! could be full (`crates/cli/tests/full_shared_memory.rs`): what it can lack is memory, for a buffer or for a ring.

#[path = "../../fabric/tests/common/filter.rs"]
mod filter;
mod support;

use std::collections::BTreeMap;
use std::fs::File;
use std::time::{Duration, Instant};

use filter::{Whom, refuse_memory};
use paceline_comm::{CallOptions, Cause, CommError, Communicator, Failure, Reduction, TransportChoice};
use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};
use support::processes::{Ranks, World, connect, part, wait_for_release};
use support::reports::{report, reported, until_it_fails};

/// However slow the machine is.
const LIMIT: Duration = Duration::from_secs(120);

/// How soon after the signal survivors have their error, on two busy processors: far later than one that listens takes,
/// and far sooner than one that looks at its connections only now and then.
const SOON: Duration = Duration::from_secs(15);

/// Is there time for what a user has by default, and are its bounds kept?
fn long() -> bool {
    std::env::var_os("PACELINE_LONG_TESTS").is_some()
}

const RANKS: usize = 3;

/// The one that dies, differs or stays away.
const ODD: usize = 1;

const TRANSPORTS: [TransportChoice; 2] = [TransportChoice::Shm, TransportChoice::Tcp];

fn start(test: &str, part: &str, transport: TransportChoice, environment: &[(&'static str, &str)]) -> Ranks {
    let environment: BTreeMap<&str, String> =
        environment.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
    Ranks::start(&World { test, part, transports: &[transport; RANKS], environment })
}

#[test]
fn each_survivor_of_a_killed_or_stopped_rank_has_lost_that_rank() {
    const TEST: &str = "each_survivor_of_a_killed_or_stopped_rank_has_lost_that_rank";
    if part().is_some() {
        let comm = connect();
        eprintln!("calling");
        return report(&comm, &until_it_fails(&comm, 50_000));
    }
    // Not so soon that one that has to wait for a processor is taken for a stopped one; or as a user has it.
    let watched: &[(&str, &str)] = if long() { &[] } else { &[("PACELINE_HEARTBEAT", "2")] };
    // Then only connections that end tell of a killed one.
    let unwatched: &[(&str, &str)] = &[("PACELINE_HEARTBEAT", "0")];
    let losses = [(Signal::KILL, unwatched), (Signal::KILL, watched), (Signal::STOP, watched)];
    for (transport, (signal, heartbeat)) in TRANSPORTS.into_iter().flat_map(|each| losses.map(|loss| (each, loss))) {
        let ranks = start(TEST, "call", transport, heartbeat);
        ranks.wait_until(ODD, LIMIT, "calling");
        std::thread::sleep(Duration::from_millis(100));
        let signalled = Instant::now();
        ranks.signal(ODD, signal);
        for survivor in [0, 2] {
            ranks.wait_until(survivor, LIMIT, "PeerLost of ");
        }
        let after = signalled.elapsed();
        assert!(!long() || after < SOON, "{transport}, {signal:?}, {heartbeat:?}: known after {after:?} only");
        ranks.signal(ODD, Signal::KILL);
        let said = ranks.end_within(LIMIT, &[0, 2]);
        for survivor in [0, 2] {
            let line = reported(&said[survivor], Cause::PeerLost);
            let named = line.starts_with("PeerLost of rank 1: ") && line.contains("rank 1 is lost: ");
            assert!(named && line.contains("all-reduce"), "{transport}, {signal:?}, rank {survivor}: {line}");
        }
    }
}

/// What makes the odd rank's call another one, and how the two are called in messages.
const DIFFERENCES: [(&str, &str, &str); 4] = [
    ("length", "of 1000 f32 elements", "of 1001 f32 elements"),
    ("type", "of 1000 f32 elements", "of 1000 f64 elements"),
    ("reduction", "all-reduce (sum,", "all-reduce (max,"),
    ("collective", "all-reduce (sum,", "barrier ("),
];

fn call_differently(comm: &Communicator, what: &str) -> Result<(), CommError> {
    let options = CallOptions::default();
    match what {
        "length" => comm.all_reduce(&mut [1f32; 1001], Reduction::Sum, &options),
        "type" => comm.all_reduce(&mut [1f64; 1000], Reduction::Sum, &options),
        "reduction" => comm.all_reduce(&mut [1f32; 1000], Reduction::Max, &options),
        _ => comm.barrier(&options),
    }
}

#[test]
fn different_calls_are_told_to_each_rank_with_both_values() {
    const TEST: &str = "different_calls_are_told_to_each_rank_with_both_values";
    if let Some(what) = part() {
        let comm = connect();
        let made = match comm.rank() {
            ODD => call_differently(&comm, &what),
            _ => comm.all_reduce(&mut [1f32; 1000], Reduction::Sum, &CallOptions::default()),
        };
        return report(&comm, &made.unwrap_err());
    }
    for transport in TRANSPORTS {
        for (what, one, other) in DIFFERENCES {
            let said = start(TEST, what, transport, &[]).end_within(LIMIT, &[0, 1, 2]);
            for (rank, said) in said.iter().enumerate() {
                let line = reported(said, Cause::Mismatch);
                // Which of the two that agree, depends on who is first.
                let names: &[&str] = if rank == ODD { &["rank 0", "rank 2"] } else { &["rank 1"] };
                let named = names.iter().any(|name| line.contains(name));
                assert!(
                    named && line.contains(one) && line.contains(other),
                    "{transport}, {what}, rank {rank}: {line}"
                );
                assert!(line.contains("(operation ") && line.contains("Make all ranks call the same"), "{line}");
            }
        }
    }
}

#[test]
fn a_rank_that_stays_away_is_reported_by_all_others() {
    const TEST: &str = "a_rank_that_stays_away_is_reported_by_all_others";
    if part().is_some() {
        let comm = connect();
        if comm.rank() == ODD {
            wait_for_release();
        }
        eprintln!("calling");
        let mut data = [1f32; 1000];
        comm.all_reduce(&mut data, Reduction::Sum, &CallOptions::default()).expect("it comes in the end");
        assert_eq!(data[999], RANKS as f32);
        return;
    }
    for transport in TRANSPORTS {
        // By default after 10 s.
        let stall: &[(&str, &str)] = if long() { &[] } else { &[("PACELINE_STALL", "0.5")] };
        let mut ranks = start(TEST, "stay away", transport, stall);
        let others = [0, 2];
        others.iter().for_each(|&rank| ranks.wait_until(rank, LIMIT, "calling"));
        let called = Instant::now();
        others.iter().for_each(|&rank| ranks.wait_until(rank, LIMIT, "has not moved for"));
        let after = called.elapsed();
        // The first report comes after 10 s, and a busy machine may take a moment to write it.
        assert!(!long() || after < Duration::from_secs(13), "{transport}: reported after {after:?} only");
        // It has called nothing yet, so nothing of it stands still.
        assert!(!ranks.said(ODD).contains("has not moved"), "{transport}: {}", ranks.said(ODD));
        ranks.release(ODD);
        let said = ranks.end_within(LIMIT, &[0, 1, 2]);
        for rank in others {
            let line = said[rank].lines().find(|line| line.contains("has not moved for")).expect("it has said so");
            let reports = line.starts_with(&format!("rank {rank} on ")) && line.contains("all-reduce (operation ");
            assert!(reports && line.contains("rank 1 (host ") && line.contains("has not started it yet"), "{line}");
        }
    }
}

/// Takes all descriptors that this process may have.
fn take_all_descriptors() -> Vec<File> {
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: Some(128), maximum }).expect("a lower limit");
    let taken: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
    assert!(!taken.is_empty());
    taken
}

#[test]
fn a_world_that_has_formed_needs_no_more_descriptors() {
    const TEST: &str = "a_world_that_has_formed_needs_no_more_descriptors";
    if part().is_some() {
        let comm = connect();
        let _taken = take_all_descriptors();
        let options = CallOptions::default();
        let mut data = comm.alloc::<f32>(100_000).expect("memory");
        data.fill(1.0);
        comm.all_reduce(&mut data, Reduction::Sum, &options).expect("a sum");
        let pair = comm.split((comm.rank() != 2).then_some(0), 0).expect("a split");
        if let Some(pair) = &pair {
            pair.all_reduce(&mut [1f32; 10], Reduction::Sum, &options).expect("a sum of two");
        }
        let pending = comm.start_all_reduce_copy(&[1f32; 1000], Reduction::Sum, &options).expect("a copy");
        assert_eq!(pending.wait().expect("a sum in the background")[0], RANKS as f32);
        eprintln!("all sums are here");
        if comm.rank() == ODD {
            // Others may still be in the call that this rank is through.
            wait_for_release();
            // As if killed: without a goodbye.
            std::process::exit(9);
        }
        return report(&comm, &until_it_fails(&comm, 1000));
    }
    for transport in TRANSPORTS {
        let mut ranks = start(TEST, "call", transport, &[]);
        (0..RANKS).for_each(|rank| ranks.wait_until(rank, LIMIT, "all sums are here"));
        ranks.release(ODD);
        let said = ranks.end_within(LIMIT, &[0, 2]);
        for survivor in [0, 2] {
            let line = reported(&said[survivor], Cause::PeerLost);
            assert!(line.starts_with("PeerLost of rank 1: "), "{transport}, rank {survivor}: {line}");
        }
    }
}

#[test]
fn a_rank_without_memory_to_share_is_to_blame_itself() {
    const TEST: &str = "a_rank_without_memory_to_share_is_to_blame_itself";
    const BYTES: usize = 8 << 20;
    if part().is_some() {
        let comm = connect();
        let options = CallOptions::default();
        // Its first frames have filled the first pages of each ring.
        comm.barrier(&options).expect("nothing has failed");
        if comm.rank() == ODD {
            // The progress thread's, too.
            refuse_memory(Whom::Process).expect("a filter");
            // No buffer: nothing has failed.
            let error = comm.alloc::<u8>(BYTES).unwrap_err();
            let text = error.to_string();
            assert!(matches!(error, CommError::Memory { rank: ODD, bytes: BYTES, .. }), "{text}");
            assert!(text.contains("no memory for") && text.contains("memory limit"), "{text}");
        }
        comm.barrier(&options).expect("nothing has failed");
        eprintln!("nothing has failed yet");
        // Others may still be in the barrier that this rank is through.
        wait_for_release();
        // No ring: from its root the data goes through rings that it has not filled yet.
        let error = match comm.broadcast(&mut vec![1u8; BYTES], ODD, &options) {
            Err(error) => error,
            Ok(()) => comm.barrier(&options).unwrap_err(),
        };
        return report(&comm, &error);
    }
    let mut ranks = start(TEST, "share", TransportChoice::Shm, &[]);
    (0..RANKS).for_each(|rank| ranks.wait_until(rank, LIMIT, "nothing has failed yet"));
    (0..RANKS).for_each(|rank| ranks.release(rank));
    let said = ranks.end_within(LIMIT, &[0, 1, 2]);
    let own = reported(&said[ODD], Cause::Cancelled);
    assert!(own.starts_with("Cancelled of nobody: ") && own.contains("taking memory for a ring"), "{own}");
    assert!(own.contains("raise the memory limit"), "{own}");
    for rank in [0, 2] {
        // The words may have had no room either; then the connection has been closed.
        let blames = |line: &&str| line.contains(" of rank 1: ") && line.contains("broadcast");
        assert!(said[rank].lines().any(|line| blames(&line)), "rank {rank}: {}", said[rank]);
    }
}

#[test]
fn an_abort_of_the_program_is_known_as_such_to_each_rank() {
    const TEST: &str = "an_abort_of_the_program_is_known_as_such_to_each_rank";
    if part().is_some() {
        let comm = connect();
        if comm.rank() == ODD {
            comm.abort("it has seen enough");
        }
        let error = until_it_fails(&comm, 1000);
        if let CommError::Failed { failure, .. } = &error {
            let abort =
                matches!(&**failure, Failure::Aborted { rank: ODD, culprit: ODD, .. } | Failure::Cancelled { .. });
            assert!(abort, "{failure:?}");
        }
        return report(&comm, &error);
    }
    let said = start(TEST, "call", TransportChoice::Auto, &[]).end_within(LIMIT, &[0, 1, 2]);
    for (rank, said) in said.iter().enumerate() {
        let line = reported(said, Cause::Cancelled);
        let blames = if rank == ODD { "Cancelled of nobody: " } else { "Cancelled of rank 1: " };
        assert!(line.starts_with(blames) && line.contains("it has seen enough"), "{line}");
    }
}
