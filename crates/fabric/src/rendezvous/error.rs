use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Member, Refusal};
use crate::environment::MeetingPoint;
use crate::interfaces::ADMIT_OTHERS;
use crate::security::SecurityError;
use crate::system::{is_out_of_descriptors, next_step_after};
use crate::text::{Advised, Seconds};

/// Why ranks did not meet.
#[derive(Debug, thiserror::Error)]
pub enum RendezvousError {
    /// This is rank 0, and it has ended the meeting.
    #[error("{0}")]
    Ended(Box<Refusal>),
    /// Rank 0 has given a reason.
    #[error("rank 0 at {meeting_point} ended the rendezvous: {reason}")]
    Refused {
        /// Where rank 0 is.
        meeting_point: MeetingPoint,
        /// What it said.
        reason: Box<Refusal>,
    },
    /// Somebody else listens where rank 0 should.
    #[error("port {} on {} is already in use by another program: {}", .address.port(), .address.ip(), self.next_step())]
    PortInUse {
        /// Where rank 0 wanted to listen.
        address: SocketAddr,
    },
    /// Rank 0 is not where the others look for it.
    #[error("rank 0 cannot listen at {meeting_point}: {source}; {}", self.next_step())]
    Listen {
        /// Where rank 0 wanted to listen.
        meeting_point: MeetingPoint,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
    /// The inherited descriptor is of no use.
    #[error("PACELINE_RENDEZVOUS_FD={descriptor} is not a listening TCP socket: {}", self.next_step())]
    NotListening {
        /// The descriptor.
        descriptor: i32,
    },
    /// Rank 0 could not be reached.
    #[error("rank 0 at {meeting_point} did not answer within {} ({last}); {}", Seconds(*.waited), self.next_step())]
    NoAnswer {
        /// Where it should be.
        meeting_point: MeetingPoint,
        /// How long this rank tried.
        waited: Duration,
        /// How the last attempt ended.
        last: String,
    },
    /// Somebody else answers in rank 0's place.
    #[error("what listens at {meeting_point} is not rank 0: {what}; {}", self.next_step())]
    NotPaceline {
        /// Where rank 0 should be.
        meeting_point: MeetingPoint,
        /// What it does.
        what: String,
    },
    /// Rank 0 is of another version.
    #[error(
        "rank 0 at {meeting_point} speaks version {theirs} of the control protocol, this rank version {ours}: {}",
        self.next_step()
    )]
    Version {
        /// Where rank 0 is.
        meeting_point: MeetingPoint,
        /// Its version.
        theirs: u16,
        /// This rank's version.
        ours: u16,
    },
    /// Rank 0 was there, and is no more.
    #[error("rank 0 at {meeting_point} left before all ranks had come: {}", self.next_step())]
    RankZeroLeft {
        /// Where it was.
        meeting_point: MeetingPoint,
    },
    /// This rank and rank 0 do not trust each other.
    #[error("rank 0 at {meeting_point}: {source}")]
    Security {
        /// Where rank 0 is.
        meeting_point: MeetingPoint,
        /// Why.
        #[source]
        source: SecurityError,
    },
    /// This rank has nothing to prove itself with.
    #[error("{0}")]
    Credentials(#[source] SecurityError),
    /// Rank 0 is on another host, and nothing would prove that it is rank 0.
    #[error("rank 0 at {meeting_point}: {}", Advised(.reason, self.next_step()))]
    NotAdmitted {
        /// Where rank 0 is.
        meeting_point: MeetingPoint,
        /// Why it is not dialled.
        reason: String,
    },
    /// The operating system refused.
    #[error("rendezvous, {doing}: {source}; {}", self.next_step())]
    Io {
        /// What was tried.
        doing: &'static str,
        /// Its answer.
        #[source]
        source: io::Error,
    },
}

impl RendezvousError {
    /// Who is to blame, and its host as far as that is known. Without one it is this rank, its host, or nobody.
    pub fn culprit(&self) -> Option<(u32, Option<&str>)> {
        match self {
            RendezvousError::Ended(reason) => reason.culprit(),
            RendezvousError::Refused { meeting_point, reason } => {
                let of_rank_zero = |rank: u32| Some(&*meeting_point.host).filter(|_| rank == 0);
                reason.culprit().map(|(rank, host)| (rank, host.or(of_rank_zero(rank))))
            }
            RendezvousError::NoAnswer { meeting_point, .. }
            | RendezvousError::Version { meeting_point, .. }
            | RendezvousError::RankZeroLeft { meeting_point }
            | RendezvousError::Security { meeting_point, .. }
            | RendezvousError::NotAdmitted { meeting_point, .. } => Some((0, Some(&*meeting_point.host))),
            _ => None,
        }
    }

    /// What to do about it: the end of the message.
    pub fn next_step(&self) -> String {
        let words = match self {
            RendezvousError::Ended(reason) | RendezvousError::Refused { reason, .. } => return reason.next_step(),
            RendezvousError::Listen { source, .. } if is_out_of_descriptors(source) => return next_step_after(source),
            RendezvousError::Io { source, .. } => return next_step_after(source),
            RendezvousError::Security { source, .. } | RendezvousError::Credentials(source) => source.next_step(),
            RendezvousError::PortInUse { .. } => "end it, or let PACELINE_RENDEZVOUS name a free port",
            RendezvousError::Listen { .. } => "it must run on the host that is named there",
            RendezvousError::NotListening { .. } => "unset the variable, or let the launcher set it",
            RendezvousError::NoAnswer { .. } => "see whether it is running, and whether the address is right",
            RendezvousError::NotPaceline { .. } => "end that program, or let PACELINE_RENDEZVOUS name another port",
            RendezvousError::Version { .. } => "run the same Paceline on all ranks",
            RendezvousError::RankZeroLeft { .. } => "look at the output of rank 0, then start the job again",
            RendezvousError::NotAdmitted { .. } => ADMIT_OTHERS,
        };
        words.into()
    }
}

impl From<Refusal> for RendezvousError {
    fn from(reason: Refusal) -> RendezvousError {
        RendezvousError::Ended(Box::new(reason))
    }
}

/// A process, to find it again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("host {host}, process {process}")]
pub struct Process {
    /// The name of its host.
    pub host: String,
    /// Its id there.
    pub process: u32,
}

impl From<&Member> for Process {
    fn from(member: &Member) -> Process {
        Process { host: member.host.clone(), process: member.process }
    }
}
