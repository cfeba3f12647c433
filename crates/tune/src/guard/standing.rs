//! Is what stands worse than the default, or does chance look like it?
//!
//! Neither is known well: under noise of a fifth, sixteen calls of the default leave 5 % open, and whoever compares sums with their mean gives up
//! most of what saves as much. So a sum that is half of what would be too much is a reason to ask the default, whose calls cost nothing, and
//! then both by turns. What stands goes when it is more likely to cost than to save, by the trial that it has won and by its calls beside those of
//! the default since then. (Estimates that know nothing of each other, each weighted by the inverse of its variance.)

use crate::statistics::Tally;
use crate::trial::Gain;

/// So many calls of the default are asked for, by turns with what stands, which has so many at least.
const ASKED: [f64; 2] = [32.0, 10.0];

/// It goes without an answer after so many calls of its own between which nobody could ask the default.
const IN_VAIN: f64 = 32.0;

/// Such a part of what would be too much is a doubt, and no less than so many calls of the default: half of what a hundred calls may.
const DOUBTFUL: f64 = 0.5;
const DOUBTFUL_CALLS: f64 = 0.85;

/// What a call leaves of what those before it say, where the last ones of the default and of what stands are compared.
const KEPT: [f64; 2] = [0.9, 0.95];

/// What the default takes now is known if such a share of the last twenty calls were its own.
const FRESH: f64 = 0.25;

/// What calls by turns have said counts half as much when the next doubt comes.
const KEPT_OF_DOUBT: f64 = 0.5;

/// The job is not the trial: a gain there is off by such a share of it here (a standard deviation), and by three hundredths, as machines have
/// states of their own, in which other choices are the best.
const TRIAL_OFF_BY: f64 = 0.5;
const TRIAL_OFF_BY_MIN: f64 = 0.03;

/// What a trial has shown is the sum of so many calls: of those that vary much it says little.
const CALLS_OF_TRIAL: f64 = 32.0;

/// Nothing is known better than to a thousandth.
const DEVIATION_MIN: f64 = 1e-3;

/// 95 % of a normal distribution lie within so many deviations.
const OF_MARGIN: f64 = 1.96;

/// May what stands go on?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ruling {
    /// It stays.
    Stays,
    /// Its calls have taken too much, and that may be chance: [`Asks`] says what is called.
    InDoubt,
    /// It is worse.
    Goes,
}

/// Which calls are the default's while what stands is in doubt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asks {
    /// All of them: what it takes now is not known.
    Always,
    /// Every second one.
    ByTurns,
    /// Three of four, as what stands has taken too much already.
    Mostly,
}

/// A share of the default's time that is saved.
#[derive(Clone, Copy, Debug)]
struct Saved {
    share: f64,
    variance: f64,
}

/// A choice while it stands, and the default's calls beside it. Late calls are counted apart: whose fault they are is asked elsewhere.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Watched {
    /// Its calls, and seconds that they have taken more than the default does, by the middle of what is known of that; and seconds with which late
    /// calls are charged.
    calls: f64,
    over_s: f64,
    late_s: f64,
    /// The most that one of its calls has taken more; no more than what counts of an interrupted one.
    longest_s: f64,
    /// Seconds of the last calls of the default, and of its own.
    last: [Tally; 2],
    /// Which share of the last calls were the default's.
    share_of_default: f64,
    /// It stands though nothing has shown that it is better here.
    is_unproved: bool,
    doubt: Option<Doubt>,
    /// Seconds of all calls by turns, the default's and its own.
    by_turns: [Tally; 2],
}

/// While it is in doubt.
#[derive(Clone, Copy, Debug)]
struct Doubt {
    asks: Asks,
    /// Calls by turns, the default's and its own; and how many of its own came since the default's last one.
    calls: [f64; 2],
    in_vain: f64,
}

impl Asks {
    /// Is this call, by its number, the default's?
    pub fn is_default(self, call: u64) -> bool {
        match self {
            Asks::Always => true,
            Asks::ByTurns => call.is_multiple_of(2),
            Asks::Mostly => !call.is_multiple_of(4),
        }
    }
}

impl Saved {
    fn new(share: f64, variance: f64) -> Saved {
        Saved { share, variance: variance.max(DEVIATION_MIN.powi(2)) }
    }

    /// What a trial has shown, at another time, of calls whose shares vary so much.
    fn by_trial(gain: Gain, variance: f64) -> Saved {
        let deviations = [gain.margin / OF_MARGIN, TRIAL_OFF_BY * gain.share, TRIAL_OFF_BY_MIN];
        Saved::new(gain.share, variance / CALLS_OF_TRIAL + deviations.iter().map(|it| it * it).sum::<f64>())
    }

    /// By calls of the default and of what stands; nothing of fewer than two of each.
    fn by_calls([default, own]: &[Tally; 2]) -> Option<Saved> {
        let of_mean = |of: &Tally| Some(of.variance()? / of.weight / default.mean.powi(2));
        Some(Saved::new(1.0 - own.mean / default.mean, of_mean(default)? + of_mean(own)?))
    }
}

impl Doubt {
    const NEW: Doubt = Doubt { asks: Asks::Always, calls: [0.0; 2], in_vain: 0.0 };
}

impl Watched {
    /// Of a choice that has won its trial elsewhere.
    pub(super) fn unproved(self) -> Watched {
        Watched { is_unproved: true, ..self }
    }

    /// Has nothing shown yet that it is better here?
    pub(super) fn is_unproved(&self) -> bool {
        self.is_unproved
    }

    /// A call of it: by how many seconds it counts as longer than the default's `usual_s`, and by how many it would if it was interrupted.
    pub(super) fn add(&mut self, [over_s, as_interrupted_s]: [f64; 2], is_late: bool, usual_s: f64) {
        self.calls += 1.0;
        self.longest_s = self.longest_s.max(as_interrupted_s);
        if is_late {
            self.late_s += over_s;
        } else {
            self.over_s += over_s;
            self.note(1, usual_s + over_s);
        }
    }

    /// A call of the default that was not late.
    pub(super) fn add_default(&mut self, seconds: f64) {
        self.note(0, seconds);
    }

    /// `whose`: 0 the default's, 1 its own.
    fn note(&mut self, whose: usize, seconds: f64) {
        self.share_of_default *= KEPT[1];
        self.share_of_default += if whose == 0 { 1.0 - KEPT[1] } else { 0.0 };
        self.last[whose].add(seconds, KEPT[whose]);
        let Some(doubt) = &mut self.doubt else { return };
        doubt.in_vain = if whose == 0 { 0.0 } else { doubt.in_vain + 1.0 };
        if doubt.asks != Asks::Always {
            doubt.calls[whose] += 1.0;
            self.by_turns[whose].add(seconds, 1.0);
        }
    }

    /// Of what late calls were charged with, so many seconds turn out to be nobody's fault; and so many that were not, to be its own.
    pub(super) fn reckon(&mut self, nobodys_s: f64, own_s: f64) {
        self.late_s += own_s - nobodys_s.min(self.late_s.max(0.0));
        if nobodys_s > 0.0 {
            self.longest_s = 0.0;
        }
    }

    /// While it is in doubt: which calls are the default's?
    pub(super) fn asks(&self) -> Option<Asks> {
        self.doubt.map(|doubt| doubt.asks)
    }

    /// May it go on, if it may have taken so many seconds more than the default, which takes `usual_s`? Its longest call is no reason, as a single
    /// one may be anybody's fault. `gain`: of the trial that it has won; without one, the sum decides.
    pub(super) fn rule(&mut self, gain: Option<Gain>, allowed_s: f64, usual_s: f64) -> Ruling {
        let over_s = self.over_s + self.late_s - self.longest_s;
        let is_too_much = over_s > allowed_s.max(0.0);
        let Some(gain) = gain else { return if is_too_much { Ruling::Goes } else { Ruling::Stays } };
        if is_too_much && self.late_s - self.longest_s > allowed_s.max(0.0) {
            return Ruling::Goes;
        }
        if !self.is_unproved && over_s <= (DOUBTFUL * allowed_s).max(DOUBTFUL_CALLS * usual_s) {
            self.doubt = None;
            return Ruling::Stays;
        }
        let is_fresh = self.share_of_default >= FRESH;
        let doubt = self.doubt.get_or_insert(Doubt::NEW);
        doubt.asks = match is_too_much {
            _ if !is_fresh && doubt.calls == [0.0; 2] => Asks::Always,
            true => Asks::Mostly,
            false => Asks::ByTurns,
        };
        let Doubt { asks, calls: [of_default, own], in_vain } = *doubt;
        let is_asked_in_vain = is_too_much && in_vain >= IN_VAIN;
        let is_worse_now = is_fresh && (is_too_much || self.is_unproved) && is_worse(&self.last, gain);
        let has_answer = asks != Asks::Always && of_default >= ASKED[0] && own >= ASKED[1];
        match has_answer {
            _ if is_asked_in_vain || is_worse_now => Ruling::Goes,
            true if is_worse(&self.by_turns, gain) => Ruling::Goes,
            true => self.clear(allowed_s),
            false => Ruling::InDoubt,
        }
    }

    /// What looked like its fault was what the default was believed to take. What its calls have cost is what those by turns say; if that is still too
    /// much, they go on.
    fn clear(&mut self, allowed_s: f64) -> Ruling {
        let [default, own] = &mut self.by_turns;
        self.over_s = self.calls * (own.mean - default.mean).max(0.0);
        self.longest_s = self.longest_s.min(self.late_s.max(0.0));
        self.is_unproved = false;
        if self.over_s + self.late_s - self.longest_s > allowed_s.max(0.0) {
            self.doubt = Some(Doubt { asks: Asks::Mostly, ..Doubt::NEW });
            return Ruling::InDoubt;
        }
        self.doubt = None;
        [default, own].into_iter().for_each(|of| of.fade(KEPT_OF_DOUBT));
        Ruling::Stays
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

#[cfg(test)]
mod tests;
