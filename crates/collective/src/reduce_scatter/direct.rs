use paceline_plan::{CollectiveKind, LinkCost, Rank};

use crate::algorithm::busy_folding;
use crate::arithmetic::ahead;
use crate::neighbours::reduce_from_neighbours;
use crate::{FlatAlgorithm, Place, RankBuilder, RankProgram, Space, TileSeconds};

/// Direct (pairwise exchange): everyone sends block b to rank b, which combines what it is sent. One round. Each rank
/// begins with its neighbour, so that nobody is asked by all at once.
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
        for offset in 1..world {
            let to = ahead(rank, offset, world);
            let block = builder.tile(Space::Input, to);
            builder.send(to, block);
        }
        let (own, output) = (builder.tile(Space::Input, rank), builder.tile(Space::Output, 0));
        reduce_from_neighbours(&mut builder, rank, world, own, output);
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
        TileSeconds::pipeline(link.latency() + next, next)
    }
}
