//! Push and pull: what everybody gets is the sum from left to right, or host after host, to the bit, whatever arrives first.

mod support;

use std::time::Duration;

use half::{bf16, f16};
use paceline_comm::{CallOptions, CollectiveKind, CommError, Communicator, Element, Reduction};
use support::{LINKS, Links, on_all_ranks, random};

/// Tiles of 512 bytes: small data reaches the many-tile path.
fn options() -> CallOptions {
    CallOptions { chunk_bytes: Some(512), ..CallOptions::algorithm("direct") }
}

/// Numbers whose sum depends on the order of the additions.
fn value(rank: usize, index: usize) -> f32 {
    let number = (rank * 7919 + index * 104_729) % 10_007;
    (number as f32 - 5000.0) * 1.37e-3 * 10f32.powi((number % 9) as i32 - 4)
}

/// The contributions of all ranks but the root, added one after the other.
fn sum(world: usize, root: usize, index: usize) -> f32 {
    let contributions = (0..world).filter(|&rank| rank != root).map(|rank| value(rank, index));
    contributions.reduce(|sum, value| sum + value).expect("somebody contributes")
}

fn contribution(comm: &Communicator, length: usize) -> Vec<f32> {
    (0..length).map(|index| value(comm.rank(), index)).collect()
}

fn assert_is_sum(data: &[f32], world: usize, root: usize, what: &str) {
    let wrong = (0..data.len()).find(|&index| data[index].to_bits() != sum(world, root, index).to_bits());
    assert_eq!(wrong, None, "{what}: {world} ranks, root {root}, {} elements", data.len());
}

#[test]
fn every_rank_gets_the_sum_in_rank_order_over_every_link() {
    for links in LINKS {
        for world in [2, 3, 4, 5, 8] {
            on_all_ranks(links, world, move |comm| {
                for root in [0, world / 2, world - 1] {
                    for length in [0, 1, 1000, 12_345, 70_000] {
                        // Tiles as the cost model has them, and small ones where those are not too many.
                        let tilings = [CallOptions::algorithm("direct"), options()];
                        for options in tilings.into_iter().take(if length > 20_000 { 1 } else { 2 }) {
                            let mine = contribution(&comm, length);
                            let mut data = if comm.rank() == root { vec![f32::NAN; length] } else { mine.clone() };
                            comm.push_pull(&mut data, root, Reduction::Sum, &options).unwrap();
                            assert_is_sum(&data, world, root, "in place");
                            let mut output = vec![f32::NAN; length];
                            let input = if comm.rank() == root { &[] } else { &mine[..] };
                            comm.push_pull_into(input, &mut output, root, Reduction::Sum, &options).unwrap();
                            assert_is_sum(&output, world, root, "out of place");
                            output.fill(f32::NAN);
                            output.truncate(if comm.rank() == root { length } else { 0 });
                            comm.push(input, &mut output, root, Reduction::Sum, &options).unwrap();
                            assert_is_sum(&output, world, root, "push");
                        }
                    }
                }
            });
        }
    }
}

/// The sums of the hosts, each in the order of its ranks, added in the order of the hosts.
fn sum_of_hosts(comm: &Communicator, root: usize, index: usize) -> f32 {
    let topology = comm.topology();
    let of_host = |host| {
        let ranks = topology.members(host).iter().filter(|&&rank| rank != root);
        ranks.map(|&rank| value(rank, index)).reduce(|sum, value| sum + value)
    };
    (0..topology.hosts()).filter_map(of_host).reduce(|sum, value| sum + value).expect("somebody contributes")
}

#[test]
fn hosts_add_up_before_they_push_over_every_link() {
    for links in LINKS {
        for world in [2, 3, 5, 8] {
            on_all_ranks(links, world, move |comm| {
                for (root, length) in [0, world / 2, world - 1].into_iter().flat_map(|root| [(root, 1), (root, 12_345)])
                {
                    let options = CallOptions { chunk_bytes: Some(4096), ..CallOptions::algorithm("hierarchical") };
                    let check = |data: &[f32], what: &str| {
                        let wrong =
                            |&index: &usize| data[index].to_bits() != sum_of_hosts(&comm, root, index).to_bits();
                        let what = format!("{what} over {links:?}: {world} ranks, root {root}, {length} elements");
                        assert_eq!((0..data.len()).find(wrong), None, "{what}");
                    };
                    let mine = contribution(&comm, length);
                    let mut data = if comm.rank() == root { vec![f32::NAN; length] } else { mine.clone() };
                    comm.push_pull(&mut data, root, Reduction::Sum, &options).unwrap();
                    check(&data, "in place");
                    let mut output = vec![f32::NAN; length];
                    let input = if comm.rank() == root { &[] } else { &mine[..] };
                    comm.push_pull_into(input, &mut output, root, Reduction::Sum, &options).unwrap();
                    check(&output, "out of place");
                    output.fill(f32::NAN);
                    output.truncate(if comm.rank() == root { length } else { 0 });
                    comm.push(input, &mut output, root, Reduction::Sum, &options).unwrap();
                    check(&output, "push");
                }
            });
        }
    }
}

#[test]
fn the_bits_do_not_depend_on_who_comes_first() {
    const SEED: u64 = 0x9a5e_11e5;
    println!("seed {SEED:#x}");
    for links in LINKS {
        on_all_ranks(links, 4, move |comm| {
            let mut random = random(SEED + comm.rank() as u64);
            for round in 0..12 {
                let root = round % 4;
                let length = [1, 300, 40_000][round % 3];
                std::thread::sleep(Duration::from_micros((random() * 3000.0) as u64));
                let mut data = contribution(&comm, length);
                comm.push_pull(&mut data, root, Reduction::Sum, &options()).unwrap();
                assert_is_sum(&data, 4, root, &format!("seed {SEED:#x}, {links:?}, round {round}"));
            }
        });
    }
}

#[test]
fn every_type_and_reduction_leaves_the_root_out() {
    fn check<T: Element + PartialEq + std::fmt::Debug>(comm: &Communicator, make: impl Fn(f64) -> T) {
        // Ranks 0, 1 and 3 contribute 1, 2 and 3.
        let mine = if comm.rank() == 3 { 3.0 } else { comm.rank() as f64 + 1.0 };
        let expected: [(Reduction, f64); 5] = [
            (Reduction::Sum, 6.0),
            (Reduction::Average, 2.0),
            (Reduction::Min, 1.0),
            (Reduction::Max, 3.0),
            (Reduction::Product, 6.0),
        ];
        for (reduction, expected) in expected {
            let expected = make(expected);
            let assert_all = |data: &[T], what: &str| {
                assert!(data.iter().all(|&got| got == expected), "{what}, {reduction}: {:?}", data.first());
            };
            for algorithm in ["direct", "hierarchical"] {
                let options = CallOptions { algorithm: Some(algorithm.into()), ..options() };
                let mut data = vec![make(if comm.rank() == 2 { 100.0 } else { mine }); 1003];
                comm.push_pull(&mut data, 2, reduction, &options).unwrap();
                assert_all(&data, &format!("{algorithm} push and pull"));
                let input = vec![make(mine); if comm.rank() == 2 { 0 } else { 203 }];
                let mut output = vec![make(100.0); if comm.rank() == 2 { 203 } else { 0 }];
                comm.push(&input, &mut output, 2, reduction, &options).unwrap();
                assert_all(&output, &format!("{algorithm} push"));
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

/// As a shard and its workers use it: all partitions are open at the shard, and each worker starts them in an order of
/// its own.
#[test]
fn many_at_once_in_any_order() {
    const PARTITIONS: usize = 40;
    for links in LINKS {
        on_all_ranks(links, 4, move |comm| {
            let mut order: Vec<usize> = (0..PARTITIONS).collect();
            let mut random = random(comm.rank() as u64);
            for index in (1..PARTITIONS).rev() {
                order.swap(index, (random() * (index + 1) as f64) as usize);
            }
            let length = |partition: usize| [1, 100, 5_000, 60_000][partition % 4];
            let start = |&partition: &usize| {
                let options = CallOptions { operation: Some(partition as u64), ..CallOptions::default() };
                let mut buffer = comm.alloc(length(partition)).unwrap();
                buffer.copy_from_slice(&contribution(&comm, length(partition)));
                (partition, comm.start_push_pull(buffer, 3, Reduction::Sum, &options).unwrap())
            };
            let pending: Vec<_> = order.iter().map(start).collect();
            for (partition, pending) in pending {
                assert_is_sum(&pending.wait().unwrap(), 4, 3, &format!("{links:?}, partition {partition}"));
            }
        });
    }
}

/// Everyone's port carries what the formula says: a worker's S each way, the shard's (n−1)S.
#[test]
fn a_worker_sends_its_part_once_and_the_root_everybody_theirs() {
    for links in LINKS {
        on_all_ranks(links, 4, move |comm| {
            let length = 40_000;
            comm.barrier(&CallOptions::default()).unwrap();
            let before = comm.traffic();
            let mut data = contribution(&comm, length);
            comm.push_pull(&mut data, 1, Reduction::Sum, &options()).unwrap();
            let sent = comm.traffic().since(&before);
            let (bytes, tiles) = (4 * length as u64, (4 * length).div_ceil(512) as u64);
            let receivers = if comm.rank() == 1 { 3 } else { 1 };
            assert_eq!((sent.bytes, sent.messages), (receivers * bytes, receivers * tiles), "{links:?}");
        });
    }
}

#[test]
fn a_push_in_the_background_gives_each_its_buffer_back() {
    on_all_ranks(Links::Memory, 3, |comm| {
        let mut buffer = comm.alloc(500).unwrap();
        buffer.copy_from_slice(&contribution(&comm, 500));
        let pending = comm.start_push(buffer, 1, Reduction::Sum, &CallOptions::default()).unwrap();
        let buffer = pending.wait().unwrap();
        if comm.rank() == 1 {
            assert_is_sum(&buffer, 3, 1, "push");
        } else {
            assert_eq!(buffer[..], contribution(&comm, 500));
        }
    });
}

#[test]
fn in_a_group_a_shard_serves_while_workers_talk() {
    on_all_ranks(Links::Memory, 3, |comm| {
        let options = CallOptions::default();
        let mine = contribution(&comm, 400);
        let input = if comm.rank() == 2 { &[][..] } else { &mine[..] };
        let (mut everywhere, mut there) = (vec![0.0; 400], vec![0.0; if comm.rank() == 2 { 400 } else { 0 }]);
        let mut in_place = mine.clone();
        comm.group(|group| {
            group.push_pull_into(input, &mut everywhere, 2, Reduction::Sum, &options)?;
            group.push_pull(&mut in_place, 2, Reduction::Sum, &options)?;
            group.push(input, &mut there, 2, Reduction::Sum, &options)
        })
        .unwrap();
        assert_is_sum(&in_place, 3, 2, "push and pull in place in a group");
        assert_is_sum(&everywhere, 3, 2, "push and pull in a group");
        assert_is_sum(&there, 3, 2, "push in a group");
    });
}

#[test]
fn a_root_alone_is_refused_and_the_choice_is_told() {
    let comm = Communicator::solo().unwrap();
    let error = comm.push_pull(&mut [1f32], 0, Reduction::Sum, &CallOptions::default()).unwrap_err();
    assert!(matches!(&error, CommError::Usage { what, .. } if what.contains("alone")), "{error}");
    on_all_ranks(Links::Memory, 3, |comm| {
        let (algorithm, tile) = comm.choice(CollectiveKind::PushPull, 8 << 20, &CallOptions::default()).unwrap();
        assert_eq!(algorithm, "direct");
        assert!(tile < 8 << 20, "a pull overlaps the next push");
    });
}
