//! Taking in one contribution from every rank, combined in the order of the ranks.

use paceline_plan::Rank;

use crate::{RankBuilder, Slot};

/// Receives a message from every peer and reduces them and `own` into `output`, in the order of the ranks: the result
/// has the same bits whatever the tile size, the parts and the arrival order. `output` may be `own`'s memory.
pub(crate) fn reduce_in_rank_order(
    builder: &mut RankBuilder,
    rank: Rank,
    world: usize,
    own: Slot,
    scratch: Slot,
    output: Slot,
) {
    // A reduction commutes, so ranks 0 and 1 both start with their own contribution. The others hold what came before
    // theirs in scratch, because in place the output still has their own.
    let own_turn = if rank < 2 { 0 } else { rank };
    let mut partial = own;
    for peer in (0..world).filter(|&peer| peer != rank) {
        if peer < own_turn {
            if peer == 0 {
                builder.receive(peer, scratch);
            } else {
                builder.receive_fold(peer, scratch, scratch, false);
            }
            if peer + 1 == own_turn {
                builder.combine(scratch, own, output, rank == world - 1);
                partial = output;
            }
        } else {
            let last = peer == world - 1 || (peer == world - 2 && rank == world - 1);
            builder.receive_fold(peer, partial, output, last);
            partial = output;
        }
    }
}

/// What a root does that contributes nothing itself: it receives a message from every other rank and reduces them into
/// `output`, in the order of the ranks. Each waits for the one before.
pub(crate) fn serve_in_rank_order(builder: &mut RankBuilder, root: Rank, world: usize, output: Slot) {
    let contributors: Vec<Rank> = (0..world).filter(|&rank| rank != root).collect();
    for (index, &from) in contributors.iter().enumerate() {
        if index == 0 {
            builder.receive(from, output);
        } else {
            builder.receive_fold(from, output, output, index + 1 == contributors.len());
        }
    }
}
