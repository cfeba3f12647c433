use paceline_plan::{CollectiveKind, LinkCost, Rank};

use crate::algorithm::{busy, busy_folding};
use crate::arithmetic::{ahead, behind};
use crate::neighbours::reduce_from_neighbours;
use crate::{FlatAlgorithm, Place, RankBuilder, RankProgram, Slot, Space, TileSeconds};

/// Direct reduce-scatter, then direct all-gather: rank p gets part p of everyone, combines it and sends the result to
/// everyone. As few bytes as a ring, in two rounds; for memory that all ranks share.
///
/// Each rank begins with its neighbour, so that nobody is asked by all at once: a rank's first message is one that nobody
/// else waits for. (In the order of the ranks all wait for rank 0, then for rank 1: up to half as long again, measured.)
///
/// Source: the pairwise exchange of Thakur, Rabenseifner and Gropp (2005) for reduce-scatter, followed by a direct all-gather; GPU
/// libraries call it two-shot.
pub(crate) struct DirectScatter;

impl FlatAlgorithm for DirectScatter {
    fn name(&self) -> &'static str {
        "direct-scatter"
    }

    fn kind(&self) -> CollectiveKind {
        CollectiveKind::AllReduce
    }

    fn parts(&self, world: usize) -> u32 {
        world as u32
    }

    fn rank_program(&self, rank: Rank, world: usize, root: Rank) -> RankProgram {
        let mut builder = RankBuilder::new(Place { kind: self.kind(), rank, world, root }, self.parts(world));
        if world == 1 {
            return builder.alone();
        }
        let part = |space, part: usize| Slot::of_parts(space, 0, part as u32, 1);
        let whole = part(Space::Output, rank);
        for offset in 1..world {
            let to = ahead(rank, offset, world);
            builder.send(to, part(Space::Input, to));
        }
        reduce_from_neighbours(&mut builder, rank, world, part(Space::Input, rank), whole);
        for offset in 1..world {
            builder.send(ahead(rank, offset, world), whole);
        }
        for offset in 1..world {
            let from = behind(rank, offset, world);
            builder.receive(from, part(Space::Output, from));
        }
        builder.finish()
    }

    fn messages(&self, world: usize) -> usize {
        2 * (world - 1) * world
    }

    fn rounds(&self, world: usize) -> usize {
        if world == 1 { 0 } else { 2 }
    }

    fn bytes_sent(&self, world: usize, bytes: f64) -> f64 {
        2.0 * (world - 1) as f64 / world as f64 * bytes
    }

    fn tile_seconds(&self, world: usize, bytes: f64, link: &LinkCost) -> TileSeconds {
        if world == 1 {
            return TileSeconds::NONE;
        }
        let (peers, part) = ((world - 1) as f64, bytes / world as f64);
        let next = peers * (busy_folding(link, part) + busy(link, part));
        TileSeconds::with_gaps(2.0 * link.latency() + next, next, link.latency())
    }
}
