//! Several communicators at once.

mod support;

use std::sync::Barrier;
use std::time::Duration;

use paceline_comm::{CallOptions, CollectiveKind, Reduction};
use support::{LINKS, Links, on_all_ranks};

#[test]
fn groups_that_are_split_at_the_same_time_do_not_get_in_each_others_way() {
    for links in LINKS {
        on_all_ranks(links, 3, |comm| {
            let parents = [0, 1].map(|_| comm.split(Some(0), 0).unwrap().unwrap());
            let together = Barrier::new(2);
            let options = CallOptions { timeout: Some(Duration::from_secs(20)), ..CallOptions::default() };
            std::thread::scope(|scope| {
                for (index, parent) in parents.iter().enumerate() {
                    let (together, options) = (&together, &options);
                    scope.spawn(move || {
                        for round in 0..20 {
                            together.wait();
                            let child = parent.split(Some(round), 0).unwrap().unwrap();
                            // Both children exist before either is used: with one number they would meet.
                            together.wait();
                            let mut data = vec![index as i64 + 1; 10 + index];
                            child.all_reduce(&mut data, Reduction::Sum, options).unwrap();
                            assert_eq!(data, vec![3 * (index as i64 + 1); 10 + index], "round {round}");
                        }
                    });
                }
            });
        });
    }
}

#[test]
fn every_group_of_a_split_has_a_number_of_its_own() {
    on_all_ranks(Links::Memory, 4, |comm| {
        let (rank, options) = (comm.rank(), CallOptions::default());
        let halves = comm.split(Some(rank as u32 % 2), -(rank as i32)).unwrap().unwrap();
        let none = comm.split((rank != 3).then_some(7), 0).unwrap();
        assert_eq!(none.map(|comm| comm.world_size()), (rank != 3).then_some(3));
        let quarters = halves.split(Some(rank as u32), 0).unwrap().unwrap();
        assert_eq!((halves.rank(), quarters.world_size()), (1 - rank / 2, 1));
        let mut data = [rank as i32];
        halves.all_reduce(&mut data, Reduction::Sum, &options).unwrap();
        quarters.all_reduce(&mut data, Reduction::Sum, &options).unwrap();
        assert_eq!(data, [2 * (rank as i32 % 2) + 2]);
    });
}

/// What a communicator remembers of its last calls must depend on all that their program depends on: each call differs from
/// the one before in one thing, and there are few enough that all of a length are remembered.
#[test]
fn calls_that_alternate_run_their_own_programs() {
    for links in [Links::Memory, Links::SharedMemory] {
        on_all_ranks(links, 3, move |comm| {
            let (rank, mine) = (comm.rank(), comm.rank() as i64 + 1);
            let options = CallOptions::default();
            for length in [5, 12, 5] {
                for root in [0, 1, 2, 0] {
                    let what = format!("{links:?}, root {root}, {length} elements");
                    let mut told = vec![if rank == root { mine } else { 0 }; length];
                    comm.broadcast(&mut told, root, &options).unwrap();
                    assert_eq!(told, vec![root as i64 + 1; length], "{what}");
                    let mut sum = vec![0; if rank == root { length } else { 0 }];
                    comm.reduce(&vec![mine; length], &mut sum, root, Reduction::Sum, &options).unwrap();
                    assert!(sum.iter().all(|&sum| sum == 6), "{what}: {sum:?}");
                }
            }
            comm.record_calls(2);
            for round in 0..2 {
                for (length, chunk_bytes) in [(5, None), (12, None), (12, Some(16)), (12, None), (70_000, None)] {
                    let options = CallOptions { chunk_bytes, ..CallOptions::default() };
                    let (mut data, mut apart) = (vec![mine; length], vec![0; length]);
                    comm.all_reduce_into(&data, &mut apart, Reduction::Sum, &options).unwrap();
                    comm.all_reduce(&mut data, Reduction::Sum, &options).unwrap();
                    assert!(
                        data.iter().chain(&apart).all(|&sum| sum == 6),
                        "{links:?}, {chunk_bytes:?}, round {round}"
                    );
                    let right = comm.choice(CollectiveKind::AllReduce, 8 * length, &options).unwrap();
                    let calls = comm.take_records().calls;
                    let found: Vec<_> = calls.iter().map(|call| (call.algorithm, call.chunk_bytes)).collect();
                    assert_eq!(found, [right; 2], "{links:?}, {length} elements, round {round}");
                }
                // From here on other costs decide.
                comm.probe().unwrap();
                comm.take_records();
            }
        });
    }
}
