use paceline_plan::{CollectiveKind, LinkCost, Rank};

use crate::algorithm::busy_folding;
use crate::rank_order::reduce_in_rank_order;
use crate::{FlatAlgorithm, Place, RankBuilder, RankProgram, Space, TileSeconds};

/// Direct (pairwise exchange): everyone sends block b to rank b, which combines in the order of the ranks. One round.
///
/// Source: Thakur, Rabenseifner and Gropp (2005), pairwise exchange for reduce-scatter.
pub(crate) struct Direct;

impl FlatAlgorithm for Direct {
    fn name(&self) -> &'static str {
        "direct"
    }

    fn kind(&self) -> CollectiveKind {
        CollectiveKind::ReduceScatter
    }

    fn parts(&self, _world: usize) -> u32 {
        1
    }

    fn rank_program(&self, rank: Rank, world: usize, root: Rank) -> RankProgram {
        let mut builder = RankBuilder::new(Place { kind: self.kind(), rank, world, root }, self.parts(world));
        if world == 1 {
            return builder.alone();
        }
        // In the order of the ranks, as they are taken in.
        for to in (0..world).filter(|&to| to != rank) {
            let block = builder.tile(Space::Input, to);
            builder.send(to, block);
        }
        let own = builder.tile(Space::Input, rank);
        let (scratch, output) = (builder.tile(Space::Scratch, 0), builder.tile(Space::Output, 0));
        reduce_in_rank_order(&mut builder, rank, world, own, scratch, output);
        builder.finish()
    }

    fn messages(&self, world: usize) -> usize {
        (world - 1) * world
    }

    fn rounds(&self, world: usize) -> usize {
        usize::from(world > 1)
    }

    fn bytes_sent(&self, world: usize, bytes: f64) -> f64 {
        (world - 1) as f64 * bytes
    }

    fn tile_seconds(&self, world: usize, bytes: f64, link: &LinkCost) -> TileSeconds {
        if world == 1 {
            return TileSeconds::NONE;
        }
        let next = (world - 1) as f64 * busy_folding(link, bytes);
        // Everyone waits for rank 0's message first: the ranks start one after the other.
        let skew = (world - 2) as f64 * busy_folding(link, bytes);
        TileSeconds::pipeline(link.latency() + next + skew, next)
    }
}
