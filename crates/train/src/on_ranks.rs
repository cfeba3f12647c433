//! Worlds for tests.

use std::sync::Arc;
use std::thread;

use paceline_comm::{Communicator, Emulation, ThreadsConfig, Transport};
use paceline_plan::{Hosts, NetworkModel};
use paceline_server::{ParameterServer, Roles, serve};

use crate::on_server::serve_options;
use crate::peers::Peers;

/// Runs `rank` on each of the ranks of a new world; the results by rank.
pub(crate) fn on_ranks<R: Send>(world: usize, rank: impl Fn(Communicator) -> R + Sync) -> Vec<R> {
    on_each(Communicator::threads(world).unwrap(), rank)
}

/// Runs `rank` on each of the ranks of a world of so many hosts with one rank each, wired like this; the results by rank.
pub(crate) fn on_hosts<R: Send>(hosts: usize, topology: &str, rank: impl Fn(Communicator) -> R + Sync) -> Vec<R> {
    let topology = topology.parse().unwrap();
    let config = ThreadsConfig { hosts, topology, ..ThreadsConfig::default() };
    on_each(Communicator::threads_with(hosts, &config).unwrap(), rank)
}

/// Runs `rank` on each of the ranks of a world on so many hosts of an emulated network, as many on each; the results by rank.
pub(crate) fn on_emulated<R: Send>(
    network: NetworkModel,
    hosts: usize,
    per_host: usize,
    rank: impl Fn(Communicator) -> R + Sync,
) -> Vec<R> {
    let emulation = Emulation { network, hosts: Hosts::regular(hosts, per_host), dilation: 1.0 };
    let config = ThreadsConfig { transport: Transport::Shm, emulation: Some(emulation), ..ThreadsConfig::default() };
    on_each(Communicator::threads_with(hosts * per_host, &config).unwrap(), rank)
}

fn on_each<R: Send>(communicators: Vec<Communicator>, rank: impl Fn(Communicator) -> R + Sync) -> Vec<R> {
    thread::scope(|scope| {
        let rank = &rank;
        let ranks = communicators.into_iter().map(|communicator| scope.spawn(move || rank(communicator)));
        ranks.collect::<Vec<_>>().into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// Runs `worker` on each of the workers of a new world, whose shards serve meanwhile; the results by worker.
pub(crate) fn on_workers<R: Send>(roles: Roles, worker: impl Fn(&Peers) -> R + Sync) -> Vec<R> {
    let results = on_ranks(roles.world_size(), |world| {
        if roles.shard_of(world.rank()).is_some() {
            serve(&world, roles, &serve_options()).unwrap();
            return None;
        }
        let server = Arc::new(ParameterServer::connect(&world, roles).unwrap());
        let result = worker(&Peers::from(&server));
        server.stop().unwrap();
        Some(result)
    });
    results.into_iter().flatten().collect()
}
