//! Hints that bring cache lines from one core to another before they are needed. They change no byte and never fault,
//! whatever the address; where a processor has no such instruction, nothing happens.

use super::ring::UNIT;

/// A core has about so many requests for lines on their way at once; more would only wait.
const LINES_MAX: usize = 16;

/// Some bytes will be read soon.
#[inline]
pub(super) fn to_read(start: *const u8, bytes: usize) {
    for line in 0..bytes.div_ceil(UNIT).min(LINES_MAX) {
        let line = start.wrapping_add(line * UNIT);
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a prefetch is a hint: it accesses nothing that a program could observe.
        unsafe {
            std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(line.cast());
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = line;
    }
}

/// The line at an address will be written soon, and nobody reads it until then.
#[inline]
pub(super) fn line_to_write(line: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: as above; every processor of this architecture has the instruction or takes it for no operation. (The
    // compiler's intrinsic becomes a prefetch for reading unless it is told that the processor has this one.)
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) line, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = line;
}
