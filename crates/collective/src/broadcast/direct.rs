use paceline_plan::{CollectiveKind, LinkCost, Rank};

use crate::algorithm::{fetched_from_one, one_to_each};
use crate::{FlatAlgorithm, Place, RankBuilder, RankProgram, Space, TileSeconds};

/// Direct: the root sends to everybody else. Nobody passes anything on, so each takes the data from where the root has it
/// as soon as it has the processor.
///
/// Source: the linear broadcast of MPI libraries; Chan, Heimlich, Purkayastha and van de Geijn (2007), on the minimum
/// spanning tree that it is compared with.
pub(crate) struct Direct;

impl FlatAlgorithm for Direct {
    fn name(&self) -> &'static str {
        "direct"
    }

    fn kind(&self) -> CollectiveKind {
        CollectiveKind::Broadcast
    }

    fn parts(&self, _world: usize) -> u32 {
        1
    }

    fn rank_program(&self, rank: Rank, world: usize, root: Rank) -> RankProgram {
        let mut builder = RankBuilder::new(Place { kind: self.kind(), rank, world, root }, self.parts(world));
        let output = builder.tile(Space::Output, 0);
        if rank == root {
            let input = builder.tile(Space::Input, 0);
            for peer in (0..world).filter(|&peer| peer != root) {
                builder.send(peer, input);
            }
            builder.copy(input, output);
        } else {
            builder.receive(root, output);
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
        (world - 1) as f64 * bytes
    }

    /// Everything that a rank takes in comes from the root.
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
