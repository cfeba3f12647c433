//! A link that is slowed down.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use paceline_engine::frame::{Header, Kind};
use paceline_plan::{Emulation, Rank};
use rustix::time::{ClockId, clock_gettime};

use super::ports::{Nanoseconds, Ports};
use super::shaper::{AHEAD_S, Path, Shaper};
use crate::{Descriptor, Link, LinkError, NO_TICKET, Piece, Sink, Transport};

/// Any link, on which messages take as long as over an emulated network. Both sides must be shaped.
///
/// References are the way to send large messages: their bytes cross the memory of this machine once, when the reference
/// arrives.
pub struct ShapedLink {
    inner: Box<dyn Link>,
    ports: Arc<Ports>,
    alpha: Nanoseconds,
    shaper: Shaper<Held>,
    /// Of all frames under way, in order.
    pieces: VecDeque<Piece>,
    /// Frames without data, with the times of their arrival.
    words: VecDeque<(Nanoseconds, Header, u64)>,
    /// Of those, how many there have been so far.
    words_so_far: u64,
    /// The most eager credit that a frame has returned that has arrived.
    returned: u64,
    /// The link underneath has no room for what has arrived; it wakes us when it has.
    blocked: bool,
    /// Nothing takes time any more: last words.
    unshaped: bool,
}

/// A frame with data, or a reference.
struct Held {
    header: Header,
    pieces: usize,
    ticket: u64,
    /// Frames without data before it.
    words_before: u64,
}

impl ShapedLink {
    /// Shapes what this rank sends to a peer.
    ///
    /// # Panics
    /// If the emulation has no such ranks, or the ports belong to another one.
    pub fn new(inner: Box<dyn Link>, ports: Arc<Ports>, emulation: &Emulation, from: Rank, to: Rank) -> ShapedLink {
        let (out, into) = ports.between(emulation, from, to);
        let path = Path { out, into, class: emulation.link(from, to), ahead_s: AHEAD_S * emulation.dilation };
        ShapedLink {
            inner,
            ports,
            alpha: path.alpha(),
            shaper: Shaper::new(path),
            pieces: VecDeque::new(),
            words: VecDeque::new(),
            words_so_far: 0,
            returned: 0,
            blocked: false,
            unshaped: false,
        }
    }

    /// A frame without data goes on.
    fn pass(&mut self, header: &Header, ticket: u64) {
        self.returned = self.returned.max(header.eager_returned);
        // SAFETY: no pieces.
        unsafe { self.inner.enqueue(header, &[], ticket) };
    }

    /// A frame without data begins its way.
    fn queue_word(&mut self, arrival: Nanoseconds, header: Header, ticket: u64) {
        self.words_so_far += 1;
        self.words.push_back((arrival, header, ticket));
    }

    /// The header of a frame that overtakes words on their way. No frame may return credit before the grants that are
    /// older (the engine takes it for a sign that none will come any more): so what it returns beyond them follows them as
    /// a word of its own.
    fn overtaking(&mut self, header: &Header) -> Header {
        if let Some(&(arrival, last, _)) = self.words.back()
            && header.eager_returned > last.eager_returned
        {
            let credit =
                Header { eager_returned: header.eager_returned, ..Header::new(Kind::Credit, Default::default()) };
            self.queue_word(arrival, credit, NO_TICKET);
        }
        Header { eager_returned: self.returned, ..*header }
    }

    /// That memory was taken is said at once.
    fn pass_at_once(&mut self, header: &Header, ticket: u64) {
        let header = if self.words.is_empty() { *header } else { self.overtaking(header) };
        self.pass(&header, ticket);
    }

    /// Lets go of all data.
    fn forget(&mut self) {
        self.shaper.clear();
        self.pieces.clear();
    }

    /// Hands over all that has no data, and forgets the rest.
    fn end_shaping(&mut self) {
        self.unshaped = true;
        self.forget();
        while let Some((_, header, ticket)) = self.words.pop_front() {
            self.pass(&header, ticket);
        }
    }

    /// When the first word arrives. A goodbye comes after all data, at no time of its own.
    fn next_word(&self) -> Option<Nanoseconds> {
        let (arrival, header, _) = self.words.front()?;
        let last = header.kind() == Some(Kind::Goodbye);
        (!last || self.shaper.is_empty()).then_some(*arrival)
    }

    /// Hands over what has arrived. True if there was something.
    fn deliver(&mut self, now: Nanoseconds) -> bool {
        let mut moved = false;
        self.shaper.announce(now, &self.ports);
        self.blocked = false;
        loop {
            let word = self.next_word().filter(|arrival| *arrival <= now);
            let data = self.shaper.next_arrival().filter(|arrival| *arrival <= now && !self.blocked);
            match (word, data) {
                (Some(word), data) if data.is_none_or(|data| word <= data) => {
                    self.deliver_word();
                    moved = true;
                }
                (_, Some(_)) => moved |= self.deliver_data(),
                _ => break,
            }
        }
        moved
    }

    fn deliver_word(&mut self) {
        if let Some((_, header, ticket)) = self.words.pop_front() {
            self.pass(&header, ticket);
        }
    }

    /// False if the link underneath has no room.
    fn deliver_data(&mut self) -> bool {
        let lanes = self.shaper.first().map_or(0, |held| held.header.lanes);
        self.blocked = !self.inner.has_room_on(lanes);
        if !self.blocked
            && let Some(Held { header, pieces, ticket, words_before }) = self.shaper.take()
        {
            // What had to wait for room leaves when there was some, and so may arrive before a word that was said earlier.
            let late = self.words_so_far - (self.words.len() as u64) < words_before;
            let header = if late { self.overtaking(&header) } else { header };
            self.returned = self.returned.max(header.eager_returned);
            let payload = &self.pieces.make_contiguous()[..pieces];
            // SAFETY: the pieces are held under the contract of `enqueue`, which is the same, and their ticket has not
            // come back.
            unsafe { self.inner.enqueue(&header, payload, ticket) };
            self.pieces.drain(..pieces);
        }
        !self.blocked
    }
}

impl Link for ShapedLink {
    fn transport(&self) -> Transport {
        self.inner.transport()
    }

    /// For words, which take no port.
    fn has_room(&self) -> bool {
        self.inner.has_room()
    }

    /// For data: when the message before has passed.
    fn has_room_on(&self, lanes: u16) -> bool {
        let shaped = self.unshaped || self.shaper.has_room(now());
        shaped && self.inner.has_room_on(lanes)
    }

    fn is_flushed(&self) -> bool {
        self.words.is_empty() && self.shaper.is_idle() && self.inner.is_flushed()
    }

    unsafe fn enqueue(&mut self, header: &Header, payload: &[Piece], ticket: u64) {
        let kind = header.kind();
        if self.unshaped || kind == Some(Kind::Abort) {
            // SAFETY: the contract is the same.
            return unsafe { self.inner.enqueue(header, payload, ticket) };
        }
        let now = now();
        match kind {
            Some(Kind::Data | Kind::Reference) => {
                self.pieces.extend(payload);
                let held = Held { header: *header, pieces: payload.len(), ticket, words_before: self.words_so_far };
                self.shaper.send(held, header.payload_bytes as usize, now, &self.ports);
            }
            Some(Kind::Taken) => self.pass_at_once(header, ticket),
            _ => self.queue_word(now.saturating_add(self.alpha), *header, ticket),
        }
    }

    fn flush(&mut self, sent: &mut dyn FnMut(u64)) -> Result<bool, LinkError> {
        let now = now();
        let mut moved = self.deliver(now);
        moved |= self.inner.flush(sent)?;
        // Whoever was refused asks again.
        Ok(moved | self.shaper.room_opened(now))
    }

    fn receive(&mut self, sink: &mut dyn Sink) -> Result<bool, LinkError> {
        self.inner.receive(sink)
    }

    fn reference_above(&self) -> Option<usize> {
        self.inner.reference_above()
    }

    fn any_memory(&self) -> bool {
        self.inner.any_memory()
    }

    fn refer(&self, piece: Piece) -> Option<[u64; 2]> {
        self.inner.refer(piece)
    }

    fn mapped(&self, reference: [u64; 2], bytes: usize) -> Option<*const u8> {
        self.inner.mapped(reference, bytes)
    }

    unsafe fn take(&self, reference: [u64; 2], offset: usize, into: *mut u8, bytes: usize) -> Result<(), LinkError> {
        // SAFETY: the caller's contract is the same.
        unsafe { self.inner.take(reference, offset, into, bytes) }
    }

    fn withdrawn(&self) -> bool {
        self.inner.withdrawn()
    }

    fn descriptors(&self, into: &mut Vec<Descriptor>) {
        self.inner.descriptors(into);
    }

    fn keeps_time(&self) -> bool {
        true
    }

    fn next_event(&self) -> Option<Instant> {
        let event = self.next_word().into_iter().chain(self.shaper.next_event(!self.blocked)).min()?;
        Instant::now().checked_add(Duration::from_nanos(event.saturating_sub(now())))
    }

    fn prepare_sleep(&mut self, asleep: bool) {
        self.inner.prepare_sleep(asleep);
    }

    fn abandon(&mut self) {
        // Memory first: nothing of it goes out any more.
        self.forget();
        self.inner.abandon();
        self.end_shaping();
    }

    fn close(&mut self) {
        self.end_shaping();
        self.inner.close();
    }

    fn settled(&mut self) -> bool {
        self.words.is_empty() && self.inner.settled()
    }
}

impl Drop for ShapedLink {
    /// What was said last goes out although its time has not come.
    fn drop(&mut self) {
        if !self.unshaped {
            self.end_shaping();
            let _ = self.inner.flush(&mut |_| ());
        }
    }
}

fn now() -> Nanoseconds {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
