//! Every algorithm, in every world, does what its collective promises.

mod shapes;

use paceline_collective::registry::registry;
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
                    assert_eq!(messages, algorithm.messages(topology), "{name}: messages");
                    // On unequal hosts the rounds depend on the root, and the formula is for the first one.
                    if root == 0 || topology.is_flat() {
                        assert_eq!(rounds, algorithm.rounds(topology), "{name}: rounds");
                    }
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
        registry().iter().filter(of_hosts).for_each(|algorithm| check(*algorithm, &topology, &CAPACITIES[..1]));
    }
    for topology in shapes::all(4).chain(shapes::random(10, 12)) {
        registry().iter().filter(of_hosts).for_each(|algorithm| check(*algorithm, &topology, &CAPACITIES));
    }
}

#[test]
fn flat_algorithms_do_not_ask_where_the_ranks_are() {
    let (flat, spread) = (Topology::flat(8), Topology::regular(4, 2));
    for algorithm in registry().iter().filter(|algorithm| algorithm.supports(8) && algorithm.name() != "hierarchical") {
        assert_eq!(algorithm.program(&flat, 0), algorithm.program(&spread, 0), "{}", algorithm.name());
    }
}
