use paceline_tune::Standing;
use paceline_tune::trial::ERROR;

use super::*;
use crate::on_ranks::on_ranks;
use crate::tuned::tests::CALL;

const LIMIT: Duration = Duration::from_millis(400);
/// Enough for everything, however busy the machine is.
const AMPLE: Duration = Duration::from_secs(60);

/// What a call is said to take: with so many channels a third of the default's time, and all else more than that.
fn play(tuned: &TunedCalls<'_>, choice: Choice, fast: Option<u8>) -> Result<Took, CommError> {
    let seconds = match choice {
        Choice::Default => 2.7e-3,
        Choice::Play(action) if Some(action.channels) == fast => 0.9e-3,
        Choice::Play(_) => 3.6e-3,
    };
    call(tuned).map(|()| seconds.into())
}

fn call(tuned: &TunedCalls<'_>) -> Result<(), CommError> {
    tuned.all_reduce_as(Choice::Default, &mut [1.0f32; 64], Reduction::Sum, &CallOptions::default())
}

#[test]
fn what_is_faster_wins_and_is_in_force_on_all_ranks() {
    on_ranks(2, |communicator| {
        let mut tuned = TunedCalls::new(&communicator, 1);
        let state = tuned.state(CollectiveKind::AllReduce, 64 << 10, &CALL);
        let all = contestants(&typical_situation(&tuned.model, &state).unwrap());
        let channels = all.iter().find_map(|(choice, _)| match choice {
            Choice::Play(action) => Some(action.channels),
            Choice::Default => None,
        });
        // Of calls that nobody learns from, what stands is asked for once, and again when something else does.
        let plain = CallOptions::default();
        let place = tuned.place(CollectiveKind::AllReduce, 64 << 10, &CALL);
        assert_eq!(tuned.stands(place, &plain), Choice::Default);
        let found = tuned.rehearse(&state, AMPLE, |tuned, choice| play(tuned, choice, channels)).unwrap();
        let (choice, gain) = found.chosen.expect("two thirds are a gain");
        assert!((gain.share - 2.0 / 3.0).abs() < 1e-9, "{gain:?}");
        assert!(matches!(choice, Choice::Play(action) if Some(action.channels) == channels), "{choice:?}");
        assert_eq!(tuned.policies.current().choice(state.context().key(), Some(0)), choice);
        assert_eq!(tuned.stands(place, &plain), choice);
        assert_eq!(tuned.policies.active(), 1);
        if let Some(tuner) = tuned.tuner() {
            let standing = tuner.courses().next().unwrap().1.standing();
            assert!(matches!(standing, Standing::Chosen(stands, _) if stands == choice), "{standing:?}");
        }
        assert!(found.called > 1 && found.called <= found.choices && found.is_complete, "{found:?}");
        assert_eq!(tuned.glances.are_early(), tuned.meetings.times_others(64 << 10), "who times calls watches them");
    });
}

/// What is faster waits 200 ms in every fiftieth call: less often than a trial sees, and more than it saves. The default waits for a
/// processor as often.
#[test]
fn what_is_late_now_and_then_does_not_stand() {
    on_ranks(2, |communicator| {
        let mut tuned = TunedCalls::new(&communicator, 1);
        let state = tuned.state(CollectiveKind::AllReduce, 64 << 10, &CALL);
        let all = contestants(&typical_situation(&tuned.model, &state).unwrap());
        let mut families: Vec<u8> = all.iter().filter_map(|(choice, _)| family(*choice)).collect();
        families.dedup();
        let (mut calls, mut of_default) = (0, 0);
        let found = tuned.rehearse(&state, AMPLE, |tuned, choice| {
            call(tuned)?;
            let of = family(choice);
            calls += u32::from(of == Some(families[0]));
            of_default += u32::from(of.is_none());
            let seconds = match of {
                Some(algorithm) if algorithm == families[0] => {
                    if calls % 50 == 0 {
                        0.2
                    } else {
                        0.9e-3
                    }
                }
                None if of_default % 50 == 0 => 10e-3,
                _ => 2.7e-3,
            };
            Ok(seconds.into())
        });
        let found = found.unwrap();
        assert!(found.is_complete && calls > 256, "{calls} calls of it, {found:?}");
        assert_eq!(found.chosen, None, "{calls} calls of it, {found:?}");
    });
}

fn family(choice: Choice) -> Option<u8> {
    match choice {
        Choice::Play(action) => Some(action.family.algorithm),
        Choice::Default => None,
    }
}

#[test]
fn who_is_late_oftener_has_to_save_more_than_that_costs() {
    let calls = |late: usize, seconds: f64| [vec![0.2; late], vec![seconds; 100 - late]].concat();
    for (default, candidate, endures) in [
        (calls(0, 1e-3), calls(0, 0.9e-3), true),
        (calls(0, 1e-3), calls(1, 0.5e-3), false),
        (calls(1, 1e-3), calls(1, 0.9e-3), true),
        (calls(2, 1e-3), calls(4, 0.9e-3), true),
        (calls(1, 1e-3), calls(5, 0.9e-3), false),
        // As often late as the default, by much more.
        ([vec![4e-3; 5], calls(0, 1e-3)].concat(), calls(4, 0.9e-3), false),
        // Late calls that cost less than the others save.
        (calls(0, 50e-3), calls(2, 20e-3), true),
    ] {
        assert_eq!(has_endured(&default, &candidate), endures, "{}", candidate[0]);
    }
    assert!(has_endured(&[], &[]));
}

/// Rank 1 cannot read the first version: it is sent again before the next one follows it.
#[test]
fn what_somebody_lacks_comes_first() {
    on_ranks(2, |communicator| {
        let mut tuned = TunedCalls::new(&communicator, 1);
        let read = tuned.policies.read;
        if communicator.rank() == 1 {
            tuned.policies.read = |_| None;
        }
        let rehearse = |tuned: &mut TunedCalls<'_>, bytes: usize| {
            let state = tuned.state(CollectiveKind::AllReduce, bytes, &CALL);
            tuned.rehearse(&state, LIMIT, |tuned, choice| play(tuned, choice, None)).unwrap();
            tuned.policies.active()
        };
        assert_eq!(rehearse(&mut tuned, 64 << 10), 0);
        tuned.policies.read = read;
        assert_eq!([64 << 10, 1 << 20].map(|bytes| rehearse(&mut tuned, bytes)), [1, 2]);
    });
}

#[test]
fn where_nothing_is_faster_the_default_stays_and_time_is_kept() {
    on_ranks(2, |communicator| {
        let mut tuned = TunedCalls::new(&communicator, 1);
        let state = tuned.state(CollectiveKind::AllReduce, 1 << 20, &CALL);
        let found = tuned.rehearse(&state, 3 * LIMIT, |tuned, choice| {
            std::thread::sleep(Duration::from_millis(2));
            play(tuned, choice, None)
        });
        let found = found.unwrap();
        assert_eq!(found.chosen, None, "{found:?}");
        assert!(found.seconds < 30.0 * LIMIT.as_secs_f64(), "{found:?}");
        assert_eq!(tuned.policies.current().choice(state.context().key(), Some(0)), Choice::Default);
    });
}

/// Rank 1 takes a millisecond longer over everything. Calls take as long as on it, and a tuner learns what rank 0 has seen, as in a job;
/// the trial's calls count for that, however few the race has come to.
#[test]
fn a_tuner_is_taught_the_least_time_of_all_ranks() {
    let taught = on_ranks(2, |communicator| {
        let tuned = TunedCalls::new(&communicator, 1);
        let state = tuned.state(CollectiveKind::AllReduce, 64 << 10, &CALL);
        let situation = typical_situation(&tuned.model, &state).unwrap();
        let rehearsal = Rehearsal::new(&communicator, Some(&situation), AMPLE).unwrap();
        let late_s = if communicator.rank() == 1 { 1e-3 } else { 0.0 };
        let mut play = |choice: Choice| -> Result<Took, CommError> {
            call(&tuned)?;
            Ok((late_s + if choice == Choice::Default { 1e-3 } else { 0.6e-3 }).into())
        };
        rehearsal.run_timed(|| ERROR, &mut play).unwrap().all_s
    });
    assert_eq!(taught[0], taught[1]);
    let default_s = &taught[0][0];
    assert!(default_s.len() > 10 && default_s.iter().all(|seconds| *seconds == 1e-3), "{default_s:?}");
}

/// Rank 1 begins calls half a millisecond late, and has the default's results a whole one after rank 0.
#[test]
fn a_tuner_is_taught_how_long_calls_last_by_a_common_clock() {
    let taught = on_ranks(2, |communicator| {
        let tuned = TunedCalls::new(&communicator, 1);
        let state = tuned.state(CollectiveKind::AllReduce, 64 << 10, &CALL);
        let situation = typical_situation(&tuned.model, &state).unwrap();
        let rehearsal = Rehearsal::new(&communicator, Some(&situation), AMPLE).unwrap();
        let mut play = |choice: Choice| -> Result<Took, CommError> {
            call(&tuned)?;
            let late = communicator.rank() == 1;
            let [began_s, ended_s] = [if late { 0.5e-3 } else { 0.0 }, if late { 2e-3 } else { 1e-3 }];
            let ended_s = if choice == Choice::Default { ended_s } else { 1.2e-3 };
            Ok(Took::between(began_s, ended_s))
        };
        rehearsal.run_timed(|| ERROR, &mut play).unwrap().all_s
    });
    let all = |contestant: usize, seconds: f64| taught[0][contestant].iter().all(|own| (own - seconds).abs() < 1e-9);
    assert!(taught[0] == taught[1] && all(0, 1.5e-3) && all(1, 0.7e-3), "{:?}", &taught[0][..2]);
}

#[test]
fn a_world_of_one_has_nothing_to_rehearse() {
    let communicator = paceline_comm::Communicator::solo().unwrap();
    let mut tuned = TunedCalls::new(&communicator, 1);
    let found = tuned.rehearse_all_reduce(&mut [0.0f32; 16], Reduction::Sum, &CALL, LIMIT).unwrap();
    assert_eq!(found.chosen, None, "{found:?}");
}

/// Calls of one algorithm are said to take a third less, whatever they do: a tuner of one's own learns that, and nobody else.
#[test]
fn whoever_times_calls_himself_teaches_his_own_tuner() {
    on_ranks(2, |communicator| {
        let tuned = TunedCalls::new(&communicator, 1);
        let state = tuned.state(CollectiveKind::AllReduce, 64 << 10, &CALL);
        let situation = typical_situation(&tuned.model, &state).unwrap();
        let usual = situation.arms[situation.default].action.family.algorithm;
        let other = contestants(&situation).iter().find_map(|(choice, _)| match choice {
            Choice::Play(action) => Some(action.family.algorithm).filter(|algorithm| *algorithm != usual),
            Choice::Default => None,
        });
        let mut play = |choice: Choice| -> Result<Took, CommError> {
            communicator.barrier(&CallOptions::default())?;
            let is_faster = matches!(choice, Choice::Play(action) if Some(action.family.algorithm) == other);
            Ok(if is_faster { 1e-3 } else { 1.5e-3 }.into())
        };
        let mut tuner = Tuner::shipped(1);
        let taught = (communicator.rank() == 0).then_some((&mut tuner, &situation));
        let found = Rehearsed::of(&communicator, taught, 10 * LIMIT, &mut play).unwrap();
        let (choice, gain) = found.chosen.expect("a third is a gain");
        assert!(matches!(choice, Choice::Play(action) if Some(action.family.algorithm) == other), "{choice:?}");
        assert!((gain.share - 1.0 / 3.0).abs() < 1e-9, "{gain:?}");
        let standing = tuner.course(&situation.context).map(|course| course.standing());
        let stands = matches!(standing, Some(Standing::Chosen(stands, _)) if stands == choice);
        assert_eq!((stands, tuner.trials()), if communicator.rank() == 0 { (true, 1) } else { (false, 0) });
        assert_eq!(tuned.policies.active(), 0);
    });
}
