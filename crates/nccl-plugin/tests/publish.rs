//! Interleavings of those who read a policy and of the one who replaces and frees it, by loom: the file is compiled here with
//! loom's atomics.
#![allow(missing_docs)]
#![allow(clippy::duplicate_mod, reason = "once as it is, once without what makes it right")]

mod sync {
    pub use loom::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

    pub fn in_one_order() {
        loom::sync::atomic::fence(Ordering::SeqCst);
    }
}

#[path = "../src/publish.rs"]
mod publish;

/// The same without the order between the counts and the pointer: loom must find what goes wrong.
#[path = "."]
mod unordered {
    mod sync {
        pub use loom::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

        pub fn in_one_order() {}
    }

    #[path = "../src/publish.rs"]
    pub mod publish;
}

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

/// A value that is ruined when it is given back. Loom's cell notices whoever reads it then, before or after.
struct Value(UnsafeCell<u64>);

// SAFETY: that it is not written while it is read is what the test is about, and loom watches it.
unsafe impl Sync for Value {}
// SAFETY: as above.
unsafe impl Send for Value {}

impl Value {
    fn boxed(value: u64) -> Box<Value> {
        Box::new(Value(UnsafeCell::new(value)))
    }

    fn read(&self) -> u64 {
        // SAFETY: loom ends the test if somebody writes at the same time.
        self.0.with(|value| unsafe { *value })
    }

    fn ruin(&self) {
        // SAFETY: loom ends the test if somebody reads at the same time.
        self.0.with_mut(|value| unsafe { *value = u64::MAX });
    }
}

macro_rules! readers_and_a_writer {
    ($publish:path, $readers:expr, $shared:expr, $preemptions:expr) => {{
        use $publish as publish;
        let mut model = loom::model::Builder::new();
        model.preemption_bound = $preemptions;
        model.check(|| {
            let published = Arc::new(publish::Published {
                pointer: loom::sync::atomic::AtomicPtr::new(Box::into_raw(Value::boxed(1))),
            });
            let reader = || publish::Reader {
                started: loom::sync::atomic::AtomicU64::new(0),
                finished: loom::sync::atomic::AtomicU64::new(0),
            };
            let all: Arc<Vec<publish::Reader>> =
                Arc::new((0..if $shared { 1 } else { $readers }).map(|_| reader()).collect());
            let threads: Vec<_> = (0..$readers)
                .map(|thread| {
                    let (published, all) = (Arc::clone(&published), Arc::clone(&all));
                    thread::spawn(move || {
                        let reader = &all[thread % all.len()];
                        // SAFETY: the writer asks all readers.
                        let seen = unsafe { published.read(reader, |value| value.map(Value::read)) };
                        assert!([None, Some(1)].contains(&seen), "{seen:?}");
                    })
                })
                .collect();
            let mut retired = publish::Retired(Vec::new());
            published.replace(None, &mut retired);
            // SAFETY: these are all readers.
            let released = unsafe { retired.release(all.iter()) };
            // Ruined, and kept until nobody reads: where the code is wrong, the test fails and does nothing undefined.
            released.iter().for_each(|value| value.ruin());
            threads.into_iter().for_each(|thread| thread.join().expect("it ended well"));
            // SAFETY: as above.
            let last = unsafe { retired.release(all.iter()) };
            assert_eq!(released.len() + last.len(), 1, "with nobody reading, nothing old is kept");
        });
    }};
}

#[test]
fn a_reader_never_has_what_was_given_back() {
    readers_and_a_writer!(publish, 1, false, None);
}

/// All interleavings of three threads take a minute; those in which a thread is interrupted three times at most, a moment.
#[test]
fn nor_do_two_readers() {
    readers_and_a_writer!(publish, 2, false, Some(3));
}

#[test]
fn nor_do_two_threads_that_read_in_one_place() {
    readers_and_a_writer!(publish, 2, true, Some(3));
}

#[test]
#[should_panic]
fn loom_finds_it_where_the_order_is_missing() {
    readers_and_a_writer!(unordered::publish, 1, false, None);
}
