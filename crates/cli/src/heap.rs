//! How this process keeps the memory that it frees.

/// What glibc takes at most as the size from which a block has a mapping of its own.
#[cfg(target_env = "gnu")]
const LARGEST_THRESHOLD: libc::c_int = 32 << 20;

/// Keeps freed memory for the next allocation.
///
/// A training iteration frees what the next one allocates again. By default glibc gives the end of its heap back to the
/// system once twice the largest block that was freed lies there, and maps blocks anew that are larger than any before:
/// pages are then made and zeroed in each iteration. Whether that happens depends on where a few small blocks lie. Measured on two
/// cores: an MLP computes for 0.46 or for 0.95 ms, from one run to the next; ResNet-20 trains on 247 samples/s instead of 188.
/// And threads beside the first one have heaps of 64 MiB, which are unmapped whenever one is empty, whatever the thresholds are: a
/// transformer of 3.3 MB then spent 13 % of its time in 13,000 page faults an iteration, in some starts and not in others. So all
/// threads share the first heap: where one thread computes, hardly another one allocates in an iteration.
///
/// Other C libraries do as they please.
pub fn keep_freed_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: `mallopt` changes three numbers, before any thread has been started. It refuses what it does not know.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGEST_THRESHOLD);
        libc::mallopt(libc::M_TRIM_THRESHOLD, libc::c_int::MAX);
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}
