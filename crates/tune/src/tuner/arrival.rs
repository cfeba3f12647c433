//! A job's first calls after a rehearsal: what the default takes in the job.
//!
//! Choices keep their order as a rule, and not their times: between the calls of a job somebody computes, caches are cold, and ranks come at
//! different times. Who judged what stands by what the default took in the rehearsal would give it up for that.

use super::course::{CALM_CALLS, Course, Phase};
use super::{Role, Tuner};
use crate::action::Situation;
use crate::drift::Drift;
use crate::learner::Expected;
use crate::statistics::median;

/// The first calls of a context that are timed say nothing: whatever they take, they take longer than later ones.
const COLD: usize = 16;

/// So many calls of the default tell. What stands has as many meanwhile, by turns.
const TELLING: usize = 16;

/// If times are lost, it must do what is known after so many calls in which the default was asked.
const PATIENCE: usize = 8 * TELLING;

/// Since the job's first call. Calls that end before the default is asked are nobody's: it is not known what it would have taken. So are those
/// that a schedule repeats until it is known, of which there may be a thousand.
#[derive(Clone, Debug, Default)]
pub(super) struct Arrival {
    /// Calls decided, and calls that have ended.
    decided: usize,
    ended: usize,
    /// Calls that have ended since the default was asked first, each decided for itself.
    calls: Vec<(usize, Role, f64)>,
    /// Seconds of the default's calls.
    default_s: Vec<f64>,
    /// How much longer the last calls of what stands took than in the rehearsal, as logarithms: those before anything was suspected, and those
    /// since then.
    calm: Vec<f64>,
    suspected: Vec<f64>,
}

impl Arrival {
    /// A call is decided: is it to be the default's?
    pub(super) fn decides_default(&mut self) -> bool {
        if self.decided == 0 {
            // What has ended before anything was decided was as cold.
            self.decided = self.ended.min(COLD);
        }
        self.decided += 1;
        self.has_asked() && self.decided % 2 == 1 && self.default_s.len() < TELLING
    }

    fn has_asked(&self) -> bool {
        self.decided > COLD
    }

    /// Were so many calls decided, and not enough have ended?
    pub(super) fn is_given_up(&self) -> bool {
        self.decided > COLD + PATIENCE
    }

    /// A call has ended. `tried`: it was decided for itself. Is it known now what the default takes?
    fn ends(&mut self, is_default: bool, (arm, role, seconds): (usize, Role, f64), tried: bool) -> bool {
        self.ended += 1;
        if self.ended > COLD {
            self.default_s.extend(is_default.then_some(seconds));
            if tried && (is_default || self.has_asked()) {
                self.calls.push((arm, role, seconds));
            }
        }
        self.default_s.len() >= TELLING
    }

    /// What the default takes in the job, as a logarithm, if it was called.
    fn default_level(&self) -> Option<f64> {
        let logs: Vec<f64> = self.default_s.iter().map(|seconds| seconds.ln()).collect();
        median(&logs)
    }

    /// A call of what stands has ended, and took so many seconds: does it look as if the network had changed since the job has begun? Then, as
    /// logarithms, by how much what stands took longer than in the rehearsal before that, and what the default took in the job, if half of its calls are known:
    /// most of them were before.
    fn changes(&mut self, drift: &mut Drift, expected: Expected, seconds: f64) -> Option<(f64, Option<f64>)> {
        if self.ended <= COLD {
            return None;
        }
        let times = seconds / expected.mean.exp();
        if drift.observe(times, expected.deviation, expected.noise) {
            let of_default = self.default_level().filter(|_| self.default_s.len() >= TELLING / 2);
            return Some((median(&self.calm).unwrap_or(0.0), of_default));
        }
        self.suspected.push(times.ln());
        if drift.is_calm() {
            self.calm.append(&mut self.suspected);
            self.calm.drain(..self.calm.len().saturating_sub(CALM_CALLS));
        }
        None
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
        let stands = course.stands();
        let Some(arrival) = &mut course.arrival else { return };
        let is_known = arrival.ends(arm == situation.default, (arm, role, seconds), tried);
        if stands == Some(arm) {
            let expected = self.learner.expected(situation, arm);
            if let Some((own_by, of_default)) = arrival.changes(&mut course.drift, expected, seconds) {
                let by = of_default.map_or(own_by, |now| now - course.usual_level());
                return self.changes_before_it_is_known(situation, course, by, (arm, role, seconds));
            }
        }
        if !is_known {
            return;
        }
        let arrival = course.arrival.take().unwrap_or_default();
        course.drift = Drift::default();
        if let Some(now) = arrival.default_level() {
            self.was_measured_elsewhere(situation, course, now - course.usual_level());
        }
        for (arm, role, seconds) in arrival.calls {
            self.account(situation, course, (arm, seconds), true);
            self.learner.observe(situation, arm, seconds);
            if arm == situation.default {
                course.add_default(seconds);
            }
            if matches!(course.phase, Phase::Chosen(..)) {
                self.watch(situation, course, arm, role, seconds);
            }
        }
        course.sentinel.wait_as_at_first();
        self.show_lateness(situation, &course.calm_down());
        self.judge_sum(situation, course);
    }

    /// It looks as if the network had changed before it is known what the default takes in the job. Until then all took longer than in
    /// the rehearsal, `by` so much as a logarithm; and the default is asked whether it takes that still.
    fn changes_before_it_is_known(
        &mut self,
        situation: &Situation,
        course: &mut Course,
        by: f64,
        call: (usize, Role, f64),
    ) {
        course.arrival = None;
        self.was_measured_elsewhere(situation, course, by);
        // What was compared with the rehearsal is compared with the job from here on.
        course.drift.begin_anew();
        course.sentinel.wait_as_at_first();
        self.alarmed(situation, course, call);
    }

    /// All calls take longer in the job than in the rehearsal, by so much as a logarithm.
    fn was_measured_elsewhere(&mut self, situation: &Situation, course: &mut Course, by: f64) {
        if course.default.weight > 0.0 {
            self.learner.changed(&situation.context, by);
            self.guard.was_measured_elsewhere(&situation.context, by);
            course.was_measured_elsewhere(by);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::action::tests::situation;
    use crate::policy::Schedule;
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

    fn course(tuner: &Tuner) -> &Course {
        tuner.courses().next().expect("it was rehearsed").1
    }

    fn stands(tuner: &Tuner) -> bool {
        matches!(course(tuner).standing(), Standing::Chosen(..))
    }

    /// Everything takes three tenths longer than in the rehearsal, and the first calls two more; noise of a twentieth.
    #[test]
    fn what_stands_is_not_given_up_as_the_job_is_slower_than_its_rehearsal() {
        for seed in 0..20 {
            let (mut tuner, situation, _) = rehearsed(seed);
            let mut random = Random::new(seed, 0xa4);
            let mut times = |call: usize, _| (if call < COLD { 1.5 } else { 1.3 }) * (0.05 * random.normal()).exp();
            let asked = calls(&mut tuner, &situation, COLD + 2 * TELLING, &mut times);
            assert_eq!(asked, TELLING, "seed {seed}");
            calls(&mut tuner, &situation, 1000, &mut times);
            let drifts = course(&tuner).drifts;
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
        calls(&mut tuner, &situation, COLD + 2 * TELLING - 2, times);
        assert!(stands(&tuner), "nobody knows yet");
        calls(&mut tuner, &situation, 1, times);
        assert!(!stands(&tuner));
    }

    /// Meetings lie a hundred calls apart, of which sixteen are decided. Before it is known what the default takes in the job, the network
    /// becomes five times as slow, in which all choices take as long, and later it is what it was: what stood is not judged by a default of both
    /// networks, and stands again.
    #[test]
    fn a_network_that_changes_in_the_middle_of_an_arrival_is_noticed() {
        for seed in 0..20 {
            let (mut tuner, situation, arm) = rehearsed(seed);
            let mut random = Random::new(seed, 0xa5);
            let mut until_they_meet = |tuner: &mut Tuner, slow: bool| {
                let (_, decisions) = tuner.schedule(&situation, Schedule::LENGTH_MAX);
                let then = situation.arm_of(tuner.rests_with(&situation.context));
                let mut seconds = |of: usize| {
                    let usual_s = if of == arm { 1.1e-3 } else { 1.3e-3 };
                    (if slow { 6e-3 } else { usual_s }) * (0.05 * random.normal()).exp()
                };
                for decision in decisions {
                    tuner.observe(&situation, decision, seconds(decision.arm));
                }
                (0..84).for_each(|_| tuner.observe_repeated(&situation, then, seconds(then)));
            };
            (0..2).for_each(|_| until_they_meet(&mut tuner, false));
            assert!(course(&tuner).is_arriving(), "seed {seed}: no longer, and nothing is tested");
            (0..6).for_each(|_| until_they_meet(&mut tuner, true));
            assert_eq!(course(&tuner).drifts, 1, "seed {seed}: {:?}", course(&tuner));
            (0..3).for_each(|_| until_they_meet(&mut tuner, false));
            assert!(stands(&tuner) && course(&tuner).drifts == 2, "seed {seed}: {:?}", course(&tuner));
        }
    }

    /// Before anything is decided many calls come in which nobody was asked, and half of the default's times are lost.
    #[test]
    fn an_arrival_ends_though_times_are_lost() {
        let (mut tuner, situation, arm) = rehearsed(2);
        (0..500).for_each(|_| tuner.observe_repeated(&situation, arm, 1.2e-3));
        let asked = calls(&mut tuner, &situation, 4 * TELLING, |call, of| match of == arm || call % 4 == 0 {
            true => 1.3,
            false => f64::NAN,
        });
        assert_eq!(asked, 2 * TELLING - 1);
        assert!(course(&tuner).arrival.is_none() && stands(&tuner), "{:?}", course(&tuner));
    }

    /// No time of the default is ever known, or no decision ever comes back: all goes on as without an arrival, and the sentinel comes.
    #[test]
    fn an_arrival_without_any_time_of_the_default_is_given_up() {
        let (mut tuner, situation, arm) = rehearsed(3);
        calls(&mut tuner, &situation, COLD + PATIENCE + 2, |_, of| if of == arm { 1.3 } else { f64::NAN });
        assert!(course(&tuner).arrival.is_none() && stands(&tuner));
        let (mut tuner, situation, _) = rehearsed(3);
        (0..COLD + PATIENCE + 2).for_each(|_| _ = tuner.decide(&situation));
        assert!(course(&tuner).arrival.is_none() && stands(&tuner));
        assert!(calls(&mut tuner, &situation, 40, |_, _| 1.0) > 0, "the sentinel");
    }

    /// Somebody else has seen another network before anything is known: what is believed follows the default, and nothing else.
    #[test]
    fn a_change_in_the_middle_of_an_arrival_ends_it() {
        let (mut tuner, situation, arm) = rehearsed(4);
        calls(&mut tuner, &situation, 10, |_, _| 1.0);
        tuner.changed(&situation);
        assert!(course(&tuner).arrival.is_none());
        calls(&mut tuner, &situation, 40, |_, _| 1.5);
        for (arm, usual_s) in [(situation.default, 1.5e-3), (arm, 1.35e-3)] {
            let believed_s = tuner.learner().belief(&situation, arm).mean.exp();
            assert!((0.5..2.0).contains(&(believed_s / usual_s)), "{arm}: {believed_s}");
        }
    }

    /// Where nothing has won, or it is open, the first calls are the default's, and tell the same.
    #[test]
    fn where_the_default_stands_its_first_calls_tell() {
        for outcome in [Outcome::NothingBetter, Outcome::Open] {
            let (mut tuner, situation) = (Tuner::shipped(5), situation());
            tuner.rehearsed(&situation, &[(situation.default, &[1e-3; 40])], outcome);
            let asked = calls(&mut tuner, &situation, COLD + TELLING, |_, _| 1.3);
            assert_eq!(asked, COLD + TELLING, "{outcome:?}");
            assert!(course(&tuner).arrival.is_none(), "{outcome:?}");
            let usual_s = tuner.guard.default_seconds(&situation.context).expect("it is known");
            assert!((1.25e-3..1.35e-3).contains(&usual_s), "{outcome:?}: {usual_s}");
        }
    }
}
