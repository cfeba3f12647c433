//! What shards note: every partition that they have received, added and sent, when the workers say that it happened.

mod support;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use paceline_comm::{CallOptions, Transport};
use paceline_plan::Plan;
use paceline_server::{Apply, Assignment, Mode, ParameterServer, Roles, ServeOptions, ShardTrace, ShardWork, Update};
use support::{LINKS, aggregate, filled, plan, world_with_shards};

const WORKERS: usize = 2;

/// What the shards, of which so many serve, have noted of iterations 1 and 2 of three, and worker 0's clock before and
/// after.
fn traced(links: Transport, serving: usize, shards: usize) -> (Vec<ShardTrace>, [i64; 2], Plan) {
    let roles = Roles::new(WORKERS, shards).unwrap();
    let plan = plan(1, &[3000, 40_000, 0, 9], 15_000, serving);
    let (given, found) = (plan.clone(), Arc::<Mutex<Option<(Vec<ShardTrace>, [i64; 2])>>>::default());
    let noted = found.clone();
    let served = world_with_shards(links, roles, &ServeOptions::default(), move |world, roles| {
        let server = ParameterServer::connect(world, roles).unwrap();
        let assignment = |iterations| Assignment { plan: given.clone(), iterations, mode: Mode::Aggregate };
        server.assign(&assignment(0..1)).unwrap();
        aggregate(&server, world, &assignment(0..1), 0, 1);
        server.start_trace().unwrap();
        let before = world.clock().as_nanos() as i64;
        server.assign(&assignment(1..3)).unwrap();
        (1..3).for_each(|iteration| aggregate(&server, world, &assignment(1..3), iteration, 1));
        let (clock, traces) = server.end_trace().unwrap();
        let after = world.clock().as_nanos() as i64;
        if world.rank() == 0 {
            *noted.lock().unwrap() = Some((traces, [before, after]));
        } else {
            assert!(traces.is_empty() && clock.error_ns() > 0);
        }
        server.stop().unwrap();
    });
    served.into_iter().for_each(|served| assert_eq!(served.unwrap().assignments, 2));
    let (traces, clock) = found.lock().unwrap().take().expect("worker 0 was told");
    (traces, clock, plan)
}

#[test]
fn every_partition_is_received_added_and_sent() {
    for links in LINKS {
        for (serving, shards) in [(1, 1), (2, 2), (1, 3)] {
            let (traces, [before, after], plan) = traced(links, serving, shards);
            let operations = plan.operations() as u64;
            assert_eq!(traces.iter().map(|trace| trace.shard).collect::<Vec<_>>(), (0..shards).collect::<Vec<_>>());
            for trace in &traces {
                assert_eq!(trace.dropped, 0);
                let mut expected = BTreeSet::new();
                for (operation, (_, partition)) in plan.partitions().enumerate() {
                    if partition.shard == Some(trace.shard) && !partition.elements.is_empty() {
                        let bytes = partition.elements.len() as u64 * 4 * WORKERS as u64;
                        let all = [ShardWork::Receiving, ShardWork::Sending];
                        let ids = [1, 2].map(|iteration| iteration * operations + operation as u64);
                        expected.extend(ids.into_iter().flat_map(|id| all.map(|work| (work, id, bytes))));
                    }
                }
                let moved = trace.spans.iter().filter(|span| span.bytes > 0 && span.work != ShardWork::Adding);
                let found: BTreeSet<_> = moved.map(|span| (span.work, span.id, span.bytes)).collect();
                assert_eq!(found, expected, "{links:?}, shard {} of {shards}", trace.shard);
                let slack = trace.clock_error_ns;
                for span in &trace.spans {
                    assert!(span.start_ns <= span.end_ns && span.plan_version == 1, "{span:?}");
                    assert!(span.start_ns >= before - slack && span.end_ns <= after + slack, "{span:?}");
                    let of = |work| trace.spans.iter().find(|other| other.id == span.id && other.work == work);
                    if span.work == ShardWork::Adding {
                        let (received, sent) = (of(ShardWork::Receiving).unwrap(), of(ShardWork::Sending).unwrap());
                        assert!(received.start_ns <= span.start_ns && span.start_ns <= sent.end_ns, "{span:?}");
                    }
                }
                let added: BTreeSet<u64> = trace
                    .spans
                    .iter()
                    .filter(|span| span.work == ShardWork::Adding && span.bytes > 0)
                    .map(|span| span.id)
                    .collect();
                assert_eq!(added, expected.iter().map(|(_, id, _)| *id).collect(), "what comes is added");
            }
        }
    }
}

struct Nothing;

impl Apply for Nothing {
    fn apply(&mut self, _update: &Update, _gradient: &[f32], _parameters: &mut [f32]) {}
}

fn nothing(_specification: &[u8], _plan: &Plan, _shard: usize) -> Result<Box<dyn Apply>, String> {
    Ok(Box::new(Nothing))
}

#[test]
fn the_optimiser_of_a_shard_is_noted() {
    let options = ServeOptions { optimizers: Some(Arc::new(nothing)), ..ServeOptions::default() };
    let roles = Roles::new(1, 1).unwrap();
    world_with_shards(LINKS[0], roles, &options, |world, roles| {
        let server = ParameterServer::connect(world, roles).unwrap();
        let plan = plan(1, &[100, 50], 60, 1);
        let mode = Mode::Apply { optimizer: Vec::new() };
        let assignment = Assignment { plan: plan.clone(), iterations: 0..1, mode };
        server.start_trace().unwrap();
        server.assign(&assignment).unwrap();
        for (operation, (_, partition)) in plan.partitions().enumerate() {
            let buffer = || filled(world, partition.elements.clone(), |element| element as f32);
            let options = assignment.options(0, operation, CallOptions::default());
            server.start_initialise(0, buffer(), &options).unwrap().wait().unwrap();
            server.start_update(0, buffer(), buffer(), &options).unwrap().wait().unwrap();
        }
        let (_, traces) = server.end_trace().unwrap();
        let applied: Vec<_> = traces[0].spans.iter().filter(|span| span.work == ShardWork::Applying).collect();
        let bytes: Vec<u64> = applied.iter().map(|span| span.bytes).collect();
        let elements = plan.partitions().map(|(_, partition)| 4 * partition.elements.len() as u64);
        assert_eq!(bytes, elements.collect::<Vec<_>>(), "in the order in which they were updated");
        server.stop().unwrap();
    });
}
