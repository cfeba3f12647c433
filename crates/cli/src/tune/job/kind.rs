//! The calls of a context, round by round: what was decided for them and not seen yet, and what they have taken.

use std::collections::BTreeMap;

use paceline_tune::statistics::Tally;
use paceline_tune::{Choice, Decision, Situation, Tuner};

/// What calls were to take in so many rounds, and none of them took, is none of NCCL's choices.
pub(super) const UNHEARD_MAX: u32 = 3;

/// What was the longest of a round of NCCL's own choices counts so much less with each such round, as in our own jobs: about the last
/// thirty count.
const LONGEST_KEPT: f64 = 0.97;

/// Calls of a context.
pub(super) struct Kind {
    pub(super) situation: Situation,
    /// What was decided for a round that was not seen yet.
    pub(super) pending: Option<Decision>,
    /// The rounds that have passed since.
    pub(super) waited: u32,
    /// By arm, the rounds in which it was said, and no call went that way.
    unheard: BTreeMap<usize, u32>,
    /// Rounds since the first one that had such calls, and how many of them had some.
    pub(super) rounds: u32,
    pub(super) called: u32,
    /// How many times as long as their mean the longest of a round of the default's takes.
    longest: Tally,
    spent: Spent,
}

/// What calls have taken since the network has last changed.
#[derive(Clone, Debug, Default)]
struct Spent {
    drifts: u32,
    /// By arm, how many, and seconds of all of them.
    calls: BTreeMap<usize, (u64, f64)>,
}

/// What learning has taken.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// Seconds of the calls that were learned from.
    pub measured_s: f64,
    /// How many of them would have been saved, had the best that is known now been known from the start; 0 of what is not known.
    pub regret_s: f64,
}

impl Kind {
    /// Before the first round.
    pub(super) fn new(situation: Situation) -> Kind {
        Kind {
            situation,
            pending: None,
            waited: 0,
            unheard: BTreeMap::new(),
            rounds: 0,
            called: 0,
            longest: Tally::default(),
            spent: Spent::default(),
        }
    }

    /// What was decided for the next round, if anything was. What is called in fewer than half of the rounds would be tried in policies
    /// that are for hardly any of its calls.
    pub(super) fn to_play(&self) -> Option<Choice> {
        self.pending.filter(|_| !self.is_seldom()).map(|decision| self.situation.choice(decision.arm))
    }

    pub(super) fn is_seldom(&self) -> bool {
        2 * self.called < self.rounds
    }

    /// What was decided will not be seen.
    pub(super) fn give_up(&mut self, tuner: &mut Tuner) {
        if let Some(decision) = self.pending.take() {
            tuner.observe(&self.situation, decision, f64::NAN);
        }
    }

    /// A policy has had calls take this arm in a round, and at least one of them did, or none. Is that one too many? Then it is out, as
    /// NCCL does not offer it.
    pub(super) fn is_given_up(&mut self, tuner: &mut Tuner, arm: usize, is_heard: bool) -> bool {
        let rounds = if is_heard { 0 } else { self.unheard.remove(&arm).unwrap_or(0) + 1 };
        if rounds < UNHEARD_MAX {
            self.unheard.insert(arm, rounds);
            return false;
        }
        tuner.veto(&self.situation, arm);
        if let Some(decision) = self.pending.take_if(|decision| decision.arm == arm) {
            tuner.observe(&self.situation, decision, f64::NAN);
        }
        true
    }

    /// In a round calls took this arm, and so many seconds each. If it is what was decided, that is seen; if something else was played
    /// (the policy was refused, or there was no rule for it), the decision waits.
    pub(super) fn observe(&mut self, tuner: &mut Tuner, arm: usize, seconds: &[f64]) {
        let mean_s = mean(seconds);
        self.look_at_longest(tuner, arm, seconds);
        // The first round of a context is one of the default's, which is what comes first anyway.
        let decision = self.pending.take().unwrap_or_else(|| tuner.decide(&self.situation));
        if decision.arm == arm {
            self.waited = 0;
            tuner.observe(&self.situation, decision, mean_s);
        } else {
            self.pending = Some(decision);
            tuner.observe_repeated(&self.situation, arm, mean_s);
        }
        self.count(tuner, arm, seconds);
    }

    /// One call of a round is enough to put out what is tried, as in our own jobs. By how much the longest exceeds the mean with the default,
    /// too, is no fault of a choice: calls of a context differ in size, and of many, some are long by chance.
    fn look_at_longest(&mut self, tuner: &mut Tuner, arm: usize, seconds: &[f64]) {
        let longest_s = seconds.iter().copied().fold(0.0, f64::max);
        let times = longest_s / mean(seconds);
        if !times.is_finite() {
            return;
        }
        if arm == self.situation.default {
            self.longest.add(times, LONGEST_KEPT);
        } else {
            tuner.observe_longest(&self.situation, arm, longest_s / self.longest.mean.max(1.0));
        }
    }

    fn count(&mut self, tuner: &Tuner, arm: usize, seconds: &[f64]) {
        if seconds.is_empty() {
            return;
        }
        let course = tuner.courses().find(|(context, _)| **context == self.situation.context);
        let drifts = course.map_or(0, |(_, course)| course.drifts);
        if self.spent.drifts != drifts {
            self.spent = Spent { drifts, ..Spent::default() };
        }
        let (count, sum_s) = self.spent.calls.entry(arm).or_default();
        *count += seconds.len() as u64;
        *sum_s += seconds.iter().sum::<f64>();
    }

    /// What its calls have cost, if this choice is the best that is known.
    pub(super) fn cost(&self, best: Choice) -> Cost {
        let (count, measured_s) = self.spent.calls.values().fold((0, 0.0), |all, it| (all.0 + it.0, all.1 + it.1));
        let as_best_s = |&(of_best, seconds): &(u64, f64)| count as f64 * seconds / of_best as f64;
        let best = self.spent.calls.get(&self.situation.arm_of(best)).map(as_best_s);
        Cost { measured_s, regret_s: best.map_or(0.0, |best_s| (measured_s - best_s).max(0.0)) }
    }
}

/// No number of none, which is no time.
pub(super) fn mean(seconds: &[f64]) -> f64 {
    seconds.iter().sum::<f64>() / seconds.len() as f64
}
