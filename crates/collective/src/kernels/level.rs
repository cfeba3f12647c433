use std::fmt;
use std::sync::LazyLock;

use bytemuck::cast_slice;

use super::element::Element;
use super::number::{Number, Operator};

/// A set of instructions that kernels are compiled for and this processor has: that is why only this type makes one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level(pub(super) Instructions);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Instructions {
    /// Those of the target that the program is compiled for (SSE2 on x86-64, Neon on Arm).
    Baseline,
    /// AVX2 and F16C.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// AVX-512 F, BW, DQ and VL.
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

/// The memory of one call. The lengths are equal, and whole numbers of elements.
pub(super) enum Operands<'a> {
    /// `into = left ⊕ right`.
    Apart { left: &'a [u8], right: &'a [u8], into: &'a mut [u8] },
    /// `into = into ⊕ other`.
    InPlace { into: &'a mut [u8], other: &'a [u8] },
}

impl Level {
    /// The levels that this processor has, from the slowest to the fastest.
    pub fn available() -> &'static [Level] {
        static AVAILABLE: LazyLock<Vec<Level>> = LazyLock::new(detect);
        &AVAILABLE
    }

    /// The fastest.
    pub fn best() -> Level {
        Self::available().last().copied().unwrap_or(Level(Instructions::Baseline))
    }

    pub(super) fn run_loop<E: Element, O: Operator<E::Number>>(self, operator: O, operands: Operands<'_>) {
        match self.0 {
            Instructions::Baseline => combine::<E, O>(operator, operands),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a level is made only where the processor has its instructions.
            Instructions::Avx2 => unsafe { x86::combine_avx2::<E, O>(operator, operands) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Instructions::Avx512 => unsafe { x86::combine_avx512::<E, O>(operator, operands) },
        }
    }

    pub(super) fn divide_loop<E: Element>(self, divisor: u32, data: &mut [u8]) {
        match self.0 {
            Instructions::Baseline => divide::<E>(divisor, data),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a level is made only where the processor has its instructions.
            Instructions::Avx2 => unsafe { x86::divide_avx2::<E>(divisor, data) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Instructions::Avx512 => unsafe { x86::divide_avx512::<E>(divisor, data) },
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self.0 {
            Instructions::Baseline => "baseline",
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx512 => "avx512",
        })
    }
}

fn detect() -> Vec<Level> {
    #[allow(unused_mut, reason = "other processors have the baseline only")]
    let mut levels = vec![Level(Instructions::Baseline)];
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c") {
        levels.push(Level(Instructions::Avx2));
        if is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
        {
            levels.push(Level(Instructions::Avx512));
        }
    }
    levels
}

/// The same loops, compiled for more instructions: inlined into a function that has them, they become its vector code.
#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Element, Operands, Operator, combine, divide};

    #[target_feature(enable = "avx2,f16c")]
    pub(super) fn combine_avx2<E: Element, O: Operator<E::Number>>(operator: O, operands: Operands<'_>) {
        combine::<E, O>(operator, operands);
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    pub(super) fn combine_avx512<E: Element, O: Operator<E::Number>>(operator: O, operands: Operands<'_>) {
        combine::<E, O>(operator, operands);
    }

    #[target_feature(enable = "avx2,f16c")]
    pub(super) fn divide_avx2<E: Element>(divisor: u32, data: &mut [u8]) {
        divide::<E>(divisor, data);
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    pub(super) fn divide_avx512<E: Element>(divisor: u32, data: &mut [u8]) {
        divide::<E>(divisor, data);
    }
}

/// Slices tell the compiler that `into` overlaps nothing, so the loops need no check before they go wide.
#[inline(always)]
pub(super) fn combine<E: Element, O: Operator<E::Number>>(operator: O, operands: Operands<'_>) {
    match operands {
        Operands::Apart { left, right, into } => {
            let operands = cast_slice::<u8, E::Bytes>(left).iter().zip(cast_slice::<u8, E::Bytes>(right));
            for (into, (&left, &right)) in bytemuck::cast_slice_mut::<u8, E::Bytes>(into).iter_mut().zip(operands) {
                *into = E::store(operator.apply(E::load(left), E::load(right)));
            }
        }
        Operands::InPlace { into, other } => {
            let other = cast_slice::<u8, E::Bytes>(other);
            for (into, &other) in bytemuck::cast_slice_mut::<u8, E::Bytes>(into).iter_mut().zip(other) {
                *into = E::store(operator.apply(E::load(*into), E::load(other)));
            }
        }
    }
}

#[inline(always)]
fn divide<E: Element>(divisor: u32, data: &mut [u8]) {
    for element in bytemuck::cast_slice_mut::<u8, E::Bytes>(data) {
        *element = E::store(E::load(*element).divide(divisor));
    }
}
