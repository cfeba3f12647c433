//! The time of the iteration decides about the choices of all calls together: what calls gain may have been hidden behind
//! computation, and the channels that they take may be missed by it.
//!
//! A *step* is what iterations are compared by: one of them, or a round of several of which the mean counts. Steps with everything
//! that was found and steps without take turns, in the blocks of a [`Trial`].

use std::collections::BTreeMap;
use std::mem;

use crate::action::Choice;
use crate::drift::Drift;
use crate::random::Random;
use crate::state::Context;
use crate::trial::{Errors, Gain, Side, Trial, Verdict, WORTHWHILE};

/// A trial ends in vain after so many steps in a row that say nothing of whose turn it was.
const LOST_MAX: u32 = 64;

/// By context, what is better than the default as far as calls tell.
pub type Found = BTreeMap<Context, Choice>;

/// How far the choices of all calls together are.
#[derive(Clone, Debug)]
pub struct Whole {
    stage: Stage,
    /// After so many steps in which what was found stays unused, or stands, it is tried once more, even if nothing seems to have changed.
    tried_again: u32,
    /// Of trials of iterations.
    errors: Errors,
    random: Random,
}

/// What has come of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Event {
    /// A trial has begun, of what was found of so many contexts.
    Trial(usize),
    /// It stands, with this gain.
    Gain(Gain),
    /// Iterations took no less.
    NoSignificantGain,
    /// Nothing is better than the default, as far as calls tell.
    NothingBetter,
    /// A call is open again.
    Again,
    /// Iterations take another time than they did while nothing was used: what was found is to be found out anew
    /// ([`crate::Tuner::changed`]).
    Changed,
}

/// A stage of it.
#[derive(Clone, Debug)]
pub enum Stage {
    /// Some call is not decided.
    Learning,
    /// Steps with the choices and without take turns. `turn`: whose the next step is.
    OnTrial {
        /// What is tried.
        candidate: Found,
        /// Its trial.
        trial: Trial,
        /// A side of it, and the block in which it counts.
        turn: Option<(Side, usize)>,
        /// So many steps in a row have said nothing: its turn is still to come.
        lost: u32,
        /// Did they stand before?
        stood: bool,
    },
    /// They stand. None, and no gain, where nothing is better than the default. What iterations take is watched: if that changes, those
    /// with them may be the longer ones.
    Stands {
        /// What stands.
        chosen: Found,
        /// By how much iterations are shorter.
        gain: Option<Gain>,
        /// Of the steps since then.
        watched: Drift,
        /// How many there were.
        steps: u32,
    },
    /// Iterations took no less. What they take is watched: if that changes, calls that were hidden may decide.
    Unused {
        /// Of the steps since then.
        watched: Drift,
        /// How many there were.
        steps: u32,
    },
}

/// What calls take in the next step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Turn<'a> {
    /// What their own tuner says.
    ByCalls,
    /// These, and all others the default.
    Found(&'a Found),
    /// The default.
    Default,
}

impl Whole {
    /// Before anything is known. The order of the sides of a block follows from the seed; what is decided is looked at again after so
    /// many steps.
    pub fn new(seed: u64, tried_again: u32) -> Whole {
        Whole { stage: Stage::Learning, tried_again, errors: Errors::default(), random: Random::new(seed, 0x3401) }
    }

    /// The stage.
    pub fn stage(&self) -> &Stage {
        &self.stage
    }

    /// The trials that were begun.
    pub fn trials(&self) -> u32 {
        self.errors.begun()
    }

    /// Is nothing open, and does nothing look as if it soon were?
    pub fn is_settled(&self) -> bool {
        match &self.stage {
            Stage::Learning | Stage::OnTrial { .. } => false,
            Stage::Stands { watched, .. } | Stage::Unused { watched, .. } => !watched.is_suspicious(),
        }
    }

    /// What calls take in the next step.
    pub fn turn(&self) -> Turn<'_> {
        match &self.stage {
            Stage::Learning | Stage::Stands { .. } => Turn::ByCalls,
            Stage::OnTrial { candidate, turn: Some((Side::Candidate, _)), .. } => Turn::Found(candidate),
            Stage::OnTrial { .. } | Stage::Unused { .. } => Turn::Default,
        }
    }

    /// What stands and shortens iterations: what is on trial for the first time or was found in vain does not.
    pub fn stands(&self) -> Option<&Found> {
        match &self.stage {
            Stage::Stands { chosen: stands, .. } | Stage::OnTrial { candidate: stands, stood: true, .. } => {
                Some(stands)
            }
            _ => None,
        }
    }

    /// The same of a context.
    pub fn chosen(&self, context: &Context) -> Choice {
        self.stands().and_then(|stands| stands.get(context)).copied().unwrap_or_default()
    }

    /// Other calls come: what was found of those before means nothing for them.
    pub fn begin_anew(&mut self) {
        self.break_off();
        self.stage = Stage::Learning;
    }

    /// So many steps have ended; while something is on trial, one. `found`: what is better by the times of calls; None while some call is
    /// open. `iteration_s`: seconds of the iterations of those steps that say something, in which calls took what their turn was, or
    /// what stands.
    pub fn judge(&mut self, found: Option<Found>, iteration_s: &[f64], ended: u32) -> Option<Event> {
        let Some(found) = found else {
            let was_learning = matches!(self.stage, Stage::Learning);
            self.begin_anew();
            return (!was_learning).then_some(Event::Again);
        };
        match &mut self.stage {
            Stage::Learning => Some(self.try_out(found, false)),
            Stage::OnTrial { candidate, .. } if *candidate == found => self.judge_trial(iteration_s),
            Stage::OnTrial { candidate, stood, .. } => {
                let stood = *stood && is_part(&found, candidate);
                self.break_off();
                Some(self.try_out(found, stood))
            }
            // What is no longer better has gone, which needs no trial; something new does.
            Stage::Stands { chosen, .. } if !is_part(&found, chosen) => Some(self.try_out(found, false)),
            Stage::Stands { chosen, gain, watched, steps } => {
                *steps = steps.saturating_add(ended);
                if (takes_another(watched, iteration_s) || *steps >= self.tried_again) && !found.is_empty() {
                    return Some(self.try_out(found, true));
                }
                if found.len() < chosen.len() {
                    *gain = gain.filter(|_| !found.is_empty());
                    *chosen = found;
                    // That iterations take something else now is no wonder.
                    *watched = Drift::default();
                }
                None
            }
            Stage::Unused { watched, steps } => {
                *steps = steps.saturating_add(ended);
                if takes_another(watched, iteration_s) {
                    self.stage = Stage::Learning;
                    return Some(Event::Changed);
                }
                (*steps >= self.tried_again).then(|| self.try_out(found, false))
            }
        }
    }

    /// If something is on trial, it is not any more.
    fn break_off(&mut self) {
        if let Stage::OnTrial { trial, .. } = &self.stage {
            self.errors.broken_off(trial);
        }
    }

    /// Lets the time of the iteration decide about what was found, or about what has stood.
    fn try_out(&mut self, found: Found, stood: bool) -> Event {
        if found.is_empty() {
            self.stand(found, None);
            return Event::NothingBetter;
        }
        let event = Event::Trial(found.len());
        let mut trial = Trial::new(self.errors.next_level());
        let turn = trial.next(&mut self.random);
        self.stage = Stage::OnTrial { candidate: found, trial, turn, lost: 0, stood };
        event
    }

    fn stand(&mut self, chosen: Found, gain: Option<Gain>) {
        self.stage = Stage::Stands { chosen, gain, watched: Drift::default(), steps: 0 };
    }

    fn judge_trial(&mut self, iteration_s: &[f64]) -> Option<Event> {
        let Stage::OnTrial { candidate, trial, turn, lost, .. } = &mut self.stage else { return None };
        match (*turn, iteration_s) {
            (Some((side, block)), [seconds]) if is_time(seconds) => {
                trial.observe(side, block, *seconds);
                *lost = 0;
            }
            _ => {
                *lost += 1;
                return (*lost >= LOST_MAX).then(|| self.leave());
            }
        }
        match trial.verdict() {
            Some(Verdict::Gain(gain)) => {
                let chosen = mem::take(candidate);
                self.errors.found();
                self.stand(chosen, Some(gain));
                Some(Event::Gain(gain))
            }
            Some(Verdict::NoSignificantGain) => Some(self.leave()),
            None => match trial.next(&mut self.random) {
                Some(next) => {
                    *turn = Some(next);
                    None
                }
                None => Some(self.leave()),
            },
        }
    }

    fn leave(&mut self) -> Event {
        self.stage = Stage::Unused { watched: Drift::default(), steps: 0 };
        Event::NoSignificantGain
    }
}

/// Is all of it in this, too?
fn is_part(found: &Found, all: &Found) -> bool {
    found.iter().all(|(context, choice)| all.get(context) == Some(choice))
}

/// Do iterations take another time than they did? What differs by no more than is worth a change is none.
fn takes_another(watched: &mut Drift, iteration_s: &[f64]) -> bool {
    iteration_s.iter().any(|seconds| is_time(seconds) && watched.observe(*seconds, WORTHWHILE, 0.0))
}

fn is_time(seconds: &f64) -> bool {
    seconds.is_finite() && *seconds > 0.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::action::{Action, Family, WireProtocol};
    use crate::state::State;
    use crate::state::tests::CALL;

    const TRIED_AGAIN: u32 = 512;

    fn found(sizes_log2: &[u32]) -> Found {
        let family = Family { algorithm: 1, protocol: WireProtocol::Simple };
        let choice = Choice::Play(Action { family, channels: 4, threads: 0, chunk_log2: 0 });
        sizes_log2.iter().map(|&log2| (State { bytes: 1u64 << log2, ..CALL }.context(), choice)).collect()
    }

    /// Steps of a second, which take `factor` times as long with what was found.
    struct Steps {
        whole: Whole,
        factor: f64,
        random: Random,
    }

    impl Steps {
        fn new(seed: u64, factor: f64) -> Steps {
            Steps { whole: Whole::new(seed, TRIED_AGAIN), factor, random: Random::new(seed, 0x57e9) }
        }

        /// True if all is to be found out anew.
        fn step(&mut self, found: &Found) -> bool {
            let is_used = match self.whole.turn() {
                Turn::Found(_) => true,
                Turn::ByCalls => matches!(self.whole.stage(), Stage::Stands { gain: Some(_), .. }),
                Turn::Default => false,
            };
            let seconds = if is_used { self.factor } else { 1.0 } * (0.01 * self.random.normal()).exp();
            self.whole.judge(Some(found.clone()), &[seconds], 1) == Some(Event::Changed)
        }

        fn until_settled(&mut self, found: &Found) {
            for _ in 0..100 {
                self.step(found);
                if self.whole.is_settled() {
                    return;
                }
            }
            panic!("it is not decided: {:?}", self.whole);
        }
    }

    #[test]
    fn what_shortens_iterations_stands() {
        let found = found(&[16, 20]);
        for seed in 1..4 {
            let mut steps = Steps::new(seed, 0.8);
            assert!(!steps.whole.is_settled() && steps.whole.turn() == Turn::ByCalls, "seed {seed}");
            steps.until_settled(&found);
            let Stage::Stands { chosen, gain: Some(gain), .. } = steps.whole.stage() else {
                panic!("seed {seed}: {:?}", steps.whole);
            };
            assert!(*chosen == found && (gain.share - 0.2).abs() < 0.03, "seed {seed}: {gain:?}");
            let (context, choice) = found.first_key_value().expect("two of them");
            assert_eq!((steps.whole.turn(), steps.whole.chosen(context)), (Turn::ByCalls, *choice), "seed {seed}");
        }
    }

    /// What makes iterations longer or no shorter is not used, for as long as nothing changes.
    #[test]
    fn what_shortens_calls_only_does_not_stand() {
        let found = found(&[20]);
        for (seed, factor) in [(1, 1.0), (2, 1.05), (3, 0.99)] {
            let mut steps = Steps::new(seed, factor);
            steps.until_settled(&found);
            assert!(matches!(steps.whole.stage(), Stage::Unused { .. }), "{factor}: {:?}", steps.whole);
            assert_eq!(steps.whole.turn(), Turn::Default, "{factor}");
            let context = found.keys().next().expect("one of them");
            assert_eq!(steps.whole.chosen(context), Choice::Default, "{factor}");
            for _ in 1..TRIED_AGAIN {
                assert!(!steps.step(&found) && steps.whole.turn() == Turn::Default, "{factor}");
            }
            steps.step(&found);
            assert_eq!((steps.whole.trials(), steps.whole.is_settled()), (2, false), "{factor}: once more");
        }
    }

    /// What stands is compared with the default once more when iterations take another time, and now and then.
    #[test]
    fn what_stands_is_given_up_when_it_shortens_nothing_any_more() {
        let found = found(&[20]);
        let context = found.keys().next().expect("one of them");
        for (factor, stands, steps_max) in [(1.1, false, 12), (1.0, false, 12), (0.8, true, TRIED_AGAIN)] {
            let mut steps = Steps::new(8, 0.8);
            steps.until_settled(&found);
            (0..40).for_each(|_| _ = steps.step(&found));
            assert!(steps.whole.is_settled(), "{factor}: {:?}", steps.whole);
            steps.factor = factor;
            let is_tried = |steps: &Steps| matches!(steps.whole.stage(), Stage::OnTrial { stood: true, .. });
            let noticed = (0..steps_max).any(|_| {
                steps.step(&found);
                is_tried(&steps)
            });
            assert!(noticed && steps.whole.chosen(context) != Choice::Default, "{factor}: {:?}", steps.whole);
            steps.until_settled(&found);
            assert_eq!(steps.whole.chosen(context) != Choice::Default, stands, "{factor}: {:?}", steps.whole);
        }
    }

    #[test]
    fn iterations_that_change_begin_anew_what_was_not_used() {
        let found = found(&[20]);
        let mut steps = Steps::new(4, 1.0);
        steps.until_settled(&found);
        assert!((0..40).all(|_| !steps.step(&found)));
        let noticed = (0..12).any(|_| steps.whole.judge(Some(found.clone()), &[1.3], 1) == Some(Event::Changed));
        assert!(noticed && matches!(steps.whole.stage(), Stage::Learning), "{:?}", steps.whole);
    }

    #[test]
    fn where_nothing_was_found_nothing_is_tried() {
        let mut steps = Steps::new(5, 1.0);
        steps.until_settled(&Found::new());
        assert_eq!((steps.whole.trials(), steps.whole.turn()), (0, Turn::ByCalls));
        // A call has begun anew, and then something is better.
        assert_eq!(steps.whole.judge(None, &[], 1), Some(Event::Again));
        assert_eq!(steps.whole.judge(None, &[], 1), None);
        assert!(!steps.whole.is_settled());
        steps.step(&found(&[20]));
        assert_eq!(steps.whole.trials(), 1);
    }

    /// A trial is of one candidate. What stands may become less without one, and no more.
    #[test]
    fn another_candidate_has_a_trial_of_its_own() {
        let (one, both) = (found(&[16]), found(&[16, 20]));
        let mut steps = Steps::new(6, 0.8);
        (0..5).for_each(|_| _ = steps.step(&both));
        steps.step(&one);
        let Stage::OnTrial { candidate, .. } = steps.whole.stage() else { panic!("{:?}", steps.whole) };
        // Nobody had looked at the first trial: its error is spent by the second.
        assert_eq!((candidate, steps.whole.trials()), (&one, 1));
        steps.step(&both);
        steps.until_settled(&both);
        steps.step(&one);
        assert!(matches!(steps.whole.stage(), Stage::Stands { chosen, gain: Some(_), .. } if *chosen == one));
        steps.step(&both);
        assert!(matches!(steps.whole.stage(), Stage::OnTrial { .. }), "{:?}", steps.whole);
        steps.until_settled(&both);
        steps.step(&Found::new());
        assert!(matches!(steps.whole.stage(), Stage::Stands { gain: None, .. }), "{:?}", steps.whole);
    }

    #[test]
    fn a_trial_whose_steps_say_nothing_ends() {
        let (mut whole, found) = (Whole::new(7, TRIED_AGAIN), found(&[20]));
        for _ in 0..200 {
            whole.judge(Some(found.clone()), &[f64::NAN], 1);
        }
        assert!(matches!(whole.stage(), Stage::Unused { .. }) && whole.is_settled(), "{whole:?}");
    }
}
