//! A timeline of what this rank does: every frame, every piece of local work, and when nothing moved.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use paceline_engine::frame::{Header, Kind};
use paceline_engine::{Job, Source};
use paceline_plan::{CollectiveKind, DataType, OperationKey};

use crate::Communicator;
use crate::core::Core;
use crate::records::Described;

/// Something that this rank did. Times count as those of a [`crate::Record`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceEvent {
    /// When it began.
    pub start: Duration,
    /// When it ended.
    pub end: Duration,
    /// What it was.
    pub what: Traced,
}

/// What an event was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Traced {
    /// A call, from when it was made to its end here. Only calls that were made after [`Communicator::start_trace`].
    Call {
        /// The operation's name, the same on all ranks.
        key: OperationKey,
        /// What it did.
        collective: CollectiveKind,
        /// The type of its elements.
        data_type: DataType,
        /// The bytes of this rank's larger side.
        bytes: usize,
        /// The algorithm that ran; `program` for one of the caller's.
        algorithm: &'static str,
        /// Did it fail?
        failed: bool,
        /// [`crate::CallOptions::tag`].
        tag: u64,
    },
    /// A frame, from when a link took it to when the link no longer needed its memory. Frames that carry no memory end
    /// as they begin.
    Sent(Frame),
    /// A frame, from when its header was here to when all of it was.
    Received(Frame),
    /// A piece of local work.
    Work {
        /// `copy`, `combine` or `map`.
        work: &'static str,
        /// The operation, if it was started after [`Communicator::start_trace`].
        key: Option<OperationKey>,
        /// The bytes of its result, or the room for it.
        bytes: usize,
        /// The rank (of the world) whose memory it read.
        peer: Option<usize>,
    },
    /// Operations were pending, and nothing moved: every look at the links found nothing to do.
    Waiting,
    /// A thread slept on the links' descriptors.
    Asleep,
}

/// A frame that crossed a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The rank (of the world) at the other end.
    pub peer: usize,
    /// `data`; `reference` (the receiver reads the sender's memory), `taken` (it has); `grant`; `credit`, `heartbeat`,
    /// `abort`, `goodbye`.
    pub kind: &'static str,
    /// The operation that it belongs to.
    pub key: OperationKey,
    /// The tile of the operation.
    pub tile: u32,
    /// The message of the tile on this link.
    pub message: u32,
    /// Where the piece lies in the message.
    pub offset: u32,
    /// The bytes that follow the header or that the reference names.
    pub bytes: u32,
    /// Its bytes were combined with this rank's while they arrived.
    pub combined: bool,
}

/// What was traced.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    /// The calls, then frames and work, then when nothing moved; each in the order in which they were noted.
    pub events: Vec<TraceEvent>,
    /// Later frames and pieces of work for which there was no room.
    pub dropped: u64,
    /// Later calls for which there was no room.
    pub dropped_calls: u64,
    /// Later times of waiting and sleeping for which there was no room.
    pub dropped_pauses: u64,
}

impl Communicator {
    /// Traces what all communicators of this rank do from now on, until `capacity` events are there of a sort: calls, which are
    /// noted when they end, behind all of their frames; frames and work; waiting and sleeping, of which there is one
    /// for every few kilobytes where a network is slow. Without this, an event costs one branch; with it, one or two
    /// readings of the clock, and about 120 bytes. What was traced before is forgotten.
    pub fn start_trace(&self, capacity: usize) {
        self.set_tracer(|origin| Some(Box::new(Tracer::new(origin, capacity))));
    }

    /// Ends tracing, and takes what was traced; nothing if [`Communicator::start_trace`] was not called.
    pub fn end_trace(&self) -> Trace {
        self.set_tracer(|_| None).map_or_else(Trace::default, |tracer| tracer.trace())
    }

    /// The time on the clock of [`crate::Record`]s and [`TraceEvent`]s: since this rank connected.
    pub fn clock(&self) -> Duration {
        self.world.context.with(|core| core.now())
    }

    /// An instant on that clock; 0 for one before this rank connected.
    pub fn clock_at(&self, instant: Instant) -> Duration {
        instant.saturating_duration_since(self.world.context.with(|core| core.origin))
    }

    fn set_tracer(&self, make: impl FnOnce(Instant) -> Option<Box<Tracer>>) -> Option<Box<Tracer>> {
        self.world.context.with(|core| {
            let tracer = make(core.origin);
            let before = std::mem::replace(&mut core.tracer, tracer);
            self.world.recording.store(core.describes_calls(), Ordering::Relaxed);
            before
        })
    }
}

impl Core {
    /// Does anyone want to know what calls do?
    pub fn describes_calls(&self) -> bool {
        self.records.wanted() || self.tracer.is_some()
    }
}

/// Notes events. It exists only while there is a trace.
pub(crate) struct Tracer {
    origin: Instant,
    calls: Noted,
    moves: Noted,
    pauses: Noted,
    /// Frames that links have taken and not let go of: the ticket and the event.
    leaving: Vec<(u64, usize)>,
    /// Frames that have begun to arrive, of all links.
    arriving: Vec<(usize, Header, Duration)>,
    idle_since: Option<Duration>,
}

impl Tracer {
    fn new(origin: Instant, capacity: usize) -> Tracer {
        Tracer {
            origin,
            calls: Noted::new(capacity),
            moves: Noted::new(capacity),
            pauses: Noted::new(capacity),
            leaving: Vec::new(),
            arriving: Vec::new(),
            idle_since: None,
        }
    }

    fn trace(self) -> Trace {
        let Tracer { calls, moves, pauses, .. } = self;
        let mut events = calls.events;
        events.extend(moves.events.into_iter().chain(pauses.events));
        Trace { events, dropped: moves.dropped, dropped_calls: calls.dropped, dropped_pauses: pauses.dropped }
    }

    /// The time on the engine's clock.
    pub fn now(&self) -> Duration {
        self.origin.elapsed()
    }

    /// A link takes a frame. With a ticket, it lasts until [`Tracer::left`].
    pub fn leaving(&mut self, peer: usize, header: &Header, ticket: Option<u64>) {
        let (now, index) = (self.now(), self.moves.events.len());
        if self.moves.note(now, now, Traced::Sent(Frame::new(peer, header, false)))
            && let Some(ticket) = ticket
        {
            self.leaving.push((ticket, index));
        }
    }

    /// A link has let go of a frame.
    pub fn left(&mut self, ticket: u64) {
        if let Some(position) = self.leaving.iter().position(|(of, _)| *of == ticket) {
            let (_, index) = self.leaving.swap_remove(position);
            self.moves.events[index].end = self.now();
        }
    }

    /// The header of a frame is here.
    pub fn arriving(&mut self, peer: usize, header: &Header) {
        let now = self.now();
        self.arriving.push((peer, *header, now));
    }

    /// All of it is.
    pub fn arrived(&mut self, peer: usize, header: &Header, combined: bool) {
        let now = self.now();
        let begun = self.arriving.iter().position(|(from, of, _)| *from == peer && of == header);
        let start = begun.map_or(now, |position| self.arriving.swap_remove(position).2);
        self.moves.note(start, now, Traced::Received(Frame::new(peer, header, combined)));
    }

    /// A piece of local work was done.
    pub fn worked(&mut self, start: Duration, job: &Job, key: Option<OperationKey>) {
        let (work, into, sources) = match job {
            Job::Copy { from, into, .. } => ("copy", into, [Some(from), None]),
            Job::Combine { left, right, into, .. } => ("combine", into, [Some(left), Some(right)]),
            Job::Map { from, into, .. } => ("map", into, [Some(from), None]),
        };
        let far = |source: &Source| if let Source::Reference { peer, .. } = source { Some(*peer) } else { None };
        let peer = sources.into_iter().flatten().find_map(far);
        let now = self.now();
        self.moves.note(start, now, Traced::Work { work, key, bytes: into.bytes, peer });
    }

    /// A call has ended.
    pub fn called(&mut self, call: &Described, key: OperationKey, end: Duration, failed: bool) {
        let &Described { collective, data_type, bytes, algorithm, tag, start, .. } = call;
        self.calls.note(start, end, Traced::Call { key, collective, data_type, bytes, algorithm, failed, tag });
    }

    /// Someone has looked at the links from `began` on, while operations were `pending`.
    pub fn looked(&mut self, began: Duration, moved: bool, pending: bool) {
        if moved || !pending {
            if let Some(since) = self.idle_since.take() {
                self.pauses.note(since, began, Traced::Waiting);
            }
        } else if self.idle_since.is_none() {
            self.idle_since = Some(self.now());
        }
    }

    /// A thread has slept on the descriptors.
    pub fn slept(&mut self, since: Duration) {
        let now = self.now();
        self.pauses.note(since, now, Traced::Asleep);
    }
}

/// Events of a sort, as many as there is room for.
struct Noted {
    events: Vec<TraceEvent>,
    capacity: usize,
    dropped: u64,
}

impl Noted {
    fn new(capacity: usize) -> Noted {
        Noted { events: Vec::with_capacity(capacity), capacity, dropped: 0 }
    }

    /// False if there is no room.
    fn note(&mut self, start: Duration, end: Duration, what: Traced) -> bool {
        let room = self.events.len() < self.capacity;
        if room {
            self.events.push(TraceEvent { start, end: end.max(start), what });
        } else {
            self.dropped += 1;
        }
        room
    }
}

impl Frame {
    fn new(peer: usize, header: &Header, combined: bool) -> Frame {
        let kind = match header.kind() {
            Some(Kind::Data) => "data",
            Some(Kind::Reference) => "reference",
            Some(Kind::Taken) => "taken",
            Some(Kind::Grant) => "grant",
            Some(Kind::Credit) => "credit",
            Some(Kind::Heartbeat) => "heartbeat",
            Some(Kind::Abort) => "abort",
            Some(Kind::Goodbye) => "goodbye",
            None => "unknown",
        };
        let Header { tile, message, offset, payload_bytes: bytes, .. } = *header;
        Frame { peer, kind, key: header.key(), tile, message, offset, bytes, combined }
    }
}
