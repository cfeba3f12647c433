//! Hosts of several workers add up before they push: the bits are those of the sum of the hosts' sums, in both modes.

mod support;

use std::sync::Arc;

use paceline_comm::{CallOptions, CollectiveKind, ThreadsConfig, Transport};
use paceline_plan::Plan;
use paceline_server::{Apply, Assignment, Mode, ParameterServer, Roles, ServeOptions, Update};
use support::{assert_bits, filled, gradient, on_hosts, plan, sum};

/// Parameters that are the last sum, so that workers see what was added.
struct Mirror;

impl Apply for Mirror {
    fn apply(&mut self, _update: &Update, gradient: &[f32], parameters: &mut [f32]) {
        parameters.copy_from_slice(gradient);
    }
}

fn make(_specification: &[u8], _plan: &Plan, _shard: usize) -> Result<Box<dyn Apply>, String> {
    Ok(Box::new(Mirror))
}

/// What a partition's workers get: host after host if the communicator of its shard chooses that, otherwise rank after rank.
fn expected(server: &ParameterServer, shard: usize, elements: usize, iteration: u64) -> impl Fn(usize) -> f32 {
    let (group, workers) = (server.shard(shard), server.roles().workers());
    let bytes = elements * size_of::<f32>();
    let (algorithm, _) = group.choice(CollectiveKind::PushPull, bytes, &CallOptions::default()).unwrap();
    let topology = group.topology().clone();
    move |element| match algorithm {
        "direct" => sum(workers, iteration, element),
        _ => {
            let of_host = |host| {
                let members = topology.members(host).iter().filter(|&&rank| rank < workers);
                members.map(|&worker| gradient(worker, iteration, element)).reduce(|sum, value| sum + value)
            };
            (0..topology.hosts()).filter_map(of_host).reduce(|sum, value| sum + value).unwrap()
        }
    }
}

#[test]
fn both_modes_give_the_sum_of_the_hosts_sums() {
    // Shards on a host of their own, beside workers, and both; hosts of equal and of unequal size.
    for (workers, shards, hosts) in [(4, 1, 3), (4, 2, 3), (4, 3, 3), (4, 2, 2), (5, 1, 2), (6, 3, 3)] {
        let config = ThreadsConfig { transport: Transport::Shm, hosts, ..ThreadsConfig::default() };
        let options = ServeOptions { optimizers: Some(Arc::new(make)), ..ServeOptions::default() };
        let roles = Roles::new(workers, shards).unwrap();
        let served = on_hosts(&config, roles, &options, move |world, roles| {
            let server = ParameterServer::connect(world, roles).unwrap();
            let choice =
                |bytes| server.shard(0).choice(CollectiveKind::PushPull, bytes, &CallOptions::default()).unwrap().0;
            assert_eq!(choice(160_000), "hierarchical", "{workers} workers, {shards} shards, {hosts} hosts");
            for (version, mode) in [(1, Mode::Aggregate), (2, Mode::Apply { optimizer: Vec::new() })] {
                let plan = plan(version, &[150_000, 1, 0, 7, 70_000], 40_000, shards);
                let assignment = Assignment { plan: plan.clone(), iterations: 0..2, mode: mode.clone() };
                server.assign(&assignment).unwrap();
                for iteration in 0..2 {
                    for (operation, (_, partition)) in plan.partitions().enumerate() {
                        let (shard, elements) = (partition.shard.unwrap(), partition.elements.clone());
                        let options = assignment.options(iteration, operation, CallOptions::default());
                        let zeros = || world.alloc(elements.len()).unwrap();
                        if iteration == 0 && mode != Mode::Aggregate {
                            server.start_initialise(shard, zeros(), &options).unwrap().wait().unwrap();
                        }
                        let mine =
                            filled(world, elements.clone(), |element| gradient(world.rank(), iteration, element));
                        let found = match mode {
                            Mode::Aggregate => server.start_push_pull(shard, mine, &options).unwrap().wait().unwrap(),
                            _ => server.start_update(shard, mine, zeros(), &options).unwrap().wait().unwrap().1,
                        };
                        let what =
                            format!("{workers} workers, {shards} shards, {hosts} hosts, {mode:?}, {partition:?}");
                        let expected = expected(&server, shard, elements.len(), iteration);
                        assert_bits(&found, elements, expected, &what);
                    }
                }
            }
            server.stop().unwrap();
        });
        served.into_iter().for_each(|served| assert!(served.unwrap().operations > 0));
    }
}
