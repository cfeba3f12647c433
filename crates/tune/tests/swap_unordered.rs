//! The swap of policies without release and acquire, which loom must reject: what passes in `swap.rs` passes because of them. The file
//! is compiled here with loom's pointer and lock, and with orders that are none. (A program of its own, as `swap` takes its orders from
//! the crate.)
#![allow(missing_docs)]

mod sync {
    pub use loom::sync::Mutex;
    pub use loom::sync::atomic::AtomicPtr;

    /// Whatever is asked for, nothing is ordered.
    #[allow(non_snake_case)]
    pub mod Ordering {
        pub use loom::sync::atomic::Ordering::{Relaxed, Relaxed as Acquire, Relaxed as Release};
    }
}

#[path = "../src/swap.rs"]
#[allow(dead_code)]
mod swap;

use loom::cell::UnsafeCell;
use loom::thread;
use swap::Swap;

#[test]
#[should_panic(expected = "Causality violation: Concurrent read and write accesses")]
fn loom_finds_it_where_the_order_is_missing() {
    loom::model(|| {
        // Never dropped: the test ends in the middle of the reader, where loom's lock and pointer cannot be used any more.
        let board: &'static Swap<UnsafeCell<u64>> = Box::leak(Box::new(Swap::new(UnsafeCell::new(0))));
        let reader = thread::spawn(move || {
            // SAFETY: loom ends the test before anything is read that was not written before.
            board.current().with(|value| unsafe { *value })
        });
        assert!(board.replace(UnsafeCell::new(1)).is_ok());
        assert!(reader.join().expect("it ended well") <= 1);
    });
}
