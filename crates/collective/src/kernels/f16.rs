//! IEEE 754 half precision, with the processor's own conversions where it has them: the compiler doesn't find those in a
//! loop.

use super::Level;
use super::element::Element;
use super::level::{Instructions, Operands};
use super::number::Operator;

pub(super) struct F16;

impl Element for F16 {
    type Bytes = [u8; 2];
    type Number = f32;

    #[inline(always)]
    fn load(bytes: [u8; 2]) -> f32 {
        widen(u16::from_ne_bytes(bytes))
    }

    #[inline(always)]
    fn store(number: f32) -> [u8; 2] {
        narrow(number).to_ne_bytes()
    }

    fn run<O: Operator<f32>>(level: Level, operator: O, operands: Operands<'_>) {
        match level.0 {
            Instructions::Baseline => level.run_loop::<F16, O>(operator, operands),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a level is made only where the processor has its instructions.
            Instructions::Avx2 => unsafe { x86::run_avx2(operator, operands) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Instructions::Avx512 => unsafe { x86::run_avx512(operator, operands) },
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;
    use std::mem::transmute;

    use super::super::level::combine;
    use super::super::number::Number;
    use super::{F16, Operands, Operator};

    /// Elements that are widened at a time. Blocks are widened to f32, combined and narrowed in three loops, because one
    /// loop over vectors that does all of it leaves the compiler with scalar code for some operators. The first-level
    /// cache holds a block.
    const BLOCK: usize = 256;
    /// Bytes of so many elements.
    const BLOCK_BYTES: usize = 2 * BLOCK;

    /// Defines `run` from the conversions between two types of vectors of so many elements.
    macro_rules! run_with_conversions {
        ($run:ident, $features:literal, $lanes:literal, $half:ty, $single:ty, $widen:path, $narrow:expr) => {
            #[target_feature(enable = $features)]
            pub(super) fn $run<O: Operator<f32>>(operator: O, operands: Operands<'_>) {
                run_by_blocks(
                    operator,
                    operands,
                    |from, into| {
                        let vectors = from.as_chunks::<{ 2 * $lanes }>().0;
                        for (into, &from) in into.as_chunks_mut::<$lanes>().0.iter_mut().zip(vectors) {
                            // SAFETY: vectors and arrays of one size, of which every pattern of bits is a value.
                            *into = unsafe {
                                transmute::<$single, [f32; $lanes]>($widen(transmute::<[u8; 2 * $lanes], $half>(from)))
                            };
                        }
                    },
                    |from, into| {
                        let vectors = from.as_chunks::<$lanes>().0;
                        for (into, &from) in into.as_chunks_mut::<{ 2 * $lanes }>().0.iter_mut().zip(vectors) {
                            // SAFETY: as above.
                            *into = unsafe {
                                transmute::<$half, [u8; 2 * $lanes]>($narrow(transmute::<[f32; $lanes], $single>(from)))
                            };
                        }
                    },
                );
            }
        };
    }

    run_with_conversions!(
        run_avx2,
        "avx2,f16c",
        8,
        __m128i,
        __m256,
        _mm256_cvtph_ps,
        _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>
    );
    run_with_conversions!(
        run_avx512,
        "avx512f,avx512bw,avx512dq,avx512vl",
        16,
        __m256i,
        __m512,
        _mm512_cvtph_ps,
        _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>
    );

    /// The loops themselves: inlined, with the conversions, into a function that has the instructions.
    #[inline(always)]
    fn run_by_blocks<O: Operator<f32>>(
        operator: O,
        operands: Operands<'_>,
        widen: impl Fn(&[u8; BLOCK_BYTES], &mut [f32; BLOCK]),
        narrow: impl Fn(&[f32; BLOCK], &mut [u8; BLOCK_BYTES]),
    ) {
        let (mut left_wide, mut right_wide) = ([0.0; BLOCK], [0.0; BLOCK]);
        match operands {
            Operands::Apart { left, right, into } => {
                let (left, left_rest) = left.as_chunks();
                let (right, right_rest) = right.as_chunks();
                let (into, into_rest) = into.as_chunks_mut();
                for (into, (left, right)) in into.iter_mut().zip(left.iter().zip(right)) {
                    widen(left, &mut left_wide);
                    widen(right, &mut right_wide);
                    combine_block(operator, &mut left_wide, &right_wide);
                    narrow(&left_wide, into);
                }
                combine::<F16, O>(operator, Operands::Apart { left: left_rest, right: right_rest, into: into_rest });
            }
            Operands::InPlace { into, other } => {
                let (into, into_rest) = into.as_chunks_mut();
                let (other, other_rest) = other.as_chunks();
                for (into, other) in into.iter_mut().zip(other) {
                    widen(into, &mut left_wide);
                    widen(other, &mut right_wide);
                    combine_block(operator, &mut left_wide, &right_wide);
                    narrow(&left_wide, into);
                }
                combine::<F16, O>(operator, Operands::InPlace { into: into_rest, other: other_rest });
            }
        }
    }

    #[inline(always)]
    fn combine_block<O: Operator<f32>>(operator: O, into: &mut [f32; BLOCK], other: &[f32; BLOCK]) {
        for (into, &other) in into.iter_mut().zip(other) {
            *into = operator.apply(*into, other).canonical();
        }
    }
}

/// Without a branch, so that a loop over it becomes vector code. No result is a subnormal f32, so it doesn't
/// matter whether the thread flushes them.
#[inline(always)]
fn widen(half: u16) -> f32 {
    /// The exponents of the two types differ in bias by 127 - 15.
    const REBIAS: u32 = (127 - 15) << 23;
    let magnitude = u32::from(half & 0x7fff) << 13;
    let sign = u32::from(half & 0x8000) << 16;
    let normal = magnitude + REBIAS;
    // 0.m · 2^-14 = 1.m · 2^-14 - 2^-14, exactly.
    let subnormal = f32::from_bits(normal + (1 << 23)) - f32::from_bits(REBIAS + (1 << 23));
    let finite = if magnitude < 1 << 23 { subnormal.to_bits() } else { normal };
    // Infinity and NaN: the exponent is all ones in f32 too.
    let wide = if magnitude >= 0x1f << 23 { normal + REBIAS } else { finite };
    f32::from_bits(wide | sign)
}

/// Rounds to nearest even. Without a branch, as above.
#[inline(always)]
fn narrow(number: f32) -> u16 {
    /// 2^16: what rounds to it or beyond becomes infinity.
    const OVERFLOW: u32 = (127 + 16) << 23;
    /// 2^-14, the smallest normal f16.
    const SMALLEST_NORMAL: u32 = (127 - 14) << 23;
    /// 1/2. In the binade above it the last place of an f32 is that of a subnormal f16, 2^-24.
    const HALF: u32 = (127 - 1) << 23;
    let bits = number.to_bits();
    let magnitude = bits & 0x7fff_ffff;
    let sign = (bits >> 16) & 0x8000;
    // The addition rounds; the lower bits of the sum are the f16.
    let subnormal = (f32::from_bits(magnitude) + f32::from_bits(HALF)).to_bits().wrapping_sub(HALF);
    // Half a unit of the last place that stays, less a bit where that place is even.
    let rounded = magnitude.wrapping_add(0xfff + ((magnitude >> 13) & 1));
    let normal = rounded.wrapping_sub((127 - 15) << 23) >> 13;
    let finite = if magnitude < SMALLEST_NORMAL { subnormal } else { normal };
    let half = if rounded >= OVERFLOW { 0x7c00 } else { finite };
    let half = if magnitude > f32::INFINITY.to_bits() { 0x7e00 } else { half | sign };
    half as u16
}
