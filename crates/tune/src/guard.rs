//! What keeps the tuner from costing more than it may: a conservative bandit, whose default is an arm like any other.
//!
//! Source: Kazerouni, Ghavamzadeh, Abbasi-Yadkori and Van Roy, "Conservative contextual linear bandits" (arXiv 1611.06426),
//! and Garcelon, Ghavamzadeh, Lazaric and Pirotta, "Improved algorithms for conservative exploration in bandits" (arXiv
//! 2002.03221), with times in the place of rewards: what is played must leave the sum of all times, at the upper end of
//! what is believed, within (1 + α) times what the default would have taken.

mod account;
mod late;
mod standing;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use account::{Account, CREDITED};
pub use account::{Risk, Room};
use late::{Lateness, Reckoned};
use standing::Watched;
pub use standing::{Asks, Ruling};

use crate::action::{Action, Situation};
use crate::learner::Belief;
use crate::prior::Budget;
use crate::state::Context;
use crate::statistics::{Last, mean_and_error, median_of_sorted};
use crate::trial::{Gain, INTERRUPTED};

/// What is modelled to take so many times as long as the best is never tried.
pub const NEVER_TRIED: f64 = 4.0;

/// One call that takes so many times as long as the default is enough, unless that happens to the default as often.
pub const VETO: f64 = 3.0;

/// What was saved before the job pays for late calls of it, of as many of the default's calls at most: a few that waited for a processor, and none
/// that waited for a lost packet.
const LATE_PAID: f64 = 8.0;

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
    /// What is out, whatever its calls take.
    vetoed: BTreeSet<Action>,
    late: Lateness,
    /// The default's last seconds.
    default_s: Last<REMEMBERED>,
    /// What follows of them: [`Watch::reckon_usual`].
    usual: Option<Usual>,
    chosen: Watched,
    /// All calls.
    calls: u64,
    /// The last calls of other choices.
    recent: VecDeque<Played>,
    /// Seconds of the default that were seen before it was known what is usual.
    unseen: Vec<f64>,
    /// Calls since the network has changed, until it is known what the default takes since then.
    unsettled: Vec<Unsettled>,
}

/// What the default takes, in seconds.
#[derive(Clone, Copy, Debug)]
struct Usual {
    /// At the lower end of what its last calls say.
    low_s: f64,
    /// In the middle of it.
    middle_s: f64,
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

/// A call of another choice than the default, that nobody can compare with it.
#[derive(Clone, Copy, Debug)]
struct Unsettled {
    seconds: f64,
    /// Those that count.
    counted_s: f64,
}

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
        let watch = self.watches.get(&situation.context).filter(|watch| watch.has_out());
        let vetoed = |action: &Action| watch.is_some_and(|watch| watch.is_out(action));
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
            let is_first = watch.usual.is_none();
            watch.default_s.add(seconds);
            watch.usual = watch.reckon_usual();
            // What is allowed follows from what is usual: late calls are no reason to allow more.
            let counted = |seconds: f64| watch.usual_s().map_or(seconds, |usual_s| seconds.min(VETO * usual_s));
            let counted_s = counted(seconds);
            // Of those before it was known.
            let before = watch.default_s.by_age().rev().skip(1).filter(|_| is_first);
            let too_much_s: f64 = before.map(|before_s| before_s - counted(before_s)).sum();
            if !watch.usual_s().is_some_and(|usual_s| late::is_late(seconds, usual_s)) {
                watch.chosen.add_default(seconds);
            }
            for account in self.accounts(&situation.context) {
                account.add(counted_s);
                account.usual_s -= too_much_s;
            }
            self.settle(&situation.context);
        } else if let Some(usual_s) = watch.usual_s() {
            let booked_s = watch.late.add_tried(situation.arms[arm].action, seconds, usual_s).max(least_s);
            watch.remember(seconds, usual_s, booked_s);
            for account in self.accounts(&situation.context) {
                account.add(usual_s);
                account.excess_s += booked_s;
                account.measured_s += seconds - usual_s;
            }
        } else {
            watch.unsettled.push(Unsettled { seconds, counted_s: seconds });
        }
    }

    /// A call of the default in a network that is what it was. If it is late, what was late before may be nobody's fault.
    pub fn shows_lateness(&mut self, context: &Context, seconds: f64) {
        self.watches.entry(*context).or_default().unseen.push(seconds);
        self.look_at_unseen(context);
    }

    /// The default's calls, and how many of them were late.
    #[cfg(test)]
    pub(crate) fn late_of_default(&self, context: &Context) -> [f64; 2] {
        self.watches.get(context).map_or([0.0; 2], |watch| watch.late.late_of_default())
    }

    fn look_at_unseen(&mut self, context: &Context) {
        let Some(watch) = self.watches.get_mut(context) else { return };
        let Some(usual_s) = watch.usual_s() else { return };
        let unseen = std::mem::take(&mut watch.unseen);
        let excused: Vec<Reckoned> =
            unseen.into_iter().map(|seconds| watch.late.add_default(seconds, usual_s)).collect();
        for Reckoned { of_chosen_s, due_s, .. } in &excused {
            watch.chosen.reckon(*of_chosen_s, *due_s);
        }
        for Reckoned { of_tried_s, of_chosen_s, due_s } in excused {
            for account in self.accounts(context) {
                account.excess_s -= of_tried_s;
                account.standing_s += due_s - of_chosen_s;
            }
        }
    }

    /// Is the default to be called in the place of what stands, as that was late, and too few calls of the default say whether it is as late?
    /// Not if what it has saved pays for that, whosever fault it is.
    pub fn is_on_probation(&self, context: &Context) -> bool {
        let is_to_be =
            |watch: &Watch| watch.late.is_on_probation() && watch.account.standing_s + watch.late.owed_s() > 0.0;
        self.watches.get(context).is_some_and(is_to_be)
    }

    /// The same where that was late more than once.
    pub fn is_late_again(&self, context: &Context) -> bool {
        self.is_on_probation(context) && self.watches.get(context).is_some_and(|watch| watch.late.is_owed_for_many())
    }

    /// One of several calls of a choice that is tried was late, and their mean, which counts, was not.
    pub fn was_late_once(&mut self, situation: &Situation, arm: usize, seconds: f64) {
        let Some(watch) = self.watches.get_mut(&situation.context) else { return };
        if let Some(usual_s) = watch.usual_s().filter(|usual_s| late::is_late(seconds, *usual_s)) {
            watch.late.see_tried(situation.arms[arm].action, seconds, usual_s);
        }
    }

    /// What calls since a change of the network took more than the default takes now is charged to those who chose them.
    fn settle(&mut self, context: &Context) {
        let Some(watch) = self.watches.get_mut(context) else { return };
        let Some(usual_s) = watch.usual_s() else { return };
        let most_s = if watch.late.is_of_default() { INTERRUPTED * usual_s } else { f64::INFINITY };
        for Unsettled { seconds, counted_s } in std::mem::take(&mut watch.unsettled) {
            for account in self.accounts(context) {
                account.add(usual_s);
                account.excess_s += (counted_s.min(most_s) - usual_s).max(0.0);
                account.measured_s += seconds - usual_s;
            }
        }
    }

    /// It took so many seconds, while it stands as the winner of a trial. What it gains or loses is what was measured against the
    /// default's last calls, never what the trial has promised; what a call was interrupted for is not its own.
    pub fn ended_chosen(&mut self, context: &Context, seconds: f64) {
        let watch = self.watches.entry(*context).or_default();
        watch.calls += 1;
        if let Some(usual) = watch.usual {
            let usual_s = usual.low_s;
            let own_s = watch.late.add_chosen(seconds, usual_s);
            watch.remember(seconds, usual_s, own_s);
            let more_s = own_s + usual_s - usual.middle_s;
            let own = [more_s, late::as_interrupted(more_s, usual_s)];
            watch.chosen.add(own, late::is_late(seconds, usual_s), usual.middle_s);
            for account in self.accounts(context) {
                account.add(usual_s);
                account.standing_s += own_s;
                account.measured_s += seconds - usual_s;
            }
        } else {
            watch.unsettled.push(Unsettled { seconds, counted_s: seconds });
        }
    }

    /// Another choice stands from now on, or none: what the one before has lost is lost, and what it has gained is settled.
    pub fn stands_anew(&mut self, context: &Context) {
        let Some(Watch { account, chosen, late, .. }) = self.watches.get_mut(context) else { return };
        *chosen = Watched::default();
        late.stands_anew();
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

    /// May what stands in a context go on? Not if its calls have taken more than the default's, all in all, so much that the promise is in danger,
    /// and it is more likely to cost than to save, by the gain of the trial that it has won, too. Where that is to be found out, [`Guard::asks`].
    pub fn rule(&mut self, context: &Context, gain: Option<Gain>) -> Ruling {
        let Some(Watch { account, chosen, usual: Some(usual), .. }) = self.watches.get_mut(context) else {
            return Ruling::Stays;
        };
        chosen.rule(gain, account.promise_s(0.0) - account.excess_s, usual.middle_s)
    }

    /// Which calls of a context are the default's, as what stands is in doubt? None: it is not.
    pub fn asks(&self, context: &Context) -> Option<Asks> {
        self.watches.get(context)?.chosen.asks()
    }

    /// Has nothing shown yet that what stands is better here?
    pub fn is_unproved(&self, context: &Context) -> bool {
        self.watches.get(context).is_some_and(|watch| watch.chosen.is_unproved())
    }

    /// What stands has won no trial here: it is in doubt until calls have shown that it is better.
    pub fn stands_unproved(&mut self, context: &Context) {
        if let Some(watch) = self.watches.get_mut(context) {
            watch.chosen = watch.chosen.unproved();
        }
    }

    /// Is a call so slow that it may be a veto while something is tried?
    pub fn is_slow(&self, context: &Context, seconds: f64) -> bool {
        self.default_seconds(context).is_some_and(|usual_s| late::is_late(seconds, usual_s))
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
        self.watches.get(context)?.usual_s()
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
        let (mut booked_s, mut measured_s, mut usual_s, mut count) = (0.0, 0.0, 0.0, 0.0);
        let mut unsettled = std::mem::take(&mut watch.unsettled);
        for played in watch.recent.iter().filter(|played| played.call > since) {
            booked_s += played.booked_s;
            measured_s += played.seconds - played.usual_s;
            usual_s += played.usual_s;
            count += 1.0;
            // What was interrupted stays so; whether the rest was too much, the default will tell.
            unsettled.push(Unsettled { seconds: played.seconds, counted_s: played.usual_s + played.booked_s });
        }
        let Watch { account, calls, ref late, .. } = *watch;
        *watch = Watch { account, calls, late: late.after_change(), unsettled, ..Watch::default() };
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
        for &seconds in default_s {
            watch.default_s.add(seconds);
            watch.chosen.add_default(seconds);
        }
        watch.usual = watch.reckon_usual();
        self.look_at_unseen(context);
        self.settle(context);
    }

    /// What stands was called before the job, which took so many seconds each: what that has saved pays for calls that are late, and for nothing
    /// else; up to [`LATE_PAID`] calls of the default.
    pub fn saved_before(&mut self, context: &Context, own_s: &[f64]) {
        let watch = self.watches.entry(*context).or_default();
        let usual_s = watch.usual_s().unwrap_or(0.0);
        let saved_s: f64 = own_s.iter().map(|seconds| usual_s - seconds).sum();
        watch.late.saved_before_job(saved_s.clamp(0.0, LATE_PAID * usual_s));
    }

    /// All of the default's times were measured elsewhere: here it takes so much longer, as a logarithm.
    pub fn was_measured_elsewhere(&mut self, context: &Context, by: f64) {
        let watch = self.watches.entry(*context).or_default();
        watch.default_s.scale(by.exp());
        watch.late.was_measured_elsewhere(by.exp());
        watch.usual = watch.reckon_usual();
    }

    /// What all non-default choices together took more than the default, as a share of the default's time; negative if they
    /// gained.
    pub fn excess(&self) -> f64 {
        if self.all.usual_s > 0.0 { self.all.measured_s / self.all.usual_s } else { 0.0 }
    }

    /// Were its calls too slow to go on with it?
    pub fn is_vetoed(&self, context: &Context, action: &Action) -> bool {
        self.watches.get(context).is_some_and(|watch| watch.is_out(action))
    }

    /// The choices of a context that are vetoed.
    pub fn vetoed(&self, context: &Context) -> usize {
        self.watches.get(context).map_or(0, |watch| watch.vetoed.union(watch.late.out()).count())
    }
}

impl Watch {
    /// What the default takes, once it was played [`DEFAULTS_FIRST`] times. The lower end of what its last calls say is what gains of tries are
    /// counted against: were it 3 % too high, thirty calls that gain nothing would make room for a try that takes twice as
    /// long. It is the mean that counts, as promises are about sums; but a straggler says little about it, and then the median is the
    /// better lower end (by ranks: David and Nagaraja, "Order statistics", 2003, section 7.1), as times lean to the slow side.
    fn reckon_usual(&self) -> Option<Usual> {
        let sorted = self.default_s.by_size();
        if sorted.len() < DEFAULTS_FIRST {
            return None;
        }
        let middle_s = median_of_sorted(sorted)?;
        let sorted = &sorted[..sorted.partition_point(|&seconds| !late::is_late(seconds, middle_s))];
        let count = sorted.len() as f64;
        let rank = 0.5 * (count - DOUBTED * count.sqrt()).max(0.0);
        let median_s = sorted.get(rank as usize).copied()?;
        let mean = mean_and_error(sorted).filter(|_| sorted.len() >= MANY);
        Some(match mean {
            Some((mean_s, error_s)) => Usual { low_s: median_s.max(mean_s - DOUBTED * error_s), middle_s: mean_s },
            None => Usual { low_s: median_s, middle_s },
        })
    }

    fn usual_s(&self) -> Option<f64> {
        self.usual.map(|usual| usual.low_s)
    }

    fn remember(&mut self, seconds: f64, usual_s: f64, booked_s: f64) {
        self.recent.push_back(Played { call: self.calls, seconds, usual_s, booked_s });
        if self.recent.len() > UNNOTICED {
            self.recent.pop_front();
        }
    }

    fn has_out(&self) -> bool {
        !self.vetoed.is_empty() || self.late.has_out()
    }

    fn is_out(&self, action: &Action) -> bool {
        self.vetoed.contains(action) || self.late.is_out(action)
    }
}

#[cfg(test)]
mod tests;
