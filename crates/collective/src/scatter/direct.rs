use paceline_plan::{CollectiveKind, LinkCost, Rank};

use crate::algorithm::{fetched_from_one, one_to_each};
use crate::arithmetic::ahead;
use crate::{FlatAlgorithm, Place, RankBuilder, RankProgram, Space, TileSeconds};

/// Direct: the root sends every rank its block.
///
/// Source: the linear scatter of every MPI library.
pub(crate) struct Direct;

impl FlatAlgorithm for Direct {
    fn name(&self) -> &'static str {
        "direct"
    }

    fn kind(&self) -> CollectiveKind {
        CollectiveKind::Scatter
    }

    fn parts(&self, _world: usize) -> u32 {
        1
    }

    fn rank_program(&self, rank: Rank, world: usize, root: Rank) -> RankProgram {
        let mut builder = RankBuilder::new(Place { kind: self.kind(), rank, world, root }, self.parts(world));
        let output = builder.tile(Space::Output, 0);
        if rank != root {
            builder.receive(root, output);
            return builder.finish();
        }
        for offset in 1..world {
            let to = ahead(rank, offset, world);
            let block = builder.tile(Space::Input, to);
            builder.send(to, block);
        }
        let own = builder.tile(Space::Input, rank);
        builder.copy(own, output);
        builder.finish()
    }

    fn messages(&self, world: usize) -> usize {
        world - 1
    }

    fn rounds(&self, world: usize) -> usize {
        usize::from(world > 1)
    }

    fn bytes_sent(&self, world: usize, bytes: f64) -> f64 {
        (world - 1) as f64 * bytes
    }

    /// Everything that a rank takes in comes from one neighbour.
    fn fan_in(&self, _world: usize) -> usize {
        1
    }

    fn tile_seconds(&self, world: usize, bytes: f64, link: &LinkCost) -> TileSeconds {
        one_to_each(world, bytes, link)
    }

    /// All fetch at once.
    fn fetched_tile_seconds(&self, world: usize, bytes: f64, link: &LinkCost) -> TileSeconds {
        fetched_from_one(world, bytes, link)
    }
}
