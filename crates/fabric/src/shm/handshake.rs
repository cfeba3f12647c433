//! How two ranks make sure that they share memory, and set up their link.
//!
//! If the job has a secret, the greetings carry the Noise handshake of the TCP links, and all that follows is sealed, but for
//! what the lower rank refuses: there is no link before both have opened a sealed message. (What else a greeting says is not
//! sealed; the rest of the conversation tries it out.)
//!
//! The lower rank makes the segment. Each writes random bytes into it and says over the socket which bytes of the other
//! it has read there; the lower rank's arrive at the higher only through the memory, and the other way round. Then each
//! tries a single copy from the other's address space.

#[cfg(test)]
mod tests;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use rustix::mm::{Advice, ProtFlags};
use snow::TransportState;

use super::arena::Arena;
use super::doorbell::Doorbell;
use super::link::{Established, ShmLink};
use super::mapping::{Mapping, check_sealed};
use super::message::{Message, Nonce, VERSION, receive, same_user, send};
use super::process_memory;
use super::segment::Segment;
use super::talk::Talk;
use crate::security::{Credentials, Initiator, Response, SecurityError, random};

/// What one rank brings to every handshake.
pub(super) struct Party {
    pub(super) rank: u32,
    pub(super) secret: Nonce,
    /// To prove that it knows the job's secret; None if there is none.
    pub(super) credentials: Option<Arc<Credentials>>,
    pub(super) arena: Arc<Arena>,
    pub(super) doorbell: Arc<Doorbell>,
    /// Random bytes in ordinary memory, for peers to try a single copy on.
    pub(super) probe: Arc<Nonce>,
    pub(super) ring_bytes: usize,
    /// None: no references.
    pub(super) reference_above: Option<usize>,
    /// A file for all ranks that are higher than this one.
    pub(super) attachment: Option<Arc<OwnedFd>>,
}

/// The first message of a peer, understood.
pub(super) struct Hello {
    pub(super) rank: u32,
    secret: Nonce,
    ring_bytes: usize,
    arena_bytes: usize,
    probe: u64,
    references: bool,
    handshake: Vec<u8>,
    arena: OwnedFd,
    bell: OwnedFd,
    /// Only from the lower rank.
    segment: Option<OwnedFd>,
    attachment: Option<OwnedFd>,
}

impl Hello {
    /// Does the sender know our secret?
    pub(super) fn is_for(&self, party: &Party) -> bool {
        self.secret == party.secret
    }

    /// Takes the first message apart.
    pub(super) fn parse((message, fds): (Message, Vec<OwnedFd>)) -> Result<Hello, String> {
        let Message::Hello { version, rank, secret, ring_bytes, arena_bytes, probe, references, handshake } = message
        else {
            return Err("the other side does not begin with a greeting".into());
        };
        if version != VERSION {
            return Err(format!("the other side speaks version {version}, this one {VERSION}"));
        }
        let mut fds = fds.into_iter();
        let (Some(arena), Some(bell)) = (fds.next(), fds.next()) else {
            return Err("the other side sent no descriptors of its memory".into());
        };
        let length = |bytes| usize::try_from(bytes).map_err(|_| "the other side's memory is too large".to_owned());
        let (ring_bytes, arena_bytes) = (length(ring_bytes)?, length(arena_bytes)?);
        let (segment, attachment) = (fds.next(), fds.next());
        Ok(Hello {
            rank,
            secret,
            ring_bytes,
            arena_bytes,
            probe,
            references,
            handshake,
            arena,
            bell,
            segment,
            attachment,
        })
    }
}

impl Party {
    /// Begins the handshake with a lower rank: what to go on with, and what to say. Without a secret there is nothing to
    /// say.
    fn initiate(&self, rank: u32) -> Result<(Option<Initiator>, Vec<u8>), SecurityError> {
        let Some(credentials) = &self.credentials else { return Ok((None, Vec::new())) };
        let (initiator, opening) = credentials.initiate(credentials.claim(self.rank, rank, 0))?;
        Ok((Some(initiator), opening))
    }

    /// Answers the handshake of a higher rank; None if neither side has a secret.
    pub(super) fn respond(&self, hello: &Hello) -> Result<Option<Response>, SecurityError> {
        match (&self.credentials, hello.handshake.is_empty()) {
            (None, true) => Ok(None),
            (None, false) => Err(SecurityError::OnlyTheirSecret),
            (Some(_), true) => Err(SecurityError::OnlyOurSecret),
            (Some(credentials), false) => {
                let response = credentials.respond(&hello.handshake, self.rank)?;
                if response.claim.from == hello.rank { Ok(Some(response)) } else { Err(SecurityError::Handshake) }
            }
        }
    }
}

/// The higher rank's part, on a socket that it has just connected; `secret` is from the card of `rank`. Whatever keeps the
/// link from being established is told to the other side.
pub(super) fn dial(
    party: &Party,
    socket: OwnedFd,
    rank: u32,
    secret: Nonce,
    deadline: Instant,
) -> Result<ShmLink, String> {
    let draft = {
        let mut talk = Talk::new(socket.as_fd());
        introduce(party, &mut talk, rank, secret, deadline).inspect_err(|reason| talk.refuse(reason))?
    };
    draft.establish(party, socket)
}

fn introduce(party: &Party, talk: &mut Talk<'_>, rank: u32, secret: Nonce, deadline: Instant) -> Result<Draft, String> {
    let pid = same_user(talk.socket)?;
    let (initiator, opening) = party.initiate(rank).map_err(|error| error.to_string())?;
    send(talk.socket, &greeting(party, secret, opening), &[party.arena.file(), party.doorbell.bell()])?;
    let answer = receive(talk.socket, deadline)?;
    // First of all, so that a refusal is sealed, too: of others nobody would know that it is this rank's.
    if let (Some(initiator), Message::Hello { handshake, .. }) = (initiator, &answer.0) {
        talk.cipher = Some(initiator.finish(handshake).map_err(|error| error.to_string())?);
    }
    let hello = Hello::parse(answer)?;
    if hello.rank != rank || !hello.is_for(party) {
        return Err(format!("the other side is not rank {rank} of this job"));
    }
    let file = hello.segment.as_ref().ok_or("the other side sent no segment")?;
    let segment = Segment::open(file.as_fd(), hello.ring_bytes)?;
    let mut draft = Draft::new(segment, 1, pid, hello)?;
    talk.send(&draft.proof())?;
    draft.accept_proof(party, talk.receive(deadline)?)?;
    talk.send(&Message::Done)?;
    Ok(draft)
}

/// Why a caller gets no link.
pub(super) enum NoLink {
    /// It has proved nothing: the rank that it claims to be may be another, who still calls.
    Unproven(String),
    /// There is none with this rank.
    Final(String),
}

impl NoLink {
    /// Of a caller that has said nothing sealed. Without a secret nobody can, and each is believed.
    fn of_unsealed(party: &Party, reason: String) -> NoLink {
        if party.credentials.is_some() { NoLink::Unproven(reason) } else { NoLink::Final(reason) }
    }
}

/// A caller that was answered. It may only have said again what it has heard: what it says next tells.
pub(super) struct Answered {
    pub(super) rank: u32,
    socket: OwnedFd,
    draft: Draft,
    cipher: Option<Box<TransportState>>,
}

/// The lower rank's part, when the greeting of a peer has arrived, and [`Party::respond`] has found the `response` to it;
/// `secret` is from that peer's card.
pub(super) fn answer(
    party: &Party,
    socket: OwnedFd,
    hello: Hello,
    response: Option<Response>,
    secret: Nonce,
) -> Result<Answered, NoLink> {
    let rank = hello.rank;
    let refused = |reason: NoLink| {
        let (NoLink::Unproven(words) | NoLink::Final(words)) = &reason;
        refuse(socket.as_fd(), words);
        reason
    };
    let pid = same_user(socket.as_fd()).map_err(|reason| refused(NoLink::of_unsealed(party, reason)))?;
    let own = |reason: String| refused(NoLink::Final(reason));
    let (segment, file) =
        Segment::create(party.ring_bytes).map_err(|error| own(format!("making shared memory: {error}")))?;
    let draft = Draft::new(segment, 0, pid, hello).map_err(own)?;
    let mut fds = vec![party.arena.file(), party.doorbell.bell(), file.as_fd()];
    fds.extend(party.attachment.as_ref().map(|attachment| attachment.as_fd()));
    let (handshake, cipher) = response.map_or((Vec::new(), None), |response| (response.message, Some(response.cipher)));
    send(socket.as_fd(), &greeting(party, secret, handshake), &fds)
        .map_err(|reason| refused(NoLink::of_unsealed(party, reason)))?;
    Ok(Answered { rank, socket, draft, cipher })
}

impl Answered {
    /// Readable when the caller has said more, or has hung up.
    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Takes in what the caller has said, and waits for the rest of what a proven one says.
    pub(super) fn conclude(mut self, party: &Party, deadline: Instant) -> Result<ShmLink, NoLink> {
        let mut talk = Talk { cipher: self.cipher.take(), ..Talk::new(self.socket.as_fd()) };
        let outcome = self.draft.exchange_proofs(party, &mut talk, deadline);
        let is_proven = talk.is_proven;
        match outcome {
            Ok(()) => self.draft.establish(party, self.socket).map_err(NoLink::Final),
            Err(reason) => {
                refuse(self.socket.as_fd(), &reason);
                Err(if is_proven { NoLink::Final(reason) } else { NoLink::of_unsealed(party, reason) })
            }
        }
    }
}

/// Tells the other side why there is no link.
pub(super) fn refuse(socket: BorrowedFd<'_>, reason: &str) {
    // If the socket is broken, its end is the message.
    let _ = send(socket, &Message::refusal(reason), &[]);
}

fn greeting(party: &Party, secret: Nonce, handshake: Vec<u8>) -> Message {
    Message::Hello {
        version: VERSION,
        rank: party.rank,
        secret,
        ring_bytes: party.ring_bytes as u64,
        arena_bytes: party.arena.bytes() as u64,
        probe: Arc::as_ptr(&party.probe).addr() as u64,
        references: party.reference_above.is_some(),
        handshake,
    }
}

/// A link that is being set up.
struct Draft {
    segment: Arc<Segment>,
    side: usize,
    pid: i32,
    hello: Hello,
    /// What this side has written into the segment.
    written: Nonce,
    peer_arena: Option<Mapping>,
    peer_maps_arena: bool,
    peer_reads: Result<(), String>,
}

impl Draft {
    fn new(segment: Arc<Segment>, side: usize, pid: i32, hello: Hello) -> Result<Draft, String> {
        let written = random().map_err(|error| format!("drawing random bytes: {error}"))?;
        segment.side(side).write_nonce(written);
        let alignment = 2 << 20;
        let peer_arena = check_sealed(hello.arena.as_fd(), hello.arena_bytes)
            .ok()
            .and_then(|()| Mapping::of(&hello.arena, hello.arena_bytes, alignment, ProtFlags::READ).ok());
        if let Some(mapping) = &peer_arena {
            // A core dump of each rank need not contain the arenas of all.
            mapping.advise(Advice::LinuxDontDump);
        }
        let peer_reads = Err("the other side has not tried".into());
        Ok(Draft { segment, side, pid, hello, written, peer_arena, peer_maps_arena: false, peer_reads })
    }

    /// The lower rank's part once both have greeted.
    fn exchange_proofs(&mut self, party: &Party, talk: &mut Talk<'_>, deadline: Instant) -> Result<(), String> {
        self.accept_proof(party, talk.receive(deadline)?)?;
        talk.send(&self.proof())?;
        match talk.receive(deadline)? {
            Message::Done => Ok(()),
            _ => Err("the other side did not say that it is done".into()),
        }
    }

    /// What this side can see of the other's memory.
    fn proof(&self) -> Message {
        let mut probed = Nonce::default();
        // SAFETY: `probed` is as long as a nonce.
        let result = unsafe { process_memory::read(self.pid, self.hello.probe, probed.as_mut_ptr(), probed.len()) };
        Message::Proof {
            seen: self.segment.side(1 - self.side).read_nonce(),
            probed: result.map(|()| probed).map_err(|error| error.raw_os_error().unwrap_or(libc::EIO)),
            arena_mapped: self.peer_arena.is_some(),
        }
    }

    /// Believes what the other side says it has seen, if it is right.
    fn accept_proof(&mut self, party: &Party, message: Message) -> Result<(), String> {
        let Message::Proof { seen, probed, arena_mapped } = message else {
            return Err("the other side did not prove that it sees the shared memory".into());
        };
        if seen != self.written {
            return Err("the other side sees other memory".into());
        }
        self.peer_maps_arena = arena_mapped;
        self.peer_reads = match probed {
            Ok(probed) if probed == *party.probe => Ok(()),
            Ok(_) => Err(process_memory::explain_refusal(libc::ESRCH)),
            Err(code) => Err(process_memory::explain_refusal(code)),
        };
        Ok(())
    }

    fn establish(self, party: &Party, socket: OwnedFd) -> Result<ShmLink, String> {
        let hung_up = Arc::new(AtomicBool::new(false));
        let watched = party
            .doorbell
            .watch(socket.as_fd(), Arc::clone(&hung_up))
            .map_err(|error| format!("watching the Unix socket: {error}"))?;
        let referring = self.hello.references && (self.peer_maps_arena || self.peer_reads.is_ok());
        let peer_reads = match party.reference_above {
            Some(_) if self.hello.references => self.peer_reads,
            _ => Err("single copies are switched off".into()),
        };
        Ok(ShmLink::new(Established {
            segment: self.segment,
            side: self.side,
            socket,
            hung_up,
            doorbell: Arc::clone(&party.doorbell),
            _watched: watched,
            peer_pid: self.pid,
            peer_bell: self.hello.bell,
            attachment: self.hello.attachment,
            peer_arena: self.peer_arena,
            arena: Arc::clone(&party.arena),
            peer_maps_arena: self.peer_maps_arena,
            peer_reads,
            reference_above: party.reference_above.filter(|_| referring),
        }))
    }
}
