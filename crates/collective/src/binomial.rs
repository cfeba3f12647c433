//! The binomial tree. Ranks are numbered from the root on; the parent of a number is the number without its lowest bit,
//! so the subtree of v is the run of numbers v .. v + lowest bit of v.

use paceline_plan::Rank;

use crate::arithmetic::{ahead, behind};

/// A rank's place in the tree.
pub(crate) struct Binomial {
    world: usize,
    root: Rank,
    /// The number of this rank, counted from the root.
    pub number: usize,
}

impl Binomial {
    pub fn new(rank: Rank, world: usize, root: Rank) -> Self {
        Binomial { world, root, number: behind(rank, root, world) }
    }

    /// The rank with this number.
    pub fn rank(&self, number: usize) -> Rank {
        ahead(self.root, number, self.world)
    }

    /// The number of the parent; None at the root.
    pub fn parent(&self) -> Option<usize> {
        (self.number > 0).then(|| self.number & (self.number - 1))
    }

    /// How many ranks there are in the subtree of a number.
    pub fn subtree(&self, number: usize) -> usize {
        let full = if number == 0 { self.world } else { 1 << number.trailing_zeros() };
        full.min(self.world - number)
    }

    /// The numbers of the children, smallest subtree first.
    pub fn children(&self) -> Vec<usize> {
        let end = self.number + self.subtree(self.number);
        (0..usize::BITS).map(|bit| self.number + (1 << bit)).take_while(|&child| child < end).collect()
    }
}
