use std::io;
use std::path::PathBuf;

use paceline_comm::CommError;
use paceline_schedule::ScheduleError;
use paceline_server::ServerError;
use paceline_strategy::StrategyError;

use crate::backend::BackendError;
use crate::data::DataError;
use crate::executed::PlanFileError;
use crate::memory::MemoryError;

/// Why training did not start or did not finish.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrainError {
    /// The options make no sense, or not together.
    #[error("{0}")]
    Options(String),
    /// The strategy is none.
    #[error("strategy `{text}`: {source}")]
    Strategy {
        /// What was given.
        text: String,
        /// What is wrong with it, and where.
        #[source]
        source: StrategyError,
    },
    /// The strategy's schedule cannot be planned.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
    /// The servers cannot do what they were told, or are lost.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// There is not as much memory as the run takes.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The executed plan could not be written.
    #[error(transparent)]
    PlanFile(#[from] PlanFileError),
    /// The data cannot be used.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The framework failed.
    #[error("rank {rank}: {source}")]
    Backend {
        /// The rank that reports.
        rank: usize,
        /// Its answer.
        #[source]
        source: BackendError,
    },
    /// The communicator failed; its message names rank, host and operation.
    #[error("{doing}: {source}")]
    Communication {
        /// What training did then.
        doing: &'static str,
        /// The communicator's answer.
        #[source]
        source: Box<CommError>,
    },
    /// The ranks were not started alike.
    #[error(
        "rank {rank} differs from rank 0 in {subject}: {there} at rank {rank}, {here} at rank 0; start every rank with \
         the same program, options and data"
    )]
    Disagreement {
        /// The first rank that differs from rank 0.
        rank: usize,
        /// The first thing in which it differs.
        subject: String,
        /// What rank 0 has.
        here: String,
        /// What `rank` has.
        there: String,
    },
    /// Training diverged. Every rank says so in the same iteration.
    #[error(
        "{what} is not finite in iteration {iteration}: training diverged; lower the learning rate (now {learning_rate}) \
         or enlarge the batch"
    )]
    NotFinite {
        /// "the gradient", "the loss".
        what: &'static str,
        /// Counted from 1.
        iteration: usize,
        /// What it was trained with.
        learning_rate: f32,
    },
    /// Communication has given a wrong sum: a bug, or broken hardware.
    #[error(
        "rank {rank}: element {element} of tensor {tensor} has the sum {found} in iteration {iteration}, and it must be \
         {expected}; please report this with the command line"
    )]
    WrongSum {
        /// The rank that reports.
        rank: usize,
        /// The tensor's number.
        tensor: usize,
        /// The element's number in the tensor.
        element: usize,
        /// Counted from 1.
        iteration: usize,
        /// What it must be.
        expected: f32,
        /// What it is.
        found: f32,
    },
    /// The parameters could not be written.
    #[error("rank {rank}: cannot write the parameters to {path}: {source}")]
    Dump {
        /// The rank that reports.
        rank: usize,
        /// The file or directory.
        path: PathBuf,
        /// The reason.
        #[source]
        source: io::Error,
    },
    /// The threads that compute could not be started.
    #[error(
        "cannot start {threads} compute threads: {message}; ask for fewer, or raise the limit on processes (ulimit -u)"
    )]
    Threads {
        /// How many.
        threads: usize,
        /// The reason.
        message: String,
    },
}

/// Says what training did when the communicator failed.
pub(crate) trait WhileTraining<T> {
    fn while_training(self, doing: &'static str) -> Result<T, TrainError>;
}

impl<T> WhileTraining<T> for Result<T, CommError> {
    fn while_training(self, doing: &'static str) -> Result<T, TrainError> {
        self.map_err(|source| TrainError::Communication { doing, source: Box::new(source) })
    }
}
