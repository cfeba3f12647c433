//! A caller may choose how messages travel, and ranks may even choose differently: results stay right.

use paceline_plan::{CollectiveKind, Protocol};

use crate::call::{Call, algorithms};
use crate::random::{Random, schedules, with_seeds};
use crate::setup::Setup;
use crate::world::World;

#[test]
fn every_algorithm_with_every_pair_of_protocols() {
    with_seeds("every_algorithm_with_every_pair_of_protocols", schedules(2, 40), |seed| {
        let mut random = Random::new(seed);
        for algorithm in algorithms(4) {
            for pair in Protocol::ALL.iter().flat_map(|&even| Protocol::ALL.iter().map(move |&odd| [even, odd])) {
                let elements = random.pick(&[0, 3, 400]);
                let call = Call { protocols: pair, tile_elements: 100, ..Call::new(algorithm, 4, elements) };
                let mut world = World::new(Setup::wild(4, random.next()).with_pieces_of_at_least(50));
                world.post(&call);
                world.run();
                world.check(&call);
                world.check_clean();
            }
        }
    });
}

/// When rank 1 has a message of so many bytes, in a world where a frame takes 10 µs and a byte 1 ns.
fn microseconds(protocol: Protocol, bytes: usize) -> u64 {
    let message = Call::named(CollectiveKind::SendReceive, "point-to-point", 2, bytes.div_ceil(4));
    let call = Call { protocols: [protocol; 2], ..message };
    let mut world = World::new(Setup { eager_link_bytes: 50_000, ..Setup::calm(2, 1) });
    world.post(&call);
    world.run();
    world.check(&call);
    world.ended(1, &call).at / 1000
}

#[test]
fn a_grant_costs_a_latency_and_only_rendezvous_always_waits_for_it() {
    // Operations of more than 1024 bytes wait for grants by themselves.
    for (protocol, small, large) in [
        (Protocol::Auto, 10, 20),
        (Protocol::Inline, 10, 10),
        (Protocol::Eager, 10, 10),
        (Protocol::Rendezvous, 20, 20),
    ] {
        for (bytes, latencies) in [(100, small), (4000, large)] {
            let took = microseconds(protocol, bytes);
            assert!((latencies..latencies + 9).contains(&took), "{protocol}, {bytes} bytes: {took} µs");
        }
    }
}
