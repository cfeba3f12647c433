//! What was found out before a job, by calls for whose results nobody waits. They cost the job nothing, so the guard has no say, and
//! what wins stands from the job's first call on: of calls that are shorter than what the ranks need to agree on anything, nothing
//! could be learned in the job.

use super::arrival::Arrival;
use super::beside::Beside;
use super::course::{BASELINE, Course, Origin, Phase};
use super::{EXPLORED_AFTER_CHANGE, EXPLORED_AGAIN, Reason, Tuner};
use crate::action::Situation;
use crate::trial::{Gain, WORTHWHILE};

/// What a rehearsal has shown of a context.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Outcome {
    /// This arm has won a trial against the default, as the best of all that is likely to be fast.
    Gain(usize, Gain),
    /// The same, and there was no time to call all of that.
    GainOfFew(usize, Gain),
    /// Everything was called, or all that is likely to be fast, and nothing looked better than the default.
    NothingBetter,
    /// The same, and what looked better has won no trial.
    NoSignificantGain,
    /// There was no time for that: the job goes on with it.
    Open,
}

impl Outcome {
    /// The same, where arms have other numbers.
    pub fn renumbered(self, number: impl Fn(usize) -> usize) -> Outcome {
        match self {
            Outcome::Gain(arm, gain) => Outcome::Gain(number(arm), gain),
            Outcome::GainOfFew(arm, gain) => Outcome::GainOfFew(number(arm), gain),
            Outcome::NothingBetter | Outcome::NoSignificantGain | Outcome::Open => self,
        }
    }
}

impl Tuner {
    /// With which probability the next trial of a rehearsal may report a gain where there is none: it is one of the job's trials.
    pub fn next_level(&mut self) -> f64 {
        self.trials += 1;
        self.errors.next_level()
    }

    /// Takes in what a rehearsal has measured, by arm in seconds, and shown, where the job makes the same calls in the same way: what has
    /// won stands from its first one on. A context that is under way is left alone.
    pub fn rehearsed(&mut self, situation: &Situation, measured: &[(usize, &[f64])], outcome: Outcome) {
        if self.courses.contains_key(&situation.context) {
            return;
        }
        let mut course = self.begin(situation);
        let default_s = self.take_in(situation, &mut course, measured);
        if default_s.len() >= BASELINE {
            self.guard.measured_again(&situation.context, &default_s);
            course.arrival = Some(Arrival::default());
            match outcome {
                Outcome::Gain(arm, gain) | Outcome::GainOfFew(arm, gain) => {
                    self.errors.found();
                    course.stand(Phase::Chosen(arm, situation.choice(arm)), Some(gain));
                    let own = measured.iter().filter(|(of, _)| *of == arm);
                    let own_s: Vec<f64> = own.flat_map(|(_, seconds)| seconds.iter().copied()).collect();
                    self.guard.saved_before(&situation.context, &own_s);
                    if matches!(outcome, Outcome::GainOfFew(..)) {
                        course.beside = Beside::at_once();
                    }
                }
                Outcome::NothingBetter => course.stand(Phase::Settled(Reason::NothingBetter), None),
                Outcome::NoSignificantGain => course.stand(Phase::Settled(Reason::NoSignificantGain), None),
                Outcome::Open => course.explore_on(EXPLORED_AGAIN),
            }
        }
        self.courses.insert(situation.context, course);
    }

    /// The same where the job's calls are made otherwise, beside others and while it computes: choices keep their order there as a rule,
    /// and not their times. The default is measured first, and what has won meets it in a trial at once.
    pub fn rehearsed_alone(&mut self, situation: &Situation, measured: &[(usize, &[f64])], outcome: Outcome) {
        if self.courses.contains_key(&situation.context) {
            return;
        }
        let mut course = self.begin(situation);
        let default_s = self.take_in(situation, &mut course, measured);
        // However few they were: without them, what was measured here would pass for what calls take in the job.
        if !default_s.is_empty() {
            let (best, to_explore) = match outcome {
                // Such a gain wins no trial in the job.
                Outcome::Gain(_, gain) if gain.share < WORTHWHILE => (None, EXPLORED_AFTER_CHANGE),
                Outcome::Gain(arm, _) => (Some((situation.choice(arm), Origin::Remembered)), EXPLORED_AFTER_CHANGE),
                Outcome::GainOfFew(arm, _) => (Some((situation.choice(arm), Origin::OfFew)), EXPLORED_AFTER_CHANGE),
                Outcome::NothingBetter | Outcome::NoSignificantGain => (None, EXPLORED_AFTER_CHANGE),
                Outcome::Open if default_s.len() < BASELINE => (None, course.to_explore),
                Outcome::Open => (None, EXPLORED_AGAIN),
            };
            course.begin_after_rehearsal(best, to_explore);
        }
        self.courses.insert(situation.context, course);
    }

    /// Learns from what was measured; the default's times.
    fn take_in(&mut self, situation: &Situation, course: &mut Course, measured: &[(usize, &[f64])]) -> Vec<f64> {
        let is_time = |seconds: &&f64| seconds.is_finite() && **seconds > 0.0;
        let of_default = measured.iter().filter(|(arm, _)| *arm == situation.default);
        let of_default: Vec<f64> =
            of_default.flat_map(|(_, seconds)| seconds.iter().copied().filter(|it| is_time(&it))).collect();
        self.anchor(situation, &of_default);
        let mut default_s = Vec::new();
        for &(arm, seconds) in measured.iter().filter(|(arm, _)| *arm < situation.arms.len()) {
            for &seconds in seconds.iter().filter(is_time) {
                self.learner.observe(situation, arm, seconds);
                if arm == situation.default {
                    course.add_default(seconds);
                    default_s.push(seconds);
                }
            }
        }
        self.show_lateness(situation, &course.calm_down());
        default_s
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::action::tests::situation;
    use crate::policy::Schedule;
    use crate::tuner::Standing;

    const GAIN: Gain = Gain { share: 0.2, margin: 0.01, probability: 1e-4 };

    /// The default takes a millisecond, all else four fifths.
    fn seconds(situation: &Situation, arm: usize) -> [f64; 12] {
        [if arm == situation.default { 1e-3 } else { 0.8e-3 }; 12]
    }

    fn after(outcome: Outcome) -> (Tuner, Situation) {
        let (mut tuner, situation) = (Tuner::shipped(1), situation());
        let all: Vec<[f64; 12]> = (0..situation.arms.len()).map(|arm| seconds(&situation, arm)).collect();
        let measured: Vec<(usize, &[f64])> = all.iter().enumerate().map(|(arm, all)| (arm, &all[..])).collect();
        tuner.rehearsed(&situation, &measured, outcome);
        (tuner, situation)
    }

    fn standing(tuner: &Tuner) -> Standing {
        tuner.courses().next().expect("it was rehearsed").1.standing()
    }

    #[test]
    fn what_has_won_stands_from_the_first_call_on_and_is_watched() {
        let arm = (situation().default + 1) % situation().arms.len();
        let (mut tuner, situation) = after(Outcome::Gain(arm, GAIN));
        assert_eq!(standing(&tuner), Standing::Chosen(situation.choice(arm), GAIN));
        let entries: Vec<Schedule> = tuner.policy().entries().map(|(_, schedule)| *schedule).collect();
        assert_eq!(entries, [Schedule::always(situation.choice(arm))]);
        // In the job it takes twice as long as the default: the sentinel's calls tell.
        for _ in 0..2000 {
            let decision = tuner.decide(&situation);
            let seconds = if decision.arm == arm { 2e-3 } else { 1e-3 };
            tuner.observe(&situation, decision, seconds);
        }
        assert!(standing(&tuner) != Standing::Chosen(situation.choice(arm), GAIN), "{:?}", standing(&tuner));
    }

    #[test]
    fn where_nothing_is_better_nothing_is_tried_in_the_job() {
        for (outcome, reason) in
            [(Outcome::NothingBetter, Reason::NothingBetter), (Outcome::NoSignificantGain, Reason::NoSignificantGain)]
        {
            let (mut tuner, situation) = after(outcome);
            assert_eq!(standing(&tuner), Standing::Settled(reason));
            for _ in 0..300 {
                let decision = tuner.decide(&situation);
                assert_eq!(decision.arm, situation.default);
                tuner.observe(&situation, decision, 1e-3);
            }
        }
    }

    /// In the job, everything takes three times as long.
    #[test]
    fn beside_others_what_has_won_meets_the_default_at_once() {
        let (mut tuner, situation) = (Tuner::shipped(1), situation());
        let arm = (situation.default + 1) % situation.arms.len();
        let all: Vec<[f64; 12]> = (0..situation.arms.len()).map(|arm| seconds(&situation, arm)).collect();
        let measured: Vec<(usize, &[f64])> = all.iter().enumerate().map(|(arm, all)| (arm, &all[..])).collect();
        tuner.rehearsed_alone(&situation, &measured, Outcome::Gain(arm, GAIN));
        assert_eq!(standing(&tuner), Standing::Learning);
        let mut calls = 0;
        while standing(&tuner) == Standing::Learning {
            let decision = tuner.decide(&situation);
            assert!(decision.arm == situation.default || decision.arm == arm, "something else is tried");
            assert!(calls >= BASELINE || decision.arm == situation.default);
            tuner.observe(&situation, decision, 3.0 * seconds(&situation, decision.arm)[0]);
            calls += 1;
        }
        assert!(matches!(standing(&tuner), Standing::Chosen(choice, _) if choice == situation.choice(arm)));
        assert!(calls <= 60, "{calls}");
        assert_eq!(tuner.courses().next().map(|(_, course)| course.drifts), Some(0), "no network has changed");
    }

    /// There was time for a call of each choice, and all are alike. In the job, everything takes three times as long.
    #[test]
    fn beside_others_nothing_passes_for_faster_because_it_was_measured_alone() {
        const ALONE_S: &[f64] = &[1e-3];
        let (mut tuner, situation) = (Tuner::shipped(1), situation());
        let measured: Vec<(usize, &[f64])> = (0..situation.arms.len()).map(|arm| (arm, ALONE_S)).collect();
        tuner.rehearsed_alone(&situation, &measured, Outcome::Open);
        for _ in 0..BASELINE {
            let decision = tuner.decide(&situation);
            assert_eq!(decision.arm, situation.default);
            tuner.observe(&situation, decision, 3e-3);
        }
        let believed = |arm| tuner.learner().belief(&situation, arm).mean.exp();
        let least_s = (0..situation.arms.len()).map(believed).fold(f64::INFINITY, f64::min);
        assert!(least_s > 2e-3, "{least_s}");
    }

    #[test]
    fn what_is_open_goes_on_in_the_job_and_what_is_under_way_is_left_alone() {
        let (mut tuner, situation) = after(Outcome::Open);
        assert_eq!(standing(&tuner), Standing::Learning);
        for _ in 0..300 {
            let decision = tuner.decide(&situation);
            let seconds = seconds(&situation, decision.arm)[0];
            tuner.observe(&situation, decision, seconds);
        }
        assert!(matches!(standing(&tuner), Standing::Chosen(..)), "{:?}", standing(&tuner));
        let before = standing(&tuner);
        tuner.rehearsed(&situation, &[], Outcome::NothingBetter);
        assert_eq!(standing(&tuner), before);
    }
}
