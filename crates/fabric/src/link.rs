//! What the communicator asks of a link, whatever carries it.

use std::fmt;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

use paceline_engine::frame::Header;

use crate::LinkError;

/// What carries a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transport {
    /// Queues in the memory of one process, for tests and worlds of threads.
    Memory,
    /// Rings in shared memory, and single copies between address spaces.
    Shm,
    /// TCP.
    Tcp,
}

impl Transport {
    /// The name on the command line and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Transport::Memory => "memory",
            Transport::Shm => "shm",
            Transport::Tcp => "tcp",
        }
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Some bytes of the caller's memory: they stay where they are, and unchanged, until the link has reported the frame
/// as sent (or is dropped).
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    /// The first byte.
    pub start: *const u8,
    /// How many.
    pub bytes: usize,
}

// SAFETY: a piece is an address and a length. Whoever dereferences it (the link) relies on the contract of
// `Link::enqueue`, which does not depend on the thread.
unsafe impl Send for Piece {}

/// Where the payload of an arriving frame goes.
#[derive(Clone, Copy, Debug)]
pub enum Target {
    /// Write all of it here. The memory is valid and exclusively the link's until [`Sink::end`] or the link is dropped.
    Memory(*mut u8),
    /// Hand it to [`Sink::bytes`] in slices, in order; every slice but the last is a multiple of this many bytes.
    Slices(usize),
    /// Read it and forget it.
    Discard,
}

/// Takes in what a link has received. For each frame: `begin`, then `bytes` as often as needed if `begin` asked for
/// slices, then `end`. A frame may arrive over several calls of [`Link::receive`].
pub trait Sink {
    /// A frame starts. The link has checked the header ([`Header::check`]). An error closes the link.
    fn begin(&mut self, header: &Header) -> Result<Target, LinkError>;

    /// Some of its payload; `offset` counts from the start of the frame's payload.
    fn bytes(&mut self, header: &Header, offset: usize, slice: &[u8]) -> Result<(), LinkError>;

    /// The frame is complete.
    fn end(&mut self, header: &Header) -> Result<(), LinkError>;

    /// Asked between two frames: has something come that should be dealt with first? Then the rest waits, where it is,
    /// for the next [`Link::receive`]. Links need not ask.
    fn has_enough(&self) -> bool {
        false
    }
}

/// The ticket of frames that nobody waits for. It may come back any number of times.
pub const NO_TICKET: u64 = u64::MAX;

/// A two-way, reliable, ordered stream of frames to one peer. Never blocks.
pub trait Link: Send {
    /// What carries it.
    fn transport(&self) -> Transport;

    /// May another control frame be enqueued? False while enough unsent bytes are waiting.
    fn has_room(&self) -> bool;

    /// May a data frame with this [`Header::lanes`]? False while enough unsent data is waiting: the next frame is chosen
    /// as late as possible, so that an urgent one overtakes. The same as [`Link::has_room`], unless data takes another
    /// way.
    fn has_room_on(&self, lanes: u16) -> bool {
        let _ = lanes;
        self.has_room()
    }

    /// The longest payload that the next data frame with this [`Header::lanes`] should have: an urgent one may have to
    /// wait behind it. The limit of the engine holds as well.
    fn frame_bytes(&self, lanes: u16) -> usize {
        let _ = lanes;
        usize::MAX
    }

    /// Is everything out that was accepted, so that [`Link::flush`] has nothing to do?
    fn is_flushed(&self) -> bool;

    /// Accepts a frame: the header and the payload as pieces of memory (in total `header.wire_payload_bytes()`).
    /// `ticket` comes back from [`Link::flush`] when the pieces may be overwritten. Only control frames (without
    /// payload) may be enqueued while `has_room` is false.
    ///
    /// # Safety
    /// The pieces are readable, and nobody writes to them, until their ticket has come back or the link is dropped.
    unsafe fn enqueue(&mut self, header: &Header, payload: &[Piece], ticket: u64);

    /// Pushes out what can go, and calls `sent` with the ticket of every frame whose pieces are no longer needed.
    /// True if anything moved.
    fn flush(&mut self, sent: &mut dyn FnMut(u64)) -> Result<bool, LinkError>;

    /// Takes in what has arrived, up to a bounded amount of work. True if anything moved.
    fn receive(&mut self, sink: &mut dyn Sink) -> Result<bool, LinkError>;

    /// Messages of more bytes than this go by reference: the receiver takes them from the sender's memory.
    /// None if this link cannot.
    fn reference_above(&self) -> Option<usize> {
        None
    }

    /// Can references name any memory of this process? Otherwise only shared memory (`comm.alloc`).
    fn any_memory(&self) -> bool {
        self.reference_above().is_some()
    }

    /// Has the peer mapped shared memory (`comm.alloc`) of this process? Then it reads that at once, and other memory by
    /// a system call.
    fn peer_maps(&self) -> bool {
        false
    }

    /// Describes memory of this process so that the peer's [`Link::take`] finds it. None: the peer cannot reach this
    /// memory, send the bytes.
    fn refer(&self, piece: Piece) -> Option<[u64; 2]> {
        let _ = piece;
        None
    }

    /// The bytes that a peer's reference names, if they are mapped here. Valid as long as the link.
    fn mapped(&self, reference: [u64; 2], bytes: usize) -> Option<*const u8> {
        let _ = (reference, bytes);
        None
    }

    /// Copies `bytes` from `offset` of what a peer's reference names to `into`.
    ///
    /// # Safety
    /// `into` is writable for `bytes` and nobody else's.
    unsafe fn take(&self, reference: [u64; 2], offset: usize, into: *mut u8, bytes: usize) -> Result<(), LinkError> {
        let _ = (reference, offset, into, bytes);
        Err(LinkError::Protocol { what: "sent a reference over a link that has none".into() })
    }

    /// Has the peer withdrawn the memory that it referred to? Asked after `take` and after reading what `mapped` gave.
    fn withdrawn(&self) -> bool {
        false
    }

    /// Adds the descriptors to wait for, with whether writability matters now. Called before sleeping.
    fn descriptors(&self, into: &mut Vec<Descriptor>);

    /// Announces that this side is about to sleep (true) or is awake (false). After `prepare_sleep(true)` the link must
    /// be polled once more: whatever the peer did before it saw the announcement is visible then.
    fn prepare_sleep(&mut self, asleep: bool) {
        let _ = asleep;
    }

    /// Does time alone let something happen here ([`Link::next_event`])? Always the same.
    fn keeps_time(&self) -> bool {
        false
    }

    /// When [`Link::flush`] will have something to do although nothing happens on a descriptor: whoever sleeps must be
    /// awake then, to the tenth of a millisecond. None: not as things stand.
    fn next_event(&self) -> Option<Instant> {
        None
    }

    /// A round trip without any program, if the link knows one: the basis of the cost model.
    fn round_trip(&self) -> Option<Duration> {
        None
    }

    /// Lets go of all memory of the caller: forgets the frames that have not begun to go out, copies what is left of one
    /// that has, and withdraws all references. Their tickets do not come back. What is enqueued after this can still
    /// be sent, so that the peer learns why.
    fn abandon(&mut self);

    /// Withdraws all references and says to the peer that nothing more will come. Nothing waits.
    fn close(&mut self);

    /// After [`Link::abandon`], when nothing is received any more: has all that was enqueued since reached the peer's
    /// side, or can it not any more? As long as it says no, closing or dropping the link may cost the peer the last
    /// words: flush and ask again.
    fn settled(&mut self) -> bool;
}

/// A file descriptor to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// The descriptor.
    pub fd: RawFd,
    /// Wake when it can be written, too.
    pub write: bool,
}
