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
