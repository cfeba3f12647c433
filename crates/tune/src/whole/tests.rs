use super::*;
use crate::action::{Action, Family, WireProtocol};
use crate::state::State;
use crate::state::tests::CALL;

const TRIED_AGAIN: u32 = 512;

fn found(sizes_log2: &[u32]) -> Found {
    let family = Family { algorithm: 1, protocol: WireProtocol::Simple };
    let choice = Choice::Play(Action { family, channels: 4, threads: 0, chunk_log2: 0 });
    sizes_log2.iter().map(|&log2| (State { bytes: 1u64 << log2, ..CALL }.context(), choice)).collect()
}

/// Steps of a second, which take `factor` times as long with what was found, or another factor where that is of so many contexts.
struct Steps {
    whole: Whole,
    factor: f64,
    of_so_many: Option<(usize, f64)>,
    /// How many times as long all steps take.
    slower: f64,
    random: Random,
}

impl Steps {
    fn new(seed: u64, factor: f64) -> Steps {
        Steps {
            whole: Whole::new(seed, TRIED_AGAIN),
            factor,
            of_so_many: None,
            slower: 1.0,
            random: Random::new(seed, 0x57e9),
        }
    }

    /// True if all is to be found out anew.
    fn step(&mut self, found: &Found) -> bool {
        let used = match self.whole.turn() {
            Turn::Found(played) => played.len(),
            Turn::ByCalls if matches!(self.whole.stage(), Stage::Stands { gain: Some(_), .. }) => found.len(),
            Turn::ByCalls | Turn::Default => 0,
        };
        let factor = match self.of_so_many {
            _ if used == 0 => 1.0,
            Some((number, factor)) if number == used => factor,
            _ => self.factor,
        };
        let seconds = self.slower * factor * (0.01 * self.random.normal()).exp();
        self.whole.judge(Some(found.clone()), &[seconds], 1) == Some(Event::Changed)
    }

    fn until_settled(&mut self, found: &Found) {
        for _ in 0..100 {
            self.step(found);
            if self.whole.is_settled() {
                return;
            }
        }
        panic!("it is not decided: {:?}", self.whole);
    }
}

#[test]
fn what_shortens_iterations_stands() {
    let found = found(&[16, 20]);
    for seed in 1..4 {
        let mut steps = Steps::new(seed, 0.8);
        assert!(!steps.whole.is_settled() && steps.whole.turn() == Turn::ByCalls, "seed {seed}");
        steps.until_settled(&found);
        let Stage::Stands { chosen, gain: Some(gain), .. } = steps.whole.stage() else {
            panic!("seed {seed}: {:?}", steps.whole);
        };
        assert!(*chosen == found && (gain.share - 0.2).abs() < 0.03, "seed {seed}: {gain:?}");
        let (context, choice) = found.first_key_value().expect("two of them");
        assert_eq!((steps.whole.turn(), steps.whole.chosen(context)), (Turn::ByCalls, *choice), "seed {seed}");
    }
}

/// What makes iterations longer or no shorter is not used, for as long as nothing changes.
#[test]
fn what_shortens_calls_only_does_not_stand() {
    let found = found(&[20]);
    for (seed, factor) in [(1, 1.0), (2, 1.05), (3, 0.99)] {
        let mut steps = Steps::new(seed, factor);
        steps.until_settled(&found);
        assert!(matches!(steps.whole.stage(), Stage::Unused { .. }), "{factor}: {:?}", steps.whole);
        assert_eq!(steps.whole.turn(), Turn::Default, "{factor}");
        let context = found.keys().next().expect("one of them");
        assert_eq!(steps.whole.chosen(context), Choice::Default, "{factor}");
        for _ in 1..TRIED_AGAIN {
            assert!(!steps.step(&found) && steps.whole.turn() == Turn::Default, "{factor}");
        }
        steps.step(&found);
        assert_eq!((steps.whole.trials(), steps.whole.is_settled()), (2, false), "{factor}: once more");
    }
}

/// What stands is compared with the default once more when iterations take another time, and now and then.
#[test]
fn what_stands_is_given_up_when_it_shortens_nothing_any_more() {
    let found = found(&[20]);
    let context = found.keys().next().expect("one of them");
    for (factor, stands, steps_max) in [(1.1, false, 12), (1.0, false, 12), (0.8, true, TRIED_AGAIN)] {
        let mut steps = Steps::new(8, 0.8);
        steps.until_settled(&found);
        (0..40).for_each(|_| _ = steps.step(&found));
        assert!(steps.whole.is_settled(), "{factor}: {:?}", steps.whole);
        steps.factor = factor;
        let is_tried = |steps: &Steps| matches!(steps.whole.stage(), Stage::OnTrial { .. });
        let noticed = (0..steps_max).any(|_| {
            steps.step(&found);
            is_tried(&steps)
        });
        assert!(noticed && steps.whole.chosen(context) != Choice::Default, "{factor}: {:?}", steps.whole);
        steps.until_settled(&found);
        assert_eq!(steps.whole.chosen(context) != Choice::Default, stands, "{factor}: {:?}", steps.whole);
    }
}

#[test]
fn iterations_that_change_begin_anew_what_was_not_used() {
    let found = found(&[20]);
    let mut steps = Steps::new(4, 1.0);
    steps.until_settled(&found);
    assert!((0..40).all(|_| !steps.step(&found)));
    let noticed = (0..12).any(|_| steps.whole.judge(Some(found.clone()), &[1.3], 1) == Some(Event::Changed));
    assert!(noticed && matches!(steps.whole.stage(), Stage::Learning), "{:?}", steps.whole);
}

#[test]
fn where_nothing_was_found_nothing_is_tried() {
    let mut steps = Steps::new(5, 1.0);
    steps.until_settled(&Found::new());
    assert_eq!((steps.whole.trials(), steps.whole.turn()), (0, Turn::ByCalls));
    // A call has begun anew, and then something is better.
    assert_eq!(steps.whole.judge(None, &[], 1), Some(Event::Again));
    assert_eq!(steps.whole.judge(None, &[], 1), None);
    assert!(!steps.whole.is_settled());
    steps.step(&found(&[20]));
    assert_eq!(steps.whole.trials(), 1);
}

/// A trial is of one candidate. What stands may become less without one, and no more.
#[test]
fn another_candidate_has_a_trial_of_its_own() {
    let (one, both) = (found(&[16]), found(&[16, 20]));
    let mut steps = Steps::new(6, 0.8);
    (0..5).for_each(|_| _ = steps.step(&both));
    steps.step(&one);
    let Stage::OnTrial { candidate, .. } = steps.whole.stage() else { panic!("{:?}", steps.whole) };
    // Nobody had looked at the first trial: its error is spent by the second.
    assert_eq!((candidate, steps.whole.trials()), (&one, 1));
    steps.step(&both);
    steps.until_settled(&both);
    steps.step(&one);
    assert!(matches!(steps.whole.stage(), Stage::Stands { chosen, gain: Some(_), .. } if *chosen == one));
    steps.step(&both);
    assert!(matches!(steps.whole.stage(), Stage::OnTrial { .. }), "{:?}", steps.whole);
    steps.until_settled(&both);
    steps.step(&Found::new());
    assert!(matches!(steps.whole.stage(), Stage::Stands { gain: None, .. }), "{:?}", steps.whole);
}

/// One call is explored again, as it was left alone for long: that says nothing against what has shortened iterations.
#[test]
fn what_stands_does_so_while_another_call_is_explored_again() {
    let (both, three) = (found(&[16, 20]), found(&[16, 20, 24]));
    let mut steps = Steps::new(9, 0.8);
    steps.until_settled(&both);
    let (trials, gain) = (steps.whole.trials(), steps.whole.gain());
    assert_eq!([1, 1].map(|ended| steps.whole.explore_again(&both, ended)), [Some(Event::Again), None]);
    assert!(matches!(steps.whole.stage(), Stage::Learning) && !steps.whole.is_settled(), "{:?}", steps.whole);
    assert!(gain.is_some() && (steps.whole.stands(), steps.whole.gain()) == (Some(&both), gain));
    // Nothing else was found: it needs no second trial.
    steps.step(&both);
    assert!(matches!(steps.whole.stage(), Stage::Stands { chosen, gain: Some(_), .. } if *chosen == both));
    assert_eq!((steps.whole.trials(), steps.whole.gain()), (trials, gain));
    // Something else was: until that is decided, it stands.
    steps.whole.explore_again(&both, 1);
    steps.step(&three);
    assert!(matches!(steps.whole.stage(), Stage::OnTrial { candidate, .. } if *candidate == three));
    assert_eq!(steps.whole.stands(), Some(&both));
    steps.until_settled(&three);
    assert_eq!((steps.whole.stands(), steps.whole.trials()), (Some(&three), trials + 1));
    // What calls give up meanwhile has gone.
    steps.whole.explore_again(&both, 1);
    assert_eq!(steps.whole.stands(), Some(&both));
    steps.whole.judge(None, &[], 1);
    assert_eq!((steps.whole.stands(), steps.whole.gain()), (None, None), "in another network it says nothing");
}

/// A verdict of the iterations says otherwise, also if it had to wait.
#[test]
fn what_was_to_be_compared_is_compared_after_the_exploration() {
    let (found, nothing) = (found(&[20]), Found::new());
    let mut steps = Steps::new(10, 0.8);
    steps.until_settled(&found);
    // It was due meanwhile.
    steps.whole.explore_again(&found, TRIED_AGAIN);
    steps.step(&found);
    assert!(matches!(steps.whole.stage(), Stage::OnTrial { .. }), "{:?}", steps.whole);
    // The trial itself was broken off.
    steps.whole.explore_again(&found, 1);
    steps.step(&found);
    assert!(matches!(steps.whole.stage(), Stage::OnTrial { .. }), "{:?}", steps.whole);
    assert_eq!(steps.whole.stands(), Some(&found));
    steps.factor = 1.1;
    steps.until_settled(&found);
    assert!(matches!(steps.whole.stage(), Stage::Unused { .. }) && steps.whole.stands().is_none());
    steps.whole.explore_again(&nothing, 1);
    assert!(matches!(steps.whole.stage(), Stage::Learning) && steps.whole.stands().is_none());
}

#[test]
fn a_trial_whose_steps_say_nothing_ends() {
    let (mut whole, found) = (Whole::new(7, TRIED_AGAIN), found(&[20]));
    for _ in 0..200 {
        whole.judge(Some(found.clone()), &[f64::NAN], 1);
    }
    assert!(matches!(whole.stage(), Stage::Unused { .. }) && whole.is_settled(), "{whole:?}");
}

/// More was found, and with all of it iterations are no shorter than the default's: what has won before is used alone.
#[test]
fn what_spoils_what_stands_is_left_out_alone() {
    let (one, both) = (found(&[16]), found(&[16, 20]));
    let mut steps = Steps::new(8, 0.8);
    steps.until_settled(&one);
    steps.factor = 1.0;
    steps.step(&both);
    assert!(matches!(steps.whole.stage(), Stage::OnTrial { .. }), "{:?}", steps.whole);
    steps.until_settled(&both);
    assert!(matches!(steps.whole.stage(), Stage::Unused { .. }), "{:?}", steps.whole);
    assert_eq!((steps.whole.turn(), steps.whole.trials()), (Turn::Found(&one), 2));
    let mut choices = both.keys().map(|context| steps.whole.chosen(context));
    assert!(choices.next() != Some(Choice::Default) && choices.next() == Some(Choice::Default));
    assert!(steps.whole.gain().is_some_and(|gain| (gain.share - 0.2).abs() < 0.03));
    // Calls say that the other one is no better, either: nothing has to be tried again.
    steps.factor = 0.8;
    steps.step(&one);
    assert!(matches!(steps.whole.stage(), Stage::Stands { chosen, gain: Some(_), .. } if *chosen == one));
    assert_eq!(steps.whole.trials(), 2);
}

/// What a call takes has shortened iterations; then calls find something better yet, with which iterations are no shorter.
#[test]
fn what_is_better_yet_by_calls_does_not_cost_what_has_shortened_iterations() {
    let before = found(&[16, 20]);
    let (context, choice) = before.first_key_value().map(|(context, choice)| (*context, *choice)).expect("two of them");
    let mut after = before.clone();
    let Choice::Play(action) = choice else { panic!("{choice:?}") };
    after.insert(context, Choice::Play(Action { channels: 8, ..action }));
    for seed in 1..4 {
        let mut steps = Steps::new(seed, 0.8);
        steps.until_settled(&before);
        steps.factor = 1.0;
        steps.until_settled(&after);
        assert!(matches!(steps.whole.stage(), Stage::Unused { .. }), "seed {seed}: {:?}", steps.whole);
        assert_eq!(steps.whole.stands(), Some(&before), "seed {seed}");
        assert_eq!(steps.whole.turn(), Turn::Found(&before), "seed {seed}");
    }
}

/// What has shortened iterations by a fifth stands while something better by calls does not. Without anybody noticing, it comes to shorten
/// nothing: sooner or later that is found out.
#[test]
fn what_stands_while_more_is_unused_meets_the_default_again() {
    let before = found(&[16, 20]);
    let after = found(&[16, 18, 20]);
    for seed in 1..4 {
        let mut steps = Steps::new(seed, 0.8);
        steps.until_settled(&before);
        steps.factor = 1.0;
        steps.until_settled(&after);
        assert_eq!(steps.whole.stands(), Some(&before), "seed {seed}");
        for _ in 0..3 * TRIED_AGAIN {
            steps.step(&after);
        }
        assert_eq!(steps.whole.stands(), None, "seed {seed}: {:?}", steps.whole);
        // And if it does shorten them still, it stands on, and more stays unused.
        let mut steps = Steps::new(seed, 0.8);
        steps.until_settled(&before);
        steps.of_so_many = Some((after.len(), 1.0));
        steps.until_settled(&after);
        let trials = steps.whole.trials();
        for _ in 0..3 * TRIED_AGAIN {
            steps.step(&after);
            let stands = steps.whole.stands();
            assert_eq!(stands, Some(&before), "seed {seed}: {:?}", steps.whole);
        }
        // Of both, each time: what stands, and what is more.
        let again = steps.whole.trials() - trials;
        assert!((2..=6).contains(&again), "seed {seed}: {again}");
    }
}

/// What is better yet by calls shortens iterations, too, and by less than what stands.
#[test]
fn what_shortens_iterations_by_less_does_not_take_the_place_of_what_stands() {
    let (before, after) = (found(&[16, 20]), found(&[16, 18, 20]));
    for seed in 1..4 {
        let mut steps = Steps::new(seed, 0.7);
        steps.until_settled(&before);
        steps.of_so_many = Some((after.len(), 0.85));
        steps.until_settled(&after);
        assert_eq!(steps.whole.stands(), Some(&before), "seed {seed}: {:?}", steps.whole);
        // The other way round it does.
        steps.of_so_many = Some((after.len(), 0.5));
        for _ in 0..3 * TRIED_AGAIN {
            steps.step(&after);
        }
        assert_eq!(steps.whole.stands(), Some(&after), "seed {seed}: {:?}", steps.whole);
    }
}

/// What iterations have shown before the job stands from the first one on, and is watched like what was found in the job.
#[test]
fn what_was_rehearsed_stands_until_iterations_take_longer_with_it() {
    let found = found(&[16, 20]);
    let mut steps = Steps::new(1, 0.8);
    steps.whole.rehearsed(Some((found.clone(), Gain { share: 0.2, margin: 0.01, probability: 1e-4 })));
    assert!(steps.whole.is_settled() && steps.whole.stands() == Some(&found));
    for _ in 0..100 {
        assert!(!steps.step(&found));
    }
    assert_eq!((steps.whole.stands(), steps.whole.trials()), (Some(&found), 0));
    steps.factor = 1.3;
    for _ in 0..100 {
        steps.step(&found);
    }
    assert_eq!((steps.whole.stands(), steps.whole.turn(), steps.whole.trials()), (None, Turn::Default, 1));
    // A gain of two hundredths that still is one stays, though it meets the default again and again.
    let mut steps = Steps::new(2, 0.98);
    steps.whole.rehearsed(Some((found.clone(), Gain { share: 0.02, margin: 0.005, probability: 1e-4 })));
    for _ in 0..TRIED_AGAIN + 450 {
        steps.step(&found);
    }
    assert_eq!((steps.whole.stands(), steps.whole.trials()), (Some(&found), 1));
    // Where nothing was found, nothing is tried, and what iterations take is watched for good.
    let mut steps = Steps::new(3, 1.0);
    steps.whole.rehearsed(None);
    let none = Found::new();
    assert!((0..2 * TRIED_AGAIN).all(|_| !steps.step(&none)) && steps.whole.trials() == 0);
    steps.slower = 2.0;
    assert!((0..50).any(|_| steps.step(&none)), "nobody has noticed");
    steps.whole.rehearsed(None);
    assert!(steps.whole.is_settled() && steps.whole.turn() == Turn::Default && steps.whole.stands().is_none());
}
