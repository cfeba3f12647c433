//! Every algorithm, in every world, does what its collective promises.

use paceline_collective::registry::registry;
use paceline_collective::{Algorithm, Capacity, Proof, verify};

const CAPACITIES: [Capacity; 3] = [Capacity::Rendezvous, Capacity::Messages(1), Capacity::Unbounded];

/// 1 … 33, and two larger ones.
fn worlds() -> impl Iterator<Item = usize> {
    (1..=33).chain([48, 64])
}

/// The first, the middle and the last rank where there is a root.
fn roots(algorithm: &dyn Algorithm, world: usize) -> Vec<usize> {
    use paceline_plan::CollectiveKind::{Broadcast, Gather, Reduce, Scatter};
    let mut roots = match algorithm.kind() {
        Broadcast | Reduce | Gather | Scatter => vec![0, world / 2, world - 1],
        _ => vec![0],
    };
    roots.dedup();
    roots
}

#[test]
fn every_algorithm_is_right_in_every_world() {
    for world in worlds() {
        for algorithm in registry().iter().filter(|algorithm| algorithm.supports(world)) {
            for root in roots(*algorithm, world) {
                let program = algorithm.program(world, root);
                for capacity in CAPACITIES {
                    let name = format!("{} {}, {world} ranks, root {root}", algorithm.name(), algorithm.kind());
                    match verify(&program, capacity) {
                        Err(refusal) => panic!("{name}, {capacity:?}: {refusal}"),
                        Ok(Proof { messages, rounds, .. }) => {
                            assert_eq!(messages, algorithm.messages(world), "{name}: messages");
                            assert_eq!(rounds, algorithm.rounds(world), "{name}: rounds");
                        }
                    }
                }
            }
        }
    }
}
