//! Memory that every rank of the host can read where it lies.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::FallocateFlags;
use rustix::mm::{Advice, ProtFlags};

use super::free_list::FreeList;
use super::mapping::{Mapping, create_sealed, page_bytes};

/// Huge pages of x86-64, and of Arm with 4 KiB pages.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Every allocation starts on a cache line of its own.
const ALIGNMENT_MIN: usize = 64;

/// So much free memory gathers in one place before it goes back to the system: giving 1 MiB back and faulting it in
/// again costs about as much as a few hundred microseconds of copying, which must not befall every small buffer.
const RETURN_ABOVE: usize = 1 << 20;

/// Smaller arenas are not worth having.
const ARENA_BYTES_MIN: usize = 64 << 20;

/// A large sparse piece of shared memory that belongs to one rank. The peers of its host map all of it, read-only, when
/// they connect; so what is allocated here crosses to them without a copy. Only touched pages occupy memory.
#[derive(Debug)]
pub struct Arena {
    file: OwnedFd,
    mapping: Mapping,
    free: Mutex<FreeList>,
}

/// Why an arena has no memory to give.
#[derive(Debug, thiserror::Error)]
pub enum ArenaError {
    /// It has no free range that is long enough.
    #[error(
        "the shared arena of {total} bytes has no {wanted} bytes in one piece left ({free} are free): drop buffers or ask for a larger arena"
    )]
    Full {
        /// The bytes asked for.
        wanted: usize,
        /// The bytes free, in pieces.
        free: usize,
        /// The bytes of the arena.
        total: usize,
    },
    /// The system has no memory for it.
    #[error(transparent)]
    Memory(#[from] io::Error),
}

impl Arena {
    /// An arena of `bytes`; by default as large as the machine's memory, or as large as the limits of this process
    /// admit. It takes addresses, not memory.
    pub fn new(bytes: Option<usize>) -> io::Result<Arc<Arena>> {
        if let Some(bytes) = bytes {
            return Arena::of(bytes);
        }
        let mut bytes = default_bytes();
        loop {
            match Arena::of(bytes) {
                Err(_) if bytes / 2 >= ARENA_BYTES_MIN => bytes /= 2,
                result => return result,
            }
        }
    }

    fn of(bytes: usize) -> io::Result<Arc<Arena>> {
        let bytes = bytes
            .max(1)
            .checked_next_multiple_of(HUGE_PAGE_BYTES.max(page_bytes()))
            .ok_or(io::ErrorKind::OutOfMemory)?;
        let file = create_sealed("paceline-arena", bytes)?;
        let mapping = Mapping::of(&file, bytes, HUGE_PAGE_BYTES, ProtFlags::READ | ProtFlags::WRITE)?;
        mapping.advise(Advice::LinuxHugepage);
        Ok(Arc::new(Arena { file, mapping, free: Mutex::new(FreeList::new(bytes)) }))
    }

    /// Takes `bytes`, aligned to `alignment` (a power of two, at most 2 MiB) and at least to a cache line; from a page on to pages,
    /// from a huge page on to huge pages. What it holds is unspecified: zeros, or what an earlier owner left.
    pub fn allocate(self: &Arc<Arena>, bytes: usize, alignment: usize) -> Result<Allocation, ArenaError> {
        // The mapping starts on a huge page: up to that, an offset is as aligned as its address.
        assert!(
            alignment.is_power_of_two() && alignment <= HUGE_PAGE_BYTES,
            "an alignment is a power of two up to 2 MiB"
        );
        let natural = match bytes {
            HUGE_PAGE_BYTES.. => HUGE_PAGE_BYTES,
            _ if bytes >= page_bytes() => page_bytes(),
            _ => ALIGNMENT_MIN,
        };
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = bytes.max(1).checked_next_multiple_of(ALIGNMENT_MIN).and_then(|taken| {
            let natural = free.take(taken, natural.max(alignment));
            Some((natural.or_else(|| free.take(taken, alignment.max(ALIGNMENT_MIN)))?, taken))
        });
        let Some((offset, taken)) = taken else {
            return Err(ArenaError::Full { wanted: bytes, free: free.free_bytes(), total: self.bytes() });
        };
        drop(free);
        let allocation = Allocation { arena: Arc::clone(self), offset, taken, bytes };
        self.mapping.populate(offset, taken)?;
        Ok(allocation)
    }

    /// The size of the arena.
    pub fn bytes(&self) -> usize {
        self.mapping.bytes()
    }

    /// The bytes that are not allocated.
    pub fn free_bytes(&self) -> usize {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).free_bytes()
    }

    /// Where in the arena `bytes` at `start` lie, if all of them do.
    pub fn offset_of(&self, start: *const u8, bytes: usize) -> Option<usize> {
        let offset = start.addr().checked_sub(self.mapping.start().addr())?;
        (offset.checked_add(bytes)? <= self.bytes()).then_some(offset)
    }

    /// The file, to be mapped by peers.
    pub(super) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    fn give_back(&self, offset: usize, bytes: usize) {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(range) = free.give(offset..offset + bytes, page_bytes(), RETURN_ABOVE) {
            // Still under the lock: nobody can have been given any of these pages yet. Where it fails, the pages stay
            // and are used again.
            let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let _ = rustix::fs::fallocate(&self.file, punch, range.start as u64, range.len() as u64);
        }
    }
}

/// As much as the machine has, unless a limit of the process is lower. The limits matter: growing a file beyond
/// RLIMIT_FSIZE raises a signal that kills, and an arena must not use up RLIMIT_AS.
fn default_bytes() -> usize {
    use rustix::process::{Resource, getrlimit};
    let system = rustix::system::sysinfo();
    let memory = (system.totalram as u64).saturating_mul(u64::from(system.mem_unit).max(1));
    let file = getrlimit(Resource::Fsize).current.unwrap_or(u64::MAX);
    let addresses = getrlimit(Resource::As).current.map_or(u64::MAX, |limit| limit / 16);
    let bytes = memory.min(file).min(addresses).min(1 << 44);
    usize::try_from(bytes).unwrap_or(usize::MAX) / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES
}

/// A piece of an [`Arena`], freed on drop.
///
/// It owns its bytes within this process; peers can read them at any time. It hands out an address only: which bytes
/// are initialised as what, and when a peer may look, is the communicator's business.
#[derive(Debug)]
pub struct Allocation {
    arena: Arc<Arena>,
    offset: usize,
    /// Bytes taken from the free list.
    taken: usize,
    bytes: usize,
}

impl Allocation {
    /// The first byte. The bytes are initialised (with unspecified values), and valid for reads and writes as long as
    /// this allocation lives.
    pub fn start(&self) -> NonNull<u8> {
        // SAFETY: the arena's mapping is not null and `offset` lies inside it.
        unsafe { NonNull::new_unchecked(self.arena.mapping.start().add(self.offset)) }
    }

    /// How many bytes were asked for.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Where in the arena it lies.
    pub fn offset(&self) -> usize {
        self.offset
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        self.arena.give_back(self.offset, self.taken);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of the file that occupy memory.
    fn resident(arena: &Arena) -> u64 {
        rustix::fs::fstat(&arena.file).expect("fstat of a memfd").st_blocks.unsigned_abs() * 512
    }

    fn fill(allocation: &Allocation, value: u8) {
        // SAFETY: the allocation is ours and as long as it says.
        unsafe { allocation.start().write_bytes(value, allocation.bytes()) };
    }

    #[test]
    fn memory_is_aligned_and_goes_back_to_the_system() {
        let arena = Arena::new(Some(64 << 20)).expect("an arena");
        let before = resident(&arena);
        let small = arena.allocate(100, 8).expect("room");
        let large = arena.allocate(8 << 20, 8).expect("room");
        assert_eq!(small.start().addr().get() % 64, 0);
        assert_eq!(large.start().addr().get() % HUGE_PAGE_BYTES, 0);
        fill(&small, 1);
        fill(&large, 2);
        assert!(resident(&arena) >= before + (8 << 20));
        assert_eq!(arena.offset_of(large.start().as_ptr(), 8 << 20), Some(large.offset()));
        assert_eq!(arena.offset_of(large.start().as_ptr(), 64 << 20), None, "beyond the end");
        assert_eq!(arena.offset_of(std::ptr::from_ref(&before).cast(), 8), None, "elsewhere");
        drop(large);
        assert!(resident(&arena) <= before + HUGE_PAGE_BYTES as u64);
        drop(small);
        assert_eq!(arena.free_bytes(), 64 << 20);
    }

    #[test]
    fn a_full_arena_says_so_and_recovers() {
        let arena = Arena::new(Some(4 << 20)).expect("an arena");
        let all = arena.allocate(4 << 20, 1).expect("the whole");
        let error = arena.allocate(1, 1).expect_err("nothing is left");
        assert!(error.to_string().contains("drop buffers"), "{error}");
        assert!(arena.allocate(usize::MAX, 1).is_err());
        drop(all);
        arena.allocate(1, 1).expect("room again");
    }

    #[test]
    fn the_default_arena_is_large_and_costs_nothing() {
        let arena = Arena::new(None).expect("an arena");
        assert!(arena.bytes() >= ARENA_BYTES_MIN);
        assert_eq!(resident(&arena), 0);
    }

    #[test]
    fn threads_do_not_get_the_same_bytes() {
        let arena = Arena::new(Some(32 << 20)).expect("an arena");
        std::thread::scope(|scope| {
            for thread in 0..4_u8 {
                let arena = &arena;
                scope.spawn(move || {
                    for round in 0..500_usize {
                        let allocation = arena.allocate(1 + round * 37 % 9000, 8).expect("room");
                        fill(&allocation, thread);
                        std::thread::yield_now();
                        // SAFETY: ours, and written above.
                        let bytes =
                            unsafe { std::slice::from_raw_parts(allocation.start().as_ptr(), allocation.bytes()) };
                        assert!(bytes.iter().all(|byte| *byte == thread));
                    }
                });
            }
        });
        assert_eq!(arena.free_bytes(), arena.bytes());
    }
}
