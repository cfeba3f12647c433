use super::account::CAUTION;
use super::*;
use crate::action::Arm;
use crate::action::tests::situation;
use crate::state::State;

const SURE: Belief = Belief { mean: -7.0, deviation: 0.01 };

fn with_defaults(situation: &Situation, calls: usize) -> Guard {
    let mut guard = Guard::default();
    (0..calls).for_each(|_| guard.ended(situation, situation.default, 1e-3));
    guard
}

#[test]
fn what_is_modelled_far_worse_is_never_tried() {
    let mut situation = situation();
    situation.arms[0] = Arm { modelled_s: 4.1e-3, ..situation.arms[0] };
    situation.arms[situation.default].modelled_s = 9e-3;
    let admitted = Guard::default().admitted(&situation);
    assert!(!admitted[0] && admitted[1] && admitted[situation.default]);
}

#[test]
fn one_call_is_enough_for_a_veto_and_a_change_lifts_it() {
    let situation = situation();
    let mut guard = with_defaults(&situation, 10);
    guard.ended(&situation, 0, 2.9e-3);
    assert!(guard.admitted(&situation)[0]);
    guard.ended(&situation, 0, 3.1e-3);
    assert!(!guard.admitted(&situation)[0]);
    assert_eq!(guard.vetoed(&situation.context), 1);
    assert!(!guard.may_play(&situation, 0, SURE), "not in a trial either");
    guard.forget(&situation.context, 0);
    assert!(guard.admitted(&situation)[0]);
}

/// The default's calls are late now and then, and show it afterwards.
#[test]
fn what_the_default_is_late_for_too_is_out_of_the_books() {
    let situation = situation();
    let (default, context) = (situation.default, &situation.context);
    let mut guard = with_defaults(&situation, 40);
    (0..40).for_each(|_| guard.shows_lateness(context, 1e-3));
    guard.ended(&situation, 0, 0.1);
    assert!(!guard.admitted(&situation)[0] && guard.all.excess_s > 0.098, "{:?}", guard.all);
    for _ in 0..2 {
        guard.ended(&situation, default, 0.1);
        guard.shows_lateness(context, 0.1);
    }
    let usual_s = guard.default_seconds(context).expect("it is known");
    assert!(usual_s < 1.01e-3, "late calls are not usual: {usual_s}");
    assert!(guard.admitted(&situation)[0] && guard.all.excess_s.abs() < 1e-12, "{:?}", guard.all);
    // And stays out of them: calls since a change are compared with the default after it.
    (0..10).for_each(|_| guard.ended(&situation, 0, 1e-3));
    guard.ended(&situation, 0, 0.1);
    let excess_s = guard.all.excess_s;
    assert!(excess_s < 1e-12);
    guard.forget(context, 53);
    (0..5).for_each(|_| guard.ended(&situation, default, 1e-3));
    assert!((guard.all.excess_s - excess_s).abs() < 1e-12 && guard.excess() > 0.5, "{:?}", guard.all);
    // A network that is slow is not late: what is ten times as slow as that is out at once.
    let mut guard = with_defaults(&situation, 80);
    (0..80).for_each(|_| guard.shows_lateness(context, 1e-3));
    (0..5).for_each(|_| guard.ended(&situation, default, 5e-3));
    // (Whoever suspects a change shows none of these.)
    guard.forget(context, 80);
    guard.measured_again(context, &[5e-3; 5]);
    guard.ended(&situation, 0, 50e-3);
    assert!(!guard.admitted(&situation)[0]);
}

#[test]
fn nothing_is_played_before_the_default_is_known() {
    let situation = situation();
    assert!(!with_defaults(&situation, 3).may_play(&situation, 0, SURE));
    assert!(with_defaults(&situation, 4).may_play(&situation, 0, SURE));
    assert!(Guard::default().may_play(&situation, situation.default, SURE));
}

/// What others have gained may be borrowed, up to a share of a context's own time; without gains, it has its own allowance alone.
#[test]
fn a_context_borrows_of_what_the_job_has_gained() {
    let here = situation();
    let conservative = State { model_intensity: 500.0, local_batch: 64, ..here.state };
    let there = Situation { context: State { bytes: 1 << 24, ..here.state }.context(), ..here.clone() };
    let here = Situation { state: conservative, context: conservative.context(), ..here };
    let room_after = |chosen_s: f64| {
        let mut guard = Guard::default();
        for situation in [&here, &there] {
            (0..100).for_each(|_| guard.ended(situation, situation.default, 1e-3));
        }
        (0..100).for_each(|_| guard.ended_chosen(&there.context, chosen_s));
        guard.room(&here).expect("the default is known").free_s
    };
    let (alone_s, lent_s) = (room_after(1e-3), room_after(0.5e-3));
    assert!((alone_s - 0.5e-2 * 131e-3).abs() < 1e-9, "{alone_s}");
    assert!((lent_s - BORROWED * 131e-3).abs() < 1e-9, "{lent_s}");
    assert!(room_after(1.001e-3) <= alone_s, "a job that has lost lends nothing");
}

/// In the worst case, every choice is as bad as it could be believed to be.
#[test]
fn all_that_is_played_stays_within_the_allowance() {
    let situation = situation();
    let allowance = Budget::of(&situation.state).allowance();
    let bad = Belief { mean: 1.3e-3f64.ln(), deviation: 0.1 };
    let mut guard = with_defaults(&situation, 4);
    let (mut spent, mut usual, mut played) = (4e-3, 4e-3, 0);
    for _ in 0..2000 {
        usual += 1e-3;
        if guard.may_play(&situation, 0, bad) {
            let risk = guard.began(&situation, 0, bad);
            let seconds = (bad.mean + CAUTION * bad.deviation).exp();
            guard.release(&situation.context, risk);
            guard.ended(&situation, 0, seconds);
            spent += seconds;
            played += 1;
        } else {
            guard.ended(&situation, situation.default, 1e-3);
            spent += 1e-3;
        }
        let granted = allowance * GRANTED * 1e-3;
        assert!(spent <= (1.0 + allowance) * usual + granted + 1e-5, "{spent} {usual}");
    }
    assert!(played > 0, "it may be tried some day");
}

#[test]
fn calls_under_way_count_as_bad_as_they_may_be() {
    let situation = situation();
    let mut guard = with_defaults(&situation, 400);
    let bad = Belief { mean: 1.2e-3f64.ln(), deviation: 0.1 };
    let mut begun = 0;
    while guard.may_play(&situation, 0, bad) {
        guard.began(&situation, 0, bad);
        begun += 1;
        assert!(begun < 100, "the allowance is never used up");
    }
    assert!(begun > 0);
}

/// What takes longer than anybody believed, whenever there is room: the promise is kept even so, with one such call at a time.
#[test]
fn surprises_leave_the_promise_kept() {
    let situation = situation();
    let believed = Belief { mean: 1.05e-3f64.ln(), deviation: 0.15 };
    let mut guard = with_defaults(&situation, 5);
    let (mut spent, mut calls) = (5e-3, 5.0);
    for _ in 0..1000 {
        let may = guard.may_play(&situation, 0, believed);
        let seconds = if may { 2.4e-3 } else { 1e-3 };
        guard.ended(&situation, if may { 0 } else { situation.default }, seconds);
        spent += seconds;
        calls += 1.0;
        assert!(calls < 100.0 || spent <= 1.02 * calls * 1e-3, "{spent} after {calls} calls");
    }
    assert!(spent > 1e-3 * calls, "it was tried");
}

/// What stands is judged by its sum: gains that nobody has measured are none.
#[test]
fn what_stands_is_charged_as_it_was_measured() {
    let (situation, context) = (situation(), situation().context);
    let mut guard = with_defaults(&situation, 100);
    // Five times as slow as the default: a gain that was promised of it would grow with the damage.
    let mut calls = 0;
    while guard.rule(&context, None) == Ruling::Stays {
        guard.ended_chosen(&context, 5e-3);
        calls += 1;
        assert!(calls < 3, "it stands after {calls} calls");
    }
    assert!(guard.excess() > 0.0);
    // Usually better and worse in the sum.
    let mut guard = with_defaults(&situation, 300);
    let stood = (0..2000).take_while(|call| {
        guard.ended_chosen(&context, if call % 10 == 9 { 2.9e-3 } else { 0.85e-3 });
        guard.rule(&context, None) == Ruling::Stays
    });
    let stood = stood.count();
    assert!(stood < 300, "it stood for {stood} calls, and lost 3 % of each");
}

/// An operating system that takes the processor away for a hundred times as long says nothing about a choice; twice in a row, it may.
#[test]
fn a_single_interrupted_call_is_no_reason() {
    let context = situation().context;
    let mut guard = with_defaults(&situation(), 10);
    guard.ended_chosen(&context, 0.14);
    assert_eq!(guard.rule(&context, None), Ruling::Stays);
    guard.ended_chosen(&context, 0.14);
    assert_eq!(guard.rule(&context, None), Ruling::Goes);
    // It is out of the books again when the network has changed.
    let room = |first_s: f64| {
        let mut guard = with_defaults(&situation(), 100);
        guard.ended_chosen(&context, first_s);
        guard.stands_anew(&context);
        guard.forget(&context, 100);
        (0..5).for_each(|_| guard.ended(&situation(), situation().default, 1e-3));
        guard.room(&situation()).expect("the default is known").free_s
    };
    assert!(room(0.14) <= room(1e-3) && room(0.14) > room(1e-3) - 4e-3, "{} {}", room(0.14), room(1e-3));
    // What it gains in between makes up for that.
    let mut guard = with_defaults(&situation(), 10);
    for call in 0..1000 {
        guard.ended_chosen(&context, if call % 100 == 0 { 0.14 } else { 0.8e-3 });
        assert_eq!(guard.rule(&context, None), Ruling::Stays, "given up after {call} calls");
    }
    // A choice of which one call in thirty takes twenty times as long is worse in the sum, and those are no interruptions.
    let mut guard = with_defaults(&situation(), 300);
    (0..300).for_each(|_| guard.shows_lateness(&context, 1e-3));
    let stood = (0..2000).take_while(|call| {
        guard.ended_chosen(&context, if call % 30 == 29 { 20e-3 } else { 0.75e-3 });
        guard.rule(&context, None) == Ruling::Stays
    });
    let stood = stood.count();
    assert!(stood < 300, "it stood for {stood} calls");
}

/// However much was gained in a long job, a hundredth may be spent of it.
#[test]
fn old_gains_do_not_pay_for_anything() {
    let situation = situation();
    let room = |calls: usize| {
        let mut guard = with_defaults(&situation, 10);
        (0..calls).for_each(|_| guard.ended_chosen(&situation.context, 0.5e-3));
        guard.stands_anew(&situation.context);
        let free = guard.room(&situation).expect("the default is known").free_s;
        (guard, free)
    };
    let (guard, free) = room(1000);
    assert!(guard.excess() < -0.45, "{}", guard.excess());
    assert!(free < 0.021 * 1.02, "{free} of {} seconds", 1.01);
    assert!(free > room(100).1);
}

/// Only calls since a change are compared with another default than that of then; what is worse than both is charged.
#[test]
fn what_was_tried_across_a_change_is_compared_with_the_default_after_it() {
    let situation = situation();
    let excess = |seconds: f64, since: u64| {
        let mut guard = with_defaults(&situation, 10);
        guard.ended(&situation, 0, 2e-3);
        (0..5).for_each(|_| guard.ended(&situation, 0, seconds));
        guard.forget(&situation.context, since);
        (0..5).for_each(|_| guard.ended(&situation, situation.default, 5e-3));
        1e3 * guard.all.excess_s
    };
    // The try before the change has taken 1 ms more than the default; the others as much as the default now, or 2 ms more.
    assert!((excess(5e-3, 11) - 1.0).abs() < 1e-9, "{}", excess(5e-3, 11));
    assert!((excess(7e-3, 11) - 11.0).abs() < 1e-9, "{}", excess(7e-3, 11));
    // Had nothing been noticed, all would be charged.
    assert!((excess(5e-3, 16) - 21.0).abs() < 1e-9, "{}", excess(5e-3, 16));
    // What became better with the network is no gain.
    let mut guard = with_defaults(&situation, 30);
    (0..10).for_each(|_| guard.ended_chosen(&situation.context, 0.1e-3));
    guard.stands_anew(&situation.context);
    guard.forget(&situation.context, 30);
    (0..5).for_each(|_| guard.ended(&situation, situation.default, 0.1e-3));
    assert!(guard.excess().abs() < 1e-9, "{}", guard.excess());
}

/// A schedule of which only a part is ever played: what was set aside for the rest is given back.
#[test]
fn what_never_ends_is_given_back() {
    let situation = situation();
    let mut guard = with_defaults(&situation, 400);
    let bad = Belief { mean: 1.2e-3f64.ln(), deviation: 0.1 };
    let room = guard.room(&situation);
    for _ in 0..1000 {
        let risk = guard.began(&situation, 0, bad);
        guard.release(&situation.context, risk);
    }
    let (before, after) = (room.expect("room").free_s, guard.room(&situation).expect("room").free_s);
    assert!((before - after).abs() < 1e-12);
}

/// Ten thousand calls that somebody else has decided about, and that gain a half: what may be lost is what the default's calls leave. What
/// they lose counts.
#[test]
fn what_nobody_has_tried_pays_for_no_try() {
    let situation = situation();
    let free_s = |guard: &Guard| guard.room(&situation).expect("the default is known").free_s;
    let [mut gains, mut loses] = [0, 1].map(|_| with_defaults(&situation, 100));
    let before_s = free_s(&gains);
    (0..10_000).for_each(|_| gains.ended_untried(&situation, 0, 0.5e-3));
    let earned_s = 10_000.0 * 1e-3 * OF_ALL;
    assert!(free_s(&gains) <= before_s + 1.01 * earned_s, "{} s, before {before_s} s", free_s(&gains));
    assert!((gains.excess() + 5.0 / 10.1).abs() < 0.01, "{}", gains.excess());
    loses.ended_untried(&situation, 0, 1.5e-3);
    assert!(free_s(&loses) < before_s - 0.45e-3, "{} s, before {before_s} s", free_s(&loses));
}
