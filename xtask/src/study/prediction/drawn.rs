//! Tensor lists, computation and networks at random: what nobody has fitted anything to.

use std::fs;
use std::path::Path;

use paceline_cli::Processors;
use paceline_plan::{Profile, ProfileTensor, Step};
use serde::Serialize;

use super::super::cells::Cell;
use super::super::cluster::{Bench, WARM_UP};
use super::super::report::{Table, ms};
use super::{AUTO, METHODS};
use crate::compare::Error;

/// So many are drawn.
const DRAWS: u64 = 6;
const ITERATIONS: usize = 4;
/// About what a world takes besides its iterations, for each worker, and what recording one takes besides.
const START_S: f64 = 0.4;
const RECORDED: usize = 3;
/// Of all tensors together: what takes longer than a sleep is late, and what a busy machine can move in a bearable time.
const ELEMENTS_MIN: f64 = 4e6;
const ELEMENTS_MAX: f64 = 24e6;

/// A case.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Draw {
    /// How it is called.
    pub name: String,
    hosts: usize,
    workers_per_host: usize,
    /// In seconds, and in seconds per byte.
    alpha_s: f64,
    beta_s_per_byte: f64,
    /// Of each tensor.
    elements: Vec<usize>,
    /// Its share of computation.
    shares: Vec<f64>,
    /// Seconds of forward and backward.
    compute_s: f64,
}

impl Draw {
    /// All of a seed; with `quick` one.
    pub fn all(seed: u64, quick: bool) -> Vec<Draw> {
        (0..if quick { 1 } else { DRAWS }).map(|number| Draw::of(seed, number)).collect()
    }

    fn of(seed: u64, number: u64) -> Draw {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ number);
        let hosts = [2, 3, 4][random.below(3)];
        let workers_per_host = [1, 2][random.below(2)];
        let (alpha_s, beta_s_per_byte) = (random.between(10e-6, 200e-6), random.between(0.3e-9, 5e-9));
        let count = random.between(5.0, 80.0) as usize;
        let drawn: Vec<f64> = (0..count).map(|_| random.between(256.0, 4e6)).collect();
        let sum: f64 = drawn.iter().sum();
        let scale = sum.clamp(ELEMENTS_MIN, ELEMENTS_MAX) / sum;
        let elements: Vec<usize> = drawn.iter().map(|elements| (elements * scale).max(1.0) as usize).collect();
        let weights: Vec<f64> = (0..count).map(|_| random.between(0.1, 10.0)).collect();
        let sum: f64 = weights.iter().sum();
        let workers = (hosts * workers_per_host) as f64;
        let bytes = 4.0 * elements.iter().sum::<usize>() as f64;
        // Communication from a third of computation to three times as much.
        let line_s = 2.0 * (workers - 1.0) / workers * bytes * beta_s_per_byte;
        Draw {
            name: format!("drawn-{seed}-{number}"),
            hosts,
            workers_per_host,
            alpha_s,
            beta_s_per_byte,
            elements,
            shares: weights.into_iter().map(|weight| weight / sum).collect(),
            compute_s: line_s * random.between(1.0 / 3.0, 3.0),
        }
    }

    fn workers(&self) -> usize {
        self.hosts * self.workers_per_host
    }

    fn bytes(&self) -> f64 {
        4.0 * self.elements.iter().sum::<usize>() as f64
    }

    /// As `--emulate` has it. Within a host links are those of PCIe, unless the network is as fast.
    fn network(&self) -> String {
        let (alpha, beta) = (self.alpha_s * 1e6, self.beta_s_per_byte * 1e9);
        format!("alpha={alpha:.3}us,beta={beta:.4}ns,within-alpha=5.7us,within-beta=0.2186ns")
    }

    /// Seconds of an iteration, about.
    fn iteration_s(&self) -> f64 {
        let workers = self.workers() as f64;
        self.compute_s + (workers - 1.0) / workers * self.bytes() * self.beta_s_per_byte
    }

    fn dilate(&self, processors: Processors) -> f64 {
        processors.needed_dilation(self.workers(), self.bytes(), self.iteration_s())
    }

    /// Seconds that it takes, about.
    pub fn estimate_s(&self, processors: Processors, runs: usize) -> f64 {
        let iterations = (WARM_UP + ITERATIONS + RECORDED) as f64;
        let run_s = START_S * self.workers() as f64 + iterations * self.dilate(processors) * self.iteration_s();
        (METHODS.len() + 2) as f64 * runs as f64 * run_s
    }

    /// Backward is the mirror image of forward, and takes twice as long.
    fn profile(&self) -> Profile {
        let tensor = |(number, &elements): (usize, &usize)| ProfileTensor {
            name: format!("t{number}"),
            elements,
            forward_macs_per_sample: 0,
        };
        // Whole nanoseconds are the same after they were written and read.
        let whole_ns = |seconds: f64| (seconds * 1e9).round() / 1e9;
        let step = |tensor: usize, seconds: f64| Step { tensor, seconds: whole_ns(self.shares[tensor] * seconds) };
        let (forward_s, backward_s) = (self.compute_s / 3.0, self.compute_s * 2.0 / 3.0);
        let count = self.elements.len();
        Profile {
            schema: Profile::SCHEMA,
            model: self.name.clone(),
            device: "drawn".to_owned(),
            source: "drawn at random".to_owned(),
            local_batch: 16,
            tensors: self.elements.iter().enumerate().map(tensor).collect(),
            forward: (0..count).map(|tensor| step(tensor, forward_s)).collect(),
            backward: (0..count).rev().map(|tensor| step(tensor, backward_s)).collect(),
            update_s: whole_ns(0.005 * self.compute_s),
            ..Profile::default()
        }
    }

    /// Measures what the database does not have yet.
    ///
    /// # Errors
    /// The profile cannot be written; the program cannot be run, or refuses what it is asked.
    pub fn measure(&self, bench: Bench<'_>, processors: Processors, runs: usize) -> Result<Vec<Cell>, Error> {
        let path = bench.scratch.join(format!("{}.profile.json", self.name));
        let json = serde_json::to_string(&self.profile()).map_err(|error| error.to_string())?;
        fs::write(&path, json).map_err(|error| format!("{}: {error}", path.display()))?;
        bench.call(&self.name, &self.arguments(&path, processors, runs))
    }

    fn arguments(&self, profile: &Path, processors: Processors, runs: usize) -> Vec<String> {
        let methods: Vec<&str> = METHODS.into_iter().chain([AUTO]).collect();
        let words = [
            ("--compute", format!("replay:{}", profile.display())),
            ("--methods", methods.join(";")),
            ("--workers", self.workers().to_string()),
            ("--hosts", format!("{}x{}", self.hosts, self.workers_per_host)),
            ("--emulate", self.network()),
            ("--dilate", self.dilate(processors).to_string()),
            ("--warmup", WARM_UP.to_string()),
            ("--iterations", ITERATIONS.to_string()),
            ("--runs", runs.to_string()),
        ];
        words.into_iter().flat_map(|(option, value)| [option.to_owned(), value]).collect()
    }
}

/// What was drawn.
pub fn table(draws: &[Draw]) -> Table {
    let columns = ["case", "hosts", "workers", "alpha, us", "beta, ns/B", "tensors", "MB", "computation, ms"];
    let mut table = Table::new("Drawn cases", "", &columns);
    table.rows.extend(draws.iter().map(|draw| {
        vec![
            draw.name.clone(),
            draw.hosts.to_string(),
            draw.workers().to_string(),
            format!("{:.1}", draw.alpha_s * 1e6),
            format!("{:.3}", draw.beta_s_per_byte * 1e9),
            draw.elements.len().to_string(),
            format!("{:.1}", draw.bytes() / 1e6),
            ms(draw.compute_s),
        ]
    }));
    table
}

/// Numbers that follow from a seed: SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators",
/// OOPSLA 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// From 0 to 1.
    fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// As often in each octave.
    fn between(&mut self, low: f64, high: f64) -> f64 {
        low * (high / low).powf(self.share())
    }

    fn below(&mut self, count: usize) -> usize {
        (self.next() % count as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use paceline_plan::NetworkModel;

    use super::*;

    #[test]
    fn a_seed_gives_the_same_cases_and_another_one_others() {
        assert_eq!(Draw::all(5, false), Draw::all(5, false));
        assert_eq!(Draw::all(5, true)[0], Draw::all(5, false)[0]);
        assert_ne!(Draw::all(5, true)[0].elements, Draw::all(6, true)[0].elements);
    }

    #[test]
    fn what_is_drawn_makes_sense_whatever_the_seed() {
        for draw in (0..50).flat_map(|seed| Draw::all(seed, false)) {
            assert_eq!(draw.profile().check(), Ok(()), "{}", draw.name);
            let network: NetworkModel = draw.network().parse().expect("a network");
            assert!((network.across.beta_s_per_byte / draw.beta_s_per_byte - 1.0).abs() < 1e-3, "{}", draw.name);
            assert!(draw.bytes() <= 4.1 * ELEMENTS_MAX && draw.workers() >= 2, "{}", draw.name);
            let computed = draw.profile().forward_s() + draw.profile().backward_s();
            assert!((computed / draw.compute_s - 1.0).abs() < 1e-3, "{}", draw.name);
            let processors = Processors { cores: 2, core_bytes_per_s: 1.2e9 };
            assert!(draw.dilate(processors) >= 1.0 && draw.estimate_s(processors, 1).is_finite());
        }
    }
}
