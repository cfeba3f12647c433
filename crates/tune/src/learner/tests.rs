//! Every learner on the same grid of arms.

use super::*;
use crate::action::Choice;
use crate::action::tests::situation;
use crate::state::State;

/// The truth: the second algorithm is better by a third than the model says, and has a valley at 4 channels and 2^16.
fn truth(situation: &Situation, arm: usize) -> f64 {
    let action = situation.arms[arm].action;
    let misfit = if action.family.algorithm == 1 { 0.55 } else { 1.0 };
    let channels = (f64::from(action.channels).log2() - 2.0).powi(2);
    let chunk = (f64::from(action.chunk_log2) - 16.0).powi(2);
    situation.arms[arm].modelled_s * misfit * (1.0 + 0.1 * channels + 0.05 * chunk)
}

fn run(learner: &mut dyn Learner, situation: &Situation, calls: usize, seed: u64) -> f64 {
    let mut random = Random::new(seed, 1);
    let admitted = vec![true; situation.arms.len()];
    for _ in 0..calls {
        let arm = learner.choose(situation, &admitted, &mut random);
        let seconds = truth(situation, arm) * (0.03 * random.normal()).exp();
        learner.observe(situation, arm, seconds);
    }
    let best = learner.best(situation, &admitted);
    let least = (0..admitted.len()).map(|arm| truth(situation, arm)).fold(f64::INFINITY, f64::min);
    truth(situation, best) / least
}

#[test]
fn bandits_find_the_best_arm() {
    for (name, margin) in [("thompson", 1.03), ("ucb1", 1.03), ("coordinate-descent", 1.03), ("epsilon-greedy", 1.2)] {
        for seed in 0..5 {
            let mut learner = by_name(name).expect("it is known");
            let ratio = run(&mut *learner, &situation(), 300, seed);
            assert!(ratio <= margin, "{name}, seed {seed}: {ratio}");
        }
    }
}

#[test]
fn every_learner_is_known_and_plays_only_what_is_admitted() {
    let situation = situation();
    for name in LEARNERS {
        let mut learner = by_name(name).expect("it is known");
        assert_eq!(learner.name(), name);
        let mut random = Random::new(2, 2);
        let mut admitted = vec![false; situation.arms.len()];
        [3, 9, 17].iter().for_each(|&arm| admitted[arm] = true);
        for _ in 0..50 {
            let arm = learner.choose(&situation, &admitted, &mut random);
            assert!(admitted[arm], "{name} played {arm}");
            learner.observe(&situation, arm, truth(&situation, arm));
            assert!(admitted[learner.best(&situation, &admitted)], "{name}");
        }
    }
    assert!(by_name("oracle").is_none());
}

/// What was learned about the second algorithm at one size is believed at another, where nothing was measured.
#[test]
fn contexts_share_what_they_learn() {
    let here = situation();
    let there = Situation::new(State { bytes: 1 << 23, ..here.state }, here.arms.clone(), here.default).expect("arms");
    let (mut learner, fresh) = (Thompson::default(), Thompson::default());
    run(&mut learner, &here, 200, 3);
    let margin = |learner: &Thompson| learner.belief(&there, 9).mean - learner.belief(&there, 0).mean;
    assert!(margin(&fresh) > 0.0, "the model prefers the first");
    assert!(margin(&learner) < 0.0, "{} should be negative", margin(&learner));
}

/// Numbers of algorithms alone do not tell: NCCL has one for the rings of all-reduces and of all-gathers.
#[test]
fn collectives_learn_nothing_of_each_others_families() {
    let here = situation();
    let state = State { collective: CollectiveKind::AllGather, ..here.state };
    let there = Situation::new(state, here.arms.clone(), here.default).expect("arms");
    for name in ["thompson", "linucb"] {
        let mut learner = by_name(name).expect("it is known");
        // The same knobs, so that only the families differ.
        let margin = |learner: &dyn Learner, at: &Situation| learner.belief(at, 9).mean - learner.belief(at, 0).mean;
        let before = margin(&*learner, &there);
        run(&mut *learner, &here, 200, 3);
        assert!(margin(&*learner, &here) < before - 0.1, "{name} has learned nothing");
        assert!((margin(&*learner, &there) - before).abs() < 1e-9, "{name}");
    }
}

/// What was learned about channels and chunks at one size is believed at another, and of another algorithm, where nothing was measured.
#[test]
fn contexts_share_what_knobs_are_worth() {
    let here = situation();
    let there = Situation::new(State { bytes: 1 << 23, ..here.state }, here.arms.clone(), here.default).expect("arms");
    let arm = |algorithm: u8, channels: u8, chunk_log2: u8| {
        there.arm_of(Choice::Play(crate::action::tests::action(algorithm, channels, chunk_log2)))
    };
    let mut learner = Thompson::default();
    let margin = |learner: &Thompson, algorithm: u8| {
        let mean = |arm: usize| learner.belief(&there, arm).mean;
        mean(arm(algorithm, 4, 16)) - mean(arm(algorithm, 1, 18))
    };
    assert_eq!([margin(&learner, 0), margin(&learner, 1)], [0.0; 2], "the model does not tell them apart");
    run(&mut learner, &here, 200, 3);
    for algorithm in 0..2 {
        assert!(margin(&learner, algorithm) < -0.05, "{algorithm}: {}", margin(&learner, algorithm));
    }
}

/// Where everything takes five times as long, what was best is tried before what was not, and what was measured is no worse than
/// what never was.
#[test]
fn after_a_change_the_order_stays_until_it_is_measured() {
    let situation = situation();
    let mut learner = Thompson::default();
    run(&mut learner, &situation, 200, 3);
    let admitted = vec![true; situation.arms.len()];
    let best = learner.best(&situation, &admitted);
    learner.changed(&situation.context, 5f64.ln());
    assert_eq!(learner.best(&situation, &admitted), best);
    let believed = learner.belief(&situation, best);
    assert!((believed.mean.exp() / (5.0 * truth(&situation, best)) - 1.0).abs() < 0.1, "{believed:?}");
    (0..10).for_each(|_| learner.observe(&situation, best, 8.0 * truth(&situation, best)));
    assert_ne!(learner.best(&situation, &admitted), best, "it is measured, and worse");
}
