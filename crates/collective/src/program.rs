//! What a program is made of.
//!
//! # The size of the data does not stand in a program
//!
//! A collective has an input and an output of *blocks*: an all-reduce has one block in each, an all-gather one in its
//! input and one per rank in its output ([`blocks`]). Every block is cut into *tiles* of at most so many elements, and
//! every tile into [`Program::parts`] *parts* (part `p` of a tile of `n` elements is `n·p/parts .. n·(p+1)/parts`).
//! A program is stated for one tile; the engine repeats it tile by tile, several at once (that is the pipelining).
//! So a [`Slot`], "part 3 of block 0 of the output", is a different range of bytes in every tile, and the program is the
//! same for a kilobyte and for a gigabyte. Blocks may differ in length (variable counts).
//!
//! # Matching
//!
//! Messages between two ranks have names, not an order: the send and the receive that belong together carry the same
//! [`Message`] number on the same directed edge. A rank's program can therefore be made without looking at its peers'.
//!
//! # Actual lengths
//!
//! A slot has a capacity (its geometry). What lies in it may be shorter: a message carries its actual length, and
//! kernels ([`KernelId`]) return the length that they wrote. Elementwise programs always fill their slots; sparse and
//! quantised ones do not.

use std::fmt;

use paceline_plan::{CollectiveKind, Rank};

/// The index of a step in [`RankProgram::steps`].
pub type StepId = u32;

/// The name of a message on one directed edge, from 0, the same in every tile.
pub type Message = u32;

/// A kernel that the caller registers with the engine's driver: a sparse merge, a decode-and-add, a cast.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KernelId(pub u16);

/// A collective as data, for all ranks of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The algorithm, as in `a2a:ring`.
    pub algorithm: String,
    /// What it achieves.
    pub kind: CollectiveKind,
    /// The rank that has (broadcast, scatter) or gets (reduce, gather) the whole, or serves the others (push, push-pull);
    /// 0 where there is none.
    pub root: Rank,
    /// Into how many parts a tile of a block is cut.
    pub parts: u32,
    /// What each rank does.
    pub ranks: Vec<RankProgram>,
}

/// What one rank does in one tile.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RankProgram {
    /// Blocks of scratch, each as large as a tile.
    pub scratch_blocks: u32,
    /// The steps. They are not executed in this order but as soon as their `after` allows.
    pub steps: Vec<Step>,
}

/// One thing to do, and what must have been done before it starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// What to do.
    pub action: Action,
    /// Steps of the same rank and tile that must be complete before this one may start. A send is complete when its
    /// slot may be overwritten; a receive when its data lies in its slot. A receive that may not start yet takes
    /// nothing in: its data waits at the sender, or in the engine's bounded pool.
    pub after: Vec<StepId>,
}

/// What a step does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send the content of a slot.
    Send {
        /// The receiver.
        to: Rank,
        /// The name under which the receiver expects it.
        message: Message,
        /// What is sent.
        from: Slot,
    },
    /// Take a message in: store it, or fold it into what is there.
    Receive {
        /// The sender.
        from: Rank,
        /// The name under which it sends.
        message: Message,
        /// Where the result goes.
        into: Slot,
        /// None: store. Otherwise the result is the combination of `with` and the message.
        fold: Option<Fold>,
    },
    /// `into = left ⊕ right`, all local. `into` may be `left` or `right`.
    Combine {
        /// The left operand.
        left: Slot,
        /// The right operand.
        right: Slot,
        /// Where the result goes.
        into: Slot,
        /// How.
        combine: Combine,
        /// This result is final: an average divides here.
        last: bool,
    },
    /// `into = from`.
    Copy {
        /// What is copied.
        from: Slot,
        /// Where to.
        into: Slot,
    },
    /// `into = kernel(from)`: re-encode.
    Map {
        /// What is read.
        from: Slot,
        /// Where the result goes.
        into: Slot,
        /// The kernel.
        kernel: KernelId,
    },
}

/// How an arriving message is combined with what is there: `into = with ⊕ message`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fold {
    /// The local operand. May be the receive's `into`.
    pub with: Slot,
    /// Which operand stands on the left. Matters for kernels that do not commute.
    pub order: Order,
    /// How.
    pub combine: Combine,
    /// This result is final: an average divides here.
    pub last: bool,
}

/// The order of the operands of a [`Fold`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// `with ⊕ message`.
    LocalFirst,
    /// `message ⊕ with`.
    MessageFirst,
}

/// How two slots become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Combine {
    /// Element by element, with the reduction that the call names.
    Reduction,
    /// By a registered kernel; lengths may change.
    Kernel(KernelId),
}

/// A range of a tile: some consecutive parts of one block, or all parts of some consecutive blocks. Several blocks
/// travel as one message, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot {
    /// Where.
    pub space: Space,
    /// The first block.
    pub block: u32,
    /// How many blocks.
    pub blocks: u32,
    /// The first part.
    pub part: u32,
    /// How many parts. If `blocks` is not 1, then `part` is 0 and `parts` is the program's.
    pub parts: u32,
}

/// The memory that a slot lies in. The caller may pass the same memory as input and output (*in place*): then input
/// block b is output block b; if only one of the two has many blocks, the single one is the rank's own of the many.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Space {
    /// The caller's data. Never written, unless input and output are one memory.
    Input,
    /// The caller's result.
    Output,
    /// The engine's, one set of blocks per tile in flight.
    Scratch,
}

impl Action {
    /// The slots that are read; for a receive without the message itself.
    pub fn reads(&self) -> impl Iterator<Item = Slot> + Clone {
        let slots = match self {
            Action::Send { from, .. } | Action::Copy { from, .. } | Action::Map { from, .. } => [Some(*from), None],
            Action::Receive { fold, .. } => [fold.as_ref().map(|fold| fold.with), None],
            Action::Combine { left, right, .. } => [Some(*left), Some(*right)],
        };
        slots.into_iter().flatten()
    }

    /// The slot that is written.
    pub fn write(&self) -> Option<Slot> {
        match self {
            Action::Send { .. } => None,
            Action::Receive { into, .. }
            | Action::Combine { into, .. }
            | Action::Copy { into, .. }
            | Action::Map { into, .. } => Some(*into),
        }
    }
}

impl Slot {
    /// Parts `part .. part + parts` of one block.
    pub const fn of_parts(space: Space, block: u32, part: u32, parts: u32) -> Self {
        Slot { space, block, blocks: 1, part, parts }
    }

    /// Do two slots of one rank share a cell? Input and output count as different memories here.
    pub const fn overlaps(&self, other: &Slot) -> bool {
        self.space as u8 == other.space as u8
            && self.block < other.block + other.blocks
            && other.block < self.block + self.blocks
            && self.part < other.part + other.parts
            && other.part < self.part + self.parts
    }
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let space = match self.space {
            Space::Input => "input",
            Space::Output => "output",
            Space::Scratch => "scratch",
        };
        let end = |start: u32, count: u32| u64::from(start) + u64::from(count);
        write!(f, "{space} blocks {}..{}", self.block, end(self.block, self.blocks))?;
        write!(f, " parts {}..{}", self.part, end(self.part, self.parts))
    }
}

/// The number of blocks in the input and in the output of a rank: `(input, output)`. A rank that has no input
/// (or gets no output) in a rooted collective has 0 there.
pub fn blocks(kind: CollectiveKind, rank: Rank, root: Rank, world: usize) -> (u32, u32) {
    let all = world as u32;
    let at_root = |count: u32| if rank == root { count } else { 0 };
    match kind {
        CollectiveKind::AllReduce | CollectiveKind::Barrier => (1, 1),
        CollectiveKind::ReduceScatter => (all, 1),
        CollectiveKind::AllGather => (1, all),
        CollectiveKind::Broadcast => (at_root(1), 1),
        CollectiveKind::Reduce => (1, at_root(1)),
        CollectiveKind::Gather => (1, at_root(all)),
        CollectiveKind::Scatter => (at_root(all), 1),
        CollectiveKind::AllToAll => (all, all),
        CollectiveKind::SendReceive => (1, 1),
        CollectiveKind::PushPull => (u32::from(rank != root), 1),
        CollectiveKind::Push => (u32::from(rank != root), at_root(1)),
    }
}
