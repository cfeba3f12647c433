use paceline_plan::{CollectiveKind, LinkCost, Rank};

use crate::algorithm::busy_folding;
use crate::arithmetic::{ahead, behind};
use crate::{FlatAlgorithm, Place, RankBuilder, RankProgram, Space, TileSeconds};

/// Direct, one shot: everyone sends everything to everyone, and every rank combines in the order of the ranks, so that
/// all get the same bits. One message of latency; for small messages.
///
/// Source: an all-gather with the reduction done locally; GPU libraries call it one-shot.
pub(crate) struct Direct;

impl FlatAlgorithm for Direct {
    fn name(&self) -> &'static str {
        "direct"
    }

    fn kind(&self) -> CollectiveKind {
        CollectiveKind::AllReduce
    }

    fn parts(&self, _world: usize) -> u32 {
        1
    }

    fn rank_program(&self, rank: Rank, world: usize, root: Rank) -> RankProgram {
        let mut builder = RankBuilder::new(Place { kind: self.kind(), rank, world, root }, self.parts(world));
        if world == 1 {
            return builder.alone();
        }
        let input = builder.tile(Space::Input, 0);
        let output = builder.tile(Space::Output, 0);
        let scratch = |builder: &RankBuilder, block| builder.tile(Space::Scratch, block);
        for offset in 1..world {
            builder.send(ahead(rank, offset, world), input);
        }
        // Each peer has its own scratch block, so that messages are taken in whatever order they arrive.
        let contribution = |builder: &RankBuilder, of: Rank| match of {
            of if of == rank => input,
            of => scratch(builder, of - usize::from(of > rank)),
        };
        for offset in 1..world {
            let from = behind(rank, offset, world);
            let into = contribution(&builder, from);
            builder.receive(from, into);
        }
        // Not into the output before the last: in place that is the input, which peers and later steps still read.
        let mut partial = contribution(&builder, 0);
        for next in 1..world {
            let last = next == world - 1;
            let into = if last { output } else { scratch(&builder, 0) };
            let operand = contribution(&builder, next);
            builder.combine(partial, operand, into, last);
            partial = into;
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

    fn tile_seconds(&self, world: usize, bytes: f64, link: &LinkCost) -> TileSeconds {
        if world == 1 {
            return TileSeconds::NONE;
        }
        let next = (world - 1) as f64 * busy_folding(link, bytes);
        TileSeconds::pipeline(link.latency() + next, next)
    }
}
