use std::collections::{BinaryHeap, VecDeque};

use paceline_collective::{Message, StepId};
use paceline_plan::Rank;

use crate::OpId;
use crate::engine::LinkTraits;
use crate::frame::{Header, Signature};
use crate::outgoing::Outgoing;
use crate::work::PoolBuffer;

/// What the pool costs per message besides its bytes.
pub(crate) const POOL_ENTRY_BYTES: usize = 64;

/// What the engine knows of one peer.
#[derive(Debug, Default)]
pub(crate) struct Peer {
    pub traits: LinkTraits,
    pub outgoing: BinaryHeap<Outgoing>,
    pub control: VecDeque<Header>,
    /// Sends without permission yet.
    pub parked: Vec<(OpId, u32, StepId)>,
    /// Eager bytes sent since the link opened, and how many of them the peer has released.
    pub eager_sent: u64,
    pub eager_released_by_peer: u64,
    /// Eager bytes of the peer taken in, and released, and the last release that the peer was told of.
    pub eager_received: u64,
    pub eager_released: u64,
    pub eager_reported: u64,
    /// Grants of the peer for operations that are not posted here.
    pub early_grants: usize,
    pub left: bool,
}

impl Peer {
    /// Eager bytes that the peer may still hold.
    pub fn eager_outstanding(&self) -> usize {
        (self.eager_sent - self.eager_released_by_peer) as usize
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
    pub received: usize,
    pub buffer: Option<PoolBuffer>,
    /// `(reference, offset, bytes)` of each piece that came by reference.
    pub references: Vec<([u64; 2], usize, usize)>,
    /// The eager credit that it holds.
    pub credit: usize,
    pub signature: Signature,
}

/// What has arrived for an operation that is not posted here.
#[derive(Debug, Default)]
pub(crate) struct Unposted {
    pub pooled: Vec<Pooled>,
    /// `(world rank, tile, message, signature)`.
    pub grants: Vec<(Rank, u32, Message, Signature)>,
}
