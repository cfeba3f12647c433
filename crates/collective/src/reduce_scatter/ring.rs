use paceline_plan::{CollectiveKind, LinkCost, Rank};

use crate::algorithm::chained;
use crate::arithmetic::{ahead, behind};
use crate::{FlatAlgorithm, Place, RankBuilder, RankProgram, Space, TileSeconds};

/// Ring: block b starts behind rank b, takes in every contribution on its way round, and ends on rank b.
///
/// Source: Patarasuk and Yuan (2009).
pub(crate) struct Ring;

impl FlatAlgorithm for Ring {
    fn name(&self) -> &'static str {
        "ring"
    }

    fn kind(&self) -> CollectiveKind {
        CollectiveKind::ReduceScatter
    }

    fn peers(&self, rank: Rank, world: usize) -> Option<Vec<Rank>> {
        Some(vec![ahead(rank, 1, world)])
    }

    fn parts(&self, _world: usize) -> u32 {
        1
    }

    fn rank_program(&self, rank: Rank, world: usize, root: Rank) -> RankProgram {
        let mut builder = RankBuilder::new(Place { kind: self.kind(), rank, world, root }, self.parts(world));
        if world == 1 {
            return builder.alone();
        }
        let (left, right) = (behind(rank, 1, world), ahead(rank, 1, world));
        let first = builder.tile(Space::Input, left);
        builder.send(right, first);
        for hop in 1..world {
            let last = hop == world - 1;
            let contribution = builder.tile(Space::Input, behind(rank, hop + 1, world));
            // Two scratch blocks take turns: one comes in while the other goes out.
            let into = if last { builder.tile(Space::Output, 0) } else { builder.tile(Space::Scratch, hop % 2) };
            builder.receive_fold(left, contribution, into, last);
            if !last {
                builder.send(right, into);
            }
        }
        builder.finish()
    }

    fn messages(&self, world: usize) -> usize {
        (world - 1) * world
    }

    fn rounds(&self, world: usize) -> usize {
        world - 1
    }

    fn bytes_sent(&self, world: usize, bytes: f64) -> f64 {
        (world - 1) as f64 * bytes
    }

    /// Everything that a rank takes in comes from one neighbour.
    fn fan_in(&self, _world: usize) -> usize {
        1
    }

    fn tile_seconds(&self, world: usize, bytes: f64, link: &LinkCost) -> TileSeconds {
        let peers = (world - 1) as f64;
        chained(peers, link, peers * (link.beta + link.gamma) * bytes)
    }
}
