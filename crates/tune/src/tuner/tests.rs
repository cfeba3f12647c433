mod beside;
mod chance;
mod doubt;
mod late;

use super::*;
use crate::action::tests;
use crate::random::Random;
use crate::state::State;

/// Two algorithms on a grid, where communication decides: much may be tried.
fn situation() -> Situation {
    let Situation { state, arms, default, .. } = tests::situation();
    let state = State { model_intensity: 100.0, local_batch: 8, ..state };
    Situation::new(state, arms, default).expect("arms")
}

/// The default's first calls.
const BASELINE: usize = 5;

/// Calls, with the seconds that `truth` says of an arm at a call. Returns what was played.
fn play(tuner: &mut Tuner, calls: u64, seed: u64, truth: impl Fn(usize, u64) -> f64) -> Vec<usize> {
    let (situation, mut random) = (situation(), Random::new(seed, 9));
    let once = |call| {
        let decision = tuner.decide(&situation);
        let seconds = truth(decision.arm, call) * (0.02 * random.normal()).exp();
        tuner.observe(&situation, decision, seconds);
        decision.arm
    };
    (0..calls).map(once).collect()
}

fn standing(tuner: &Tuner) -> Standing {
    tuner.courses().next().expect("a context").1.standing()
}

/// Arm 3 takes 0.7 ms, the others 1 ms or more.
fn third(arm: usize, _: u64) -> f64 {
    match arm {
        3 => 0.7e-3,
        4 => 1e-3,
        arm if arm < 9 => 1.05e-3,
        _ => 1.3e-3,
    }
}

/// Trials err together as seldom as before, and what was tried has cost what it has.
#[test]
fn what_is_promised_of_a_job_outlives_its_choices() {
    let mut jobs = [0, 1].map(|_| Tuner::shipped(1));
    jobs.iter_mut().for_each(|tuner| drop(play(tuner, 600, 1, third)));
    let [mut anew, mut other] = jobs;
    let trials = anew.trials();
    anew.start_over();
    assert_eq!((anew.courses().count(), anew.lessons()), (0, Vec::new()), "nothing is known");
    assert!(anew.excess() < 0.0 && trials > 0, "{} {trials}", anew.excess());
    assert_eq!((anew.trials(), anew.next_level()), (trials, other.next_level()));
    // It learns again.
    let played = play(&mut anew, 600, 2, third);
    assert!(played[..BASELINE].iter().all(|&arm| arm == 4), "{:?}", &played[..8]);
    assert!(matches!(standing(&anew), Standing::Chosen(..)), "{:?}", standing(&anew));
}

#[test]
fn the_default_comes_first_and_the_best_stands_at_last() {
    for seed in 0..5 {
        let mut tuner = Tuner::shipped(seed);
        let played = play(&mut tuner, 600, seed, third);
        assert!(played[..BASELINE].iter().all(|&arm| arm == 4), "seed {seed}: {:?}", &played[..8]);
        let Standing::Chosen(choice, gain) = standing(&tuner) else { panic!("seed {seed}: {:?}", standing(&tuner)) };
        assert_eq!(situation().arm_of(choice), 3, "seed {seed}");
        assert!((gain.share - 0.3).abs() < 0.03, "seed {seed}: {gain:?}");
        assert!(tuner.excess() < 0.0);
        // The sentinel looks after the default.
        let late = play(&mut tuner, 512, seed, third);
        let looks = late.iter().filter(|&&arm| arm == 4).count();
        assert!((1..=4).contains(&looks), "seed {seed}: {looks}");
    }
}

/// The library turns out not to do it: it is out where it stands, and nobody tries it again.
#[test]
fn what_is_no_choice_does_not_stand_and_is_not_tried() {
    let mut tuner = Tuner::shipped(1);
    play(&mut tuner, 600, 1, third);
    assert!(matches!(standing(&tuner), Standing::Chosen(..)));
    tuner.veto(&situation(), situation().default);
    assert!(matches!(standing(&tuner), Standing::Chosen(..)), "the default is always one");
    tuner.veto(&situation(), 3);
    assert_eq!(standing(&tuner), Standing::Settled(Reason::Reverted));
    assert!(!play(&mut tuner, 2000, 2, third).contains(&3));
    // And before anything was called.
    let mut tuner = Tuner::shipped(1);
    tuner.veto(&situation(), 3);
    assert!(!play(&mut tuner, 600, 1, third).contains(&3));
}

/// Of calls whose mean is as good as ever, one has taken more than three times as long as the default's: what is tried is out. Of what stands
/// the sums count.
#[test]
fn one_long_call_of_several_is_enough_while_something_is_tried() {
    // In the last case the default's are late as well, which excuses it.
    for (longest_s, default_s, is_out) in [(2.5e-3, 1e-3, false), (4e-3, 1e-3, true), (4e-3, 5e-3, false)] {
        let mut tuner = Tuner::shipped(1);
        // Nobody knows the default yet.
        tuner.observe_longest(&situation(), 3, [1e-3, 1.0]);
        play(&mut tuner, 20, 1, third);
        tuner.observe_longest(&situation(), 3, [1e-3, longest_s]);
        tuner.observe_longest(&situation(), situation().default, [1e-3, default_s]);
        assert_eq!(!play(&mut tuner, 600, 2, third).contains(&3), is_out, "{longest_s}");
    }
    let mut tuner = Tuner::shipped(1);
    play(&mut tuner, 600, 1, third);
    tuner.observe_longest(&situation(), 3, [1e-3, 4e-3]);
    assert!(matches!(standing(&tuner), Standing::Chosen(..)) && play(&mut tuner, 20, 2, third).contains(&3));
}

/// Whoever knows from elsewhere that the network has changed is believed, and what is best then is found as when the calls tell.
#[test]
fn a_change_that_is_told_of_is_a_change() {
    for seed in 0..5 {
        let mut tuner = Tuner::shipped(seed);
        tuner.changed(&situation());
        assert!(tuner.courses().next().is_none(), "of what was never called nothing can change");
        play(&mut tuner, 600, seed, third);
        for _ in 0..8 {
            tuner.observe_repeated(&situation(), 4, 5e-3);
        }
        tuner.changed(&situation());
        let (_, course) = tuner.courses().next().expect("a context");
        assert_eq!((course.standing(), course.drifts), (Standing::Learning, 1), "seed {seed}");
        play(&mut tuner, 300, seed + 100, |arm, call| 5.0 * third(arm, call));
        let Standing::Chosen(choice, _) = standing(&tuner) else { panic!("seed {seed}: {:?}", standing(&tuner)) };
        assert_eq!(situation().arm_of(choice), 3, "seed {seed}");
        assert!(tuner.excess() < 0.0, "seed {seed}: {}", tuner.excess());
    }
}

#[test]
fn where_nothing_is_better_the_default_stays() {
    for seed in 0..5 {
        let mut tuner = Tuner::shipped(seed);
        for calls in [300, 1200] {
            play(&mut tuner, calls, seed, |arm, _| if arm == 4 { 1e-3 } else { 1.2e-3 });
            let standing = standing(&tuner);
            assert!(!matches!(standing, Standing::Chosen(..)), "seed {seed}: {standing:?}");
        }
        assert!(tuner.excess() <= 0.011, "seed {seed}: {}", tuner.excess());
        assert!(tuner.policy().entries().next().is_none());
    }
}

/// Five times as slow, and as it was: each time, what is best then stands again within 100 calls.
#[test]
fn a_network_that_changes_and_comes_back_is_followed_at_once() {
    let mut late = 0;
    for seed in 0..20 {
        let mut tuner = Tuner::shipped(seed);
        play(&mut tuner, 400, seed, third);
        for (number, factor) in [5.0, 1.0, 5.0, 1.0].into_iter().enumerate() {
            let played = play(&mut tuner, 100, seed + 100, |arm, call| factor * third(arm, call));
            let (_, course) = tuner.courses().next().expect("a context");
            assert_eq!(course.drifts as usize, number + 1, "seed {seed}");
            // A trial takes 8 blocks, and seldom more.
            late += u32::from(!matches!(course.standing(), Standing::Chosen(..)));
            // Whatever was known before is not explored from the beginning; what has won here, stands at once.
            let others = played.iter().filter(|&&arm| arm != 3 && arm != 4).count();
            let default = played[20..].iter().filter(|&&arm| arm == 4).count();
            assert!(others <= 24 && (number == 0 || default <= 6), "seed {seed}, {number}: {played:?}");
            play(&mut tuner, 200, seed + 200, |arm, call| factor * third(arm, call));
            let Standing::Chosen(choice, _) = standing(&tuner) else { panic!("seed {seed}, {number}") };
            assert_eq!(situation().arm_of(choice), 3, "seed {seed}, {number}");
        }
    }
    assert!(late <= 2, "{late} of 80");
}

/// The network becomes five times as slow, and an arm is the best that was worse than the default before. (Of 60 seeds two find nothing in
/// the few calls of exploration.)
#[test]
fn what_was_bad_before_a_change_may_be_best_after_it() {
    let mut missed = 0;
    for seed in 0..10 {
        let mut tuner = Tuner::shipped(seed);
        play(&mut tuner, 600, seed, third);
        // A valley: what lies beside the best is better than the rest.
        let after = |arm: usize, _: u64| {
            5e-3 * match arm {
                5 => 0.6,
                2 | 8 => 0.8,
                _ => 1.0,
            }
        };
        play(&mut tuner, 1400, seed, after);
        let Standing::Chosen(choice, _) = standing(&tuner) else {
            missed += 1;
            continue;
        };
        assert!([2, 5, 8].contains(&situation().arm_of(choice)), "seed {seed}: {choice:?}");
    }
    assert!(missed <= 1, "{missed} of 10");
}

/// What stands becomes slow by itself, and nothing else does: it is given up.
#[test]
fn a_choice_that_becomes_worse_by_itself_is_given_up() {
    for seed in 0..5 {
        let mut tuner = Tuner::shipped(seed);
        play(&mut tuner, 600, seed, third);
        let after = |arm: usize, call: u64| if arm == 3 { 1.04e-3 } else { third(arm, call) };
        let played = play(&mut tuner, 1000, seed, after);
        // It may be looked at again, and does not stand.
        let calls = played[200..].iter().filter(|&&arm| arm == 3).count();
        assert!(calls < 200, "seed {seed}: {calls} calls of 800");
        let chosen = |standing| matches!(standing, Standing::Chosen(choice, _) if situation().arm_of(choice) == 3);
        assert!(!chosen(standing(&tuner)), "seed {seed}");
        assert!(tuner.excess() < 0.01, "seed {seed}: {}", tuner.excess());
    }
}

/// Every time of a trial is lost: it ends, and so does one for whose candidate there is never room.
#[test]
fn a_trial_does_not_hang() {
    let (mut tuner, situation) = (Tuner::shipped(6), situation());
    let mut calls = 0;
    while !matches!(standing_of(&tuner), Some(Standing::Settled(_))) {
        let decision = tuner.decide(&situation);
        let lost = matches!(decision.role, Role::OfTrial(..));
        tuner.observe(&situation, decision, if lost { f64::NAN } else { third(decision.arm, 0) });
        calls += 1;
        assert!(calls < 1500, "{:?}", standing_of(&tuner));
    }
    assert!(tuner.trials() > 0);
}

fn standing_of(tuner: &Tuner) -> Option<Standing> {
    tuner.courses().next().map(|(_, course)| course.standing())
}

/// What was decided for a trial that is over counts for none that comes later.
#[test]
fn late_times_belong_to_their_own_trial() {
    let (mut tuner, situation) = (Tuner::shipped(7), situation());
    let mut late = Vec::new();
    for _ in 0..400 {
        let decision = tuner.decide(&situation);
        match decision.role {
            Role::OfTrial(..) if late.len() < 3 => late.push(decision),
            _ => tuner.observe(&situation, decision, third(decision.arm, 0)),
        }
    }
    let before = standing(&tuner);
    late.into_iter().for_each(|decision| tuner.observe(&situation, decision, 1e-9));
    assert_eq!(standing(&tuner), before);
}

/// The best of all takes ten times as long in the middle of its trial.
#[test]
fn one_call_ends_a_trial() {
    for seed in 0..5 {
        let (mut tuner, situation) = (Tuner::shipped(seed), situation());
        let mut candidate_calls = 0;
        for call in 0..400 {
            let decision = tuner.decide(&situation);
            let in_trial = matches!(decision.role, Role::OfTrial(_, Side::Candidate, _));
            assert!(!in_trial || candidate_calls < 3, "seed {seed}, call {call}: it is still tried");
            candidate_calls += u32::from(in_trial);
            let factor = if in_trial && candidate_calls == 3 { 10.0 } else { 1.0 };
            tuner.observe(&situation, decision, factor * third(decision.arm, call));
            if candidate_calls == 3 {
                break;
            }
        }
        assert_eq!(candidate_calls, 3, "seed {seed}: there was no trial");
        assert_eq!(standing(&tuner), Standing::Settled(Reason::NoSignificantGain), "seed {seed}");
    }
}

#[test]
fn calls_may_be_decided_before_the_earlier_ones_have_ended() {
    let (mut tuner, situation) = (Tuner::shipped(4), situation());
    for _ in 0..80 {
        let (schedule, decisions) = tuner.schedule(&situation, 8);
        assert_eq!(schedule.turns().len(), decisions.len());
        for decision in decisions.into_iter().rev() {
            tuner.observe(&situation, decision, third(decision.arm, 0));
        }
    }
    let Standing::Chosen(choice, _) = standing(&tuner) else { panic!("{:?}", standing(&tuner)) };
    assert_eq!(situation.arm_of(choice), 3);
    let policy = tuner.policy();
    assert_eq!((policy.version(), policy.choice(situation.context.key(), 17)), (1, choice));
}

/// The second job finds the same, after a third of the exploration.
#[test]
fn the_next_job_begins_with_what_the_last_has_learned() {
    let decided = |tuner: &mut Tuner, seed: u64| {
        let mut calls = 0;
        while !standing_of(tuner).is_some_and(|standing| standing != Standing::Learning) {
            play(tuner, 1, seed * 1000 + calls, third);
            calls += 1;
        }
        let (_, course) = tuner.courses().next().expect("a context");
        let Standing::Chosen(choice, _) = course.standing() else { panic!("seed {seed}: {:?}", course.standing()) };
        (situation().arm_of(choice), calls, course.explored)
    };
    for seed in 0..5 {
        let mut first = Tuner::shipped(seed);
        let (best, calls, explored) = decided(&mut first, seed);
        let mut second = Tuner::shipped(seed + 100);
        second.remember(first.lessons());
        let again = decided(&mut second, seed);
        assert_eq!((best, again.0), (3, 3), "seed {seed}");
        assert!(calls > 200 && again.1 < 130, "seed {seed}: {calls} calls, then {}", again.1);
        assert!(again.2 < explored, "seed {seed}: {explored} calls of choices, then {}", again.2);
    }
}

#[test]
fn what_is_no_time_is_not_learned_from() {
    let (mut tuner, situation) = (Tuner::shipped(4), situation());
    for seconds in [f64::NAN, f64::INFINITY, 0.0, -1.0] {
        let decision = tuner.decide(&situation);
        tuner.observe(&situation, decision, seconds);
    }
    assert_eq!(tuner.courses().next().expect("a context").1.default.weight, 0.0);
}
