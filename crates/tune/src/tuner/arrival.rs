//! A job's first calls after a rehearsal: what the default takes in the job.
//!
//! Choices keep their order as a rule, and not their times: between the calls of a job somebody computes, caches are cold, and ranks come at
//! different times. Who judged what stands by what the default took in the rehearsal would give it up for that.

use super::course::{Course, Phase};
use super::{Role, Tuner};
use crate::action::Situation;
use crate::statistics::median;

/// A job's first calls say nothing: whatever they take, they take longer than later ones.
const COLD: usize = 16;

/// So many calls of the default tell.
const TELLING: usize = 8;

/// What stands has as many calls meanwhile, by turns.
const TURNS: usize = 2 * TELLING;

/// If times of the default are lost, what is known after so many calls must do.
const PATIENCE: usize = 2 * TURNS;

/// Since the job's first call. Calls that end before the default is asked are nobody's: it is not known what it would have taken.
#[derive(Clone, Debug, Default)]
pub(super) struct Arrival {
    /// Calls decided, and those that have ended.
    decided: usize,
    ended: usize,
    /// Calls that have ended since the default was asked first, and whether they were decided for themselves.
    calls: Vec<(usize, Role, f64, bool)>,
    /// Seconds of those of the default.
    default_s: Vec<f64>,
}

impl Arrival {
    /// A call is decided: is it the default's?
    pub(super) fn asks(&mut self) -> bool {
        self.decided += 1;
        (COLD + 1..=COLD + TURNS).contains(&self.decided) && self.decided % 2 == 1
    }

    /// Is it known what the default takes, or as much of that as could be?
    fn is_over(&self) -> bool {
        self.default_s.len() >= TELLING || self.calls.len() >= PATIENCE
    }
}

impl Tuner {
    /// A call while nobody knows what the default takes in the job.
    pub(super) fn arrive(
        &mut self,
        situation: &Situation,
        course: &mut Course,
        (arm, role, seconds): (usize, Role, f64),
        tried: bool,
    ) {
        let Some(arrival) = &mut course.arrival else { return };
        arrival.ended += 1;
        let (is_default, is_asked) = (arm == situation.default, !arrival.calls.is_empty());
        if arrival.ended > COLD && (is_default || is_asked) {
            arrival.calls.push((arm, role, seconds, tried));
            arrival.default_s.extend(is_default.then_some(seconds));
        }
        if !arrival.is_over() {
            return;
        }
        let Arrival { calls, default_s, .. } = course.arrival.take().unwrap_or_default();
        let logs: Vec<f64> = default_s.iter().map(|seconds| seconds.ln()).collect();
        if let Some(now) = median(&logs) {
            let by = now - course.usual_level();
            self.learner.changed(&situation.context, by);
            self.guard.was_measured_elsewhere(&situation.context, by);
            course.was_measured_elsewhere(by);
        }
        for (arm, role, seconds, tried) in calls {
            self.account(situation, course, (arm, seconds), tried);
            self.learner.observe(situation, arm, seconds);
            if arm == situation.default {
                course.add_default(seconds);
            }
            if matches!(course.phase, Phase::Chosen(..)) {
                self.watch(situation, course, arm, role, seconds);
            }
        }
        self.show_lateness(situation, &course.calm_down());
    }
}
