use paceline_plan::{CollectiveKind, LinkCost, Rank};

use crate::algorithm::{busy_folding, folded};
use crate::arithmetic::{ahead, behind};
use crate::{FlatAlgorithm, Place, RankBuilder, RankProgram, Space, TileSeconds};

/// Pipelined chain: the farthest rank starts, every rank adds its contribution and passes the tile on to the root.
///
/// Source: the broadcast of van de Geijn and Watts (1997), backwards.
pub(crate) struct Pipelined;

impl FlatAlgorithm for Pipelined {
    fn name(&self) -> &'static str {
        "pipelined"
    }

    fn kind(&self) -> CollectiveKind {
        CollectiveKind::Reduce
    }

    fn peers(&self, rank: Rank, world: usize) -> Option<Vec<Rank>> {
        Some(vec![behind(rank, 1, world)])
    }

    fn parts(&self, _world: usize) -> u32 {
        1
    }

    fn rank_program(&self, rank: Rank, world: usize, root: Rank) -> RankProgram {
        let mut builder = RankBuilder::new(Place { kind: self.kind(), rank, world, root }, self.parts(world));
        if world == 1 {
            return builder.alone();
        }
        let (nearer, farther) = (behind(rank, 1, world), ahead(rank, 1, world));
        let sum = builder.tile(if rank == root { Space::Output } else { Space::Scratch }, 0);
        let mut have = builder.tile(Space::Input, 0);
        if farther != root {
            builder.receive_fold(farther, have, sum, rank == root);
            have = sum;
        }
        if rank != root {
            builder.send(nearer, have);
        }
        builder.finish()
    }

    fn messages(&self, world: usize) -> usize {
        world - 1
    }

    fn rounds(&self, world: usize) -> usize {
        world - 1
    }

    fn bytes_sent(&self, world: usize, bytes: f64) -> f64 {
        if world > 1 { bytes } else { 0.0 }
    }

    /// Everything that a rank takes in comes from one neighbour.
    fn fan_in(&self, _world: usize) -> usize {
        1
    }

    fn tile_seconds(&self, world: usize, bytes: f64, link: &LinkCost) -> TileSeconds {
        if world == 1 {
            return TileSeconds::NONE;
        }
        TileSeconds::passed_on((world - 1) as f64 * folded(link, bytes), busy_folding(link, bytes), link)
    }
}
