//! Every collective, algorithm, world size, length and type, over the links of a world of threads.

mod support;

use half::{bf16, f16};
use paceline_collective::registry::of_kind;
use paceline_comm::{CallOptions, CollectiveKind, Communicator, Element, Reduction};
use support::{LINKS, Links, on_all_ranks};

const WORLDS: [usize; 7] = [1, 2, 3, 4, 5, 8, 13];
const LENGTHS: [usize; 6] = [0, 1, 4, 7, 1000, 12_345];

fn cases() -> impl Iterator<Item = (Links, usize)> {
    let all = LINKS.into_iter().flat_map(|links| WORLDS.map(|world| (links, world)));
    // Where every message is a nap, or every pair of ranks shakes hands, few ranks must do.
    let few = |links| matches!(links, Links::Emulated | Links::Encrypted);
    all.filter(move |&(links, world)| !few(links) || world <= 4)
}

/// Tiles of 512 bytes: small data reaches the many-tile path.
fn options(algorithm: &str) -> CallOptions {
    CallOptions { chunk_bytes: Some(512), ..CallOptions::algorithm(algorithm) }
}

fn value(rank: usize, index: usize) -> i64 {
    (rank as i64 * 31 + index as i64 * 7) % 101 - 50
}

fn algorithms(kind: CollectiveKind) -> Vec<&'static str> {
    of_kind(kind).map(|algorithm| algorithm.name()).collect()
}

#[test]
fn all_reduce_gives_the_sum_to_everyone() {
    for (links, world) in cases() {
        on_all_ranks(links, world, move |comm| {
            for algorithm in algorithms(CollectiveKind::AllReduce) {
                for length in LENGTHS {
                    let mine: Vec<i64> = (0..length).map(|index| value(comm.rank(), index)).collect();
                    let sum = |index| (0..world).map(|rank| value(rank, index)).sum::<i64>();
                    let mut output = vec![0; length];
                    comm.all_reduce_into(&mine, &mut output, Reduction::Sum, &options(algorithm)).unwrap();
                    assert!((0..length).all(|index| output[index] == sum(index)), "{algorithm} {world} {length}");
                    let mut data = mine;
                    comm.all_reduce(&mut data, Reduction::Sum, &options(algorithm)).unwrap();
                    assert_eq!(data, output, "{algorithm} in place, {world} ranks, {length} elements");
                }
            }
        });
    }
}

#[test]
fn reduce_scatter_and_all_gather_invert_each_other() {
    for (links, world) in cases() {
        on_all_ranks(links, world, move |comm| {
            for length in LENGTHS {
                for scatter in algorithms(CollectiveKind::ReduceScatter) {
                    let mine: Vec<i32> = (0..length * world).map(|index| value(comm.rank(), index) as i32).collect();
                    let mut block = vec![0; length];
                    comm.reduce_scatter(&mine, &mut block, Reduction::Sum, &options(scatter)).unwrap();
                    for gather in algorithms(CollectiveKind::AllGather) {
                        let mut all = vec![0; length * world];
                        comm.all_gather(&block, &mut all, &options(gather)).unwrap();
                        let sum = |index| (0..world).map(|rank| value(rank, index) as i32).sum::<i32>();
                        let right = (0..length * world).all(|index| all[index] == sum(index));
                        assert!(right, "{scatter}, {gather}, {world} ranks, {length} elements");
                    }
                }
            }
        });
    }
}

#[test]
fn rooted_collectives_reach_every_root() {
    for (links, world) in cases() {
        on_all_ranks(links, world, move |comm| {
            let me = comm.rank();
            for root in [0, world / 2, world - 1] {
                for length in [0, 1, 1000] {
                    rooted(&comm, me, root, length);
                }
            }
        });
    }
}

fn rooted(comm: &Communicator, me: usize, root: usize, length: usize) {
    let world = comm.world_size();
    for algorithm in algorithms(CollectiveKind::Broadcast) {
        let mut data: Vec<i64> = (0..length).map(|index| value(me, index)).collect();
        comm.broadcast(&mut data, root, &options(algorithm)).unwrap();
        assert!((0..length).all(|index| data[index] == value(root, index)), "broadcast {algorithm}");
    }
    let mine: Vec<i64> = (0..length).map(|index| value(me, index)).collect();
    for algorithm in algorithms(CollectiveKind::Reduce) {
        let mut output = vec![0; if me == root { length } else { 0 }];
        comm.reduce(&mine, &mut output, root, Reduction::Max, &options(algorithm)).unwrap();
        let most = |index| (0..world).map(|rank| value(rank, index)).max();
        assert!(output.iter().enumerate().all(|(index, &got)| Some(got) == most(index)), "reduce {algorithm}");
    }
    for algorithm in algorithms(CollectiveKind::Gather) {
        let mut output = vec![0; if me == root { length * world } else { 0 }];
        comm.gather(&mine, &mut output, root, &options(algorithm)).unwrap();
        let right = |at: usize| value(at / length, at % length);
        assert!(output.iter().enumerate().all(|(at, &got)| got == right(at)), "gather {algorithm}");
    }
    for algorithm in algorithms(CollectiveKind::Scatter) {
        let all: Vec<i64> = (0..if me == root { length * world } else { 0 }).map(|at| value(root, at)).collect();
        let mut output = vec![0; length];
        comm.scatter(&all, &mut output, root, &options(algorithm)).unwrap();
        let right = |index| value(root, me * length + index);
        assert!((0..length).all(|index| output[index] == right(index)), "scatter {algorithm}");
    }
}

#[test]
fn all_to_all_transposes() {
    for (links, world) in cases() {
        on_all_ranks(links, world, move |comm| {
            for algorithm in algorithms(CollectiveKind::AllToAll) {
                for length in [0, 1, 300] {
                    let mine: Vec<i64> = (0..length * world).map(|at| value(comm.rank(), at)).collect();
                    let mut output = vec![0; length * world];
                    comm.all_to_all(&mine, &mut output, &options(algorithm)).unwrap();
                    let right = |at: usize| value(at / length, comm.rank() * length + at % length);
                    assert!(output.iter().enumerate().all(|(at, &got)| got == right(at)), "{algorithm}");
                }
            }
        });
    }
}

#[test]
fn every_type_and_reduction() {
    fn check<T: Element + PartialEq + std::fmt::Debug>(comm: &Communicator, make: impl Fn(f64) -> T) {
        let values: [(Reduction, f64); 5] = [
            (Reduction::Sum, 10.0),
            (Reduction::Average, 2.5),
            (Reduction::Min, 1.0),
            (Reduction::Max, 4.0),
            (Reduction::Product, 24.0),
        ];
        let mine = make(comm.rank() as f64 + 1.0);
        for (reduction, expected) in values {
            let expected = make(expected);
            let assert_all = |data: &[T], what: &str| {
                assert!(data.iter().all(|&got| got == expected), "{reduction} {what} {:?}", data.first());
            };
            for algorithm in algorithms(CollectiveKind::AllReduce) {
                let mut data = vec![mine; 1003];
                comm.all_reduce(&mut data, reduction, &options(algorithm)).unwrap();
                assert_all(&data, algorithm);
            }
            for algorithm in algorithms(CollectiveKind::ReduceScatter) {
                let mut block = [make(0.0); 203];
                comm.reduce_scatter(&[mine; 4 * 203], &mut block, reduction, &options(algorithm)).unwrap();
                assert_all(&block, &format!("reduce-scatter {algorithm}"));
            }
            for algorithm in algorithms(CollectiveKind::Reduce) {
                let mut output = vec![make(0.0); if comm.rank() == 2 { 203 } else { 0 }];
                comm.reduce(&[mine; 203], &mut output, 2, reduction, &options(algorithm)).unwrap();
                assert_all(&output, &format!("reduce {algorithm}"));
            }
        }
    }
    for links in LINKS {
        on_all_ranks(links, 4, |comm| {
            check::<f32>(&comm, |value| value as f32);
            check::<f64>(&comm, |value| value);
            check::<f16>(&comm, f16::from_f64);
            check::<bf16>(&comm, bf16::from_f64);
            check::<i32>(&comm, |value| value as i32);
            check::<i64>(&comm, |value| value as i64);
            check::<u8>(&comm, |value| value as u8);
        });
    }
}

/// What is only moved, in every type: each element tells whose it is, and where it belongs.
#[test]
fn every_type_is_moved_as_it_is() {
    for links in LINKS {
        on_all_ranks(links, 4, |comm| {
            moved::<f32>(&comm, f32::from);
            moved::<f64>(&comm, f64::from);
            moved::<f16>(&comm, f16::from);
            moved::<bf16>(&comm, bf16::from);
            moved::<i32>(&comm, i32::from);
            moved::<i64>(&comm, i64::from);
            moved::<u8>(&comm, |value| value);
        });
    }
}

fn moved<T: Element + PartialEq>(comm: &Communicator, make: impl Fn(u8) -> T) {
    const LENGTH: usize = 203;
    let (me, world, root) = (comm.rank(), comm.world_size(), 1);
    let block = |of: usize| -> Vec<T> { (0..LENGTH).map(|index| make(((of * 61 + index * 7) % 251) as u8)).collect() };
    let (mine, all): (Vec<T>, Vec<T>) = (block(me), (0..world).flat_map(block).collect());
    let nothing = |length| vec![make(255); length];
    let at_root = |length| if me == root { length } else { 0 };
    for algorithm in algorithms(CollectiveKind::AllGather) {
        let mut output = nothing(all.len());
        comm.all_gather(&mine, &mut output, &options(algorithm)).unwrap();
        assert!(output == all, "all-gather {algorithm} of {}", T::DATA_TYPE);
    }
    for algorithm in algorithms(CollectiveKind::Broadcast) {
        let mut data = if me == root { mine.clone() } else { nothing(LENGTH) };
        comm.broadcast(&mut data, root, &options(algorithm)).unwrap();
        assert!(data == block(root), "broadcast {algorithm} of {}", T::DATA_TYPE);
    }
    for algorithm in algorithms(CollectiveKind::Gather) {
        let mut output = nothing(at_root(all.len()));
        comm.gather(&mine, &mut output, root, &options(algorithm)).unwrap();
        assert!(output == all[..at_root(all.len())], "gather {algorithm} of {}", T::DATA_TYPE);
    }
    for algorithm in algorithms(CollectiveKind::Scatter) {
        let mut output = nothing(LENGTH);
        comm.scatter(&all[..at_root(all.len())], &mut output, root, &options(algorithm)).unwrap();
        assert!(output == mine, "scatter {algorithm} of {}", T::DATA_TYPE);
    }
    let (to_all, from_all): (Vec<T>, Vec<T>) = (
        (0..world).flat_map(|to| block(5 * me + to)).collect(),
        (0..world).flat_map(|from| block(5 * from + me)).collect(),
    );
    for algorithm in algorithms(CollectiveKind::AllToAll) {
        let mut output = nothing(all.len());
        comm.all_to_all(&to_all, &mut output, &options(algorithm)).unwrap();
        assert!(output == from_all, "all-to-all {algorithm} of {}", T::DATA_TYPE);
    }
    let (mut passed, options) = (nothing(LENGTH), CallOptions::default());
    comm.group(|group| {
        group.send(&mine, (me + 1) % world, 3, &options)?;
        group.receive(&mut passed, (me + world - 1) % world, 3, &options)
    })
    .unwrap();
    assert!(passed == block((me + world - 1) % world), "send and receive of {}", T::DATA_TYPE);
    let counts = &[3, 0, LENGTH, 1][..world];
    let mut joined = nothing(counts.iter().sum());
    comm.all_gather_variable(&mine[..counts[me]], &mut joined, counts, &options).unwrap();
    let cut = |of: usize| block(of)[..counts[of]].to_vec();
    assert!(joined == (0..world).flat_map(cut).collect::<Vec<T>>(), "variable counts of {}", T::DATA_TYPE);
}

#[test]
fn messages_of_one_tag_keep_their_order() {
    for links in LINKS {
        on_all_ranks(links, 3, |comm| {
            let options = CallOptions::default();
            let (next, before) = ((comm.rank() + 1) % 3, (comm.rank() + 2) % 3);
            for round in 0..50u8 {
                // Rank 0 receives last, so that the ring of blocking sends cannot wait in a circle.
                let mut got = [0u8; 3];
                let mine = [comm.rank() as u8, round, 7];
                if comm.rank() == 0 {
                    comm.send(&mine, next, 5, &options).unwrap();
                    comm.receive(&mut got, before, 5, &options).unwrap();
                } else {
                    comm.receive(&mut got, before, 5, &options).unwrap();
                    comm.send(&mine, next, 5, &options).unwrap();
                }
                assert_eq!(got, [before as u8, round, 7]);
            }
        });
    }
}

#[test]
fn a_split_world_and_a_split_of_a_split() {
    for links in LINKS {
        on_all_ranks(links, 6, |comm| {
            let options = CallOptions::default();
            let halves = comm.split(Some(comm.rank() as u32 % 2), -(comm.rank() as i32)).unwrap().unwrap();
            assert_eq!(halves.world_size(), 3);
            assert_eq!(halves.rank(), 2 - comm.rank() / 2, "the key reverses the order");
            let mut sum = [comm.rank() as i64];
            halves.all_reduce(&mut sum, Reduction::Sum, &options).unwrap();
            assert_eq!(sum[0], if comm.rank() % 2 == 0 { 6 } else { 9 });
            let part = halves.split((halves.rank() < 2).then_some(0), 0).unwrap();
            assert_eq!(part.is_some(), halves.rank() < 2);
            if let Some(part) = part {
                let mut ones = [1i64];
                part.all_reduce(&mut ones, Reduction::Sum, &options).unwrap();
                assert_eq!(ones, [2]);
            }
            comm.barrier(&options).unwrap();
        });
    }
}

/// The ranks of a part are others than those of the world, in another order, and lie on the hosts in another way.
#[test]
fn every_collective_in_a_part_of_a_part() {
    for links in LINKS {
        on_all_ranks(links, 8, |comm| {
            let seven = comm.split((comm.rank() > 0).then_some(0), -(comm.rank() as i32)).unwrap();
            if let Some(seven) = seven {
                // Four of them, and three.
                let part = seven.split(Some(seven.rank() as u32 % 2), 0).unwrap().unwrap();
                assert_eq!(part.world_size(), if comm.rank() % 2 == 1 { 4 } else { 3 });
                (0..part.world_size()).for_each(|root| rooted(&part, part.rank(), root, 300));
                moved::<f16>(&part, f16::from);
                reduced(&part);
            }
            comm.barrier(&CallOptions::default()).unwrap();
        });
    }
}

fn reduced(comm: &Communicator) {
    let (me, world) = (comm.rank(), comm.world_size());
    let sum = |index| (0..world).map(|rank| value(rank, index)).sum::<i64>();
    let mine: Vec<i64> = (0..300 * world).map(|index| value(me, index)).collect();
    for algorithm in algorithms(CollectiveKind::AllReduce) {
        let mut data = mine.clone();
        comm.all_reduce(&mut data, Reduction::Sum, &options(algorithm)).unwrap();
        assert!((0..data.len()).all(|index| data[index] == sum(index)), "all-reduce {algorithm} of {world}");
    }
    for algorithm in algorithms(CollectiveKind::ReduceScatter) {
        let mut block = [0; 300];
        comm.reduce_scatter(&mine, &mut block, Reduction::Sum, &options(algorithm)).unwrap();
        assert!((0..300).all(|index| block[index] == sum(300 * me + index)), "reduce-scatter {algorithm} of {world}");
    }
}

#[test]
fn nobody_leaves_a_barrier_before_everybody_has_come() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    for links in LINKS {
        let come = Arc::new(AtomicUsize::new(0));
        on_all_ranks(links, 5, move |comm| {
            for round in 1..=20 {
                come.fetch_add(1, Ordering::SeqCst);
                comm.barrier(&CallOptions::default()).unwrap();
                assert_eq!(come.load(Ordering::SeqCst), 5 * round, "{links:?}");
                comm.barrier(&CallOptions::default()).unwrap();
            }
        });
    }
}

#[test]
fn the_measured_link_cost_is_the_same_everywhere_and_decides() {
    for links in LINKS {
        let costs = on_all_ranks(links, 3, |comm| {
            let cost = comm.probe().unwrap();
            assert_eq!(cost, comm.link_costs());
            let choose = |bytes| comm.choice(CollectiveKind::AllReduce, bytes, &CallOptions::default()).unwrap();
            (cost, choose(64), choose(64 << 20))
        });
        let (cost, ..) = costs[0];
        for cost in [cost.within, cost.across] {
            // However the threads were scheduled: who believes that messages cost nothing takes thousands of tiles.
            let least = cost.alpha.min(0.2e-6);
            assert!(least <= cost.overhead && cost.overhead <= cost.alpha && 0.0 < cost.alpha, "{cost:?}");
            assert!(cost.alpha < 1.0 && cost.beta > 0.0 && cost.gamma > 0.0, "{cost:?}");
        }
        assert!(costs.iter().all(|other| *other == costs[0]), "{costs:?}");
    }
}
