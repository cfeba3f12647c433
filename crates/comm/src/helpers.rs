//! Threads that share large combinations with the thread that drives: started once, and asleep in between.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use paceline_collective::kernels::Elementwise;

use crate::memory::Span;

/// A part of a combination: three ranges of as many bytes.
#[derive(Clone, Copy)]
pub(crate) struct Piece {
    pub elementwise: Elementwise,
    pub left: Span,
    pub right: Span,
    pub into: Span,
}

impl Piece {
    /// # Safety
    /// As [`Elementwise::combine_raw`], of the three spans.
    unsafe fn combine(&self) {
        let Piece { elementwise, left, right, into } = self;
        // SAFETY: the caller's promise.
        unsafe { elementwise.combine_raw(left.start, right.start, into.start, into.bytes) };
    }
}

/// The threads of one rank. Dropping it ends them.
#[derive(Default)]
pub(crate) struct Helpers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// There are pieces, or it is over.
    wanted: Condvar,
    /// The last piece is done.
    done: Condvar,
}

#[derive(Default)]
struct State {
    pieces: VecDeque<Piece>,
    /// Pieces that are waiting or under way.
    open: usize,
    /// One of them panicked: what it was to write is not there.
    panicked: bool,
    over: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> Option<Piece> {
        self.lock().pieces.pop_front()
    }

    /// Does a piece that was taken from the list.
    ///
    /// # Safety
    /// As [`Piece::combine`].
    unsafe fn carry_out(&self, piece: &Piece) {
        /// Also a piece that panics is no longer open, or all would wait for it for ever; and it leaves its mark.
        struct Done<'a>(&'a Shared);
        impl Drop for Done<'_> {
            fn drop(&mut self) {
                let mut state = self.0.lock();
                state.open -= 1;
                state.panicked |= std::thread::panicking();
                if state.open == 0 {
                    self.0.done.notify_one();
                }
            }
        }
        let _done = Done(self);
        // SAFETY: the caller's promise.
        unsafe { piece.combine() };
    }

    fn help(&self) {
        let mut state = self.lock();
        while !state.over {
            let Some(piece) = state.pieces.pop_front() else {
                state = self.wanted.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            drop(state);
            // SAFETY: `Helpers::combine` returns only when no piece is open, and its caller vouches for them until then.
            unsafe { self.carry_out(&piece) };
            state = self.lock();
        }
    }
}

/// Dropping it waits until no piece is open, also after a panic: others may still be at work in the caller's memory.
struct AllDone<'a>(&'a Shared);

impl Drop for AllDone<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        let left = std::mem::take(&mut state.pieces);
        state.open -= left.len();
        while state.open > 0 {
            state = self.0.done.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Helpers {
    /// Carries out all pieces, with as many threads as there are pieces, this one included; or with fewer, if no more are
    /// to be had. Returns when all are done.
    ///
    /// # Panics
    /// If a piece panicked, on whatever thread, when no piece is open any more.
    ///
    /// # Safety
    /// As [`Elementwise::combine_raw`], of each piece; and none may write what another one touches.
    pub(crate) unsafe fn combine(&mut self, pieces: impl ExactSizeIterator<Item = Piece>) {
        self.start(pieces.len().saturating_sub(1));
        let mut state = self.shared.lock();
        state.pieces.extend(pieces);
        state.open = state.pieces.len();
        state.panicked = false;
        drop(state);
        self.shared.wanted.notify_all();
        let all = AllDone(&self.shared);
        while let Some(piece) = self.shared.take() {
            // SAFETY: the caller's promise.
            unsafe { self.shared.carry_out(&piece) };
        }
        drop(all);
        assert!(!self.shared.lock().panicked, "a thread that combines panicked; what it printed says where");
    }

    /// Starts threads until there are so many, or no more are to be had.
    fn start(&mut self, count: usize) {
        while self.threads.len() < count {
            let shared = self.shared.clone();
            let thread = std::thread::Builder::new().name("paceline-reduce".into()).spawn(move || shared.help());
            let Ok(thread) = thread else { return };
            self.threads.push(thread);
        }
    }
}

impl Drop for Helpers {
    fn drop(&mut self) {
        self.shared.lock().over = true;
        self.shared.wanted.notify_all();
        for thread in self.threads.drain(..) {
            // A panic was reported by the thread itself.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use paceline_plan::{DataType, Reduction};

    use super::*;

    #[test]
    fn a_panic_of_a_helper_is_one_of_the_caller() {
        const BYTES: usize = 16 << 20;
        let (operand, mut into) = (vec![1u8; BYTES], vec![0u8; BYTES]);
        // Long enough for the caller that the helper takes the second piece, as a rule: an average of nothing.
        let sum = Elementwise { data_type: DataType::U8, reduction: Reduction::Sum, divisor: 1 };
        let wrong = Elementwise { reduction: Reduction::Average, divisor: 0, ..sum };
        let (source, target) = (Span::of(&operand), Span::of_mut(&mut into));
        let piece = |elementwise, bytes| {
            let part = |of: Span| Span { bytes, ..of };
            Piece { elementwise, left: part(source), right: part(source), into: part(target) }
        };
        for _ in 0..3 {
            let mut helpers = Helpers::default();
            let pieces = [piece(sum, BYTES), piece(wrong, 0)];
            // SAFETY: three ranges of as many bytes, apart from each other; the second piece touches none.
            let combine = || unsafe { helpers.combine(pieces.into_iter()) };
            assert!(catch_unwind(AssertUnwindSafe(combine)).is_err());
            // It is over with that.
            // SAFETY: as above.
            unsafe { helpers.combine([piece(sum, BYTES), piece(sum, 0)].into_iter()) };
        }
        assert!(into.iter().all(|&sum| sum == 2));
    }
}
