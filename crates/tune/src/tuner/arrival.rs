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
const TELLING: usize = 16;

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::action::tests::situation;
    use crate::random::Random;
    use crate::trial::Gain;
    use crate::tuner::{Outcome, Standing};

    const GAIN: Gain = Gain { share: 0.1, margin: 0.01, probability: 1e-4 };

    /// A tuner that has rehearsed: the default takes a millisecond, and what stands nine tenths of it.
    fn rehearsed(seed: u64) -> (Tuner, Situation, usize) {
        let (mut tuner, situation) = (Tuner::shipped(seed), situation());
        let arm = (situation.default + 1) % situation.arms.len();
        let measured: [(usize, &[f64]); 2] = [(situation.default, &[1e-3; 40]), (arm, &[0.9e-3; 40])];
        tuner.rehearsed(&situation, &measured, Outcome::Gain(arm, GAIN));
        (tuner, situation, arm)
    }

    /// Calls of a job, of which each takes so many times as long as in the rehearsal; how many of them were the default's.
    fn calls(
        tuner: &mut Tuner,
        situation: &Situation,
        count: usize,
        mut times: impl FnMut(usize, usize) -> f64,
    ) -> usize {
        let call = |call: usize| {
            let decision = tuner.decide(situation);
            let rehearsed_s = if decision.arm == situation.default { 1e-3 } else { 0.9e-3 };
            tuner.observe(situation, decision, times(call, decision.arm) * rehearsed_s);
            usize::from(decision.arm == situation.default)
        };
        (0..count).map(call).sum()
    }

    fn stands(tuner: &Tuner) -> bool {
        matches!(tuner.courses().next().expect("it was rehearsed").1.standing(), Standing::Chosen(..))
    }

    /// Everything takes three tenths longer than in the rehearsal, and the first calls two more; noise of a twentieth.
    #[test]
    fn what_stands_is_not_given_up_as_the_job_is_slower_than_its_rehearsal() {
        for seed in 0..20 {
            let (mut tuner, situation, _) = rehearsed(seed);
            let mut random = Random::new(seed, 0xa4);
            let mut times = |call: usize, _| (if call < COLD { 1.5 } else { 1.3 }) * (0.05 * random.normal()).exp();
            let asked = calls(&mut tuner, &situation, COLD + TURNS, &mut times);
            assert_eq!(asked, TELLING, "seed {seed}");
            calls(&mut tuner, &situation, 1000, &mut times);
            let drifts = tuner.courses().next().expect("it was rehearsed").1.drifts;
            assert!(stands(&tuner) && drifts == 0, "seed {seed}: {drifts} drifts");
            let usual_s = tuner.guard.default_seconds(&situation.context).expect("it is known");
            assert!((1.2e-3..1.4e-3).contains(&usual_s), "seed {seed}: {usual_s}");
        }
    }

    /// In the job it takes half as long again as the default.
    #[test]
    fn what_is_worse_in_the_job_is_given_up_as_soon_as_that_is_known() {
        let (mut tuner, situation, arm) = rehearsed(1);
        let times = |_, of: usize| if of == arm { 1.7 } else { 1.0 };
        calls(&mut tuner, &situation, COLD, times);
        assert!(stands(&tuner), "nobody knows yet");
        calls(&mut tuner, &situation, 2 * TURNS, times);
        assert!(!stands(&tuner));
    }

    /// Of a schedule that was decided before, many calls come in which nobody was asked, and times of the default are lost.
    #[test]
    fn an_arrival_ends_though_times_are_lost() {
        let (mut tuner, situation, arm) = rehearsed(2);
        (0..500).for_each(|_| tuner.observe_repeated(&situation, arm, 1.2e-3));
        let asked = calls(&mut tuner, &situation, COLD + TURNS, |call, of| match of == arm || call % 4 == 0 {
            true => 1.3,
            false => f64::NAN,
        });
        assert_eq!(asked, TELLING);
        calls(&mut tuner, &situation, PATIENCE, |_, _| 1.3);
        let course = tuner.courses().next().expect("it was rehearsed").1;
        assert!(course.arrival.is_none() && stands(&tuner), "{course:?}");
    }
}
