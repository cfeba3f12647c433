//! Which ranges of the arena are free: first fit, coalescing, and it remembers which free bytes may still occupy
//! memory.

use std::collections::BTreeMap;
use std::ops::Range;

/// A free range; its start is its key.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Hole {
    end: usize,
    /// Where bytes that were in use lie: all of them, and possibly some that were never touched.
    used: Range<usize>,
}

/// The free ranges of `0..total`.
#[derive(Debug)]
pub(super) struct FreeList {
    holes: BTreeMap<usize, Hole>,
    free: usize,
}

impl FreeList {
    pub(super) fn new(total: usize) -> FreeList {
        FreeList { holes: BTreeMap::from([(0, Hole { end: total, used: 0..0 })]), free: total }
    }

    /// Bytes in all free ranges.
    pub(super) fn free_bytes(&self) -> usize {
        self.free
    }

    /// Takes `bytes > 0` at the lowest address that is a multiple of `alignment`. O(holes).
    pub(super) fn take(&mut self, bytes: usize, alignment: usize) -> Option<usize> {
        let (hole_start, start) = self.holes.iter().find_map(|(&hole_start, hole)| {
            let start = hole_start.checked_next_multiple_of(alignment)?;
            (start.checked_add(bytes)? <= hole.end).then_some((hole_start, start))
        })?;
        let hole = self.holes.remove(&hole_start)?;
        let end = start + bytes;
        for part in [hole_start..start, end..hole.end] {
            if !part.is_empty() {
                let used = hole.used.start.max(part.start)..hole.used.end.min(part.end);
                let used = if used.is_empty() { part.start..part.start } else { used };
                self.holes.insert(part.start, Hole { end: part.end, used });
            }
        }
        self.free -= bytes;
        Some(start)
    }

    /// Gives `range` back and joins it with its neighbours. Where at least `return_above` bytes of whole pages have
    /// gathered that may occupy memory, the answer is that range, counted as untouched from now on: the caller returns
    /// it to the system before it takes anything else from this list.
    pub(super) fn give(&mut self, range: Range<usize>, page_bytes: usize, return_above: usize) -> Option<Range<usize>> {
        let (mut start, mut end, mut used) = (range.start, range.end, range.clone());
        self.free += range.len();
        if let Some((&before, hole)) = self.holes.range(..range.start).next_back() {
            assert!(hole.end <= range.start, "a range is freed once");
            if hole.end == range.start {
                used = join(used, hole.used.clone());
                start = before;
                self.holes.remove(&before);
            }
        }
        if let Some(hole) = self.holes.remove(&range.end) {
            used = join(used, hole.used);
            end = hole.end;
        }
        let pages = used.start.next_multiple_of(page_bytes)..used.end / page_bytes * page_bytes;
        let returned = pages.end.saturating_sub(pages.start) >= return_above.max(1);
        self.holes.insert(start, Hole { end, used: if returned { start..start } else { used } });
        returned.then_some(pages)
    }
}

/// The smallest range that holds both.
fn join(one: Range<usize>, other: Range<usize>) -> Range<usize> {
    if other.is_empty() { one } else { one.start.min(other.start)..one.end.max(other.end) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn neighbours_join_and_big_ranges_go_back_to_the_system() {
        let mut list = FreeList::new(1 << 20);
        let blocks: Vec<usize> = (0..4).map(|_| list.take(16 << 10, 64).expect("room")).collect();
        assert_eq!(blocks, [0, 16 << 10, 32 << 10, 48 << 10]);
        let mut give = |index: usize| list.give(blocks[index]..blocks[index] + (16 << 10), 4096, 48 << 10);
        assert_eq!(give(1), None);
        assert_eq!(give(3), None);
        // The third joins the second and the fourth.
        assert_eq!(give(2), Some(16 << 10..64 << 10));
        assert_eq!(give(0), None);
        assert_eq!(list.take(1 << 20, 4096), Some(0), "everything is one range again");
        assert_eq!(list.take(1, 1), None);
    }

    proptest! {
        #[test]
        fn live_ranges_never_overlap_and_nothing_is_lost(
            steps in proptest::collection::vec((1_usize..5000, 0_u32..13, any::<prop::sample::Index>(), any::<bool>()), 1..200),
        ) {
            let total = 1 << 16;
            let mut list = FreeList::new(total);
            let mut live: Vec<Range<usize>> = Vec::new();
            for (bytes, alignment, which, free) in steps {
                if free && !live.is_empty() {
                    let range = live.swap_remove(which.index(live.len()));
                    if let Some(returned) = list.give(range, 512, 2048) {
                        prop_assert!(live.iter().all(|other| other.end <= returned.start || returned.end <= other.start));
                    }
                } else if let Some(start) = list.take(bytes, 1 << alignment) {
                    prop_assert_eq!(start % (1 << alignment), 0);
                    let range = start..start + bytes;
                    prop_assert!(range.end <= total);
                    prop_assert!(live.iter().all(|other| other.end <= range.start || range.end <= other.start));
                    live.push(range);
                }
                prop_assert_eq!(list.free_bytes(), total - live.iter().map(|range| range.len()).sum::<usize>());
            }
            for range in live {
                list.give(range, 512, 2048);
            }
            prop_assert_eq!(list.take(total, 1), Some(0));
        }
    }
}
