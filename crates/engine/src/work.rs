//! Local work: what the driver copies, combines and maps on behalf of the programs.

use std::cmp::Ordering;

use paceline_collective::{Combine, KernelId, Space, StepId};
use paceline_plan::Rank;

use crate::interface::OpId;

/// A buffer of the pool. The driver gives it memory when bytes are first written to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PoolBuffer(pub u32);

/// Some bytes of an operation's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// The operation.
    pub op: OpId,
    /// Which of its buffers. Scratch is one buffer of `window` tiles.
    pub space: Space,
    /// In bytes from the buffer's start.
    pub offset: usize,
    /// How many.
    pub bytes: usize,
}

/// Where an operand lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// In the operation's memory.
    Region(Region),
    /// In the pool.
    Pool {
        /// Which buffer.
        buffer: PoolBuffer,
        /// From here.
        offset: usize,
        /// So many bytes.
        bytes: usize,
    },
    /// In a peer's memory, from `offset` of what its link calls `reference`.
    Reference {
        /// Whose, as a rank of the world.
        peer: Rank,
        /// The link's name for it.
        reference: [u64; 2],
        /// From here.
        offset: usize,
        /// So many bytes.
        bytes: usize,
    },
}

/// One piece of local work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Job {
    /// `into = from`. Where both are the same memory (in place) there is nothing to do.
    Copy {
        /// What is read.
        from: Source,
        /// Where it goes.
        into: Region,
        /// No step reads the result: it need not be in a cache.
        unread: bool,
    },
    /// `into = left ⊕ right`.
    Combine {
        /// The left operand.
        left: Source,
        /// The right operand.
        right: Source,
        /// Where the result goes; may be one of the operands.
        into: Region,
        /// How.
        combine: Combine,
        /// The result is final: an average divides here.
        last: bool,
    },
    /// `into = kernel(from)`.
    Map {
        /// What is read.
        from: Source,
        /// Where the result goes.
        into: Region,
        /// The kernel.
        kernel: KernelId,
    },
}

/// Names a piece of work that the driver has taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token(pub(crate) u32);

/// What the driver has to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// To be given back with [`crate::Engine::worked`].
    pub token: Token,
    /// What to do.
    pub job: Job,
}

/// Where the operand that is not in the operation's own slots comes from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Incoming {
    /// There is none: a local step.
    None,
    Pool(PoolBuffer),
    Reference {
        peer: Rank,
        reference: [u64; 2],
    },
}

/// A piece of work in the queue. It covers `base .. base + total` of its step's slot; `done` of it is behind us.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Item {
    pub priority: u32,
    pub sequence: u64,
    pub op: OpId,
    pub tile: u32,
    pub step: StepId,
    pub incoming: Incoming,
    pub base: usize,
    pub total: usize,
    pub done: usize,
    /// Bytes of the chunk that the driver has now.
    pub taken: usize,
}

impl Ord for Item {
    /// The greatest goes first: lowest priority number, then the oldest.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.priority, other.sequence).cmp(&(self.priority, self.sequence))
    }
}

impl PartialOrd for Item {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Item {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Item {}
