use bytemuck::Pod;

use super::Level;
use super::level::Operands;
use super::number::{Number, Operator};

/// A type of element as it lies in memory.
pub(super) trait Element: Sized {
    /// The bytes of one element: an array, so that its alignment is 1.
    type Bytes: Pod;
    /// What it is computed in.
    type Number: Number;

    fn load(bytes: Self::Bytes) -> Self::Number;
    fn store(number: Self::Number) -> Self::Bytes;

    /// Carries out one call. Overridden where there are instructions that the compiler doesn't find by itself.
    fn run<O: Operator<Self::Number>>(level: Level, operator: O, operands: Operands<'_>) {
        level.run_loop::<Self, O>(operator, operands);
    }

    /// Divides `data` by `divisor`.
    fn divide(level: Level, divisor: u32, data: &mut [u8]) {
        level.divide_loop::<Self>(divisor, data);
    }
}

macro_rules! plain_element {
    ($number:ty) => {
        impl Element for $number {
            type Bytes = [u8; size_of::<$number>()];
            type Number = $number;

            #[inline(always)]
            fn load(bytes: Self::Bytes) -> $number {
                <$number>::from_ne_bytes(bytes)
            }

            #[inline(always)]
            fn store(number: $number) -> Self::Bytes {
                number.canonical().to_ne_bytes()
            }
        }
    };
}

plain_element!(f32);
plain_element!(f64);
plain_element!(i32);
plain_element!(i64);
plain_element!(u8);

/// The upper half of an f32.
pub(super) struct Bf16;

impl Element for Bf16 {
    type Bytes = [u8; 2];
    type Number = f32;

    #[inline(always)]
    fn load(bytes: [u8; 2]) -> f32 {
        f32::from_bits(u32::from(u16::from_ne_bytes(bytes)) << 16)
    }

    #[inline(always)]
    fn store(number: f32) -> [u8; 2] {
        let bits = number.canonical().to_bits();
        // Half a unit of the last place that stays, less a bit where that place is even: ties go to even. An overflow
        // carries into the exponent and gives infinity, as it should. The canonical NaN stays what it is.
        let rounded = bits + 0x7fff + ((bits >> 16) & 1);
        ((rounded >> 16) as u16).to_ne_bytes()
    }
}

/// IEEE 754 half precision.
pub(super) struct F16;

impl Element for F16 {
    type Bytes = [u8; 2];
    type Number = f32;

    #[inline(always)]
    fn load(bytes: [u8; 2]) -> f32 {
        widen_f16(u16::from_ne_bytes(bytes))
    }

    #[inline(always)]
    fn store(number: f32) -> [u8; 2] {
        narrow_f16(number).to_ne_bytes()
    }

    #[cfg(target_arch = "x86_64")]
    fn run<O: Operator<f32>>(level: Level, operator: O, operands: Operands<'_>) {
        super::f16c::run(level, operator, operands);
    }
}

/// Without a branch, so that a loop over it becomes vector code. No step makes a subnormal f32, so it doesn't matter
/// whether the thread flushes them.
#[inline(always)]
fn widen_f16(half: u16) -> f32 {
    /// The exponents of the two types differ in bias by 127 - 15.
    const REBIAS: u32 = (127 - 15) << 23;
    let magnitude = u32::from(half & 0x7fff) << 13;
    let sign = u32::from(half & 0x8000) << 16;
    let normal = magnitude + REBIAS;
    // Infinity and NaN: the exponent is all ones in f32 too.
    let special = normal + REBIAS;
    // 0.m · 2^-14 = 1.m · 2^-14 - 2^-14, exactly.
    let subnormal = f32::from_bits(normal + (1 << 23)) - f32::from_bits(REBIAS + (1 << 23));
    let magnitude = if magnitude >= 0x1f << 23 {
        special
    } else if magnitude < 1 << 23 {
        subnormal.to_bits()
    } else {
        normal
    };
    f32::from_bits(magnitude | sign)
}

/// Rounds to nearest even. Without a branch, as above.
#[inline(always)]
fn narrow_f16(number: f32) -> u16 {
    /// 2^16: what rounds to it or beyond becomes infinity.
    const OVERFLOW: u32 = (127 + 16) << 23;
    /// 2^-14, the smallest normal f16.
    const SMALLEST_NORMAL: u32 = (127 - 14) << 23;
    /// 1/2. In the binade above it the last place of an f32 is that of a subnormal f16, 2^-24.
    const HALF: u32 = (127 - 1) << 23;
    let bits = number.canonical().to_bits();
    let sign = (bits >> 16) as u16 & 0x8000;
    let magnitude = bits & 0x7fff_ffff;
    // The addition does the rounding; the sum's lower bits are the half.
    let subnormal = (f32::from_bits(magnitude) + f32::from_bits(HALF)).to_bits().wrapping_sub(HALF);
    let rounded = magnitude.wrapping_add(0xfff + ((magnitude >> 13) & 1));
    let normal = rounded.wrapping_sub((127 - 15) << 23) >> 13;
    let half = if magnitude > f32::INFINITY.to_bits() {
        // Canonical, so the sign is 0.
        0x7e00
    } else if rounded >= OVERFLOW {
        0x7c00
    } else if magnitude < SMALLEST_NORMAL {
        subnormal as u16
    } else {
        normal as u16
    };
    half | sign
}
