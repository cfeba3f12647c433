//! What `swap` is made of. Its test takes the same names from loom instead, and so goes through all interleavings of the
//! very code that runs.

pub use std::sync::Mutex;
pub use std::sync::atomic::{AtomicPtr, Ordering};
