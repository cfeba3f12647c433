//! Alarms that come of nothing, and those that do not.

use std::sync::{Arc, Mutex};

use super::*;
use crate::learner::{Belief, Expected, Learner, Thompson};
use crate::state::Context;

/// One call; what was decided for it.
fn call(tuner: &mut Tuner, random: &mut Random, seconds: impl Fn(usize) -> f64) -> Decision {
    let situation = situation();
    let decision = tuner.decide(&situation);
    tuner.observe(&situation, decision, seconds(decision.arm) * (0.02 * random.normal()).exp());
    decision
}

fn course(tuner: &Tuner) -> &Course {
    tuner.courses().next().expect("a context").1
}

/// What stands takes a quarter longer for a while, and the default does not: it stands on, and nothing is explored. When the while is
/// over, that may look like a change once more.
#[test]
fn an_alarm_of_nothing_costs_some_calls_of_the_default() {
    for seed in 0..10 {
        let (mut tuner, mut random) = (Tuner::shipped(seed), Random::new(seed, 12));
        play(&mut tuner, 600, seed, third);
        let vetoed = tuner.guard.vetoed(&situation().context);
        let mut played = Vec::new();
        for number in 0..200 {
            let factor = |arm: usize| if arm == 3 && number < 8 { 1.25 } else { 1.0 };
            played.push(call(&mut tuner, &mut random, |arm| factor(arm) * third(arm, 0)).arm);
            assert!(matches!(standing(&tuner), Standing::Chosen(..)), "seed {seed}, call {number}");
        }
        let alarms = course(&tuner).dismissed;
        assert!(course(&tuner).drifts == 0 && (1..=2).contains(&alarms), "seed {seed}: {alarms}");
        let default = played.iter().filter(|&&arm| arm == 4).count();
        assert!(played.iter().all(|&arm| arm == 3 || arm == 4), "seed {seed}: {played:?}");
        // The sentinel's besides.
        assert!((5..=22).contains(&default), "seed {seed}: {default} calls of the default");
        assert_eq!((tuner.trials(), tuner.guard.vetoed(&situation().context)), (1, vetoed), "seed {seed}");
    }
}

/// In the middle of a trial: its blocks count, and no other one begins.
#[test]
fn a_trial_outlasts_an_alarm_of_nothing() {
    for seed in 0..10 {
        let (mut tuner, mut random) = (Tuner::shipped(seed), Random::new(seed, 13));
        let mut in_trial = 0;
        while in_trial < 9 {
            in_trial += u32::from(matches!(call(&mut tuner, &mut random, |arm| third(arm, 0)).role, Role::OfTrial(..)));
        }
        // Something else uses the machine for six calls of whatever arms.
        for _ in 0..6 {
            call(&mut tuner, &mut random, |arm| 1.5 * third(arm, 0));
        }
        assert!(course(&tuner).is_in_doubt() || course(&tuner).dismissed > 0, "seed {seed}: nobody has noticed");
        let mut calls = 0;
        while standing(&tuner) == Standing::Learning {
            call(&mut tuner, &mut random, |arm| third(arm, 0));
            calls += 1;
        }
        assert_eq!((course(&tuner).drifts, tuner.trials()), (0, 1), "seed {seed}");
        assert!(matches!(standing(&tuner), Standing::Chosen(..)) && calls <= 100, "seed {seed}: {calls} calls");
    }
}

/// After a change the five calls are the new beginning: none is made twice.
#[test]
fn what_confirms_a_change_is_what_the_default_takes_from_then_on() {
    for seed in 0..10 {
        let (mut tuner, mut random) = (Tuner::shipped(seed), Random::new(seed, 14));
        play(&mut tuner, 600, seed, third);
        let mut default = 0;
        while course(&tuner).drifts == 0 {
            default += u32::from(call(&mut tuner, &mut random, |arm| 5.0 * third(arm, 0)).arm == 4);
            // The sentinel has looked, too, as what stands takes more than three times the default.
            assert!(default <= 9, "seed {seed}: the change was not believed");
        }
        let is_of_what_stood = |phase: &Phase| matches!(phase, Phase::Trial(tried) if tried.candidate == 3);
        assert!(is_of_what_stood(&course(&tuner).phase), "seed {seed}: {:?}", course(&tuner).phase);
        let usual_s = tuner.guard.default_seconds(&situation().context);
        assert!(usual_s.is_some_and(|it| (it / 5e-3 - 1.0).abs() < 0.1), "seed {seed}: {usual_s:?}");
        assert_eq!(course(&tuner).dismissed, 0, "seed {seed}");
    }
}

/// Everything takes a quarter longer: what stood stands on, without another trial, and is called by turns until it is proved.
#[test]
fn what_stood_stands_on_where_the_default_has_changed_little() {
    for seed in 0..10 {
        let mut tuner = Tuner::shipped(seed);
        play(&mut tuner, 600, seed, third);
        let (trials, context) = (tuner.trials(), situation().context);
        let played = play(&mut tuner, 60, seed + 100, |arm, call| 1.25 * third(arm, call));
        assert_eq!((course(&tuner).drifts, tuner.trials()), (1, trials), "seed {seed}");
        assert!(tuner.is_on_probation(&context), "seed {seed}: {played:?}");
        play(&mut tuner, 60, seed + 200, |arm, call| 1.25 * third(arm, call));
        assert!(!tuner.is_on_probation(&context), "seed {seed}");
        let Standing::Chosen(choice, _) = standing(&tuner) else { panic!("seed {seed}: {:?}", standing(&tuner)) };
        assert_eq!(situation().arm_of(choice), 3, "seed {seed}");
    }
}

/// Everything takes a quarter longer, and what stood takes three times as long: it goes, and something else is looked for.
#[test]
fn what_has_changed_itself_does_not_stand_on() {
    for seed in 0..10 {
        let mut tuner = Tuner::shipped(seed);
        play(&mut tuner, 600, seed, third);
        let before = course(&tuner).explored;
        play(&mut tuner, 200, seed + 100, |arm, call| if arm == 3 { 3.0 } else { 1.25 } * third(arm, call));
        let stands = match standing(&tuner) {
            Standing::Chosen(choice, _) => situation().arm_of(choice),
            _ => situation().default,
        };
        assert!(stands != 3 && course(&tuner).explored > before, "seed {seed}: {:?}", course(&tuner));
    }
}

/// What a learner is told, in its order: seconds of calls, and changes.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Told {
    Call(f64),
    Changed,
}

/// Notes what it is told.
struct Noting(Thompson, Arc<Mutex<Vec<Told>>>);

impl Noting {
    fn note(&self, told: Told) {
        self.1.lock().expect("no panic").push(told);
    }
}

impl Learner for Noting {
    fn name(&self) -> &'static str {
        "noting"
    }

    fn choose_of(&mut self, situation: &Situation, arms: &[usize], believed: &[Belief], random: &mut Random) -> usize {
        self.0.choose_of(situation, arms, believed, random)
    }

    fn observe(&mut self, situation: &Situation, arm: usize, seconds: f64) {
        self.note(Told::Call(seconds));
        self.0.observe(situation, arm, seconds);
    }

    fn belief(&self, situation: &Situation, arm: usize) -> Belief {
        self.0.belief(situation, arm)
    }

    fn expected(&self, situation: &Situation, arm: usize) -> Expected {
        self.0.expected(situation, arm)
    }

    fn best(&self, situation: &Situation, admitted: &[bool]) -> usize {
        self.0.best(situation, admitted)
    }

    fn changed(&mut self, context: &Context, shift: f64) {
        self.note(Told::Changed);
        self.0.changed(context, shift);
    }
}

/// Calls between a change and its alarm are not learned as those of the network before; where nothing has changed, all are learned.
#[test]
fn nothing_is_learned_of_calls_whose_network_nobody_knows() {
    for seed in 0..10 {
        let told = Arc::default();
        let learner = Noting(Thompson::default(), Arc::clone(&told));
        let (mut tuner, mut random) = (Tuner::new(Box::new(learner), seed), Random::new(seed, 15));
        play(&mut tuner, 600, seed, third);
        let before = told.lock().expect("no panic").len();
        assert!((590..=600).contains(&before), "seed {seed}: {before} of 600 calls");
        while course(&tuner).drifts == 0 {
            call(&mut tuner, &mut random, |arm| 5.0 * third(arm, 0));
        }
        let told = told.lock().expect("no panic").split_off(before);
        let changed = told.iter().position(|it| *it == Told::Changed).expect("a change");
        let slow = |told: &&Told| matches!(told, Told::Call(seconds) if *seconds > 2e-3);
        assert_eq!(told[..changed].iter().filter(slow).count(), 0, "seed {seed}: {told:?}");
        assert_eq!(told[changed..].iter().filter(slow).count(), BASELINE, "seed {seed}: {told:?}");
    }
}

/// The default alone takes less than before, and less than what stands.
#[test]
fn what_stands_is_given_up_for_a_default_that_is_better_now() {
    for seed in 0..10 {
        let mut tuner = Tuner::shipped(seed);
        play(&mut tuner, 600, seed, third);
        play(&mut tuner, 600, seed, |arm, call| if arm == 4 { 0.6e-3 } else { third(arm, call) });
        let Standing::Settled(_) = standing(&tuner) else { panic!("seed {seed}: {:?}", standing(&tuner)) };
    }
}

/// Of many calls between two meetings only the first are decided one by one, and the network changes among the others.
#[test]
fn a_change_among_calls_that_a_schedule_repeats_is_noticed() {
    for (factor, seed) in [5.0, 0.3].into_iter().flat_map(|factor| (0..10).map(move |seed| (factor, seed))) {
        let (mut tuner, situation) = (Tuner::shipped(seed), situation());
        let mut random = Random::new(seed, 21);
        let mut seconds = |factor: f64| factor * 1e-3 * (0.05 * random.normal()).exp();
        let before_s: Vec<f64> = (0..40).map(|_| seconds(1.0)).collect();
        tuner.rehearsed(&situation, &[(situation.default, &before_s)], Outcome::NothingBetter);
        for call in 0..200 {
            let seconds = seconds(if call < 100 { 1.0 } else { factor });
            tuner.observe_repeated(&situation, situation.default, seconds);
            assert!(call >= 100 || course(&tuner).drifts == 0, "seed {seed}, {factor}: call {call}");
        }
        assert_eq!(course(&tuner).drifts, 1, "seed {seed}, {factor}");
    }
}
