//! How many bytes of gradients are fused into one call, found while a job runs: an outer knob, as the calls are what it makes them.
//!
//! A *step* is some iterations under one threshold. Steps under the one that stands and steps under a neighbour take turns, in the
//! blocks of a [`Trial`]; what wins stands, and its next neighbour in that direction is tried: hill climbing on the logarithm of bytes.
//! Too small a threshold makes many calls, too large a one makes them late: between the two the time of iterations has one valley.

use std::collections::VecDeque;
use std::iter;
use std::mem;

use crate::guard::VETO;
use crate::random::Random;
use crate::statistics::{Tally, median};
use crate::trial::{ERROR, Errors, Gain, Side, Trial, Verdict};

/// No smaller threshold is tried: what a call takes is latency then, and less is saved by an early start than further calls cost.
pub const LEAST_BYTES: u64 = 64 << 10;

/// A trial ends after so many steps in a row whose times say nothing, as trials of calls do.
const LOST_MAX: u32 = 64;

/// Of jobs in which nothing is better, so many may report a gain, be it of calls or of a threshold.
const OF_A_JOB: f64 = 0.05;

/// The error of a trial of thresholds, over that of the same one of calls: together they have what calls leave of [`OF_A_JOB`]. Calls keep
/// what they have, as they are tried by the hundred; thresholds are few, and each gain makes room for the next trial here, too.
const SHARE: f64 = (OF_A_JOB - ERROR) / ERROR;

/// So many iterations under what stands, the last ones, say what is usual.
const REMEMBERED: usize = 24;

/// The thresholds that a search may come to from `start`, nearest first: the smaller ones, each half of the one before, and the larger
/// ones, each twice of it; between [`LEAST_BYTES`] and `all`, the bytes of all gradients. What is larger than `all` means the same as that.
pub fn thresholds(start: u64, all: u64) -> [Vec<u64>; 2] {
    let (start, least) = (start.min(all), LEAST_BYTES.min(all));
    let smaller = iter::successors(Some(start), |&bytes| (bytes > least).then(|| (bytes / 2).max(least)));
    let larger =
        iter::successors(Some(start), |&bytes| (bytes < all).then(|| bytes.saturating_mul(2).clamp(least, all)));
    [smaller.skip(1).collect(), larger.skip(1).collect()]
}

/// The search for a threshold.
#[derive(Clone, Debug)]
pub struct FusionSearch {
    standing: u64,
    /// What may still be tried, nearest first: smaller ones, and larger ones.
    open: [VecDeque<u64>; 2],
    trial: Option<OnTrial>,
    gain: Option<Gain>,
    trials: u32,
    errors: Errors,
    random: Random,
    events: Vec<Event>,
    /// Seconds of the last iterations under what stands.
    usual_s: VecDeque<f64>,
    /// What the trials that have ended have cost.
    cost_s: f64,
}

/// A threshold that is tried.
#[derive(Clone, Debug)]
struct OnTrial {
    candidate: u64,
    /// Which part of what is open it comes from.
    direction: usize,
    trial: Trial,
    /// Whose the next step is, and the block in which it counts.
    turn: Option<(Side, usize)>,
    /// So many steps in a row have said nothing: its turn is still to come.
    lost: u32,
    /// Seconds of all its iterations.
    all: Tally,
    /// Of those under what stands, but for the first ones of steps.
    stands: Tally,
}

impl OnTrial {
    /// Seconds that its iterations have taken more than as many under what stands, which took `usual_s` before if none is of this trial.
    fn cost_s(&self, usual_s: Option<f64>) -> f64 {
        let stands_s = if self.stands.weight > 0.0 { Some(self.stands.mean) } else { usual_s };
        stands_s.map_or(0.0, |stands_s| self.all.weight * (self.all.mean - stands_s))
    }
}

/// What has come of a search so far. Thresholds are bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Event {
    /// A threshold is tried.
    Trial {
        /// Which.
        bytes: u64,
        /// Against which, that stands.
        standing: u64,
    },
    /// Iterations take less time with a threshold than with the one that stood: it stands.
    Gain {
        /// Which.
        bytes: u64,
        /// By how much.
        gain: Gain,
    },
    /// They take no less, as far as anybody could tell.
    NoSignificantGain {
        /// With which.
        bytes: u64,
    },
    /// Nobody knows: so many times in a row said nothing.
    NotMeasured {
        /// With which.
        bytes: u64,
    },
    /// Nothing is left to try: neither neighbour was found to be better, or there is none.
    Ended {
        /// What stands.
        bytes: u64,
    },
}

impl FusionSearch {
    /// From the threshold `start`, through those of `open`: smaller ones and larger ones, each nearest first ([`thresholds`]). The order
    /// of the sides of a block follows from the seed.
    pub fn new(start: u64, open: [Vec<u64>; 2], seed: u64) -> FusionSearch {
        let mut search = FusionSearch {
            standing: start,
            open: open.map(VecDeque::from),
            trial: None,
            gain: None,
            trials: 0,
            errors: Errors::default(),
            random: Random::new(seed, 0xf051),
            events: Vec::new(),
            usual_s: VecDeque::new(),
            cost_s: 0.0,
        };
        search.begin_trial();
        search
    }

    /// The threshold of the next step.
    pub fn threshold(&self) -> u64 {
        match &self.trial {
            Some(OnTrial { candidate, turn: Some((Side::Candidate, _)), .. }) => *candidate,
            _ => self.standing,
        }
    }

    /// The step's iterations have taken so many seconds. The first one comes after a change of plan: it costs, and says nothing about a
    /// threshold. Nor does a time that is none (not finite, or not above 0); if there is no other, the step is made once more.
    pub fn observe(&mut self, seconds: &[f64]) {
        let usual_s = self.usual_s();
        let Some(tried) = &mut self.trial else { return };
        seconds.iter().copied().filter(is_time).for_each(|seconds| tried.all.add(seconds, 1.0));
        let counted: Vec<f64> = seconds.iter().skip(1).copied().filter(is_time).collect();
        let Some((side, block)) = tried.turn.filter(|_| !counted.is_empty()) else {
            tried.lost += 1;
            if tried.lost >= LOST_MAX {
                self.end_trial(None);
            }
            return;
        };
        if side == Side::Candidate {
            if usual_s.is_some_and(|usual_s| is_much_slower(&counted, usual_s)) {
                return self.end_trial(Some(Verdict::NoSignificantGain));
            }
        } else {
            counted.iter().for_each(|&seconds| tried.stands.add(seconds, 1.0));
            self.usual_s.extend(&counted);
            let surplus = self.usual_s.len().saturating_sub(REMEMBERED);
            self.usual_s.drain(..surplus);
        }
        tried.trial.observe(side, block, counted.iter().sum::<f64>() / counted.len() as f64);
        tried.lost = 0;
        match tried.trial.verdict() {
            None => tried.turn = tried.trial.next(&mut self.random),
            verdict => self.end_trial(verdict),
        }
    }

    /// What is tried against what stands, if something is.
    pub fn on_trial(&self) -> Option<u64> {
        self.trial.as_ref().map(|trial| trial.candidate)
    }

    /// Is there nothing left to try?
    pub fn is_over(&self) -> bool {
        self.trial.is_none()
    }

    /// The threshold that stands.
    pub fn standing(&self) -> u64 {
        self.standing
    }

    /// What iterations gain by it against the one that the search has begun with: all its gains together, each of which was measured against
    /// the one before. None: there was none.
    pub fn gain(&self) -> Option<Gain> {
        self.gain
    }

    /// The trials that were begun.
    pub fn trials(&self) -> u32 {
        self.trials
    }

    /// Seconds that the iterations of all trials so far have taken more than as many under what stood at the time; less than 0 if those
    /// under thresholds that won have saved more than the others have cost.
    pub fn cost_s(&self) -> f64 {
        self.cost_s + self.trial.as_ref().map_or(0.0, |tried| tried.cost_s(self.usual_s()))
    }

    /// Seconds of an iteration under what stands.
    fn usual_s(&self) -> Option<f64> {
        median(&self.usual_s.iter().copied().collect::<Vec<_>>())
    }

    /// What has come of it since this was last asked.
    pub fn take_events(&mut self) -> Vec<Event> {
        mem::take(&mut self.events)
    }

    /// Tries the nearest threshold that is open.
    fn begin_trial(&mut self) {
        let nearest = |(direction, open): (usize, &mut VecDeque<u64>)| open.pop_front().map(|bytes| (direction, bytes));
        let Some((direction, candidate)) = self.open.iter_mut().enumerate().find_map(nearest) else {
            self.events.push(Event::Ended { bytes: self.standing });
            return;
        };
        let mut trial = Trial::new(SHARE * self.errors.next_level());
        self.trials += 1;
        let turn = trial.next(&mut self.random);
        self.events.push(Event::Trial { bytes: candidate, standing: self.standing });
        let (all, stands) = (Tally::default(), Tally::default());
        self.trial = Some(OnTrial { candidate, direction, trial, turn, lost: 0, all, stands });
    }

    /// `verdict`: none if it has come to none. Its error is spent all the same, also where nobody has looked: few trials end so.
    fn end_trial(&mut self, verdict: Option<Verdict>) {
        self.cost_s = self.cost_s();
        let Some(OnTrial { candidate, direction, .. }) = self.trial.take() else { return };
        // Time has one valley: beyond what is no better nothing is, nor behind what was left for something better.
        match verdict {
            Some(Verdict::Gain(gain)) => {
                self.errors.found();
                self.open[1 - direction].clear();
                self.standing = candidate;
                // What the one before took is no measure for what is tried next.
                self.usual_s.clear();
                self.gain = Some(self.gain.map_or(gain, |before| gain.after(&before)));
                self.events.push(Event::Gain { bytes: candidate, gain });
            }
            Some(Verdict::NoSignificantGain) => {
                self.open[direction].clear();
                self.events.push(Event::NoSignificantGain { bytes: candidate });
            }
            None => {
                self.open[direction].clear();
                self.events.push(Event::NotMeasured { bytes: candidate });
            }
        }
        self.begin_trial();
    }
}

/// More than [`VETO`] times what is usual is enough, as of a call. All that counts of a step must be: a machine that is interrupted makes an
/// iteration or two as long for anybody, and hardly all of them.
fn is_much_slower(iteration_s: &[f64], usual_s: f64) -> bool {
    iteration_s.len() > 1 && iteration_s.iter().all(|&seconds| seconds > VETO * usual_s)
}

fn is_time(seconds: &f64) -> bool {
    seconds.is_finite() && *seconds > 0.0
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;

    /// Iterations of a step.
    const STEP: usize = 4;

    /// What DDP begins with, of a model of 400 MiB.
    const START: u64 = 25 * MIB;
    const ALL: u64 = 400 * MIB;

    /// Searches to the end; `seconds` draws the time of a step under a threshold.
    fn search(seed: u64, mut seconds: impl FnMut(u64, &mut Random) -> f64) -> FusionSearch {
        let mut search = FusionSearch::new(START, thresholds(START, ALL), seed);
        let mut random = Random::new(seed, 0x57e9);
        for _ in 0..10_000 {
            if search.is_over() {
                return search;
            }
            let seconds = seconds(search.threshold(), &mut random);
            search.observe(&[seconds; STEP]);
        }
        panic!("seed {seed}: it does not end: {search:?}");
    }

    /// A tenth of a second more for each square of a factor of two from the bottom; 1 % noise.
    fn valley(bottom: u64) -> impl Fn(u64, &mut Random) -> f64 {
        move |bytes, random| {
            let off = (bytes as f64 / bottom as f64).log2();
            (1.0 + 0.1 * off * off) * (0.01 * random.normal()).exp()
        }
    }

    #[test]
    fn thresholds_are_halves_and_doubles_within_their_bounds() {
        let [smaller, larger] = thresholds(MIB, 5 * MIB);
        assert_eq!(smaller, [512 * KIB, 256 * KIB, 128 * KIB, 64 * KIB]);
        assert_eq!(larger, [2 * MIB, 4 * MIB, 5 * MIB]);
        let [smaller, larger] = thresholds(START, 300 * KIB);
        assert_eq!(smaller, [150 * KIB, 75 * KIB, 64 * KIB], "what is larger than all gradients means all of them");
        assert!(larger.is_empty(), "{larger:?}");
        let [smaller, larger] = thresholds(1, 200 * KIB);
        assert!(smaller.is_empty(), "{smaller:?}");
        assert_eq!(larger, [64 * KIB, 128 * KIB, 200 * KIB]);
        for (start, all) in [(START, 0), (0, 0), (u64::MAX, KIB), (64 * KIB, 64 * KIB)] {
            assert!(thresholds(start, all).iter().all(Vec::is_empty), "{start} of {all}");
        }
    }

    #[test]
    fn the_bottom_of_a_valley_is_found() {
        for (bottom, rest) in [(START >> 5, 1.0 / 3.5), (START, 1.0), (4 * START, 1.0 / 1.4)] {
            for seed in 0..20 {
                let search = search(seed, valley(bottom));
                assert_eq!(search.standing(), bottom, "seed {seed}: {search:?}");
                let share = search.gain().map_or(0.0, |gain| gain.share);
                assert!((share - (1.0 - rest)).abs() < 0.03, "seed {seed}: a gain of {share}, and {rest} is left");
                assert_eq!(search.threshold(), bottom, "seed {seed}: it stands");
            }
        }
    }

    /// A hundredth of the jobs at most. Calls, which are tuned afterwards by trials of their own, report a gain in 4 % of them
    /// (`tests/honesty.rs`), so that one or the other is reported in 5 %: the chance of a sum is no more than the sum of the chances.
    #[test]
    fn where_there_is_noise_only_nothing_is_reported() {
        let noise = |_: u64, random: &mut Random| (0.05 * random.normal()).exp();
        let found = (0..1000).filter(|&seed| search(seed, noise).gain().is_some()).count();
        assert!(found <= 10, "{found} of 1000");
    }

    /// Both neighbours take five times as long. The first step of all may be of one of them, before anybody knows what is usual.
    #[test]
    fn a_threshold_that_is_much_slower_is_out_at_once() {
        for seed in 0..20 {
            let mut tried = 0;
            let search = search(seed, |bytes, random| {
                tried += u32::from(bytes != START);
                let usual_s = if bytes == START { 1.0 } else { 5.0 };
                usual_s * (0.05 * random.normal()).exp()
            });
            assert_eq!((search.standing(), search.trials()), (START, 2), "seed {seed}: {search:?}");
            assert!((2..=3).contains(&tried), "seed {seed}: {tried} steps");
        }
    }

    /// The first iteration of a step may take what it likes, and so may one or two of the others.
    #[test]
    fn interrupted_iterations_end_no_trial() {
        let steps = |long: usize| {
            let (mut search, mut tried) = (FusionSearch::new(START, thresholds(START, ALL), 6), 0);
            while search.on_trial() == Some(START / 2) {
                let mut seconds = [1.0; STEP];
                if search.threshold() != START {
                    seconds[..=long].fill(10.0);
                    tried += 1;
                }
                search.observe(&seconds);
            }
            tried
        };
        // After eight blocks it is no better.
        assert_eq!([0, 1, 2].map(steps), [8; 3]);
        assert!((1..=2).contains(&steps(3)), "{}", steps(3));
    }

    /// Two neighbours, each in 24 steps of 4 iterations: a third of them take a second more, and of all steps the first one half a second.
    #[test]
    fn what_the_search_has_cost_is_told() {
        let mut search = FusionSearch::new(START, thresholds(START, ALL), 7);
        let mut steps = 0;
        while !search.is_over() {
            let seconds = if search.threshold() == START { 1.0 } else { 2.0 };
            search.observe(&[seconds + 0.5, seconds, f64::INFINITY, seconds, seconds]);
            steps += 1;
            let told = search.cost_s();
            assert!(steps < 3 || told > 0.0, "it is told from the start: {told} s after {steps} steps");
        }
        assert!(steps == 48 && (search.cost_s() - 2.0 * (8.0 * 4.0 + 24.0 * 0.5)).abs() < 1e-6, "{search:?}");
    }

    /// Half of what stood, in a trial of 8 blocks.
    #[test]
    fn what_has_won_has_cost_nothing() {
        let search = search(8, |bytes, _| if bytes < START { 0.5 } else { 1.0 });
        assert!(search.cost_s() < -10.0, "{search:?}");
    }

    #[test]
    fn every_step_of_the_search_is_told_and_none_is_made_twice() {
        let mut search = search(3, valley(START / 4));
        let events = search.take_events();
        let [half, quarter, eighth] = [START / 2, START / 4, START / 8];
        let told: Vec<(u64, bool)> = events
            .iter()
            .filter_map(|event| match *event {
                Event::Gain { bytes, .. } => Some((bytes, true)),
                Event::NoSignificantGain { bytes } => Some((bytes, false)),
                Event::Trial { .. } | Event::NotMeasured { .. } | Event::Ended { .. } => None,
            })
            .collect();
        assert_eq!(told, [(half, true), (quarter, true), (eighth, false)], "{events:?}");
        let trials = [(half, START), (quarter, half), (eighth, quarter)];
        let trials = trials.map(|(bytes, standing)| Event::Trial { bytes, standing });
        assert!(trials.iter().all(|trial| events.iter().filter(|event| *event == trial).count() == 1), "{events:?}");
        assert_eq!(events.last(), Some(&Event::Ended { bytes: quarter }), "{events:?}");
        assert_eq!((events.len(), search.trials()), (7, 3), "{events:?}");
        assert!(search.take_events().is_empty(), "they were told");
    }

    /// As of an iteration in which an epoch has ended.
    #[test]
    fn times_that_are_none_end_no_trial() {
        let (mut steps, bottom) = (0, START / 2);
        let broken = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, -1.0];
        let search = search(4, |bytes, random| {
            steps += 1;
            if steps % 3 == 0 { broken[steps % broken.len()] } else { valley(bottom)(bytes, random) }
        });
        assert_eq!((search.standing(), search.trials()), (bottom, 2), "{search:?}");
    }

    #[test]
    fn a_search_of_which_no_time_says_anything_ends() {
        let mut search = search(5, |_, _| f64::NAN);
        let events = search.take_events();
        assert!(events.contains(&Event::NotMeasured { bytes: START / 2 }), "{events:?}");
        assert_eq!((search.standing(), search.trials(), search.gain()), (START, 2, None), "{search:?}");
    }

    #[test]
    fn where_there_is_one_threshold_only_nothing_is_tried() {
        let mut search = FusionSearch::new(KIB, thresholds(KIB, KIB), 1);
        search.observe(&[1.0; STEP]);
        assert!(search.is_over() && search.threshold() == KIB && search.trials() == 0, "{search:?}");
        assert_eq!(search.take_events(), [Event::Ended { bytes: KIB }]);
    }
}
