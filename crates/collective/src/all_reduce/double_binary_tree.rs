use paceline_plan::{CollectiveKind, LinkCost, Rank};

use crate::algorithm::{busy, busy_folding};
use crate::{FlatAlgorithm, Place, RankBuilder, RankProgram, Slot, Space, TileSeconds};

/// Double binary tree: two binary trees side by side, each for one half of every tile, tile after tile in a pipeline.
/// Whoever has children in one tree has none in the other, so nobody's ports carry more than about twice the message:
/// logarithmic latency at nearly the bandwidth of a ring, in any world.
///
/// Source: Sanders, Speck and Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan" (2009).
pub(crate) struct DoubleBinaryTree;

impl FlatAlgorithm for DoubleBinaryTree {
    fn name(&self) -> &'static str {
        "double-binary-tree"
    }

    fn kind(&self) -> CollectiveKind {
        CollectiveKind::AllReduce
    }

    fn peers(&self, rank: Rank, world: usize) -> Option<Vec<Rank>> {
        let trees = [0, 1].map(|number| Tree { number, world });
        Some(trees.iter().flat_map(|tree| tree.parent(rank).into_iter().chain(tree.children(rank))).collect())
    }

    fn parts(&self, _world: usize) -> u32 {
        2
    }

    fn rank_program(&self, rank: Rank, world: usize, root: Rank) -> RankProgram {
        let parts = FlatAlgorithm::parts(self, world);
        let mut builder = RankBuilder::new(Place { kind: FlatAlgorithm::kind(self), rank, world, root }, parts);
        if world == 1 {
            return builder.alone();
        }
        let trees = [0, 1].map(|number| Tree { number, world });
        for tree in &trees {
            let part = |space| Slot::of_parts(space, 0, tree.number, 1);
            let (parent, children) = (tree.parent(rank), tree.children(rank));
            let mut have = part(Space::Input);
            for &child in &children {
                let last = parent.is_none() && Some(&child) == children.last();
                builder.receive_fold(child, have, part(Space::Output), last);
                have = part(Space::Output);
            }
            if let Some(parent) = parent {
                builder.send(parent, have);
            }
        }
        for tree in &trees {
            let whole = Slot::of_parts(Space::Output, 0, tree.number, 1);
            if let Some(parent) = tree.parent(rank) {
                builder.receive(parent, whole);
            }
            // The deeper subtree first.
            for child in tree.children(rank).into_iter().rev() {
                builder.send(child, whole);
            }
        }
        builder.finish()
    }

    fn messages(&self, world: usize) -> usize {
        4 * (world - 1)
    }

    fn rounds(&self, world: usize) -> usize {
        2 * world.ilog2() as usize
    }

    fn bytes_sent(&self, world: usize, bytes: f64) -> f64 {
        f64::from(messages_max(world)) * bytes / 2.0
    }

    fn tile_seconds(&self, world: usize, bytes: f64, link: &LinkCost) -> TileSeconds {
        if world == 1 {
            return TileSeconds::NONE;
        }
        let half = bytes / 2.0;
        // The inner rank of one tree takes in two halves on their way up and one down, and one down in the other tree.
        let up = f64::from(1 + u8::from(world > 2));
        let down = f64::from(messages_max(world)) - up;
        let next = up * busy_folding(link, half) + down * busy(link, half);
        // Up to a root and down again, two messages a level, but not at the lowest, unless the trees are full.
        let rounds = f64::from(world.ilog2());
        let levels = rounds + f64::from((world + 1).ilog2()) - 1.0;
        let first = 2.0 * rounds * link.latency() + levels * (busy_folding(link, half) + busy(link, half));
        TileSeconds::pipeline(first, next)
    }
}

/// Messages of one tile that the busiest rank sends, and as many that it takes in: one to the parent and two to children
/// in the one tree, one to the parent in the other.
fn messages_max(world: usize) -> u32 {
    match world {
        1 => 0,
        2 | 3 => world as u32,
        _ => 4,
    }
}

/// One of the two trees. Ranks are numbered from 1; the number of zero bits at the end is the height of a number, so
/// odd numbers are leaves, and the subtrees of a node are the numbers to its left and to its right.
struct Tree {
    number: u32,
    world: usize,
}

impl Tree {
    /// The second tree is the first one turned round (if the world is even) or moved by one (if it is odd): either way
    /// ranks with even numbers get odd ones.
    fn number_of(&self, rank: Rank) -> usize {
        match self.number {
            0 => rank + 1,
            _ if self.world.is_multiple_of(2) => self.world - rank,
            _ if rank == 0 => self.world,
            _ => rank,
        }
    }

    fn rank_of(&self, number: usize) -> Rank {
        match self.number {
            0 => number - 1,
            _ if self.world.is_multiple_of(2) => self.world - number,
            _ => number % self.world,
        }
    }

    fn parent(&self, rank: Rank) -> Option<Rank> {
        let number = self.number_of(rank);
        let height = 1 << number.trailing_zeros();
        // Where the world ends before the node to the right, the next one to the left takes its place.
        let right = (number ^ height) | height << 1;
        let parent = if right <= self.world { right } else { number ^ height };
        (parent > 0).then(|| self.rank_of(parent))
    }

    /// The shallower subtree first.
    fn children(&self, rank: Rank) -> Vec<Rank> {
        let number = self.number_of(rank);
        let reach = (1 << number.trailing_zeros()) / 2;
        if reach == 0 {
            return Vec::new();
        }
        let distances = std::iter::successors(Some(reach), |distance| Some(distance / 2)).take_while(|&d| d > 0);
        let right = distances.map(|distance| number + distance).find(|&child| child <= self.world);
        right.into_iter().chain([number - reach]).map(|child| self.rank_of(child)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rank_is_an_inner_node_in_at_most_one_tree() {
        for world in 1..200 {
            for rank in 0..world {
                let trees = [0, 1].map(|number| Tree { number, world });
                assert!(trees.iter().any(|tree| tree.children(rank).is_empty()), "rank {rank} of {world}");
                for tree in &trees {
                    assert_eq!(tree.rank_of(tree.number_of(rank)), rank);
                    for child in tree.children(rank) {
                        assert_eq!(tree.parent(child), Some(rank), "child {child} of {world}");
                    }
                }
            }
        }
    }
}
