//! Worlds that are no power of two, for algorithms that halve and double.
//!
//! With p the largest power of two below the world of n, the first 2(n − p) ranks form pairs: the even one hands its
//! data to the odd one beforehand and gets the result from it afterwards. The odd ones and those without a pair are the
//! p *participants*.
//!
//! Source: Thakur, Rabenseifner and Gropp (2005), on all-reduce; Rabenseifner, "Optimization of collective reduction operations"
//! (2004).

use paceline_plan::Rank;

use crate::arithmetic::power_of_two_below;

/// How a world maps onto a power of two.
#[derive(Clone, Copy)]
pub(crate) struct Doubling {
    /// The number of participants, a power of two.
    pub participants: usize,
    /// The number of ranks that sit out.
    pub folded: usize,
}

/// What a rank is.
pub(crate) enum Role {
    /// It sits out; this rank acts for it.
    Folded { proxy: Rank },
    /// It takes part.
    Participant {
        /// Its number among the participants.
        index: usize,
        /// The rank that it acts for.
        acts_for: Option<Rank>,
    },
}

impl Doubling {
    pub fn of(world: usize) -> Self {
        let participants = power_of_two_below(world);
        Doubling { participants, folded: world - participants }
    }

    /// log₂ of the number of participants.
    pub fn exchanges(&self) -> usize {
        self.participants.trailing_zeros() as usize
    }

    /// The longest chain of messages when every participant exchanges once with each distance. It ends at the
    /// complement of the number where it began; both can act for a rank only if more than half do.
    pub fn rounds(&self) -> usize {
        let fold = match self.folded {
            0 => 0,
            folded if folded <= self.participants / 2 => 1,
            _ => 2,
        };
        self.exchanges() + fold
    }

    pub fn role(&self, rank: Rank) -> Role {
        if rank >= 2 * self.folded {
            Role::Participant { index: rank - self.folded, acts_for: None }
        } else if rank.is_multiple_of(2) {
            Role::Folded { proxy: rank + 1 }
        } else {
            Role::Participant { index: rank / 2, acts_for: Some(rank - 1) }
        }
    }

    /// The rank of a participant.
    pub fn rank(&self, index: usize) -> Rank {
        if index < self.folded { 2 * index + 1 } else { index + self.folded }
    }
}
