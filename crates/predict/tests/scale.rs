//! How long it takes to predict what many ranks do. `cargo test --release -p paceline-predict --test scale -- --nocapture`
//! shows it. The bounds are generous: the machine may be doing something else, and not optimise.

use std::time::Instant;

use paceline_collective::cost::Load;
use paceline_collective::{Topology, registry};
use paceline_plan::{CollectiveKind, Hosts, LinkCosts, NetworkModel};
use paceline_predict::programs::{Machine, PreparedProgram, simulate};
use paceline_predict::topology::{Network, PathChoice, Speeds, Spines};

const WORLD: usize = 1024;
const BYTES: usize = 100_000_000;
const LIMIT_S: f64 = 60.0;

/// The predicted time, after the wall-clock time of preparing and simulating was printed and checked.
fn seconds(name: &str, shape: &str, tile_bytes: usize) -> f64 {
    let window = BYTES.div_ceil(tile_bytes);
    let begin = Instant::now();
    let algorithm = registry::find(CollectiveKind::AllReduce, name).unwrap();
    let program = PreparedProgram::of_algorithm(algorithm, &Topology::regular(WORLD, 1), 0).unwrap();
    let prepared = begin.elapsed().as_secs_f64();
    let speeds = Speeds { hop_s: 1e-6, ..Speeds::of(NetworkModel::TEN_GBE) };
    let network = Network::new(shape.parse().unwrap(), &Hosts::regular(WORLD, 1), &speeds).unwrap();
    let choice = PathChoice { spines: Spines::Hash { seed: 1 }, ..PathChoice::default() };
    let load = Load { bytes: BYTES, tile_bytes, window };
    let outcome = simulate(&program, &load, &Machine { choice, ..Machine::new(&network) }).unwrap();
    let all = begin.elapsed().as_secs_f64();
    println!(
        "{WORLD} ranks, {name} on {shape}, {} messages: {:.3} s predicted in {all:.2} s, {prepared:.2} s of them to prepare",
        outcome.messages, outcome.seconds
    );
    assert!(all < LIMIT_S, "{all} s");
    outcome.seconds
}

fn formula(name: &str, tile_bytes: usize) -> f64 {
    let costs = LinkCosts::uniform(NetworkModel::TEN_GBE.across.cost(0.0));
    let algorithm = registry::find(CollectiveKind::AllReduce, name).unwrap();
    algorithm.seconds(&Topology::regular(WORLD, 1), BYTES, tile_bytes, &costs)
}

#[test]
fn a_ring_of_1024_ranks() {
    let flat = seconds("ring", "flat", BYTES);
    assert!((flat / formula("ring", BYTES) - 1.0).abs() < 1e-6, "{flat}");
    // One message at a time crosses each switch's links: oversubscription is not in the way, latency is.
    let tree = seconds("ring", "fat-tree:32:4", BYTES);
    assert!(tree >= flat && tree < 1.03 * flat, "{tree}, {flat} on a flat network");
}

#[test]
fn trees_of_1024_ranks() {
    let tile_bytes = 4 << 20;
    let flat = seconds("binary-tree", "flat", tile_bytes);
    assert!((flat / formula("binary-tree", tile_bytes) - 1.0).abs() < 0.25, "{flat}");
    seconds("double-binary-tree", "fat-tree:32:4", tile_bytes);
}

#[test]
fn halving_and_doubling_of_1024_ranks() {
    let flat = seconds("halving-doubling", "flat", BYTES);
    assert!((flat / formula("halving-doubling", BYTES) - 1.0).abs() < 1e-6, "{flat}");
    let tree = seconds("halving-doubling", "fat-tree:32:4", BYTES);
    assert!(tree > 3.0 * flat, "{tree}, {flat} on a flat network");
    // Routes of up to 32 links, each of which carries many of them.
    let torus = seconds("halving-doubling", "torus:32x32", BYTES);
    assert!(torus > flat, "{torus}, {flat} on a flat network");
}
