use super::*;
use crate::random::Random;

const DEFAULT_S: f64 = 1e-3;
/// What a hundred calls may take more.
const ALLOWED_S: f64 = 1.7e-3;
const GAIN: Gain = Gain { share: 0.1, margin: 0.02, probability: 1e-3 };

/// A call of what stands, in times of what the default takes, which is believed to take so many times what it does.
fn own(watched: &mut Watched, takes: f64, believed: f64) {
    watched.add([(takes - believed) * DEFAULT_S; 2], false, believed * DEFAULT_S);
}

fn rule(watched: &mut Watched) -> Ruling {
    watched.rule(Some(GAIN), ALLOWED_S, DEFAULT_S)
}

/// Calls as it asks for them, until something else is ruled than that; how many of the default and of its own, and what. The default takes what it
/// takes, and its own calls so many times that.
fn until_not(
    watched: &mut Watched,
    ruling: Ruling,
    mut takes: impl FnMut() -> [f64; 2],
    believed: f64,
) -> ([u32; 2], Ruling) {
    let mut calls = [0; 2];
    for call in 1..1000 {
        let [default, chosen] = takes();
        if watched.asks().is_some_and(|asks| asks.is_default(call)) {
            watched.add_default(default * DEFAULT_S);
            calls[0] += 1;
        } else {
            own(watched, chosen, believed);
            calls[1] += 1;
        }
        let now = rule(watched);
        if now != ruling {
            return (calls, now);
        }
    }
    panic!("for ever: {watched:?}");
}

/// It saves a tenth, and the default was believed to take a fifth less than it does.
#[test]
fn the_default_is_asked_first_and_then_both_by_turns() {
    let mut watched = Watched::default();
    // The longest does not count.
    let takes = || [1.0, 0.9];
    assert_eq!(until_not(&mut watched, Ruling::Stays, takes, 0.8), ([0, 10], Ruling::InDoubt));
    assert_eq!(watched.asks(), Some(Asks::Always));
    let (calls, ruling) = until_not(&mut watched, Ruling::InDoubt, takes, 0.8);
    assert!(ruling == Ruling::Stays && watched.asks().is_none(), "{ruling:?}, {watched:?}");
    assert!(calls[0] >= 38 && (ASKED[1] as u32..32).contains(&calls[1]), "{calls:?}");
    assert!(watched.over_s.abs() < 1e-9, "{watched:?}");
    // Without a gain that was shown, the sum decides.
    let mut watched = Watched::default();
    (0..19).for_each(|_| own(&mut watched, 0.9, 0.8));
    assert_eq!(watched.rule(None, ALLOWED_S, DEFAULT_S), Ruling::Goes);
}

/// It takes a tenth more, and no two calls differ.
#[test]
fn what_is_worse_for_sure_goes_as_soon_as_too_much_is_taken() {
    let mut watched = Watched::default();
    let takes = || [1.0, 1.1];
    assert_eq!(until_not(&mut watched, Ruling::Stays, takes, 1.0), ([0, 10], Ruling::InDoubt));
    let (calls, ruling) = until_not(&mut watched, Ruling::InDoubt, takes, 1.0);
    assert!(ruling == Ruling::Goes && 0.1 * f64::from(10 + calls[1]) < 2.0, "{ruling:?} after {calls:?}");
}

#[test]
fn what_late_calls_are_charged_with_is_not_asked_about_and_may_come_back() {
    let mut watched = Watched::default();
    (0..10).for_each(|_| own(&mut watched, 0.9, 1.0));
    (0..3).for_each(|_| watched.add([3e-3; 2], true, DEFAULT_S));
    assert_eq!(rule(&mut watched), Ruling::Goes, "{watched:?}");
    watched.reckon(9e-3, 0.0);
    assert_eq!(rule(&mut watched), Ruling::Stays, "{watched:?}");
    // No more comes back than was charged.
    watched.reckon(9e-3, 0.0);
    assert!(watched.late_s.abs() < 1e-12, "{watched:?}");
}

/// A doubt about its other calls that ends well pays for no late ones.
#[test]
fn who_is_cleared_of_a_sum_still_pays_for_late_calls() {
    let mut watched = Watched::default();
    until_not(&mut watched, Ruling::Stays, || [1.0, 0.9], 0.8);
    (0..2).for_each(|_| watched.add([1e-3; 2], true, DEFAULT_S));
    let (_, ruling) = until_not(&mut watched, Ruling::InDoubt, || [1.0, 0.9], 0.8);
    assert!(ruling == Ruling::Stays && (watched.late_s - 2e-3).abs() < 1e-9, "{ruling:?}, {watched:?}");
    (0..2).for_each(|_| watched.add([1e-3; 2], true, DEFAULT_S));
    assert_eq!(rule(&mut watched), Ruling::Goes);
}

/// As while it is late and on probation: of what is not called nothing is shown. And who cannot ask does not wait for ever.
#[test]
fn calls_of_one_side_alone_clear_nobody() {
    let mut watched = Watched::default();
    until_not(&mut watched, Ruling::Stays, || [1.0, 0.9], 0.8);
    for call in 0..100 {
        watched.add_default(DEFAULT_S);
        assert_eq!(rule(&mut watched), Ruling::InDoubt, "call {call}");
    }
    let mut watched = Watched::default();
    let given_up = (1..1000).find(|_| {
        own(&mut watched, 0.9, 0.8);
        rule(&mut watched) == Ruling::Goes
    });
    assert!(given_up.is_some_and(|calls| (32..64).contains(&calls)), "{given_up:?}");
}

/// What has won elsewhere is in doubt from its first call on.
#[test]
fn what_is_unproved_is_called_by_turns_until_it_is_proved() {
    let run = |own_takes: f64| {
        let mut watched = Watched::default().unproved();
        (0..5).for_each(|_| watched.add_default(DEFAULT_S));
        let mut random = Random::new(1, 32);
        let mut takes = || [1.0, own_takes].map(|takes| takes * (0.1 * random.normal()).exp());
        assert_eq!(rule(&mut watched), Ruling::InDoubt);
        let (calls, ruling) = until_not(&mut watched, Ruling::InDoubt, &mut takes, 1.0);
        (calls, ruling, watched.is_unproved())
    };
    let (calls, ruling, is_unproved) = run(0.9);
    assert!(ruling == Ruling::Stays && !is_unproved && calls[0] < 50, "{calls:?} {ruling:?}");
    let (calls, ruling, is_unproved) = run(2.0);
    assert!(ruling == Ruling::Goes && is_unproved && calls[1] <= 4, "{calls:?} {ruling:?}");
}

/// Calls vary by a fifth, and the default is believed to take 0.85 of what it does. After how many of its own calls, of 400 of both, is what takes so
/// many times as long as the default given up?
fn given_up(times: f64, seed: u64) -> Option<usize> {
    let (mut watched, mut random, mut calls) = (Watched::default(), Random::new(seed, 31), 0);
    (1..=400).find_map(|call| {
        let noise = (0.2 * random.normal() - 0.02).exp();
        if watched.asks().is_some_and(|asks| asks.is_default(call)) {
            watched.add_default(noise * DEFAULT_S);
        } else {
            own(&mut watched, times * noise, 0.85);
            calls += 1;
        }
        (rule(&mut watched) == Ruling::Goes).then_some(calls)
    })
}

#[test]
fn calls_that_vary_by_a_fifth_hide_neither_a_gain_of_a_tenth_nor_a_loss_for_long() {
    let [better, worse] =
        [0.9, 1.1].map(|times| (0..200).filter_map(|seed| given_up(times, seed)).collect::<Vec<usize>>());
    let mean = worse.iter().sum::<usize>() as f64 / worse.len().max(1) as f64;
    println!("given up {} of 200 that save, and {} of 200 that lose, after {mean:.0} calls", better.len(), worse.len());
    assert!(better.len() <= 10 && worse.len() >= 180 && mean < 60.0, "{} {} {mean}", better.len(), worse.len());
}
