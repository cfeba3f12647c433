//! What keeps the tuner from costing more than it may: a conservative bandit, whose default is an arm like any other.
//!
//! Source: Kazerouni, Ghavamzadeh, Abbasi-Yadkori and Van Roy, "Conservative contextual linear bandits" (arXiv 1611.06426),
//! and Garcelon, Ghavamzadeh, Lazaric and Pirotta, "Improved algorithms for conservative exploration in bandits" (arXiv
//! 2002.03221), with times in the place of rewards: what is played must leave the sum of all times, at the upper end of
//! what is believed, within (1 + α) times what the default would have taken.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::action::{Action, Situation};
use crate::learner::Belief;
use crate::prior::Budget;
use crate::state::Context;

/// What is modelled to take so many times as long as the best is never tried.
pub const NEVER_TRIED: f64 = 4.0;

/// One call that takes so many times as long as the default is enough.
pub const VETO: f64 = 3.0;

/// Deviations to the upper end of what is believed. What is played may err to both sides, and what it really took is counted; two
/// of them, as models are wrong by far more often than a normal distribution says.
const CAUTION: f64 = 2.0;

/// So many calls of a context are taken for granted when its allowance is reckoned, so that something can be tried early. After a
/// hundred calls their sum is meant to be within (1 + 1.3α) times the default's, after many within (1 + α). What is left to 2 %
/// is for the last call tried, which may take longer than anybody believed.
const GRANTED: f64 = 30.0;

/// The allowance of all contexts together, which each of them has to keep besides its own.
const OF_ALL: f64 = 0.01;

/// The same of all contexts together: there, (1 + 2α) after a hundred calls, less what is kept for a surprise.
const GRANTED_TO_ALL: f64 = 100.0;

/// Deviations by which a call may be off with the promise still kept. Beliefs assume normal distributions; choices far from the
/// model are more frequent than that (in simulations, one in thousands was off by five deviations).
const SURPRISED: f64 = 5.5;

/// A surprise is no longer than so many times what is believed, as a logarithm: three and a half times.
const SURPRISE_MAX: f64 = 1.25;

/// What all tries may have taken more than the default, as a share of its time, if the next one is a surprise. The promise is
/// 2 %; the rest is for a disturbance that makes that very call slow besides.
const PROMISED: f64 = 0.017;

/// The promise begins at so many calls.
const PROMISED_FROM: f64 = 100.0;

/// Calls of the default before anything else is played in a context.
pub const DEFAULTS_FIRST: usize = 4;

/// Watches all contexts.
#[derive(Clone, Debug, Default)]
pub struct Guard {
    watches: BTreeMap<Context, Watch>,
    /// Of all contexts.
    all: Account,
}

/// What calls have taken, and what the default would have.
#[derive(Clone, Copy, Debug, Default)]
struct Account {
    /// Seconds that the default would have taken for all calls, as far as it is known.
    usual_s: f64,
    /// Calls that it is the sum of.
    calls: f64,
    /// Seconds that other choices took more than that; negative if they gained.
    excess_s: f64,
    /// Seconds that calls under way may take more, at the upper end.
    pending_s: f64,
    /// The same, should they all be surprises.
    pending_worst_s: f64,
}

/// How much a call may take.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Room {
    /// Seconds of the default.
    pub usual_s: f64,
    /// Seconds that it may take more than that, at the upper end of what is believed; negative if all is spent.
    pub free_s: f64,
    /// Seconds that it may take more than the default even if it is a surprise: so much that the promise is still kept.
    pub surprise_s: f64,
}

/// What is set aside for a call under way: seconds that it may take more than the default.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Risk {
    /// At the upper end of what is believed.
    upper_s: f64,
    /// If it is a surprise.
    worst_s: f64,
}

#[derive(Clone, Debug, Default)]
struct Watch {
    account: Account,
    vetoed: BTreeSet<Action>,
    /// The default's last seconds.
    default_s: VecDeque<f64>,
    /// What the last calls took more than the default.
    recent: VecDeque<f64>,
}

/// So many calls may pass before a change of the network is noticed.
const UNNOTICED: usize = 16;

/// Deviations to the lower end of what the default takes.
const DOUBTED: f64 = 1.5;

/// So many of the default's calls say what it takes, so that it follows the network.
const REMEMBERED: usize = 31;

impl Guard {
    /// Which arms may be tried at all. The default always may.
    pub fn admitted(&self, situation: &Situation) -> Vec<bool> {
        let limit = NEVER_TRIED * situation.cheapest_s();
        let vetoed = |action: &Action| self.is_vetoed(&situation.context, action);
        let arms = situation.arms.iter().enumerate();
        arms.map(|(number, arm)| number == situation.default || arm.modelled_s <= limit && !vetoed(&arm.action))
            .collect()
    }

    /// May this arm be played now? `belief`: what is known of it. A refused arm may be played later, when more is known.
    pub fn may_play(&self, situation: &Situation, arm: usize, belief: Belief) -> bool {
        let has_room = || self.room(situation).is_some_and(|room| room.has_for(belief));
        arm == situation.default || !self.is_vetoed(&situation.context, &situation.arms[arm].action) && has_room()
    }

    /// How much a call may take here. None if too little is known of the default: then nothing else may be played.
    pub fn room(&self, situation: &Situation) -> Option<Room> {
        let usual_s = self.default_seconds(&situation.context)?;
        let account = self.watches.get(&situation.context)?.account;
        let allowed = Budget::of(&situation.state).allowance();
        let of_all_s = self.all.free_s(OF_ALL, usual_s, GRANTED_TO_ALL);
        let free_s = account.free_s(allowed, usual_s, GRANTED).min(of_all_s);
        let surprise_s = account.promised_s(usual_s).min(self.all.promised_s(usual_s));
        Some(Room { usual_s, free_s, surprise_s })
    }

    /// A call begins. Returns what is to be given back to [`Guard::release`].
    pub fn began(&mut self, situation: &Situation, arm: usize, belief: Belief) -> Risk {
        let usual_s = self.default_seconds(&situation.context).filter(|_| arm != situation.default);
        let risk = usual_s.map_or_else(Risk::default, |usual_s| Risk::of(belief, usual_s));
        for account in self.accounts(&situation.context) {
            account.pending_s += risk.upper_s;
            account.pending_worst_s += risk.worst_s;
        }
        risk
    }

    /// It has ended, or will never end.
    pub fn release(&mut self, context: &Context, risk: Risk) {
        for account in self.accounts(context) {
            account.pending_s = (account.pending_s - risk.upper_s).max(0.0);
            account.pending_worst_s = (account.pending_worst_s - risk.worst_s).max(0.0);
        }
    }

    /// It took so many seconds.
    pub fn ended(&mut self, situation: &Situation, arm: usize, seconds: f64) {
        let watch = self.watches.entry(situation.context).or_default();
        if arm == situation.default {
            push(&mut watch.default_s, seconds, REMEMBERED);
            self.accounts(&situation.context).into_iter().for_each(|account| account.add(seconds, 0.0));
        } else if let Some(usual_s) = watch.usual_s() {
            let excess_s = seconds - usual_s;
            push(&mut watch.recent, excess_s, UNNOTICED);
            if seconds > VETO * usual_s {
                watch.vetoed.insert(situation.arms[arm].action);
            }
            self.accounts(&situation.context).into_iter().for_each(|account| account.add(usual_s, excess_s));
        }
    }

    /// A call of a choice that a trial has found to save this share of the default's time. What the default would take now
    /// is reckoned from that: when it was last played, the network may have been another.
    pub fn ended_chosen(&mut self, context: &Context, share: f64, seconds: f64) {
        let usual_s = seconds / (1.0 - share.clamp(0.0, 0.99));
        self.accounts(context).into_iter().for_each(|account| account.add(usual_s, seconds - usual_s));
    }

    fn accounts(&mut self, context: &Context) -> [&mut Account; 2] {
        [&mut self.watches.entry(*context).or_default().account, &mut self.all]
    }

    /// Seconds of the default; None until it was played [`DEFAULTS_FIRST`] times.
    pub fn default_seconds(&self, context: &Context) -> Option<f64> {
        let watch = self.watches.get(context).filter(|watch| watch.default_s.len() >= DEFAULTS_FIRST)?;
        watch.usual_s()
    }

    /// The network has changed in a context: what was vetoed may be good now, and the default's times are old. What the last
    /// calls took more than the default had taken before is not charged to those who chose them.
    pub fn forget(&mut self, context: &Context) {
        if let Some(watch) = self.watches.get_mut(context) {
            let unnoticed_s = watch.recent.iter().sum::<f64>().max(0.0);
            let account = Account { excess_s: watch.account.excess_s - unnoticed_s, ..watch.account };
            *watch = Watch { account, ..Watch::default() };
            self.all.excess_s -= unnoticed_s;
        }
    }

    /// What all non-default choices together took more than the default, as a share of the default's time; negative if they
    /// gained.
    pub fn excess(&self) -> f64 {
        if self.all.usual_s > 0.0 { self.all.excess_s / self.all.usual_s } else { 0.0 }
    }

    /// Was one call of it enough?
    pub fn is_vetoed(&self, context: &Context, action: &Action) -> bool {
        self.watches.get(context).is_some_and(|watch| watch.vetoed.contains(action))
    }

    /// The choices of a context that one call was enough for.
    pub fn vetoed(&self, context: &Context) -> usize {
        self.watches.get(context).map_or(0, |watch| watch.vetoed.len())
    }
}

impl Watch {
    /// Seconds of the default, at the lower end of what its last calls say: the lower end of an interval for their median, by
    /// ranks (David and Nagaraja, "Order statistics", 2003, section 7.1). Gains are counted against it, and were it 3 % too high,
    /// thirty calls that gain nothing would make room for a try that takes twice as long.
    fn usual_s(&self) -> Option<f64> {
        let mut sorted: Vec<f64> = self.default_s.iter().copied().collect();
        sorted.sort_by(f64::total_cmp);
        let count = sorted.len() as f64;
        let rank = 0.5 * (count - DOUBTED * count.sqrt()).max(0.0);
        sorted.get(rank as usize).copied()
    }
}

fn push(last: &mut VecDeque<f64>, value: f64, length: usize) {
    last.push_back(value);
    if last.len() > length {
        last.pop_front();
    }
}

impl Room {
    /// Is there room for it, and is it better than the default as far as is known?
    pub fn is_free(&self, belief: Belief) -> bool {
        self.has_for(belief) && belief.mean.exp() <= self.usual_s
    }

    /// Is there room for an arm of which so much is known?
    pub fn has_for(&self, belief: Belief) -> bool {
        // A gain of the past may be spent; what is believed to be gained now may not: when all is spent, it is the default's
        // turn, whatever a learner believes.
        let risk = Risk::of(belief, self.usual_s);
        risk.upper_s <= self.free_s && risk.worst_s <= self.surprise_s
    }
}

impl Account {
    fn add(&mut self, usual_s: f64, excess_s: f64) {
        self.usual_s += usual_s;
        self.calls += 1.0;
        self.excess_s += excess_s;
    }

    /// How many seconds more than the default's `usual_s` the next call may take, if this share is allowed.
    fn free_s(&self, allowed: f64, usual_s: f64, granted: f64) -> f64 {
        let granted_s = granted * self.usual_s / self.calls.max(1.0);
        allowed * (self.usual_s + usual_s + granted_s) - self.excess_s - self.pending_s
    }

    /// How many seconds more than the default's `usual_s` the next call may take at the very worst. What is lost before the
    /// promise begins is spread over all calls until then.
    fn promised_s(&self, usual_s: f64) -> f64 {
        let missing = (PROMISED_FROM - self.calls - 1.0).max(0.0);
        let missing_s = missing * self.usual_s / self.calls.max(1.0);
        PROMISED * (self.usual_s + usual_s + missing_s) - self.excess_s - self.pending_worst_s
    }
}

impl Risk {
    fn of(belief: Belief, usual_s: f64) -> Risk {
        let more_s = |away: f64| ((belief.mean + away).exp() - usual_s).max(0.0);
        let (caution, surprise) = (CAUTION * belief.deviation, SURPRISED * belief.deviation);
        Risk { upper_s: more_s(caution), worst_s: more_s(surprise.min(SURPRISE_MAX).max(caution)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::action::Arm;
    use crate::action::tests::situation;

    const SURE: Belief = Belief { mean: -7.0, deviation: 0.01 };

    fn with_defaults(situation: &Situation, calls: usize) -> Guard {
        let mut guard = Guard::default();
        (0..calls).for_each(|_| guard.ended(situation, situation.default, 1e-3));
        guard
    }

    #[test]
    fn what_is_modelled_far_worse_is_never_tried() {
        let mut situation = situation();
        situation.arms[0] = Arm { modelled_s: 4.1e-3, ..situation.arms[0] };
        situation.arms[situation.default].modelled_s = 9e-3;
        let admitted = Guard::default().admitted(&situation);
        assert!(!admitted[0] && admitted[1] && admitted[situation.default]);
    }

    #[test]
    fn one_call_is_enough_for_a_veto_and_a_change_lifts_it() {
        let situation = situation();
        let mut guard = with_defaults(&situation, 10);
        guard.ended(&situation, 0, 2.9e-3);
        assert!(guard.admitted(&situation)[0]);
        guard.ended(&situation, 0, 3.1e-3);
        assert!(!guard.admitted(&situation)[0]);
        assert_eq!(guard.vetoed(&situation.context), 1);
        assert!(!guard.may_play(&situation, 0, SURE), "not in a trial either");
        guard.forget(&situation.context);
        assert!(guard.admitted(&situation)[0]);
    }

    #[test]
    fn nothing_is_played_before_the_default_is_known() {
        let situation = situation();
        assert!(!with_defaults(&situation, 3).may_play(&situation, 0, SURE));
        assert!(with_defaults(&situation, 4).may_play(&situation, 0, SURE));
        assert!(Guard::default().may_play(&situation, situation.default, SURE));
    }

    /// In the worst case, every choice is as bad as it could be believed to be.
    #[test]
    fn all_that_is_played_stays_within_the_allowance() {
        let situation = situation();
        let allowance = Budget::of(&situation.state).allowance();
        let bad = Belief { mean: 1.3e-3f64.ln(), deviation: 0.1 };
        let mut guard = with_defaults(&situation, 4);
        let (mut spent, mut usual, mut played) = (4e-3, 4e-3, 0);
        for _ in 0..2000 {
            usual += 1e-3;
            if guard.may_play(&situation, 0, bad) {
                let risk = guard.began(&situation, 0, bad);
                let seconds = (bad.mean + CAUTION * bad.deviation).exp();
                guard.release(&situation.context, risk);
                guard.ended(&situation, 0, seconds);
                spent += seconds;
                played += 1;
            } else {
                guard.ended(&situation, situation.default, 1e-3);
                spent += 1e-3;
            }
            let granted = allowance * GRANTED * 1e-3;
            assert!(spent <= (1.0 + allowance) * usual + granted + 1e-5, "{spent} {usual}");
        }
        assert!(played > 0, "it may be tried some day");
    }

    #[test]
    fn calls_under_way_count_as_bad_as_they_may_be() {
        let situation = situation();
        let mut guard = with_defaults(&situation, 400);
        let bad = Belief { mean: 1.2e-3f64.ln(), deviation: 0.1 };
        let mut begun = 0;
        while guard.may_play(&situation, 0, bad) {
            guard.began(&situation, 0, bad);
            begun += 1;
            assert!(begun < 100, "the allowance is never used up");
        }
        assert!(begun > 0);
    }
}
