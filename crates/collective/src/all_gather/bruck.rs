use paceline_plan::{CollectiveKind, LinkCost, Rank};

use crate::arithmetic::{ahead, behind, log2_ceil};
use crate::{FlatAlgorithm, Place, RankBuilder, RankProgram, Space, TileSeconds};

/// Bruck: the number of blocks that a rank has doubles each round, in any world, at the price of a copy at the end.
/// For small blocks.
///
/// Source: Bruck, Ho, Kipnis, Upfal and Weathersby, "Efficient algorithms for all-to-all communications in multiport
/// message-passing systems" (1997), concatenation; Thakur, Rabenseifner and Gropp (2005), on all-gather.
pub(crate) struct Bruck;

impl FlatAlgorithm for Bruck {
    fn name(&self) -> &'static str {
        "bruck"
    }

    fn kind(&self) -> CollectiveKind {
        CollectiveKind::AllGather
    }

    // Blocks are renamed in scratch: one that lies there must fit whatever rank's it is.
    fn variable_counts(&self) -> bool {
        false
    }

    fn parts(&self, _world: usize) -> u32 {
        1
    }

    fn rank_program(&self, rank: Rank, world: usize, root: Rank) -> RankProgram {
        let mut builder = RankBuilder::new(Place { kind: self.kind(), rank, world, root }, self.parts(world));
        let (input, own) = (builder.tile(Space::Input, 0), builder.tile(Space::Output, rank));
        builder.copy(input, own);
        if world == 1 {
            return builder.finish();
        }
        // Scratch block i is the block of the rank i places ahead.
        let first = builder.tile(Space::Scratch, 0);
        builder.copy(input, first);
        let mut have = 1;
        while have < world {
            let more = have.min(world - have);
            let (give, take) = (builder.tiles(Space::Scratch, 0, more), builder.tiles(Space::Scratch, have, more));
            builder.send(behind(rank, have, world), give);
            builder.receive(ahead(rank, have, world), take);
            have += more;
        }
        let above = world - 1 - rank;
        for (scratch, output, count) in [(1, rank + 1, above), (above + 1, 0, rank)] {
            if count > 0 {
                let from = builder.tiles(Space::Scratch, scratch, count);
                let into = builder.tiles(Space::Output, output, count);
                builder.copy(from, into);
            }
        }
        builder.finish()
    }

    fn messages(&self, world: usize) -> usize {
        log2_ceil(world) * world
    }

    fn rounds(&self, world: usize) -> usize {
        // The last exchange may be so small that it needs nothing of what the one before brings.
        let exchanges = log2_ceil(world);
        let small = exchanges > 1 && world - (1 << (exchanges - 1)) <= 1 << (exchanges - 2);
        exchanges - usize::from(small)
    }

    fn bytes_sent(&self, world: usize, bytes: f64) -> f64 {
        (world - 1) as f64 * bytes
    }

    fn tile_seconds(&self, world: usize, bytes: f64, link: &LinkCost) -> TileSeconds {
        let (wire, copies) = ((world - 1) as f64 * bytes * link.beta, world as f64 * bytes * link.gamma);
        if world == 1 {
            return TileSeconds::NONE;
        }
        let next = log2_ceil(world) as f64 * link.overhead + wire + copies;
        let waits = FlatAlgorithm::rounds(self, world) as f64 * link.latency();
        TileSeconds::with_gaps(waits + next, next, waits - link.latency())
    }
}
