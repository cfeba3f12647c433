//! What stands is watched, by its own calls and by those of the default.

use super::course::{Course, Phase};
use super::{EXPLORED, EXPLORED_AFTER_CHANGE, Reason, Role, Tuner};
use crate::action::{Choice, Situation};
use crate::guard::Ruling;
use crate::trial::INTERRUPTED;

impl Tuner {
    /// What stands is watched: for a default that is better again, and for its sum.
    pub(super) fn watch(&mut self, situation: &Situation, course: &mut Course, arm: usize, role: Role, seconds: f64) {
        course.resting += 1;
        let stands = match course.phase {
            Phase::Chosen(chosen, _) => chosen,
            _ => situation.default,
        };
        let counted_s = self.counted_s(situation, seconds);
        if role == Role::Sentinel {
            course.sentinel.add_default(counted_s);
        } else if arm == stands {
            course.sentinel.add_chosen(counted_s);
            course.chosen.add(seconds.ln(), 0.97);
        }
        if self.judge_sum(situation, course) {
            return;
        }
        if let Phase::Chosen(_, choice) = course.phase {
            if role == Role::Sentinel && course.sentinel.prefers_default() {
                self.revert(situation, course, choice);
                return;
            }
            if arm == stands && self.guard.is_slow(&situation.context, seconds) {
                // Is it the choice, or the network? The default tells.
                course.sentinel.hurry();
            }
            self.watch_beside(situation, course, stands, (arm, role, seconds));
        } else if course.has_rested() {
            course.explore_all(EXPLORED);
        }
    }

    /// Has what stands taken too much, all in all? If it is given up, that is so; it may as well be in doubt from here on. While the network may be
    /// changing, it is no fault of it.
    pub(super) fn judge_sum(&mut self, situation: &Situation, course: &mut Course) -> bool {
        let Phase::Chosen(_, choice) = course.phase else { return false };
        let goes = course.drift.is_calm() && self.guard.rule(&situation.context, course.gain()) == Ruling::Goes;
        if goes {
            self.revert(situation, course, choice);
        }
        goes
    }

    /// Of a call's seconds, those that say something about the next one: not how late it is.
    pub(super) fn counted_s(&self, situation: &Situation, seconds: f64) -> f64 {
        let usual_s = self.guard.default_seconds(&situation.context);
        usual_s.map_or(seconds, |usual_s| seconds.min(INTERRUPTED * usual_s))
    }

    /// What stood is worse than the default, and does not come back until the network changes.
    pub(super) fn revert(&mut self, situation: &Situation, course: &mut Course, choice: Choice) {
        if let Choice::Play(action) = choice {
            self.guard.veto(&situation.context, action);
        }
        self.break_off_beside(course);
        let is_unproved = self.guard.is_unproved(&situation.context);
        self.guard.stands_anew(&situation.context);
        if is_unproved {
            // The network has changed a little, and choices have not kept their order; or it was this one that has changed.
            course.forget_best();
            return course.explore(EXPLORED_AFTER_CHANGE);
        }
        course.stand(Phase::Settled(Reason::Reverted), None);
    }
}
