use paceline_plan::{CollectiveKind, LinkCost, Rank};

use crate::algorithm::busy;
use crate::arithmetic::log2_ceil;
use crate::{FlatAlgorithm, Place, RankBuilder, RankProgram, Space, TileSeconds, binomial};

/// Binomial tree: whoever has the data sends it on, the largest subtree first. Latency-optimal.
///
/// Source: Thakur, Rabenseifner and Gropp (2005), on broadcast.
pub(crate) struct Binomial;

impl FlatAlgorithm for Binomial {
    fn name(&self) -> &'static str {
        "binomial"
    }

    fn kind(&self) -> CollectiveKind {
        CollectiveKind::Broadcast
    }

    fn parts(&self, _world: usize) -> u32 {
        1
    }

    fn rank_program(&self, rank: Rank, world: usize, root: Rank) -> RankProgram {
        let mut builder = RankBuilder::new(Place { kind: self.kind(), rank, world, root }, self.parts(world));
        let tree = binomial::Binomial::new(rank, world, root);
        let (input, output) = (builder.tile(Space::Input, 0), builder.tile(Space::Output, 0));
        let have = match tree.parent() {
            None => input,
            Some(parent) => {
                builder.receive(tree.rank(parent), output);
                output
            }
        };
        for child in tree.children().into_iter().rev() {
            builder.send(tree.rank(child), have);
        }
        if rank == root {
            builder.copy(input, output);
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
        log2_ceil(world) as f64 * bytes
    }

    /// Everything that a rank takes in comes from one neighbour.
    fn fan_in(&self, _world: usize) -> usize {
        1
    }

    fn tile_seconds(&self, world: usize, bytes: f64, link: &LinkCost) -> TileSeconds {
        let (rounds, messages) = (f64::from(world.ilog2()), log2_ceil(world) as f64);
        let next = messages * busy(link, bytes);
        TileSeconds::passed_on(rounds * link.latency() + next, next, link)
    }
}
