//! What calls have cost, and how much room that leaves for the next one.

use crate::learner::Belief;

/// Deviations to the upper end of what is believed. What is played may err to both sides, and what it really took is counted; two
/// of them, as models are wrong by far more often than a normal distribution says.
pub(super) const CAUTION: f64 = 2.0;

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

/// What choices that stand have gained may be spent, up to this share of what the default would have taken. Gains are measured, but
/// against a default that is played once in 256 calls; so old ones do not pay for anything however long a job runs.
pub(super) const CREDITED: f64 = 0.01;

/// What calls have taken, and what the default would have.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Account {
    /// Seconds that the default would have taken for all calls, as far as it is known.
    pub(super) usual_s: f64,
    /// Calls that it is the sum of.
    pub(super) calls: f64,
    /// Seconds that other choices took more than that while they were tried; negative if they gained.
    pub(super) excess_s: f64,
    /// The same of choices that stand.
    pub(super) standing_s: f64,
    /// The sum of both, as it was measured: gains that are not credited included.
    pub(super) measured_s: f64,
    /// Seconds that calls under way may take more, at the upper end.
    pub(super) pending_s: f64,
    /// The same, should they all be surprises.
    pub(super) pending_worst_s: f64,
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
    pub(super) upper_s: f64,
    /// If it is a surprise.
    pub(super) worst_s: f64,
}

impl Room {
    /// Is there room for it, and is it better than the default as far as is known? `mean_s`: the mean of the belief, in seconds.
    pub fn is_free(&self, mean_s: f64, belief: Belief) -> bool {
        mean_s <= self.usual_s && self.has_for(belief)
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
    pub(super) fn add(&mut self, usual_s: f64) {
        self.usual_s += usual_s;
        self.calls += 1.0;
    }

    /// What counts of all that was lost and gained.
    pub(super) fn spent_s(&self) -> f64 {
        // What was gained while others were tried, or by what stood before, is part of it.
        self.excess_s + self.standing_s.max((-CREDITED * self.usual_s - self.excess_s.min(0.0)).min(0.0))
    }

    /// Seconds that have been gained, as far as gains count, less what is set aside of them; negative if more was lost.
    pub(super) fn gained_s(&self) -> f64 {
        -self.spent_s() - self.pending_s
    }

    /// How many seconds more than the default's `usual_s` the next call may take, if this share is allowed.
    pub(super) fn free_s(&self, allowed: f64, usual_s: f64, granted: f64) -> f64 {
        let granted_s = granted * self.usual_s / self.calls.max(1.0);
        allowed * (self.usual_s + usual_s + granted_s) - self.spent_s() - self.pending_s
    }

    /// How many seconds more than the default's `usual_s` the next call may take at the very worst.
    pub(super) fn promised_s(&self, usual_s: f64) -> f64 {
        self.promise_s(usual_s) - self.spent_s() - self.pending_worst_s
    }

    /// Seconds that all calls and another one of `usual_s` may take more than the default's. What is lost before the promise begins is
    /// spread over all calls until then.
    pub(super) fn promise_s(&self, usual_s: f64) -> f64 {
        let missing = (PROMISED_FROM - self.calls - 1.0).max(0.0);
        let missing_s = missing * self.usual_s / self.calls.max(1.0);
        PROMISED * (self.usual_s + usual_s + missing_s)
    }
}

impl Risk {
    pub(super) fn of(belief: Belief, usual_s: f64) -> Risk {
        let more_s = |away: f64| ((belief.mean + away).exp() - usual_s).max(0.0);
        let (caution, surprise) = (CAUTION * belief.deviation, SURPRISED * belief.deviation);
        Risk { upper_s: more_s(caution), worst_s: more_s(surprise.min(SURPRISE_MAX).max(caution)) }
    }
}
