//! Scratch of operations, kept from one to the next: its pages cost more than what is done with them.

use crate::buffer::Memory;

/// Operations with scratch that end before a peak is forgotten, and at most twice as many.
const WINDOW: u32 = 1024;
/// So much is kept whatever was in use: a job whose calls differ, or take turns with others, has one of them at a time and all of their pieces.
const KEPT_MIN: usize = 32 << 20;
/// Pieces that go back to the system when one comes in: unmapping many takes long, and the caller holds a lock.
const RETURNED_AT_ONCE: usize = 2;

/// Spare scratch, and how much of it is worth keeping: twice what operations had in use at once of late, what is in use
/// counted. A training step repeats itself, so from its second round on it finds its pieces; twice, because pieces of one size
/// do not serve another. Forgetting takes operations, not time: a job that does nothing keeps what its last steps needed.
#[derive(Default)]
pub(crate) struct ScratchPool {
    /// Sorted by length, with the count of pieces that had come back before.
    spare: Vec<(Memory, u64)>,
    spare_bytes: usize,
    used_bytes: usize,
    /// The most that was in use at once: in this window, and in the one before.
    peaks: [usize; 2],
    /// Operations that have ended in this window.
    ended: u32,
    /// Pieces that have come back.
    returned: u64,
}

impl ScratchPool {
    /// The shortest spare piece of at least so many bytes that wastes no more than three quarters.
    pub fn take(&mut self, bytes: usize) -> Option<Memory> {
        let first = self.spare.partition_point(|(memory, _)| memory.bytes() < bytes);
        if self.spare.get(first)?.0.bytes() > 4 * bytes.max(4096) {
            return None;
        }
        Some(self.remove(first))
    }

    /// An operation has started with this piece.
    pub fn lent(&mut self, memory: &Memory) {
        self.used_bytes += memory.bytes();
        self.peaks[0] = self.peaks[0].max(self.used_bytes);
    }

    /// It has ended. What has not been used for longest goes, if it is too much.
    pub fn give_back(&mut self, memory: Memory, worth_keeping: bool) {
        self.used_bytes -= memory.bytes();
        self.ended += 1;
        if self.ended == WINDOW {
            self.ended = 0;
            self.peaks = [self.used_bytes, self.peaks[0]];
        }
        if worth_keeping {
            self.keep(memory);
        }
        let most = KEPT_MIN.max(2 * self.peaks[0].max(self.peaks[1]));
        for _ in 0..RETURNED_AT_ONCE {
            if self.used_bytes + self.spare_bytes > most
                && let Some(place) = (0..self.spare.len()).min_by_key(|&place| self.spare[place].1)
            {
                self.remove(place);
            }
        }
    }

    /// Keeps a piece that no operation has, for one that comes.
    pub fn keep(&mut self, memory: Memory) {
        self.spare_bytes += memory.bytes();
        self.returned += 1;
        // Before those that are as long: the one used last, which caches may still hold, is taken first.
        let place = self.spare.partition_point(|(other, _)| other.bytes() < memory.bytes());
        self.spare.insert(place, (memory, self.returned));
    }

    /// Gives all that is spare back to the system. Was there any?
    pub fn empty(&mut self) -> bool {
        self.spare_bytes = 0;
        !std::mem::take(&mut self.spare).is_empty()
    }

    fn remove(&mut self, place: usize) -> Memory {
        let (memory, _) = self.spare.remove(place);
        self.spare_bytes -= memory.bytes();
        memory
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
        lent.into_iter().for_each(|memory| pool.give_back(memory, true));
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
        step(&mut pool, 80, 1 << 20);
        assert_eq!(pool.spare_bytes, 80 << 20);
        for _ in 0..2 * WINDOW {
            step(&mut pool, 1, 4096);
        }
        assert!(pool.spare_bytes <= KEPT_MIN && pool.spare_bytes > KEPT_MIN / 2, "{}", pool.spare_bytes);
        assert_eq!(pool.used_bytes, 0);
        assert!(pool.empty() && !pool.empty());
        assert_eq!(pool.spare_bytes, 0);
    }

    /// What is too much is what nobody has asked for of late, however short.
    #[test]
    fn the_piece_that_was_not_used_for_longest_goes() {
        let mut pool = ScratchPool::default();
        let mut steps = |pieces: &[(usize, usize)]| -> Vec<usize> {
            pieces.iter().map(|&(operations, bytes)| step(&mut pool, operations, bytes)).collect()
        };
        // Three times 64 MiB, of which 128 are kept.
        let (long, middle, short) = ((16, 4 << 20), (80, 800 << 10), (400, 160 << 10));
        assert_eq!(steps(&[long, middle, short]), [16, 80, 400]);
        assert_eq!(steps(&[short, middle]), [0, 0]);
        assert_eq!(steps(&[long]), [16]);
    }

    #[test]
    fn a_piece_is_the_shortest_that_fits_and_not_much_longer() {
        let mut pool = ScratchPool::default();
        for bytes in [256 << 10, 64 << 10, 128 << 10] {
            let memory = piece(bytes);
            pool.lent(&memory);
            pool.give_back(memory, true);
        }
        assert!(pool.take(15 << 10).is_none(), "more than three quarters of 64 KiB would be wasted");
        assert_eq!(pool.take(65 << 10).expect("a piece").bytes(), 128 << 10);
        assert_eq!(pool.take(65 << 10).expect("a piece").bytes(), 256 << 10);
        assert!(pool.take(65 << 10).is_none(), "64 KiB are too short");
        assert_eq!(pool.spare_bytes, 64 << 10);
    }
}
