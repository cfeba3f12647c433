//! How much a rank has sent.

use paceline_engine::frame::Header;

use crate::Communicator;

/// What a rank has sent since it connected, of all its communicators: the data of operations, not what coordinates them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Messages of programs; a long one travels in several frames.
    pub messages: u64,
    /// Their bytes, headers not counted. On shared memory the receiver may have read them in place.
    pub bytes: u64,
}

impl Traffic {
    /// A frame of data, or a reference to some, leaves.
    pub(crate) fn add(&mut self, header: &Header) {
        self.messages += u64::from(header.offset == 0);
        self.bytes += u64::from(header.payload_bytes);
    }

    /// What was sent since `earlier`; nothing if that is later, or of another rank that had sent more.
    pub fn since(&self, earlier: &Traffic) -> Traffic {
        Traffic {
            messages: self.messages.saturating_sub(earlier.messages),
            bytes: self.bytes.saturating_sub(earlier.bytes),
        }
    }
}

impl Communicator {
    /// How much this rank has sent so far.
    pub fn traffic(&self) -> Traffic {
        self.world.context.with(|core| core.traffic)
    }
}
