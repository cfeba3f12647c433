use std::sync::{Mutex, MutexGuard, PoisonError};

/// Nothing that could panic leaves what is locked here half changed.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
