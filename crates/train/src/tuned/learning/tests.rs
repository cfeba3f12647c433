use paceline_plan::{Cluster, LinkCost};
use paceline_tune::Random;
use paceline_tune::environment::Call;

use super::*;
use crate::tuned::tests::CALL;

/// A context with what can be done in it, on a cluster that is so many times as slow as another one.
fn situation(slower: f64) -> Situation {
    let model = OwnModel::of(&Cluster::named("study-10gbe:4x1").unwrap());
    let state = model.state(&Call { bytes: 1 << 20, ranks: 4, hosts: 4, ..CALL });
    let mut situation = model.situation(&state).unwrap();
    situation.arms.iter_mut().for_each(|arm| arm.modelled_s *= slower);
    situation
}

fn situations() -> Situations {
    let situation = situation(1.0);
    Situations::from([(situation.context, Some(situation))])
}

/// Makes `made` of `decided` calls, which take what `seconds` says.
fn round(
    learning: &mut Learning,
    situations: &Situations,
    decided: usize,
    made: usize,
    seconds: impl Fn(Choice) -> f64,
) -> Vec<Made> {
    let situation = situations.values().flatten().next().unwrap();
    let plays = learning.plays(situation, decided);
    let version = crate::tuned::policies::Version::new(1, [plays]);
    let call = |number| {
        let choice = version.choice(situation.context.key(), Some(number));
        Made { context: situation.context, number, choice, calls: 1, seconds: seconds(choice), longest: 1.0 }
    };
    let made: Vec<Made> = (0..made as u64).map(call).collect();
    learning.learn(&made, situations, true);
    made
}

/// What is measured is less than what a link is named after.
#[test]
fn links_are_of_the_class_that_they_are_nearest_to() {
    let of = |bits_per_s: f64| tcp_of(8.0 / bits_per_s);
    assert_eq!([0.2e9, 0.94e9, 2.5e9].map(of), [Carrier::Tcp1g; 3]);
    assert_eq!([6e9, 9.4e9].map(of), [Carrier::Tcp10g; 2]);
    assert_eq!([25e9, 38e9, 94e9].map(of), [Carrier::Tcp100g; 3]);
}

#[test]
fn what_is_learned_over_tcp_is_not_taken_for_memory() {
    let between = |bits_per_s: f64| {
        LinkCosts::uniform(LinkCost { alpha: 2e-5, overhead: 5e-6, beta: 8.0 / bits_per_s, gamma: 1e-10 })
    };
    let costs = between(0.94e9);
    assert_eq!(carrier_of(&costs, 1, false, 1.0), Carrier::SharedMemory);
    assert_eq!(carrier_of(&costs, 1, true, 1.0), Carrier::Tcp100g);
    assert_eq!(carrier_of(&costs, 4, true, 1.0), Carrier::Tcp1g);
    // Emulated: ten times as fast as it is while everything is slowed down by that.
    assert_eq!(carrier_of(&costs, 4, false, 10.0), Carrier::Tcp10g);
    assert_eq!(carrier_of(&between(9e9), 4, false, 10.0), Carrier::Rdma);
}

/// What halves the time is found all the same, so there was room for it.
#[test]
fn decisions_that_are_never_played_take_up_no_room() {
    let (situations, mut learning) = (situations(), Learning::new(Tuner::shipped(3)));
    let halved = |choice| if choice == Choice::Default { 1e-3 } else { 0.5e-3 };
    for _ in 0..200 {
        round(&mut learning, &situations, 16, 8, halved);
    }
    let context = *situations.keys().next().unwrap();
    assert!(learning.stands(&context) != Choice::Default, "{:?}", learning.course(&context));
}

/// 320 calls at each boundary, of which 16 can be decided.
#[test]
fn tries_are_played_as_often_as_they_were_admitted() {
    let (situations, mut learning) = (situations(), Learning::new(Tuner::shipped(4)));
    // Whatever else is tried takes twice as long.
    let twice = |choice| if choice == Choice::Default { 1e-3 } else { 2e-3 };
    let (mut total_s, mut calls) = (0.0, 0);
    for boundary in 0..40 {
        let made = round(&mut learning, &situations, 320, 320, twice);
        assert!(made[16..].iter().all(|made| made.choice == Choice::Default), "boundary {boundary}");
        total_s += made.iter().map(|made| made.seconds).sum::<f64>();
        calls += made.len();
        assert!(total_s <= 1.02 * 1e-3 * calls as f64, "boundary {boundary}: {total_s} s of {calls} calls");
    }
}

/// Forty calls of the first choice that is tried take half the time in the mean, and the longest of them four times what the longest of
/// the default's does: it is not tried again. With the others that is two and a half times, and one of them stands at last.
#[test]
fn one_long_call_among_many_puts_a_choice_out() {
    let (situations, mut learning) = (situations(), Learning::new(Tuner::shipped(8)));
    let situation = situations.values().flatten().next().unwrap();
    let mut out: Option<Choice> = None;
    for boundary in 0..100 {
        let version = crate::tuned::policies::Version::new(1, [learning.plays(situation, 16)]);
        let choice_of = |number| version.choice(situation.context.key(), Some(number));
        assert!((0..16).all(|number| out.is_none_or(|out| choice_of(number) != out)), "boundary {boundary}");
        out = out.or_else(|| (0..16).map(choice_of).find(|choice| *choice != Choice::Default));
        let call = |number| {
            let choice = choice_of(number);
            let seconds = if choice == Choice::Default { 1e-3 } else { 0.5e-3 };
            // The calls differ in size: the longest of the default's takes 1.9 ms.
            let longest_s = match choice {
                Choice::Default => 1.9e-3,
                _ if Some(choice) == out => 4.0 * 1.9e-3,
                _ => 2.5 * 1.9e-3,
            };
            let longest = longest_s / seconds;
            Made { context: situation.context, number, choice, calls: 40, seconds, longest }
        };
        let made: Vec<Made> = (0..16).map(call).collect();
        learning.learn(&made, &situations, true);
    }
    let stands = learning.stands(&situation.context);
    assert!(out.is_some() && stands != Choice::Default && Some(stands) != out, "{out:?}, {stands:?}");
}

/// What stands is late once, by more than it has saved, where the default had few calls: its timed calls have to show whether that happens to it, too. All others go on.
#[test]
fn calls_that_nobody_times_take_what_stands_while_the_default_is_called_in_its_place() {
    let (situations, mut learning) = (situations(), Learning::new(Tuner::shipped(3)));
    let halved = |choice| if choice == Choice::Default { 1e-3 } else { 0.5e-3 };
    for _ in 0..200 {
        round(&mut learning, &situations, 16, 16, halved);
    }
    let situation = situations.values().flatten().next().unwrap();
    let stands = learning.stands(&situation.context);
    let Plays { then, untimed, .. } = learning.plays(situation, 16);
    assert!(stands != Choice::Default && (then, untimed) == (stands, stands));
    let late = Made { context: situation.context, number: 99, choice: stands, calls: 1, seconds: 10.0, longest: 1.0 };
    learning.learn(&[late], &situations, true);
    let Plays { then, untimed, .. } = learning.plays(situation, 16);
    assert_eq!((then, untimed), (Choice::Default, stands));
    round(&mut learning, &situations, 16, 1000, halved);
    let Plays { then, untimed, .. } = learning.plays(situation, 16);
    assert_eq!([then, untimed], [Choice::Default; 2], "it was its own fault");
}

#[test]
fn a_later_job_knows_seconds_whatever_its_links_were_measured_to_cost() {
    let (here, mut learning) = (situations(), Learning::new(Tuner::shipped(5)));
    let mut random = Random::new(5, 5);
    for _ in 0..20 {
        let noise = (0.01 * random.normal()).exp();
        let seconds = |choice| if choice == Choice::Default { 2e-3 } else { 1e-3 };
        round(&mut learning, &here, 16, 16, |choice| seconds(choice) * noise);
    }
    let lessons = learning.lessons(&here);
    let close = |lesson: &Lesson| [1e-3, 2e-3].iter().any(|seconds| (lesson.mean.exp() / seconds - 1.0).abs() < 0.05);
    assert!(lessons.len() > 1 && lessons.iter().all(close), "{lessons:?}");
    let slower = situation(3.0);
    let there = Situations::from([(slower.context, Some(slower.clone()))]);
    let mut next = Learning::new(Tuner::shipped(6));
    next.remember(lessons.clone());
    assert_eq!(next.lessons(&there).len(), lessons.len(), "what has not come yet is not lost");
    next.plays(&slower, 1);
    assert_eq!(next.recalled(), lessons.len());
    let again = next.lessons(&there);
    assert_eq!(again.len(), lessons.len());
    assert!(again.iter().all(close), "{again:?}");
}

/// A job that measures nothing tells on what it was told, to the bit; one that does tells what it has measured, and not once more
/// what it was told.
#[test]
fn lessons_that_nobody_has_added_to_stay_as_they_are() {
    let (here, mut learning) = (situations(), Learning::new(Tuner::shipped(5)));
    for _ in 0..20 {
        round(&mut learning, &here, 16, 16, |choice| if choice == Choice::Default { 2e-3 } else { 1e-3 });
    }
    let sorted = |mut lessons: Vec<Lesson>| {
        lessons.sort_by_key(Lesson::subject);
        lessons
    };
    let (lessons, situation) = (sorted(learning.lessons(&here)), here.values().flatten().next().unwrap());
    let default = situation.arms[situation.default].action;
    assert!(lessons.len() > 1 && lessons.iter().any(|lesson| lesson.action == default), "{lessons:?}");
    let mut next = Learning::new(Tuner::shipped(6));
    next.remember(lessons.clone());
    assert_eq!(sorted(next.lessons(&here)), lessons, "its context has not come");
    next.plays(situation, 16);
    assert_eq!(sorted(next.lessons(&here)), lessons, "nothing was measured");
    round(&mut next, &here, 16, 16, |_| 1e-3);
    for (lesson, told) in sorted(next.lessons(&here)).iter().zip(&lessons) {
        assert_eq!(lesson.subject(), told.subject());
        if lesson.action == default {
            assert!(lesson.samples <= 16.0 && (lesson.mean - 1e-3f64.ln()).abs() < 1e-9, "{lesson:?}");
        } else {
            assert_eq!(lesson, told);
        }
    }
}

#[test]
fn lessons_that_mean_nothing_are_left_out() {
    let (here, mut learning) = (situations(), Learning::new(Tuner::shipped(7)));
    round(&mut learning, &here, 16, 16, |_| 1e-3);
    let lesson = learning.lessons(&here)[0];
    let mut next = Learning::new(Tuner::shipped(7));
    let unknown = paceline_tune::Action { channels: 77, ..lesson.action };
    next.remember([Lesson { mean: f64::NAN, ..lesson }, Lesson { action: unknown, ..lesson }]);
    next.plays(here[&lesson.context].as_ref().unwrap(), 4);
    assert_eq!(next.recalled(), 0);
}

#[test]
fn regret_is_what_the_best_would_have_saved() {
    let (here, mut learning) = (situations(), Learning::new(Tuner::shipped(8)));
    let halved = |choice| if choice == Choice::Default { 1e-3 } else { 0.5e-3 };
    let mut all = Vec::new();
    for _ in 0..60 {
        all.extend(round(&mut learning, &here, 16, 16, halved));
    }
    let context = *here.keys().next().unwrap();
    assert!(learning.stands(&context) != Choice::Default);
    let Cost { measured_s, regret_s } = learning.cost(&context, &here);
    let defaults = all.iter().filter(|made| made.choice == Choice::Default).count();
    assert!((measured_s - all.iter().map(|made| made.seconds).sum::<f64>()).abs() < 1e-9);
    assert!((regret_s - 0.5e-3 * defaults as f64).abs() < 1e-9, "{regret_s} s, {defaults} calls of the default");
    assert_eq!(learning.cost(&situation(1.0).state.context(), &Situations::new()), Cost::default());
}
