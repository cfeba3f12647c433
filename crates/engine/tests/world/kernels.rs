//! Programs whose lengths kernels decide: sparse data, and data in another encoding.

use std::sync::Arc;

use paceline_collective::{
    Combine, Fold, KernelId, Order, Place, Program, RankBuilder, RankProgram, Space, re_encoding_all_reduce,
};
use paceline_engine::RankSchedule;
use paceline_plan::{CollectiveKind, DataType};

use crate::call::Call;
use crate::random::{Random, schedules, with_seeds};
use crate::setup::Setup;
use crate::world::World;

/// Union of two sparse vectors, with the values of common indices added.
pub const MERGE: KernelId = KernelId(1);
/// f32 to bf16, cutting the low bits off.
pub const TO_BF16: KernelId = KernelId(2);
/// bf16 to f32.
pub const FROM_BF16: KernelId = KernelId(3);

/// The kernels that the worlds know. They return the bytes that they have written.
#[derive(Clone, Copy, Debug)]
pub struct Kernels;

impl Kernels {
    pub fn combine(self, kernel: KernelId, left: &[u8], right: &[u8], into: &mut [u8]) -> usize {
        assert_eq!(kernel, MERGE, "an unknown kernel");
        let merged = merge(&entries(left), &entries(right));
        let bytes = bytes_of(&merged);
        into[..bytes.len()].copy_from_slice(&bytes);
        bytes.len()
    }

    pub fn map(self, kernel: KernelId, from: &[u8], into: &mut [u8]) -> usize {
        let bytes: Vec<u8> = match kernel {
            TO_BF16 => from.as_chunks::<4>().0.iter().flat_map(|number| [number[2], number[3]]).collect(),
            FROM_BF16 => from.as_chunks::<2>().0.iter().flat_map(|number| [0, 0, number[0], number[1]]).collect(),
            other => panic!("an unknown kernel: {other:?}"),
        };
        into[..bytes.len()].copy_from_slice(&bytes);
        bytes.len()
    }
}

/// A sparse vector as it travels: indices and values in turn, indices rising.
type Entries = Vec<(u32, i32)>;

fn entries(bytes: &[u8]) -> Entries {
    assert!(bytes.len().is_multiple_of(8), "a torn sparse vector of {} bytes", bytes.len());
    let number = |bytes: &[u8]| u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    bytes.chunks_exact(8).map(|entry| (number(entry), number(&entry[4..]) as i32)).collect()
}

fn bytes_of(entries: &Entries) -> Vec<u8> {
    entries.iter().flat_map(|(index, value)| [index.to_ne_bytes(), value.to_ne_bytes()]).flatten().collect()
}

fn merge(left: &Entries, right: &Entries) -> Entries {
    let mut all = std::collections::BTreeMap::new();
    for &(index, value) in left.iter().chain(right) {
        *all.entry(index).or_insert(0) += value;
    }
    all.into_iter().collect()
}

fn program(kind: CollectiveKind, world: usize, rank_program: impl Fn(RankBuilder, usize) -> RankProgram) -> Program {
    let builder = |rank| RankBuilder::new(Place { kind, rank, world, root: 0 }, 1);
    let ranks = (0..world).map(|rank| rank_program(builder(rank), rank)).collect();
    Program { algorithm: "test".into(), kind, root: 0, parts: 1, ranks }
}

fn call(program: &Program, elements: usize) -> Call {
    let world = program.ranks.len();
    let schedules = (0..world).map(|rank| Arc::new(RankSchedule::of(program, rank))).collect();
    let any = Call::named(CollectiveKind::AllReduce, "ring", world, elements);
    Call { kind: program.kind, schedules: Arc::new(schedules), ..any }
}

/// Sparse vectors are merged down a chain to rank 0 and sent back up. The last rank has no kernel: it sends its own,
/// and takes in what is as long as it happens to be.
fn sparse_chain(world: usize) -> Program {
    program(CollectiveKind::AllReduce, world, |mut builder, rank| {
        let (input, output) = (builder.tile(Space::Input, 0), builder.tile(Space::Output, 0));
        let scratch = builder.tile(Space::Scratch, 0);
        if rank == 0 {
            builder.receive(1, scratch);
            builder.combine_by(MERGE, scratch, input, output, true);
        } else if rank + 1 < world {
            let order = if rank % 2 == 0 { Order::LocalFirst } else { Order::MessageFirst };
            let fold = Fold { with: input, order, combine: Combine::Kernel(MERGE), last: false };
            builder.receive_with(rank + 1, scratch, fold);
            builder.send(rank - 1, scratch);
            builder.receive(rank - 1, output);
        } else {
            builder.send(rank - 1, input);
            builder.receive(rank - 1, output);
        }
        if rank + 1 < world {
            builder.send(rank + 1, output);
        }
        builder.finish()
    })
}

#[test]
fn sparse_vectors_are_merged_whatever_their_lengths() {
    with_seeds("sparse_vectors_are_merged", schedules(60, 600), |seed| {
        let mut random = Random::new(seed);
        let n = 2 + random.below(4);
        let capacity = 100;
        let mut sum = Entries::new();
        let inputs = (0..n).map(|_| {
            let count = random.pick(&[0, 1, 15]);
            let mine: Entries = merge(
                &(0..count).map(|_| (random.below(50) as u32, random.below(9) as i32)).collect(),
                &sum[..0].to_vec(),
            );
            sum = merge(&sum, &mine);
            let mut bytes = bytes_of(&mine);
            let length = bytes.len();
            bytes.resize(capacity * 8, 0xee);
            (bytes, Some(length))
        });
        let own_input = Some(Arc::new(inputs.collect()));
        let call = Call { data_type: DataType::I64, own_input, ..call(&sparse_chain(n), capacity) };
        let mut world = World::new(Setup::wild(n, seed));
        world.post(&call);
        world.run();
        for rank in 0..n {
            let ended = world.ended(rank, &call);
            assert_eq!(ended.outcome, Ok(()), "rank {rank}");
            assert_eq!(ended.output_lengths, [8 * sum.len()], "rank {rank}");
            assert_eq!(entries(&ended.output[..8 * sum.len()]), sum, "rank {rank}");
        }
        world.check_clean();
    });
}

/// Everyone sends its block as bf16.
fn narrow_all_gather(world: usize) -> Program {
    program(CollectiveKind::AllGather, world, |mut builder, rank| {
        let (input, narrow) = (builder.tile(Space::Input, 0), builder.tile(Space::Scratch, rank));
        builder.map(TO_BF16, input, narrow);
        let peers = || (0..world).filter(|&peer| peer != rank);
        for peer in peers() {
            builder.send(peer, narrow);
        }
        for peer in peers() {
            let narrow = builder.tile(Space::Scratch, peer);
            builder.receive(peer, narrow);
        }
        for peer in 0..world {
            let (narrow, wide) = (builder.tile(Space::Scratch, peer), builder.tile(Space::Output, peer));
            builder.map(FROM_BF16, narrow, wide);
        }
        builder.finish()
    })
}

#[test]
fn blocks_travel_in_another_encoding_over_many_tiles() {
    with_seeds("blocks_travel_in_another_encoding", schedules(40, 400), |seed| {
        let mut random = Random::new(seed);
        let n = 1 + random.below(4);
        let elements = random.pick(&[0, 1, 100, 333]);
        let call = Call {
            data_type: DataType::F32,
            tile_elements: 40,
            window: random.pick(&[1, 2, 4]),
            ..call(&narrow_all_gather(n), elements)
        };
        let mut world = World::new(Setup::wild(n, seed).with_pieces_of_at_least(8));
        world.post(&call);
        world.run();
        world.check_clean();
        for rank in 0..n {
            let cut = |number: &[u8; 4]| [0, 0, number[2], number[3]];
            let expected: Vec<u8> = call.expected(rank).as_chunks().0.iter().flat_map(cut).collect();
            assert!(world.ended(rank, &call).output == expected, "rank {rank}");
        }
    });
}

#[test]
fn sums_travel_in_another_encoding_and_are_the_same_everywhere() {
    with_seeds("sums_travel_in_another_encoding", schedules(40, 400), |seed| {
        let mut random = Random::new(seed);
        let n = 1 + random.below(6);
        let elements = random.pick(&[0, 1, 100, 333, 1000]);
        let program = re_encoding_all_reduce(n, TO_BF16, FROM_BF16);
        let call = Call {
            data_type: DataType::F32,
            tile_elements: random.pick(&[40, 170, 5000]),
            window: random.pick(&[1, 2, 4]),
            in_place: random.once_in(2),
            shared_memory: random.once_in(2),
            seed: random.next(),
            ..call(&program, elements)
        };
        let mut world = World::new(Setup::wild(n, random.next()).with_pieces_of_at_least(8));
        world.post(&call);
        world.run();
        world.check_clean();
        // Reduced in f32 in the order of the ranks, then cut.
        let cut = |number: &[u8; 4]| [0, 0, number[2], number[3]];
        let expected: Vec<u8> = call.expected(0).as_chunks().0.iter().flat_map(cut).collect();
        for rank in 0..n {
            assert!(world.ended(rank, &call).output == expected, "rank {rank}");
        }
    });
}
