//! Trials of a candidate against what is played otherwise: the default, or what stands.

use super::course::{Course, Origin, Phase, Tried};
use super::{Role, Tuner};
use crate::action::Situation;
use crate::trial::{Side, Trial, Verdict, WORTHWHILE};

/// A trial whose candidate is refused so often, for there is no room for it, ends.
const REFUSED_MAX: u32 = 512;

impl Tuner {
    /// What looks best, if it looks better than this arm, and is not the default, by as much as is worth a change.
    pub(super) fn better_than(&self, situation: &Situation, arm: usize) -> Option<usize> {
        let best = self.learner.best(situation, &self.guard.admitted(situation));
        let mean = |arm| self.learner.belief(situation, arm).mean;
        (best != arm && best != situation.default && mean(arm) - mean(best) >= WORTHWHILE).then_some(best)
    }

    /// A trial against the default begins.
    pub(super) fn try_out(&mut self, course: &mut Course, candidate: usize, origin: Origin) {
        let level = self.errors.next_level();
        course.phase = Phase::Trial(self.begin_trial(candidate, origin, level));
    }

    pub(super) fn begin_trial(&mut self, candidate: usize, origin: Origin, level: f64) -> Tried {
        let trial = Trial::brief(level);
        self.trials += 1;
        Tried { candidate, trial, number: self.trials, origin, refused: 0 }
    }

    /// The next call of a trial against what stands, or against the default. A block begins only if there is room for its candidate:
    /// were it put off, its three calls would not be made under the same network.
    pub(super) fn of_trial(&mut self, situation: &Situation, tried: &mut Tried, stands: usize) -> (usize, Role) {
        let kept = (stands, Role::Ordinary);
        if tried.trial.is_between_blocks() {
            let belief = self.learner.belief(situation, tried.candidate);
            if !self.guard.may_play(situation, tried.candidate, belief) {
                tried.refused += 1;
                return kept;
            }
        }
        let Some((side, block)) = tried.trial.next(&mut self.random) else { return kept };
        let arm = if side == Side::Candidate { tried.candidate } else { stands };
        (arm, Role::OfTrial(tried.number, side, block))
    }

    /// A call has ended while something is on trial.
    pub(super) fn verdict(
        &self,
        situation: &Situation,
        tried: &mut Tried,
        role: Role,
        seconds: f64,
    ) -> Option<Verdict> {
        match role {
            Role::OfTrial(number, side, block) if number == tried.number => tried.trial.observe(side, block, seconds),
            _ => {}
        }
        if self.is_broken_off(situation, tried) { Some(Verdict::NoSignificantGain) } else { tried.trial.verdict() }
    }

    /// Does it end whatever its times say?
    pub(super) fn is_broken_off(&self, situation: &Situation, tried: &Tried) -> bool {
        self.is_vetoed(situation, tried) || tried.is_refused()
    }

    /// Was one call of its candidate enough to put it out?
    pub(super) fn is_vetoed(&self, situation: &Situation, tried: &Tried) -> bool {
        self.guard.is_vetoed(&situation.context, &situation.arms[tried.candidate].action)
    }
}

impl Tried {
    /// Was there no room for it for so long that it ends?
    pub(super) fn is_refused(&self) -> bool {
        self.refused >= REFUSED_MAX
    }
}
