//! Half precision with the processor's own conversions, which the compiler doesn't find in a loop.

use std::arch::x86_64::*;
use std::mem::transmute;

use super::Level;
use super::element::F16;
use super::level::{Instructions, Operands, combine};
use super::number::{Number, Operator};

pub(super) fn run<O: Operator<f32>>(level: Level, operator: O, operands: Operands<'_>) {
    match level.0 {
        Instructions::Baseline => level.run_loop::<F16, O>(operator, operands),
        // SAFETY: a level is made only where the processor has its instructions.
        Instructions::Avx2 => unsafe { run_avx2(operator, operands) },
        // SAFETY: as above.
        Instructions::Avx512 => unsafe { run_avx512(operator, operands) },
    }
}

/// Defines the loop over vectors of so many elements, from the conversions of one vector.
macro_rules! vector_loop {
    ($run:ident, $combine:ident, $features:literal, $lanes:literal, $widen:expr, $narrow:expr) => {
        #[target_feature(enable = $features)]
        fn $run<O: Operator<f32>>(operator: O, operands: Operands<'_>) {
            match operands {
                Operands::Apart { left, right, into } => {
                    let (left, left_rest) = left.as_chunks::<{ 2 * $lanes }>();
                    let (right, right_rest) = right.as_chunks::<{ 2 * $lanes }>();
                    let (into, into_rest) = into.as_chunks_mut::<{ 2 * $lanes }>();
                    for (into, (left, right)) in into.iter_mut().zip(left.iter().zip(right)) {
                        *into = $combine(operator, *left, *right);
                    }
                    let rest = Operands::Apart { left: left_rest, right: right_rest, into: into_rest };
                    combine::<F16, O>(operator, rest);
                }
                Operands::InPlace { into, other } => {
                    let (into, into_rest) = into.as_chunks_mut::<{ 2 * $lanes }>();
                    let (other, other_rest) = other.as_chunks::<{ 2 * $lanes }>();
                    for (into, other) in into.iter_mut().zip(other) {
                        *into = $combine(operator, *into, *other);
                    }
                    combine::<F16, O>(operator, Operands::InPlace { into: into_rest, other: other_rest });
                }
            }
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn $combine<O: Operator<f32>>(
            operator: O,
            left: [u8; 2 * $lanes],
            right: [u8; 2 * $lanes],
        ) -> [u8; 2 * $lanes] {
            // SAFETY: vectors and arrays of one size, of which every pattern of bits is a value.
            let (left, right): ([f32; $lanes], [f32; $lanes]) =
                unsafe { (transmute($widen(transmute(left))), transmute($widen(transmute(right)))) };
            let mut result = [0.0; $lanes];
            for lane in 0..$lanes {
                result[lane] = operator.apply(left[lane], right[lane]).canonical();
            }
            // SAFETY: as above.
            unsafe { transmute($narrow(transmute(result))) }
        }
    };
}

vector_loop!(run_avx2, combine_avx2, "avx2,f16c", 8, _mm256_cvtph_ps, _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>);
vector_loop!(
    run_avx512,
    combine_avx512,
    "avx512f,avx512bw,avx512dq,avx512vl,f16c",
    16,
    _mm512_cvtph_ps,
    _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>
);
