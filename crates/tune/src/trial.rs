//! An interleaved test of one choice against the default, or against what stands in its place, with that as a second, separate arm: what
//! differs between the default and itself is noise.

use crate::random::Random;
use crate::statistics::{aligned_ranks, mean_and_error, median, median_margin, signed_rank};

/// Less than that is no gain worth a change: a share of the time.
pub const WORTHWHILE: f64 = 0.03;

/// A call that takes so many times as long as the default does as a rule was interrupted: that happens to any now and then, and how much
/// longer it took says nothing more. Whatever happens to a choice often is its own. (Tails that choices have of themselves in simulations are
/// 3.4 times as long; a process that has lost its processor waits a thousand short calls.)
pub(crate) const INTERRUPTED: f64 = 4.0;

/// How many blocks there are when results are looked at.
const LOOKS: [usize; 3] = [8, 16, 32];

/// The same of a trial before the job.
const PATIENT_LOOKS: [usize; 4] = [16, 32, HALF_AS_PATIENT_BLOCKS, PATIENT_BLOCKS];

/// The share of the default's time that is worth a change there.
pub const WORTHWHILE_FOR_NOTHING: f64 = 0.01;

/// Blocks of a [`Trial::patient`], at most.
pub const PATIENT_BLOCKS: usize = 128;

/// The same where there is half the time.
pub const HALF_AS_PATIENT_BLOCKS: usize = 64;

/// How often a job in which nothing is better may report a gain, in all its trials together.
pub const ERROR: f64 = 0.04;

/// Of the gains that a job reports, such a share may be none.
const FALSE_DISCOVERIES: f64 = 0.05;

/// The default may look different from itself so seldom, to each side, before something else than the choice is measured. It
/// does not shrink with the level of a trial: whoever doubts the candidate more must not doubt the measurement less. Of 8 blocks, it is
/// the case that all point to one side (2⁻⁸, a bit less than that).
const CALM: f64 = 0.004;

/// A trial of calls is given up if the candidate is slower in so many blocks at first: that happens to one that gains a tenth, under as much
/// noise, in one case of 25, and each block costs what the candidate loses. Where nothing is better it only makes a gain rarer.
const GIVEN_UP: usize = 2;

/// Deviations of the mean to the upper end of what a candidate costs in the sum: about 95 %, one-sided, with few blocks (Student's
/// t for 8 of them is 1.9).
const IN_SUM: f64 = 1.9;

/// The sum of 1/(n·ln²(n + 1)) over all n.
const SERIES: f64 = 3.387_735;

/// Which error each trial of a job may make, so that however many there are, both [`ERROR`] and [`FALSE_DISCOVERIES`] hold: what is
/// found pays for further trials (Foster and Stine, "α-investing", 2008). By the rule LORD++ of Ramdas, Yang, Wainwright and
/// Jordan ("Online control of the false discovery rate with decaying memory", 2017), whose series falls slowly: the 200th
/// trial in vain still may err once in half a million, which a gain of a fifth under noise of a tenth needs less than.
#[derive(Clone, Debug, Default)]
pub struct Errors {
    begun: u32,
    /// How many trials had begun when each gain was found.
    found: Vec<u32>,
    /// The levels of trials that ended before anybody looked.
    unspent: Vec<f64>,
}

impl Errors {
    /// The level of the next trial.
    pub fn next_level(&mut self) -> f64 {
        if let Some(level) = self.unspent.pop() {
            return level;
        }
        self.begun += 1;
        let of = |before: u32| {
            let number = f64::from(self.begun - before);
            1.0 / (SERIES * number * (number + 1.0).ln().powi(2))
        };
        let income = self.found.iter().enumerate().map(|(place, &before)| {
            let earned = if place == 0 { FALSE_DISCOVERIES - ERROR } else { FALSE_DISCOVERIES };
            earned * of(before)
        });
        ERROR * of(0) + income.sum::<f64>()
    }

    /// A trial has found a gain.
    pub fn found(&mut self) {
        self.found.push(self.begun);
    }

    /// A trial has ended as the network has changed. If nobody has looked at it, nothing of its error is spent.
    pub fn broken_off(&mut self, trial: &Trial) {
        if trial.complete() < LOOKS[0] {
            self.unspent.push(trial.level);
        }
    }

    /// The trials that were begun.
    pub fn begun(&self) -> u32 {
        self.begun
    }
}

/// The arms of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The default, or what stands.
    Default,
    /// The candidate.
    Candidate,
    /// The same as [`Side::Default`] again.
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
    /// Is it given up if its first blocks say nothing good?
    is_brief: bool,
    /// After so many blocks it is looked at.
    looks: &'static [usize],
    /// The share that must be saved.
    worthwhile: f64,
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
    /// The share of the default's time that is saved: of the median of all pairs and of their sums, what is less.
    pub share: f64,
    /// How far that may be off, to each side (about 95 %).
    pub margin: f64,
    /// How likely chance alone would look like it.
    pub probability: f64,
}

impl Gain {
    /// Of a choice that is better by this than one that is better than the default by `before`: over the default. What is left of the time
    /// is multiplied, margins of trials that know nothing of each other add up as squares, and chance may have made either gain.
    pub(crate) fn after(&self, before: &Gain) -> Gain {
        let left = |gain: &Gain| 1.0 - gain.share;
        Gain {
            share: 1.0 - left(self) * left(before),
            margin: (left(before) * self.margin).hypot(left(self) * before.margin),
            probability: (self.probability + before.probability).min(1.0),
        }
    }
}

impl Trial {
    /// A trial that may report a gain where there is none with this probability: [`ERROR`] for one that stands alone, what
    /// [`Errors`] says for one of many.
    pub fn new(level: f64) -> Trial {
        Trial { blocks: Vec::new(), left: Vec::new(), level, is_brief: false, looks: &LOOKS, worthwhile: WORTHWHILE }
    }

    /// The same, given up after two blocks in which the candidate was slower: for calls of which others are to be tried as well. Iterations
    /// are few and decide for thousands, so that it is worth while to know.
    pub fn brief(level: f64) -> Trial {
        Trial { is_brief: true, ..Trial::new(level) }
    }

    /// The same of as many blocks as a gain of a hundredth needs, for what costs nobody anything.
    pub fn patient(level: f64) -> Trial {
        Trial { looks: &PATIENT_LOOKS, worthwhile: WORTHWHILE_FOR_NOTHING, ..Trial::new(level) }
    }

    /// The same of [`HALF_AS_PATIENT_BLOCKS`].
    pub fn half_as_patient(level: f64) -> Trial {
        Trial { looks: &PATIENT_LOOKS[..PATIENT_LOOKS.len() - 1], ..Trial::patient(level) }
    }

    /// Does the next call begin a block?
    pub fn is_between_blocks(&self) -> bool {
        self.left.is_empty()
    }

    /// What to play next, and in which block it counts. None when enough is under way: then results must come first.
    pub fn next(&mut self, random: &mut Random) -> Option<(Side, usize)> {
        if self.left.is_empty() {
            // Times may be lost; then further blocks take their place, to an end.
            if self.complete() >= self.blocks_max() || self.is_exhausted() {
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
    ///
    /// A gain must show block by block (by ranks, whatever the distribution) and in the sum: a choice that is usually faster and
    /// sometimes much slower costs more than it saves.
    pub fn verdict(&self) -> Option<Verdict> {
        let complete: Vec<&[f64; 3]> =
            self.blocks.iter().filter(|block| block.iter().all(|it| it.is_finite())).collect();
        let Some(look) = self.looks.iter().position(|&look| look == complete.len()) else {
            let over = self.is_exhausted() || self.is_brief && is_hopeless(&complete);
            return over.then_some(Verdict::NoSignificantGain);
        };
        let against = |side: Side| -> Vec<f64> {
            complete.iter().map(|block| (block[side as usize] / block[Side::Default as usize]).ln()).collect()
        };
        let (candidate, control) = (against(Side::Candidate), against(Side::Control));
        let logs: Vec<[f64; 3]> = complete.iter().map(|block| block.map(f64::ln)).collect();
        let probability = aligned_ranks(&logs, Side::Candidate as usize);
        let (middle, noise) = (median(&candidate)?, median(&control)?);
        // If the default differs from itself, something else is measured.
        let mirrored: Vec<f64> = control.iter().map(|it| -it).collect();
        let calm = signed_rank(&control) > CALM && signed_rank(&mirrored) > CALM;
        let saved = saved_in_sum(&complete);
        let clear =
            -middle > noise.abs().max(-(1.0 - self.worthwhile).ln()) && saved.is_some_and(|it| it > self.worthwhile);
        if calm && clear && probability <= self.level_at(look) {
            let margin = middle.exp() * median_margin(&candidate);
            let share = saved.unwrap_or(0.0).min(1.0 - middle.exp());
            return Some(Verdict::Gain(Gain { share, margin, probability }));
        }
        let hopeless = middle >= 0.0;
        (hopeless || look + 1 == self.looks.len()).then_some(Verdict::NoSignificantGain)
    }

    /// What may be erred at a look: equal shares (Bonferroni) of those looks that can find anything at all. The least
    /// probability of n blocks is 3⁻ⁿ.
    fn level_at(&self, look: usize) -> f64 {
        let looks = self.looks;
        let share = |from: usize| self.level / (looks.len() - from) as f64;
        let useful = |from: &usize| share(*from) >= 3f64.powi(-(looks[*from] as i32));
        let first = (0..looks.len()).find(useful).unwrap_or(looks.len() - 1);
        if look < first { 0.0 } else { share(first) }
    }

    /// Have so many times been lost that there will be no further blocks?
    fn is_exhausted(&self) -> bool {
        self.left.is_empty() && self.blocks.len() >= 2 * self.blocks_max()
    }

    /// After so many blocks it ends.
    fn blocks_max(&self) -> usize {
        self.looks.last().copied().unwrap_or(0)
    }

    /// Blocks that are complete.
    pub fn complete(&self) -> usize {
        self.blocks.iter().filter(|block| block.iter().all(|it| it.is_finite())).count()
    }
}

/// Was the candidate slower in all of these blocks, which are enough to say so?
fn is_hopeless(blocks: &[&[f64; 3]]) -> bool {
    let is_slower = |block: &&[f64; 3]| {
        block[Side::Candidate as usize] > 0.5 * (block[Side::Default as usize] + block[Side::Control as usize])
    };
    blocks.len() >= GIVEN_UP && blocks.iter().all(is_slower)
}

/// The share of the default's time that the candidate saves in the sum of all blocks, if that is more than chance: None if it may as
/// well save nothing.
fn saved_in_sum(blocks: &[&[f64; 3]]) -> Option<f64> {
    let of_default = blocks.iter().flat_map(|block| [block[Side::Default as usize], block[Side::Control as usize]]);
    let usual_s = median(&of_default.collect::<Vec<f64>>())?;
    let most_s = INTERRUPTED * usual_s;
    let beyond = |side: Side| blocks.iter().filter(|block| block[side as usize] > most_s).count();
    let (of_candidate, of_others) = (beyond(Side::Candidate), beyond(Side::Default) + beyond(Side::Control));
    let own_s = median(&blocks.iter().map(|block| block[Side::Candidate as usize]).collect::<Vec<f64>>())?;
    // What happens to all of them says nothing about any: as often as to each of the others, it is left out.
    let mut left_out = of_others.div_ceil(2);
    let mut counted = |side: usize, seconds: f64| match seconds > most_s {
        false => seconds,
        true if side != Side::Candidate as usize => usual_s,
        true if left_out > 0 => {
            left_out -= 1;
            own_s
        }
        // What happens to the candidate more often than to both others together is its own.
        true if of_candidate > 1 + of_others => seconds,
        true => most_s,
    };
    let blocks: Vec<[f64; 3]> = blocks.iter().map(|block| [0, 1, 2].map(|side| counted(side, block[side]))).collect();
    let default = |block: &[f64; 3]| 0.5 * (block[Side::Default as usize] + block[Side::Control as usize]);
    let differences: Vec<f64> = blocks.iter().map(|block| block[Side::Candidate as usize] - default(block)).collect();
    let (mean, error) = mean_and_error(&differences)?;
    let default_s = blocks.iter().map(default).sum::<f64>() / blocks.len() as f64;
    (mean + IN_SUM * error < 0.0).then(|| -mean / default_s)
}

#[cfg(test)]
mod tests;
