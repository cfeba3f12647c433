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

    /// The closed formula: seconds for `bytes` per block, in tiles of `tile_bytes`, on links of this cost.
    /// `docs/algorithms.md` has it with its source.
    fn seconds(&self, world: usize, bytes: usize, tile_bytes: usize, link: &LinkCost) -> f64;

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
