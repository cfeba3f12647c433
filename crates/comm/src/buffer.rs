use std::collections::TryReserveError;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

use paceline_fabric::shm::Allocation;

use crate::Element;

/// Memory that operations may own: it stays valid until the last buffer that is cut from it, and the last operation
/// that uses it, are gone. Where the world shares a host it lies in memory that the peers can read directly.
pub struct Buffer<T: Element> {
    owner: Arc<Memory>,
    start: NonNull<T>,
    elements: usize,
    element: PhantomData<T>,
}

// SAFETY: a buffer is the only way to its range of the memory (`split` consumes it), as with `Box<[T]>`.
unsafe impl<T: Element> Send for Buffer<T> {}
// SAFETY: as above; a shared buffer only allows reading.
unsafe impl<T: Element> Sync for Buffer<T> {}

/// What a buffer is cut from.
pub(crate) enum Memory {
    Shared(Allocation),
    Private(Words),
}

/// Zeroed words, known by their address only: buffers write to them through it, which a box would not allow.
pub(crate) struct Words(NonNull<[u64]>);

impl Drop for Words {
    fn drop(&mut self) {
        // SAFETY: the pointer is a box's (see `Memory::private`), and nobody uses it any more.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

// SAFETY: both kinds are plain memory; access goes through the buffers cut from it.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Zeroed private memory.
    pub fn private(bytes: usize) -> Result<Memory, TryReserveError> {
        let mut words = Vec::new();
        words.try_reserve_exact(bytes.div_ceil(8))?;
        words.resize(bytes.div_ceil(8), 0u64);
        Ok(Memory::Private(Words(NonNull::from(Box::leak(words.into_boxed_slice())))))
    }

    pub fn start(&self) -> NonNull<u8> {
        match self {
            Memory::Shared(allocation) => allocation.start(),
            Memory::Private(words) => words.0.cast(),
        }
    }

    pub fn shared(&self) -> bool {
        matches!(self, Memory::Shared(_))
    }

    pub fn bytes(&self) -> usize {
        match self {
            Memory::Shared(allocation) => allocation.bytes(),
            Memory::Private(words) => words.0.len() * 8,
        }
    }
}

impl<T: Element> Buffer<T> {
    /// All of some memory, of which nobody else has a buffer.
    pub(crate) fn new(memory: Memory, elements: usize) -> Buffer<T> {
        let fits = elements.checked_mul(size_of::<T>()).is_some_and(|bytes| bytes <= memory.bytes());
        assert!(fits, "a buffer of {elements} elements is longer than its memory");
        let start = memory.start().cast();
        Buffer { owner: Arc::new(memory), start, elements, element: PhantomData }
    }

    /// Cuts the buffer into adjoining ones of these lengths; what is left over belongs to nobody.
    ///
    /// # Panics
    /// If the lengths add up to more than the buffer has.
    pub fn split(self, lengths: &[usize]) -> Vec<Buffer<T>> {
        let sum = lengths.iter().try_fold(0usize, |sum, &length| sum.checked_add(length));
        assert!(sum.is_some_and(|sum| sum <= self.elements), "the pieces are longer than the buffer");
        let mut offset = 0;
        let piece = |&elements: &usize| {
            // SAFETY: the sum of the lengths before this one is within the buffer.
            let start = unsafe { self.start.add(offset) };
            offset += elements;
            Buffer { owner: self.owner.clone(), start, elements, element: PhantomData }
        };
        lengths.iter().map(piece).collect()
    }

    pub(crate) fn owner(&self) -> &Arc<Memory> {
        &self.owner
    }
}

impl<T: Element> Deref for Buffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: the range lies in the owner's memory, which is zeroed or written as T, and T allows every bit pattern.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.elements) }
    }
}

impl<T: Element> DerefMut for Buffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and this buffer is the only way to its range.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.elements) }
    }
}

impl<T: Element + std::fmt::Debug> std::fmt::Debug for Buffer<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "the pieces are longer than the buffer")]
    fn lengths_whose_sum_wraps_are_refused() {
        Buffer::<f32>::new(Memory::private(16).unwrap(), 4).split(&[usize::MAX, 2]);
    }

    #[test]
    #[should_panic(expected = "longer than its memory")]
    fn a_buffer_that_wraps_is_refused() {
        Buffer::<f32>::new(Memory::private(16).unwrap(), usize::MAX / 2);
    }
}
