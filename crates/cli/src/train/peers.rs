//! With whom a worker of `train` exchanges gradients: it meets them, and in the end lets them go.

use std::sync::Arc;

use paceline_comm::{Communicator, Config, Emulation, TransportChoice};
use paceline_fabric::environment::Environment;
use paceline_server::{Joined, ParameterServer, ServerError, ShardThread, join_beside};
use paceline_strategy::Strategy;
use paceline_train::{Peers, TrainError};

use crate::Registry;
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

/// Refuses what cannot be met here.
///
/// # Errors
/// The strategy wants servers on hosts of their own.
pub fn check(strategy: &Strategy) -> Result<(), Failure> {
    if strategy.servers(1, 1).is_some_and(|servers| servers.dedicated) {
        let what = format!(
            "arch={} wants servers on hosts of their own, and train starts them beside the workers",
            strategy.arch
        );
        return Err(Failure::usage(what).help("leave `dedicated` out; `paceline bench` has servers of their own"));
    }
    Ok(())
}

/// Meets the other workers and the servers that the strategy asks for, with so many TCP connections per pair of ranks.
///
/// # Errors
/// Not all came in time, or a link could not be opened.
pub fn meet(
    environment: Environment,
    transport: TransportChoice,
    tcp_streams: u32,
    emulation: Option<Emulation>,
    strategy: &Strategy,
    registry: &Registry,
) -> Result<Met, Failure> {
    if strategy.servers(1, 1).is_none() && !strategy.arch_is_open() {
        let world = workers::connect(environment, transport, tcp_streams, emulation)?;
        return Ok(Met { peers: Peers::from(&world), world, shards: Vec::new() });
    }
    let config = Config { tcp_streams, emulation, ..workers::config(environment, transport)? };
    let hosts = config.hosts()?;
    // Where the arch is open, each host has a shard, and as many serve as are predicted to be the fastest.
    let open = if hosts.ranks() > 1 { hosts.members().len() } else { 0 };
    let shards = strategy.servers(hosts.ranks(), hosts.members().len()).map_or(open, |servers| servers.shards);
    if shards == 0 {
        let world = Communicator::connect(config)?;
        return Ok(Met { peers: Peers::from(&world), world, shards: Vec::new() });
    }
    let joined = join_beside(config, &hosts, shards, &registry.serve_options(strategy)).map_err(failed)?;
    let Joined { world, roles, shards } = joined;
    let server = Arc::new(ParameterServer::connect(&world, roles).map_err(failed)?);
    Ok(Met { peers: Peers::from(&server), world, shards })
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
