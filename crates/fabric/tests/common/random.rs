//! Random numbers from a seed that is printed, and the damage that is done with them.

/// SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014).
pub struct Random(pub u64);

impl Random {
    /// From the environment, to repeat a failed run, or from the clock. Printed, so that a failing test names it.
    pub fn new() -> Random {
        let clock = || std::time::UNIX_EPOCH.elapsed().map_or(1, |elapsed| elapsed.as_nanos() as u64);
        let seed = std::env::var("PACELINE_TEST_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(clock);
        println!("PACELINE_TEST_SEED={seed}");
        Random(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.next() as u8).collect()
    }

    /// Cuts, adds a byte, loses one, or flips a bit; up to three times, or not at all.
    pub fn damage(&mut self, bytes: &mut Vec<u8>) {
        for _ in 0..self.below(4) {
            match (bytes.len(), self.below(4)) {
                (0, _) => {}
                (length, 0) => bytes.truncate(self.below(length)),
                (length, 1) => bytes.insert(self.below(length), self.next() as u8),
                (length, 2) => _ = bytes.remove(self.below(length)),
                (length, _) => bytes[self.below(length)] ^= 1 << self.below(8),
            }
        }
    }
}
