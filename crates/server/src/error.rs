use paceline_comm::CommError;

use crate::assignment::AssignmentError;
use crate::roles::RolesError;

/// What goes wrong with a parameter server.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// The roles make no sense, or not in this world.
    #[error(transparent)]
    Roles(#[from] RolesError),
    /// The work that rank 0 has given out makes no sense, or not here.
    #[error("rank {rank} on {host}: the assignment cannot be carried out: {why}")]
    Assignment {
        /// The rank that reports.
        rank: usize,
        /// Its host.
        host: String,
        /// What is wrong.
        why: AssignmentError,
    },
    /// An operation failed, or there is no memory.
    #[error(transparent)]
    Comm(#[from] CommError),
    /// There was no thread for a shard.
    #[error("rank {rank} cannot start the thread of shard {shard}: {why}. Let fewer shards live beside one worker")]
    Thread {
        /// The worker.
        rank: usize,
        /// The shard.
        shard: usize,
        /// The operating system's words.
        why: String,
    },
    /// A bug, in the server or in the optimiser that it was given.
    #[error("the thread of shard {shard} panicked; what it printed says where")]
    Panicked {
        /// The shard.
        shard: usize,
    },
}
