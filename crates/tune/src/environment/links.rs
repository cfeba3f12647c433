//! What links make of the knobs of a call on our own communicator.

use crate::action::{Action, Family};

/// Each thread of a reduction gets at least 128 KiB of a tile: from this chunk on, there is work for two.
const SHARED_CHUNK_LOG2: u8 = 18;

/// What carries the calls of a communicator, as far as it decides which knobs do anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Links {
    has_tcp: bool,
    has_memory: bool,
    tcp_streams: u32,
}

impl Links {
    /// Of a communicator with links of TCP, of memory, or of both, and so many TCP connections per pair of ranks.
    pub fn new(has_tcp: bool, has_memory: bool, tcp_streams: u32) -> Links {
        Links { has_tcp, has_memory, tcp_streams }
    }

    /// Over how many connections a large frame can be spread.
    pub fn lanes_max(self) -> u32 {
        if self.has_tcp { self.tcp_streams.max(1) } else { 1 }
    }

    /// Are there links over TCP?
    pub fn has_tcp(self) -> bool {
        self.has_tcp
    }

    /// Are there links over which several threads can share a combination?
    pub fn has_memory(self) -> bool {
        self.has_memory
    }

    /// What an action does here: no more lanes than there are, one thread where there is no work for two. Actions of which this
    /// is the same are one.
    pub fn effect(self, action: &Action) -> (Family, u8, u8, u8) {
        let lanes = u32::from(action.channels).min(self.lanes_max()) as u8;
        let shares = self.has_memory && action.chunk_log2 >= SHARED_CHUNK_LOG2;
        (action.family, lanes, if shares { action.threads } else { 1 }, action.chunk_log2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::action::WireProtocol;

    #[test]
    fn what_is_the_same_on_these_links_is_one() {
        let action = |channels, threads, chunk_log2| Action {
            family: Family { algorithm: 0, protocol: WireProtocol::Simple },
            channels,
            threads,
            chunk_log2,
        };
        let tcp = Links::new(true, false, 2);
        assert_eq!(tcp.effect(&action(8, 2, 20)), tcp.effect(&action(2, 1, 20)));
        assert_ne!(tcp.effect(&action(1, 1, 20)), tcp.effect(&action(2, 1, 20)));
        let memory = Links::new(false, true, 4);
        assert_eq!(memory.effect(&action(8, 1, 17)), memory.effect(&action(1, 2, 17)));
        assert_ne!(memory.effect(&action(1, 1, 18)), memory.effect(&action(1, 2, 18)));
    }
}
