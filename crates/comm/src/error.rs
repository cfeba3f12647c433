use paceline_collective::registry::UnknownAlgorithm;
use paceline_engine::Failure;

/// What went wrong in a call. Every text names the rank and host that reports, the operation, the rank and host that
/// caused it where there is one, and what to do next.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CommError {
    /// The operation failed, and with it the communicator: it must be formed again.
    #[error("rank {rank} on {host}: {operation} failed: {failure}{culprit_host}. {next_step}")]
    Failed {
        /// The rank that reports.
        rank: usize,
        /// Its host.
        host: String,
        /// The operation that was pending here.
        operation: String,
        /// Why.
        failure: Box<Failure>,
        /// ` (host NAME)`, or the hosts of those that are waited for, or nothing.
        culprit_host: String,
        /// What to do.
        next_step: String,
    },
    /// `wait` gave up before the operation did. It is still pending.
    #[error("rank {rank} on {host}: {operation} is not done yet after {waited_ms} ms; it is still pending")]
    NotDone {
        /// The rank that reports.
        rank: usize,
        /// Its host.
        host: String,
        /// The operation.
        operation: String,
        /// How long `wait` waited.
        waited_ms: u64,
    },
    /// The arguments do not fit each other or the world; nothing was sent.
    #[error("rank {rank}: {operation}: {what}")]
    Usage {
        /// The rank that reports.
        rank: usize,
        /// The call.
        operation: String,
        /// What is wrong, and what would be right.
        what: String,
    },
    /// No such algorithm for this collective; nothing was sent.
    #[error(transparent)]
    Algorithm(#[from] UnknownAlgorithm),
    /// The ranks could not be connected.
    #[error("{0}")]
    Connect(String),
    /// No memory.
    #[error("rank {rank} on {host}: cannot allocate {bytes} bytes for communication: {why}")]
    Memory {
        /// The rank that reports.
        rank: usize,
        /// Its host.
        host: String,
        /// How much.
        bytes: usize,
        /// The reason.
        why: String,
    },
}
