use paceline_plan::{CollectiveKind, LinkCost, Rank};

use crate::algorithm::chained;
use crate::arithmetic::{ahead, behind};
use crate::{FlatAlgorithm, Place, RankBuilder, RankProgram, Slot, Space, TileSeconds};

/// Ring: a reduce-scatter round the ring, then an all-gather. Bandwidth-optimal; the latency grows with the world.
///
/// Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations" (2009).
pub(crate) struct Ring;

impl FlatAlgorithm for Ring {
    fn name(&self) -> &'static str {
        "ring"
    }

    fn kind(&self) -> CollectiveKind {
        CollectiveKind::AllReduce
    }

    fn peers(&self, rank: Rank, world: usize) -> Option<Vec<Rank>> {
        Some(vec![ahead(rank, 1, world)])
    }

    fn parts(&self, world: usize) -> u32 {
        world as u32
    }

    fn rank_program(&self, rank: Rank, world: usize, root: Rank) -> RankProgram {
        let mut builder = RankBuilder::new(Place { kind: self.kind(), rank, world, root }, self.parts(world));
        if world == 1 {
            return builder.alone();
        }
        let (left, right) = (behind(rank, 1, world), ahead(rank, 1, world));
        let part = |space, part: usize| Slot::of_parts(space, 0, part as u32, 1);
        // Part p starts on rank p, takes in the contribution of each rank that it reaches, and is whole on rank p − 1.
        // The first hop reads the input, so nobody copies the message first.
        builder.send(right, part(Space::Input, rank));
        for hop in 1..world {
            let passing = behind(rank, hop, world);
            let into = part(Space::Output, passing);
            builder.receive_fold(left, part(Space::Input, passing), into, hop == world - 1);
            builder.send(right, into);
        }
        // That last send already was the first of the all-gather.
        for hop in 0..world - 1 {
            let whole = part(Space::Output, behind(rank, hop, world));
            builder.receive(left, whole);
            if hop < world - 2 {
                builder.send(right, whole);
            }
        }
        builder.finish()
    }

    fn messages(&self, world: usize) -> usize {
        2 * (world - 1) * world
    }

    fn rounds(&self, world: usize) -> usize {
        2 * (world - 1)
    }

    fn bytes_sent(&self, world: usize, bytes: f64) -> f64 {
        2.0 * (world - 1) as f64 / world as f64 * bytes
    }

    /// Everything that a rank takes in comes from one neighbour.
    fn fan_in(&self, _world: usize) -> usize {
        1
    }

    fn tile_seconds(&self, world: usize, bytes: f64, link: &LinkCost) -> TileSeconds {
        let (peers, part) = ((world - 1) as f64, bytes / world as f64);
        chained(2.0 * peers, link, peers * part * (2.0 * link.beta + link.gamma))
    }
}
