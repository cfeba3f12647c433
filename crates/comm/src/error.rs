use std::sync::Arc;

use paceline_collective::registry::UnknownAlgorithm;
use paceline_engine::Failure;
use paceline_fabric::Advised;

use crate::{ConnectCause, ConnectError};

/// What went wrong in a call. Every text names the rank and host that reports, the operation, the rank and host that
/// caused it where there is one, and what to do next.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CommError {
    /// The operation failed, and with it the communicator: it must be formed again.
    #[error("rank {rank} on {host}: {operation} failed: {failure}{whereabouts}. {next_step}")]
    Failed {
        /// The rank that reports.
        rank: usize,
        /// Its host.
        host: String,
        /// The operation that was pending here.
        operation: String,
        /// Why.
        failure: Box<Failure>,
        /// Who is to blame, if it is not this rank's own doing. Every survivor of a lost rank has the lost one here.
        culprit: Option<Box<Culprit>>,
        /// The hosts of the ranks that the failure names: ` (host NAME)`, ` (rank 1 on NAME, …)`, or nothing.
        whereabouts: String,
        /// What to do.
        next_step: String,
    },
    /// `wait` gave up before the operation did. It is still pending.
    #[error(
        "rank {rank} on {host}: {operation} is not done yet after {waited_ms} ms; it is still pending: wait for it again, or \
         see what the other ranks are doing"
    )]
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
    #[error("rank {rank} on {host}: {operation}: {what}")]
    Usage {
        /// The rank that reports.
        rank: usize,
        /// Its host.
        host: String,
        /// The call.
        operation: String,
        /// What is wrong, and what would be right.
        what: String,
    },
    /// No such algorithm for this collective; nothing was sent.
    #[error("rank {rank} on {host}: {unknown}")]
    Algorithm {
        /// The rank that reports.
        rank: usize,
        /// Its host.
        host: String,
        /// The name, and those that there are.
        unknown: UnknownAlgorithm,
    },
    /// The world could not be formed, and nothing of it is left.
    #[error("{}: {}", reporter(*.rank, .host), Advised(.error, .next_step))]
    Connect {
        /// The rank that reports. None where it is not known yet, or where all ranks are threads of one process.
        rank: Option<usize>,
        /// Its host.
        host: String,
        /// The kind of the reason.
        cause: ConnectCause,
        /// Who is to blame, where that is known; it may be the rank that reports.
        culprit: Option<Box<Culprit>>,
        /// The reason.
        error: Arc<ConnectError>,
        /// What to do.
        next_step: String,
    },
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

impl CommError {
    /// The world could not be formed, says this rank.
    pub(crate) fn connect(rank: Option<usize>, host: String, error: impl Into<ConnectError>) -> CommError {
        let error = error.into();
        let culprit = error.culprit().map(|(rank, host)| {
            let host = host.unwrap_or_default().to_owned();
            Box::new(Culprit { rank: rank as usize, host })
        });
        let (cause, next_step) = (error.cause(), error.next_step());
        CommError::Connect { rank, host, cause, culprit, error: Arc::new(error), next_step }
    }
}

/// Who reports, at the beginning of a sentence.
fn reporter(rank: Option<usize>, host: &str) -> String {
    rank.map_or_else(|| format!("on {host}"), |rank| format!("rank {rank} on {host}"))
}

/// A rank that a failure is blamed on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Culprit {
    /// Its rank in the world.
    pub rank: usize,
    /// Its host; empty if nobody knows it, because the rank never came.
    pub host: String,
}
