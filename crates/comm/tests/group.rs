//! Grouped calls: no order among them, nothing started if one is wrong.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use paceline_comm::{CallOptions, CommError, Reduction};
use support::{LINKS, Links, on_all_ranks};

#[test]
fn a_ring_of_large_messages_needs_no_order() {
    for links in LINKS {
        on_all_ranks(links, 4, move |comm| {
            let (me, options) = (comm.rank(), CallOptions::default());
            let (next, before) = ((me + 1) % 4, (me + 3) % 4);
            // Far more than any link pools: blocking sends would wait in a circle.
            let mine = vec![me as i32; 2_000_000];
            let (mut theirs, mut sum, mut gathered) = (vec![-1; mine.len()], vec![1i64; 1000], [0u8; 4]);
            let byte = [me as u8];
            comm.group(|group| {
                group.send(&mine, next, 3, &options)?;
                group.all_reduce(&mut sum, Reduction::Sum, &options)?;
                group.receive(&mut theirs, before, 3, &options)?;
                group.all_gather(&byte, &mut gathered, &options)
            })
            .unwrap();
            assert!(theirs.iter().all(|&got| got == before as i32), "{links:?}");
            assert!(sum.iter().all(|&got| got == 4));
            assert_eq!(gathered, [0, 1, 2, 3]);
        });
    }
}

#[test]
fn every_collective_can_be_grouped() {
    for links in [Links::Memory, Links::Mixed] {
        on_all_ranks(links, 3, move |comm| {
            let (me, options) = (comm.rank(), CallOptions::default());
            let mine = [me as i64 + 1; 3];
            let (mut block, mut data, mut transposed) = ([0i64], mine, [0i64; 3]);
            let mut greatest = [0i64; 3];
            let at_root = |length| if me == 2 { length } else { 0 };
            let (mut reduced, mut gathered, mut scattered) = (vec![0i64; at_root(3)], vec![0; at_root(3)], [0i64]);
            let whole = [7i64, 8, 9];
            comm.group(|group| {
                group.all_reduce_into(&mine, &mut greatest, Reduction::Max, &options)?;
                group.reduce_scatter(&mine, &mut block, Reduction::Sum, &options)?;
                group.broadcast(&mut data, 1, &options)?;
                group.reduce(&mine, &mut reduced, 2, Reduction::Product, &options)?;
                group.gather(&mine[..1], &mut gathered, 2, &options)?;
                group.scatter(&whole[..at_root(3)], &mut scattered, 2, &options)?;
                group.all_to_all(&mine, &mut transposed, &options)
            })
            .unwrap();
            assert_eq!((block, data, transposed, scattered), ([6], [2; 3], [1, 2, 3], [7 + me as i64]));
            assert_eq!((mine, greatest), ([me as i64 + 1; 3], [3; 3]));
            assert!(reduced == vec![6; at_root(3)] && gathered == [1, 2, 3][..at_root(3)]);
        });
    }
}

fn value(rank: usize, index: usize) -> i32 {
    (rank * 31 + index * 7) as i32 % 1009
}

/// Elements of a rank's block, or from one rank to another: little, nothing, or more than goes eagerly.
fn length(number: usize) -> usize {
    [3, 0, 40_000, 1][number % 4]
}

#[test]
fn every_collective_with_variable_counts_can_be_grouped() {
    for (links, world) in LINKS.into_iter().flat_map(|links| [1, 2, 3, 7].map(|world| (links, world))) {
        on_all_ranks(links, world, move |comm| {
            let (me, root, options) = (comm.rank(), world - 1, CallOptions::default());
            let counts: Vec<usize> = (0..world).map(length).collect();
            let block = |rank: usize| (0..counts[rank]).map(move |index| value(rank, index));
            let (all, mine): (Vec<i32>, Vec<i32>) = ((0..world).flat_map(block).collect(), block(me).collect());
            let whole = if me == root { &all[..] } else { &[] };
            let (into, from): (Vec<usize>, Vec<usize>) = (
                (0..world).map(|to| length(3 * me + to)).collect(),
                (0..world).map(|of| length(3 * of + me)).collect(),
            );
            let pair = |of: usize, to: usize| (0..length(3 * of + to)).map(move |index| value(10 * of + to, index));
            let out: Vec<i32> = (0..world).flat_map(|to| pair(me, to)).collect();
            let (mut gathered, mut at_root) = (vec![-1; all.len()], vec![-1; whole.len()]);
            let (mut reduced, mut scattered) = (vec![-1; mine.len()], vec![-1; mine.len()]);
            let mut received = vec![-1; from.iter().sum()];
            comm.group(|group| {
                group.all_gather_variable(&mine, &mut gathered, &counts, &options)?;
                group.reduce_scatter_variable(&all, &mut reduced, &counts, Reduction::Sum, &options)?;
                group.gather_variable(&mine, &mut at_root, &counts, root, &options)?;
                group.scatter_variable(whole, &mut scattered, &counts, root, &options)?;
                group.barrier(&options)?;
                group.all_to_all_variable(&out, &into, &mut received, &from, &options)
            })
            .unwrap();
            let what = format!("{links:?}, {world} ranks");
            assert!(gathered == all && at_root == whole && scattered == mine, "{what}");
            assert!(reduced.iter().zip(&mine).all(|(sum, one)| *sum == one * world as i32), "{what}");
            assert!(received.into_iter().eq((0..world).flat_map(|of| pair(of, me))), "{what}");
        });
    }
}

#[test]
fn a_barrier_in_a_group_waits_for_all_ranks_and_holds_nothing_else_up() {
    for links in LINKS {
        let came = Arc::new(AtomicUsize::new(0));
        on_all_ranks(links, 3, move |comm| {
            // If it held up what stands behind it, the ranks would wait for each other until this deadline.
            let options = CallOptions { timeout: Some(Duration::from_secs(20)), ..CallOptions::default() };
            let mut word = [0u8; 5];
            if comm.rank() == 2 {
                comm.receive(&mut word, 0, 0, &options).unwrap();
                assert_eq!(&word, b"hello");
                came.fetch_add(1, Ordering::SeqCst);
                comm.barrier(&options).unwrap();
            } else {
                came.fetch_add(1, Ordering::SeqCst);
                comm.group(|group| {
                    group.barrier(&options)?;
                    if comm.rank() == 0 { group.send(b"hello", 2, 0, &options) } else { Ok(()) }
                })
                .unwrap();
            }
            assert_eq!(came.load(Ordering::SeqCst), 3, "{links:?}");
        });
    }
}

#[test]
fn an_error_while_building_starts_nothing() {
    on_all_ranks(Links::Memory, 2, move |comm| {
        let options = CallOptions::default();
        let (mut one, mut other) = ([1i32; 4], [1i32; 4]);
        let error = comm
            .group(|group| {
                group.all_reduce(&mut one, Reduction::Sum, &options)?;
                group.broadcast(&mut other, 9, &options)
            })
            .unwrap_err();
        assert!(matches!(error, CommError::Usage { .. }), "{error}");
        let error = comm
            .group(|group| {
                group.barrier(&options)?;
                group.all_gather_variable(&[7], &mut one, &[1, 1], &options)
            })
            .unwrap_err();
        assert!(error.to_string().contains("the output has 4 elements, but 2 by the counts"), "{error}");
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _ = comm.group(|group| {
                group.all_reduce(&mut one, Reduction::Sum, &options)?;
                panic!("in the middle of a group")
            });
        }));
        assert!(panicked.is_err());
        // Rank 1 made no other calls than rank 0: sequence numbers still agree.
        if comm.rank() == 0 {
            assert!(comm.group(|group| group.send(&[0u8], 0, 0, &options)).is_err());
        }
        comm.all_reduce(&mut other, Reduction::Sum, &options).unwrap();
        assert_eq!((one, other), ([1; 4], [2; 4]));
    });
}

#[test]
fn an_empty_group_is_done() {
    on_all_ranks(Links::Memory, 2, |comm| comm.group(|_| Ok(())).unwrap());
}
