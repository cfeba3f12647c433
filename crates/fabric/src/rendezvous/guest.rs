//! The other ranks' side of the meeting.

use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use super::{Answer, Hello, MEMBER_BYTES_MAX, Member, Members, Party, RendezvousError};
use crate::control::{Channel, MessageError, VERSION, dial};
use crate::environment::World;
use crate::interfaces::{Interface, admission, interfaces};
use crate::system::is_out_of_descriptors;

/// Between attempts, at first and at most. Ranks often start before rank 0 listens.
const PAUSE_MIN: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// Rank 0 says how long it will wait. It is not believed more than this, or than our own patience.
const PATIENCE_MAX: Duration = Duration::from_secs(3600);

/// Rank 0 gives up first and says why; this is how much longer we listen.
const GRACE: Duration = Duration::from_secs(5);

/// Dials rank 0 until it answers, and waits for the table.
pub(super) fn join(party: &Party<'_>) -> Result<Members, RendezvousError> {
    let interfaces =
        interfaces().map_err(|source| RendezvousError::Io { doing: "listing the network interfaces", source })?;
    let mut pause = PAUSE_MIN;
    loop {
        let last = match attempt(party, &interfaces)? {
            Outcome::Table(members) => return Ok(members),
            Outcome::Again(last) => last,
        };
        let left = party.deadline().saturating_duration_since(Instant::now());
        if left.is_zero() {
            let (meeting_point, waited) = (party.meeting_point.clone(), party.timeout);
            return Err(RendezvousError::NoAnswer { meeting_point, waited, last });
        }
        std::thread::sleep(pause.min(left));
        pause = (pause * 3 / 2).min(PAUSE_MAX);
    }
}

enum Outcome {
    Table(Members),
    /// Not yet, and why.
    Again(String),
}

fn attempt(party: &Party<'_>, interfaces: &[Interface]) -> Result<Outcome, RendezvousError> {
    let meeting_point = party.meeting_point;
    let addresses: Vec<SocketAddr> = match (&*meeting_point.host, meeting_point.port).to_socket_addrs() {
        Ok(addresses) => addresses.collect(),
        // Nobody but us could end that, and we wait.
        Err(source) if is_out_of_descriptors(&source) => {
            return Err(RendezvousError::Io { doing: "looking up where rank 0 is", source });
        }
        // A name service may come up later than we do.
        Err(error) => return Ok(Outcome::Again(format!("its name is not known: {error}"))),
    };
    let (mut last, mut not_admitted) = (None, None);
    for address in addresses {
        if let Err(reason) = admission(address.ip(), interfaces, party.network) {
            not_admitted = Some(reason);
            continue;
        }
        last = Some(match dial(address, party.deadline()) {
            Ok(socket) => match converse(party, socket)? {
                Outcome::Table(members) => return Ok(Outcome::Table(members)),
                Outcome::Again(last) => last,
            },
            Err(source) if is_out_of_descriptors(&source) => {
                return Err(RendezvousError::Io { doing: "dialling rank 0", source });
            }
            Err(error) => error.to_string(),
        });
    }
    match (last, not_admitted) {
        (Some(last), _) => Ok(Outcome::Again(last)),
        (None, Some(reason)) => Err(RendezvousError::NotAdmitted { meeting_point: meeting_point.clone(), reason }),
        (None, None) => Ok(Outcome::Again("its name has no address".into())),
    }
}

fn converse(party: &Party<'_>, socket: TcpStream) -> Result<Outcome, RendezvousError> {
    let bytes_max = MEMBER_BYTES_MAX * party.world.world_size as usize;
    let (answer, mut channel) = match greet(party, socket, bytes_max) {
        Ok(answered) => answered,
        Err(error) => return unanswered(party, error),
    };
    let meeting_point = || party.meeting_point.clone();
    let patience = match answer {
        Answer::Welcome { patience_ms } => {
            Duration::from_millis(patience_ms).min(party.timeout.max(PATIENCE_MAX)) + GRACE
        }
        Answer::Refused { reason } => {
            return Err(RendezvousError::Refused { meeting_point: meeting_point(), reason });
        }
        Answer::Table { .. } => {
            let what = "it sends a table without a welcome".into();
            return Err(RendezvousError::NotPaceline { meeting_point: meeting_point(), what });
        }
    };
    match channel.receive(bytes_max, Instant::now() + patience) {
        Ok(Answer::Table { nonce, members }) => seated(party, nonce, members).map(Outcome::Table),
        Ok(Answer::Refused { reason }) => Err(RendezvousError::Refused { meeting_point: meeting_point(), reason }),
        Ok(Answer::Welcome { .. }) | Err(_) => Err(RendezvousError::RankZeroLeft { meeting_point: meeting_point() }),
    }
}

/// Says who is here, and hears rank 0's first answer.
fn greet(party: &Party<'_>, socket: TcpStream, bytes_max: usize) -> Result<(Answer, Channel), MessageError> {
    let World { rank, job, world_size, terms, .. } = party.world;
    let (job, terms, member) = (job.clone(), terms.clone(), party.own.clone());
    let claim = party.credentials.claim(*rank, 0, 0);
    let mut channel = Channel::open(socket, &party.credentials, claim, party.deadline())?;
    channel.send(&Hello { job, world_size: *world_size, terms, member }, party.deadline())?;
    Ok((channel.receive(bytes_max, party.deadline())?, channel))
}

/// What it means that there is no answer: the end, or that it is tried again.
fn unanswered(party: &Party<'_>, error: MessageError) -> Result<Outcome, RendezvousError> {
    let meeting_point = party.meeting_point.clone();
    match error {
        MessageError::Security(source) => Err(RendezvousError::Security { meeting_point, source }),
        MessageError::Version { theirs } => Err(RendezvousError::Version { meeting_point, theirs, ours: VERSION }),
        error @ MessageError::Malformed(_) => {
            Err(RendezvousError::NotPaceline { meeting_point, what: error.to_string() })
        }
        error => Ok(Outcome::Again(error.to_string())),
    }
}

/// The table must be that of this world.
fn seated(party: &Party<'_>, nonce: [u8; 16], members: Vec<Member>) -> Result<Members, RendezvousError> {
    let World { rank, job, world_size, .. } = party.world;
    let in_order = members.iter().zip(0..).all(|(member, rank)| member.rank == rank);
    if members.len() != *world_size as usize || !in_order {
        let what = "its table is not that of this world".into();
        return Err(RendezvousError::NotPaceline { meeting_point: party.meeting_point.clone(), what });
    }
    let (rank, world_size, job) = (*rank, *world_size, job.clone());
    Ok(Members { rank, world_size, job, nonce, members, notes: Vec::new() })
}
