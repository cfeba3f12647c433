//! The memory that two ranks share: a control page and two rings, one for each direction.

use std::io;
use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::mm::ProtFlags;

use super::mapping::{Mapping, check_sealed, create_sealed, page_bytes};

/// Rings are never shorter: a slice of the longest multiple that a sink may ask for (4 KiB) and a header fit with ease.
pub(super) const RING_BYTES_MIN: usize = 16 << 10;
/// Rings are never longer; a peer that asks for more is refused before anything is mapped.
pub(super) const RING_BYTES_MAX: usize = 1 << 30;

/// In [`Side::asleep`]: wake me when data arrives.
pub(super) const WAKE_FOR_DATA: u32 = 1;
/// In [`Side::asleep`]: wake me when room opens in the ring that I write, too.
pub(super) const WAKE_FOR_ROOM: u32 = 2;

/// Something that one side writes and the other reads: alone on its cache line, and on the next one, which processors
/// prefetch along with it.
#[repr(C, align(128))]
pub(super) struct Line<T>(pub(super) T);

/// What one side writes (except `asleep`, which the other side clears when it wakes this one).
#[repr(C)]
pub(super) struct Side {
    /// How many bytes this side has written into its ring since the link opened; the other may read up to here.
    pub(super) tail: Line<AtomicU64>,
    /// How many bytes of the *other* ring this side has read; the other may overwrite up to here.
    pub(super) head: Line<AtomicU64>,
    /// What this side wants to be woken for; 0 while it is awake.
    pub(super) asleep: Line<AtomicU32>,
    /// 1 when this side has withdrawn the memory that it referred to.
    pub(super) withdrawn: Line<AtomicU32>,
    /// Random bytes by which the other side recognises that both map the same memory.
    nonce: Line<[AtomicU64; 2]>,
}

impl Side {
    pub(super) fn write_nonce(&self, nonce: [u8; 16]) {
        let whole = u128::from_ne_bytes(nonce);
        self.nonce.0[0].store(whole as u64, Ordering::Release);
        self.nonce.0[1].store((whole >> 64) as u64, Ordering::Release);
    }

    pub(super) fn read_nonce(&self) -> [u8; 16] {
        let [low, high] = [0, 1].map(|half| u128::from(self.nonce.0[half].load(Ordering::Acquire)));
        (low | high << 64).to_ne_bytes()
    }

    /// Half of the handshake between a side that falls asleep and one that publishes. The sleeper stores `asleep` and
    /// looks at the ring once more; the publisher stores its index and looks at `asleep`. All four are sequentially
    /// consistent, so of the two looks at least one sees the other's store: either the sleeper finds the data or the
    /// publisher wakes it. (Stores and loads rather than fences: on x86-64 an exchange is cheaper than a fence.)
    pub(super) fn fall_asleep(&self, wanted: u32) {
        self.asleep.0.store(wanted, Ordering::SeqCst);
    }

    /// The other half: called after an index was stored. True if this side must be woken, which the caller then does;
    /// it is asked for once per sleep.
    pub(super) fn must_be_woken(&self, for_what: u32) -> bool {
        self.asleep.0.load(Ordering::SeqCst) & for_what != 0 && self.asleep.0.swap(0, Ordering::Relaxed) != 0
    }

    /// This side is awake: nobody needs to wake it.
    pub(super) fn wake_up(&self) {
        self.asleep.0.store(0, Ordering::Relaxed);
    }
}

/// The mapped segment. Ring `i` is written by side `i`; it is mapped twice in a row, so that every frame in it is
/// contiguous, also where it wraps.
pub(super) struct Segment {
    mapping: Mapping,
    /// Where the first ring begins: after the control page. Kept here, beside what else every access needs.
    page: usize,
    ring_bytes: usize,
}

impl Segment {
    /// A new segment and its file. Only the control page has memory yet: see [`Segment::populate`].
    pub(super) fn create(ring_bytes: usize) -> io::Result<(Arc<Segment>, OwnedFd)> {
        let file = create_sealed("paceline-rings", page_bytes() + 2 * ring_bytes)?;
        let segment = Segment::map(&file, ring_bytes)?;
        segment.mapping.populate(0, page_bytes())?;
        Ok((Arc::new(segment), file))
    }

    /// Maps a peer's segment.
    pub(super) fn open(file: BorrowedFd<'_>, ring_bytes: usize) -> Result<Arc<Segment>, String> {
        if !valid_ring_bytes(ring_bytes) {
            return Err(format!("the peer wants rings of {ring_bytes} bytes"));
        }
        check_sealed(file, page_bytes() + 2 * ring_bytes)?;
        Segment::map(file, ring_bytes).map(Arc::new).map_err(|error| format!("mapping the rings: {error}"))
    }

    fn map(file: impl std::os::fd::AsFd, ring_bytes: usize) -> io::Result<Segment> {
        assert!(valid_ring_bytes(ring_bytes), "a ring is a power of two of whole pages");
        let page = page_bytes();
        let [first, second] = [page as u64, (page + ring_bytes) as u64];
        let parts = [(0, page), (first, ring_bytes), (first, ring_bytes), (second, ring_bytes), (second, ring_bytes)];
        let mapping = Mapping::of_parts(file, &parts, ProtFlags::READ | ProtFlags::WRITE)?;
        assert!(2 * size_of::<Side>() <= page, "the control page has room for both sides");
        Ok(Segment { mapping, page, ring_bytes })
    }

    /// What side 0 or 1 writes.
    pub(super) fn side(&self, index: usize) -> &Side {
        assert!(index < 2);
        // SAFETY: the control page is mapped as long as `self`, begins with two `Side`s (for which it has room, as was
        // checked when it was mapped), and is aligned to a page.
        // `Side` consists of atomics only: any bytes are valid, and others may write them.
        unsafe { &*self.mapping.start().cast::<Side>().add(index) }
    }

    /// The first byte of the ring that side `index` writes; `2 * ring_bytes()` bytes are mapped there, the second half
    /// being the first again.
    pub(super) fn ring(&self, index: usize) -> *mut u8 {
        assert!(index < 2);
        self.mapping.start().wrapping_add(self.page + index * 2 * self.ring_bytes)
    }

    /// Takes memory for a part of the ring that side `index` writes, or says that there is none.
    pub(super) fn populate(&self, index: usize, part: Range<usize>) -> io::Result<()> {
        assert!(index < 2 && part.end <= self.ring_bytes, "the part lies inside the ring");
        self.mapping.populate(self.page + index * 2 * self.ring_bytes + part.start, part.len())
    }

    /// The size of each ring: a power of two.
    pub(super) fn ring_bytes(&self) -> usize {
        self.ring_bytes
    }
}

/// What a ring may measure: a power of two (so that positions wrap), in whole pages (so that it can be mapped twice).
pub(super) fn valid_ring_bytes(ring_bytes: usize) -> bool {
    ring_bytes.is_power_of_two()
        && ring_bytes >= page_bytes()
        && (RING_BYTES_MIN..=RING_BYTES_MAX).contains(&ring_bytes)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    /// The store-buffering litmus test. With weaker orders it fails in most runs on an idle x86-64.
    #[test]
    fn a_sleeper_sees_the_data_or_the_publisher_sees_the_sleeper() {
        let start = Instant::now();
        // On a busy machine every round may cost a time slice: fewer rounds then.
        let mut rounds = 0;
        while rounds < 300_000 && start.elapsed() < Duration::from_secs(1) {
            assert_eq!(lost_wake_ups(1000), 0, "after {rounds} rounds");
            rounds += 1000;
        }
    }

    fn lost_wake_ups(rounds: u64) -> usize {
        let (segment, _) = Segment::create(RING_BYTES_MIN).expect("shared memory");
        let [publisher, sleeper] = [0, 1].map(|side| segment.side(side));
        let [at_publisher, at_sleeper] = [const { AtomicU64::new(0) }; 2];
        let publish = |round| {
            meet(&at_publisher, &at_sleeper, 2 * round - 1, round % 5);
            publisher.tail.0.store(round, Ordering::SeqCst);
            let rings = sleeper.must_be_woken(WAKE_FOR_DATA);
            meet(&at_publisher, &at_sleeper, 2 * round, 0);
            rings
        };
        let sleep = |round| {
            meet(&at_sleeper, &at_publisher, 2 * round - 1, round % 7);
            sleeper.fall_asleep(WAKE_FOR_DATA);
            let finds = publisher.tail.0.load(Ordering::SeqCst) == round;
            meet(&at_sleeper, &at_publisher, 2 * round, 0);
            sleeper.wake_up();
            finds
        };
        std::thread::scope(|scope| {
            let rings = scope.spawn(move || (1..=rounds).map(publish).collect::<Vec<bool>>());
            let finds: Vec<bool> = (1..=rounds).map(sleep).collect();
            let rings = rings.join().expect("no panic");
            rings.into_iter().zip(finds).filter(|(rings, finds)| !rings && !finds).count()
        })
    }

    /// Waits for the other thread to come as far, and then a little.
    fn meet(mine: &AtomicU64, other: &AtomicU64, step: u64, delay: u64) {
        mine.store(step, Ordering::Release);
        for spins in 1_u32.. {
            if other.load(Ordering::Acquire) >= step {
                break;
            }
            if spins.is_multiple_of(1000) { std::thread::yield_now() } else { std::hint::spin_loop() }
        }
        (0..delay).for_each(|_| std::hint::spin_loop());
    }
}
