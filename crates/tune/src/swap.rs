//! One value for many readers, replaced as a whole.

use std::marker::PhantomData;
use std::ptr;

use crate::sync::{AtomicPtr, Mutex, Ordering};

/// A value behind one atomic pointer. To read it costs one load: no lock, no allocation, no counter, and nothing that a
/// thread would have to clean up (a library that a process may unload must not leave such things behind; that is why this
/// is not `arc-swap`).
///
/// Values that were replaced are kept, as somebody may still read them, until the whole is dropped or somebody has it for himself alone
/// ([`Swap::release`]). So it is for what changes rarely: a policy is some KiB, and a job has some hundreds of them.
pub struct Swap<T> {
    current: AtomicPtr<T>,
    kept: Mutex<Vec<Owned<T>>>,
    /// Readers in any thread get `&T`.
    shared: PhantomData<T>,
}

/// A value that was made by `Box`, and is freed by [`Swap`].
struct Owned<T>(*mut T);

// SAFETY: the pointer is the only owner of what it points to, like a `Box`; references to it are given out by `Swap` only,
// which demands `Sync` for that by its marker.
unsafe impl<T: Send> Send for Owned<T> {}

/// There are too many values: the one that is there stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

impl<T> Swap<T> {
    /// So many values may there be, the first one included.
    pub const KEPT_MAX: usize = 1 << 16;

    /// With a first value.
    pub fn new(value: T) -> Swap<T> {
        let pointer = Box::into_raw(Box::new(value));
        Swap { current: AtomicPtr::new(pointer), kept: Mutex::new(vec![Owned(pointer)]), shared: PhantomData }
    }

    /// The value now. The reference stays good when another value comes.
    pub fn current(&self) -> &T {
        let pointer = self.current.load(Ordering::Acquire);
        // SAFETY: every pointer that is ever stored comes from `Box::into_raw`, is written before it is stored (release and
        // acquire), never written through afterwards, and freed only by `release` and `drop`, which need `self` alone.
        unsafe { &*pointer }
    }

    /// Replaces the value. Readers see the old one or the new one.
    ///
    /// # Errors
    /// There are [`Swap::KEPT_MAX`], as nobody has released any.
    pub fn replace(&self, value: T) -> Result<(), Full> {
        // Who panicked under the lock left a complete list.
        let mut kept = self.kept.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if kept.len() >= Self::KEPT_MAX {
            return Err(Full);
        }
        let pointer = Box::into_raw(Box::new(value));
        kept.push(Owned(pointer));
        self.current.store(pointer, Ordering::Release);
        Ok(())
    }

    /// Frees the values that were replaced. Nobody reads them any more: a reference to one of them would have kept `self` borrowed.
    pub fn release(&mut self) {
        let current = self.current.load(Ordering::Acquire);
        let mut kept = self.kept.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let (shown, replaced): (Vec<Owned<T>>, Vec<Owned<T>>) =
            kept.drain(..).partition(|Owned(pointer)| *pointer == current);
        *kept = shown;
        // Whatever a value does when it is dropped, none of them stands in the list any more.
        for Owned(pointer) in replaced {
            // SAFETY: it comes from `Box::into_raw`, stood in the list once, is not the current one, and nobody reads it any more:
            // `release` has `self` alone.
            drop(unsafe { Box::from_raw(pointer) });
        }
    }
}

impl<T> Drop for Swap<T> {
    fn drop(&mut self) {
        self.current.store(ptr::null_mut(), Ordering::Relaxed);
        let mut kept = self.kept.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        for Owned(pointer) in kept.drain(..) {
            // SAFETY: it comes from `Box::into_raw`, stands in the list once, and nobody reads any more: `drop` has `self`
            // alone.
            drop(unsafe { Box::from_raw(pointer) });
        }
    }
}
