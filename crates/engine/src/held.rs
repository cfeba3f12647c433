//! What the engine keeps, counted; and what it lets go of when it fails.

use crate::engine::Engine;
use crate::peer::Pooled;
use crate::work::Incoming;

/// What an engine keeps for operations and peers. All zero when nothing is pending and everything has come back: a
/// number that stays is a leak.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Operations that have not ended.
    pub operations: usize,
    /// Operations that only peers have started.
    pub unposted: usize,
    /// Buffers of the pool that hold a message.
    pub pool_buffers: usize,
    /// Frames whose tickets have not come back.
    pub in_flight: usize,
    /// Local work that waits or is under way.
    pub work: usize,
    /// Messages that wait for a link or for credit, and frames for it.
    pub outgoing: usize,
    /// Eager bytes that peers have not given back.
    pub eager_bytes: usize,
}

impl Engine {
    /// Counts what is kept. Costs a walk over the peers.
    pub fn held(&self) -> Held {
        let parked = |peer: &crate::peer::Peer| {
            // Some may have been granted since, and are listed all the same.
            peer.parked.iter().filter(|parked| self.ops[parked.op.index as usize].is_parked(parked)).count()
        };
        Held {
            operations: self.pending(),
            unposted: self.unposted(),
            pool_buffers: self.pool.in_use(),
            in_flight: self.in_flight.len(),
            work: self.queue.len() + self.taken.len(),
            outgoing: self.peers.iter().map(|peer| peer.outgoing.len() + peer.control.len() + parked(peer)).sum(),
            eager_bytes: self.peers.iter().map(|peer| peer.eager_outstanding()).sum(),
        }
    }

    /// The engine has failed: nothing that it kept for peers will be asked for again. The driver lets go of the links
    /// before it asks for released buffers.
    pub(crate) fn let_go(&mut self) {
        let queued = self.queue.drain().map(|item| item.incoming);
        let taken = self.taken.drain().map(|item| item.incoming);
        let consumed = queued.chain(taken).filter_map(|incoming| match incoming {
            Incoming::Pool(buffer) => Some(buffer),
            _ => None,
        });
        let early = self.unposted.drain().flat_map(|(_, early)| early.pooled);
        let pooled = early.filter_map(|message: Pooled| message.buffer);
        for buffer in consumed.chain(pooled) {
            self.pool.release_buffer(buffer);
        }
        self.in_flight.drain().for_each(drop);
        for peer in &mut self.peers {
            // No credit comes back any more, and none is needed.
            peer.eager_released_by_peer = peer.eager_sent;
        }
    }
}
