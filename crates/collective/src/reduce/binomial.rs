use paceline_plan::{CollectiveKind, LinkCost, Rank};

use crate::algorithm::busy_folding;
use crate::arithmetic::log2_ceil;
use crate::{FlatAlgorithm, Place, RankBuilder, RankProgram, Space, TileSeconds, binomial};

/// Binomial tree: the broadcast backwards, the smallest subtree first. Latency-optimal.
///
/// Source: Thakur, Rabenseifner and Gropp (2005), on reduce.
pub(crate) struct Binomial;

impl FlatAlgorithm for Binomial {
    fn name(&self) -> &'static str {
        "binomial"
    }

    fn kind(&self) -> CollectiveKind {
        CollectiveKind::Reduce
    }

    fn parts(&self, _world: usize) -> u32 {
        1
    }

    fn rank_program(&self, rank: Rank, world: usize, root: Rank) -> RankProgram {
        let mut builder = RankBuilder::new(Place { kind: self.kind(), rank, world, root }, self.parts(world));
        if world == 1 {
            return builder.alone();
        }
        let tree = binomial::Binomial::new(rank, world, root);
        // Only the root has an output.
        let sum = builder.tile(if rank == root { Space::Output } else { Space::Scratch }, 0);
        let mut have = builder.tile(Space::Input, 0);
        let children = tree.children();
        let final_child = children.last().copied().filter(|_| rank == root);
        for child in children {
            builder.receive_fold(tree.rank(child), have, sum, Some(child) == final_child);
            have = sum;
        }
        if let Some(parent) = tree.parent() {
            builder.send(tree.rank(parent), have);
        }
        builder.finish()
    }

    fn messages(&self, world: usize) -> usize {
        world - 1
    }

    fn rounds(&self, world: usize) -> usize {
        world.ilog2() as usize
    }

    fn bytes_sent(&self, world: usize, bytes: f64) -> f64 {
        if world > 1 { bytes } else { 0.0 }
    }

    fn tile_seconds(&self, world: usize, bytes: f64, link: &LinkCost) -> TileSeconds {
        let (rounds, messages) = (f64::from(world.ilog2()), log2_ceil(world) as f64);
        let next = messages * busy_folding(link, bytes);
        TileSeconds::passed_on(rounds * link.latency() + next, next, link)
    }
}
