//! A small seeded generator whose numbers never change between versions, so that a seed means the same run for ever.

/// SplitMix64: Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (OOPSLA 2014), figure 16.
#[derive(Clone, Debug)]
pub(crate) struct Random {
    state: u64,
}

impl Random {
    /// A generator for one purpose: streams of different `purpose` are independent for the same `seed`.
    pub(crate) fn new(seed: u64, purpose: u64) -> Self {
        let mut random = Random { state: seed };
        let seeded = random.next();
        Random { state: seeded ^ purpose.wrapping_mul(0xd134_2543_de82_ef95) }
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Uniform in `0..bound`; the bias is below `bound` / 2^64.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.next()) * bound as u128) >> 64) as usize
    }

    /// Uniform in `[-limit, limit)`, from the upper 24 bits: exact in an f32.
    pub(crate) fn symmetric(&mut self, limit: f32) -> f32 {
        let unit = (self.next() >> 40) as f32 / (1u32 << 24) as f32;
        (2.0 * unit - 1.0) * limit
    }

    /// Normal with mean 0 and deviation 1 (Box and Muller, "A note on the generation of random normal deviates", 1958).
    pub(crate) fn normal(&mut self) -> f32 {
        // In (0, 1]: its logarithm is finite.
        let [radius, angle] = [(); 2].map(|()| ((self.next() >> 11) + 1) as f64 / (1u64 << 53) as f64);
        ((-2.0 * radius.ln()).sqrt() * (angle * std::f64::consts::TAU).cos()) as f32
    }

    /// A permutation of `0..count` (Fisher and Yates; Durstenfeld's form).
    pub(crate) fn permutation(&mut self, count: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..count).collect();
        for last in (1..count).rev() {
            order.swap(last, self.below(last + 1));
        }
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_those_of_splitmix64() {
        // The first outputs for state 0, as published with the reference implementation.
        let mut random = Random { state: 0 };
        assert_eq!([random.next(), random.next()], [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4]);
    }

    #[test]
    fn uniform_numbers_fill_their_range() {
        let mut random = Random::new(1, 2);
        let values: Vec<f32> = (0..10_000).map(|_| random.symmetric(0.5)).collect();
        assert!(values.iter().all(|value| (-0.5..0.5).contains(value)));
        let mean = values.iter().sum::<f32>() / values.len() as f32;
        assert!(mean.abs() < 0.02, "{mean}");
        let normal: Vec<f32> = (0..10_000).map(|_| random.normal()).collect();
        let (mean, square) = normal.iter().fold((0.0, 0.0), |(sum, squares), x| (sum + x, squares + x * x));
        assert!(mean.abs() < 300.0 && (square / 1e4 - 1.0).abs() < 0.05, "{mean}, {square}");
        let mut hits = [0; 7];
        for _ in 0..7_000 {
            hits[random.below(7)] += 1;
        }
        assert!(hits.iter().all(|&count| (800..1_200).contains(&count)), "{hits:?}");
    }
}
