//! Every algorithm, in many worlds, gives the right result.

use paceline_collective::registry::find;
use paceline_collective::{Algorithm, Topology};
use paceline_plan::{CollectiveKind, DataType, Reduction};

use crate::call::{Call, algorithms};
use crate::random::{Random, schedules, with_seeds};
use crate::setup::Setup;
use crate::world::World;

const WORLDS: [usize; 12] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 16, 11];

fn run(setup: Setup, calls: &[Call]) {
    let mut world = World::new(setup);
    for call in calls {
        world.post(call);
    }
    world.run();
    calls.iter().for_each(|call| world.check(call));
    world.check_clean();
}

/// Lengths: none, one, few, many, and one that neither ranks nor tiles divide. Of the windows, in place and out of
/// place, `combinations` of the six.
fn each_length(algorithm: &'static dyn Algorithm, n: usize, seed: u64, combinations: usize) {
    let mut random = Random::new(seed ^ n as u64);
    for elements in [0, 1, 4, 1000, 1019] {
        let mut all: Vec<(u32, bool)> = [1, 2, 4].iter().flat_map(|&w| [(w, false), (w, true)]).collect();
        random.shuffle(&mut all);
        for (window, in_place) in all.into_iter().take(combinations) {
            let root = random.below(n);
            let call = Call {
                tile_elements: random.pick(&[61, 128, 333, 5000]).min(elements.max(1)),
                window,
                in_place,
                shared_memory: random.once_in(2),
                data_type: random.pick(&[DataType::I32, DataType::I64, DataType::U8]),
                seed: random.next(),
                ..Call::rooted(algorithm, n, elements, rooted(algorithm.kind(), root))
            };
            // Frames and work of a byte are for small messages.
            let floor = if elements > 4 { 150 } else { 1 };
            run(Setup::wild(n, random.next()).with_pieces_of_at_least(floor), &[call]);
        }
    }
}

fn rooted(kind: CollectiveKind, root: usize) -> usize {
    if kind.has_root() { root } else { 0 }
}

#[test]
fn every_algorithm_in_small_worlds() {
    with_seeds("every_algorithm_in_small_worlds", 1, |seed| {
        let combinations = schedules(3, 6) as usize;
        for n in WORLDS.into_iter().filter(|&n| n < 8) {
            algorithms(n).for_each(|algorithm| each_length(algorithm, n, seed, combinations));
        }
    });
}

#[test]
fn every_algorithm_in_larger_worlds() {
    with_seeds("every_algorithm_in_larger_worlds", 1, |seed| {
        let combinations = schedules(1, 6) as usize;
        for n in WORLDS.into_iter().filter(|&n| n >= 8) {
            algorithms(n).for_each(|algorithm| each_length(algorithm, n, seed, combinations));
        }
    });
}

#[test]
fn blocks_of_different_lengths() {
    with_seeds("blocks_of_different_lengths", schedules(2, 20), |seed| {
        let mut random = Random::new(seed);
        for n in [1, 2, 3, 5, 8] {
            for algorithm in algorithms(n).filter(|algorithm| algorithm.variable_counts()) {
                let single = Call::new(algorithm, n, 1);
                let many = single.blocks(0).0.max(single.blocks(0).1) > 1;
                if !many {
                    continue;
                }
                // An all-to-all has a length for each pair of ranks, and in place those of both ways would be one.
                let pairs = algorithm.kind() == CollectiveKind::AllToAll;
                let lengths = if pairs { n * n } else { n };
                let counts = (0..lengths).map(|_| random.pick(&[0, 1, 7, 100, 333])).collect();
                let call = Call {
                    counts,
                    tile_elements: random.pick(&[10, 64, 500]),
                    window: random.pick(&[1, 2, 4]),
                    in_place: !pairs && random.once_in(2),
                    seed: random.next(),
                    ..single
                };
                run(Setup::wild(n, random.next()), &[call]);
            }
        }
    });
}

#[test]
fn floats_have_the_same_bits_on_every_rank_whatever_the_order_of_arrival() {
    with_seeds("floats_have_the_same_bits", schedules(3, 30), |seed| {
        let mut random = Random::new(seed);
        for n in [2, 3, 5, 8] {
            for algorithm in algorithms(n) {
                let kind = algorithm.kind();
                use CollectiveKind::{AllReduce, Push, PushPull, Reduce, ReduceScatter};
                if !matches!(kind, AllReduce | ReduceScatter | Reduce | Push | PushPull) {
                    continue;
                }
                // A shard adds in the order of the ranks, and nothing else.
                let in_order = matches!(kind, Push | PushPull);
                let call = Call {
                    data_type: DataType::F32,
                    reduction: random.pick(&[Reduction::Sum, Reduction::Average]),
                    tile_elements: 50,
                    ..Call::rooted(algorithm, n, 170, rooted(kind, random.below(n)))
                };
                let results: Vec<Vec<Vec<u8>>> = (0..2)
                    .map(|_| {
                        let mut world = World::new(Setup::wild(n, random.next()));
                        let in_place = random.once_in(2);
                        let call = Call { in_place, ..call.clone() };
                        world.post(&call);
                        world.run();
                        (0..n).map(|rank| world.ended(rank, &call).output.clone()).collect()
                    })
                    .collect();
                let name = format!("{kind} {} of {n}", algorithm.name());
                assert_eq!(results[0], results[1], "{name}: another order of arrival, other bits");
                if matches!(kind, AllReduce | PushPull) {
                    assert!(results[0].iter().all(|output| *output == results[0][0]), "{name}: ranks differ");
                }
                for rank in (0..n).filter(|&rank| call.has_result(rank)) {
                    assert!(!in_order || results[0][rank] == call.expected(rank), "{name}: not the sum in rank order");
                    let numbers = |bytes: &[u8]| -> Vec<f32> {
                        bytes.as_chunks().0.iter().map(|number| f32::from_ne_bytes(*number)).collect()
                    };
                    for (found, expected) in numbers(&results[0][rank]).iter().zip(numbers(&call.expected(rank))) {
                        assert!((found - expected).abs() <= expected.abs() * 1e-5, "{name}: {found} for {expected}");
                    }
                }
            }
        }
    });
}

#[test]
fn algorithms_that_know_hosts_wherever_the_ranks_are() {
    use CollectiveKind::{AllGather, AllReduce, Broadcast};
    with_seeds("algorithms_that_know_hosts", schedules(20, 200), |seed| {
        let mut random = Random::new(seed);
        let n = 2 + random.below(9);
        let hosts = 1 + random.below(n);
        let topology = Topology::of_hosts(&(0..n).map(|_| random.below(hosts)).collect::<Vec<_>>());
        for kind in [AllReduce, AllGather, Broadcast] {
            let algorithm = find(kind, "hierarchical").expect("it is in the registry");
            let root = rooted(kind, random.below(n));
            let elements = random.pick(&[0, 1, 7, 400, 1019]);
            let mut call = Call {
                tile_elements: random.pick(&[61, 333, 5000]),
                window: random.pick(&[1, 2, 4]),
                in_place: random.once_in(2),
                shared_memory: random.once_in(2),
                seed: random.next(),
                ..Call::placed(algorithm, &topology, elements, root)
            };
            if kind == AllGather && random.once_in(2) {
                call.counts = (0..n).map(|_| random.pick(&[0, 1, 7, 100, 333])).collect();
            }
            run(Setup::wild(n, random.next()).with_pieces_of_at_least(100), &[call]);
        }
    });
}

/// A call with counts needs them of one algorithm at least.
#[test]
fn every_collective_of_many_blocks_has_an_algorithm_for_blocks_of_different_lengths() {
    use CollectiveKind::{AllGather, AllToAll, Gather, ReduceScatter, Scatter};
    for kind in [AllGather, Gather, Scatter, ReduceScatter, AllToAll] {
        for n in [1, 2, 13, 64] {
            let mut takes = algorithms(n).filter(|algorithm| algorithm.kind() == kind && algorithm.variable_counts());
            assert!(takes.next().is_some(), "{kind} of {n}");
        }
    }
}
