//! Is what stands worse than the default, or does chance look like it?
//!
//! Neither is known well: under noise of a fifth, sixteen calls of the default leave 5 % open, and whoever compares sums with their mean gives up
//! most of what saves as much. So a sum that is too large is a reason to ask, which costs nothing, as the calls are the default's. What stands
//! goes when it is more likely worse than better, by the trial that it has won and by its calls beside those of the default since then.
//! (Estimates that know nothing of each other, each weighted by the inverse of its variance.)

use crate::statistics::Tally;
use crate::trial::Gain;

/// So many calls of the default are asked for, by turns with what stands.
const ASKED: f64 = 32.0;

/// What a call leaves of what those before it say, where the last ones of the default and of what stands are compared.
const KEPT: [f64; 2] = [0.9, 0.95];

/// Of the last twenty calls, such a share must be the default's.
const FRESH: f64 = 0.25;

/// The job is not the trial: a gain there is off by such a share of it here (a standard deviation), and by a hundredth.
const ELSEWHERE: f64 = 0.5;
const ELSEWHERE_MIN: f64 = 0.01;

/// What a trial has shown is the sum of so many calls: of those that vary much it says little.
const OF_TRIAL: f64 = 32.0;

/// Nothing is known better than to a thousandth.
const DEVIATION_MIN: f64 = 1e-3;

/// 95 % of a normal distribution lie within so many deviations.
const OF_MARGIN: f64 = 1.96;

/// May what stands go on?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stands {
    /// It may.
    Well,
    /// Its calls have taken too much, and what the default takes now is not known: that is to be called.
    ToAsk,
    /// The same where both are to be called by turns.
    ByTurns,
    /// It is worse.
    Not,
}

/// A share of the default's time that is saved.
#[derive(Clone, Copy, Debug)]
struct Saved {
    share: f64,
    variance: f64,
}

/// What stands, since it does; and the default's calls beside it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Standing {
    /// Seconds that its calls have taken more than the default does, by the middle of what is known of that; and those of them that late calls are
    /// charged with.
    more_s: f64,
    late_s: f64,
    /// The most that one of its calls has taken more; no more than what counts of an interrupted one.
    longest_s: f64,
    /// Seconds of the last calls of the default, and of its own.
    last: [Tally; 2],
    /// Which share of the last calls were the default's.
    fresh: f64,
    /// The default's calls since it is in doubt, if it is.
    asked: Option<f64>,
    /// Seconds of all calls that were made in doubt.
    by_turns: [Tally; 2],
}

impl Saved {
    fn new(share: f64, variance: f64) -> Saved {
        Saved { share, variance: variance.max(DEVIATION_MIN.powi(2)) }
    }

    /// What a trial has shown, at another time, of calls whose shares vary so much.
    fn by_trial(gain: Gain, variance: f64) -> Saved {
        let deviations = [gain.margin / OF_MARGIN, ELSEWHERE * gain.share, ELSEWHERE_MIN];
        Saved::new(gain.share, variance / OF_TRIAL + deviations.iter().map(|it| it * it).sum::<f64>())
    }

    /// By calls of the default and of what stands; nothing of fewer than two of each.
    fn by_calls([default, own]: &[Tally; 2]) -> Option<Saved> {
        let of_mean = |of: &Tally| Some(of.variance()? / of.weight / default.mean.powi(2));
        Some(Saved::new(1.0 - own.mean / default.mean, of_mean(default)? + of_mean(own)?))
    }
}

impl Standing {
    /// A call of it: by how many seconds it counts as longer than the default's `usual_s`, and by how many it would if it was interrupted.
    pub(super) fn add(&mut self, [more_s, as_interrupted_s]: [f64; 2], is_late: bool, usual_s: f64) {
        self.more_s += more_s;
        self.late_s += if is_late { more_s } else { 0.0 };
        self.longest_s = self.longest_s.max(as_interrupted_s);
        self.note(1, usual_s + more_s);
    }

    /// A call of the default.
    pub(super) fn add_default(&mut self, seconds: f64) {
        self.note(0, seconds);
    }

    fn note(&mut self, whose: usize, seconds: f64) {
        let is_default = if whose == 0 { 1.0 } else { 0.0 };
        self.fresh = KEPT[1] * self.fresh + (1.0 - KEPT[1]) * is_default;
        self.last[whose].add(seconds, KEPT[whose]);
        if let Some(asked) = &mut self.asked {
            *asked += is_default;
            self.by_turns[whose].add(seconds, 1.0);
        }
    }

    /// Of what late calls were charged with, so many seconds turn out to be nobody's fault; and so many that were not, to be its own.
    pub(super) fn reckon(&mut self, nobodys_s: f64, own_s: f64) {
        self.more_s += own_s - nobodys_s;
        self.late_s += own_s - nobodys_s;
        if nobodys_s > 0.0 {
            self.longest_s = 0.0;
        }
    }

    /// May it go on, if it may have taken so many seconds more than the default? Its longest call is no reason, as a single one may be anybody's
    /// fault. `gain`: of the trial that it has won; without one, the sum decides.
    pub(super) fn may_stand(&mut self, gain: Option<Gain>, allowed_s: f64) -> Stands {
        let more_s = self.more_s - self.longest_s;
        let Some(gain) = gain.filter(|_| more_s > 0.0 && more_s > allowed_s) else {
            self.asked = None;
            return if more_s > 0.0 && more_s > allowed_s { Stands::Not } else { Stands::Well };
        };
        if self.more_s - self.late_s <= allowed_s.max(0.0) {
            // It is what late calls are charged with, and whose fault these are has been asked already.
            return Stands::Not;
        }
        let asked = *self.asked.get_or_insert(0.0);
        if self.fresh < FRESH {
            return Stands::ToAsk;
        }
        if is_worse(&self.last, gain) {
            return Stands::Not;
        }
        if asked < ASKED {
            return Stands::ByTurns;
        }
        if is_worse(&self.by_turns, gain) {
            return Stands::Not;
        }
        // What looked like its fault was what the default was believed to take.
        *self = Standing { last: self.last, fresh: self.fresh, by_turns: self.by_turns, ..Standing::default() };
        Stands::Well
    }
}

/// By these calls of the default and of what stands, and by the trial that that has won: is it more likely to cost than to save?
fn is_worse(calls: &[Tally; 2], gain: Gain) -> bool {
    let [default, own] = calls;
    let varies = |of: &Tally| of.variance().map(|variance| variance / default.mean.powi(2));
    let variance = varies(default).into_iter().chain(varies(own)).fold(0.0, f64::max);
    let found = Saved::by_calls(calls).into_iter().chain([Saved::by_trial(gain, variance)]);
    found.map(|saved| saved.share / saved.variance).sum::<f64>() <= 0.0
}
