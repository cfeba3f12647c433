//! Links between threads of one process: tests and examples build whole worlds of them.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use paceline_engine::frame::{HEADER_BYTES, Header, Kind};
use rustix::event::{EventfdFlags, eventfd};

use crate::{Descriptor, Link, LinkError, Piece, Sink, Target, Transport};

/// Bytes of frames on their way in one direction. A sender whose peer does not read gets stuck here, as on a socket.
const QUEUE_BYTES_MAX: usize = 1 << 20;

/// Bytes of frames that were enqueued and not copied yet; beyond it `has_room` is false, as for TCP.
const PENDING_BYTES_MAX: usize = 256 << 10;

/// Bytes that one call of `receive` takes in before it returns.
const RECEIVE_BYTES_MAX: usize = 1 << 20;

/// Payload is handed out in slices of about this size, so that what is combined stays in the cache.
const SLICE_BYTES: usize = 64 << 10;

/// The two ends of a link in the memory of this process. Payload is copied when it is flushed and when it is received.
///
/// # Panics
/// If the process has no file descriptors left for the two doorbells.
pub fn memory_pair() -> (MemoryLink, MemoryLink) {
    let doorbell = || {
        eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .expect("an eventfd for the doorbell of a memory link")
    };
    let shared = Arc::new(Shared {
        directions: Mutex::new([Direction::default(), Direction::default()]),
        doorbells: [doorbell(), doorbell()],
    });
    let link = |side| MemoryLink {
        shared: Arc::clone(&shared),
        side,
        pending: VecDeque::new(),
        pieces: VecDeque::new(),
        pending_bytes: 0,
    };
    (link(0), link(1))
}

/// One end of a [`memory_pair`].
pub struct MemoryLink {
    shared: Arc<Shared>,
    side: usize,
    pending: VecDeque<Pending>,
    /// Of all pending frames, in order.
    pieces: VecDeque<Piece>,
    pending_bytes: usize,
}

/// A frame that was enqueued; its pieces are still the caller's memory.
struct Pending {
    header: Header,
    pieces: usize,
    bytes: usize,
    ticket: u64,
}

struct Shared {
    /// Indexed by the receiving side.
    directions: Mutex<[Direction; 2]>,
    /// Rung for the side that sleeps.
    doorbells: [OwnedFd; 2],
}

/// Everything on its way to one side, and what the other side must know about it.
#[derive(Default)]
struct Direction {
    frames: VecDeque<(Header, Vec<u8>)>,
    bytes: usize,
    /// Buffers to use again: a steady flow allocates nothing.
    spare: Vec<Vec<u8>>,
    receiver_asleep: bool,
    sender_waits_for_room: bool,
    sender_closed: bool,
    receiver_closed: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, [Direction; 2]> {
        // No code between lock and unlock leaves the queues half changed.
        self.directions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ring(&self, side: usize) {
        // It fails only when the counter is full, and then the sleeper wakes anyway.
        let _ = rustix::io::write(&self.doorbells[side], &1u64.to_ne_bytes());
    }
}

impl MemoryLink {
    fn peer(&self) -> usize {
        1 - self.side
    }

    fn hang_up(&mut self) {
        let mut directions = self.shared.lock();
        directions[self.peer()].sender_closed = true;
        directions[self.side].receiver_closed = true;
        self.shared.ring(self.peer());
    }
}

impl Link for MemoryLink {
    fn transport(&self) -> Transport {
        Transport::Memory
    }

    fn has_room(&self) -> bool {
        self.pending_bytes < PENDING_BYTES_MAX
    }

    fn is_flushed(&self) -> bool {
        self.pending.is_empty()
    }

    unsafe fn enqueue(&mut self, header: &Header, payload: &[Piece], ticket: u64) {
        let bytes = HEADER_BYTES + payload.iter().map(|piece| piece.bytes).sum::<usize>();
        assert_eq!(bytes - HEADER_BYTES, header.wire_payload_bytes() as usize, "pieces that do not fit their header");
        self.pending.push_back(Pending { header: *header, pieces: payload.len(), bytes, ticket });
        self.pieces.extend(payload);
        self.pending_bytes += bytes;
    }

    fn flush(&mut self, sent: &mut dyn FnMut(u64)) -> Result<bool, LinkError> {
        if self.pending.is_empty() {
            return Ok(false);
        }
        let (peer, mut moved) = (self.peer(), false);
        let mut directions = self.shared.lock();
        let outbound = &mut directions[peer];
        while let Some(frame) = self.pending.front() {
            if outbound.bytes >= QUEUE_BYTES_MAX && !outbound.receiver_closed {
                outbound.sender_waits_for_room = true;
                break;
            }
            if !outbound.receiver_closed {
                let mut copy = outbound.spare.pop().unwrap_or_default();
                copy.clear();
                for piece in self.pieces.range(..frame.pieces).filter(|piece| piece.bytes > 0) {
                    // SAFETY: whoever enqueued the frame promised that its pieces are readable and unchanged until
                    // the ticket has come back, which happens below.
                    copy.extend_from_slice(unsafe { std::slice::from_raw_parts(piece.start, piece.bytes) });
                }
                outbound.frames.push_back((frame.header, copy));
                outbound.bytes += frame.bytes;
            }
            self.pieces.drain(..frame.pieces);
            self.pending_bytes -= frame.bytes;
            sent(frame.ticket);
            moved = true;
            self.pending.pop_front();
        }
        if moved && outbound.receiver_asleep {
            self.shared.ring(peer);
        }
        Ok(moved)
    }

    fn receive(&mut self, sink: &mut dyn Sink) -> Result<bool, LinkError> {
        let mut taken = 0;
        while taken < RECEIVE_BYTES_MAX {
            let mut directions = self.shared.lock();
            let inbound = &mut directions[self.side];
            let Some((header, payload)) = inbound.frames.pop_front() else {
                let closed = inbound.sender_closed || inbound.receiver_closed;
                return if closed && taken == 0 { Err(LinkError::Closed) } else { Ok(taken > 0) };
            };
            inbound.bytes -= HEADER_BYTES + payload.len();
            if std::mem::take(&mut inbound.sender_waits_for_room) {
                self.shared.ring(self.peer());
            }
            drop(directions);

            taken += HEADER_BYTES + payload.len();
            deliver(&header, &payload, sink)?;
            self.shared.lock()[self.side].spare.push(payload);
        }
        Ok(true)
    }

    fn descriptors(&self, into: &mut Vec<Descriptor>) {
        into.push(Descriptor { fd: self.shared.doorbells[self.side].as_raw_fd(), write: false });
    }

    fn prepare_sleep(&mut self, asleep: bool) {
        self.shared.lock()[self.side].receiver_asleep = asleep;
        if !asleep {
            // Would block if nobody rang.
            let _ = rustix::io::read(&self.shared.doorbells[self.side], &mut [0; 8]);
        }
    }

    fn abandon(&mut self) {
        // Frames go out whole or not at all.
        self.pending.clear();
        self.pieces.clear();
        self.pending_bytes = 0;
    }

    fn close(&mut self) {
        // A memory link cannot fail to flush; what finds no room is lost, as on a socket.
        let _ = self.flush(&mut |_| ());
        self.hang_up();
    }

    /// What was flushed lies in the peer's queue.
    fn settled(&mut self) -> bool {
        self.pending.is_empty()
    }
}

impl Drop for MemoryLink {
    fn drop(&mut self) {
        self.hang_up();
    }
}

fn deliver(header: &Header, payload: &[u8], sink: &mut dyn Sink) -> Result<(), LinkError> {
    let kind = header.check().map_err(|what| LinkError::Protocol { what: format!("sent a frame that {what}") })?;
    if kind == Kind::Reference {
        return Err(LinkError::Protocol { what: "sent a reference over a link that has none".into() });
    }
    match sink.begin(header)? {
        // SAFETY: the sink gives memory that is valid for the whole payload and exclusively ours until `end`.
        Target::Memory(into) => unsafe { std::ptr::copy_nonoverlapping(payload.as_ptr(), into, payload.len()) },
        Target::Slices(granularity) => {
            let slice_bytes = SLICE_BYTES.next_multiple_of(granularity.max(1));
            for (index, slice) in payload.chunks(slice_bytes).enumerate() {
                sink.bytes(header, index * slice_bytes, slice)?;
            }
        }
        Target::Discard => {}
    }
    sink.end(header)
}
