//! Calls that are late for reasons of their own, or of nobody's.

use super::*;

const STALLED_S: f64 = 0.1;

/// Whether a call is late, of so many in a thousand: drawn from its number, whatever is played.
fn is_late(in_thousand: u64, seed: u64, call: u64) -> bool {
    Random::new(seed, call).below(1000) < in_thousand as usize
}

fn third_stands(tuner: &Tuner) -> bool {
    matches!(standing(tuner), Standing::Chosen(choice, _) if situation().arm_of(choice) == 3)
}

/// One call in thirty, a hundred times as long as the others, whatever it takes: what is best is found, and what stands is not given up.
#[test]
fn what_is_late_whatever_is_played_hides_no_choice() {
    let mut stands = 0;
    for seed in 0..20 {
        let mut tuner = Tuner::shipped(seed);
        let truth = |arm, call| third(arm, call) + if is_late(33, seed, call) { STALLED_S } else { 0.0 };
        play(&mut tuner, 6000, seed, truth);
        stands += usize::from(third_stands(&tuner));
        assert_eq!(tuner.courses().next().expect("a context").1.drifts, 0, "seed {seed}");
    }
    assert!(stands >= 16, "found by {stands} of 20");
}

/// One call in ten of the best, and of no other, takes a hundred times as long: in the sum it is the worst of all.
#[test]
fn a_choice_that_is_late_of_itself_does_not_stand() {
    for seed in 0..20 {
        let mut tuner = Tuner::shipped(seed);
        let is_own = |arm: usize, call: u64| arm == 3 && is_late(100, seed, call);
        let truth = |arm, call| third(arm, call) + if is_own(arm, call) { STALLED_S } else { 0.0 };
        let played = play(&mut tuner, 3000, seed, truth);
        assert!(!third_stands(&tuner), "seed {seed}");
        let calls = played.iter().filter(|&&arm| arm == 3).count();
        assert!(calls < 150, "seed {seed}: {calls} of 3000");
    }
}

/// One call in a hundred and fifty of the best, and of no other, takes 200 ms: what it saves in all others does not pay for that. Before anybody
/// can know it, it may have stood for some hundred calls, and so have been late once or twice.
#[test]
fn a_choice_that_is_seldom_and_very_late_of_itself_is_given_up() {
    let (mut late, mut stood, mut over) = (0, 0, 0.0);
    for seed in 0..40 {
        let mut tuner = Tuner::shipped(seed);
        let is_own = |arm: usize, call: u64| arm == 3 && is_late(7, seed, call);
        let truth = |arm, call| third(arm, call) + if is_own(arm, call) { 2.0 * STALLED_S } else { 0.0 };
        let played = play(&mut tuner, 6000, seed, truth);
        let calls = |arm: usize| (0u64..).zip(&played).filter(move |(_, it)| **it == arm).map(|(call, _)| call);
        late += calls(3).filter(|&call| is_own(3, call)).count();
        stood += calls(3).count();
        over += calls(3).map(|call| truth(3, call) / 1e-3 - 1.0).sum::<f64>() / 6000.0;
        assert!(!third_stands(&tuner), "seed {seed}");
    }
    println!(
        "late {late} times in {stood} calls of 40 jobs, which cost {:.1} % of their calls in the mean",
        100.0 * over / 40.0
    );
    let mean = over / 40.0;
    assert!(stood > 2000 && (40..=120).contains(&late) && mean < 0.05, "{late} times in {stood} calls, {mean}");
}

/// What stands, and was late by more than it has saved: until the default had calls enough, that is called, and what others repeat tells, too.
#[test]
fn what_was_late_rests_until_the_default_had_calls_enough() {
    let situation = situation();
    let mut tuner = Tuner::shipped(3);
    play(&mut tuner, 1500, 3, third);
    assert!(third_stands(&tuner));
    let context = situation.context;
    let rests = |tuner: &Tuner| situation.arm_of(tuner.rests_with(&context));
    assert_eq!(rests(&tuner), 3);
    // Half as many as what stands had, and so not yet.
    (0..600).for_each(|_| tuner.observe_repeated(&situation, 3, 0.7e-3));
    tuner.observe_repeated(&situation, 3, 2.0 * STALLED_S);
    assert_eq!((rests(&tuner), third_stands(&tuner)), (3, true), "it has saved more than that");
    tuner.observe_repeated(&situation, 3, 20.0 * STALLED_S);
    assert_eq!((rests(&tuner), third_stands(&tuner)), (situation.default, true));
    let mut asked = 0;
    while tuner.is_on_probation(&context) && asked < 1000 {
        tuner.observe_repeated(&situation, situation.default, 1e-3);
        asked += 1;
    }
    assert!((20..600).contains(&asked) && !third_stands(&tuner), "given up as soon as that is known: {asked}");
}

/// The same where the default is late meanwhile: it was nobody's fault, and what stands goes on.
#[test]
fn what_was_late_stands_again_if_the_default_is_late_too() {
    let situation = situation();
    let mut tuner = Tuner::shipped(3);
    play(&mut tuner, 1500, 3, third);
    let context = situation.context;
    tuner.observe_repeated(&situation, 3, 20.0 * STALLED_S);
    assert!(tuner.is_on_probation(&context) && third_stands(&tuner));
    assert_eq!(situation.arm_of(tuner.goes_on_with(&context)), 3, "where nobody times it");
    tuner.observe_repeated(&situation, 3, 20.0 * STALLED_S);
    assert_eq!(tuner.goes_on_with(&context), Choice::Default, "late again");
    for call in 0..600 {
        let seconds = if call % 30 == 7 { 20.0 * STALLED_S } else { 1e-3 };
        tuner.observe_repeated(&situation, situation.default, seconds);
    }
    let both = [Tuner::rests_with, Tuner::goes_on_with].map(|of| situation.arm_of(of(&tuner, &context)));
    assert!(
        !tuner.is_on_probation(&context) && third_stands(&tuner) && both == [3, 3],
        "{both:?} {:?}",
        tuner.course(&context).map(Course::standing)
    );
}

/// The default's calls that a schedule repeats count, late or not.
#[test]
fn what_is_late_of_the_default_is_seen_in_calls_that_are_repeated() {
    let situation = situation();
    for seed in 0..10 {
        let (mut tuner, mut random) = (Tuner::shipped(seed), Random::new(seed, 23));
        let before_s: Vec<f64> = (0..40).map(|_| 1e-3 * (0.02 * random.normal()).exp()).collect();
        tuner.rehearsed(&situation, &[(situation.default, &before_s)], Outcome::NothingBetter);
        let [calls, late] = tuner.guard.late_of_default(&situation.context);
        let stalls: Vec<u64> = (0..600).filter(|&call| is_late(30, seed, call)).collect();
        for call in 0..600 {
            let more_s = if stalls.contains(&call) { STALLED_S } else { 0.0 };
            tuner.observe_repeated(&situation, situation.default, 1e-3 * (0.02 * random.normal()).exp() + more_s);
        }
        let [now, seen] = tuner.guard.late_of_default(&situation.context);
        // The last ones count most, and the very last wait while something is suspected.
        let (share, made) = ((seen - late) / (now - calls), stalls.len() as f64 / 600.0);
        assert!((0.5..=2.0).contains(&(share / made)), "seed {seed}: {share} of {made}");
        assert_eq!(tuner.courses().next().expect("a context").1.drifts, 0, "seed {seed}");
    }
}
