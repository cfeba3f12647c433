//! Elementwise reductions over bytes: what a combining step of a [`Program`](crate::Program) does.
//!
//! ```
//! use paceline_collective::kernels::Elementwise;
//! use paceline_plan::{DataType, Reduction};
//!
//! let average = Elementwise { data_type: DataType::F32, reduction: Reduction::Average, divisor: 2 };
//! let (left, right) = ([1.0f32, 5.0], [2.0f32, -7.0]);
//! let mut into = [0.0f32; 2];
//! average.combine(bytemuck::cast_slice(&left), bytemuck::cast_slice(&right), bytemuck::cast_slice_mut(&mut into));
//! assert_eq!(into, [1.5, -1.0]);
//! ```
//!
//! # What every kernel promises
//!
//! - `combine(a, b)` and `combine(b, a)` give the same bits, and so does every instruction set: a result does not
//!   depend on which rank is on the left, nor on the machine that computes it.
//! - A NaN in either operand gives a NaN, in `min` and `max` too, and always the same one: positive, quiet, payload 0.
//! - `min` and `max` order -0 below +0.
//! - Integers wrap. Half types are widened to f32, combined, divided where an average is completed, and rounded once,
//!   to nearest even.

mod element;
mod f16;
mod level;
mod number;
mod streaming;
#[cfg(test)]
mod tests;

use std::slice;

use paceline_plan::{DataType, Reduction};

pub use level::Level;
pub use streaming::{copy_streaming, last_level_cache_bytes};

use element::{Bf16, Element};
use f16::F16;
use level::Operands;
use number::{Average, Max, Min, Product, Sum};

/// Evaluates an expression with `E` as the [`Element`] of a data type.
macro_rules! for_element {
    ($data_type:expr, $element:ident => $result:expr) => {
        for_element!(@match $data_type, $element, $result;
            F32 f32, F64 f64, F16 F16, Bf16 Bf16, I32 i32, I64 i64, U8 u8)
    };
    (@match $data_type:expr, $element:ident, $result:expr; $($variant:ident $type:ty),+) => {
        match $data_type {
            $(DataType::$variant => {
                type $element = $type;
                $result
            })+
        }
    };
}

/// One elementwise reduction: `into[i] = left[i] ⊕ right[i]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Elementwise {
    /// The type of the elements, in native byte order, at any alignment.
    pub data_type: DataType,
    /// The operation ⊕.
    pub reduction: Reduction,
    /// What an average divides the sum by: the number of ranks in the step that completes it, 1 in the steps before.
    /// Not 0. Other reductions don't look at it.
    pub divisor: u32,
}

impl Elementwise {
    /// `into[i] = left[i] ⊕ right[i]`. Time: one pass, bound by memory beyond the caches.
    ///
    /// # Panics
    ///
    /// If the three lengths differ or aren't a multiple of the element's size, or if an average's divisor is 0.
    pub fn combine(&self, left: &[u8], right: &[u8], into: &mut [u8]) {
        self.combine_at(Level::best(), left, right, into);
    }

    /// `into[i] = into[i] ⊕ other[i]`. Panics as [`combine`](Self::combine) does.
    pub fn combine_in_place(&self, into: &mut [u8], other: &[u8]) {
        self.check(into.len());
        assert_eq!(other.len(), into.len(), "operands differ in length");
        self.run(Level::best(), Operands::InPlace { into, other });
    }

    /// [`combine`](Self::combine) on pointers; `into` may be `left`, `right` or both.
    ///
    /// # Panics
    ///
    /// If `bytes` isn't a multiple of the element's size, or if an average's divisor is 0.
    ///
    /// # Safety
    ///
    /// For `bytes` bytes `left` and `right` must be readable and initialised, and `into` writable. `into` must be equal
    /// to an operand or not overlap it. Nobody else may write the operands or touch `into` until the call returns.
    pub unsafe fn combine_raw(&self, left: *const u8, right: *const u8, into: *mut u8, bytes: usize) {
        self.check(bytes);
        let level = Level::best();
        let into_left = into.cast_const() == left;
        let into_right = into.cast_const() == right;
        if into_left && into_right {
            // SAFETY: the caller vouches for `into`; no other reference to it is made.
            let into = unsafe { slice::from_raw_parts_mut(into, bytes) };
            self.combine_with_itself(level, into);
        } else if into_left || into_right {
            let other = if into_left { right } else { left };
            // SAFETY: the caller vouches for both ranges, and that `other`, which isn't `into`, doesn't overlap it.
            let (into, other) =
                unsafe { (slice::from_raw_parts_mut(into, bytes), slice::from_raw_parts(other, bytes)) };
            // Every kernel commutes, bit by bit, so it doesn't matter which operand is `into`.
            self.run(level, Operands::InPlace { into, other });
        } else {
            // SAFETY: the caller vouches for the three ranges, and that `into`, which is neither operand, overlaps
            // neither. The operands are only read, so they may overlap.
            let (left, right, into) = unsafe {
                (
                    slice::from_raw_parts(left, bytes),
                    slice::from_raw_parts(right, bytes),
                    slice::from_raw_parts_mut(into, bytes),
                )
            };
            self.run(level, Operands::Apart { left, right, into });
        }
    }

    /// Completes an average whose combining steps all had divisor 1: divides every element by this divisor.
    /// Leaves the data of other reductions alone. Panics as [`combine`](Self::combine) does.
    pub fn finish(&self, data: &mut [u8]) {
        self.check(data.len());
        if self.reduction == Reduction::Average && self.divisor != 1 {
            for_element!(self.data_type, E => E::divide(Level::best(), self.divisor, data));
        }
    }

    /// [`combine`](Self::combine) with the instructions of a given level, to compare levels with each other.
    pub fn combine_at(&self, level: Level, left: &[u8], right: &[u8], into: &mut [u8]) {
        self.check(into.len());
        assert_eq!(left.len(), into.len(), "the left operand and the result differ in length");
        assert_eq!(right.len(), into.len(), "the right operand and the result differ in length");
        self.run(level, Operands::Apart { left, right, into });
    }

    fn check(&self, bytes: usize) {
        let size = self.data_type.size();
        assert!(bytes.is_multiple_of(size), "{bytes} bytes are no whole number of {} elements", self.data_type);
        assert!(self.reduction != Reduction::Average || self.divisor != 0, "an average over 0 ranks");
    }

    /// `into ⊕ into`, by way of a copy that stays in the first-level cache.
    fn combine_with_itself(&self, level: Level, into: &mut [u8]) {
        let mut copy = [0; 4096];
        for piece in into.chunks_mut(copy.len()) {
            let other = &mut copy[..piece.len()];
            other.copy_from_slice(piece);
            self.run(level, Operands::InPlace { into: piece, other });
        }
    }

    fn run(&self, level: Level, operands: Operands<'_>) {
        for_element!(self.data_type, E => self.run_on::<E>(level, operands));
    }

    fn run_on<E: Element>(&self, level: Level, operands: Operands<'_>) {
        match self.reduction {
            Reduction::Average if self.divisor != 1 => {
                E::run(level, Average(self.divisor), operands);
            }
            Reduction::Sum | Reduction::Average => E::run(level, Sum, operands),
            Reduction::Min => E::run(level, Min, operands),
            Reduction::Max => E::run(level, Max, operands),
            Reduction::Product => E::run(level, Product, operands),
        }
    }
}
