use std::collections::{BTreeMap, BinaryHeap, VecDeque};

use paceline_collective::Message;
use paceline_plan::{OperationKey, Rank};

use crate::frame::{Header, Kind, Signature};
use crate::heartbeat::Pulse;
use crate::interface::LinkTraits;
use crate::outgoing::Outgoing;
use crate::work::PoolBuffer;

/// What the pool costs per message besides its bytes, and per reference.
pub(crate) const POOL_ENTRY_BYTES: usize = 64;

/// What the engine knows of one peer.
#[derive(Debug, Default)]
pub(crate) struct Peer {
    pub traits: LinkTraits,
    pub outgoing: BinaryHeap<Outgoing>,
    pub control: VecDeque<Header>,
    /// Sends that wait for credit. Some may have been granted since.
    pub parked: BinaryHeap<Outgoing>,
    /// The length of `parked` at which it is swept.
    pub sweep_at: usize,
    /// Eager bytes sent since the link opened, and how many of them the peer has released.
    pub eager_sent: u64,
    pub eager_released_by_peer: u64,
    /// Eager bytes of the peer taken in, and released, and the last release that the peer was told of.
    pub eager_received: u64,
    pub eager_released: u64,
    pub eager_reported: u64,
    /// See [`Peer::cross`]: `eager_sent` when it ended, and the operation.
    crossing: VecDeque<(u64, OperationKey)>,
    /// Grants of the peer for operations that are not posted here.
    pub early_grants: usize,
    pub left: bool,
    pub pulse: Pulse,
}

impl Peer {
    /// Eager bytes that the peer may still hold.
    pub fn eager_outstanding(&self) -> usize {
        (self.eager_sent - self.eager_released_by_peer) as usize
    }

    /// The peer has released so many eager bytes by now.
    pub fn returned(&mut self, released: u64) {
        self.eager_released_by_peer = released;
        while self.crossing.front().is_some_and(|&(sent, _)| sent <= released) {
            self.crossing.pop_front();
        }
    }

    /// An operation has ended that sent something eagerly: a grant for it may be on its way and means nothing. None can
    /// come any more when the peer has released as much as had been sent by then: on an ordered link it had received
    /// this operation's messages before it released later ones, it grants nothing that it has received, and its frames
    /// return no credit before the grants that are older. (On a link of several streams the rule may miss one, which
    /// then takes the place of an early grant.)
    pub fn cross(&mut self, key: OperationKey) {
        if self.eager_outstanding() > 0 {
            self.crossing.push_back((self.eager_sent, key));
        }
    }

    /// Is this an operation that has ended here and may have crossed with a grant?
    pub fn crossed(&self, key: OperationKey) -> bool {
        self.crossing.iter().any(|&(_, crossing)| crossing == key)
    }

    /// Drops everything that was to be sent.
    pub fn forget(&mut self) {
        self.outgoing.clear();
        self.control.clear();
        self.parked.clear();
    }
}

/// A message whose receive may not start yet.
#[derive(Debug)]
pub(crate) struct Pooled {
    /// Rank of the world.
    pub from: Rank,
    pub tile: u32,
    pub message: Message,
    pub message_bytes: usize,
    /// The bytes of the frames that have begun, which do not overlap, and how many of them have ended.
    announced: Cover,
    received: usize,
    /// All of it is here.
    pub complete: bool,
    pub buffer: Option<PoolBuffer>,
    /// `(reference, offset, bytes)` of each piece that came by reference.
    pub references: Vec<([u64; 2], usize, usize)>,
    /// The eager credit that it holds.
    pub credit: usize,
    pub signature: Signature,
}

impl Pooled {
    /// The message of a frame that begins. `references` is an empty list.
    pub fn new(from: Rank, header: &Header, references: Vec<([u64; 2], usize, usize)>) -> Pooled {
        Pooled {
            from,
            tile: header.tile,
            message: header.message,
            message_bytes: header.message_bytes as usize,
            announced: Cover::default(),
            received: 0,
            complete: false,
            buffer: None,
            references,
            credit: 0,
            signature: header.signature,
        }
    }

    /// A frame of it begins. An error is what is wrong with it.
    pub fn announce(&mut self, header: &Header, first: bool) -> Result<(), &'static str> {
        let by_reference = header.kind() == Some(Kind::Reference);
        let other_way = if by_reference { self.buffer.is_some() } else { !self.references.is_empty() };
        let bytes = header.payload_bytes as usize;
        if self.message_bytes != header.message_bytes as usize || self.signature != header.signature || other_way {
            return Err("changed its mind about a message in its middle");
        }
        let offset = header.offset as usize;
        if offset + bytes > self.message_bytes || (bytes == 0 && !first) || !self.announced.add(offset, bytes) {
            return Err("sent a piece of a message twice");
        }
        // Each reference takes an entry, so each must be paid for.
        if by_reference && header.eager == 0 {
            return Err("sent references that nobody had granted");
        }
        Ok(())
    }

    /// Is it this message?
    pub fn is(&self, from: Rank, tile: u32, message: Message) -> bool {
        self.from == from && self.tile == tile && self.message == message
    }

    /// A frame of it has ended.
    pub fn receive(&mut self, bytes: usize) {
        self.received += bytes;
        self.complete = self.received == self.message_bytes;
    }
}

/// Which bytes of a message are covered by its pieces. Pieces that come in order, as nearly all do, cost no memory; of
/// the others there are never more than the message has bytes.
#[derive(Debug, Default)]
struct Cover {
    /// All bytes before this one.
    prefix: usize,
    /// The end of each piece that lies beyond it, by its start.
    beyond: BTreeMap<usize, usize>,
}

impl Cover {
    /// Adds a piece. False if a byte of it is covered already: then nothing has changed.
    fn add(&mut self, start: usize, bytes: usize) -> bool {
        let end = start + bytes;
        let next = self.beyond.range(start..).next().is_none_or(|(&next, _)| end <= next);
        let previous = self.beyond.range(..start).next_back().is_none_or(|(_, &previous)| previous <= start);
        if start < self.prefix || !next || !previous {
            return false;
        }
        if start > self.prefix {
            self.beyond.insert(start, end);
            return true;
        }
        self.prefix = end;
        while let Some(end) = self.beyond.remove(&self.prefix) {
            self.prefix = end;
        }
        true
    }
}

/// What has arrived for an operation that is not posted here.
#[derive(Debug, Default)]
pub(crate) struct Unposted {
    pub pooled: Vec<Pooled>,
    /// `(world rank, tile, message, signature)`.
    pub grants: Vec<(Rank, u32, Message, Signature)>,
}

#[cfg(test)]
mod tests {
    use super::Cover;

    #[test]
    fn a_cover_takes_each_byte_once_in_whatever_order() {
        let mut cover = Cover::default();
        for (start, bytes, taken) in [
            (10, 10, true),
            (10, 10, false),
            (15, 1, false),
            (5, 6, false),
            (19, 5, false),
            (0, 21, false),
            (20, 5, true),
            (0, 10, true),
            (24, 2, false),
            (25, 1, true),
            (0, 1, false),
        ] {
            assert_eq!(cover.add(start, bytes), taken, "{bytes} bytes at {start}: {cover:?}");
        }
        assert_eq!(cover.prefix, 26);
        assert!(cover.beyond.is_empty());
    }
}
