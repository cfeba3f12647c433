//! With whom a worker of `train` exchanges gradients: it meets them, and in the end lets them go.

use std::sync::Arc;

use paceline_comm::{Communicator, Config, Emulation, TransportChoice};
use paceline_fabric::environment::Environment;
use paceline_plan::Hosts;
use paceline_server::{Joined, ParameterServer, ServeOptions, ServerError, ShardThread, join_beside};
use paceline_strategy::{Servers, Strategy};
use paceline_train::{Peers, TrainError};

use crate::failure::Failure;
use crate::workers;

/// A worker's place among the others.
pub struct Met {
    /// The world of all workers, and of all shards that serve them.
    pub world: Communicator,
    pub peers: Peers,
    /// Those that live in this process.
    shards: Vec<ShardThread>,
}

/// The servers that a strategy asks for, for so many workers of which so many are on this host.
///
/// # Errors
/// It wants them on hosts of their own.
pub fn servers(strategy: &Strategy, workers: usize, local_workers: usize) -> Result<Option<Servers>, Failure> {
    let hosts = workers.div_ceil(local_workers.max(1));
    let servers = strategy.servers(workers, hosts);
    if servers.is_some_and(|servers| servers.dedicated) {
        let what = format!(
            "arch={} wants servers on hosts of their own, and train starts them beside the workers",
            strategy.arch
        );
        return Err(Failure::usage(what).help("leave `dedicated` out; `paceline bench` has servers of their own"));
    }
    Ok(servers)
}

/// Meets the other workers and the servers.
///
/// # Errors
/// Not all came in time, or a link could not be opened.
pub fn meet(
    environment: Environment,
    transport: TransportChoice,
    emulation: Option<Emulation>,
    servers: Option<Servers>,
) -> Result<Met, Failure> {
    let Some(servers) = servers else {
        let world = workers::connect(environment, transport, 1, emulation)?;
        return Ok(Met { peers: Peers::from(&world), world, shards: Vec::new() });
    };
    let emulation = emulation.map(|emulation| beside(emulation, servers.shards));
    let mut config = Config { environment, transport, emulation, ..Config::from_environment()? };
    config.watch.on_stall = Some(Arc::new(|report| eprintln!("paceline: {report}")));
    let joined = join_beside(config, servers.shards, &ServeOptions::default()).map_err(failed)?;
    let Joined { world, roles, shards } = joined;
    let server = Arc::new(ParameterServer::connect(&world, roles).map_err(failed)?);
    Ok(Met { peers: Peers::from(&server), world, shards })
}

/// A shard is on the host of the worker beside whom it lives.
fn beside(emulation: Emulation, shards: usize) -> Emulation {
    let workers = emulation.hosts.by_rank().to_vec();
    let hosts = workers.iter().copied().chain((0..shards).map(|shard| workers[shard % workers.len()])).collect();
    let hosts = Hosts::of_ranks(hosts).unwrap_or(emulation.hosts);
    Emulation { hosts, ..emulation }
}

impl Met {
    /// After the last iteration: lets the servers go.
    ///
    /// # Errors
    /// One of them could not go on.
    pub fn part(self) -> Result<(), Failure> {
        if let Peers::Servers(server) = &self.peers {
            server.stop().map_err(failed)?;
        }
        self.shards.into_iter().try_for_each(|shard| shard.join().map(drop).map_err(failed))
    }
}

fn failed(error: ServerError) -> Failure {
    Failure::from(TrainError::from(error))
}
