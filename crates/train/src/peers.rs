//! With whom a worker exchanges gradients.

use paceline_comm::Communicator;

/// With whom a worker exchanges gradients.
#[derive(Clone)]
#[non_exhaustive]
pub enum Peers {
    /// With all other workers.
    AllToAll(Communicator),
}

impl Peers {
    /// The communicator of the workers.
    pub fn workers(&self) -> &Communicator {
        match self {
            Peers::AllToAll(workers) => workers,
        }
    }

    /// Shards that serve the workers.
    pub fn shards(&self) -> usize {
        match self {
            Peers::AllToAll(_) => 0,
        }
    }
}

impl From<&Communicator> for Peers {
    fn from(workers: &Communicator) -> Peers {
        Peers::AllToAll(workers.clone())
    }
}
