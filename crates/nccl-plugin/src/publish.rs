//! A value behind one pointer, which is replaced while others read it, and freed when nobody can read it any more.

use super::sync::Ordering::SeqCst;
use super::sync::{AtomicPtr, AtomicU64, in_one_order};

/// The value, or null for none. Each came from a box.
pub struct Published<T> {
    /// Written by [`Published::replace`] only.
    pub pointer: AtomicPtr<T>,
}

/// Where values are read. Reads begun and ended: while they are equal nobody reads here.
#[derive(Debug)]
pub struct Reader {
    /// Raised before the pointer is read.
    pub started: AtomicU64,
    /// Raised when the value is not used any more.
    pub finished: AtomicU64,
}

/// Values that were replaced, and that somebody may still read.
pub struct Retired<T>(pub Vec<*mut T>);

// SAFETY: the pointers came from boxes, whose values may be dropped by any thread, and whoever has this list has them alone.
unsafe impl<T: Send> Send for Retired<T> {}

/// Notes the end of a read, however it ends.
struct End<'a>(&'a Reader);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.finished.fetch_add(1, SeqCst);
    }
}

impl<T> Published<T> {
    /// Reads the value: two counts and one pointer; nothing is waited for, nothing is allocated.
    ///
    /// # Safety
    /// Whoever releases what was retired ([`Retired::release`]) asks this reader, too.
    pub unsafe fn read<R>(&self, reader: &Reader, read: impl FnOnce(Option<&T>) -> R) -> R {
        reader.started.fetch_add(1, SeqCst);
        in_one_order();
        let _end = End(reader);
        // SAFETY: it is null or came from a box, and is given back only after this reader was seen without a read under way
        // after the pointer had been replaced.
        read(unsafe { self.pointer.load(SeqCst).as_ref() })
    }

    /// Puts another value there, or none. One thread at a time: whoever has the list of the retired.
    pub fn replace(&self, value: Option<Box<T>>, retired: &mut Retired<T>) {
        let before = self.pointer.swap(value.map_or(std::ptr::null_mut(), Box::into_raw), SeqCst);
        if !before.is_null() {
            retired.0.push(before);
        }
    }
}

impl<T> Retired<T> {
    /// Gives back what nobody can read any more: all or nothing. Whoever began to read after the pointer was replaced has the
    /// new value. So if a reader is seen once without a read under way, no read there has an old one: `finished` is read
    /// first and never exceeds `started`, so they were equal at that moment.
    ///
    /// # Safety
    /// These are all readers.
    pub unsafe fn release<'a>(&mut self, mut readers: impl Iterator<Item = &'a Reader>) -> Vec<Box<T>> {
        in_one_order();
        let idle = |reader: &Reader| {
            let finished = reader.finished.load(SeqCst);
            finished == reader.started.load(SeqCst)
        };
        if !readers.all(idle) {
            return Vec::new();
        }
        // SAFETY: they came from boxes, were taken out of the pointer, stand here once, and by the above nobody reads them.
        self.0.drain(..).map(|value| unsafe { Box::from_raw(value) }).collect()
    }
}
