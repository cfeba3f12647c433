//! What is tried beside a choice that stands.

use super::*;
use crate::trial::Gain;
use crate::tuner::Outcome;
use crate::tuner::course::AGAIN;

/// Of a rehearsal.
const GAIN: Gain = Gain { share: 0.1, margin: 0.01, probability: 1e-4 };

/// Arm 1 has won a rehearsal, in which nothing else was called.
fn after_rehearsal(seed: u64) -> Tuner {
    let (mut tuner, situation) = (Tuner::shipped(seed), situation());
    let measured: [(usize, &[f64]); 2] = [(4, &[1e-3; 12]), (1, &[0.9e-3; 12])];
    tuner.rehearsed(&situation, &measured, Outcome::Gain(1, GAIN));
    tuner
}

/// Arm 1 takes a tenth less than the default, and arm 0 beside it much less.
fn better_yet(arm: usize, call: u64) -> f64 {
    match arm {
        0 => 0.7e-3,
        1 => 0.9e-3,
        3 => 1.05e-3,
        arm => third(arm, call),
    }
}

fn chosen(tuner: &Tuner) -> (usize, Gain) {
    let Standing::Chosen(choice, gain) = standing(tuner) else { panic!("{:?}", standing(tuner)) };
    (situation().arm_of(choice), gain)
}

#[test]
fn what_is_better_yet_takes_the_place_of_what_stands() {
    for seed in 0..10 {
        let mut tuner = after_rehearsal(seed);
        let played = play(&mut tuner, AGAIN, seed, better_yet);
        assert!(played.iter().all(|arm| [1, 4].contains(arm)), "seed {seed}: something else is tried before its time");
        play(&mut tuner, AGAIN, seed + 100, better_yet);
        let (arm, gain) = chosen(&tuner);
        // Of the default's time.
        assert!(arm == 0 && (gain.share - 0.3).abs() < 0.03, "seed {seed}: {arm}, {gain:?}");
    }
}

/// Nothing is better than arm 1: what finding out costs is a share of what it saves.
#[test]
fn others_lose_no_more_than_a_share_of_what_is_saved() {
    for seed in 0..10 {
        let mut tuner = after_rehearsal(seed);
        let truth = |arm: usize, _: u64| match arm {
            1 => 0.9e-3,
            4 => 1e-3,
            _ => 1.1e-3,
        };
        play(&mut tuner, AGAIN, seed, truth);
        let (_, before) = tuner.courses().next().expect("a context");
        let explored = before.explored;
        let played = play(&mut tuner, 2 * AGAIN, seed + 100, truth);
        assert_eq!(chosen(&tuner).0, 1, "seed {seed}");
        let others = played.iter().filter(|arm| ![1, 4].contains(arm)).count();
        // Each loses 0.2 ms, and a call of what stands saves half of that.
        assert!(explored == 0 && (1..100).contains(&others), "seed {seed}: {explored}, {others}");
        let looked = played.len() - played.iter().rev().position(|arm| ![1, 4].contains(arm)).expect("some");
        assert!(others as f64 <= 0.125 * (AGAIN as usize + looked) as f64 + 1.0, "seed {seed}: {others} of {looked}");
    }
}

/// The candidate of a trial takes ten times as long in the middle of it: that costs it its place, and nothing else.
#[test]
fn what_stands_outlives_a_candidate_that_is_vetoed() {
    for seed in 0..10 {
        let (mut tuner, situation) = (after_rehearsal(seed), situation());
        play(&mut tuner, AGAIN, seed, better_yet);
        let (mut random, mut is_out) = (Random::new(seed, 21), false);
        for call in 0..2 * AGAIN {
            let decision = tuner.decide(&situation);
            assert!(!is_out || decision.arm != 0, "seed {seed}, call {call}: it is tried again");
            is_out |= matches!(decision.role, Role::OfTrial(_, Side::Candidate, _)) && decision.arm == 0;
            let factor = if is_out && decision.arm == 0 { 20.0 } else { 1.0 };
            let seconds = factor * better_yet(decision.arm, call) * (0.02 * random.normal()).exp();
            tuner.observe(&situation, decision, seconds);
        }
        assert!(is_out && chosen(&tuner).0 == 1, "seed {seed}: {is_out}, {:?}", standing(&tuner));
    }
}

/// Where little was explored, what else there is, is found long before a choice from a thorough search would be doubted.
#[test]
fn the_best_of_few_is_doubted_at_once() {
    let mut replaced = 0;
    for seed in 0..10 {
        let mut tuner = after_rehearsal(seed);
        let situation = situation();
        tuner.courses.get_mut(&situation.context).expect("it was rehearsed").beside = Beside::at_once();
        play(&mut tuner, AGAIN / 4, seed, better_yet);
        replaced += usize::from(chosen(&tuner).0 == 0);
    }
    assert!(replaced >= 8, "{replaced} of 10");
}
