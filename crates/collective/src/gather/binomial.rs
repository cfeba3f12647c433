use paceline_plan::{CollectiveKind, LinkCost, Rank};

use crate::arithmetic::log2_ceil;
use crate::{Algorithm, Place, RankBuilder, RankProgram, Space, TileSeconds, binomial};

/// Binomial tree: every rank collects the blocks of its subtree and sends them to its parent as one message.
/// For small blocks.
///
/// Source: Chan, Heimlich, Purkayastha and van de Geijn (2007), §3.
pub(crate) struct Binomial;

impl Algorithm for Binomial {
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
        // Scratch block i is the block of the rank i numbers further.
        for child in tree.children() {
            let into = builder.tiles(Space::Scratch, child - tree.number, tree.subtree(child));
            builder.receive(tree.rank(child), into);
        }
        match tree.parent() {
            Some(parent) => {
                let (own, all) = (builder.tile(Space::Scratch, 0), tree.subtree(tree.number));
                builder.copy(input, own);
                let all = builder.tiles(Space::Scratch, 0, all);
                builder.send(tree.rank(parent), all);
            }
            None => {
                let own = builder.tile(Space::Output, rank);
                builder.copy(input, own);
                let above = world - 1 - rank;
                for (scratch, output, count) in [(1, rank + 1, above), (above + 1, 0, rank)] {
                    if count > 0 {
                        let from = builder.tiles(Space::Scratch, scratch, count);
                        let into = builder.tiles(Space::Output, output, count);
                        builder.copy(from, into);
                    }
                }
            }
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
        // The largest subtree below the root is that of its largest child, or the one before if that is cut short.
        let largest = world.next_power_of_two() / 2;
        if world > 1 { (world - largest).max(largest / 2) as f64 * bytes } else { 0.0 }
    }

    fn tile_seconds(&self, world: usize, bytes: f64, link: &LinkCost) -> TileSeconds {
        let wire = (world - 1) as f64 * bytes * link.beta;
        TileSeconds::saturated(log2_ceil(world) as f64 * link.alpha + wire)
    }
}
