use std::ops::Neg;

/// What elements are computed in.
pub(super) trait Number: Copy {
    fn add(self, other: Self) -> Self;
    fn multiply(self, other: Self) -> Self;
    fn smaller(self, other: Self) -> Self;
    fn larger(self, other: Self) -> Self;
    /// Integers round towards zero.
    fn divide(self, divisor: u32) -> Self;
    /// Makes all NaNs one. Which payload and sign an operation passes on depends on the processor, on the order of its
    /// operands, and on what the compiler does with it.
    fn canonical(self) -> Self;
}

/// How two numbers become one.
pub(super) trait Operator<N>: Copy {
    fn apply(self, left: N, right: N) -> N;
}

/// Declares an operator from an expression in its operands.
macro_rules! operator {
    ($(#[$meta:meta])* $name:ident, $left:ident, $right:ident => $result:expr) => {
        $(#[$meta])*
        #[derive(Clone, Copy)]
        pub(super) struct $name;

        impl<N: Number> Operator<N> for $name {
            #[inline(always)]
            fn apply(self, $left: N, $right: N) -> N {
                $result
            }
        }
    };
}

operator!(Sum, left, right => left.add(right));
operator!(Min, left, right => left.smaller(right));
operator!(Max, left, right => left.larger(right));
operator!(Product, left, right => left.multiply(right));

/// The sum, divided: the step that completes an average over so many ranks.
#[derive(Clone, Copy)]
pub(super) struct Average(pub(super) u32);

impl<N: Number> Operator<N> for Average {
    #[inline(always)]
    fn apply(self, left: N, right: N) -> N {
        left.add(right).divide(self.0)
    }
}

macro_rules! float_number {
    ($float:ty) => {
        impl Number for $float {
            #[inline(always)]
            fn add(self, other: Self) -> Self {
                self + other
            }

            #[inline(always)]
            fn multiply(self, other: Self) -> Self {
                self * other
            }

            #[inline(always)]
            fn smaller(self, other: Self) -> Self {
                if self < other {
                    self
                } else if other < self {
                    other
                } else {
                    // Equal, or a NaN is among them. If equal they differ in the sign of a zero at most, and the bits
                    // set in either are the smaller; the bits set in either of a NaN and anything are a NaN.
                    Self::from_bits(self.to_bits() | other.to_bits())
                }
            }

            #[inline(always)]
            fn larger(self, other: Self) -> Self {
                Number::smaller(self.neg(), other.neg()).neg()
            }

            #[inline(always)]
            fn divide(self, divisor: u32) -> Self {
                self / divisor as $float
            }

            #[inline(always)]
            fn canonical(self) -> Self {
                // The sign 0, the exponent and the first bit of the fraction 1.
                if self.is_nan() {
                    Self::from_bits((Self::INFINITY.to_bits() >> 1) | Self::INFINITY.to_bits())
                } else {
                    self
                }
            }
        }
    };
}

float_number!(f32);
float_number!(f64);

macro_rules! integer_number {
    ($integer:ty, $divided_in:ty) => {
        impl Number for $integer {
            #[inline(always)]
            fn add(self, other: Self) -> Self {
                self.wrapping_add(other)
            }

            #[inline(always)]
            fn multiply(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }

            #[inline(always)]
            fn smaller(self, other: Self) -> Self {
                Ord::min(self, other)
            }

            #[inline(always)]
            fn larger(self, other: Self) -> Self {
                Ord::max(self, other)
            }

            #[inline(always)]
            fn divide(self, divisor: u32) -> Self {
                // In a type that holds every divisor; the quotient is no larger than `self`.
                (<$divided_in>::from(self) / <$divided_in>::from(divisor)) as $integer
            }

            #[inline(always)]
            fn canonical(self) -> Self {
                self
            }
        }
    };
}

integer_number!(i32, i64);
integer_number!(i64, i64);
integer_number!(u8, u32);
