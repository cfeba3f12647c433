use std::io;

use paceline_fabric::environment::EnvironmentError;
use paceline_fabric::rendezvous::{Refusal, RendezvousError};
use paceline_fabric::{AcceptorError, LinkError, TcpConnectError, is_out_of_descriptors, next_step_after};
use paceline_plan::{EmulationError, ShapeError};
use rustix::io::Errno;

/// What kept a world from forming, whichever part of it found out: the type under [`CommError::Connect`].
///
/// [`CommError::Connect`]: crate::CommError::Connect
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The environment does not say where this rank belongs.
    #[error(transparent)]
    Environment(#[from] EnvironmentError),
    /// The network that is to be emulated is not that of this world.
    #[error(transparent)]
    Emulation(#[from] EmulationError),
    /// Some ranks emulate a network, and others another one or none.
    #[error("{what}")]
    Emulations {
        /// Who does what.
        what: String,
    },
    /// The hosts do not fit the torus or the BCube that they are said to stand in.
    #[error(transparent)]
    Topology(#[from] ShapeError),
    /// This rank cannot listen for links.
    #[error(transparent)]
    Listen(#[from] AcceptorError),
    /// The ranks did not meet.
    #[error(transparent)]
    Rendezvous(#[from] RendezvousError),
    /// The links over TCP could not be opened.
    #[error(transparent)]
    Tcp(#[from] TcpConnectError),
    /// Shared memory, or a connection between threads, could not be set up.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// A rank shares no memory with this one, and links through shared memory were asked for.
    #[error("{purpose}, but rank {rank} (host {host}) shares no memory with this one ({why})")]
    NoSharedMemory {
        /// What shared memory is needed for, as a sentence.
        purpose: &'static str,
        /// The other rank.
        rank: u32,
        /// Its host.
        host: String,
        /// Why not.
        why: String,
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
    /// The arguments make no world.
    #[error("{what}")]
    Arguments {
        /// What is wrong.
        what: String,
        /// What would be right.
        next_step: &'static str,
    },
}

/// The reasons why a world does not form, as kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConnectCause {
    /// Ranks never came.
    Missing,
    /// Two processes claim the same rank.
    Duplicate,
    /// Ranks count the world differently.
    WorldSize,
    /// A rank is beyond the end of the world.
    NoSuchRank,
    /// A rank had come, and left before all were there.
    Left,
    /// A rank belongs to another job.
    Job,
    /// A rank is of another version of Paceline.
    Version,
    /// Ranks do not trust each other: no secret, another one, or one encrypts and the other does not.
    Secret,
    /// Another program has the port.
    Port,
    /// A rank is not reached: it does not answer, or its address is wrong.
    Unreachable,
    /// Shared memory was asked for, and there is none.
    SharedMemory,
    /// Arguments or variables make no sense, or differ between ranks.
    Options,
    /// A process or its machine is out of descriptors.
    Descriptors,
    /// The operating system refuses something else, here or at rank 0.
    System,
}

/// What all ranks of an emulated network have in common.
const SAME_EMULATION: &str = "give all ranks the same --emulate, --hosts and --dilate";

/// What fits the hosts.
const PLACES: &str = "give --topology (PACELINE_TOPOLOGY) as many places as the ranks have hosts, those that only serve included, or leave it out";

impl ConnectError {
    /// Which kind of reason it is.
    pub fn cause(&self) -> ConnectCause {
        // Why an address or shared memory was given up, is known in words only.
        if self.to_string().contains(&io::Error::from(Errno::MFILE).to_string()) {
            return ConnectCause::Descriptors;
        }
        match self {
            ConnectError::Environment(_)
            | ConnectError::Emulation(_)
            | ConnectError::Emulations { .. }
            | ConnectError::Topology(_)
            | ConnectError::Arguments { .. } => ConnectCause::Options,
            ConnectError::Listen(error) => match error {
                AcceptorError::NoInterface { .. } => ConnectCause::Options,
                AcceptorError::NoPort { .. } => ConnectCause::Port,
                AcceptorError::Io { source, .. } => of_system(source),
            },
            ConnectError::Rendezvous(error) => of_rendezvous(error),
            ConnectError::Tcp(error) => of_tcp(error),
            ConnectError::Link(error) => of_link(error),
            ConnectError::NoSharedMemory { .. } => ConnectCause::SharedMemory,
            ConnectError::Io { source, .. } => of_system(source),
        }
    }

    /// Who is to blame, and its host as far as that is known.
    pub(crate) fn culprit(&self) -> Option<(u32, Option<&str>)> {
        match self {
            ConnectError::Rendezvous(error) => error.culprit(),
            ConnectError::Tcp(error) => error.culprit().map(|(rank, host)| (rank, Some(host))),
            ConnectError::NoSharedMemory { rank, host, .. } => Some((*rank, Some(&**host))),
            _ => None,
        }
    }

    /// What to do about it.
    pub(crate) fn next_step(&self) -> String {
        let next_step = self.own_next_step();
        // Rank 0 says its own limit.
        let says_the_limit = next_step.contains("open files");
        match self.cause() {
            ConnectCause::Descriptors if !says_the_limit => next_step_after(&Errno::MFILE.into()),
            _ => next_step,
        }
    }

    fn own_next_step(&self) -> String {
        match self {
            ConnectError::Environment(error) => error.next_step(),
            ConnectError::Emulation(_) => "give --emulate, --hosts and --dilate that fit this world".into(),
            ConnectError::Emulations { .. } => SAME_EMULATION.into(),
            ConnectError::Topology(_) => PLACES.into(),
            ConnectError::Listen(error) => error.next_step(),
            ConnectError::Rendezvous(error) => error.next_step(),
            ConnectError::Tcp(error) => error.next_step(),
            ConnectError::Link(error) => error.next_step(),
            ConnectError::NoSharedMemory { purpose, .. } if *purpose == TRANSPORT_SHM => {
                "use transport auto or tcp".into()
            }
            ConnectError::NoSharedMemory { .. } => "start all ranks on one machine, with transport auto or shm".into(),
            ConnectError::Io { source, .. } => next_step_after(source),
            ConnectError::Arguments { next_step, .. } => (*next_step).into(),
        }
    }
}

/// What shared memory is needed for.
pub(crate) const TRANSPORT_SHM: &str = "transport shm was asked for";
pub(crate) const EMULATED_NETWORK: &str = "an emulated network is made of shared memory";

fn of_rendezvous(error: &RendezvousError) -> ConnectCause {
    match error {
        RendezvousError::Ended(reason) | RendezvousError::Refused { reason, .. } => of_refusal(reason),
        RendezvousError::PortInUse { .. } | RendezvousError::NotPaceline { .. } => ConnectCause::Port,
        RendezvousError::Listen { source, .. } if is_out_of_descriptors(source) => ConnectCause::Descriptors,
        RendezvousError::Listen { .. } | RendezvousError::NotListening { .. } => ConnectCause::Options,
        RendezvousError::NoAnswer { .. } => ConnectCause::Unreachable,
        RendezvousError::Version { .. } => ConnectCause::Version,
        RendezvousError::RankZeroLeft { .. } => ConnectCause::Left,
        RendezvousError::Security { .. } | RendezvousError::Credentials(_) | RendezvousError::NotAdmitted { .. } => {
            ConnectCause::Secret
        }
        RendezvousError::Io { source, .. } => of_system(source),
    }
}

fn of_refusal(refusal: &Refusal) -> ConnectCause {
    match refusal {
        Refusal::Missing { .. } => ConnectCause::Missing,
        Refusal::WorldSize { .. } => ConnectCause::WorldSize,
        Refusal::Terms { .. } => ConnectCause::Options,
        Refusal::Duplicate { .. } => ConnectCause::Duplicate,
        Refusal::NoSuchRank { .. } => ConnectCause::NoSuchRank,
        Refusal::Left { .. } => ConnectCause::Left,
        Refusal::Job { .. } => ConnectCause::Job,
        Refusal::NotAdmitted { .. } => ConnectCause::Secret,
        Refusal::Senseless { .. } => ConnectCause::Version,
        _ => ConnectCause::System,
    }
}

fn of_tcp(error: &TcpConnectError) -> ConnectCause {
    match error {
        TcpConnectError::Unreachable { .. } | TcpConnectError::Missing { .. } => ConnectCause::Unreachable,
        TcpConnectError::Streams { .. } => ConnectCause::Options,
        TcpConnectError::Credentials(_) => ConnectCause::Secret,
        TcpConnectError::Link { source, .. } => of_link(source),
        TcpConnectError::Io { source, .. } => of_system(source),
    }
}

fn of_link(error: &LinkError) -> ConnectCause {
    match error {
        LinkError::Closed => ConnectCause::Left,
        LinkError::Protocol { .. } => ConnectCause::Version,
        LinkError::Io { source, .. } => of_system(source),
    }
}

fn of_system(error: &io::Error) -> ConnectCause {
    if is_out_of_descriptors(error) { ConnectCause::Descriptors } else { ConnectCause::System }
}
