//! Taking in one contribution from every rank, the nearest first.

use paceline_plan::Rank;

use crate::arithmetic::behind;
use crate::{RankBuilder, Slot};

/// Receives a message from every peer, beginning with the neighbour, and reduces them and `own` into `output`, which may be
/// `own`'s memory. So nobody is asked by all at once.
pub(crate) fn reduce_from_neighbours(builder: &mut RankBuilder, rank: Rank, world: usize, own: Slot, output: Slot) {
    for offset in 1..world {
        let partial = if offset == 1 { own } else { output };
        builder.receive_fold(behind(rank, offset, world), partial, output, offset == world - 1);
    }
}
