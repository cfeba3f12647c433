use paceline_plan::{CollectiveKind, LinkCost, Rank};

use crate::{Program, RankProgram};

/// One algorithm for one collective. Implementations live one to a file and are listed in `registry`.
///
/// Everything is a pure function of its arguments, so that every rank makes its own part of the program alone and all
/// parts fit together.
pub trait Algorithm: Send + Sync {
    /// The name in a strategy (`a2a:NAME`), on the command line and in reports.
    fn name(&self) -> &'static str;

    /// The collective that it carries out.
    fn kind(&self) -> CollectiveKind;

    /// Can it serve a world of this size? Most serve any from 1.
    fn supports(&self, world: usize) -> bool {
        world >= 1
    }

    /// Are blocks of different lengths allowed (variable counts)?
    fn variable_counts(&self) -> bool {
        true
    }

    /// Into how many parts a tile is cut.
    fn parts(&self, world: usize) -> u32;

    /// What `rank` does. `root` is 0 for collectives without one.
    fn rank_program(&self, rank: Rank, world: usize, root: Rank) -> RankProgram;

    /// Messages of one tile, of all ranks together.
    fn messages(&self, world: usize) -> usize;

    /// The longest chain of messages in one tile, each of which is sent only after the one before has arrived.
    fn rounds(&self, world: usize) -> usize;

    /// The bytes that the busiest sender puts on the wire, for `bytes` per block.
    fn bytes_sent(&self, world: usize, bytes: f64) -> f64;

    /// The closed formula for one tile of `bytes` per block, and for each tile that follows it in the pipeline.
    /// `docs/algorithms.md` has it with its source.
    fn tile_seconds(&self, world: usize, bytes: f64, link: &LinkCost) -> TileSeconds;

    /// The closed formula: seconds for `bytes` per block, in tiles of `tile_bytes`, on links of this cost, with as many
    /// tiles in flight as the pipeline can use.
    fn seconds(&self, world: usize, bytes: usize, tile_bytes: usize, link: &LinkCost) -> f64 {
        let tiles = tiles(bytes, tile_bytes);
        let first = self.tile_seconds(world, bytes.min(tile_bytes) as f64, link).first;
        if tiles == 1 {
            return first;
        }
        let full = self.tile_seconds(world, tile_bytes as f64, link).next * (tiles - 2) as f64;
        let rest = self.tile_seconds(world, (bytes - (tiles - 1) * tile_bytes) as f64, link).next;
        first + full + rest
    }

    /// The whole program.
    fn program(&self, world: usize, root: Rank) -> Program {
        Program {
            algorithm: self.name().to_owned(),
            kind: self.kind(),
            root,
            parts: self.parts(world),
            ranks: (0..world).map(|rank| self.rank_program(rank, world, root)).collect(),
        }
    }
}

/// What the tiles of a pipeline take.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TileSeconds {
    /// One tile alone, from the first start to the last end.
    pub first: f64,
    /// Each further one: what the busiest port of the busiest rank spends on a tile.
    pub next: f64,
}

impl TileSeconds {
    /// Every port is busy from the first to the last message of a tile: there is nothing to overlap.
    pub const fn saturated(seconds: f64) -> Self {
        TileSeconds { first: seconds, next: seconds }
    }
}

/// The number of tiles of a block. An empty block is one empty tile.
pub const fn tiles(bytes: usize, tile_bytes: usize) -> usize {
    if bytes == 0 { 1 } else { bytes.div_ceil(tile_bytes) }
}

/// Seconds for one message of `bytes`.
pub(crate) fn sent(link: &LinkCost, bytes: f64) -> f64 {
    link.alpha + link.beta * bytes
}

/// Seconds for one message of `bytes` that is combined as it arrives.
pub(crate) fn folded(link: &LinkCost, bytes: f64) -> f64 {
    sent(link, bytes) + link.gamma * bytes
}
