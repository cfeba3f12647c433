use paceline_plan::{CollectiveKind, LinkCost, Rank};

use crate::algorithm::chained;
use crate::arithmetic::{ahead, behind};
use crate::{FlatAlgorithm, Place, RankBuilder, RankProgram, Space, TileSeconds};

/// Ring: every block travels once round the ring.
///
/// Source: Thakur, Rabenseifner and Gropp (2005), on all-gather.
pub(crate) struct Ring;

impl FlatAlgorithm for Ring {
    fn name(&self) -> &'static str {
        "ring"
    }

    fn kind(&self) -> CollectiveKind {
        CollectiveKind::AllGather
    }

    fn peers(&self, rank: Rank, world: usize) -> Option<Vec<Rank>> {
        Some(vec![ahead(rank, 1, world)])
    }

    fn parts(&self, _world: usize) -> u32 {
        1
    }

    fn rank_program(&self, rank: Rank, world: usize, root: Rank) -> RankProgram {
        let mut builder = RankBuilder::new(Place { kind: self.kind(), rank, world, root }, self.parts(world));
        let (left, right) = (behind(rank, 1, world), ahead(rank, 1, world));
        let input = builder.tile(Space::Input, 0);
        if world > 1 {
            builder.send(right, input);
        }
        let own = builder.tile(Space::Output, rank);
        builder.copy(input, own);
        for hop in 1..world {
            let block = builder.tile(Space::Output, behind(rank, hop, world));
            builder.receive(left, block);
            if hop < world - 1 {
                builder.send(right, block);
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
        chained(peers, link, peers * link.beta * bytes)
    }
}
