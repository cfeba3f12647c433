//! What stands is not the end. With a share of what it saves, others are tried beside it, and what looks better yet meets it in a trial.
//!
//! The guard's promise is about the default, and what stands has won against that; so it would not mind calls that lose much of what
//! was gained. Here they are counted against what stands.

use super::course::{AGAIN, Course, Phase, Tried};
use super::tryable::Tryable;
use super::{Role, Row, Tuner};
use crate::action::Situation;
use crate::trial::{Verdict, WORTHWHILE};

/// What others may lose, as a share of what the choice that stands has saved of the default's time.
const SHARE: f64 = 0.25;

/// So many tries make a look around; whether the best of them is better yet is asked after each few.
const TRIES: u64 = 64;
const ASKED_AFTER: u64 = 8;

/// A look around ends after so many calls, even if what stands was nearly always preferred.
const LOOKED_MAX: u64 = 1024;

/// Exploration beside a choice that stands.
#[derive(Clone, Debug)]
pub(super) struct Beside {
    /// It begins when the choice has stood for so many calls.
    from: u64,
    stage: Stage,
    /// Seconds that the choice has saved of the default's time.
    saved_s: f64,
    /// Seconds that others took more than it.
    lost_s: f64,
}

#[derive(Clone, Debug)]
enum Stage {
    /// Calls for which something was wished for, and those that were others' turn.
    Explore { looked: u64, tries: u64 },
    /// What looks better yet, in a trial in which the choice takes the default's place.
    Trial(Tried),
}

impl Default for Beside {
    /// Of a choice that was found by a thorough search.
    fn default() -> Beside {
        Beside { from: AGAIN, stage: Stage::EXPLORE, saved_s: 0.0, lost_s: 0.0 }
    }
}

impl Stage {
    const EXPLORE: Stage = Stage::Explore { looked: 0, tries: 0 };
}

impl Beside {
    /// Of a choice that is the best of few: nothing is waited for.
    pub(super) fn at_once() -> Beside {
        Beside { from: 0, ..Beside::default() }
    }

    /// What is on trial.
    pub(super) fn tried_mut(&mut self) -> Option<&mut Tried> {
        match &mut self.stage {
            Stage::Trial(tried) => Some(tried),
            Stage::Explore { .. } => None,
        }
    }

    /// Seconds that the next calls may lose; negative if too much was lost.
    fn free_s(&self) -> f64 {
        SHARE * self.saved_s - self.lost_s
    }

    /// There is nothing better, as far as anybody can tell. The choice has stood for so many calls.
    fn rest(&mut self, resting: u64) {
        (self.from, self.stage) = (resting + AGAIN, Stage::EXPLORE);
    }
}

impl Tuner {
    /// What a call takes while this arm stands.
    pub(super) fn beside(
        &mut self,
        situation: &Situation,
        course: &mut Course,
        stands: usize,
        row: &mut Row,
    ) -> (usize, Role) {
        let kept = (stands, Role::Ordinary);
        // Of calls of a network that may be another one, nothing is learned.
        if course.resting < course.beside.from || !course.drift.is_calm() {
            return kept;
        }
        let free_s = course.beside.free_s();
        match &mut course.beside.stage {
            Stage::Trial(tried) => self.of_trial(situation, tried, stands),
            Stage::Explore { looked, .. } if free_s > 0.0 => {
                *looked += 1;
                let wish = self.wish(situation, row);
                let belief = self.learner.belief(situation, wish);
                let may_lose_s = (belief.mean + belief.deviation).exp() - course.chosen.mean.exp();
                if wish == situation.default || may_lose_s > free_s { kept } else { (wish, Role::Ordinary) }
            }
            Stage::Explore { .. } => kept,
        }
    }

    /// What the learner would try next.
    fn wish(&mut self, situation: &Situation, row: &mut Row) -> usize {
        let Tryable { worth_a_look, believed, .. } =
            row.get_or_insert_with(|| Tryable::of(&self.guard, &*self.learner, situation));
        self.learner.choose_of(situation, worth_a_look, believed, &mut self.random)
    }

    /// A call while this arm stands: what it has saved or lost, for [`Tuner::beside`].
    pub(super) fn count_beside(&self, situation: &Situation, course: &mut Course, arm: usize, seconds: f64) {
        let Some((stands, usual_s)) = course.stands().zip(self.guard.default_seconds(&situation.context)) else {
            return;
        };
        if course.chosen.weight <= 0.0 || arm == situation.default {
            return;
        }
        let chosen_s = course.chosen.mean.exp();
        if arm == stands {
            course.beside.saved_s += (usual_s - chosen_s).max(0.0);
        } else {
            course.beside.lost_s += seconds - chosen_s;
        }
    }

    /// A call has ended: is something better yet than what stands?
    pub(super) fn watch_beside(
        &mut self,
        situation: &Situation,
        course: &mut Course,
        stands: usize,
        (arm, role, seconds): (usize, Role, f64),
    ) {
        let resting = course.resting;
        match &mut course.beside.stage {
            Stage::Trial(tried) => match self.verdict(situation, tried, role, seconds) {
                None => {}
                Some(Verdict::Gain(gain)) => {
                    let candidate = tried.candidate;
                    let gain = course.gain().map_or(gain, |before| gain.after(&before));
                    self.errors_beside.found();
                    self.guard.stands_anew(&situation.context);
                    course.stand(Phase::Chosen(candidate, situation.choice(candidate)), Some(gain));
                    // There may be more where that came from.
                    course.beside = Beside::at_once();
                }
                Some(Verdict::NoSignificantGain) => {
                    self.break_off_beside(course);
                    course.beside.rest(resting);
                }
            },
            Stage::Explore { looked, tries } => {
                let is_try = arm != stands && arm != situation.default;
                *tries += u64::from(is_try);
                let is_over = *tries >= TRIES || *looked >= LOOKED_MAX;
                if is_over || is_try && *tries % ASKED_AFTER == 0 {
                    self.conclude_beside(situation, course, stands, is_over);
                }
            }
        }
    }

    fn conclude_beside(&mut self, situation: &Situation, course: &mut Course, stands: usize, is_over: bool) {
        let best = self.learner.best(situation, &self.guard.admitted(situation));
        let mean = |arm| self.learner.belief(situation, arm).mean;
        if best != stands && best != situation.default && mean(stands) - mean(best) >= WORTHWHILE {
            let level = self.errors_beside.next_level();
            course.beside.stage = Stage::Trial(self.begin_trial(best, false, level));
        } else if is_over {
            course.beside.rest(course.resting);
        }
    }

    /// What is on trial beside what stands, if something is, is not any more.
    pub(super) fn break_off_beside(&mut self, course: &Course) {
        if let Stage::Trial(tried) = &course.beside.stage {
            self.errors_beside.broken_off(&tried.trial);
        }
    }
}
