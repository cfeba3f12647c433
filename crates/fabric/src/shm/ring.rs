//! The two ends of a single-producer, single-consumer ring of bytes in shared memory.
//!
//! Positions count bytes since the link opened and never wrap; the place in the ring is the position modulo its
//! (power of two) size. Published positions are multiples of [`UNIT`], so that the two sides never work on one cache
//! line. Whatever the other side publishes is checked before it is believed: a broken peer yields an error.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::fetch;
use super::segment::Segment;
use crate::LinkError;

/// Published positions are multiples of this: a cache line.
pub(super) const UNIT: usize = 64;

/// A ring takes memory in pieces of this size, in its first lap: with many ranks most pairs never fill theirs.
const MEMORY_STEP_BYTES: usize = 64 << 10;

/// So many bytes are fetched before they are written: a small message.
const FETCH_AHEAD_BYTES: u64 = 1536;

/// The writing end.
pub(super) struct Producer {
    segment: Arc<Segment>,
    side: usize,
    /// Where the next byte goes.
    tail: u64,
    /// Up to where the consumer may read.
    published: u64,
    /// Up to where the consumer has read, when last looked.
    head: Cell<u64>,
    /// Up to which position there is memory; the last one that there is, once the whole ring has some.
    backed: u64,
    /// Up to where lines have been fetched ahead.
    fetched: u64,
}

impl Producer {
    /// The end of ring `side`, fresh.
    pub(super) fn new(segment: Arc<Segment>, side: usize) -> Producer {
        Producer { segment, side, tail: 0, published: 0, head: Cell::new(0), backed: 0, fetched: 0 }
    }

    /// How many bytes can be written now; looks at what the consumer has read only if the last look does not give
    /// `wanted`. The limit is on a multiple of [`UNIT`]: who fills all of it may publish. The first `wanted` of them have
    /// memory: where the system has none, this is an error, and writing never ends the process.
    pub(super) fn space(&mut self, wanted: usize) -> Result<usize, LinkError> {
        if self.known_space() < wanted {
            self.look()?;
        }
        if self.tail + wanted as u64 > self.backed {
            self.take_memory(wanted)?;
        }
        Ok(self.known_space())
    }

    /// Takes memory for `wanted` more bytes, and a step's worth at once.
    #[cold]
    fn take_memory(&mut self, wanted: usize) -> Result<(), LinkError> {
        let ring_bytes = self.ring_bytes() as u64;
        let end = (self.tail + wanted as u64).next_multiple_of(MEMORY_STEP_BYTES as u64).min(ring_bytes);
        let failed = |source| LinkError::Io { doing: "taking memory for a ring", source };
        self.segment.populate(self.side, self.backed as usize..end as usize).map_err(failed)?;
        self.backed = if end == ring_bytes { u64::MAX } else { end };
        Ok(())
    }

    /// Can `wanted` bytes be written? Yes if the peer is broken, which the next call of `space` reports.
    pub(super) fn has_space(&self, wanted: usize) -> bool {
        self.known_space() >= wanted || self.look().is_err() || self.known_space() >= wanted
    }

    /// The size of the ring.
    pub(super) fn ring_bytes(&self) -> usize {
        self.segment.ring_bytes()
    }

    /// Bytes written and not yet published.
    pub(super) fn unpublished(&self) -> usize {
        (self.tail - self.published) as usize
    }

    /// Writes bytes.
    ///
    /// # Safety
    /// `from` is readable for `bytes`.
    pub(super) unsafe fn write(&mut self, from: *const u8, bytes: usize) {
        assert!(bytes <= self.known_space(), "a frame is written where there is room");
        let at = self.tail as usize & (self.ring_bytes() - 1);
        // SAFETY: `at` lies in the first mapping of the ring and `bytes` are no more than a ring, so the range lies in
        // the two mappings. The consumer has read what was there (the room was checked) and looks again only after
        // `publish`. The caller answers for `from`, which is no ring of ours.
        unsafe { std::ptr::copy_nonoverlapping(from, self.segment.ring(self.side).add(at), bytes) };
        self.tail += bytes as u64;
    }

    /// For a moment in which nothing else is to be done: makes another line of those that are written next this core's
    /// own. Who writes to a line that another core has read last waits for it to come over.
    pub(super) fn fetch_ahead(&mut self) {
        self.fetched = self.fetched.max(self.tail);
        if self.fetched < self.tail + FETCH_AHEAD_BYTES {
            let at = self.fetched as usize & (self.ring_bytes() - 1);
            fetch::line_to_write(self.segment.ring(self.side).wrapping_add(at));
            self.fetched += UNIT as u64;
        }
    }

    /// Leaves out the bytes up to the next multiple of [`UNIT`]. There is room: limits are such multiples.
    pub(super) fn pad(&mut self) {
        self.tail = self.tail.next_multiple_of(UNIT as u64);
    }

    /// Lets the consumer read everything written. The position must be a multiple of [`UNIT`].
    pub(super) fn publish(&mut self) {
        assert!(self.tail.is_multiple_of(UNIT as u64), "whole lines are published");
        // Sequentially consistent: see `Side::fall_asleep`.
        self.segment.side(self.side).tail.0.store(self.tail, Ordering::SeqCst);
        self.published = self.tail;
    }

    fn known_space(&self) -> usize {
        (self.head.get() + self.ring_bytes() as u64 - self.tail) as usize
    }

    /// Looks how far the consumer has read.
    fn look(&self) -> Result<(), LinkError> {
        let before = self.head.get();
        let head = self.segment.side(1 - self.side).head.0.load(Ordering::SeqCst);
        if head < before || head > self.published || !head.is_multiple_of(UNIT as u64) {
            return Err(broken("has read", head, before, self.published));
        }
        self.head.set(head);
        Ok(())
    }
}

/// The reading end.
pub(super) struct Consumer {
    segment: Arc<Segment>,
    /// The side that reads; the ring is the other's.
    side: usize,
    /// The next byte to read.
    head: u64,
    /// Up to where the producer may write again (after one more ring).
    published: u64,
    /// Up to where the producer has published, when last looked.
    tail: u64,
}

impl Consumer {
    /// The reading end that belongs to `side`, fresh.
    pub(super) fn new(segment: Arc<Segment>, side: usize) -> Consumer {
        Consumer { segment, side, head: 0, published: 0, tail: 0 }
    }

    /// How many bytes can be read now; looks at what the producer has published only if the last look does not give
    /// `wanted`.
    pub(super) fn available(&mut self, wanted: usize) -> Result<usize, LinkError> {
        if ((self.tail - self.head) as usize) < wanted {
            let tail = self.segment.side(1 - self.side).tail.0.load(Ordering::SeqCst);
            let limit = self.published + self.segment.ring_bytes() as u64;
            if tail < self.tail || tail > limit || !tail.is_multiple_of(UNIT as u64) {
                return Err(broken("has written", tail, self.tail, limit));
            }
            if tail > self.tail {
                self.tail = tail;
                // All of a small message comes over from the producer's core at once, while its header is looked at.
                fetch::to_read(self.data(), (tail - self.head) as usize);
            }
        }
        Ok((self.tail - self.head) as usize)
    }

    /// The next byte to read. As many as are available lie there in one piece, until they are published as read.
    pub(super) fn data(&self) -> *const u8 {
        let at = self.head as usize & (self.segment.ring_bytes() - 1);
        self.segment.ring(1 - self.side).wrapping_add(at)
    }

    /// Counts bytes as read.
    pub(super) fn advance(&mut self, bytes: usize) {
        self.head += bytes as u64;
        assert!(self.head <= self.tail, "only what is available is read");
    }

    /// Leaves out the bytes up to the next multiple of [`UNIT`]: what is published ends there.
    pub(super) fn pad(&mut self) {
        self.head = self.head.next_multiple_of(UNIT as u64);
    }

    /// The size of the ring.
    pub(super) fn ring_bytes(&self) -> usize {
        self.segment.ring_bytes()
    }

    /// Bytes read that the producer does not know of.
    pub(super) fn unpublished(&self) -> usize {
        (self.head - self.published) as usize
    }

    /// Lets the producer overwrite what has been read, up to the last multiple of [`UNIT`].
    pub(super) fn publish(&mut self) {
        let head = self.head / UNIT as u64 * UNIT as u64;
        if head > self.published {
            self.segment.side(self.side).head.0.store(head, Ordering::SeqCst);
            self.published = head;
        }
    }
}

#[cold]
fn broken(what: &str, position: u64, low: u64, high: u64) -> LinkError {
    LinkError::Protocol {
        what: format!(
            "claims in shared memory that it {what} up to {position}, which is not between {low} and {high}: its memory is damaged or it is of another version"
        ),
    }
}
