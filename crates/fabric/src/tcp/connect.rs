//! Opens the connections of TCP links: of two ranks the lower accepts and the higher dials.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::wire::Wire;
use super::{TcpAcceptor, TcpLink, TcpOptions};
use crate::LinkError;
use crate::control::{Arrival, Channel, Event, MessageError, Reception, dial, has_left};
use crate::environment::Network;
use crate::interfaces::{ADMIT_OTHERS, Interface, admission, interfaces};
use crate::rendezvous::{Member, Members, Process};
use crate::security::{Credentials, SecurityError};
use crate::system::{is_out_of_descriptors, next_step_after};
use crate::text::{Advised, Clauses, Ranks, list};

/// Bytes of a [`Preamble`] or a [`Reply`] at most.
const MESSAGE_BYTES_MAX: usize = 1 << 10;

/// Between attempts to dial.
const PAUSE: Duration = Duration::from_millis(20);

/// How long a connection that was opened may stay unanswered before another address is tried. Long: a peer answers
/// only when it has come so far itself.
const REPLY_PATIENCE: Duration = Duration::from_secs(10);

/// What to do about ranks that do not find each other.
const COMMON_NETWORK: &str = "let PACELINE_INTERFACE name the network that all hosts share, and firewalls pass \
                              PACELINE_PORT_RANGE";

/// What to do about a rank that listens on its own loopback only.
const ADMIT_US: &str =
    "give all ranks the same PACELINE_SECRET_FILE, or --insecure (PACELINE_INSECURE=1) on a network that you trust";

/// What to do about ranks that were told different things.
const SAME_OPTIONS: &str = "give all ranks the same options";

/// How often one side looks whether the other has failed.
const TICK: Duration = Duration::from_millis(50);

/// How links over TCP are opened.
#[derive(Clone, Debug)]
pub struct TcpConnectOptions {
    /// Connections per link, the same on all ranks.
    pub streams: u32,
    /// What each link is opened with.
    pub link: TcpOptions,
    /// Who is admitted.
    pub network: Network,
}

impl Default for TcpConnectOptions {
    /// One connection: more pay only where one cannot fill the network.
    fn default() -> TcpConnectOptions {
        TcpConnectOptions { streams: 1, link: TcpOptions::default(), network: Network::default() }
    }
}

/// Links, and what is worth a line in a log.
pub struct TcpConnected {
    /// By the peer's rank.
    pub links: BTreeMap<u32, TcpLink>,
    /// Which addresses were used, and who was turned away.
    pub notes: Vec<String>,
}

/// Why links could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum TcpConnectError {
    /// A lower rank could not be reached.
    #[error("no TCP link to rank {rank} ({process}): {}", Advised(.reason, .next_step))]
    Unreachable {
        /// Its rank.
        rank: u32,
        /// Who it is.
        process: Process,
        /// How the last attempts ended.
        reason: String,
        /// What to do about it.
        next_step: String,
    },
    /// Higher ranks did not dial.
    #[error("{} did not open a TCP link in time{}; {}", Ranks(.missing), Clauses(.turned_away), self.next_step())]
    Missing {
        /// Who did not.
        missing: Vec<u32>,
        /// And who the first of them is.
        process: Process,
        /// Who was turned away, and why.
        turned_away: Vec<String>,
    },
    /// Two ranks were told different things.
    #[error("rank {rank} ({process}) opens {theirs} connections per link, this rank {ours}: {SAME_OPTIONS}")]
    Streams {
        /// The other rank.
        rank: u32,
        /// Who it is.
        process: Process,
        /// Its number.
        theirs: u32,
        /// Ours.
        ours: u32,
    },
    /// This rank has nothing to prove itself with.
    #[error("{0}")]
    Credentials(#[source] SecurityError),
    /// A socket refused its options.
    #[error("TCP link to rank {rank}: {source}; {}", self.next_step())]
    Link {
        /// The peer.
        rank: u32,
        /// Why.
        #[source]
        source: LinkError,
    },
    /// The operating system refused.
    #[error("opening TCP links, {doing}: {source}; {}", self.next_step())]
    Io {
        /// What was tried.
        doing: &'static str,
        /// Its answer.
        #[source]
        source: io::Error,
    },
}

impl TcpConnectError {
    /// Who is to blame, and its host. Without one it is this rank or its host.
    pub fn culprit(&self) -> Option<(u32, &str)> {
        match self {
            TcpConnectError::Unreachable { rank, process, .. } | TcpConnectError::Streams { rank, process, .. } => {
                Some((*rank, &*process.host))
            }
            TcpConnectError::Missing { missing, process, .. } => Some((*missing.first()?, &*process.host)),
            _ => None,
        }
    }

    /// What to do about it: the end of the message.
    pub fn next_step(&self) -> String {
        match self {
            TcpConnectError::Unreachable { next_step, .. } => next_step.clone(),
            TcpConnectError::Missing { missing, process, .. } => {
                let first = missing.first().map_or(String::new(), |rank| format!("rank {rank} ({process})"));
                format!("look at the output of {first}, or {COMMON_NETWORK}")
            }
            TcpConnectError::Streams { .. } => SAME_OPTIONS.into(),
            TcpConnectError::Credentials(error) => error.next_step().into(),
            TcpConnectError::Link { source, .. } => source.next_step(),
            TcpConnectError::Io { source, .. } => next_step_after(source),
        }
    }
}

/// Opens a link to each of `peers` (ranks other than this one; each must name us in turn).
///
/// # Errors
/// If one cannot be had before the deadline; names the rank.
pub fn connect_tcp(
    members: &Members,
    acceptor: TcpAcceptor,
    peers: &BTreeSet<u32>,
    options: &TcpConnectOptions,
    deadline: Instant,
) -> Result<TcpConnected, TcpConnectError> {
    assert!(options.streams > 0, "a link has at least one connection");
    let io = |doing| move |source| TcpConnectError::Io { doing, source };
    let interfaces = interfaces().map_err(io("listing the network interfaces"))?;
    let credentials = Credentials::for_links(&options.network, &members.job, &members.nonce);
    let credentials = credentials.map_err(TcpConnectError::Credentials)?;
    let failed = AtomicBool::new(false);
    let work = Work { members, options, credentials, interfaces, deadline, failed: &failed };
    let (lower, higher): (Vec<u32>, Vec<u32>) = peers.iter().partition(|&&peer| peer < members.rank);
    let (dialled, accepted) = thread::scope(|scope| {
        // Both at a time: whoever dialled first would wait for a peer that does the same.
        let accepting = scope.spawn(|| work.or_fail(work.accept_all(&acceptor, &higher)));
        let dialled = work.or_fail(work.dial_all(&lower));
        (dialled, accepting.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    });
    let (mut half, other) = (dialled?, accepted?);
    half.channels.extend(other.channels);
    half.notes.extend(other.notes);
    let link = |(rank, channels): (u32, Vec<Channel>)| {
        let wires = channels.into_iter().map(Wire::from).collect();
        let link = TcpLink::over(wires, options.link, options.network.congestion_control);
        let link = link.map_err(|source| TcpConnectError::Link { rank, source })?;
        Ok((rank, link))
    };
    let links = half.channels.into_iter().map(link).collect::<Result<_, _>>()?;
    Ok(TcpConnected { links, notes: half.notes })
}

/// What the two sides share.
struct Work<'a> {
    members: &'a Members,
    options: &'a TcpConnectOptions,
    credentials: Credentials,
    interfaces: Vec<Interface>,
    deadline: Instant,
    /// One side has failed: the other may stop.
    failed: &'a AtomicBool,
}

/// What one side has done. Incomplete if the other has failed.
#[derive(Default)]
struct Half {
    channels: BTreeMap<u32, Vec<Channel>>,
    notes: Vec<String>,
}

/// What the dialling rank says first on each connection, after the handshake if there is a secret.
#[derive(Serialize, Deserialize)]
struct Preamble {
    nonce: [u8; 16],
    from: u32,
    to: u32,
    stream: u32,
    streams: u32,
}

/// What the accepting rank answers.
#[derive(Serialize, Deserialize)]
enum Reply {
    Accepted,
    /// You are not who you should be, or not where you think: another of the peer's addresses may be right.
    NotHere {
        reason: String,
    },
    /// The ranks disagree: no other address will help.
    Refused {
        reason: String,
    },
}

impl Work<'_> {
    fn or_fail(&self, result: Result<Half, TcpConnectError>) -> Result<Half, TcpConnectError> {
        self.failed.fetch_or(result.is_err(), Ordering::Relaxed);
        result
    }

    fn dial_all(&self, lower: &[u32]) -> Result<Half, TcpConnectError> {
        let mut half = Half::default();
        for &rank in lower {
            let mut streams = Vec::new();
            for stream in 0..self.options.streams {
                match self.dial_until(rank, stream)? {
                    Some(channel) => streams.push(channel),
                    None => return Ok(half),
                }
            }
            if let Some(address) = streams.first().and_then(|channel| channel.socket.peer_addr().ok()) {
                half.notes.push(format!("rank {rank}: TCP to {address}, connections: {}", streams.len()));
            }
            half.channels.insert(rank, streams);
        }
        Ok(half)
    }

    /// Tries the peer's addresses in turn. None if the other side has failed.
    fn dial_until(&self, rank: u32, stream: u32) -> Result<Option<Channel>, TcpConnectError> {
        let member = &self.members.members[rank as usize];
        let unreachable = |(reason, next_step): (String, &str)| {
            let (process, next_step) = (member.into(), next_step.to_owned());
            TcpConnectError::Unreachable { rank, process, reason, next_step }
        };
        let addresses = self.candidates(member).map_err(unreachable)?;
        let mut distrust: Option<(String, SecurityError)> = None;
        loop {
            let mut last = Vec::new();
            for &address in &addresses {
                match self.dial_once(rank, stream, address) {
                    Ok((Reply::Accepted, channel)) => return Ok(Some(channel)),
                    Ok((Reply::NotHere { reason }, _)) => last.push(format!("{address}: {reason}")),
                    Ok((Reply::Refused { reason }, _)) => {
                        return Err(unreachable((format!("it refuses: {reason}"), SAME_OPTIONS)));
                    }
                    // Nobody but us could end that, and we wait.
                    Err(MessageError::Io(source)) if is_out_of_descriptors(&source) => {
                        return Err(TcpConnectError::Io { doing: "dialling", source });
                    }
                    Err(error) => {
                        let why = format!("{address}: {error}");
                        if let MessageError::Security(error) = error {
                            distrust = Some((why.clone(), error));
                        }
                        last.push(why);
                    }
                }
            }
            if Instant::now() >= self.deadline {
                let Some((why, error)) = distrust else { return Err(unreachable((list(&last), COMMON_NETWORK))) };
                // It says more than that the last attempt had no time left.
                last.retain(|other| *other != why);
                last.push(why);
                return Err(unreachable((list(&last), error.next_step())));
            }
            if self.failed.load(Ordering::Relaxed) {
                return Ok(None);
            }
            thread::sleep(PAUSE);
        }
    }

    fn dial_once(&self, rank: u32, stream: u32, address: SocketAddr) -> Result<(Reply, Channel), MessageError> {
        let socket = dial(address, self.deadline)?;
        let (from, streams) = (self.members.rank, self.options.streams);
        let preamble = Preamble { nonce: self.members.nonce, from, to: rank, stream, streams };
        let patience = self.deadline.min(Instant::now() + REPLY_PATIENCE);
        let claim = self.credentials.claim(from, rank, stream);
        let mut channel = Channel::open(socket, &self.credentials, claim, patience)?;
        channel.send(&preamble, patience)?;
        let reply = channel.receive(MESSAGE_BYTES_MAX, patience)?;
        Ok((reply, channel))
    }

    /// The addresses of a peer that are worth a try, the best first; or why none is, and what to do about it.
    fn candidates(&self, member: &Member) -> Result<Vec<SocketAddr>, (String, &'static str)> {
        let same_host = member.identity.is_same_host(&self.members.own().identity);
        let mut addresses: Vec<SocketAddr> =
            member.addresses.iter().copied().filter(|address| same_host || !address.ip().is_loopback()).collect();
        if addresses.is_empty() {
            let there = list(&member.addresses);
            let reason = format!("it listens only where this host cannot reach it ({there}): it has no shared secret");
            return Err((reason, ADMIT_US));
        }
        // Loopback crosses no network; the address that rank 0 saw is one that can be reached from elsewhere.
        addresses.sort_by_key(|address| (!address.ip().is_loopback(), Some(address.ip()) != member.seen_at));
        let admitted = |address: &SocketAddr| admission(address.ip(), &self.interfaces, &self.options.network);
        let refusal = addresses.iter().find_map(|address| admitted(address).err());
        addresses.retain(|address| admitted(address).is_ok());
        if addresses.is_empty() { Err((refusal.unwrap_or_default(), ADMIT_OTHERS)) } else { Ok(addresses) }
    }

    fn accept_all(&self, acceptor: &TcpAcceptor, higher: &[u32]) -> Result<Half, TcpConnectError> {
        let io = |source| TcpConnectError::Io { doing: "waiting for connections", source };
        let mut reception =
            Reception::new(&acceptor.listeners, &self.credentials, self.members.rank, MESSAGE_BYTES_MAX).map_err(io)?;
        let mut expected: BTreeMap<u32, Vec<Option<Channel>>> =
            higher.iter().map(|&rank| (rank, (0..self.options.streams).map(|_| None).collect())).collect();
        while expected.values().flatten().any(Option::is_none) {
            if self.failed.load(Ordering::Relaxed) {
                return Ok(Half::default());
            }
            let event = reception.next(&[], self.deadline.min(Instant::now() + TICK)).map_err(io)?;
            if let Event::Arrival(arrival) = event {
                self.place(arrival, &mut expected, &mut reception)?;
            } else if Instant::now() >= self.deadline {
                let waits = |streams: &Vec<Option<Channel>>| streams.iter().any(Option::is_none);
                let missing: Vec<u32> =
                    expected.iter().filter(|(_, streams)| waits(streams)).map(|(&rank, _)| rank).collect();
                let process = (&self.members.members[missing[0] as usize]).into();
                return Err(TcpConnectError::Missing { missing, process, turned_away: reception.into_notes() });
            }
        }
        let channels = expected.into_iter().map(|(rank, streams)| (rank, streams.into_iter().flatten().collect()));
        Ok(Half { channels: channels.collect(), notes: reception.into_notes() })
    }

    /// Puts an authenticated connection where it belongs. One that comes twice replaces the first: its dialler has
    /// given that up.
    fn place(
        &self,
        mut arrival: Arrival,
        expected: &mut BTreeMap<u32, Vec<Option<Channel>>>,
        reception: &mut Reception<'_>,
    ) -> Result<(), TcpConnectError> {
        let (from, soon) = (arrival.from, Instant::now() + TICK);
        let preamble = match self.authenticate(&arrival) {
            Ok(preamble) => preamble,
            Err(reason) => {
                reception.turned_away(from, &reason);
                let _ = arrival.channel.send(&Reply::NotHere { reason }, soon);
                return Ok(());
            }
        };
        let (rank, theirs, ours) = (preamble.from, preamble.streams, self.options.streams);
        let mut refuse = |reason: String| arrival.channel.send(&Reply::Refused { reason }, soon);
        // A rank that there is not, expects nobody.
        if let (true, Some(member)) = (theirs != ours, self.members.members.get(rank as usize)) {
            let error = TcpConnectError::Streams { rank, process: member.into(), theirs, ours };
            let _ =
                refuse(format!("rank {rank} opens {theirs} connections per link, rank {} {ours}", self.members.rank));
            return Err(error);
        }
        let Some(place) = expected.get_mut(&rank).and_then(|streams| streams.get_mut(preamble.stream as usize)) else {
            let reason = format!("rank {} expects no such connection from rank {rank}", self.members.rank);
            reception.turned_away(from, &reason);
            let _ = refuse(reason);
            return Ok(());
        };
        if has_left(&arrival.channel.socket) {
            // Its dialler has given it up, and dials again.
            reception.turned_away(from, &"it was over before it was answered");
            return Ok(());
        }
        match arrival.channel.send(&Reply::Accepted, soon) {
            Ok(()) => *place = Some(arrival.channel),
            Err(error) => reception.turned_away(from, &error),
        }
        Ok(())
    }

    /// Who opened this connection. Its address and the nonce of the job's table say it; with a secret, a handshake that
    /// both are part of has proven it before.
    fn authenticate(&self, arrival: &Arrival) -> Result<Preamble, String> {
        admission(arrival.from.ip(), &self.interfaces, &self.options.network)?;
        let preamble: Preamble = arrival.message().map_err(|error| error.to_string())?;
        if preamble.nonce != self.members.nonce {
            return Err("it belongs to another job".into());
        }
        let says = self.credentials.claim(preamble.from, preamble.to, preamble.stream);
        if arrival.claim.is_some_and(|claim| claim != says) {
            return Err(format!("it is not the connection of rank {} that its handshake proved", preamble.from));
        }
        if preamble.to != self.members.rank {
            return Err(format!("it looks for rank {}, this is rank {}", preamble.to, self.members.rank));
        }
        Ok(preamble)
    }
}
