//! What was measured, in the order of measurement, and how ours compares with one rival in one cell.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::circumstances::{Commit, Load};
use super::command::{Measured, Setting};
use super::openmpi::{Conditions, Scouted};
use super::statistics::{median, spread};

/// The contestants' names.
pub const OURS: &str = "paceline";
pub const OURS_ALLOC: &str = "paceline-alloc";
pub const OPENMPI: &str = "openmpi";
pub const OPENMPI_TUNED: &str = "openmpi-tuned";
/// The better of the two above, size by size.
pub const OPENMPI_BEST: &str = "openmpi-best";
pub const GLOO: &str = "gloo";
pub const RAW_EXCHANGE: &str = "raw-exchange";
pub const MEMORY_FLOOR: &str = "memory-floor";

/// Everything about one comparison.
#[derive(Default, Serialize, Deserialize)]
pub struct Results {
    /// The version of this file's form.
    pub schema: u32,
    /// The day, UTC.
    pub date: String,
    /// The command line.
    pub command: Vec<String>,
    pub commit: Commit,
    /// The machine, as `paceline perf` describes it.
    pub machine: Value,
    /// The rivals.
    pub versions: Vec<String>,
    /// How often everything was measured.
    pub rounds: usize,
    /// The time given to one size in one run.
    pub seconds: f64,
    /// The machine's load before the run, before each setting, and after the run.
    pub loads: Vec<Load>,
    pub openmpi_conditions: Vec<Conditions>,
    pub openmpi_scouted: Vec<Scouted>,
    pub cells: Vec<Cell>,
}

/// One size in one setting.
#[derive(Serialize, Deserialize)]
pub struct Cell {
    #[serde(flatten)]
    pub setting: Setting,
    /// Of the larger of input and output.
    pub bytes: usize,
    /// In the order of measurement.
    pub runs: Vec<Run>,
}

/// One contestant, once.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Run {
    pub round: usize,
    pub contestant: String,
    /// What was run.
    pub algorithm: String,
    /// Measured calls.
    pub calls: usize,
    /// The median over the calls.
    pub p50_us: f64,
}

/// Ours against one rival in one cell.
#[derive(Clone, Debug)]
pub struct Duel {
    pub ours_us: f64,
    pub rival_us: f64,
    /// The rival's time over ours: above 1 we are faster. The median over the rounds of rival / √(ours before · after).
    pub ratio: f64,
    /// The factor by which the same thing differs from itself: the larger of what ours differs between before and after
    /// a rival, and of what the ratio differs between the rounds.
    pub noise: f64,
    /// What ours differs from itself, alone.
    pub own_noise: f64,
}

/// How a duel ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    Won,
    Tied,
    Lost,
}

impl Cell {
    /// Adds a run.
    pub fn add(&mut self, round: usize, contestant: &str, measured: Measured) {
        let Measured { algorithm, iterations, p50_us, .. } = measured;
        self.runs.push(Run { round, contestant: contestant.to_owned(), algorithm, calls: iterations, p50_us });
    }

    /// The median over the rounds of a contestant's time; None if it did not take part.
    pub fn median_us(&self, contestant: &str) -> Option<f64> {
        let times: Vec<f64> = self.of(contestant).map(|run| run.p50_us).collect();
        (!times.is_empty()).then(|| median(&times))
    }

    /// What a contestant ran: the algorithms that it named, each once.
    pub fn algorithms(&self, contestant: &str) -> String {
        let mut names: Vec<&str> = Vec::new();
        for run in self.of(contestant) {
            if !names.contains(&run.algorithm.as_str()) {
                names.push(&run.algorithm);
            }
        }
        names.join(" / ")
    }

    /// Ours against a rival; None if it did not take part.
    pub fn duel(&self, rival: &str) -> Option<Duel> {
        if rival == OPENMPI_BEST {
            let both = [self.duel(OPENMPI), self.duel(OPENMPI_TUNED)];
            return both.into_iter().flatten().min_by(|left, right| left.ratio.total_cmp(&right.ratio));
        }
        let (mut ratios, mut own) = (Vec::new(), Vec::new());
        for (place, run) in self.runs.iter().enumerate().filter(|(_, run)| run.contestant == rival) {
            let same = |other: &&Run| other.round == run.round && other.contestant == OURS;
            let before = self.runs[..place].iter().rev().find(same)?.p50_us;
            let after = self.runs[place..].iter().find(same)?.p50_us;
            ratios.push(run.p50_us / (before * after).sqrt());
            own.push((before / after).ln().abs());
        }
        let own_noise = median(&own).exp();
        let (ours_us, rival_us) = (self.median_us(OURS)?, self.median_us(rival)?);
        let noise = own_noise.max(spread(&ratios));
        Some(Duel { ours_us, rival_us, ratio: median(&ratios), noise, own_noise })
    }

    /// The time of one contestant over another's, round by round: the median. None if not both took part.
    pub fn share(&self, bound: &str, contestant: &str) -> Option<f64> {
        let ratio = |run: &Run| {
            let other = self.of(contestant).find(|other| other.round == run.round)?;
            Some(run.p50_us / other.p50_us)
        };
        let ratios: Vec<f64> = self.of(bound).filter_map(ratio).collect();
        (!ratios.is_empty()).then(|| median(&ratios))
    }

    fn of(&self, contestant: &str) -> impl Iterator<Item = &Run> {
        self.runs.iter().filter(move |run| run.contestant == contestant)
    }
}

impl Duel {
    /// A difference below what the same thing differs from itself is a tie.
    pub fn verdict(&self) -> Verdict {
        match self.ratio.ln() {
            difference if difference.abs() <= self.noise.ln() => Verdict::Tied,
            difference if difference > 0.0 => Verdict::Won,
            _ => Verdict::Lost,
        }
    }
}

impl Results {
    /// The settings, in the order of measurement.
    pub fn settings(&self) -> Vec<&Setting> {
        let mut settings: Vec<&Setting> = self.cells.iter().map(|cell| &cell.setting).collect();
        settings.dedup();
        settings
    }

    /// The cells of a setting, in the order of their sizes.
    pub fn cells_of<'a>(&'a self, setting: &Setting) -> impl Iterator<Item = &'a Cell> {
        self.cells.iter().filter(move |cell| cell.setting == *setting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Per round, contestants and times in their order.
    fn cell(rounds: &[&[(&str, f64)]]) -> Cell {
        let setting = Setting { collective: "all-reduce".into(), transport: "shm".into(), ranks: 2 };
        let mut cell = Cell { setting, bytes: 4, runs: Vec::new() };
        for (round, runs) in rounds.iter().enumerate() {
            for &(contestant, p50_us) in *runs {
                let measured = Measured { bytes: 4, iterations: 3, p50_us, wrong: 0, algorithm: contestant.into() };
                cell.add(round, contestant, measured);
            }
        }
        cell
    }

    #[test]
    fn a_rival_is_compared_with_ours_just_before_and_after_it() {
        // The machine becomes four times slower in the middle; side by side ours is twice as fast all along.
        let cell = cell(&[
            &[(OURS, 10.0), (OPENMPI, 20.0), (OURS, 10.0)],
            &[(OURS, 10.0), (OPENMPI, 40.0), (OURS, 40.0)],
            &[(OURS, 40.0), (OPENMPI, 80.0), (OURS, 40.0)],
        ]);
        let duel = cell.duel(OPENMPI).expect("it took part");
        assert!((duel.ratio - 2.0).abs() < 1e-12 && (duel.noise - 1.0).abs() < 1e-12, "{duel:?}");
        assert_eq!(duel.verdict(), Verdict::Won);
        assert!(cell.duel(GLOO).is_none());
    }

    #[test]
    fn what_differs_no_more_than_the_same_thing_does_is_a_tie() {
        let own_noise = cell(&[&[(OURS, 10.0), (GLOO, 12.0), (OURS, 16.0)]]).duel(GLOO).expect("it took part");
        assert_eq!(own_noise.verdict(), Verdict::Tied);
        let of = |time| [(OURS, 10.0), (GLOO, time), (OURS, 10.0)];
        let rivals_noise = cell(&[&of(4.0), &of(9.0), &of(30.0)]).duel(GLOO).expect("it took part");
        assert_eq!(rivals_noise.verdict(), Verdict::Tied, "the rival's own spread counts");
        let lost = cell(&[&of(4.0), &of(5.0), &of(4.5)]).duel(GLOO).expect("it took part");
        assert_eq!(lost.verdict(), Verdict::Lost);
    }

    #[test]
    fn the_best_of_open_mpi_is_the_one_that_we_do_worst_against() {
        let cell = cell(&[&[(OURS, 10.0), (OPENMPI, 30.0), (OURS, 10.0), (OPENMPI_TUNED, 20.0), (OURS, 10.0)]]);
        assert_eq!(cell.duel(OPENMPI_BEST).expect("both are there").ratio, 2.0);
        let default_only = self::cell(&[&[(OURS, 10.0), (OPENMPI, 30.0), (OURS, 10.0)]]);
        assert_eq!(default_only.duel(OPENMPI_BEST).expect("the default won").ratio, 3.0);
    }

    #[test]
    fn a_bound_is_compared_round_by_round() {
        let cell = cell(&[&[(OURS_ALLOC, 10.0), (MEMORY_FLOOR, 5.0)], &[(OURS_ALLOC, 20.0), (MEMORY_FLOOR, 12.0)]]);
        assert!((cell.share(MEMORY_FLOOR, OURS_ALLOC).expect("both are there") - 0.55).abs() < 1e-12);
    }
}
