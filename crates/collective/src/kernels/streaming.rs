//! Stores that go past the caches, for results that are too long to be found there again.
//!
//! A store to memory that no cache holds first reads its line; a streaming one does not, and throws nothing else out.

use std::sync::LazyLock;

use super::level::{Instructions, Level};

/// Lines are written as wholes.
const LINE_BYTES: usize = 64;

/// `into = from`, past the caches where the processor can. When it returns every processor sees the result, as after any
/// other copy.
///
/// # Safety
///
/// For `bytes` bytes `from` must be readable and `into` writable; they must not overlap, and nobody else may write to
/// the one or touch the other until the call returns.
pub unsafe fn copy_streaming(from: *const u8, into: *mut u8, bytes: usize) {
    // SAFETY: the caller's contract is the same.
    unsafe { copy_streaming_at(Level::best(), from, into, bytes) };
}

/// [`copy_streaming`] with the instructions of a given level.
///
/// # Safety
///
/// As [`copy_streaming`].
pub(super) unsafe fn copy_streaming_at(level: Level, from: *const u8, into: *mut u8, bytes: usize) {
    let head = into.align_offset(LINE_BYTES).min(bytes);
    let lines = (bytes - head) / LINE_BYTES;
    let tail = head + lines * LINE_BYTES;
    // SAFETY: head, lines and tail are the range that the caller vouches for; the lines begin on a line of `into`.
    unsafe {
        std::ptr::copy_nonoverlapping(from, into, head);
        stream_lines(level, from.add(head), into.add(head), lines);
        std::ptr::copy_nonoverlapping(from.add(tail), into.add(tail), bytes - tail);
    }
}

/// # Safety
/// As [`copy_streaming`] for so many lines, and `into` begins on a line.
unsafe fn stream_lines(level: Level, from: *const u8, into: *mut u8, lines: usize) {
    match level.0 {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a level is made only where the processor has its instructions; the rest is the caller's promise.
        Instructions::Avx512 => unsafe { x86::stream_avx512(from, into, lines) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: every x86-64 has SSE2; the rest is the caller's promise.
        Instructions::Avx2 | Instructions::Baseline => unsafe { x86::stream_sse2(from, into, lines) },
        #[cfg(not(target_arch = "x86_64"))]
        // SAFETY: the caller's promise.
        Instructions::Baseline => unsafe { std::ptr::copy_nonoverlapping(from, into, lines * LINE_BYTES) },
    }
}

/// The bytes of the largest cache of this processor, or a guess where it does not say.
pub fn last_level_cache_bytes() -> usize {
    /// What a core of a server has of it at least.
    const GUESS: usize = 32 << 20;
    static BYTES: LazyLock<usize> = LazyLock::new(|| largest_cache_bytes().unwrap_or(GUESS));
    *BYTES
}

#[cfg(not(target_arch = "x86_64"))]
fn largest_cache_bytes() -> Option<usize> {
    None
}

/// Source: the deterministic cache parameters of Intel's CPUID leaf 4 and AMD's leaf 0x8000001D, which have one layout
/// (Intel, Software Developer's Manual, volume 2A; AMD, Architecture Programmer's Manual, volume 3).
#[cfg(target_arch = "x86_64")]
fn largest_cache_bytes() -> Option<usize> {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    const CACHES_MAX: u32 = 8;
    let caches = |leaf: u32| {
        let known = __cpuid(leaf & 0x8000_0000).eax >= leaf;
        (0..CACHES_MAX).filter(move |_| known).map(move |cache| __cpuid_count(leaf, cache)).filter_map(|it| {
            let field = |value: u32, from: u32, bits: u32| (value >> from & ((1 << bits) - 1)) as usize + 1;
            // Type 0: there is no further one.
            let there = it.eax & 0x1f != 0;
            there.then(|| field(it.ebx, 22, 10) * field(it.ebx, 12, 10) * field(it.ebx, 0, 12) * (it.ecx as usize + 1))
        })
    };
    caches(4).chain(caches(0x8000_001d)).max()
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{_mm_loadu_si128, _mm_sfence, _mm_stream_si128, _mm512_loadu_si512, _mm512_stream_si512};

    use super::LINE_BYTES;

    /// # Safety
    /// As [`super::stream_lines`].
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn stream_avx512(from: *const u8, into: *mut u8, lines: usize) {
        for line in 0..lines {
            let at = line * LINE_BYTES;
            // SAFETY: the line lies in both ranges, and begins on a line of `into`.
            unsafe { _mm512_stream_si512(into.add(at).cast(), _mm512_loadu_si512(from.add(at).cast())) };
        }
        // Streaming stores are ordered with nothing that follows them, but for this.
        _mm_sfence();
    }

    /// # Safety
    /// As [`super::stream_lines`].
    pub(super) unsafe fn stream_sse2(from: *const u8, into: *mut u8, lines: usize) {
        for quarter in 0..4 * lines {
            let at = quarter * (LINE_BYTES / 4);
            // SAFETY: the quarter lies in both ranges, and is aligned in `into` as its line is.
            unsafe { _mm_stream_si128(into.add(at).cast(), _mm_loadu_si128(from.add(at).cast())) };
        }
        // SAFETY: every x86-64 has SSE.
        unsafe { _mm_sfence() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_copies_every_byte_and_no_other_at_every_level_length_and_offset() {
        let from: Vec<u8> = (0..2000_usize).map(|index| (index * 7 + index / 251) as u8).collect();
        for &level in Level::available() {
            for bytes in [0, 1, 63, 64, 65, 127, 128, 1000] {
                for (skipped, at) in [(0, 0), (1, 0), (0, 1), (3, 63), (64, 65)] {
                    let mut into = vec![0xaa; at + bytes + 1];
                    // SAFETY: both ranges are that long, and apart.
                    unsafe { copy_streaming_at(level, from[skipped..].as_ptr(), into[at..].as_mut_ptr(), bytes) };
                    let context = format!("{level}, {bytes} bytes from {skipped} to {at}");
                    assert_eq!(into[at..at + bytes], from[skipped..skipped + bytes], "{context}");
                    assert!(into[..at].iter().all(|&byte| byte == 0xaa), "{context}: wrote before");
                    assert_eq!(into[at + bytes], 0xaa, "{context}: wrote behind");
                }
            }
        }
    }

    #[test]
    fn the_last_level_cache_is_as_large_as_caches_are() {
        assert!((64 << 10..4 << 30).contains(&last_level_cache_bytes()), "{}", last_level_cache_bytes());
    }
}
