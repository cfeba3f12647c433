//! How slow the slowest worker of a class is, in iterations that differ.

use std::f64::consts::{PI, TAU};

/// How the seconds that a worker computes differ from iteration to iteration. Each keeps the mean, but for the last.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Spread {
    /// Not at all.
    #[default]
    Alike,
    /// Normally distributed, with this standard deviation as a share of the mean.
    Normal {
        /// σ/μ.
        deviation: f64,
    },
    /// The logarithm is normally distributed, with this standard deviation: rare long delays.
    LogNormal {
        /// σ of the logarithm.
        deviation: f64,
    },
    /// Beside what is computed an exponentially distributed delay: a shared machine.
    Exponential {
        /// Its mean, as a share of what is computed.
        mean: f64,
    },
}

/// However a worker is drawn, it is not faster than this.
const FASTEST: f64 = 0.05;

/// So many draws are made one by one; beyond, the largest of them is drawn from what it tends to.
const ONE_BY_ONE: usize = 64;

impl Spread {
    /// Times the mean: what the slowest of so many workers is expected to take.
    ///
    /// Normal: 1 + σ√(2 ln N), a bound that is nearly reached (docs/prediction.md). Log-normal: the expected value itself,
    /// integrated numerically. Exponential: the N-th harmonic number.
    pub fn expected_slowest(self, workers: usize) -> f64 {
        let workers = workers.max(1) as f64;
        match self {
            Spread::Alike => 1.0,
            Spread::Normal { deviation } => 1.0 + deviation * (2.0 * workers.ln()).sqrt(),
            Spread::LogNormal { deviation } => largest_log_normal(deviation, workers),
            Spread::Exponential { mean } => 1.0 + mean * harmonic(workers),
        }
    }

    /// The slowest of the workers of a class in an iteration, counted from 1. Every class has draws of its own.
    pub(crate) fn drawn_slowest_of(self, class: usize, workers: usize, seed: u64, iteration: usize) -> f64 {
        let seed = seed.wrapping_add((class as u64).wrapping_mul(0xa24b_aed4_963e_e407));
        self.drawn_slowest(workers, seed, iteration as u64)
    }

    /// The slowest of so many workers, drawn: a pure function of the seed and the iteration.
    pub(super) fn drawn_slowest(self, workers: usize, seed: u64, iteration: u64) -> f64 {
        let mut draws = Draws::new(seed, iteration);
        let factor = match self {
            Spread::Alike => return 1.0,
            Spread::Normal { deviation } => 1.0 + deviation * draws.largest_normal(workers),
            Spread::LogNormal { deviation } => {
                (deviation * draws.largest_normal(workers) - deviation * deviation / 2.0).exp()
            }
            Spread::Exponential { mean } => 1.0 + mean * draws.largest_exponential(workers),
        };
        factor.max(FASTEST)
    }
}

/// H(N) = 1 + 1/2 + … + 1/N.
fn harmonic(workers: f64) -> f64 {
    if workers <= ONE_BY_ONE as f64 {
        return (1..=workers as usize).map(|number| 1.0 / number as f64).sum();
    }
    // Euler's constant: H(N) is within 1/(12N²) of this.
    workers.ln() + 0.577_215_664_9 + 0.5 / workers
}

/// The expected value of the largest of so many numbers whose logarithms are normally distributed with this deviation, over
/// the mean of one of them.
///
/// The largest of N has the density N·Φ(x)^(N−1)·φ(x) (David and Nagaraja, "Order statistics", 3rd edition, 2003, §2.1), and
/// e^(σx − σ²/2)·φ(x) is φ(x − σ). So what is sought is the integral of N·Φ(x)^(N−1)·φ(x − σ), which the trapezoidal rule
/// finds to many digits, as the integrand is smooth and vanishes at both ends.
fn largest_log_normal(deviation: f64, workers: f64) -> f64 {
    let density = |x: f64| (-x * x / 2.0).exp() / TAU.sqrt();
    // Beyond, the largest is worth N times the mean already.
    let deviation = deviation.clamp(0.0, 2.0 * TAIL);
    // 1 − Φ(x), from above: Simpson's rule, step by step.
    let (mut above, mut sum, mut upper) = (0.0, 0.0, density(deviation + TAIL));
    for step in 1..=(2.0 * TAIL / STEP) as usize {
        let x = deviation + TAIL - STEP * step as f64;
        let lower = density(x);
        above += STEP / 6.0 * (upper + 4.0 * density(x + STEP / 2.0) + lower);
        sum += f64::max(1.0 - above, 0.0).powf(workers - 1.0) * density(x - deviation);
        upper = lower;
    }
    f64::max(workers * STEP * sum, 1.0)
}

/// So many deviations away the normal distribution has nothing left that counts, also of millions of workers: 1e-19.
const TAIL: f64 = 9.0;

/// Of the integral, in deviations. Also of millions of workers the integrand is more than twice as wide.
const STEP: f64 = 1.0 / 16.0;

/// Numbers that come from a seed: Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (2014).
struct Draws(u64);

impl Draws {
    fn new(seed: u64, iteration: u64) -> Draws {
        let mut draws = Draws(seed ^ iteration.wrapping_mul(0xd1b5_4a32_d192_ed03));
        draws.bits();
        draws
    }

    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Between 0 and 1, and neither.
    fn unit(&mut self) -> f64 {
        ((self.bits() >> 11) as f64 + 0.5) / (1_u64 << 53) as f64
    }

    /// Box and Muller, "A note on the generation of random normal deviates" (1958).
    fn normal(&mut self) -> f64 {
        let (radius, angle) = (self.unit(), self.unit());
        (-2.0 * radius.ln()).sqrt() * (TAU * angle).cos()
    }

    /// Of many, what the largest tends to: Gumbel's law with the norming constants of Fisher and Tippett (1928).
    fn largest_normal(&mut self, count: usize) -> f64 {
        if count <= ONE_BY_ONE {
            return (0..count.max(1)).map(|_| self.normal()).fold(f64::NEG_INFINITY, f64::max);
        }
        let root = (2.0 * (count as f64).ln()).sqrt();
        let centre = root - ((count as f64).ln().ln() + (4.0 * PI).ln()) / (2.0 * root);
        centre - (-self.unit().ln()).ln() / root
    }

    /// By inversion of its distribution (1 − e^−x)^N.
    fn largest_exponential(&mut self, count: usize) -> f64 {
        -(-(self.unit().ln() / count.max(1) as f64).exp_m1()).ln()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPREADS: [Spread; 3] =
        [Spread::Normal { deviation: 0.05 }, Spread::LogNormal { deviation: 0.05 }, Spread::Exponential { mean: 0.05 }];

    fn mean(spread: Spread, workers: usize) -> f64 {
        let drawn = (0..4000).map(|iteration| spread.drawn_slowest(workers, 7, iteration));
        drawn.sum::<f64>() / 4000.0
    }

    #[test]
    fn the_slowest_is_about_as_slow_as_expected() {
        for spread in SPREADS {
            for workers in [32, 63, 65, 1000, 100_000] {
                let (drawn, expected) = (mean(spread, workers) - 1.0, spread.expected_slowest(workers) - 1.0);
                // √(2 ln N) is a little more than the expectation.
                assert!(drawn < 1.06 * expected && drawn > 0.75 * expected, "{spread:?} {workers}: {drawn} {expected}");
            }
        }
        assert_eq!(Spread::Alike.drawn_slowest(9, 1, 1), 1.0);
    }

    /// Of two it is known: 2·Φ(σ/√2) = 1 + erf(σ/2). Of 32 it is what draws are on average.
    #[test]
    fn rare_long_delays_cost_what_their_distribution_says() {
        let slowest = |deviation, workers| Spread::LogNormal { deviation }.expected_slowest(workers);
        for (deviation, expected) in [(0.0, 1.0), (0.05, 1.028_203_603), (0.5, 1.276_326_390), (2.0, 1.842_700_793)] {
            assert!((slowest(deviation, 2) - expected).abs() < 1e-6, "{deviation}: {}", slowest(deviation, 2));
        }
        for (deviation, tolerance) in [(0.05, 0.001), (0.5, 0.01), (2.0, 0.05)] {
            let spread = Spread::LogNormal { deviation };
            let drawn = (0..100_000).map(|iteration| spread.drawn_slowest(32, 7, iteration));
            let (drawn, expected) = (drawn.sum::<f64>() / 1e5, slowest(deviation, 32));
            assert!((drawn / expected - 1.0).abs() < tolerance, "{deviation}: {drawn} {expected}");
        }
        // However rare and long, the longest of 32 is worth no more than all of them together.
        assert!((slowest(100.0, 32) - 32.0).abs() < 1e-6 && slowest(2.0, 1 << 26).is_finite());
    }

    /// H(1) = 1, H(2) = 3/2, and so on; where the sum ends, what it tends to continues it.
    #[test]
    fn the_longest_delay_of_few_is_the_harmonic_number() {
        let slowest = |workers| Spread::Exponential { mean: 0.5 }.expected_slowest(workers);
        for (workers, expected) in [(1, 1.0), (2, 1.5), (3, 11.0 / 6.0), (4, 25.0 / 12.0)] {
            assert!((slowest(workers) - (1.0 + 0.5 * expected)).abs() < 1e-12, "{workers}: {}", slowest(workers));
        }
        let next = slowest(ONE_BY_ONE) + 0.5 / (ONE_BY_ONE + 1) as f64;
        assert!((slowest(ONE_BY_ONE + 1) - next).abs() < 1e-4, "{} {next}", slowest(ONE_BY_ONE + 1));
    }

    /// The two ways to draw the largest meet.
    #[test]
    fn draws_of_many_continue_those_of_few() {
        for spread in SPREADS {
            let (few, many) = (mean(spread, ONE_BY_ONE) - 1.0, mean(spread, ONE_BY_ONE + 1) - 1.0);
            assert!((few / many - 1.0).abs() < 0.04, "{spread:?}: {few} {many}");
        }
    }

    #[test]
    fn a_worker_alone_is_on_average_what_its_class_says() {
        for spread in &SPREADS[..2] {
            assert!((mean(*spread, 1) - 1.0).abs() < 0.005, "{spread:?}");
            assert!((spread.expected_slowest(1) - 1.0).abs() < 1e-12);
        }
    }

    #[test]
    fn draws_come_from_the_seed() {
        let spread = Spread::Normal { deviation: 0.1 };
        assert_eq!(spread.drawn_slowest(4, 1, 2), spread.drawn_slowest(4, 1, 2));
        assert_ne!(spread.drawn_slowest(4, 1, 2), spread.drawn_slowest(4, 1, 3));
        assert_ne!(spread.drawn_slowest(4, 1, 2), spread.drawn_slowest(4, 2, 2));
    }
}
