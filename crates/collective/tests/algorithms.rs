//! Every algorithm, in every world, does what its collective promises.

mod shapes;

use paceline_collective::registry::registry;
use paceline_collective::verify::verify_apart;
use paceline_collective::{Algorithm, Capacity, Proof, Topology, verify};

const CAPACITIES: [Capacity; 3] = [Capacity::Rendezvous, Capacity::Messages(1), Capacity::Unbounded];

/// The first, the middle and the last rank where there is a root.
fn roots(algorithm: &dyn Algorithm, world: usize) -> Vec<usize> {
    let mut roots = if algorithm.kind().has_root() { vec![0, world / 2, world - 1] } else { vec![0] };
    roots.dedup();
    roots
}

fn check(algorithm: &dyn Algorithm, topology: &Topology, capacities: &[Capacity]) {
    for root in roots(algorithm, topology.world()) {
        let program = algorithm.program(topology, root);
        for &capacity in capacities {
            let name = format!("{} {}, {topology:?}, root {root}", algorithm.name(), algorithm.kind());
            match verify(&program, capacity) {
                Err(refusal) => panic!("{name}, {capacity:?}: {refusal}"),
                Ok(Proof { messages, rounds, .. }) => {
                    // On unequal hosts the rounds depend on the root, of push and push-pull the messages, too.
                    let usual = root == algorithm.usual_root(topology) || topology.is_flat();
                    if usual || algorithm.kind().contributors(topology.world()) == topology.world() {
                        assert_eq!(messages, algorithm.messages(topology), "{name}: messages");
                    }
                    if usual {
                        assert_eq!(rounds, algorithm.rounds(topology), "{name}: rounds");
                    }
                }
            }
        }
    }
}

/// What is left of each algorithm for calls whose input and output are apart, which is what nearly all calls run: all
/// worlds of up to 9 ranks and some larger ones, every root, and wherever the ranks of a small world may be.
#[test]
fn every_algorithm_is_right_apart_from_every_root_and_wherever_the_ranks_are() {
    let flat = (1..=9).chain([13, 16]).map(Topology::flat);
    let spread = (1..=6).flat_map(shapes::all).chain(shapes::random(10, 12));
    let on_hosts = |algorithm: &&dyn Algorithm| algorithm.name() == "hierarchical";
    for (topology, any) in flat.map(|it| (it, true)).chain(spread.map(|it| (it, false))) {
        let world = topology.world();
        for algorithm in registry().iter().filter(|it| it.supports(world) && (any || on_hosts(it))) {
            for root in 0..if algorithm.kind().has_root() { world } else { 1 } {
                let apart = algorithm.program(&topology, root).apart();
                let capacities = if any && world <= 6 { &CAPACITIES[..] } else { &CAPACITIES[..1] };
                for &capacity in capacities {
                    verify_apart(&apart, capacity).unwrap_or_else(|refusal| {
                        panic!("{} {}, {topology:?}, root {root}: {refusal}", algorithm.name(), algorithm.kind())
                    });
                }
            }
        }
    }
}

#[test]
fn every_algorithm_is_right_in_every_world() {
    for world in (1..=33).chain([48, 64]) {
        let topology = Topology::flat(world);
        for algorithm in registry().iter().filter(|algorithm| algorithm.supports(world)) {
            check(*algorithm, &topology, &CAPACITIES);
        }
    }
}

#[test]
fn algorithms_that_know_hosts_are_right_wherever_the_ranks_are() {
    let every = (1..=6).flat_map(shapes::all);
    let larger = [(2, 4), (8, 4), (4, 8), (5, 3), (3, 5), (7, 1)].map(|(hosts, ranks)| Topology::regular(hosts, ranks));
    let random = shapes::random(60, 24);
    let of_hosts = |algorithm: &&&dyn Algorithm| algorithm.name() == "hierarchical";
    for topology in every.chain(larger).chain(random) {
        let algorithms = registry().iter().filter(of_hosts).filter(|algorithm| algorithm.supports(topology.world()));
        algorithms.for_each(|algorithm| check(*algorithm, &topology, &CAPACITIES[..1]));
    }
    for topology in shapes::all(4).chain(shapes::random(10, 12)) {
        let algorithms = registry().iter().filter(of_hosts).filter(|algorithm| algorithm.supports(topology.world()));
        algorithms.for_each(|algorithm| check(*algorithm, &topology, &CAPACITIES));
    }
}

#[test]
fn flat_algorithms_do_not_ask_where_the_ranks_are() {
    let (flat, spread) = (Topology::flat(8), Topology::regular(4, 2));
    for algorithm in registry().iter().filter(|algorithm| algorithm.supports(8) && algorithm.name() != "hierarchical") {
        assert_eq!(algorithm.program(&flat, 0), algorithm.program(&spread, 0), "{}", algorithm.name());
    }
}
