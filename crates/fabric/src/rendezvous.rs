//! How ranks find each other: rank 0 listens at the meeting point, the rest dial it and say who they are, and rank 0
//! gives everyone the same table of members, or the reason why there is none.
//!
//! With a secret ([`Network::secret`]) a handshake proves on both sides that the other knows it, before anything is said,
//! and everything is encrypted. Without one only processes of this host are admitted, unless [`Network::insecure`] is
//! set. A stranger's bytes are bounded, checked, and cost it its connection.

mod error;
mod guest;
mod host;
mod refusal;

use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::environment::{MeetingPoint, Network, TIMEOUT_MAX, World};
use crate::security::{Credentials, random};
pub use error::{Process, RendezvousError};
pub use refusal::Refusal;

/// No [`Member`] is longer in a message.
const MEMBER_BYTES_MAX: usize = 64 << 10;

/// Bytes that a transport may tell its peers through the table.
pub const BLOB_BYTES_MAX: usize = 32 << 10;

/// The world as all its ranks know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Members {
    /// Of this process.
    pub rank: u32,
    /// How many ranks there are.
    pub world_size: u32,
    /// Names the job ([`World::job`]).
    pub job: String,
    /// Drawn by rank 0 for this job: who knows it has heard the table.
    pub nonce: [u8; 16],
    /// All of them, by rank.
    pub members: Vec<Member>,
    /// What is worth a line in a log: who was turned away, and why.
    pub notes: Vec<String>,
}

/// A rank, as it describes itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Counts from 0.
    pub rank: u32,
    /// The name of its host.
    pub host: String,
    /// Its process id there.
    pub process: u32,
    /// Which host and network that is.
    pub identity: HostIdentity,
    /// Where it listens for TCP links.
    pub addresses: Vec<SocketAddr>,
    /// The address that rank 0 saw it come from; none for rank 0 itself.
    pub seen_at: Option<IpAddr>,
    /// What its shared-memory transport has to say.
    pub blob: Vec<u8>,
}

/// Equal on processes of the same boot of the same host in the same network namespace: a hint that they share memory
/// and loopback, not a proof (anybody can say it).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostIdentity {
    /// `/proc/sys/kernel/random/boot_id`, or empty.
    pub boot: String,
    /// The inode of `/proc/self/ns/net`, or 0.
    pub network_namespace: u64,
}

impl HostIdentity {
    /// Of this process.
    pub fn here() -> HostIdentity {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let network_namespace = std::fs::metadata("/proc/self/ns/net").map_or(0, |metadata| metadata.ino());
        HostIdentity { boot: boot.trim().to_owned(), network_namespace }
    }

    /// Are both known and the same?
    pub fn is_same_host(&self, other: &HostIdentity) -> bool {
        !self.boot.is_empty() && self.network_namespace != 0 && self == other
    }
}

impl Member {
    /// This process as rank `rank`.
    fn here(rank: u32, addresses: Vec<SocketAddr>, blob: Vec<u8>) -> Member {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let process = std::process::id();
        Member { rank, host, process, identity: HostIdentity::here(), addresses, seen_at: None, blob }
    }
}

impl Members {
    /// This process.
    pub fn own(&self) -> &Member {
        &self.members[self.rank as usize]
    }

    /// The ranks that say they are on this host, without this one, in order.
    pub fn neighbours(&self) -> impl Iterator<Item = u32> {
        let same_host = |member: &&Member| member.identity.is_same_host(&self.own().identity);
        self.members.iter().filter(same_host).map(|member| member.rank).filter(|&rank| rank != self.rank)
    }
}

/// Meets the other ranks of `world` and returns when all are there. `addresses` and `blob` are what this rank tells the
/// others; `timeout` counts from the call on rank 0, and from the call until rank 0 answers on the others.
///
/// Nothing stays open. An inherited listener ([`World::listener`]) is consumed.
///
/// # Errors
/// If not all ranks come in time, or if they disagree about the world or the secret. Every rank that has reached rank 0
/// learns the same reason.
///
/// # Panics
/// If `blob` is longer than [`BLOB_BYTES_MAX`], there are more than 256 addresses, or the world has several ranks and
/// no meeting point.
pub fn meet(
    world: &World,
    network: &Network,
    timeout: Duration,
    addresses: Vec<SocketAddr>,
    blob: Vec<u8>,
) -> Result<Members, RendezvousError> {
    assert!(blob.len() <= BLOB_BYTES_MAX && addresses.len() <= 256, "more than a member may say");
    let (start, timeout) = (Instant::now(), timeout.min(TIMEOUT_MAX));
    let own = Member::here(world.rank, addresses, blob);
    if world.world_size == 1 {
        let job = world.job.clone();
        return Ok(Members { rank: 0, world_size: 1, job, nonce: nonce()?, members: vec![own], notes: Vec::new() });
    }
    let credentials = Credentials::for_rendezvous(network, &world.job).map_err(RendezvousError::Credentials)?;
    let meeting_point = world.meeting_point.as_ref().expect("a world of several ranks has a meeting point");
    let party = Party { world, network, credentials, meeting_point, own, start, timeout };
    if world.rank == 0 { host::host(&party) } else { guest::join(&party) }
}

/// Meets the other ranks of `world` only to learn who they are and on which hosts: afterwards they can still [`meet`] as
/// if nothing had been. All ranks call it, or none: whoever wants to connect at once is told so.
///
/// # Errors
/// As [`meet`].
///
/// # Panics
/// If the world has several ranks and no meeting point.
pub fn survey(world: &World, network: &Network, timeout: Duration) -> Result<Members, RendezvousError> {
    let first = ahead(world, "only to learn who is on which host".to_owned())?;
    meet(&first, network, timeout, Vec::new(), Vec::new())
}

/// The place of a world that meets where `world` will afterwards, as if nothing had been: a listener that is inherited stays for
/// that. `terms` say what tells this meeting from the others, alike on all ranks. Each place is for one meeting.
///
/// # Errors
/// There is no such listener, or no descriptor is left for it.
pub fn ahead(world: &World, terms: String) -> Result<World, RendezvousError> {
    let listener = world.listener.filter(|_| world.world_size > 1).map(host::second).transpose()?;
    Ok(World { listener, terms, ..world.clone() })
}

/// What both sides of the meeting work with.
struct Party<'a> {
    world: &'a World,
    network: &'a Network,
    credentials: Credentials,
    meeting_point: &'a MeetingPoint,
    own: Member,
    start: Instant,
    timeout: Duration,
}

impl Party<'_> {
    fn deadline(&self) -> Instant {
        self.start + self.timeout
    }
}

/// What a rank says first.
#[derive(Serialize, Deserialize)]
struct Hello {
    job: String,
    world_size: u32,
    terms: String,
    member: Member,
}

/// What rank 0 answers.
#[derive(Serialize, Deserialize)]
enum Answer {
    /// You are in: the rest will come within so many milliseconds, or you'll hear why not.
    Welcome { patience_ms: u64 },
    /// All are here.
    Table { nonce: [u8; 16], members: Vec<Member> },
    /// There will be no world with you.
    Refused { reason: Box<Refusal> },
}

fn nonce() -> Result<[u8; 16], RendezvousError> {
    random().map_err(|source| RendezvousError::Io { doing: "drawing a random number", source })
}
