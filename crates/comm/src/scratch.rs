//! Scratch of operations, kept from one to the next: its pages cost more than what is done with them.

use crate::buffer::Memory;

/// Operations with scratch that end before a peak is forgotten, and at most twice as many.
const WINDOW: u32 = 1024;
/// So much is kept whatever was in use.
const KEPT_MIN: usize = 1 << 20;

/// Spare scratch, and how much of it is worth keeping: twice what operations had in use at once of late, what is in use
/// counted. A training step repeats itself, so in its second round nothing is taken from the system and nothing returned; twice,
/// because pieces of one size do not serve another.
#[derive(Default)]
pub(crate) struct ScratchPool {
    /// Sorted by length.
    spare: Vec<Memory>,
    spare_bytes: usize,
    used_bytes: usize,
    /// The most that was in use at once: in this window, and in the one before.
    peaks: [usize; 2],
    /// Operations that have ended in this window.
    ended: u32,
}

impl ScratchPool {
    /// The shortest spare piece of at least so many bytes that wastes no more than three quarters. O(log pieces).
    pub fn take(&mut self, bytes: usize) -> Option<Memory> {
        let first = self.spare.partition_point(|memory| memory.bytes() < bytes);
        if self.spare.get(first)?.bytes() > 4 * bytes.max(4096) {
            return None;
        }
        let memory = self.spare.remove(first);
        self.spare_bytes -= memory.bytes();
        Some(memory)
    }

    /// An operation has started with this piece.
    pub fn lent(&mut self, memory: &Memory) {
        self.used_bytes += memory.bytes();
        self.peaks[0] = self.peaks[0].max(self.used_bytes);
    }

    /// It has ended.
    pub fn give_back(&mut self, memory: Memory) {
        self.used_bytes -= memory.bytes();
        self.spare_bytes += memory.bytes();
        // Before those that are as long: the one used last, which caches may still hold, is taken first.
        let place = self.spare.partition_point(|other| other.bytes() < memory.bytes());
        self.spare.insert(place, memory);
        self.ended += 1;
        if self.ended == WINDOW {
            self.ended = 0;
            self.peaks = [self.used_bytes, self.peaks[0]];
        }
        let most = KEPT_MIN.max(2 * self.peaks[0].max(self.peaks[1]));
        while self.used_bytes + self.spare_bytes > most
            && let Some(longest) = self.spare.pop()
        {
            self.spare_bytes -= longest.bytes();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(bytes: usize) -> Memory {
        Memory::private(bytes).expect("memory")
    }

    /// One step of a job: so many operations at once, with so many bytes each. How many pieces had to be made?
    fn step(pool: &mut ScratchPool, operations: usize, bytes: usize) -> usize {
        let mut made = 0;
        let lend = |_| {
            let memory = pool.take(bytes).unwrap_or_else(|| {
                made += 1;
                piece(bytes)
            });
            pool.lent(&memory);
            memory
        };
        let lent: Vec<Memory> = (0..operations).map(lend).collect();
        lent.into_iter().for_each(|memory| pool.give_back(memory));
        made
    }

    #[test]
    fn a_step_that_repeats_itself_makes_nothing_new() {
        let mut pool = ScratchPool::default();
        assert_eq!((step(&mut pool, 161, 64 << 10), step(&mut pool, 40, 1 << 20)), (161, 40));
        for _ in 0..100 {
            assert_eq!((step(&mut pool, 161, 64 << 10), step(&mut pool, 40, 1 << 20)), (0, 0));
        }
    }

    #[test]
    fn what_was_needed_once_is_returned() {
        let mut pool = ScratchPool::default();
        step(&mut pool, 40, 1 << 20);
        assert_eq!(pool.spare_bytes, 40 << 20);
        for _ in 0..=2 * WINDOW {
            step(&mut pool, 1, 4096);
        }
        assert_eq!((pool.spare_bytes, pool.used_bytes), (4096, 0));
    }

    #[test]
    fn a_piece_is_the_shortest_that_fits_and_not_much_longer() {
        let mut pool = ScratchPool::default();
        for bytes in [256 << 10, 64 << 10, 128 << 10] {
            let memory = piece(bytes);
            pool.lent(&memory);
            pool.give_back(memory);
        }
        assert!(pool.take(15 << 10).is_none(), "more than three quarters of 64 KiB would be wasted");
        assert_eq!(pool.take(65 << 10).expect("a piece").bytes(), 128 << 10);
        assert_eq!(pool.take(65 << 10).expect("a piece").bytes(), 256 << 10);
        assert!(pool.take(65 << 10).is_none(), "64 KiB are too short");
        assert_eq!(pool.spare_bytes, 64 << 10);
    }
}
