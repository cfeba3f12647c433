//! What stands is not the end. With a share of what it saves, others are tried beside it, and what looks better yet meets it in a trial.
//!
//! The guard's promise is about the default, and what stands has won against that; so it would not mind calls that lose much of what
//! was gained. Here they are counted against what stands.

use super::course::{AGAIN, Course, Origin, Phase, Tried};
use super::tryable::Tryable;
use super::{Role, Row, Tuner};
use crate::action::Situation;
use crate::trial::{Gain, INTERRUPTED, Verdict};

/// What others may lose, as a share of what the choice that stands has saved of the default's time.
pub(super) const SHARE: f64 = 0.1;

/// So many tries make a look around; whether the best of them is better yet is asked after each few.
const TRIES: u64 = 64;
const ASKED_AFTER: u64 = 8;

/// A look around ends after so many calls for which something was wished for, even if that was nearly always what stands.
const LOOKED_MAX: u64 = 1024;

/// Exploration beside a choice that stands.
#[derive(Clone, Debug)]
pub(super) struct Beside {
    /// A look around begins when the choice has stood for so many calls.
    from: u64,
    /// Of this look around: calls for which something was wished for, and those that were the turn of others.
    looked: u64,
    tries: u64,
    /// What looks better yet, in a trial in which the choice takes the default's place.
    pub(super) tried: Option<Tried>,
    /// Seconds that the choice has saved of the default's time.
    saved_s: f64,
    /// Seconds that others took more than it.
    lost_s: f64,
}

impl Default for Beside {
    /// Of a choice that was found by a thorough search.
    fn default() -> Beside {
        Beside { from: AGAIN, looked: 0, tries: 0, tried: None, saved_s: 0.0, lost_s: 0.0 }
    }
}

impl Beside {
    /// Of a choice that is the best of few: nothing is waited for.
    pub(super) fn at_once() -> Beside {
        Beside { from: 0, ..Beside::default() }
    }

    /// Seconds that the next calls may lose; negative if too much was lost.
    fn free_s(&self) -> f64 {
        SHARE * self.saved_s - self.lost_s
    }

    /// Is there a look around, or is it time for one, as the choice has stood for so many calls?
    pub(super) fn is_looking(&self, resting: u64) -> bool {
        resting >= self.from
    }

    /// The look around ends if it was long enough: the choice has stood for so many calls.
    fn rest(&mut self, resting: u64) {
        if self.tries >= TRIES || self.looked >= LOOKED_MAX {
            (self.from, self.looked, self.tries) = (resting + AGAIN, 0, 0);
        }
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
        if course.resting < course.beside.from {
            return kept;
        }
        let is_calm = course.drift.is_calm();
        if let Some(tried) = &mut course.beside.tried {
            // Nothing begins in a network that may be another one; what has begun goes on, or its calls would lie apart.
            let begins = is_calm || !tried.trial.is_between_blocks();
            return if begins { self.of_trial(situation, tried, stands) } else { kept };
        }
        let free_s = course.beside.free_s();
        if !is_calm || free_s <= 0.0 {
            return kept;
        }
        course.beside.looked += 1;
        let chosen_s = course.chosen.mean.exp();
        self.wish(situation, stands, chosen_s, free_s, row).map_or(kept, |wish| (wish, Role::Ordinary))
    }

    /// What the learner would try next in place of what stands and takes so many seconds, if it may lose as much.
    fn wish(
        &mut self,
        situation: &Situation,
        stands: usize,
        chosen_s: f64,
        free_s: f64,
        row: &mut Row,
    ) -> Option<usize> {
        let Tryable { worth_a_look, believed, promised_s, .. } =
            row.get_or_insert_with(|| Tryable::of(&self.guard, &*self.learner, situation));
        let wish = self.learner.choose_of(situation, worth_a_look, believed, &mut self.random);
        if wish == stands || wish == situation.default {
            return None;
        }
        let may_lose_s = ((believed[wish].mean + believed[wish].deviation).exp() - chosen_s).max(0.0);
        let has_room = *promised_s + may_lose_s <= free_s;
        if has_room {
            *promised_s += may_lose_s;
        }
        has_room.then_some(wish)
    }

    /// A call while something stands: what that has saved, or what another one has lost.
    pub(super) fn count_beside(&self, situation: &Situation, course: &mut Course, arm: usize, seconds: f64) {
        let usual_s = self.guard.default_seconds(&situation.context);
        let (Some(stands), Some(usual_s)) = (course.stands(), usual_s) else { return };
        if course.chosen.weight <= 0.0 || arm == situation.default {
            return;
        }
        let chosen_s = course.chosen.mean.exp();
        if arm == stands {
            course.beside.saved_s += (usual_s - chosen_s).max(0.0);
        } else if course.resting >= course.beside.from {
            course.beside.lost_s += seconds.min(INTERRUPTED * chosen_s) - chosen_s;
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
        if course.resting < course.beside.from {
            // It was decided before this one stood.
            return;
        }
        if let Some(tried) = &mut course.beside.tried {
            let candidate = tried.candidate;
            match self.verdict(situation, tried, role, seconds) {
                None => {}
                Some(Verdict::Gain(gain)) => self.replace(situation, course, candidate, gain),
                Some(Verdict::NoSignificantGain) => {
                    if self.is_broken_off(situation, tried) {
                        self.errors_beside.broken_off(&tried.trial);
                    }
                    course.beside.tried = None;
                    course.beside.rest(course.resting);
                }
            }
            return;
        }
        let is_try = arm != stands && arm != situation.default;
        course.beside.tries += u64::from(is_try);
        let is_asked = is_try && course.beside.tries.is_multiple_of(ASKED_AFTER);
        match is_asked.then(|| self.better_than(situation, stands)).flatten() {
            Some(best) => {
                let level = self.errors_beside.next_level();
                course.beside.tried = Some(self.begin_trial(best, Origin::Explored, level));
            }
            None => course.beside.rest(course.resting),
        }
    }

    /// A candidate has won against what stands.
    fn replace(&mut self, situation: &Situation, course: &mut Course, candidate: usize, gain: Gain) {
        let gain = course.gain().map_or(gain, |before| gain.after(&before));
        self.errors_beside.found();
        self.guard.stands_anew(&situation.context);
        course.stand(Phase::Chosen(candidate, situation.choice(candidate)), Some(gain));
        // There may be more where that came from.
        course.beside = Beside::at_once();
    }

    /// What is on trial beside what stands, if something is, is not any more.
    pub(super) fn break_off_beside(&mut self, course: &Course) {
        if let Some(tried) = &course.beside.tried {
            self.errors_beside.broken_off(&tried.trial);
        }
    }
}
