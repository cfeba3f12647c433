//! Operations in the background: overlap, order, forgotten handles, the same bits every time.

mod support;

use std::time::{Duration, Instant};

use paceline_comm::{Buffer, CallOptions, CommError, Communicator, Failure, Pending, Reduction};
use support::{LINKS, Links, on_all_ranks, random};

fn filled(comm: &Communicator, elements: usize, value: impl Fn(usize) -> f32) -> Buffer<f32> {
    let mut buffer = comm.alloc(elements).unwrap();
    buffer.iter_mut().enumerate().for_each(|(index, element)| *element = value(index));
    buffer
}

#[test]
fn many_operations_in_different_orders_on_different_ranks() {
    for links in LINKS {
        on_all_ranks(links, 4, |comm| {
            const OPERATIONS: usize = 200;
            let me = comm.rank();
            let mut order: Vec<usize> = (0..OPERATIONS).collect();
            let mut random = random(me as u64);
            for index in (1..OPERATIONS).rev() {
                order.swap(index, (random() * (index + 1) as f64) as usize);
            }
            let length = |operation: usize| [0, 1, 100, 5_000, 60_000][operation % 5];
            let start = |&operation: &usize| {
                let options = CallOptions { operation: Some(operation as u64), ..CallOptions::default() };
                let buffer = filled(&comm, length(operation), |index| (me + operation + index % 7) as f32);
                (operation, comm.start_all_reduce(buffer, Reduction::Sum, &options).unwrap())
            };
            let pending: Vec<_> = order.iter().map(start).collect();
            for (operation, pending) in pending {
                let result = pending.wait().unwrap();
                assert_eq!(result.len(), length(operation));
                let right = |index: usize| (6 + 4 * (operation + index % 7)) as f32;
                assert!(result.iter().enumerate().all(|(index, &got)| got == right(index)), "{operation}");
            }
        });
    }
}

#[test]
fn a_forgotten_handle_does_no_harm() {
    for links in LINKS {
        on_all_ranks(links, 3, |comm| {
            for round in 0..20 {
                let buffer = filled(&comm, 10_000, |index| index as f32);
                let pending = comm.start_all_reduce(buffer, Reduction::Sum, &CallOptions::default()).unwrap();
                if round % 2 == 0 {
                    drop(pending)
                } else {
                    std::mem::forget(pending)
                }
                // Whatever takes its place in memory must not be touched by the operation.
                let witness = filled(&comm, 10_000, |_| -1.0);
                comm.barrier(&CallOptions::default()).unwrap();
                assert!(witness.iter().all(|&element| element == -1.0));
            }
        });
    }
}

#[test]
fn pieces_of_one_buffer_are_reduced_on_their_own() {
    for links in LINKS {
        on_all_ranks(links, 2, |comm| {
            let lengths = [3, 0, 4096, 17];
            let whole = filled(&comm, lengths.iter().sum(), |index| index as f32);
            let pieces = whole.split(&lengths);
            let start = |piece| comm.start_all_reduce(piece, Reduction::Average, &CallOptions::default()).unwrap();
            let pending: Vec<_> = pieces.into_iter().map(start).collect();
            let mut expected = (0..).map(|index| index as f32);
            for pending in pending {
                for got in pending.wait().unwrap().iter() {
                    assert_eq!(Some(*got), expected.next());
                }
            }
        });
    }
}

#[test]
fn reduce_scatter_all_gather_and_broadcast_in_the_background() {
    for links in LINKS {
        on_all_ranks(links, 3, |comm| {
            let options = CallOptions::default();
            let input = filled(&comm, 3000, |index| (comm.rank() * 3000 + index) as f32);
            let block = comm.alloc(1000).unwrap();
            let block = comm.start_reduce_scatter(input, block, Reduction::Max, &options).unwrap().wait().unwrap();
            let all = comm.alloc(3000).unwrap();
            let all = comm.start_all_gather(block, all, &options).unwrap().wait().unwrap();
            assert!(all.iter().enumerate().all(|(index, &got)| got == (6000 + index) as f32));
            let data = filled(&comm, 50_000, |index| (comm.rank() + index) as f32);
            let data = comm.start_broadcast(data, 1, &options).unwrap().wait().unwrap();
            assert!(data.iter().enumerate().all(|(index, &got)| got == (1 + index) as f32));
            let copied = comm.start_all_reduce_copy(&[1.0f32; 9], Reduction::Sum, &options).unwrap().wait().unwrap();
            assert_eq!(copied[..], [3.0; 9]);
        });
    }
}

#[test]
fn every_other_collective_in_the_background() {
    for links in LINKS {
        on_all_ranks(links, 3, move |comm| {
            let (me, options) = (comm.rank(), CallOptions::default());
            let at_root = |elements| if me == 2 { elements } else { 0 };
            let mine = || filled(&comm, 3000, |index| (me * 3000 + index) as f32);
            let empty = |elements| comm.alloc::<f32>(elements).unwrap();
            let barrier = comm.start_barrier(&options).unwrap();
            let reduced = comm.start_reduce(mine(), empty(at_root(3000)), 2, Reduction::Min, &options).unwrap();
            let gathered = comm.start_gather(mine(), empty(at_root(9000)), 2, &options).unwrap();
            let whole = filled(&comm, at_root(9000), |index| index as f32);
            let scattered = comm.start_scatter(whole, empty(3000), 2, &options).unwrap();
            let transposed = comm.start_all_to_all(mine(), empty(3000), &options).unwrap();
            let received = comm.start_receive(empty(3000), (me + 2) % 3, 4, &options).unwrap();
            let sent = comm.start_send(mine(), (me + 1) % 3, 4, &options).unwrap();
            let is = |buffer: Buffer<f32>, elements: usize, right: &dyn Fn(usize) -> usize| {
                assert_eq!(buffer.len(), elements);
                assert!(buffer.iter().enumerate().all(|(index, &got)| got == right(index) as f32), "{links:?}");
            };
            is(reduced.wait().unwrap(), at_root(3000), &|index| index);
            is(gathered.wait().unwrap(), at_root(9000), &|index| index);
            is(scattered.wait().unwrap(), 3000, &|index| me * 3000 + index);
            is(transposed.wait().unwrap(), 3000, &|index| index / 1000 * 3000 + me * 1000 + index % 1000);
            is(received.wait().unwrap(), 3000, &|index| (me + 2) % 3 * 3000 + index);
            is(sent.wait().unwrap(), 3000, &|index| me * 3000 + index);
            barrier.wait().unwrap();
        });
    }
}

#[test]
fn waiting_can_end_before_the_operation_does() {
    on_all_ranks(Links::Memory, 2, |comm| {
        let options = CallOptions::default();
        if comm.rank() == 0 {
            let pending = comm.start_all_reduce_copy(&[1.0f32; 100], Reduction::Sum, &options).unwrap();
            let error = pending.wait_timeout(Duration::from_millis(30)).unwrap_err();
            assert!(matches!(error, CommError::NotDone { rank: 0, .. }), "{error}");
            assert!(!pending.is_done());
            comm.send(&[0u8], 1, 0, &options).unwrap();
            assert_eq!(pending.wait().unwrap()[..], [2.0; 100]);
        } else {
            comm.receive(&mut [0u8], 0, 0, &options).unwrap();
            comm.start_all_reduce_copy(&[1.0f32; 100], Reduction::Sum, &options).unwrap().wait().unwrap();
        }
    });
}

/// The sum of floating-point numbers depends on the order of the additions: it must not depend on who comes first.
#[test]
fn the_same_bits_whatever_the_arrival_order() {
    let given = std::env::var("PACELINE_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = given.unwrap_or_else(|| u64::from(std::process::id()));
    println!("PACELINE_TEST_SEED={seed}");
    for links in LINKS {
        for algorithm in ["ring", "direct", "direct-scatter", "halving-doubling", "recursive-doubling", "binary-tree"] {
            let run = |round: u64| {
                on_all_ranks(links, 5, move |comm| {
                    let mut values = random(comm.rank() as u64 + 1);
                    let mut delays = random(seed + round * 100 + comm.rank() as u64);
                    let mut data: Vec<f32> = (0..5000).map(|_| (values() as f32 - 0.5) * 1e3).collect();
                    let options = CallOptions { chunk_bytes: Some(2048), ..CallOptions::algorithm(algorithm) };
                    std::thread::sleep(Duration::from_micros((delays() * 3000.0) as u64));
                    comm.all_reduce(&mut data, Reduction::Sum, &options).unwrap();
                    data.iter().map(|value| value.to_bits()).collect::<Vec<u32>>()
                })
            };
            let first = run(0);
            for round in 1..3 {
                let again = run(round);
                assert!(again.iter().all(|rank| *rank == first[0]), "{algorithm} over {links:?}, seed {seed}");
            }
        }
    }
}

#[test]
fn several_threads_of_one_rank() {
    for links in LINKS {
        on_all_ranks(links, 3, |comm| {
            std::thread::scope(|scope| {
                for thread in 0..4u64 {
                    let comm = &comm;
                    scope.spawn(move || {
                        for round in 0..50 {
                            let operation = Some(thread * 1000 + round);
                            let options = CallOptions { operation, ..CallOptions::default() };
                            let mut data = [thread as i64 + comm.rank() as i64; 33];
                            comm.all_reduce(&mut data, Reduction::Sum, &options).unwrap();
                            assert_eq!(data, [3 * thread as i64 + 3; 33]);
                        }
                    });
                }
            });
        });
    }
}

#[test]
fn abort_ends_what_is_pending_everywhere() {
    for links in LINKS {
        let errors = on_all_ranks(links, 3, |comm| {
            if comm.rank() == 2 {
                std::thread::sleep(Duration::from_millis(30));
                comm.abort("enough");
            }
            comm.all_reduce(&mut [0f32; 100_000], Reduction::Sum, &CallOptions::default()).unwrap_err()
        });
        for (rank, error) in errors.iter().enumerate() {
            let CommError::Failed { failure, .. } = error else { panic!("{error}") };
            match &**failure {
                Failure::Cancelled { reason } if rank == 2 => assert!(reason.contains("enough")),
                Failure::Aborted { rank: 2, reason, .. } => assert!(reason.contains("enough"), "{reason}"),
                // The reason can be lost where the link was full; the loss is noticed all the same.
                Failure::PeerLost { .. } | Failure::Aborted { .. } => {}
                other => panic!("rank {rank}: {other}"),
            }
        }
    }
}

/// A parked thread may also wake for nothing, so what counts is that it wakes at all, long before it would by itself.
fn park_until_done(pending: &Pending<f32>) {
    const LONG: Duration = Duration::from_secs(20);
    let until = Instant::now() + LONG;
    while !pending.is_done() && Instant::now() < until {
        std::thread::park_timeout(LONG);
    }
    assert!(Instant::now() < until, "nobody woke the thread");
}

#[test]
fn a_parked_thread_is_woken_when_an_operation_has_ended() {
    on_all_ranks(Links::Memory, 2, |comm| {
        let wake = comm.wake_at_ends(std::thread::current());
        let pending =
            comm.start_all_reduce(filled(&comm, 8, |_| 1.0), Reduction::Sum, &CallOptions::default()).unwrap();
        park_until_done(&pending);
        assert_eq!(**pending.wait().as_ref().unwrap(), [2.0; 8]);
        drop(wake);
    });
}

/// As a server's thread that asks for itself, within one that has asked already.
#[test]
fn whoever_asked_twice_is_woken_until_both_are_dropped() {
    on_all_ranks(Links::Memory, 2, |comm| {
        let kept = comm.wake_at_ends(std::thread::current());
        drop(comm.wake_at_ends(std::thread::current()));
        // What was said of operations before must not be what wakes the thread.
        comm.barrier(&CallOptions::default()).unwrap();
        if comm.rank() == 1 {
            std::thread::sleep(Duration::from_millis(20));
        }
        let pending =
            comm.start_all_reduce(filled(&comm, 8, |_| 1.0), Reduction::Sum, &CallOptions::default()).unwrap();
        park_until_done(&pending);
        drop(kept);
    });
}

#[test]
fn traffic_counts_what_a_rank_sends() {
    for links in LINKS {
        let sent = on_all_ranks(links, 3, |comm| {
            let before = comm.traffic();
            let mut data = vec![1.0f32; 3 << 20];
            let options = CallOptions { chunk_bytes: Some(1 << 20), ..CallOptions::algorithm("ring") };
            comm.all_reduce(&mut data, Reduction::Sum, &options).unwrap();
            comm.traffic().since(&before)
        });
        // A ring passes on two thirds twice, in each of its tiles; ranks differ where a tile is not a multiple of three.
        assert_eq!(sent.iter().map(|sent| sent.bytes).sum::<u64>(), 4 * (12 << 20), "{links:?}: {sent:?}");
        assert!(sent.iter().all(|sent| sent.messages >= 4 && sent.messages % 4 == 0), "{links:?}: {sent:?}");
    }
}
