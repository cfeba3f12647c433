//! Everything random in a world comes from one seed.

use std::ops::Range;

/// Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators" (2014).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number of the range; its start if it is empty.
    pub fn within(&mut self, range: Range<u64>) -> u64 {
        range.start + self.next() % (range.end.saturating_sub(range.start)).max(1)
    }

    pub fn below(&mut self, end: usize) -> usize {
        self.within(0..end as u64) as usize
    }

    /// True once in so many times; never for 0.
    pub fn once_in(&mut self, times: u64) -> bool {
        times > 0 && self.next().is_multiple_of(times)
    }

    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    pub fn shuffle<T>(&mut self, list: &mut [T]) {
        for end in (1..list.len()).rev() {
            list.swap(end, self.below(end + 1));
        }
    }
}

/// Runs a test with `count` seeds, or with the one in `PACELINE_SEED`. A failure prints the line that repeats it. Returns
/// the number of runs.
pub fn with_seeds(test: &str, count: u64, run: impl Fn(u64)) -> u64 {
    let given = std::env::var("PACELINE_SEED").ok();
    let given = given.map(|seed| seed.parse::<u64>().expect("PACELINE_SEED is a decimal number"));
    let first = given.unwrap_or(1);
    let runs = given.map_or(count, |_| 1);
    for seed in first..first + runs {
        let announce = Announce { test, seed };
        run(seed);
        std::mem::forget(announce);
    }
    runs
}

/// How many random schedules a test runs: more if `PACELINE_LONG_TESTS` is set.
pub fn schedules(short: u64, long: u64) -> u64 {
    if std::env::var_os("PACELINE_LONG_TESTS").is_some() { long } else { short }
}

struct Announce<'a> {
    test: &'a str,
    seed: u64,
}

impl Drop for Announce<'_> {
    fn drop(&mut self) {
        eprintln!("PACELINE_SEED={} cargo test -p paceline-engine --test world {}  # fails", self.seed, self.test);
    }
}
