use paceline_plan::{CollectiveKind, LinkCost, Rank};

use crate::algorithm::busy;
use crate::rank_order::serve_in_rank_order;
use crate::{FlatAlgorithm, Place, RankBuilder, RankProgram, Space, TileSeconds};

/// Direct: everyone sends its contribution to the root, which adds them in the order of the ranks, as they arrive. The
/// first half of push-pull: between the two halves the server may do something with the sum.
///
/// Source: Li et al., "Scaling distributed machine learning with the parameter server" (2014).
pub(crate) struct Direct;

impl FlatAlgorithm for Direct {
    fn name(&self) -> &'static str {
        "direct"
    }

    fn kind(&self) -> CollectiveKind {
        CollectiveKind::Push
    }

    fn supports(&self, world: usize) -> bool {
        world >= 2
    }

    fn parts(&self, _world: usize) -> u32 {
        1
    }

    fn rank_program(&self, rank: Rank, world: usize, root: Rank) -> RankProgram {
        let mut builder = RankBuilder::new(Place { kind: self.kind(), rank, world, root }, self.parts(world));
        if rank == root {
            let output = builder.tile(Space::Output, 0);
            serve_in_rank_order(&mut builder, root, world, output);
        } else {
            let input = builder.tile(Space::Input, 0);
            builder.send(root, input);
        }
        builder.finish()
    }

    fn messages(&self, world: usize) -> usize {
        world - 1
    }

    fn rounds(&self, _world: usize) -> usize {
        1
    }

    fn bytes_sent(&self, _world: usize, bytes: f64) -> f64 {
        bytes
    }

    /// The root takes in one contribution after the other. What it sends goes to different workers.
    fn fan_in(&self, _world: usize) -> usize {
        1
    }

    fn tile_seconds(&self, world: usize, bytes: f64, link: &LinkCost) -> TileSeconds {
        let workers = (world - 1) as f64;
        let pushed = workers * busy(link, bytes) + (workers - 1.0) * link.gamma * bytes;
        TileSeconds::pipeline(link.latency() + pushed, pushed)
    }
}
