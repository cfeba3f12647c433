use paceline_plan::{CollectiveKind, LinkCost, Rank};

use crate::algorithm::one_to_each;
use crate::arithmetic::ahead;
use crate::{FlatAlgorithm, Place, RankBuilder, RankProgram, Space, TileSeconds};

/// Direct: everyone sends its block to the root.
///
/// Source: the linear gather of every MPI library.
pub(crate) struct Direct;

impl FlatAlgorithm for Direct {
    fn name(&self) -> &'static str {
        "direct"
    }

    fn kind(&self) -> CollectiveKind {
        CollectiveKind::Gather
    }

    fn parts(&self, _world: usize) -> u32 {
        1
    }

    fn rank_program(&self, rank: Rank, world: usize, root: Rank) -> RankProgram {
        let mut builder = RankBuilder::new(Place { kind: self.kind(), rank, world, root }, self.parts(world));
        let input = builder.tile(Space::Input, 0);
        if rank != root {
            builder.send(root, input);
            return builder.finish();
        }
        let own = builder.tile(Space::Output, rank);
        builder.copy(input, own);
        for offset in 1..world {
            let from = ahead(rank, offset, world);
            let block = builder.tile(Space::Output, from);
            builder.receive(from, block);
        }
        builder.finish()
    }

    fn messages(&self, world: usize) -> usize {
        world - 1
    }

    fn rounds(&self, world: usize) -> usize {
        usize::from(world > 1)
    }

    fn bytes_sent(&self, world: usize, bytes: f64) -> f64 {
        if world > 1 { bytes } else { 0.0 }
    }

    fn tile_seconds(&self, world: usize, bytes: f64, link: &LinkCost) -> TileSeconds {
        one_to_each(world, bytes, link)
    }
}
