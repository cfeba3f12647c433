use paceline_plan::{CollectiveKind, LinkCost, Rank};

use crate::arithmetic::log2_ceil;
use crate::{FlatAlgorithm, Place, RankBuilder, RankProgram, Space, TileSeconds, binomial};

/// Binomial tree: the root sends every child the blocks of its subtree, and so on. For small blocks.
///
/// Source: Chan, Heimlich, Purkayastha and van de Geijn (2007), minimum spanning tree scatter.
pub(crate) struct Binomial;

impl FlatAlgorithm for Binomial {
    fn name(&self) -> &'static str {
        "binomial"
    }

    fn kind(&self) -> CollectiveKind {
        CollectiveKind::Scatter
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
        let tree = binomial::Binomial::new(rank, world, root);
        let output = builder.tile(Space::Output, 0);
        let Some(parent) = tree.parent() else {
            for child in tree.children().into_iter().rev() {
                send_subtree(&mut builder, &tree, child, world);
            }
            let own = builder.tile(Space::Input, rank);
            builder.copy(own, output);
            return builder.finish();
        };
        let subtree = tree.subtree(tree.number);
        if subtree == 1 {
            builder.receive(tree.rank(parent), output);
            return builder.finish();
        }
        // Scratch block i is the block of the rank i numbers further.
        let (own, all) = (builder.tile(Space::Scratch, 0), builder.tiles(Space::Scratch, 0, subtree));
        builder.receive(tree.rank(parent), all);
        for child in tree.children().into_iter().rev() {
            let from = builder.tiles(Space::Scratch, child - tree.number, tree.subtree(child));
            builder.send(tree.rank(child), from);
        }
        builder.copy(own, output);
        builder.finish()
    }

    fn messages(&self, world: usize) -> usize {
        world - 1
    }

    fn rounds(&self, world: usize) -> usize {
        world.ilog2() as usize
    }

    fn bytes_sent(&self, world: usize, bytes: f64) -> f64 {
        (world - 1) as f64 * bytes
    }

    /// Everything that a rank takes in comes from one neighbour.
    fn fan_in(&self, _world: usize) -> usize {
        1
    }

    fn tile_seconds(&self, world: usize, bytes: f64, link: &LinkCost) -> TileSeconds {
        let next = log2_ceil(world) as f64 * link.overhead + (world - 1) as f64 * bytes * link.beta;
        TileSeconds::passed_on(f64::from(world.ilog2()) * link.latency() + next, next, link)
    }
}

/// At the root: straight from the input, but for a subtree whose ranks go past the last one and on from 0.
fn send_subtree(builder: &mut RankBuilder, tree: &binomial::Binomial, child: usize, world: usize) {
    let (first, count) = (tree.rank(child), tree.subtree(child));
    let above = count.min(world - first);
    if above == count {
        let from = builder.tiles(Space::Input, first, count);
        builder.send(first, from);
        return;
    }
    for (input, scratch, count) in [(first, 0, above), (0, above, count - above)] {
        let from = builder.tiles(Space::Input, input, count);
        let into = builder.tiles(Space::Scratch, scratch, count);
        builder.copy(from, into);
    }
    let all = builder.tiles(Space::Scratch, 0, count);
    builder.send(first, all);
}
