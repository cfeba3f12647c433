//! Shards that decompress: every worker gets the sum from left to right, to the bit.

mod support;
#[path = "../../compress/tests/support/verbatim.rs"]
mod verbatim;

use paceline_comm::CallOptions;
use paceline_compress::{Compression, Compressor, Compressors};
use paceline_server::{Assignment, Mode, ParameterServer, Roles, ServeOptions};
use paceline_strategy::{Aspect, Method, Registry};
use support::{LINKS, assert_bits, filled, gradient, plan, sum, world_with_shards};
use verbatim::Verbatim;

fn compression() -> Compression {
    let (mut grammar, mut compressors) = (Registry::built_in(), Compressors::default());
    let method = Method {
        aspect: Aspect::Compress,
        name: "verbatim",
        parameters: &[],
        sentence: "numbers as they are",
        lossless: true,
        available: true,
    };
    compressors.add(&mut grammar, method, |_, piece| Box::new(Verbatim(piece.elements)));
    compressors.of(&grammar.parse("compress=verbatim").unwrap()).unwrap().expect("it was added")
}

#[test]
fn every_worker_gets_the_sum_of_what_was_compressed() {
    for links in LINKS {
        for (workers, shards) in [(1, 1), (3, 2)] {
            let roles = Roles::new(workers, shards).unwrap();
            let options = ServeOptions { compression: Some(compression()), ..ServeOptions::default() };
            let served = world_with_shards(links, roles, &options, move |world, roles| {
                let server = ParameterServer::connect(world, roles).unwrap();
                let plan = plan(1, &[5000, 0, 333, 40_000], 9000, shards);
                // The second assignment goes on with the memory of the first.
                for iterations in [0..2, 2..5] {
                    let mode = Mode::Decompress;
                    let assignment = Assignment { plan: plan.clone(), iterations: iterations.clone(), mode };
                    server.assign(&assignment).unwrap();
                    iterations.for_each(|iteration| {
                        push(&server, world.rank(), &assignment, iteration);
                    });
                }
                server.stop().unwrap();
            });
            assert!(served.into_iter().all(|served| served.is_ok_and(|served| served.assignments == 2)));
        }
    }
}

/// One iteration of a worker.
fn push(server: &ParameterServer, worker: usize, assignment: &Assignment, iteration: u64) {
    let world = server.workers();
    let mut pending = Vec::new();
    for (operation, (_, partition)) in assignment.plan.partitions().enumerate() {
        let elements = partition.elements.clone();
        let gradient = filled(world, elements.clone(), |element| gradient(worker, iteration, element));
        let mut compressed = world.alloc(4 * elements.len()).unwrap();
        Verbatim(elements.len()).compress(&gradient, &mut compressed);
        let options = assignment.options(iteration, operation, CallOptions::default());
        let started = server.start_compressed(partition.shard.unwrap(), compressed, gradient, &options);
        pending.push((elements, started.unwrap()));
    }
    for (elements, pending) in pending {
        let (compressed, found) = pending.wait().unwrap();
        assert_eq!(compressed.len(), 4 * elements.len(), "the memory comes back");
        assert_bits(&found, elements, |element| sum(world.world_size(), iteration, element), "the sum");
    }
}
