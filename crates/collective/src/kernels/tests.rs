//! Every kernel at every level against a scalar reference that shares no code with it.

use half::{bf16, f16};
use paceline_plan::{DataType, Reduction};

use super::element::{Bf16, Element};
use super::f16::F16;
use super::number::Number;
use super::{Elementwise, Level};

const SEED: u64 = 0x5eed_0f7e;
const LENGTHS: [usize; 14] = [0, 1, 2, 3, 7, 8, 15, 16, 17, 63, 64, 65, 256, 1000];
/// Where the left operand, the right one and the result begin.
const OFFSETS: [[usize; 3]; 4] = [[0, 0, 0], [1, 1, 1], [3, 0, 5], [0, 7, 2]];

fn every_kernel() -> impl Iterator<Item = Elementwise> {
    DataType::ALL.iter().flat_map(|&data_type| {
        Reduction::ALL.iter().flat_map(move |&reduction| {
            [1, 3, 300]
                .into_iter()
                .filter(move |&divisor| divisor == 1 || reduction == Reduction::Average)
                .map(move |divisor| Elementwise { data_type, reduction, divisor })
        })
    })
}

#[test]
fn every_kernel_equals_the_reference_at_every_level_length_and_offset() {
    let mut random = SplitMix(SEED);
    for kernel in every_kernel() {
        for length in LENGTHS {
            for [left_offset, right_offset, into_offset] in OFFSETS {
                let bytes = length * kernel.data_type.size();
                let left = random.elements(kernel.data_type, left_offset, bytes);
                let right = random.elements(kernel.data_type, right_offset, bytes);
                let (left, right) = (&left[left_offset..], &right[right_offset..]);
                let expected = reference(&kernel, left, right);
                for &level in Level::available() {
                    let mut into = vec![0xaa; into_offset + bytes + 1];
                    kernel.combine_at(level, left, right, &mut into[into_offset..into_offset + bytes]);
                    let context = format!("{kernel:?} {level} length {length} seed {SEED:#x}");
                    assert_eq!(into[into_offset..into_offset + bytes], expected, "{context}");
                    assert!(into[..into_offset].iter().all(|&byte| byte == 0xaa), "{context}: wrote before");
                    assert_eq!(into[into_offset + bytes], 0xaa, "{context}: wrote behind");
                    kernel.combine_at(level, right, left, &mut into[into_offset..into_offset + bytes]);
                    assert_eq!(into[into_offset..into_offset + bytes], expected, "{context}: swapped");
                }
            }
        }
    }
}

#[test]
fn the_result_may_lie_in_either_operand() {
    let mut random = SplitMix(SEED);
    for kernel in every_kernel() {
        let bytes = 1003 * kernel.data_type.size();
        let left = random.elements(kernel.data_type, 1, bytes);
        let right = random.elements(kernel.data_type, 1, bytes);
        let expected = reference(&kernel, &left[1..], &right[1..]);

        let (mut in_left, mut in_right, mut itself) = (left.clone(), right.clone(), left.clone());
        kernel.combine_in_place(&mut in_left[1..], &right[1..]);
        assert_eq!(in_left[1..], expected, "{kernel:?} into left, seed {SEED:#x}");

        let mut in_left = left.clone();
        let into = in_left[1..].as_mut_ptr();
        // SAFETY: three ranges of `bytes` bytes, of which `into` equals the left.
        unsafe { kernel.combine_raw(into, right[1..].as_ptr(), into, bytes) };
        assert_eq!(in_left[1..], expected, "{kernel:?} into left, seed {SEED:#x}");

        let into = in_right[1..].as_mut_ptr();
        // SAFETY: as above, with the right.
        unsafe { kernel.combine_raw(left[1..].as_ptr(), into, into, bytes) };
        assert_eq!(in_right[1..], expected, "{kernel:?} into right, seed {SEED:#x}");

        let mut apart = vec![0; bytes];
        // SAFETY: three ranges of `bytes` bytes that don't overlap.
        unsafe { kernel.combine_raw(left[1..].as_ptr(), right[1..].as_ptr(), apart.as_mut_ptr(), bytes) };
        assert_eq!(apart, expected, "{kernel:?} apart, seed {SEED:#x}");

        let into = itself[1..].as_mut_ptr();
        // SAFETY: one range of `bytes` bytes, three times.
        unsafe { kernel.combine_raw(into, into, into, bytes) };
        assert_eq!(itself[1..], reference(&kernel, &left[1..], &left[1..]), "{kernel:?} itself, seed {SEED:#x}");
    }
}

#[test]
fn finish_divides_averages_and_nothing_else() {
    let data: Vec<u8> = [7i32, -7, 0, i32::MIN].iter().flat_map(|value| value.to_ne_bytes()).collect();
    let mut average = data.clone();
    Elementwise { data_type: DataType::I32, reduction: Reduction::Average, divisor: 2 }.finish(&mut average);
    let expected: Vec<u8> = [3i32, -3, 0, i32::MIN / 2].iter().flat_map(|value| value.to_ne_bytes()).collect();
    assert_eq!(average, expected);

    let mut sum = data.clone();
    Elementwise { data_type: DataType::I32, reduction: Reduction::Sum, divisor: 2 }.finish(&mut sum);
    assert_eq!(sum, data);

    // A zero as the other operand makes a combining average a division.
    let mut random = SplitMix(SEED);
    for &data_type in DataType::ALL {
        let average = Elementwise { data_type, reduction: Reduction::Average, divisor: 3 };
        let data = random.elements(data_type, 0, 1003 * data_type.size());
        // Adding -0 changes nothing, not even the sign of a zero.
        let zero: Vec<u8> = match data_type {
            DataType::F32 => (-0.0f32).to_ne_bytes().repeat(1003),
            DataType::F64 => (-0.0f64).to_ne_bytes().repeat(1003),
            DataType::F16 | DataType::Bf16 => 0x8000u16.to_ne_bytes().repeat(1003),
            _ => vec![0; data.len()],
        };
        let mut finished = data.clone();
        average.finish(&mut finished);
        assert_eq!(finished, reference(&average, &data, &zero), "{data_type}, seed {SEED:#x}");
    }
}

#[test]
#[should_panic(expected = "7 bytes are no whole number of f32 elements")]
fn a_torn_element_is_refused() {
    Elementwise { data_type: DataType::F32, reduction: Reduction::Sum, divisor: 1 }
        .combine_in_place(&mut [0; 7], &[0; 7]);
}

#[test]
#[should_panic(expected = "an average over 0 ranks")]
fn an_average_over_nobody_is_refused() {
    Elementwise { data_type: DataType::U8, reduction: Reduction::Average, divisor: 0 }.finish(&mut [0; 7]);
}

#[test]
fn half_types_convert_exactly() {
    for bits in 0..=u16::MAX {
        let (ours, theirs) = (F16::load(bits.to_ne_bytes()), f16::from_bits(bits).to_f32());
        assert!(ours.to_bits() == theirs.to_bits() || ours.is_nan() && theirs.is_nan(), "f16 {bits:#06x}");
        let (ours, theirs) = (Bf16::load(bits.to_ne_bytes()), bf16::from_bits(bits).to_f32());
        assert!(ours.to_bits() == theirs.to_bits() || ours.is_nan() && theirs.is_nan(), "bf16 {bits:#06x}");
    }
    // Around every f16 and every tie between two of them, and anywhere.
    let ties = (0..0x7c00u32).flat_map(|half| {
        let here = f16::from_bits(half as u16).to_f32().to_bits();
        let next = f16::from_bits(half as u16 + 1).to_f32().min(65536.0).to_bits();
        let tie = here + (next - here) / 2;
        [here, tie - 1, tie, tie + 1].into_iter().flat_map(|bits| [bits, bits | 1 << 31])
    });
    let mut random = SplitMix(SEED);
    let anywhere = (0..200_000).map(|_| random.next() as u32);
    for number in ties.chain(anywhere).map(f32::from_bits) {
        let expected = if number.is_nan() { 0x7e00 } else { f16::from_f32(number).to_bits() };
        assert_eq!(u16::from_ne_bytes(F16::store(number)), expected, "f16 of {number:e}, seed {SEED:#x}");
        let expected = if number.is_nan() { 0x7fc0 } else { bf16::from_f32(number).to_bits() };
        assert_eq!(u16::from_ne_bytes(Bf16::store(number)), expected, "bf16 of {number:e}, seed {SEED:#x}");
    }
}

#[test]
fn zeros_and_nans_of_min_and_max_do_not_depend_on_the_order() {
    let negative = f32::from_bits(0xffc0_0001);
    for (left, right) in [(0.0f32, -0.0f32), (-0.0, 0.0)] {
        assert_eq!(Number::smaller(left, right).to_bits(), (-0.0f32).to_bits());
        assert_eq!(Number::larger(left, right).to_bits(), 0.0f32.to_bits());
    }
    for (left, right) in [(1.0, f32::NAN), (negative, f32::NEG_INFINITY), (f32::NAN, negative)] {
        for (left, right) in [(left, right), (right, left)] {
            assert_eq!(Number::smaller(left, right).canonical().to_bits(), 0x7fc0_0000);
            assert_eq!(Number::larger(left, right).canonical().to_bits(), 0x7fc0_0000);
        }
    }
}

/// What the documentation promises, element by element, in the plainest terms.
fn reference(kernel: &Elementwise, left: &[u8], right: &[u8]) -> Vec<u8> {
    let divisor = if kernel.reduction == Reduction::Average { kernel.divisor } else { 1 };

    macro_rules! float {
        ($float:ty, $nan:expr, $load:expr, $store:expr) => {{
            let (load, store) = ($load, $store);
            each(left, right, |left, right| {
                let (left, right): ($float, $float) = (load(left), load(right));
                if left.is_nan() || right.is_nan() {
                    return $nan;
                }
                let result = match kernel.reduction {
                    Reduction::Sum => left + right,
                    Reduction::Average => (left + right) / divisor as $float,
                    Reduction::Min => {
                        if left.total_cmp(&right).is_lt() {
                            left
                        } else {
                            right
                        }
                    }
                    Reduction::Max => {
                        if left.total_cmp(&right).is_gt() {
                            left
                        } else {
                            right
                        }
                    }
                    Reduction::Product => left * right,
                };
                if result.is_nan() { $nan } else { store(result) }
            })
        }};
    }
    macro_rules! integer {
        ($integer:ty) => {
            each(left, right, |left, right| {
                let (left, right) = (<$integer>::from_ne_bytes(left), <$integer>::from_ne_bytes(right));
                match kernel.reduction {
                    Reduction::Sum => left.wrapping_add(right),
                    Reduction::Average => (i128::from(left.wrapping_add(right)) / i128::from(divisor)) as $integer,
                    Reduction::Min => left.min(right),
                    Reduction::Max => left.max(right),
                    Reduction::Product => left.wrapping_mul(right),
                }
                .to_ne_bytes()
            })
        };
    }
    match kernel.data_type {
        DataType::F32 => float!(f32, 0x7fc0_0000u32.to_ne_bytes(), f32::from_ne_bytes, f32::to_ne_bytes),
        DataType::F64 => float!(f64, (0x7ff8u64 << 48).to_ne_bytes(), f64::from_ne_bytes, f64::to_ne_bytes),
        DataType::F16 => {
            float!(f32, 0x7e00u16.to_ne_bytes(), |bytes| f16::from_ne_bytes(bytes).to_f32(), |number| f16::from_f32(
                number
            )
            .to_ne_bytes())
        }
        DataType::Bf16 => {
            float!(f32, 0x7fc0u16.to_ne_bytes(), |bytes| bf16::from_ne_bytes(bytes).to_f32(), |number| bf16::from_f32(
                number
            )
            .to_ne_bytes())
        }
        DataType::I32 => integer!(i32),
        DataType::I64 => integer!(i64),
        DataType::U8 => integer!(u8),
    }
}

fn each<const N: usize>(left: &[u8], right: &[u8], combine: impl Fn([u8; N], [u8; N]) -> [u8; N]) -> Vec<u8> {
    let pairs = left.as_chunks::<N>().0.iter().zip(right.as_chunks::<N>().0);
    pairs.flat_map(|(&left, &right)| combine(left, right)).collect()
}

/// Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators" (2014).
struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// `offset` bytes, then elements: half of them any pattern of bits, a quarter special values, a quarter near 1.
    fn elements(&mut self, data_type: DataType, offset: usize, bytes: usize) -> Vec<u8> {
        let mut data = vec![0; offset];
        while data.len() < offset + bytes {
            let (choice, bits) = (self.next(), self.next());
            let near_one = (bits as f64 / u64::MAX as f64) * 4.0 - 2.0;
            let special = choice as usize >> 2;
            match (data_type, choice % 4) {
                (DataType::F32, 2) => data.extend(pick(&SPECIAL_F32, special).to_ne_bytes()),
                (DataType::F64, 2) => data.extend(f64::from(f32::from_bits(pick(&SPECIAL_F32, special))).to_ne_bytes()),
                (DataType::F16, 2) => data.extend(pick(&SPECIAL_F16, special).to_ne_bytes()),
                (DataType::Bf16, 2) => data.extend(((pick(&SPECIAL_F32, special) >> 16) as u16).to_ne_bytes()),
                (DataType::F32, 3) => data.extend((near_one as f32).to_ne_bytes()),
                (DataType::F64, 3) => data.extend(near_one.to_ne_bytes()),
                (DataType::F16, 3) => data.extend(f16::from_f64(near_one).to_ne_bytes()),
                (DataType::Bf16, 3) => data.extend(bf16::from_f64(near_one).to_ne_bytes()),
                _ => data.extend(&bits.to_ne_bytes()[..data_type.size()]),
            }
        }
        data
    }
}

fn pick<T: Copy>(values: &[T], index: usize) -> T {
    values[index % values.len()]
}

/// Zeros, infinities, quiet and signalling NaNs of both signs, subnormals, the largest.
const SPECIAL_F32: [u32; 10] = [
    0,
    0x8000_0000,
    0x7f80_0000,
    0xff80_0000,
    0x7fc0_0000,
    0xffc0_1234,
    0x7f80_0001,
    0x0001_0000,
    0x8040_0000,
    0x7f7f_ffff,
];
const SPECIAL_F16: [u16; 10] = [0, 0x8000, 0x7c00, 0xfc00, 0x7e00, 0xfe12, 0x7c01, 0x0001, 0x8200, 0x7bff];
