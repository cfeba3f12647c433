//! Frames on their way into a ring.

use std::collections::VecDeque;

use paceline_engine::frame::{HEADER_BYTES, Header};

use super::ring::{Producer, UNIT};
use crate::{LinkError, Piece};

/// A frame waits as long as not so much room is free: the header and some payload, in whole units.
pub(super) const FRAME_ROOM: usize = HEADER_BYTES.next_multiple_of(UNIT);

/// The consumer hears of a long frame in steps of this many bytes, and copies one out while the next is being copied in.
/// Measured (`benches/shm_perf.rs`): frames of 16 to 32 KiB cross 10 to 15 % sooner than with 32 KiB; longer ones do not
/// care.
pub(super) const STEP_BYTES: usize = 8 << 10;

struct Pending {
    header: Header,
    /// None: its pieces are our own.
    ticket: Option<u64>,
    /// Pieces of [`Outbox::pieces`] that belong to it and are not yet all written.
    pieces: usize,
    started: bool,
}

/// The frames that were accepted and are not all in the ring yet.
pub(super) struct Outbox {
    producer: Producer,
    frames: VecDeque<Pending>,
    /// What remains to be written of all frames, in order. The first piece shrinks as it is written.
    pieces: VecDeque<Piece>,
    /// The tickets of short frames that were written as they were accepted, and are not published yet.
    written: Vec<u64>,
    /// What was left of a frame when its caller's memory was given up.
    _kept: Vec<u8>,
}

impl Outbox {
    pub(super) fn new(producer: Producer) -> Outbox {
        Outbox { producer, frames: VecDeque::new(), pieces: VecDeque::new(), written: Vec::new(), _kept: Vec::new() }
    }

    /// Accepts a frame.
    ///
    /// # Safety
    /// The pieces are readable, and nobody writes to them, until `flush` has reported the ticket or `self` is dropped.
    pub(super) unsafe fn push(&mut self, header: &Header, payload: &[Piece], ticket: u64) {
        let bytes: usize = payload.iter().map(|piece| piece.bytes).sum();
        assert_eq!(bytes, header.wire_payload_bytes() as usize, "a header states the length of its payload");
        // SAFETY: the caller's contract is the same.
        if self.frames.is_empty() && bytes <= STEP_BYTES && unsafe { self.write_now(header, payload, bytes) } {
            self.written.push(ticket);
            return;
        }
        let pieces = self.pieces.len();
        self.pieces.extend(payload.iter().filter(|piece| piece.bytes > 0));
        let pieces = self.pieces.len() - pieces;
        self.frames.push_back(Pending { header: *header, ticket: Some(ticket), pieces, started: false });
    }

    /// Writes a short frame straight into the ring, if there is room for all of it. It leaves with the next `flush`.
    ///
    /// # Safety
    /// The pieces are readable.
    unsafe fn write_now(&mut self, header: &Header, payload: &[Piece], bytes: usize) -> bool {
        let all = HEADER_BYTES + bytes;
        // The next `flush` or `receive` tells if the peer is broken.
        if self.producer.space(all).map_or(true, |space| space < all) {
            return false;
        }
        // SAFETY: the header is a plain value of this many bytes.
        unsafe { self.producer.write(bytemuck::bytes_of(header).as_ptr(), HEADER_BYTES) };
        for piece in payload {
            // SAFETY: the caller's promise.
            unsafe { self.producer.write(piece.start, piece.bytes) };
        }
        self.producer.pad();
        true
    }

    /// Copies what fits into the ring. After each step, `published` is called: the consumer may have to be woken.
    pub(super) fn flush(&mut self, sent: &mut dyn FnMut(u64), published: &mut dyn FnMut()) -> Result<bool, LinkError> {
        let mut moved = !self.written.is_empty();
        self.written.drain(..).for_each(&mut *sent);
        while let Some(frame) = self.frames.front_mut() {
            if !frame.started {
                if self.producer.space(FRAME_ROOM)? < FRAME_ROOM {
                    break;
                }
                // SAFETY: the header is a plain value of this many bytes.
                unsafe { self.producer.write(bytemuck::bytes_of(&frame.header).as_ptr(), HEADER_BYTES) };
                frame.started = true;
                moved = true;
            }
            while frame.pieces > 0 {
                let Some(piece) = self.pieces.front_mut() else { unreachable!("pieces are counted") };
                if self.producer.unpublished() >= STEP_BYTES && self.producer.unpublished().is_multiple_of(UNIT) {
                    self.producer.publish();
                    published();
                }
                let step = STEP_BYTES - self.producer.unpublished() % STEP_BYTES;
                let bytes = piece.bytes.min(step).min(self.producer.space(piece.bytes.min(step))?);
                if bytes == 0 {
                    // The ring is full to the last unit, so what is in it can be published.
                    break;
                }
                // SAFETY: the piece is readable by the contract of `push`.
                unsafe { self.producer.write(piece.start, bytes) };
                moved = true;
                *piece = Piece { start: piece.start.wrapping_add(bytes), bytes: piece.bytes - bytes };
                if piece.bytes == 0 {
                    self.pieces.pop_front();
                    frame.pieces -= 1;
                }
            }
            if frame.pieces > 0 {
                break;
            }
            self.producer.pad();
            frame.ticket.map(&mut *sent);
            self.frames.pop_front();
            if self.producer.unpublished() >= STEP_BYTES {
                self.producer.publish();
                published();
            }
        }
        if self.producer.unpublished() > 0 {
            self.producer.publish();
            published();
        }
        Ok(moved)
    }

    /// Lets go of the caller's memory: forgets the frames that have not begun, copies the rest of the one that has.
    /// Their tickets do not come back.
    pub(super) fn abandon(&mut self) {
        self.written.clear();
        self.frames.truncate(self.frames.front().map_or(0, |frame| usize::from(frame.started)));
        let Some(frame) = self.frames.front_mut() else { return self.pieces.clear() };
        let mut rest = Vec::new();
        for piece in self.pieces.drain(..).take(frame.pieces) {
            // SAFETY: the piece is readable by the contract of `push`.
            rest.extend_from_slice(unsafe { std::slice::from_raw_parts(piece.start, piece.bytes) });
        }
        frame.pieces = usize::from(!rest.is_empty());
        frame.ticket = None;
        self.pieces.extend((!rest.is_empty()).then_some(Piece { start: rest.as_ptr(), bytes: rest.len() }));
        self._kept = rest;
    }

    /// Lets go of all frames.
    pub(super) fn forget(&mut self, sent: &mut dyn FnMut(u64)) {
        self.written.drain(..).for_each(&mut *sent);
        self.frames.drain(..).filter_map(|frame| frame.ticket).for_each(sent);
        self.pieces.clear();
    }

    /// See [`Producer::fetch_ahead`].
    pub(super) fn fetch_ahead(&mut self) {
        self.producer.fetch_ahead();
    }

    /// Is everything that was accepted published?
    pub(super) fn is_flushed(&self) -> bool {
        self.frames.is_empty() && self.producer.unpublished() == 0
    }

    /// Are there frames that wait for room?
    pub(super) fn is_blocked(&self) -> bool {
        !self.frames.is_empty()
    }

    /// Is there room for more of the frames that wait?
    pub(super) fn can_move(&self) -> bool {
        let wanted = |frame: &Pending| if frame.started { UNIT } else { FRAME_ROOM };
        self.frames.front().is_some_and(|frame| self.producer.has_space(wanted(frame)))
    }

    /// May another frame be accepted? Where a quarter of the ring is free, a frame starts to move at once.
    pub(super) fn has_room(&self) -> bool {
        self.frames.is_empty() && self.producer.has_space(self.producer.ring_bytes() / 4)
    }
}
