//! With whom a worker exchanges gradients.

use std::sync::Arc;

use paceline_comm::Communicator;
use paceline_server::ParameterServer;

/// With whom a worker exchanges gradients.
#[derive(Clone)]
pub enum Peers {
    /// With all other workers.
    AllToAll(Communicator),
    /// With shards, which serve until whoever has connected to them lets them go ([`ParameterServer::stop`]).
    Servers(Arc<ParameterServer>),
}

impl Peers {
    /// The communicator of the workers.
    pub fn workers(&self) -> &Communicator {
        match self {
            Peers::AllToAll(workers) => workers,
            Peers::Servers(server) => server.workers(),
        }
    }

    /// Shards that the workers have met, whether they serve under a plan or not.
    pub fn shards(&self) -> usize {
        match self {
            Peers::AllToAll(_) => 0,
            Peers::Servers(server) => server.roles().shards(),
        }
    }
}

impl From<&Communicator> for Peers {
    fn from(workers: &Communicator) -> Peers {
        Peers::AllToAll(workers.clone())
    }
}

impl From<ParameterServer> for Peers {
    fn from(server: ParameterServer) -> Peers {
        Peers::Servers(Arc::new(server))
    }
}

impl From<&Arc<ParameterServer>> for Peers {
    fn from(server: &Arc<ParameterServer>) -> Peers {
        Peers::Servers(server.clone())
    }
}

impl From<&Peers> for Peers {
    fn from(peers: &Peers) -> Peers {
        peers.clone()
    }
}
