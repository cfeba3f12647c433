//! What keeps the tuner from costing more than it may: a conservative bandit, whose default is an arm like any other.
//!
//! Source: Kazerouni, Ghavamzadeh, Abbasi-Yadkori and Van Roy, "Conservative contextual linear bandits" (arXiv 1611.06426),
//! and Garcelon, Ghavamzadeh, Lazaric and Pirotta, "Improved algorithms for conservative exploration in bandits" (arXiv
//! 2002.03221), with times in the place of rewards: what is played must leave the sum of all times, at the upper end of
//! what is believed, within (1 + α) times what the default would have taken.

mod account;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use account::{Account, CREDITED};
pub use account::{Risk, Room};

use crate::action::{Action, Situation};
use crate::learner::Belief;
use crate::prior::Budget;
use crate::state::Context;
use crate::statistics::mean_and_error;
use crate::trial::INTERRUPTED;

/// What is modelled to take so many times as long as the best is never tried.
pub const NEVER_TRIED: f64 = 4.0;

/// One call that takes so many times as long as the default is enough.
pub const VETO: f64 = 3.0;

/// So many calls of a context are taken for granted when its allowance is reckoned, so that something can be tried early. After a
/// hundred calls their sum is meant to be within (1 + 1.3α) times the default's, after many within (1 + α). What is left to 2 %
/// is for the last call tried, which may take longer than anybody believed.
const GRANTED: f64 = 30.0;

/// The allowance of all contexts together, which each of them has to keep besides its own.
const OF_ALL: f64 = 0.01;

/// The same of all contexts together: there, (1 + 2α) after a hundred calls, less what is kept for a surprise.
const GRANTED_TO_ALL: f64 = 100.0;

/// The allowance of a context while all together have gained: it may borrow so much of that, and of its own time no more than this.
/// What is kept for a surprise, it must have all the same.
const BORROWED: f64 = 1e-2;

/// Calls of the default before anything else is played in a context.
pub const DEFAULTS_FIRST: usize = 4;

/// Watches all contexts.
#[derive(Clone, Debug, Default)]
pub struct Guard {
    watches: BTreeMap<Context, Watch>,
    /// Of all contexts.
    all: Account,
}

#[derive(Clone, Debug, Default)]
struct Watch {
    account: Account,
    vetoed: BTreeSet<Action>,
    /// The default's last seconds.
    default_s: VecDeque<f64>,
    /// What follows of them: [`Watch::reckon_usual_s`].
    usual_s: Option<f64>,
    /// The most that a call of what stands has taken more than the default.
    longest_s: f64,
    /// Calls of what stands, and those of them that were interrupted.
    stood: u64,
    interrupted: u64,
    /// All calls.
    calls: u64,
    /// The last calls of other choices.
    recent: VecDeque<Played>,
    /// Seconds of calls since the network has changed, until it is known what the default takes since then.
    unsettled: Vec<f64>,
}

/// A call of another choice than the default.
#[derive(Clone, Copy, Debug)]
struct Played {
    /// Its number.
    call: u64,
    seconds: f64,
    /// What the default would have taken.
    usual_s: f64,
    /// How much more than that was booked.
    booked_s: f64,
}

/// Of calls of what stands, one in so many may be interrupted: more are its own.
const INTERRUPTED_SELDOM: u64 = 60;

/// So many calls may pass before a change of the network is noticed, those included that were decided before.
const UNNOTICED: usize = 32;

/// Deviations to the lower end of what the default takes.
const DOUBTED: f64 = 1.5;

/// So many of the default's calls say what it takes, so that it follows the network.
const REMEMBERED: usize = 31;

/// From so many on, they say something about its mean; fewer may be half of one network and half of another.
const MANY: usize = 12;

impl Guard {
    /// Which arms may be tried at all. The default always may.
    pub fn admitted(&self, situation: &Situation) -> Vec<bool> {
        let limit = NEVER_TRIED * situation.cheapest_s();
        // Looked up once: a call may have thousands of arms.
        let of_it = self.watches.get(&situation.context).map(|watch| &watch.vetoed).filter(|vetoed| !vetoed.is_empty());
        let vetoed = |action: &Action| of_it.is_some_and(|vetoed| vetoed.contains(action));
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
        let lent_s = account.free_s(BORROWED, usual_s, GRANTED).min(self.all.gained_s());
        let free_s = account.free_s(allowed, usual_s, GRANTED).max(lent_s).min(of_all_s);
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

    /// It took so many seconds, while it was tried; or the default's call did.
    pub fn ended(&mut self, situation: &Situation, arm: usize, seconds: f64) {
        self.book(situation, arm, seconds, f64::NEG_INFINITY);
    }

    /// The same of a call that nobody has tried, as it takes what stood before, or what stands where another judge decides. What it
    /// gains pays for nothing.
    pub fn ended_untried(&mut self, situation: &Situation, arm: usize, seconds: f64) {
        self.book(situation, arm, seconds, 0.0);
    }

    /// `least_s`: what the account of tries is charged at least.
    fn book(&mut self, situation: &Situation, arm: usize, seconds: f64, least_s: f64) {
        let watch = self.watches.entry(situation.context).or_default();
        watch.calls += 1;
        if arm == situation.default {
            push(&mut watch.default_s, seconds, REMEMBERED);
            watch.usual_s = watch.reckon_usual_s();
            self.accounts(&situation.context).into_iter().for_each(|account| account.add(seconds));
            self.settle(&situation.context);
        } else if let Some(usual_s) = watch.usual_s {
            let booked_s = (seconds - usual_s).max(least_s);
            watch.remember(seconds, usual_s, booked_s);
            if seconds > VETO * usual_s {
                watch.vetoed.insert(situation.arms[arm].action);
            }
            for account in self.accounts(&situation.context) {
                account.add(usual_s);
                account.excess_s += booked_s;
                account.measured_s += seconds - usual_s;
            }
        } else {
            watch.unsettled.push(seconds);
        }
    }

    /// What calls since a change of the network took more than the default takes now is charged to those who chose them.
    fn settle(&mut self, context: &Context) {
        let Some(watch) = self.watches.get_mut(context) else { return };
        let Some(usual_s) = watch.usual_s else { return };
        for seconds in std::mem::take(&mut watch.unsettled) {
            for account in self.accounts(context) {
                account.add(usual_s);
                account.excess_s += (seconds - usual_s).max(0.0);
                account.measured_s += seconds - usual_s;
            }
        }
    }

    /// It took so many seconds, while it stands as the winner of a trial. What it gains or loses is what was measured against the
    /// default's last calls, never what the trial has promised; what a call was interrupted for is not its own.
    pub fn ended_chosen(&mut self, context: &Context, seconds: f64) {
        let watch = self.watches.entry(*context).or_default();
        watch.calls += 1;
        if let Some(usual_s) = watch.usual_s {
            let own_s = watch.own_s(seconds, usual_s);
            watch.remember(seconds, usual_s, own_s);
            watch.longest_s = watch.longest_s.max(own_s);
            for account in self.accounts(context) {
                account.add(usual_s);
                account.standing_s += own_s;
                account.measured_s += seconds - usual_s;
            }
        } else {
            watch.unsettled.push(seconds);
        }
    }

    /// Another choice stands from now on, or none: what the one before has lost is lost, and what it has gained is settled.
    pub fn stands_anew(&mut self, context: &Context) {
        let Some(Watch { account, longest_s, stood, interrupted, .. }) = self.watches.get_mut(context) else { return };
        (*longest_s, *stood, *interrupted) = (0.0, 0, 0);
        let stood_s = std::mem::take(&mut account.standing_s);
        let counted_s = stood_s.max((-CREDITED * account.usual_s - account.excess_s).min(0.0));
        account.excess_s += counted_s;
        self.all.standing_s -= stood_s;
        self.all.excess_s += counted_s;
    }

    /// Contexts begin anew, with other choices. What all of them have cost and gained together stays.
    pub fn start_over(&mut self) {
        let contexts: Vec<Context> = self.watches.keys().copied().collect();
        contexts.iter().for_each(|context| self.stands_anew(context));
        self.watches.clear();
    }

    /// May what stands in a context go on? Not if its calls have taken more than the default's, all in all, and so much that the
    /// promise is in danger: then it is worse, whatever its median is. Its longest call is no reason: a single one may be anybody's fault.
    pub fn may_stand(&self, context: &Context) -> bool {
        let Some(Watch { account, longest_s, .. }) = self.watches.get(context) else { return true };
        let standing_s = account.standing_s - longest_s;
        standing_s <= 0.0 || account.excess_s + standing_s <= account.promise_s(0.0)
    }

    /// Is a call so slow that it would be a veto while something is tried?
    pub fn is_slow(&self, context: &Context, seconds: f64) -> bool {
        self.default_seconds(context).is_some_and(|usual_s| seconds > VETO * usual_s)
    }

    /// A choice is out, until the network changes.
    pub fn veto(&mut self, context: &Context, action: Action) {
        self.watches.entry(*context).or_default().vetoed.insert(action);
    }

    fn accounts(&mut self, context: &Context) -> [&mut Account; 2] {
        [&mut self.watches.entry(*context).or_default().account, &mut self.all]
    }

    /// Seconds of the default; None until it was played [`DEFAULTS_FIRST`] times.
    pub fn default_seconds(&self, context: &Context) -> Option<f64> {
        self.watches.get(context)?.usual_s
    }

    /// How many calls of a context have ended.
    pub fn calls(&self, context: &Context) -> u64 {
        self.watches.get(context).map_or(0, |watch| watch.calls)
    }

    /// The network has changed in a context, after so many of its calls: what was vetoed may be good now, and the default's times
    /// are old. What the calls since then took more than the default had taken before, or less, says nothing about those who chose
    /// them; they are compared with the default as it is now, when that is known.
    pub fn forget(&mut self, context: &Context, since: u64) {
        let Some(watch) = self.watches.get_mut(context) else { return };
        let (mut booked_s, mut measured_s, mut usual_s) = (0.0, 0.0, 0.0);
        let mut unsettled = std::mem::take(&mut watch.unsettled);
        for played in watch.recent.iter().filter(|played| played.call > since) {
            booked_s += played.booked_s;
            measured_s += played.seconds - played.usual_s;
            usual_s += played.usual_s;
            // What was interrupted stays so; whether the rest was too much, the default will tell.
            unsettled.push(played.usual_s + played.booked_s);
        }
        *watch = Watch { account: watch.account, calls: watch.calls, unsettled, ..Watch::default() };
        let count = watch.unsettled.len() as f64;
        for account in self.accounts(context) {
            account.excess_s -= booked_s;
            account.measured_s -= measured_s;
            account.usual_s -= usual_s;
            account.calls = (account.calls - count).max(0.0);
        }
    }

    /// The default was measured again, after [`Guard::forget`]: this is what it takes now. Its calls have been counted.
    pub fn measured_again(&mut self, context: &Context, default_s: &[f64]) {
        let watch = self.watches.entry(*context).or_default();
        default_s.iter().for_each(|&seconds| push(&mut watch.default_s, seconds, REMEMBERED));
        watch.usual_s = watch.reckon_usual_s();
        self.settle(context);
    }

    /// What all non-default choices together took more than the default, as a share of the default's time; negative if they
    /// gained.
    pub fn excess(&self) -> f64 {
        if self.all.usual_s > 0.0 { self.all.measured_s / self.all.usual_s } else { 0.0 }
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
    /// Seconds of the default, once it was played [`DEFAULTS_FIRST`] times, at the lower end of what its last calls say: gains are
    /// counted against it, and were it 3 % too high, thirty calls that gain nothing would make room for a try that takes twice as
    /// long. It is the mean that counts, as promises are about sums; but a straggler says little about it, and then the median is the
    /// better lower end (by ranks: David and Nagaraja, "Order statistics", 2003, section 7.1), as times lean to the slow side.
    fn reckon_usual_s(&self) -> Option<f64> {
        if self.default_s.len() < DEFAULTS_FIRST {
            return None;
        }
        let mut sorted: Vec<f64> = self.default_s.iter().copied().collect();
        sorted.sort_by(f64::total_cmp);
        let count = sorted.len() as f64;
        let rank = 0.5 * (count - DOUBTED * count.sqrt()).max(0.0);
        let median = sorted.get(rank as usize).copied()?;
        let mean = mean_and_error(&sorted).filter(|_| sorted.len() >= MANY).map(|(mean, error)| mean - DOUBTED * error);
        Some(mean.map_or(median, |mean| mean.max(median)))
    }

    fn remember(&mut self, seconds: f64, usual_s: f64, booked_s: f64) {
        push(&mut self.recent, Played { call: self.calls, seconds, usual_s, booked_s }, UNNOTICED);
    }

    /// How much more than the default a call of what stands has taken for reasons of its own: not what it was interrupted for, unless that
    /// is often.
    fn own_s(&mut self, seconds: f64, usual_s: f64) -> f64 {
        self.stood += 1;
        if seconds <= INTERRUPTED * usual_s {
            return seconds - usual_s;
        }
        self.interrupted += 1;
        let is_seldom = self.interrupted <= 1 + self.stood / INTERRUPTED_SELDOM;
        if is_seldom { (INTERRUPTED - 1.0) * usual_s } else { seconds - usual_s }
    }
}

fn push<T>(last: &mut VecDeque<T>, value: T, length: usize) {
    last.push_back(value);
    if last.len() > length {
        last.pop_front();
    }
}

#[cfg(test)]
mod tests;
