//! Every learner on the same grid of arms.

use super::*;
use crate::action::tests::situation;
use crate::action::{Action, Arm, Choice, WireProtocol};
use crate::state::{Congestion, State};

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

/// Times have one valley in each number, so nothing else of a family needs to be tried: whatever is admitted, and whatever is known.
#[test]
fn only_the_best_of_a_family_and_its_neighbours_are_tried() {
    let (situation, mut learner, mut random) = (situation(), Thompson::default(), Random::new(6, 1));
    let (all, some) = (vec![true; situation.arms.len()], switches(&situation, &[0, 2, 4, 8, 9, 13, 17]));
    let mut left_out = 0;
    for call in 0..200 {
        let admitted = if call % 4 == 3 { &some } else { &all };
        let believed = learner.beliefs(&situation, admitted);
        let is_near = |arm: usize| {
            let family = on(admitted).into_iter().filter(|&it| situation.family_of[it] == situation.family_of[arm]);
            let leader = least(family, |it| believed[it].mean).expect("the arm itself at least");
            arm == leader || situation.arms[arm].action.is_beside(&situation.arms[leader].action)
        };
        let (near, far): (Vec<usize>, Vec<usize>) = on(admitted).into_iter().partition(|&arm| is_near(arm));
        assert_eq!(learner.worth_a_look(&situation, &on(admitted), &believed), near, "call {call}");
        let arm = learner.choose(&situation, admitted, &mut random);
        assert!(near.contains(&arm), "call {call}: arm {arm}, which is none of {near:?}");
        left_out += far.len();
        learner.observe(&situation, arm, truth(&situation, arm) * (0.03 * random.normal()).exp());
    }
    // Of 18 arms in two families, ten at most are near.
    assert!(left_out >= 150 * 8, "{left_out}");
}

/// What begins at once is believed to be better than its model where messages are small, and worse where they are large, until it is
/// measured.
#[test]
fn protocols_lean_with_the_size_until_they_are_measured() {
    let of = |bytes: u64| {
        let arm = |&protocol: &WireProtocol| {
            let family = Family { algorithm: 0, protocol };
            Arm { action: Action { family, channels: 1, threads: 1, chunk_log2: 18 }, modelled_s: 1e-3 }
        };
        let arms = WireProtocol::ALL.iter().map(arm).collect();
        Situation::new(State { bytes, ..situation().state }, arms, 2).expect("arms")
    };
    // The logarithm of what the first one takes, over the last one.
    let margin = |learner: &Thompson, it: &Situation| learner.belief(it, 0).mean - learner.belief(it, 2).mean;
    let mut learner = Thompson::default();
    for bytes in [1 << 14, (1 << 16) - 1] {
        assert!(margin(&learner, &of(bytes)) < -0.05, "{bytes}: {}", margin(&learner, &of(bytes)));
    }
    for bytes in [(1 << 20) + 1, 1 << 22] {
        assert!(margin(&learner, &of(bytes)) > 0.05, "{bytes}: {}", margin(&learner, &of(bytes)));
    }
    for bytes in [1 << 16, 1 << 18, 1 << 20] {
        assert_eq!(margin(&learner, &of(bytes)), 0.0, "{bytes}");
    }
    let small = of(1 << 14);
    for _ in 0..20 {
        [(2, 0.9e-3), (0, 1e-3)].iter().for_each(|&(arm, seconds)| learner.observe(&small, arm, seconds));
    }
    assert!(margin(&learner, &small) > 0.08, "data says otherwise: {}", margin(&learner, &small));
}

/// What takes longer while others are in the way is believed to do so then, and less without them: at a size that was never measured, too.
#[test]
fn what_congestion_does_to_a_family_is_believed_under_congestion() {
    let here = situation();
    let at = |size: u32, congestion: Congestion| {
        let state = State { bytes: 1 << size, congestion, ..here.state };
        Situation::new(state, here.arms.clone(), here.default).expect("arms")
    };
    let [free, congested] = [Congestion::None, Congestion::Heavy].map(|congestion| at(25, congestion));
    // Of each family, an arm with the same knobs.
    let [spared, slowed] = [0, 9];
    let rise = |learner: &Thompson, arm: usize| learner.belief(&congested, arm).mean - learner.belief(&free, arm).mean;
    let mut learner = Thompson::default();
    assert_eq!([spared, slowed].map(|arm| rise(&learner, arm)), [0.0; 2], "nobody knows of it");
    for size in (0..6).flat_map(|_| 10..24) {
        for congestion in [Congestion::None, Congestion::Heavy] {
            let it = at(size, congestion);
            for arm in [spared, slowed] {
                let slower = if arm == slowed && congestion == Congestion::Heavy { 1.5 } else { 1.0 };
                learner.observe(&it, arm, slower * it.arms[arm].modelled_s);
            }
        }
    }
    assert!(rise(&learner, slowed) > 0.04, "{}", rise(&learner, slowed));
    assert!(rise(&learner, spared).abs() < 0.01, "{}", rise(&learner, spared));
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
