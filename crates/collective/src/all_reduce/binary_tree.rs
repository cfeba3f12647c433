use paceline_plan::{CollectiveKind, LinkCost, Rank};

use crate::algorithm::{busy, busy_folding};
use crate::{FlatAlgorithm, Place, RankBuilder, RankProgram, Space, TileSeconds};

/// Binary tree: reduction up to rank 0 and broadcast down again, tile after tile in a pipeline. Logarithmic latency and
/// a bandwidth that does not fall with the world.
///
/// Source: Sanders, Speck and Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan" (2009),
/// the pipelined binary tree.
pub(crate) struct BinaryTree;

impl FlatAlgorithm for BinaryTree {
    fn name(&self) -> &'static str {
        "binary-tree"
    }

    fn kind(&self) -> CollectiveKind {
        CollectiveKind::AllReduce
    }

    fn peers(&self, rank: Rank, world: usize) -> Option<Vec<Rank>> {
        Some(parent(rank).into_iter().chain(children(rank, world)).collect())
    }

    fn parts(&self, _world: usize) -> u32 {
        1
    }

    fn rank_program(&self, rank: Rank, world: usize, root: Rank) -> RankProgram {
        let mut builder = RankBuilder::new(Place { kind: self.kind(), rank, world, root }, self.parts(world));
        if world == 1 {
            return builder.alone();
        }
        let (parent, children) = (parent(rank), children(rank, world));
        let (input, output) = (builder.tile(Space::Input, 0), builder.tile(Space::Output, 0));
        // The subtree of the right child is never the deeper one: it has its result first, and can wait for ours.
        let mut have = input;
        for child in children.clone().rev() {
            let last = parent.is_none() && child == 2 * rank + 1;
            builder.receive_fold(child, have, output, last);
            have = output;
        }
        if let Some(parent) = parent {
            builder.send(parent, have);
            builder.receive(parent, output);
        }
        for child in children {
            builder.send(child, output);
        }
        builder.finish()
    }

    fn messages(&self, world: usize) -> usize {
        2 * (world - 1)
    }

    fn rounds(&self, world: usize) -> usize {
        2 * world.ilog2() as usize
    }

    fn bytes_sent(&self, world: usize, bytes: f64) -> f64 {
        // To both children, and to the parent where there is one besides.
        let messages = match world {
            1 => 0,
            2 => 1,
            3 | 4 => 2,
            _ => 3,
        };
        f64::from(messages) * bytes
    }

    fn tile_seconds(&self, world: usize, bytes: f64, link: &LinkCost) -> TileSeconds {
        if world == 1 {
            return TileSeconds::NONE;
        }
        // Down a path from the root; a level takes two messages one after the other, the lowest only one unless it is
        // more than half full.
        let rounds = f64::from(world.ilog2());
        let messages = f64::from((world + 1).ilog2() + ((world + 1) / 3).max(1).ilog2());
        let up_and_down = messages * (busy_folding(link, bytes) + busy(link, bytes));
        let next = match world {
            2 => busy_folding(link, bytes),
            3 | 4 => 2.0 * busy_folding(link, bytes),
            _ => 2.0 * busy_folding(link, bytes) + busy(link, bytes),
        };
        TileSeconds::pipeline(2.0 * rounds * link.latency() + up_and_down, next)
    }
}

fn parent(rank: Rank) -> Option<Rank> {
    rank.checked_sub(1).map(|above| above / 2)
}

fn children(rank: Rank, world: usize) -> impl DoubleEndedIterator<Item = Rank> + Clone {
    [2 * rank + 1, 2 * rank + 2].into_iter().filter(move |&child| child < world)
}
