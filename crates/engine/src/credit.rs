//! Eager credit: what a peer may send before it is wanted, and the grants that arrive before their operation.
//!
//! The sender of an eager message takes its whole cost from the link's credit at once, and the receiver counts the
//! whole cost when the first of its frames begins: so both agree whatever the order in which frames arrive, and nothing
//! that a header claims can make the pool larger than the credit.

use paceline_plan::Rank;

use crate::arrival::violation;
use crate::engine::Engine;
use crate::failure::Failure;
use crate::frame::{Header, Kind};
use crate::peer::POOL_ENTRY_BYTES;

/// So many early grants of a peer are kept; then they are all forgotten, and it repeats those that still matter.
const EARLY_GRANTS_MAX: usize = 1 << 16;

impl Engine {
    /// The peer returns eager credit with every frame.
    pub(crate) fn take_credit_back(&mut self, peer: Rank, header: &Header) -> Result<(), Failure> {
        let state = &mut self.peers[peer];
        if header.eager_returned > state.eager_sent {
            return Err(violation(peer, "returned more credit than it was given"));
        }
        if header.eager_returned > state.eager_released_by_peer {
            state.returned(header.eager_returned);
            self.retry_parked(peer);
        }
        Ok(())
    }

    /// Counts the credit that a frame takes, and gives it: a whole message is paid for by its `first` data frame,
    /// references one by one.
    pub(crate) fn charge(&mut self, peer: Rank, header: &Header, first: bool) -> Result<usize, Failure> {
        let cost = match header.kind() {
            _ if header.eager == 0 => 0,
            Some(Kind::Reference) => POOL_ENTRY_BYTES,
            _ if first => header.message_bytes as usize + POOL_ENTRY_BYTES,
            _ => 0,
        };
        let state = &mut self.peers[peer];
        state.eager_received += cost as u64;
        if state.eager_received - state.eager_released > self.config.eager_link_bytes as u64 {
            return Err(violation(peer, "sent more than its credit allows"));
        }
        Ok(cost)
    }

    /// Gives eager credit back to a peer; by a frame of its own if much has gathered.
    pub(crate) fn release(&mut self, peer: Rank, credit: usize) {
        let state = &mut self.peers[peer];
        state.eager_released += credit as u64;
        let unreported = state.eager_released - state.eager_reported;
        if unreported > self.config.eager_link_bytes as u64 / 4 && state.control.is_empty() {
            state.control.push_back(Header::new(Kind::Credit, Default::default()));
        }
    }

    /// A grant has arrived.
    pub(crate) fn granted(&mut self, peer: Rank, header: &Header) -> Result<(), Failure> {
        if let Some(index) = self.find(header.key()) {
            self.check_signature(index, peer, &header.signature)?;
            return self.record_grant(index, peer, header.tile, header.message);
        }
        // It is either too late, because the message went eagerly and the operation is over; or a repetition; or early.
        if self.peers[peer].crossed(header.key()) || header.is_repeated() {
            return Ok(());
        }
        if self.peers[peer].early_grants >= EARLY_GRANTS_MAX {
            self.forget_early_grants(peer);
        }
        self.peers[peer].early_grants += 1;
        let pool = &mut self.pool;
        let early = self.unposted.entry(header.key()).or_insert_with(|| pool.unposted());
        early.grants.push((peer, header.tile, header.message, header.signature));
        Ok(())
    }

    fn forget_early_grants(&mut self, peer: Rank) {
        self.peers[peer].early_grants = 0;
        let pool = &mut self.pool;
        self.unposted.retain(|_, early| {
            early.grants.retain(|&(from, ..)| from != peer);
            let empty = early.grants.is_empty() && early.pooled.is_empty();
            if empty {
                pool.recycle(std::mem::take(early));
            }
            !empty
        });
    }
}
