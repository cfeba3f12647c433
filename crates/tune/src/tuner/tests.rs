use super::*;
use crate::action::tests::situation;
use crate::random::Random;

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

#[test]
fn the_default_comes_first_and_the_best_stands_at_last() {
    for seed in 0..5 {
        let mut tuner = Tuner::shipped(seed);
        let played = play(&mut tuner, 600, seed, third);
        assert!(played[..BASELINE as usize].iter().all(|&arm| arm == 4), "seed {seed}: {:?}", &played[..8]);
        let Standing::Chosen(choice, gain) = standing(&tuner) else { panic!("seed {seed}: {:?}", standing(&tuner)) };
        assert_eq!(situation().arm_of(choice), 3, "seed {seed}");
        assert!((gain.share - 0.3).abs() < 0.03, "seed {seed}: {gain:?}");
        assert!(tuner.excess() < 0.0);
        // The sentinel looks after the default.
        let late = play(&mut tuner, 512, seed, third);
        assert_eq!(late.iter().filter(|&&arm| arm == 4).count(), 2, "seed {seed}");
    }
}

#[test]
fn where_nothing_is_better_the_default_stays() {
    for seed in 0..5 {
        let mut tuner = Tuner::shipped(seed);
        play(&mut tuner, 1500, seed, |arm, _| if arm == 4 { 1e-3 } else { 1.2e-3 });
        assert!(matches!(standing(&tuner), Standing::Settled(_)), "seed {seed}: {:?}", standing(&tuner));
        assert!(tuner.excess() <= 0.011, "seed {seed}: {}", tuner.excess());
        assert!(tuner.policy().entries().next().is_none());
    }
}

/// The network becomes five times as slow, and another arm the best: within 400 calls it stands.
#[test]
fn a_change_is_followed() {
    for seed in 0..5 {
        let mut tuner = Tuner::shipped(seed);
        play(&mut tuner, 600, seed, third);
        let after = |arm: usize, _: u64| 5e-3 * if arm == 5 { 0.6 } else { 1.0 };
        play(&mut tuner, 600, seed, after);
        let (_, course) = tuner.courses().next().expect("a context");
        assert!(course.drifts >= 1, "seed {seed}");
        let Standing::Chosen(choice, _) = course.standing() else { panic!("seed {seed}: {:?}", course.standing()) };
        assert_eq!(situation().arm_of(choice), 5, "seed {seed}");
    }
}

/// The best of all takes ten times as long in the middle of its trial.
#[test]
fn one_call_ends_a_trial() {
    for seed in 0..5 {
        let (mut tuner, situation) = (Tuner::shipped(seed), situation());
        let mut candidate_calls = 0;
        for call in 0..400 {
            let decision = tuner.decide(&situation);
            let in_trial = matches!(decision.role, Role::OfTrial(Side::Candidate, _));
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

#[test]
fn the_next_job_begins_with_what_the_last_has_learned() {
    let mut first = Tuner::shipped(1);
    play(&mut first, 400, 1, third);
    let mut second = Tuner::shipped(2);
    second.remember(first.lessons());
    play(&mut second, BASELINE, 2, third);
    let admitted = vec![true; situation().arms.len()];
    assert_eq!(second.learner().best(&situation(), &admitted), 3);
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
