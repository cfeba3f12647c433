//! Turns the crank: moves what can move between the engine and the links.

use std::io::ErrorKind;
use std::time::Instant;

use paceline_engine::frame::{Header, Kind, lanes};
use paceline_engine::{Engine, Failure, Request, Stall, Time};
use paceline_fabric::{Descriptor, Link, LinkError, NO_TICKET, Piece};

use crate::buffer::Memory;
use crate::execute::{Trouble, execute};
use crate::memory::{Memories, OperationMemory};
use crate::outcome::{Outcomes, Ticket};
use crate::records::Ring;
use crate::sink::{Arriving, PeerSink};
use crate::staging::{PIECE_BYTES, traits_of};
use crate::trace::Tracer;
use crate::traffic::Traffic;

/// Pieces of local work between two looks at the links.
const WORK_PER_ROUND: usize = 4;

/// How long a peer that has withdrawn its memory may take to say why. It does so at once, if it is scheduled: where it is
/// not, blaming it too soon would blame one that only passes the reason on. (One that dies instead closes its link.)
const EXPLAIN: Time = Time::from_secs(5);

/// Everything that one rank's communicators share, behind one lock.
pub(crate) struct Core {
    pub engine: Engine,
    pub links: Vec<Option<Box<dyn Link>>>,
    pub memories: Memories,
    outcomes: Outcomes,
    pub records: Ring,
    /// While there is a trace.
    pub tracer: Option<Box<Tracer>>,
    /// Pending operations for which nobody may be waiting in a call.
    pub background: usize,
    pub origin: Instant,
    /// The peer whose link is looked at first.
    first: usize,
    /// Whom to send to first. Last comes whoever shares processors: woken, it may take them before the others are told.
    pub order: Vec<usize>,
    arriving: Vec<Vec<Arriving>>,
    abort_reasons: Vec<Vec<u8>>,
    staging: Vec<u8>,
    /// What this rank has sent.
    pub traffic: Traffic,
    /// Counts operations that have ended: waiters look again when it has changed.
    pub ended: u64,
    /// Links that are over, kept as long as the core: dropping a socket too early could cost the peer our last words,
    /// and a sleeper its descriptor.
    parting: Vec<Parting>,
    last_words: Vec<u8>,
    /// A peer whose memory could not be read, and until when it may say why.
    suspect: Option<(usize, LinkError, Time)>,
    /// Operations that do not move, for the log.
    pub stalls: Vec<Stall>,
    /// Is there a link on which time alone lets something happen?
    keeps_time: bool,
    rank: usize,
}

// SAFETY: the raw pointers in the core (spans of callers' memory, pieces handed to links) may be used from any thread;
// the lock around the core orders their use.
unsafe impl Send for Core {}

impl Core {
    pub fn new(engine: Engine, links: Vec<Option<Box<dyn Link>>>, memories: Memories, rank: usize) -> Core {
        let world = links.len();
        let keeps_time = links.iter().flatten().any(|link| link.keeps_time());
        let mut core = Core {
            engine,
            links,
            memories,
            outcomes: Outcomes::default(),
            records: Ring::default(),
            tracer: None,
            background: 0,
            origin: Instant::now(),
            first: 0,
            order: (0..world).collect(),
            arriving: (0..world).map(|_| Vec::new()).collect(),
            abort_reasons: vec![Vec::new(); world],
            staging: Vec::new(),
            traffic: Traffic::default(),
            ended: 0,
            parting: Vec::new(),
            last_words: Vec::new(),
            suspect: None,
            stalls: Vec::new(),
            keeps_time,
            rank,
        };
        for (peer, link) in core.links.iter().enumerate() {
            link.iter().for_each(|link| core.engine.set_link(peer, traits_of(link.as_ref())));
        }
        core
    }

    /// Time on the engine's clock.
    pub fn now(&self) -> Time {
        self.origin.elapsed()
    }

    /// Starts an operation, and sends what can be sent at once. Its deadline counts from now. An operation that was not
    /// started has left no trace.
    pub fn post(&mut self, mut request: Request, mut memory: OperationMemory) -> Result<Ticket, Failure> {
        let now = self.now();
        request.deadline = request.deadline.saturating_add(now);
        if request.tuning.lanes > 0 {
            // Calls that run at the same time begin with different streams, as far as there are any.
            let first = request.key.operation.wrapping_add(request.key.part.into());
            request.tuning.lanes = lanes(request.tuning.lanes, first);
        }
        if let Some(described) = &mut memory.described {
            described.start = now;
        }
        if let Some(tracer) = &mut self.tracer {
            // What is posted moves.
            tracer.looked(now, true, true);
        }
        let bytes = request.scratch_bytes();
        let no_scratch = |why| Failure::Cancelled { reason: format!("no {bytes} bytes of scratch: {why}") };
        memory.scratch = self.memories.scratch(bytes).map_err(no_scratch)?;
        request.shared_memory &= memory.scratch.as_ref().is_none_or(Memory::shared);
        // The engine may have work for it at once, but nobody executes that before `progress`.
        let id = match self.engine.post(request, now) {
            Ok(id) => id,
            Err(failure) => {
                self.memories.unused_scratch(memory.scratch.take());
                return Err(failure);
            }
        };
        self.background += usize::from(memory.background);
        self.memories.insert(id.index, memory);
        let ticket = self.outcomes.begin(id);
        self.send();
        self.complete();
        Ok(ticket)
    }

    /// Tells the engine the time. Reading a clock costs as much as looking at a link, so it is not done for every look.
    pub fn tick(&mut self) {
        self.engine.tick(self.now());
        while let Some(stall) = self.engine.stalled() {
            self.stalls.push(stall);
        }
    }

    /// Does what can be done now, without waiting. True if anything moved.
    pub fn progress(&mut self) -> bool {
        if self.engine.failure().is_some() {
            self.part();
            self.complete();
            return false;
        }
        let began = self.tracer.as_ref().map(|tracer| tracer.now());
        let mut moved = self.receive();
        moved |= self.send();
        for _ in 0..WORK_PER_ROUND {
            // After a failed one the operation cannot end well, and what is left of it is not worth doing.
            if self.suspect.is_some() {
                break;
            }
            let Some(work) = self.engine.work() else { break };
            moved = true;
            let started = self.tracer.as_ref().map(|tracer| tracer.now());
            let done = execute(&work.job, &mut self.memories, &self.links, &mut self.staging);
            if let (Some(tracer), Some(started)) = (&mut self.tracer, started) {
                tracer.worked(started, &work.job, self.memories.key_of(&work.job));
            }
            match done {
                Ok(written) => self.engine.worked(work.token, written),
                Err(Trouble::Kernel(reason)) => {
                    self.fail(Failure::Cancelled { reason });
                    return true;
                }
                Err(Trouble::Link(peer, error)) => self.suspect = Some((peer, error, self.now() + EXPLAIN)),
            }
        }
        self.judge_suspect();
        while let Some(buffer) = self.engine.released_buffer() {
            self.memories.release_pool(buffer);
        }
        if moved {
            self.send();
        }
        self.complete();
        if let (Some(tracer), Some(began)) = (&mut self.tracer, began) {
            tracer.looked(began, moved, self.engine.pending() > 0);
        }
        moved || (self.engine.has_work() && self.suspect.is_none())
    }

    /// A peer that gives up withdraws its memory before it can say why: whoever reads it in between waits for the words,
    /// or for the end of the link, which comes at once if the process has died.
    fn judge_suspect(&mut self) {
        if self.suspect.is_none() {
            return;
        }
        let now = self.now();
        let explained =
            |(_, error, until): &mut (usize, LinkError, Time)| now >= *until || !matches!(error, LinkError::Closed);
        if let Some((peer, error, _)) = self.suspect.take_if(explained) {
            if self.engine.has_left(peer) {
                // It had not finished after all: what it referred to is gone.
                self.fail(Failure::PeerLeft { rank: peer });
            } else {
                self.link_failed(peer, error);
            }
        }
    }

    fn receive(&mut self) -> bool {
        let mut moved = false;
        let (first, world) = (self.first, self.links.len());
        for peer in (first..world).chain(0..first) {
            // An operation that has ended goes first; then it is the turn of the links that were not looked at.
            if self.engine.has_completed() {
                self.first = peer;
                break;
            }
            let Some(link) = &mut self.links[peer] else { continue };
            let mut failure = None;
            let mut sink = PeerSink {
                peer,
                world,
                engine: &mut self.engine,
                memories: &mut self.memories,
                arriving: &mut self.arriving[peer],
                abort_reason: &mut self.abort_reasons[peer],
                failure: &mut failure,
                tracer: self.tracer.as_deref_mut(),
            };
            match link.receive(&mut sink) {
                Ok(some) => {
                    if some {
                        // Also in the middle of a long frame.
                        self.engine.sign_of_life(peer);
                    }
                    moved |= some;
                }
                Err(error) => {
                    moved = true;
                    match failure {
                        Some(failure) => self.fail(failure),
                        None => self.link_failed(peer, error),
                    }
                }
            }
        }
        moved
    }

    fn send(&mut self) -> bool {
        let mut moved = false;
        self.memories.staging.look();
        for place in 0..self.order.len() {
            let peer = self.order[place];
            let Some(link) = &mut self.links[peer] else { continue };
            if !self.engine.wants_to_send(peer) && link.is_flushed() {
                continue;
            }
            // Where there is no room, the engine sees its control frames gather, and adds none that can wait.
            while link.has_room()
                && let Some(header) = self.engine.control(peer)
            {
                moved = true;
                if let Some(tracer) = &mut self.tracer {
                    tracer.leaving(peer, &header, None);
                }
                // SAFETY: no pieces.
                unsafe { link.enqueue(&header, &[], NO_TICKET) };
            }
            while let Some(streams) = self.engine.next_lanes(peer)
                && link.has_room_on(streams)
            {
                let Some(frame) = self.engine.transmit_at_most(peer, link.frame_bytes(streams)) else { break };
                moved = true;
                self.traffic.add(&frame.header);
                if let Some(tracer) = &mut self.tracer {
                    tracer.leaving(peer, &frame.header, frame.ticket);
                }
                let (payload, memories) = (&frame.payload, &mut self.memories);
                let piece = Piece { start: memories.address(payload).cast_const(), bytes: payload.bytes };
                let Some(ticket) = frame.ticket else {
                    let staged = if link.peer_maps() { memories.stage((peer, &frame.header), payload) } else { None };
                    let piece = staged.map_or(piece, |start| Piece { start, ..piece });
                    // The engine was told when the link was made what it can refer to.
                    let reference = link.refer(piece).expect("a link refers to the memory that its traits promise");
                    let header = Header { reference, ..frame.header };
                    // SAFETY: no pieces; the engine keeps the memory until the peer has acknowledged.
                    unsafe { link.enqueue(&header, &[], NO_TICKET) };
                    // A piece leaves before the next one is copied; first, other peers may share it.
                    if staged.is_some() && piece.bytes == PIECE_BYTES {
                        break;
                    }
                    continue;
                };
                let pieces: &[Piece] = if piece.bytes > 0 { &[piece] } else { &[] };
                // SAFETY: the memory is the operation's, which stays pending until the ticket has come back; that
                // nothing writes to it before, `verify` has proved (see `Programs`).
                unsafe { link.enqueue(&frame.header, pieces, ticket) };
            }
            let (engine, tracer) = (&mut self.engine, &mut self.tracer);
            let mut sent = |ticket| {
                if ticket != NO_TICKET {
                    if let Some(tracer) = tracer {
                        tracer.left(ticket);
                    }
                    engine.transmitted(ticket);
                }
            };
            match link.flush(&mut sent) {
                Ok(some) => moved |= some,
                Err(error) => self.link_failed(peer, error),
            }
        }
        moved
    }

    fn complete(&mut self) {
        self.give_up();
        while let Some(completion) = self.engine.completed() {
            if let Some(lengths) = &self.memories.operation(completion.op.index).lengths {
                lengths.keep(&completion.output_lengths);
            }
            let (background, described) = self.memories.remove(completion.op.index);
            if let Some(described) = described {
                let end = self.origin.elapsed();
                self.records.add(&described, &completion, end);
                if let Some(tracer) = &mut self.tracer {
                    tracer.called(&described, completion.key, end, completion.outcome.is_err());
                }
            }
            self.background -= usize::from(background);
            self.outcomes.end(completion.op, completion.outcome.err());
            self.ended += 1;
        }
        if self.engine.failure().is_some() {
            self.memories.return_spare_scratch();
        }
    }

    fn link_failed(&mut self, peer: usize, error: LinkError) {
        if self.engine.has_left(peer) {
            // Kept open: a thread may be asleep on its descriptors.
            let link = self.links[peer].take();
            self.parting.extend(link.map(|link| Parting { link, said: true, closed: true }));
            return;
        }
        let how = error.to_string();
        self.fail(match error {
            LinkError::Protocol { what } => Failure::Violation { rank: peer, what },
            // It is this rank that lacks memory, for a ring or a socket: the peer is well.
            LinkError::Io { source, .. } if source.kind() == ErrorKind::OutOfMemory => {
                Failure::Cancelled { reason: how }
            }
            LinkError::Closed | LinkError::Io { .. } => Failure::PeerLost { rank: peer, how, noticed_by: None },
        });
    }

    /// Ends everything: tells the peers why, and lets go of all memory.
    pub fn fail(&mut self, failure: Failure) {
        if self.engine.failure().is_some() {
            return;
        }
        self.engine.fail(failure);
        self.complete();
    }

    /// If the engine has failed, perhaps by itself (a deadline, a peer that left): lets go of the links, before callers
    /// get their memory back.
    fn give_up(&mut self) {
        let Some(failure) = self.engine.failure().filter(|_| self.links.iter().any(Option::is_some)) else { return };
        let lost = match failure {
            Failure::PeerLost { rank, noticed_by: None, .. } => Some(*rank),
            _ => None,
        };
        let (header, words) = failure.last_words(self.rank);
        self.abort(header, words, lost);
    }

    /// Says goodbye to all peers that are still there.
    pub fn leave(&mut self) {
        if self.engine.failure().is_none() {
            for (peer, link) in self.links.iter_mut().enumerate() {
                let Some(link) = link else { continue };
                // The last acknowledgements come before it.
                while let Some(header) = self.engine.control(peer) {
                    // SAFETY: no pieces.
                    unsafe { link.enqueue(&header, &[], NO_TICKET) };
                }
                // SAFETY: no pieces.
                unsafe { link.enqueue(&Header::new(Kind::Goodbye, Default::default()), &[], NO_TICKET) };
            }
        }
    }

    /// Have all peers left, or is there nobody to hear from?
    pub fn alone(&self) -> bool {
        self.links.iter().enumerate().all(|(peer, link)| link.is_none() || self.engine.has_left(peer))
    }

    /// Lets go of all memory of callers, and tells the peers why. What the links do not take at once goes out later;
    /// nobody waits for the `lost` one, which may be told all the same if it was only silent.
    fn abort(&mut self, header: Header, words: String, lost: Option<usize>) {
        let words = words.into_bytes();
        let pieces = [Piece { start: words.as_ptr(), bytes: words.len() }];
        for (peer, link) in self.links.iter_mut().enumerate() {
            let Some(mut link) = link.take() else { continue };
            link.abandon();
            // A peer that made a different call is shown ours.
            while let Some(header) = self.engine.control(peer) {
                // SAFETY: no pieces.
                unsafe { link.enqueue(&header, &[], NO_TICKET) };
            }
            // SAFETY: the last words are kept as long as the links that say them.
            unsafe { link.enqueue(&header, &pieces, LAST_WORDS) };
            let lost = lost == Some(peer);
            if lost {
                link.close();
            }
            self.parting.push(Parting { link, said: false, closed: lost });
        }
        self.last_words = words;
        self.suspect = None;
        while let Some(buffer) = self.engine.released_buffer() {
            self.memories.release_pool(buffer);
        }
        for arriving in &mut self.arriving {
            arriving.clear();
        }
        self.part();
    }

    /// Goes on saying the last words, and closes each link whose peer has them.
    fn part(&mut self) {
        for parting in self.parting.iter_mut().filter(|parting| !parting.closed) {
            // A link that cannot flush has lost its peer, who needs no reason.
            let lost = parting.link.flush(&mut |ticket| parting.said |= ticket == LAST_WORDS).is_err();
            let settled = parting.link.settled() && parting.said;
            if lost || settled {
                parting.link.close();
                parting.closed = true;
            }
        }
    }

    /// Has everything been said, and has it arrived as far as that can be known?
    pub fn parted(&self) -> bool {
        self.parting.iter().all(|parting| parting.closed)
    }

    /// When time lets something happen on a link: see [`Link::next_event`].
    pub fn next_event(&self) -> Option<Instant> {
        let links = self.links.iter().flatten().filter(|_| self.keeps_time);
        links.filter_map(|link| link.next_event()).min()
    }

    /// Does anything happen without operations in the background? See [`Core::next_event`].
    pub fn is_quiet(&self) -> bool {
        self.background == 0 && self.next_event().is_none()
    }

    /// Is there a link on which time alone lets something happen?
    pub fn keeps_time(&self) -> bool {
        self.keeps_time
    }

    /// The descriptors to wait for.
    pub fn descriptors(&self, into: &mut Vec<Descriptor>) {
        into.clear();
        let parting = self.parting.iter().filter(|parting| !parting.closed).map(|parting| &parting.link);
        for link in self.links.iter().flatten().chain(parting) {
            link.descriptors(into);
        }
    }

    /// See [`Link::prepare_sleep`].
    pub fn prepare_sleep(&mut self, asleep: bool) {
        let parting = self.parting.iter_mut().filter(|parting| !parting.closed).map(|parting| &mut parting.link);
        for link in self.links.iter_mut().flatten().chain(parting) {
            link.prepare_sleep(asleep);
        }
    }
}

/// A link of a failed world.
struct Parting {
    link: Box<dyn Link>,
    /// It has taken all that there was to say.
    said: bool,
    /// And the peer's side has it.
    closed: bool,
}

/// The frame that says why this rank gives up.
const LAST_WORDS: u64 = u64::MAX - 1;
