//! Walking a program and its closed formula say the same.

use std::ops::RangeInclusive;

use paceline_collective::cost::{Cost, Load, walk};
use paceline_collective::registry::{find, registry};
use paceline_collective::{Algorithm, tiles};
use paceline_plan::{CollectiveKind, LinkCost};

const LINK: LinkCost = LinkCost { alpha: 10e-6, beta: 1e-9, gamma: 0.25e-9 };
const WORLDS: [usize; 11] = [1, 2, 3, 4, 5, 6, 7, 8, 13, 16, 17];

fn programs() -> impl Iterator<Item = (&'static dyn Algorithm, usize)> {
    WORLDS.into_iter().flat_map(|world| {
        registry()
            .iter()
            .copied()
            .filter(move |algorithm| algorithm.supports(world))
            .map(move |algorithm| (algorithm, world))
    })
}

#[test]
fn the_formulas_agree_with_walking() {
    for (algorithm, world) in programs() {
        let program = algorithm.program(world, 0);
        for (bytes, tile_bytes) in
            [(0, 4096), (1 << 10, 4096), (1 << 20, 1 << 20), (1 << 20, 1 << 16), (1 << 20, 100_000)]
        {
            let walked = walk(&program, &Load { bytes, tile_bytes, window: 64 }, &LINK).unwrap().seconds;
            let formula = algorithm.seconds(world, bytes, tile_bytes, &LINK);
            let ratio = if world == 1 { 1.0 + walked + formula } else { walked / formula };
            let tolerance = tolerance(algorithm, world, bytes, tile_bytes);
            assert!(
                tolerance.contains(&ratio),
                "{} {}, {world} ranks, {bytes} bytes in tiles of {tile_bytes}: walked {walked} s, formula {formula} s, \
                 ratio {ratio} not in {tolerance:?}",
                algorithm.name(),
                algorithm.kind(),
            );
        }
    }
}

/// Walked time over the formula's. `docs/algorithms.md` repeats these numbers.
fn tolerance(algorithm: &dyn Algorithm, world: usize, bytes: usize, tile_bytes: usize) -> RangeInclusive<f64> {
    let (tiled, power_of_two) = (tiles(bytes, tile_bytes) > 1, world.is_power_of_two());
    match (algorithm.kind(), algorithm.name()) {
        // Ports idle in a pattern that has no short formula.
        (CollectiveKind::AllReduce, "direct-scatter") => 0.95..=1.42,
        (CollectiveKind::AllReduce, "direct") => 0.999..=1.30,
        (CollectiveKind::AllReduce, "binary-tree") if tiled => 0.99..=1.25,
        (CollectiveKind::AllReduce, "halving-doubling") if tiled && !power_of_two => 0.99..=1.15,
        (CollectiveKind::AllGather, "bruck") if tiled => 0.99..=1.30,
        (CollectiveKind::Gather, "binomial") => 0.94..=1.0001,
        (CollectiveKind::ReduceScatter, "direct") => 0.90..=1.10,
        (CollectiveKind::AllToAll, "direct") => 0.66..=1.07,
        // The last tile is shorter, and the formula adds what it would add in the middle.
        _ if !bytes.is_multiple_of(tile_bytes) && tiled && !power_of_two => 0.99..=1.0001,
        _ if bytes.is_multiple_of(world) => 1.0 - 1e-9..=1.0 + 1e-9,
        // Parts differ by a byte.
        _ => 0.99..=1.01,
    }
}

#[test]
fn messages_and_bytes_agree_with_walking() {
    for (algorithm, world) in programs() {
        // Divisible into all parts.
        let bytes = 64 * world * world.next_power_of_two();
        for tile_bytes in [bytes, bytes / 4] {
            let load = Load { bytes, tile_bytes, window: 2 };
            let Cost { messages, bytes_sent_max, .. } = walk(&algorithm.program(world, 0), &load, &LINK).unwrap();
            let name = format!("{} {}, {world} ranks", algorithm.name(), algorithm.kind());
            assert_eq!(messages, algorithm.messages(world) * bytes / tile_bytes, "{name}");
            assert!((bytes_sent_max as f64 - algorithm.bytes_sent(world, bytes as f64)).abs() < 0.5, "{name}");
        }
    }
}

#[test]
fn the_window_bounds_the_tiles_in_flight() {
    let chain = find(CollectiveKind::Broadcast, "pipelined").unwrap().program(3, 0);
    let link = LinkCost { alpha: 1.0, beta: 0.0, gamma: 0.0 };
    let seconds = |window| walk(&chain, &Load { bytes: 10, tile_bytes: 1, window }, &link).unwrap().seconds;
    // With one tile in flight the middle rank takes in and passes on by turns: two messages for each of ten tiles.
    assert_eq!(seconds(1), 20.0);
    assert_eq!(seconds(2), 11.0);
    assert_eq!(seconds(100), 11.0);
}

#[test]
fn a_fold_occupies_the_receiver_but_not_the_sender() {
    let link = LinkCost { alpha: 1.0, beta: 0.0, gamma: 10.0 };
    let load = Load { bytes: 2, tile_bytes: 1, window: 2 };
    // Two tiles of one byte: each takes one second to arrive and ten to be reduced.
    let reduce = find(CollectiveKind::Reduce, "pipelined").unwrap().program(2, 0);
    assert_eq!(walk(&reduce, &load, &link).unwrap().seconds, 22.0);
    let gather = find(CollectiveKind::Gather, "direct").unwrap().program(2, 0);
    assert_eq!(walk(&gather, &load, &link).unwrap().seconds, 2.0);
}

#[test]
fn a_program_that_never_ends_is_refused() {
    let mut ring = find(CollectiveKind::AllReduce, "ring").unwrap().program(3, 0);
    ring.ranks[0].steps[0].after.push(5);
    assert!(walk(&ring, &Load { bytes: 1, tile_bytes: 1, window: 1 }, &LINK).is_err());
}
