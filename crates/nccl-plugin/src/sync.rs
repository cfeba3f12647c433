//! What `publish` is made of. Its test takes the same names from loom instead, and so goes through the interleavings of the
//! very code that runs.

pub use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// All accesses to the pointer and to the counts have one order already, by `SeqCst`. Loom takes that order from fences only,
/// so there this is one.
#[inline(always)]
pub fn in_one_order() {}
