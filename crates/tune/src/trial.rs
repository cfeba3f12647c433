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

/// The same of a trial before the job, and the share of the default's time that is worth a change there.
const PATIENT_LOOKS: [usize; 4] = [16, 32, 64, 128];
const WORTHWHILE_FOR_NOTHING: f64 = 0.01;

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
mod tests {
    use super::*;

    /// Runs a trial in which the candidate takes `factor` times as long; `noise` draws the factor of a call.
    fn run(level: f64, factor: f64, seed: u64, noise: impl Fn(&mut Random) -> f64) -> Verdict {
        run_sides(level, seed, |side, random| if side == Side::Candidate { factor } else { 1.0 } * noise(random))
    }

    fn run_sides(level: f64, seed: u64, factor: impl Fn(Side, &mut Random) -> f64) -> Verdict {
        run_trial(Trial::new(level), seed, factor)
    }

    fn run_trial(mut trial: Trial, seed: u64, factor: impl Fn(Side, &mut Random) -> f64) -> Verdict {
        let mut random = Random::new(seed, 7);
        loop {
            let (side, block) = trial.next(&mut random).expect("a verdict comes before the last block");
            trial.observe(side, block, 1e-3 * factor(side, &mut random));
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
            match run(ERROR, 0.8, seed, quiet) {
                Verdict::Gain(gain) => assert!((gain.share - 0.2).abs() < 0.04, "seed {seed}: {gain:?}"),
                Verdict::NoSignificantGain => panic!("seed {seed}: a fifth was not found"),
            }
        }
    }

    /// One call in twenty takes twenty times as long, whatever the choice.
    #[test]
    fn late_calls_hide_no_gain_and_are_none() {
        let late = |random: &mut Random| if random.unit() < 0.05 { 20.0 } else { quiet(random) };
        let gains = |factor: f64, level: f64| {
            (0..400).filter(|&seed| matches!(run(level, factor, seed, late), Verdict::Gain(_))).count()
        };
        let (found, none) = (gains(0.8, ERROR), gains(1.0, ERROR));
        assert!(found > 340 && none <= 16, "{found} of 400 found, and {none} where there is none");
        // A candidate that alone is late gains nothing where that is seen: in two of three cases (0.95⁸), eight calls show none.
        let own = |side: Side, random: &mut Random| match side {
            Side::Candidate => 0.8 * late(random),
            _ => quiet(random),
        };
        let found = (0..400).filter(|&seed| matches!(run_sides(ERROR, seed, own), Verdict::Gain(_))).count();
        assert!(found < 300, "{found} of 400");
    }

    #[test]
    fn a_loss_or_a_trifle_is_no_gain() {
        for seed in 0..20 {
            assert_eq!(run(ERROR, 1.2, seed, quiet), Verdict::NoSignificantGain, "seed {seed}");
            assert_eq!(run(ERROR, 0.99, seed, |random| (0.001 * random.normal()).exp()), Verdict::NoSignificantGain);
        }
    }

    /// Two hundredths under three of noise: seldom found in 32 blocks, as a rule in as many as nobody waits for; and where there is no gain,
    /// patience finds none.
    #[test]
    fn patience_finds_small_gains_and_none_where_there_are_none() {
        let found = |trial: fn(f64) -> Trial, factor: f64| {
            let is_gain = |&seed: &u64| {
                let side =
                    |side, random: &mut Random| if side == Side::Candidate { factor } else { 1.0 } * quiet(random);
                matches!(run_trial(trial(ERROR), seed, side), Verdict::Gain(_))
            };
            (0..200).filter(is_gain).count()
        };
        let [patient, usual, none] = [found(Trial::patient, 0.98), found(Trial::new, 0.98), found(Trial::patient, 1.0)];
        assert!(patient > 150 && usual < 50 && none <= 8, "{patient}, {usual} and {none} of 200");
    }

    /// Of a candidate that is always slower, two blocks are made. One that gains a tenth under as much noise is hardly ever given up.
    #[test]
    fn what_is_worse_from_the_beginning_is_given_up() {
        let blocks_until = |factor: f64, noise: f64, seed: u64| {
            let (mut trial, mut random) = (Trial::brief(ERROR), Random::new(seed, 7));
            while trial.verdict().is_none() && trial.complete() < LOOKS[0] {
                let (side, block) = trial.next(&mut random).expect("it goes on");
                let usual = if side == Side::Candidate { factor } else { 1.0 };
                trial.observe(side, block, usual * (noise * random.normal()).exp());
            }
            trial.complete()
        };
        assert!((0..100).all(|seed| blocks_until(1.5, 0.03, seed) == GIVEN_UP));
        let given_up = (0..1000).filter(|&seed| blocks_until(0.9, 0.1, seed) < LOOKS[0]).count();
        // (1 − Φ(0.86))² = 3.8 %, of differences that vary by √1.5 times as much as calls.
        assert!((20..60).contains(&given_up), "{given_up} of 1000");
    }

    #[test]
    fn gains_over_what_stands_add_up() {
        let gain = |share: f64, margin: f64| Gain { share, margin, probability: 1e-3 };
        let both = gain(0.5, 0.03).after(&gain(0.2, 0.064));
        // Relative errors of 6 and 8 % are 10 % together.
        assert!((both.share - 0.6).abs() < 1e-12 && (both.margin - 0.04).abs() < 1e-12, "{both:?}");
        assert!((both.probability - 2e-3).abs() < 1e-12, "{both:?}");
    }

    #[test]
    fn two_modes_without_a_difference_are_no_gain() {
        let bimodal = |random: &mut Random| if random.below(3) == 0 { 3.0 } else { 1.0 } * quiet(random);
        let found = (0..1000).filter(|&seed| run(ERROR, 1.0, seed, bimodal) != Verdict::NoSignificantGain).count();
        // 4 % of 1000 are expected at most; who also asks for a gain in the sum finds fewer.
        assert!(found <= 40, "{found} of 1000");
    }

    #[test]
    fn a_trial_whose_times_are_lost_comes_to_an_end() {
        let (mut trial, mut random) = (Trial::new(ERROR), Random::new(3, 7));
        let given = std::iter::from_fn(|| trial.next(&mut random)).count();
        assert_eq!((given, trial.verdict()), (3 * 64, Some(Verdict::NoSignificantGain)));
    }

    /// Better by 15 % in nine calls of ten, and more than three times as slow in the tenth: the median gains, the sum loses 3 %.
    #[test]
    fn what_is_usually_better_and_worse_in_the_sum_is_seldom_a_gain() {
        let tails = |side: Side, random: &mut Random| {
            let slow = side == Side::Candidate && random.unit() < 0.09;
            let usual = if side == Side::Candidate { 0.85 } else { 1.0 };
            (if slow { 2.9 } else { usual }) * quiet(random)
        };
        let found = (0..400).filter(|&seed| run_sides(1e-4, seed, tails) != Verdict::NoSignificantGain).count();
        // Sixteen blocks without a slow call tell nobody that there are any: 0.91^16 is 22 %, 88 of 400. What passes so is noticed
        // by the sum of its calls afterwards.
        assert!(found <= 130, "{found} of 400");
    }

    /// One call in sixty is interrupted for a hundred times as long as it takes, as short calls are by an operating system.
    #[test]
    fn interrupted_calls_hide_no_gain_and_make_none() {
        let noise = |random: &mut Random| quiet(random) * if random.below(60) == 0 { 100.0 } else { 1.0 };
        let found = |factor: f64, seeds: std::ops::Range<u64>| {
            seeds.filter(|&seed| run(0.01, factor, seed, noise) != Verdict::NoSignificantGain).count()
        };
        let (gains, none) = (found(0.75, 0..200), found(1.0, 0..1000));
        assert!(gains >= 180, "a quarter was found in {gains} of 200");
        assert!(none <= 10, "{none} of 1000");
    }

    /// A quarter less as a rule, and twenty times as much in one call of thirty, which is two fifths more in the mean: these are no
    /// interruptions, or hardly a trial would miss the gain.
    #[test]
    fn long_tails_of_the_candidate_alone_are_its_own() {
        let tails = |side: Side, random: &mut Random| {
            let usual = if side == Side::Candidate { 0.75 } else { 1.0 };
            (if side == Side::Candidate && random.below(30) == 0 { 20.0 } else { usual }) * quiet(random)
        };
        let found = (0..400).filter(|&seed| run_sides(1e-5, seed, tails) != Verdict::NoSignificantGain).count();
        // Thirty-two blocks have one of them at most in seven cases of ten, which tells nobody anything.
        assert!(found <= 310, "{found} of 400");
    }

    /// If the default differs from itself, a gain is none, however clear.
    #[test]
    fn who_differs_from_himself_measures_something_else() {
        let drifting = |side: Side, random: &mut Random| {
            let factor = match side {
                Side::Default => 1.0,
                Side::Candidate => 0.8,
                Side::Control => 1.2,
            };
            factor * quiet(random)
        };
        for seed in 0..20 {
            assert_eq!(run_sides(ERROR, seed, drifting), Verdict::NoSignificantGain, "seed {seed}");
        }
    }

    #[test]
    fn trials_in_vain_must_be_clearer_and_gains_pay_for_further_ones() {
        let mut errors = Errors::default();
        let levels: Vec<f64> = (0..10_000).map(|_| errors.next_level()).collect();
        let all: f64 = levels.iter().sum();
        assert!(all < ERROR && all > 0.9 * ERROR, "{all}");
        assert!(levels.windows(2).all(|pair| pair[1] < pair[0]));
        assert!(levels[4] / 3.0 >= 3f64.powi(-8), "the first ones may end after 8 blocks: {}", levels[4]);
        errors.found();
        errors.found();
        assert!(errors.next_level() > 1000.0 * levels[9_999]);
        assert_eq!(errors.begun(), 10_001);
        // What nobody has looked at costs nothing.
        let level = errors.next_level();
        errors.broken_off(&Trial::new(level));
        assert_eq!((errors.next_level(), errors.begun()), (level, 10_002));
    }

    /// A gain of a fifth under noise of a tenth, after 199 trials in vain.
    #[test]
    fn the_two_hundredth_trial_still_finds_a_real_gain() {
        let mut errors = Errors::default();
        let level = (0..200).map(|_| errors.next_level()).last().expect("200 trials");
        let noise = |random: &mut Random| (0.1 * random.normal()).exp();
        let found =
            |factor: f64| (0..200).filter(move |&seed| run(level, factor, seed, noise) != Verdict::NoSignificantGain);
        let (gains, none) = (found(0.8).count(), found(1.0).count());
        assert!(gains >= 180 && none == 0, "{gains} and {none} of 200 at level {level:.1e}");
    }

    /// Two of three times are lost, as where ranks make fewer calls than were decided.
    #[test]
    fn a_trial_of_which_most_is_lost_ends() {
        let (mut trial, mut random) = (Trial::new(ERROR), Random::new(5, 7));
        let mut calls = 0;
        while trial.verdict().is_none() {
            let Some((side, block)) = trial.next(&mut random) else { panic!("neither a verdict nor a call") };
            if calls % 3 == 0 {
                trial.observe(side, block, 1e-3);
            }
            calls += 1;
            assert!(calls <= 3 * 64);
        }
    }
}
