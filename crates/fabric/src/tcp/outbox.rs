//! What one stream still has to send.

use std::collections::VecDeque;
use std::io::{self, IoSlice};

use bytemuck::bytes_of;
use paceline_engine::frame::{HEADER_BYTES, Header};

use super::wire::Wire;
use crate::Piece;

/// Slices of one gather write: several small frames, or one with pieces, per system call. Far below the kernel's
/// limit (1024); longer lists gain nothing that can be measured.
const SLICES_MAX: usize = 64;

/// Frames in the order in which they were enqueued. Their payload stays in the caller's memory.
#[derive(Default)]
pub(super) struct Outbox {
    frames: VecDeque<Frame>,
    /// Of all frames, in order; none is empty.
    pieces: VecDeque<Piece>,
    /// Bytes of the first frame that the kernel has taken already.
    written: usize,
    unsent_bytes: usize,
    /// Of frames that the wire has kept: nobody may believe that they are out, and stop flushing.
    held: Vec<u64>,
    /// What was left of a frame when its caller's memory was given up.
    _kept: Vec<u8>,
}

struct Frame {
    header: Header,
    pieces: usize,
    bytes: usize,
    ticket: Option<u64>,
}

/// How a [`Outbox::write`] ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Written {
    /// Nothing could be written, or nothing is there.
    Nothing,
    /// Some bytes went out.
    Some,
    /// The peer will take no more.
    Broken,
}

impl Outbox {
    /// Bytes that the kernel has not taken yet.
    pub(super) fn unsent_bytes(&self) -> usize {
        self.unsent_bytes
    }

    /// Accepts a frame. A frame without a ticket is one that nobody is told about.
    ///
    /// # Safety
    /// As [`crate::Link::enqueue`]: the pieces are readable and unchanged until the ticket has come back or the outbox
    /// is cleared or dropped.
    pub(super) unsafe fn push(&mut self, header: &Header, payload: &[Piece], ticket: Option<u64>) {
        let before = self.pieces.len();
        self.pieces.extend(payload.iter().filter(|piece| piece.bytes > 0));
        let bytes = HEADER_BYTES + payload.iter().map(|piece| piece.bytes).sum::<usize>();
        self.frames.push_back(Frame { header: *header, pieces: self.pieces.len() - before, bytes, ticket });
        self.unsent_bytes += bytes;
    }

    /// Forgets all frames but one that is partly out, and copies what is left of that: no memory of a caller is
    /// referred to afterwards.
    pub(super) fn abandon(&mut self) {
        let Some(mut frame) = self.frames.pop_front().filter(|_| self.written > 0) else {
            self.clear();
            return;
        };
        let mut kept = Vec::with_capacity(frame.bytes);
        for piece in self.pieces.range(..frame.pieces) {
            // SAFETY: by the contract of `push` the piece is readable as long as its frame is not sent.
            kept.extend_from_slice(unsafe { std::slice::from_raw_parts(piece.start, piece.bytes) });
        }
        let (written, unsent_bytes) = (self.written, frame.bytes - self.written);
        self.clear();
        if !kept.is_empty() {
            self.pieces.push_back(Piece { start: kept.as_ptr(), bytes: kept.len() });
        }
        frame.pieces = self.pieces.len();
        frame.ticket = None;
        self.frames.push_back(frame);
        // Moving the vector does not move what it points to.
        *self = Outbox { written, unsent_bytes, _kept: kept, ..std::mem::take(self) };
    }

    /// Forgets everything that was not sent.
    pub(super) fn clear(&mut self) {
        *self = Outbox::default();
    }

    /// Writes until everything is out or the kernel takes no more; calls `sent` for each frame that is out entirely.
    pub(super) fn write(&mut self, wire: &mut Wire, sent: &mut dyn FnMut(u64)) -> io::Result<Written> {
        let mut outcome = match wire.flush() {
            Ok(true) => Written::Some,
            Ok(false) => Written::Nothing,
            Err(rustix::io::Errno::PIPE | rustix::io::Errno::CONNRESET) => return Ok(Written::Broken),
            Err(error) => return Err(error.into()),
        };
        if wire.unsent_bytes() == 0 {
            self.held.drain(..).for_each(&mut *sent);
        }
        while !self.frames.is_empty() {
            let mut slices = [IoSlice::new(&[]); SLICES_MAX];
            let (count, offered) = self.gather(&mut slices);
            let taken = match wire.send(&slices[..count]) {
                Ok(taken) => taken,
                Err(rustix::io::Errno::INTR) => continue,
                Err(rustix::io::Errno::AGAIN) => break,
                Err(rustix::io::Errno::PIPE | rustix::io::Errno::CONNRESET) => return Ok(Written::Broken),
                Err(error) => return Err(error.into()),
            };
            if wire.unsent_bytes() == 0 {
                self.held.drain(..).for_each(&mut *sent);
                self.advance(taken, sent);
            } else {
                let mut held = std::mem::take(&mut self.held);
                self.advance(taken, &mut |ticket| held.push(ticket));
                self.held = held;
            }
            outcome = Written::Some;
            if taken < offered {
                break;
            }
        }
        Ok(outcome)
    }

    /// Fills `slices` with what comes next. Returns how many slices and how many bytes.
    fn gather<'a>(&'a self, slices: &mut [IoSlice<'a>; SLICES_MAX]) -> (usize, usize) {
        let (mut count, mut bytes, mut skip) = (0, 0, self.written);
        let mut pieces = self.pieces.iter();
        let mut add = |slice: &'a [u8]| {
            let rest = &slice[skip.min(slice.len())..];
            skip -= slice.len() - rest.len();
            if !rest.is_empty() {
                slices[count] = IoSlice::new(rest);
                count += 1;
                bytes += rest.len();
            }
            count < SLICES_MAX
        };
        'full: for frame in &self.frames {
            if !add(bytes_of(&frame.header)) {
                break;
            }
            for piece in pieces.by_ref().take(frame.pieces) {
                // SAFETY: by the contract of `push` the piece is readable and unchanged until its frame is sent; the
                // slice lives no longer than the borrow of the outbox that still holds the frame.
                if !add(unsafe { std::slice::from_raw_parts(piece.start, piece.bytes) }) {
                    break 'full;
                }
            }
        }
        (count, bytes)
    }

    fn advance(&mut self, taken: usize, sent: &mut dyn FnMut(u64)) {
        self.unsent_bytes -= taken;
        self.written += taken;
        while let Some(frame) = self.frames.front() {
            if self.written < frame.bytes {
                break;
            }
            self.written -= frame.bytes;
            self.pieces.drain(..frame.pieces);
            if let Some(ticket) = frame.ticket {
                sent(ticket);
            }
            self.frames.pop_front();
        }
    }
}
