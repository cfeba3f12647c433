use paceline_plan::{CollectiveKind, LinkCost, Rank};

use crate::arithmetic::log2_ceil;
use crate::{FlatAlgorithm, Place, RankBuilder, RankProgram, Space, TileSeconds, binomial};

/// Binomial tree: every rank collects the blocks of its subtree and sends them to its parent as one message.
/// For small blocks.
///
/// Source: Chan, Heimlich, Purkayastha and van de Geijn, "Collective communication: theory, practice, and experience"
/// (2007), minimum spanning tree gather.
pub(crate) struct Binomial;

impl FlatAlgorithm for Binomial {
    fn name(&self) -> &'static str {
        "binomial"
    }

    fn kind(&self) -> CollectiveKind {
        CollectiveKind::Gather
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
        let input = builder.tile(Space::Input, 0);
        if let Some(parent) = tree.parent().filter(|_| tree.children().is_empty()) {
            builder.send(tree.rank(parent), input);
            return builder.finish();
        }
        let Some(parent) = tree.parent() else {
            let own = builder.tile(Space::Output, rank);
            builder.copy(input, own);
            for child in tree.children() {
                receive_subtree(&mut builder, &tree, child, world);
            }
            return builder.finish();
        };
        // Scratch block i is the block of the rank i numbers further.
        for child in tree.children() {
            let into = builder.tiles(Space::Scratch, child - tree.number, tree.subtree(child));
            builder.receive(tree.rank(child), into);
        }
        let (own, all) = (builder.tile(Space::Scratch, 0), builder.tiles(Space::Scratch, 0, tree.subtree(tree.number)));
        builder.copy(input, own);
        builder.send(tree.rank(parent), all);
        builder.finish()
    }

    fn messages(&self, world: usize) -> usize {
        world - 1
    }

    fn rounds(&self, world: usize) -> usize {
        world.ilog2() as usize
    }

    fn bytes_sent(&self, world: usize, bytes: f64) -> f64 {
        // The largest subtree below the root is that of its largest child, or the one before if that is cut short.
        let largest = world.next_power_of_two() / 2;
        if world > 1 { (world - largest).max(largest / 2) as f64 * bytes } else { 0.0 }
    }

    fn tile_seconds(&self, world: usize, bytes: f64, link: &LinkCost) -> TileSeconds {
        let next = log2_ceil(world) as f64 * link.overhead + (world - 1) as f64 * bytes * link.beta;
        // Whoever collects copies its own block first.
        let copy = if world > 3 { bytes * link.gamma } else { 0.0 };
        TileSeconds::passed_on(f64::from(world.ilog2()) * link.latency() + next + copy, next, link)
    }
}

/// At the root: straight into the output, but for a subtree whose ranks go past the last one and on from 0.
fn receive_subtree(builder: &mut RankBuilder, tree: &binomial::Binomial, child: usize, world: usize) {
    let (first, count) = (tree.rank(child), tree.subtree(child));
    let above = count.min(world - first);
    if above == count {
        let into = builder.tiles(Space::Output, first, count);
        builder.receive(first, into);
        return;
    }
    let all = builder.tiles(Space::Scratch, 0, count);
    builder.receive(first, all);
    for (scratch, output, count) in [(0, first, above), (above, 0, count - above)] {
        let from = builder.tiles(Space::Scratch, scratch, count);
        let into = builder.tiles(Space::Output, output, count);
        builder.copy(from, into);
    }
}
