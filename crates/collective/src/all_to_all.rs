//! All-to-all: rank r gets block r of every rank.

use paceline_plan::{CollectiveKind, LinkCost, Rank};

use crate::algorithm::one_to_each;
use crate::arithmetic::{ahead, behind};
use crate::{FlatAlgorithm, Place, RankBuilder, RankProgram, Space, TileSeconds};

/// Direct (pairwise): in step k every rank sends to the rank k places ahead and receives from the one k places behind.
///
/// Source: the pairwise exchange of Thakur, Rabenseifner and Gropp (2005), on all-to-all.
pub(crate) struct Direct;

impl FlatAlgorithm for Direct {
    fn name(&self) -> &'static str {
        "direct"
    }

    fn kind(&self) -> CollectiveKind {
        CollectiveKind::AllToAll
    }

    fn parts(&self, _world: usize) -> u32 {
        1
    }

    fn rank_program(&self, rank: Rank, world: usize, root: Rank) -> RankProgram {
        let mut builder = RankBuilder::new(Place { kind: self.kind(), rank, world, root }, self.parts(world));
        let (input, output) = (builder.tile(Space::Input, rank), builder.tile(Space::Output, rank));
        builder.copy(input, output);
        let mut saved = 0;
        for offset in 1..world {
            let to = ahead(rank, offset, world);
            let mut block = builder.tile(Space::Input, to);
            if saves(rank, to) {
                let scratch = builder.tile(Space::Scratch, saved);
                builder.copy(block, scratch);
                block = scratch;
                saved += 1;
            }
            builder.send(to, block);
        }
        for offset in 1..world {
            let from = behind(rank, offset, world);
            let block = builder.tile(Space::Output, from);
            builder.receive(from, block);
        }
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

    /// With input and output apart, as most callers have them. In place, half of the blocks are copied first.
    fn tile_seconds(&self, world: usize, bytes: f64, link: &LinkCost) -> TileSeconds {
        one_to_each(world, bytes, link)
    }
}

/// In place, two ranks swap a block: one of them must save its own first, or neither could take the other's in. The
/// parity of the sum shares that work out evenly.
fn saves(rank: Rank, peer: Rank) -> bool {
    (rank < peer) == ((rank + peer).is_multiple_of(2))
}
