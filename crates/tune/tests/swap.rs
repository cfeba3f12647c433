//! All interleavings of the swap of policies, by loom: the file is compiled here with loom's pointer and lock. (`swap_unordered.rs`: that
//! loom finds it where release and acquire are missing.)
#![allow(missing_docs)]

mod sync {
    pub use loom::sync::Mutex;
    pub use loom::sync::atomic::{AtomicPtr, Ordering};
}

#[path = "../src/swap.rs"]
#[allow(dead_code)]
mod swap;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use swap::Swap;

/// A policy whose parts must be seen together. Loom's cell notices whoever reads before the writer is done.
struct Parts {
    version: UnsafeCell<u64>,
    copy: UnsafeCell<u64>,
}

// SAFETY: it is written before it is shared, and only read afterwards; that this is so is what the test is about.
unsafe impl Sync for Parts {}

impl Parts {
    fn new(version: u64) -> Parts {
        Parts { version: UnsafeCell::new(version), copy: UnsafeCell::new(version) }
    }

    fn read(&self) -> u64 {
        // SAFETY: nobody writes any more.
        let (version, copy) = unsafe { (self.version.with(|it| *it), self.copy.with(|it| *it)) };
        assert_eq!(version, copy, "a policy was seen in parts");
        version
    }
}

#[test]
fn readers_see_one_policy_whole_and_never_an_older_one_again() {
    loom::model(|| {
        let board = Arc::new(Swap::new(Parts::new(0)));
        let readers: Vec<_> = (0..2)
            .map(|_| {
                let board = Arc::clone(&board);
                thread::spawn(move || {
                    let held = board.current();
                    let (first, second) = (held.read(), board.current().read());
                    assert!(second >= first, "{second} after {first}");
                    // What was held stays good.
                    assert_eq!(held.read(), first);
                })
            })
            .collect();
        assert!(board.replace(Parts::new(1)).is_ok());
        assert_eq!(board.current().read(), 1);
        readers.into_iter().for_each(|reader| reader.join().expect("it ended well"));
    });
}

#[test]
fn two_who_replace_leave_one_of_the_two() {
    loom::model(|| {
        let board = Arc::new(Swap::new(Parts::new(0)));
        let other = {
            let board = Arc::clone(&board);
            thread::spawn(move || assert!(board.replace(Parts::new(1)).is_ok()))
        };
        assert!(board.replace(Parts::new(2)).is_ok());
        other.join().expect("it ended well");
        assert!([1, 2].contains(&board.current().read()));
    });
}

/// What a running job does: one replaces while others read, and frees what was replaced as soon as it has the whole for itself alone.
#[test]
fn what_was_replaced_is_freed_when_nobody_can_read_it() {
    loom::model(|| {
        let alive = std::sync::Arc::new(());
        let board = Arc::new(Swap::new((Parts::new(0), alive.clone())));
        let reader = {
            let board = Arc::clone(&board);
            thread::spawn(move || board.current().0.read())
        };
        for version in 1..3 {
            assert!(board.replace((Parts::new(version), alive.clone())).is_ok());
        }
        assert!(reader.join().expect("it ended well") < 3);
        // The reader's handle is gone with it.
        let Ok(mut board) = Arc::try_unwrap(board) else { panic!("somebody else has it") };
        board.release();
        assert_eq!((board.current().0.read(), std::sync::Arc::strong_count(&alive)), (2, 2), "one value, and our own");
        assert!(board.replace((Parts::new(3), alive.clone())).is_ok());
        board.release();
        assert_eq!((board.current().0.read(), std::sync::Arc::strong_count(&alive)), (3, 2));
        drop(board);
        assert_eq!(std::sync::Arc::strong_count(&alive), 1);
    });
}
