//! What goes in and what comes out: the types of the engine's calls.

use std::sync::Arc;
use std::time::Duration;

use paceline_collective::Order;
use paceline_plan::{OperationKey, Protocol, Rank};

use crate::frame::{Header, Signature};
use crate::work::{PoolBuffer, Region};
use crate::{Failure, Geometry, RankSchedule, Waiting};

/// Time since an origin that the driver chooses.
pub type Time = Duration;

/// Names an operation while it is pending.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct OpId {
    /// Where its memory is listed; small, and used again.
    pub index: u32,
    pub(crate) generation: u32,
}

/// The engine's limits. All ranks must have the same, but for times.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// This rank in the world.
    pub rank: Rank,
    /// The size of the world.
    pub world: usize,
    /// Operations of at most so many bytes go eagerly; of larger ones, the first so many bytes to each peer.
    pub eager_operation_bytes: usize,
    /// At most so many eager bytes may lie unreleased at a peer.
    pub eager_link_bytes: usize,
    /// The longest data frame: how long an urgent message may have to wait behind another.
    pub frame_bytes: usize,
    /// The largest piece of local work.
    pub work_bytes: usize,
    /// How long a receive waits before it grants what should have come eagerly.
    pub nudge: Duration,
    /// A link on which nothing was sent for so long carries a sign of life. Zero: none, and no silence is a loss. Each
    /// rank tells the others its own, so they need not agree.
    pub heartbeat: Duration,
    /// A peer of which so many signs of life in a row did not come is lost.
    pub heartbeat_misses: u32,
    /// An operation in which nothing happens for so long is reported ([`crate::Engine::stalled`]). Zero: never.
    pub stall: Duration,
}

impl Config {
    /// The defaults for a rank of a world.
    pub fn new(rank: Rank, world: usize) -> Config {
        Config {
            rank,
            world,
            eager_operation_bytes: 64 << 10,
            eager_link_bytes: 1 << 20,
            frame_bytes: 256 << 10,
            work_bytes: 256 << 10,
            nudge: Duration::from_millis(2),
            heartbeat: Duration::from_secs(1),
            heartbeat_misses: 2,
            stall: Duration::from_secs(10),
        }
    }
}

/// What a link can do besides carrying bytes. Its two ends should be told the same: where they differ, messages may
/// have to wait for a nudge.
#[derive(Clone, Copy, Debug, Default)]
pub struct LinkTraits {
    /// Longer messages go by reference: the receiver takes them from the sender's memory.
    pub reference_above: Option<usize>,
    /// References may name any memory; otherwise only that of operations with [`Request::shared_memory`].
    pub any_memory: bool,
    /// References to other memory than that of operations with [`Request::shared_memory`] name at most so many bytes, a
    /// multiple of any element's. None: as many as lie there in one piece.
    pub reference_at_most: Option<usize>,
}

/// An operation to be executed.
#[derive(Clone, Debug)]
pub struct Request {
    /// Its name, the same on all ranks, and never used again: frames of the operation may arrive after its end here.
    pub key: OperationKey,
    /// What the caller asked for; compared with the peers'.
    pub signature: Signature,
    /// This rank's part.
    pub schedule: Arc<RankSchedule>,
    /// The lengths.
    pub geometry: Geometry,
    /// Rank of the world by rank of the group.
    pub group: Arc<[Rank]>,
    /// Lower goes first.
    pub priority: u32,
    /// When to give up.
    pub deadline: Time,
    /// Tiles in flight; the same on all ranks.
    pub window: u32,
    /// All of its memory can be read by the peers of the host.
    pub shared_memory: bool,
    /// For kernels: the actual bytes of each input block. The operation must be a single tile.
    pub input_lengths: Option<Vec<usize>>,
    /// How its messages travel and its work is cut.
    pub tuning: Tuning,
}

/// What a caller may choose about an operation without changing its result. Ranks may differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tuning {
    /// When messages leave, and as what.
    pub protocol: Protocol,
    /// Over which parallel streams of a link its frames are spread ([`Header::lanes`]). 0: all.
    pub lanes: u16,
    /// Threads that share a piece of local work: pieces are so many times [`Config::work_bytes`]. 0 is 1.
    pub reducing_threads: u16,
}

impl Request {
    /// The scratch that the driver must provide, in bytes.
    pub fn scratch_bytes(&self) -> usize {
        let window = self.window.clamp(1, self.geometry.tiles.max(1)) as usize;
        window * self.schedule.scratch_blocks() as usize * self.geometry.scratch_block_bytes()
    }
}

/// Where the payload of a data frame goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// To its place.
    Write(Region),
    /// Combined on arrival, element by element; the regions are as long as the payload, which is whole elements.
    Fold {
        /// The local operand.
        with: Region,
        /// The result.
        into: Region,
        /// Which operand is on the left.
        order: Order,
        /// The result is final.
        last: bool,
    },
    /// To the pool, at this offset of the buffer.
    Pool(PoolBuffer, usize),
    /// There is no payload, or nobody wants it.
    Nowhere,
}

/// A data frame for a link.
#[derive(Clone, Copy, Debug)]
pub struct Transmit {
    /// Its header; for a reference the driver fills in [`Header::reference`].
    pub header: Header,
    /// The payload, or what the reference is to name.
    pub payload: Region,
    /// To be given back when the link no longer needs the payload; None for references.
    pub ticket: Option<u64>,
}

/// An operation that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Which.
    pub op: OpId,
    /// Its name.
    pub key: OperationKey,
    /// How.
    pub outcome: Result<(), Failure>,
    /// The peers that have not finished, if it failed.
    pub waiting: Vec<Waiting>,
    /// The actual bytes of each output block, if kernels decided them; empty otherwise.
    pub output_lengths: Vec<usize>,
    /// When the last frame with data arrived, as far as [`crate::Engine::tick`] has told the time; None if none did.
    pub last_arrival: Option<Time>,
}
