//! Cutting buckets, and spreading the pieces over servers.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

/// Cuts a range into the fewest pieces of at most `limit` elements (at least 1), all of the same length but for one
/// element. At least one piece, which is empty if the range is.
///
/// Pieces of one length, and not a small rest at the end: each costs the same to start, and all servers get as much.
pub(crate) fn cut(elements: Range<usize>, limit: usize) -> impl Iterator<Item = Range<usize>> {
    let length = elements.len();
    let pieces = length.div_ceil(limit.max(1)).max(1);
    let (each, longer) = (length / pieces, length % pieces);
    let start = move |piece: usize| elements.start + piece * each + piece.min(longer);
    (0..pieces).map(move |piece| start(piece)..start(piece + 1))
}

/// Gives each piece to the server that has the least so far. In the order of the plan, so that at any time of the
/// iteration all servers have got about as many bytes, not only at its end.
///
/// The fullest server has at most one piece more than the mean: the last piece that it got was given to it because it had
/// the least, so no more than the mean. (R. L. Graham, "Bounds on multiprocessing timing anomalies", 1969.)
pub(crate) struct Placement {
    /// What each server has, and its number; the least first.
    held: BinaryHeap<Reverse<(usize, usize)>>,
}

impl Placement {
    pub(crate) fn new(shards: usize) -> Placement {
        Placement { held: (0..shards).map(|shard| Reverse((0, shard))).collect() }
    }

    /// The server for a piece of so many elements; of several that have as little, the first. Logarithmic in the servers.
    pub(crate) fn place(&mut self, elements: usize) -> usize {
        let Some(mut least) = self.held.peek_mut() else { return 0 };
        let Reverse((held, shard)) = &mut *least;
        *held += elements;
        *shard
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_tile_the_range_and_differ_by_one_element_at_most() {
        let pieces = |range, limit| cut(range, limit).collect::<Vec<_>>();
        assert_eq!(pieces(5..15, 4), [5..9, 9..12, 12..15]);
        assert_eq!(pieces(5..15, 5), [5..10, 10..15]);
        assert_eq!(pieces(5..15, 10), vec![5..15]);
        assert_eq!(pieces(5..15, usize::MAX), vec![5..15]);
        assert_eq!(pieces(7..7, 3), vec![7..7]);
        assert_eq!(pieces(0..3, 0), [0..1, 1..2, 2..3]);
    }

    #[test]
    fn the_emptiest_server_is_next() {
        let mut placement = Placement::new(3);
        let placed = [10, 4, 4, 1, 1, 3, 9].map(|elements| placement.place(elements));
        assert_eq!(placed, [0, 1, 2, 1, 2, 1, 2]);
    }
}
