//! An interleaved test of one choice against the default, with the default as a second, separate arm: what differs between
//! the default and itself is noise.

use crate::random::Random;
use crate::statistics::{median, median_margin, signed_rank};

/// Less than that is no gain worth a change: a share of the time.
pub const WORTHWHILE: f64 = 0.03;

/// How many blocks there are when results are looked at. A third of the error goes to each look (Bonferroni).
const LOOKS: [usize; 3] = [8, 16, 32];

/// How often a job may report a gain where there is none, in all its trials together.
const ERROR: f64 = 0.04;

/// The arms of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The default.
    Default,
    /// The candidate.
    Candidate,
    /// The default again.
    Control,
}

/// A trial: blocks of three calls in an order of chance.
#[derive(Clone, Debug)]
pub struct Trial {
    /// Seconds of the three sides, block by block; NaN until they are known.
    blocks: Vec<[f64; 3]>,
    /// What is still to be played of the last block.
    left: Vec<Side>,
    /// With which probability a gain may be reported where there is none.
    level: f64,
}

/// How a trial ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Verdict {
    /// The candidate is better.
    Gain(Gain),
    /// Not that anybody could tell.
    NoSignificantGain,
}

/// By how much.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gain {
    /// The share of the default's time that is saved: the median of all pairs.
    pub share: f64,
    /// How far that may be off, to each side (about 95 %).
    pub margin: f64,
    /// How likely chance alone would look like it.
    pub probability: f64,
}

impl Trial {
    /// The n-th trial of a job, from 1 on. The allowed error shrinks so that the sum over all trials stays below 4 %: n-th
    /// of the series 6/(π²n²) (the spending of Foster and Stine, "α-investing", 2008, without its income).
    pub fn new(number: u32) -> Trial {
        let number = f64::from(number.max(1));
        let share = 6.0 / (std::f64::consts::PI * number).powi(2);
        Trial { blocks: Vec::new(), left: Vec::new(), level: ERROR * share }
    }

    /// What to play next, and in which block it counts. None when enough is under way: then results must come first.
    pub fn next(&mut self, random: &mut Random) -> Option<(Side, usize)> {
        if self.left.is_empty() {
            // Times may be lost; then further blocks take their place, to an end.
            if self.complete() >= LOOKS[LOOKS.len() - 1] || self.is_exhausted() {
                return None;
            }
            self.blocks.push([f64::NAN; 3]);
            self.left = vec![Side::Default, Side::Candidate, Side::Control];
        }
        let side = self.left.swap_remove(random.below(self.left.len()));
        Some((side, self.blocks.len() - 1))
    }

    /// What was given out by `next` could not be played, and is to be played another time.
    pub fn give_back(&mut self, side: Side) {
        self.left.push(side);
    }

    /// It took so many seconds.
    pub fn observe(&mut self, side: Side, block: usize, seconds: f64) {
        if let Some(block) = self.blocks.get_mut(block) {
            block[side as usize] = seconds;
        }
    }

    /// How it ended; None while it goes on.
    pub fn verdict(&self) -> Option<Verdict> {
        let complete: Vec<&[f64; 3]> =
            self.blocks.iter().filter(|block| block.iter().all(|it| it.is_finite())).collect();
        let Some(look) = LOOKS.iter().position(|&look| look == complete.len()) else {
            return self.is_exhausted().then_some(Verdict::NoSignificantGain);
        };
        let against = |side: Side| -> Vec<f64> {
            complete.iter().map(|block| (block[side as usize] / block[Side::Default as usize]).ln()).collect()
        };
        let (candidate, control) = (against(Side::Candidate), against(Side::Control));
        let level = self.level / LOOKS.len() as f64;
        let probability = signed_rank(&candidate);
        let (middle, noise) = (median(&candidate)?, median(&control)?);
        // If the default differs from itself, something else is measured.
        let mirrored: Vec<f64> = control.iter().map(|it| -it).collect();
        let calm = signed_rank(&control) > level && signed_rank(&mirrored) > level;
        if calm && probability <= level && -middle > noise.abs().max(-(1.0 - WORTHWHILE).ln()) {
            let margin = middle.exp() * median_margin(&candidate);
            return Some(Verdict::Gain(Gain { share: 1.0 - middle.exp(), margin, probability }));
        }
        let hopeless = middle >= 0.0;
        (hopeless || look + 1 == LOOKS.len()).then_some(Verdict::NoSignificantGain)
    }

    /// Have so many times been lost that there will be no further blocks?
    fn is_exhausted(&self) -> bool {
        self.left.is_empty() && self.blocks.len() >= 2 * LOOKS[LOOKS.len() - 1]
    }

    /// Blocks that are complete.
    pub fn complete(&self) -> usize {
        self.blocks.iter().filter(|block| block.iter().all(|it| it.is_finite())).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a trial in which the candidate takes `factor` times as long; `noise` draws the factor of a call.
    fn run(number: u32, factor: f64, seed: u64, noise: impl Fn(&mut Random) -> f64) -> Verdict {
        let (mut trial, mut random) = (Trial::new(number), Random::new(seed, 7));
        loop {
            let (side, block) = trial.next(&mut random).expect("a verdict comes before the last block");
            let factor = if side == Side::Candidate { factor } else { 1.0 };
            trial.observe(side, block, 1e-3 * factor * noise(&mut random));
            if let Some(verdict) = trial.verdict() {
                return verdict;
            }
        }
    }

    fn quiet(random: &mut Random) -> f64 {
        (0.03 * random.normal()).exp()
    }

    #[test]
    fn a_clear_gain_is_found_and_measured() {
        for seed in 0..20 {
            match run(1, 0.8, seed, quiet) {
                Verdict::Gain(gain) => assert!((gain.share - 0.2).abs() < 0.04, "seed {seed}: {gain:?}"),
                Verdict::NoSignificantGain => panic!("seed {seed}: a fifth was not found"),
            }
        }
    }

    #[test]
    fn a_loss_or_a_trifle_is_no_gain() {
        for seed in 0..20 {
            assert_eq!(run(1, 1.2, seed, quiet), Verdict::NoSignificantGain, "seed {seed}");
            assert_eq!(run(1, 0.99, seed, |random| (0.001 * random.normal()).exp()), Verdict::NoSignificantGain);
        }
    }

    #[test]
    fn two_modes_without_a_difference_are_no_gain() {
        let bimodal = |random: &mut Random| if random.below(3) == 0 { 3.0 } else { 1.0 } * quiet(random);
        let found = (0..1000).filter(|&seed| run(1, 1.0, seed, bimodal) != Verdict::NoSignificantGain).count();
        // 2.4 % of 1000 are expected at most.
        assert!(found <= 40, "{found} of 1000");
    }

    #[test]
    fn a_trial_whose_times_are_lost_comes_to_an_end() {
        let (mut trial, mut random) = (Trial::new(1), Random::new(3, 7));
        let given = std::iter::from_fn(|| trial.next(&mut random)).count();
        assert_eq!((given, trial.verdict()), (3 * 64, Some(Verdict::NoSignificantGain)));
    }

    #[test]
    fn later_trials_must_be_clearer() {
        assert!(Trial::new(10).level < Trial::new(1).level / 50.0);
        let all: f64 = (1..10_000).map(|number| Trial::new(number).level).sum();
        assert!(all < ERROR && all > 0.99 * ERROR, "{all}");
    }
}
