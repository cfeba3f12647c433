//! Data whose every element can be checked: what each rank contributes, and what must come out.

use half::{bf16, f16};
use paceline_comm::Element;
use paceline_plan::{DataType, Rank, Reduction};

/// The pattern repeats after so many elements. A prime: a block that lands in a wrong place, at a distance that is a
/// power of two or a multiple of a tile, does not look right.
const PERIOD: usize = 4093;

/// An element that can hold small whole numbers.
pub trait Value: Element + PartialEq {
    /// The number as an element.
    fn whole(number: u32) -> Self;
}

macro_rules! values {
    ($($type:ty: $number:ident => $value:expr;)+) => { $(
        impl Value for $type {
            fn whole($number: u32) -> Self { $value }
        }
    )+ };
}

values! {
    f32: number => number as f32;
    f64: number => number as f64;
    f16: number => f16::from_f32(number as f32);
    bf16: number => bf16::from_f32(number as f32);
    i32: number => number as i32;
    i64: number => number as i64;
    u8: number => number as u8;
}

/// What every rank contributes and what the reduction must give, as one period each.
///
/// The numbers are small enough for every partial result to be exact in the type, so the order of the additions does
/// not matter and the comparison is exact.
pub struct Pattern<T> {
    contributions: Vec<Vec<T>>,
    reduced: Vec<T>,
}

/// Part of an output: it must hold the elements of `period` from `start`, counted cyclically.
pub struct Expected<'a, T> {
    /// One period.
    pub period: &'a [T],
    /// The index of the first element in the rank's (or the reduced) data.
    pub start: usize,
    /// How many elements.
    pub elements: usize,
}

impl<T: Value> Pattern<T> {
    /// The pattern for a reduction over so many ranks.
    pub fn new(reduction: Reduction, ranks: usize) -> Pattern<T> {
        let numbers = Numbers::new(reduction, T::DATA_TYPE, ranks);
        let period = |number: &dyn Fn(usize) -> u32| (0..PERIOD).map(|place| T::whole(number(place))).collect();
        Pattern {
            contributions: (0..ranks).map(|rank| period(&|place| numbers.contribution(rank, place))).collect(),
            reduced: period(&|place| numbers.reduced(place)),
        }
    }

    /// What a rank contributes.
    pub fn contribution(&self, rank: Rank) -> &[T] {
        &self.contributions[rank]
    }

    /// What the reduction over all ranks gives.
    pub fn reduced(&self) -> &[T] {
        &self.reduced
    }
}

/// Fills data with a period, again and again.
pub fn fill<T: Value>(data: &mut [T], period: &[T]) {
    for chunk in data.chunks_mut(period.len()) {
        chunk.copy_from_slice(&period[..chunk.len()]);
    }
}

/// Makes every element wrong (a NaN, in the types that have one), so that nothing passes for a result that is none.
pub fn poison<T: Value>(data: &mut [T]) {
    bytemuck::cast_slice_mut::<T, u8>(data).fill(0xff);
}

/// How many elements are not what they must be.
///
/// # Panics
/// If the expectations do not cover the data exactly.
pub fn count_wrong<T: Value>(mut data: &[T], expected: &[Expected<'_, T>]) -> u64 {
    let mut wrong = 0;
    for part in expected {
        let mut start = part.start % part.period.len();
        let mut left = part.elements;
        while left > 0 {
            let piece = &part.period[start..];
            let (here, rest) = data.split_at(left.min(piece.len()));
            wrong += here.iter().zip(piece).filter(|(is, must)| is != must).count() as u64;
            (data, left, start) = (rest, left - here.len(), 0);
        }
    }
    assert!(data.is_empty(), "every element is checked");
    wrong
}

/// The pattern in whole numbers.
struct Numbers {
    reduction: Reduction,
    ranks: usize,
    /// Contributions are below this.
    modulus: u32,
    /// Only one rank contributes to an element; the others give the neutral value.
    alone: bool,
}

impl Numbers {
    fn new(reduction: Reduction, data_type: DataType, ranks: usize) -> Numbers {
        let exact = exact_up_to(data_type);
        let modulus = match reduction {
            Reduction::Sum => exact / ranks,
            // Contributions are multiples of the number of ranks, so that the division leaves no remainder.
            Reduction::Average => exact / (ranks * ranks),
            Reduction::Min | Reduction::Max | Reduction::Product => exact,
        };
        let alone = reduction == Reduction::Product || modulus < 2;
        Numbers { reduction, ranks, modulus: modulus.clamp(2, 1000) as u32, alone }
    }

    fn contribution(&self, rank: Rank, place: usize) -> u32 {
        let mixed = mix((place * self.ranks + rank) as u32);
        let scale = if self.reduction == Reduction::Average { self.ranks as u32 } else { 1 };
        if !self.alone {
            return mixed % self.modulus * scale;
        }
        let neutral = u32::from(self.reduction == Reduction::Product);
        if place % self.ranks == rank { (1 + mixed % 3) * scale } else { neutral }
    }

    fn reduced(&self, place: usize) -> u32 {
        let all = (0..self.ranks).map(|rank| self.contribution(rank, place));
        match self.reduction {
            Reduction::Sum => all.sum(),
            Reduction::Average => all.sum::<u32>() / self.ranks as u32,
            Reduction::Min => all.min().unwrap_or_default(),
            Reduction::Max => all.max().unwrap_or_default(),
            Reduction::Product => all.product(),
        }
    }
}

/// Whole numbers up to this are exact in the type, and so is arithmetic on them.
fn exact_up_to(data_type: DataType) -> usize {
    match data_type {
        DataType::U8 => 0xff,
        DataType::Bf16 => 1 << 8,
        DataType::F16 => 1 << 11,
        DataType::F32 | DataType::F64 | DataType::I32 | DataType::I64 => 1 << 24,
    }
}

/// Spreads consecutive numbers (the finaliser of MurmurHash3, A. Appleby).
fn mix(mut number: u32) -> u32 {
    number = (number ^ (number >> 16)).wrapping_mul(0x85eb_ca6b);
    number = (number ^ (number >> 13)).wrapping_mul(0xc2b2_ae35);
    number ^ (number >> 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stay_exact_and_differ_between_ranks() {
        for &reduction in Reduction::ALL {
            for &data_type in DataType::ALL {
                for ranks in [1, 2, 3, 4, 8, 16, 33] {
                    let numbers = Numbers::new(reduction, data_type, ranks);
                    for place in 0..PERIOD {
                        let all = (0..ranks).map(|rank| numbers.contribution(rank, place));
                        let largest: u32 = match reduction {
                            Reduction::Sum | Reduction::Average => all.sum(),
                            Reduction::Min | Reduction::Max => all.max().unwrap_or_default(),
                            Reduction::Product => all.product(),
                        };
                        assert!(largest as usize <= exact_up_to(data_type), "{reduction} {data_type} {ranks}");
                    }
                    let of = |rank| (0..PERIOD).map(|place| numbers.contribution(rank, place)).collect::<Vec<_>>();
                    assert!(ranks == 1 || of(0) != of(1), "{reduction} {data_type} {ranks}");
                }
            }
        }
    }

    #[test]
    fn one_wrong_element_or_a_shifted_block_is_found() {
        let pattern = Pattern::<f32>::new(Reduction::Sum, 4);
        let mut data = vec![0.0; 3 * PERIOD + 5];
        fill(&mut data, pattern.reduced());
        let all = |start| [Expected { period: pattern.reduced(), start, elements: data.len() }];
        assert_eq!(count_wrong(&data, &all(0)), 0);
        assert_eq!(count_wrong(&data, &all(PERIOD)), 0);
        assert!(count_wrong(&data, &all(1024)) > data.len() as u64 / 2, "a block from elsewhere");
        let expected = [Expected { period: pattern.reduced(), start: 0, elements: data.len() }];
        let mut spoilt = data.clone();
        spoilt[PERIOD + 17] += 1.0;
        assert_eq!(count_wrong(&spoilt, &expected), 1);
        poison(&mut spoilt);
        assert_eq!(count_wrong(&spoilt, &expected), data.len() as u64);
    }
}
