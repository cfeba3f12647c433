//! Several threads on one communicator and on different ones; splits of splits; abort while others wait.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use paceline_comm::{CallOptions, CommError, Communicator, Failure, Reduction};
use support::{LINKS, Links, on_all_ranks};

fn sum_of_ranks(comm: &Communicator, elements: usize, options: &CallOptions) -> i64 {
    let mut data = vec![comm.rank() as i64; elements];
    comm.all_reduce(&mut data, Reduction::Sum, options).unwrap();
    assert!(data.iter().all(|&got| got == data[0]));
    data[0]
}

#[test]
fn threads_with_operation_ids_on_one_communicator() {
    for links in LINKS {
        on_all_ranks(links, 4, move |comm| {
            std::thread::scope(|scope| {
                for thread in 0..4u64 {
                    let comm = &comm;
                    scope.spawn(move || {
                        // Each rank goes through its ids in another order.
                        let start = |round: u64| {
                            let id = thread * 1000 + (round + 7 * comm.rank() as u64) % 25;
                            let options = CallOptions { operation: Some(id), ..CallOptions::default() };
                            (id, comm.start_all_reduce_copy(&[id as i64; 40], Reduction::Sum, &options).unwrap())
                        };
                        for (id, pending) in (0..25).map(start).collect::<Vec<_>>() {
                            assert_eq!(pending.wait().unwrap()[..], [4 * id as i64; 40]);
                        }
                    });
                }
            });
        });
    }
}

/// What is in flight at once is more than a rank makes copies of for its peers: the rest is read where it lies.
#[test]
fn threads_with_more_in_flight_than_is_staged() {
    for links in [Links::SharedMemory, Links::Mixed] {
        on_all_ranks(links, 3, move |comm| {
            std::thread::scope(|scope| {
                for thread in 0..6u64 {
                    let comm = &comm;
                    scope.spawn(move || {
                        for round in 0..4 {
                            let options =
                                CallOptions { operation: Some(10 * thread + round), ..CallOptions::default() };
                            let elements = [400_000, 7_000, 1_300_000, 40_000][((thread + round) % 4) as usize];
                            let value = |rank: i64, index: usize| rank * 1_000_003 + index as i64 * (thread as i64 + 1);
                            let mine: Vec<i64> = (0..elements).map(|index| value(comm.rank() as i64, index)).collect();
                            let mut sum = vec![0i64; elements];
                            comm.all_reduce_into(&mine, &mut sum, Reduction::Sum, &options).unwrap();
                            let right = |index: usize| (0..3).map(|rank| value(rank, index)).sum::<i64>();
                            assert!(sum.iter().enumerate().all(|(index, &got)| got == right(index)), "{links:?}");
                        }
                    });
                }
            });
        });
    }
}

#[test]
fn threads_on_different_sub_communicators() {
    for links in LINKS {
        on_all_ranks(links, 4, move |comm| {
            // A communicator of the same ranks for each thread: each has its own sequence of calls.
            let copies: Vec<_> = (0..3).map(|_| comm.split(Some(0), 0).unwrap().unwrap()).collect();
            std::thread::scope(|scope| {
                for (thread, copy) in copies.iter().enumerate() {
                    scope.spawn(move || {
                        for round in 0..30 {
                            let elements = 1 + (thread * 5000 + round * 131) % 20_000;
                            assert_eq!(sum_of_ranks(copy, elements, &CallOptions::default()), 6);
                        }
                    });
                }
            });
        });
    }
}

#[test]
fn splits_of_splits_of_splits() {
    for links in LINKS {
        on_all_ranks(links, 8, move |comm| {
            let options = CallOptions::default();
            let mut part = comm.clone();
            for level in 0..3 {
                let half = (part.rank() * 2 / part.world_size()) as u32;
                part = part.split(Some(half), 0).unwrap().unwrap();
                assert_eq!(part.world_size(), 4 >> level);
                let ranks = part.world_size() as i64;
                assert_eq!(sum_of_ranks(&part, 1000, &options), ranks * (ranks - 1) / 2);
            }
            // The ancestors still work, and messages within a part use its ranks.
            let pair = comm.split(Some(comm.rank() as u32 / 2), -(comm.rank() as i32)).unwrap().unwrap();
            let (mine, mut theirs) = ([comm.rank() as u8], [0u8]);
            let peer = 1 - pair.rank();
            pair.group(|group| {
                group.send(&mine, peer, 0, &options)?;
                group.receive(&mut theirs, peer, 0, &options)
            })
            .unwrap();
            assert_eq!(theirs[0], mine[0] ^ 1);
            assert_eq!(sum_of_ranks(&comm, 10, &options), 28);
        });
    }
}

#[test]
fn abort_from_another_thread_ends_all_that_wait() {
    for links in LINKS {
        let (started, ready) = (Instant::now(), Arc::new(AtomicUsize::new(0)));
        on_all_ranks(links, 2, move |comm| {
            let part = comm.split(Some(0), 0).unwrap().unwrap();
            ready.fetch_add(1, Ordering::SeqCst);
            if comm.rank() == 1 {
                // Starts nothing, and learns of the end when it tries.
                let options = CallOptions { operation: Some(99), ..CallOptions::default() };
                return drop(comm.all_reduce(&mut [0u8; 8], Reduction::Sum, &options).unwrap_err());
            }
            std::thread::scope(|scope| {
                let wait = |comm: Communicator, id| {
                    scope.spawn(move || {
                        let options = CallOptions { operation: Some(id), ..CallOptions::default() };
                        comm.all_reduce(&mut [1f32; 50_000], Reduction::Sum, &options).unwrap_err()
                    })
                };
                let waiting = [wait(comm.clone(), 1), wait(comm.clone(), 2), wait(part.clone(), 1)];
                let pending = comm.start_all_reduce_copy(&[1f32; 9], Reduction::Sum, &CallOptions::default()).unwrap();
                std::thread::sleep(Duration::from_millis(20));
                // The other rank may still be in the split that this one is through: the abort must not meet it there.
                while ready.load(Ordering::SeqCst) < 2 && started.elapsed() < Duration::from_secs(40) {
                    std::thread::sleep(Duration::from_millis(1));
                }
                comm.abort("from elsewhere");
                let failed = waiting.map(|thread| thread.join().unwrap());
                for error in failed.into_iter().chain([pending.wait().unwrap_err()]) {
                    let CommError::Failed { failure, .. } = error else { panic!("{error}") };
                    assert!(matches!(&*failure, Failure::Cancelled { reason } if reason.contains("from elsewhere")));
                }
            });
        });
        // Long before the deadline of any of them.
        assert!(started.elapsed() < Duration::from_secs(60), "{links:?}: {:?}", started.elapsed());
    }
}
