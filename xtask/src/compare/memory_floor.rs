//! How long the memory of this machine needs for a collective, however it is done.
//!
//! n ranks on one host have n inputs and n outputs, all in different memory. Every input byte that is part of a result must
//! be read at least once and every output byte written at least once, and all cores together move them at the streaming
//! bandwidth. For an all-reduce of S bytes these are 2·n·S. What an algorithm moves besides (a reduced block that each of
//! its n−1 other owners reads again, intermediate sums) it must find in a cache or pay for. docs/benchmarking.md has the
//! derivation.

use std::hint::black_box;
use std::sync::Barrier;
use std::thread;
use std::time::Instant;

use super::command::{Measured, Setting};

/// Three arrays that together are far larger than the caches.
pub struct MemoryFloor {
    from: Vec<f32>,
    with: Vec<f32>,
    to: Vec<f32>,
    threads: usize,
}

/// Together the arrays have so many times the last-level cache.
const CACHES: usize = 4;
const BYTES_MIN: usize = 512 << 20;
/// A machine with a huge cache need not have that much memory to spare.
const BYTES_MAX: usize = 1536 << 20;
/// The fastest of so many passes counts, as in McCalpin's STREAM.
const PASSES: usize = 3;

impl MemoryFloor {
    /// Allocates and touches the arrays.
    pub fn new() -> MemoryFloor {
        let bytes = (last_level_cache_bytes().unwrap_or(0) * CACHES).clamp(BYTES_MIN, BYTES_MAX);
        let array = |value: f32| vec![value; bytes / 3 / size_of::<f32>()];
        let threads = thread::available_parallelism().map_or(1, usize::from);
        MemoryFloor { from: array(1.0), with: array(2.0), to: array(3.0), threads }
    }

    /// The floor of a collective, by the better of two streams, both counted as read and written bytes: copying (`c = a`)
    /// and adding (`c = a + b`). `bytes` are those of the larger of input and output.
    pub fn measure(&mut self, setting: &Setting, bytes: usize) -> Measured {
        let copy = self.stream(2, |from, _, to| to.copy_from_slice(from));
        let add = self.stream(3, |from, with, to| {
            to.iter_mut().zip(from.iter().zip(with)).for_each(|(to, (from, with))| *to = from + with);
        });
        let best = copy.max(add);
        Measured {
            bytes,
            iterations: PASSES,
            p50_us: moved_bytes(setting, bytes) as f64 / best * 1e6,
            wrong: 0,
            algorithm: format!("copy {:.1}, add {:.1} GB/s", copy / 1e9, add / 1e9),
        }
    }

    /// Bytes per second of all threads together, if every element of the three arrays together moves `elements` times.
    fn stream(&mut self, elements: usize, pass: impl Fn(&[f32], &[f32], &mut [f32]) + Sync) -> f64 {
        let share = self.to.len().div_ceil(self.threads);
        let bytes = (self.to.len() * elements * size_of::<f32>()) as f64;
        // The threads start each pass together; a pass takes as long as its slowest thread.
        let barrier = Barrier::new(self.to.chunks(share).len());
        let (barrier, pass) = (&barrier, &pass);
        let passes: Vec<[f64; PASSES]> = thread::scope(|scope| {
            let parts = self.from.chunks(share).zip(self.with.chunks(share)).zip(self.to.chunks_mut(share));
            let threads: Vec<_> = parts
                .map(|((from, with), to)| {
                    scope.spawn(move || {
                        [(); PASSES].map(|()| {
                            barrier.wait();
                            let start = Instant::now();
                            pass(black_box(from), black_box(with), black_box(&mut *to));
                            start.elapsed().as_secs_f64()
                        })
                    })
                })
                .collect();
            threads.into_iter().filter_map(|thread| thread.join().ok()).collect()
        });
        let slowest = |pass: usize| passes.iter().map(|times| times[pass]).fold(0.0, f64::max);
        bytes / (0..PASSES).map(slowest).fold(f64::INFINITY, f64::min)
    }
}

/// Bytes that all ranks together must read and write at least.
fn moved_bytes(setting: &Setting, bytes: usize) -> usize {
    let ranks = setting.ranks;
    let (read, written) = match setting.collective.as_str() {
        // An input has one part of n, which is in every output.
        "all-gather" => (bytes, ranks * bytes),
        // Every input has a part of every output, and an output is one part of n.
        "reduce-scatter" => (ranks * bytes, bytes),
        // One buffer per rank: the root's is only read, those of the others are only written.
        "broadcast" => (bytes, (ranks - 1) * bytes),
        // All-reduce, all-to-all: whole inputs, whole outputs.
        _ => (ranks * bytes, ranks * bytes),
    };
    read + written
}

/// The largest cache that the kernel lists for the first core.
fn last_level_cache_bytes() -> Option<usize> {
    let read =
        |index: usize| std::fs::read_to_string(format!("/sys/devices/system/cpu/cpu0/cache/index{index}/size")).ok();
    let bytes = |text: String| Some(text.trim().strip_suffix('K')?.parse::<usize>().ok()? << 10);
    (0..8).filter_map(read).filter_map(bytes).max()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setting(collective: &str, ranks: usize) -> Setting {
        Setting { collective: collective.into(), transport: "shm".into(), ranks }
    }

    /// Counted buffer by buffer: what ranks have as input and as output, of data of 1200 bytes.
    #[test]
    fn every_input_is_read_and_every_output_written_once() {
        for ranks in [2, 3, 4] {
            let (whole, part) = (1200, 1200 / ranks);
            let all_ranks = |input: usize, output: usize| (0..ranks).map(|_| input + output).sum::<usize>();
            let broadcast = (0..ranks).map(|_| whole).sum::<usize>();
            let expected = [
                ("all-reduce", all_ranks(whole, whole)),
                ("all-gather", all_ranks(part, whole)),
                ("reduce-scatter", all_ranks(whole, part)),
                ("broadcast", broadcast),
                ("all-to-all", all_ranks(whole, whole)),
            ];
            let found = expected.map(|(collective, _)| (collective, moved_bytes(&setting(collective, ranks), whole)));
            assert_eq!(found, expected, "{ranks} ranks");
        }
        assert_eq!(moved_bytes(&setting("all-gather", 4), 100), 100 + 400);
    }

    #[test]
    fn every_thread_streams_its_part() {
        let array = |value: f32| vec![value; 100_001];
        let mut floor = MemoryFloor { from: array(1.0), with: array(2.0), to: array(0.0), threads: 3 };
        let measured = floor.measure(&setting("all-reduce", 2), 1 << 20);
        assert!(measured.p50_us > 0.0 && measured.p50_us.is_finite(), "{measured:?}");
        assert!(floor.to.iter().all(|&sum| sum == 3.0), "the last stream adds");
    }
}
