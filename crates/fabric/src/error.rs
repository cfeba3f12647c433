use std::io;

use crate::system::next_step_after;

/// Why a link ended. It knows neither rank nor operation; the communicator adds both.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The peer closed the connection or its process ended.
    #[error("the connection was closed by the other side")]
    Closed,
    /// The peer does not keep to the protocol.
    #[error("the peer {what}")]
    Protocol {
        /// What it did, as the predicate of a sentence.
        what: String,
    },
    /// The operating system refused.
    #[error("{doing}: {source}")]
    Io {
        /// What was tried.
        doing: &'static str,
        /// Its answer.
        #[source]
        source: io::Error,
    },
}

impl LinkError {
    /// What to do about it, where no operation was pending that says more.
    pub fn next_step(&self) -> String {
        match self {
            LinkError::Closed => "look at the output of the other rank, then start the job again".into(),
            LinkError::Protocol { .. } => "run the same Paceline on all ranks".into(),
            LinkError::Io { source, .. } => next_step_after(source),
        }
    }
}
