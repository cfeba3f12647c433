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
    let everyone: Vec<Rank> = (0..world).collect();
    reduce_in_order(builder, &everyone, rank, [own, scratch, output], true);
}

/// The same among some ranks, in the order in which they stand; this one stands at `place`. `last`: the result is final.
/// Alone it does nothing.
pub(crate) fn reduce_in_order(
    builder: &mut RankBuilder,
    ranks: &[Rank],
    place: usize,
    [own, scratch, output]: [Slot; 3],
    last: bool,
) {
    let count = ranks.len();
    // A reduction commutes, so the first two both start with their own contribution. The others hold what came before
    // theirs in scratch, because in place the output still has their own.
    let own_turn = if place < 2 { 0 } else { place };
    let mut partial = own;
    for peer in (0..count).filter(|&peer| peer != place) {
        if peer < own_turn {
            if peer == 0 {
                builder.receive(ranks[peer], scratch);
            } else {
                builder.receive_fold(ranks[peer], scratch, scratch, false);
            }
            if peer + 1 == own_turn {
                builder.combine(scratch, own, output, last && place == count - 1);
                partial = output;
            }
        } else {
            let ends = peer == count - 1 || (peer == count - 2 && place == count - 1);
            builder.receive_fold(ranks[peer], partial, output, last && ends);
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
