use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use super::Member;
use crate::environment::MeetingPoint;
use crate::security::SecurityError;
use crate::text::{Clauses, Ranks, Seconds, Terms};

/// Why ranks did not meet.
#[derive(Debug, thiserror::Error)]
pub enum RendezvousError {
    /// Rank 0 waited in vain.
    #[error("{} never came within {} (have {}){}", Ranks(.missing), Seconds(*.waited), Ranks::numbers(.have), Clauses(.turned_away))]
    Missing {
        /// Who did not come.
        missing: Vec<u32>,
        /// Who did.
        have: Vec<u32>,
        /// How long rank 0 waited.
        waited: Duration,
        /// Who was turned away, and why.
        turned_away: Vec<String>,
    },
    /// Two ranks count differently.
    #[error("rank {rank} says the world has {theirs} ranks, rank 0 says {ours}: start all with the same world size")]
    WorldSize {
        /// Who disagrees with rank 0.
        rank: u32,
        /// What it says.
        theirs: u32,
        /// What rank 0 says.
        ours: u32,
    },
    /// Two ranks mean different things to come of the meeting.
    #[error("rank {rank} ({process}) comes {}, rank 0 {}: start all ranks with the same arguments", Terms(.theirs), Terms(.ours))]
    Terms {
        /// Who disagrees with rank 0.
        rank: u32,
        /// Who that is.
        process: Process,
        /// What it has said.
        theirs: String,
        /// What rank 0 says.
        ours: String,
    },
    /// Two processes have the same rank.
    #[error("two processes claim rank {rank}: {first} and {second}")]
    Duplicate {
        /// The rank.
        rank: u32,
        /// Who came first.
        first: Process,
        /// Who came second.
        second: Process,
    },
    /// A rank that does not exist.
    #[error("{process} says it is rank {rank}, and the world has {world_size} ranks")]
    NoSuchRank {
        /// The rank.
        rank: u32,
        /// Who says so.
        process: Process,
        /// How many there are.
        world_size: u32,
    },
    /// A rank ended before all had come.
    #[error("rank {rank} ({process}) left before all ranks had come (have {})", Ranks::numbers(.have))]
    Left {
        /// Its rank.
        rank: u32,
        /// Who it was.
        process: Process,
        /// Who is still there.
        have: Vec<u32>,
    },
    /// Somebody else listens where rank 0 should.
    #[error(
        "port {} on {} is already in use by another program: end it, or let PACELINE_RENDEZVOUS name a free port",
        .address.port(), .address.ip()
    )]
    PortInUse {
        /// Where rank 0 wanted to listen.
        address: SocketAddr,
    },
    /// Rank 0 is not where the others look for it.
    #[error("rank 0 cannot listen at {meeting_point}: {source}; it must run on the host that is named there")]
    Listen {
        /// Where rank 0 wanted to listen.
        meeting_point: MeetingPoint,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
    /// The inherited descriptor is of no use.
    #[error("PACELINE_RENDEZVOUS_FD={descriptor} is not a listening TCP socket")]
    NotListening {
        /// The descriptor.
        descriptor: i32,
    },
    /// Rank 0 could not be reached.
    #[error("rank 0 at {meeting_point} did not answer within {}: is it running, is the address right? ({last})", Seconds(*.waited))]
    NoAnswer {
        /// Where it should be.
        meeting_point: MeetingPoint,
        /// How long this rank tried.
        waited: Duration,
        /// How the last attempt ended.
        last: String,
    },
    /// Somebody else answers in rank 0's place.
    #[error("what listens at {meeting_point} is not rank 0: {what}")]
    NotPaceline {
        /// Where rank 0 should be.
        meeting_point: MeetingPoint,
        /// What it does.
        what: String,
    },
    /// Rank 0 was there, and is no more.
    #[error("rank 0 at {meeting_point} left before all ranks had come")]
    RankZeroLeft {
        /// Where it was.
        meeting_point: MeetingPoint,
    },
    /// Rank 0 has given a reason.
    #[error("rank 0 at {meeting_point} ended the rendezvous: {reason}")]
    Refused {
        /// Where rank 0 is.
        meeting_point: MeetingPoint,
        /// What it said.
        reason: String,
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
    #[error("rank 0 at {meeting_point}: {reason}")]
    NotAdmitted {
        /// Where rank 0 is.
        meeting_point: MeetingPoint,
        /// Why it is not dialled.
        reason: String,
    },
    /// The operating system refused.
    #[error("rendezvous, {doing}: {source}")]
    Io {
        /// What was tried.
        doing: &'static str,
        /// Its answer.
        #[source]
        source: io::Error,
    },
}

/// A process, to find it again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
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
