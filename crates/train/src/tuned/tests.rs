mod glances;
mod iterations;
mod one_more;
mod splits;
mod topologies;

use paceline_tune::environment::CostModel;
use paceline_tune::{Action, Family, Parallelism};

use super::leader::WAITS_MAX;
use super::*;
use crate::on_ranks::on_ranks;

/// What the calls are part of; bytes, ranks and hosts are filled in.
pub(crate) const CALL: Call = Call {
    collective: CollectiveKind::AllReduce,
    bytes: 0,
    ranks: 0,
    hosts: 0,
    parallelism: Parallelism::Data,
    is_pipelined_layer: true,
    is_fused_call: false,
    is_ps_deployment: false,
    model_intensity: 100.0,
    local_batch: 8,
    times: 1,
};

/// Runs `rank` on each of the ranks of a new world, with its calls; they meet at each boundary.
pub(crate) fn on_tuned_ranks<R: Send>(
    world: usize,
    rank: impl Fn(&Communicator, &mut TunedCalls<'_>) -> R + Sync,
) -> Vec<R> {
    on_ranks(world, |communicator| with_calls(&communicator, &rank))
}

/// Runs `rank` with its calls; the ranks meet at each boundary.
fn with_calls<R>(communicator: &Communicator, rank: impl Fn(&Communicator, &mut TunedCalls<'_>) -> R) -> R {
    let mut calls = TunedCalls::new(communicator, 5);
    calls.meetings = calls.meetings.clone().always();
    rank(communicator, &mut calls)
}

/// The number of an algorithm of all-reduces.
pub(crate) fn number_of(name: &str) -> u8 {
    let is_it = |&number: &u8| OwnModel::algorithm(CollectiveKind::AllReduce, number) == Some(name);
    (0..=u8::MAX).find(is_it).expect(name)
}

/// A call of this state, as it is made.
pub(crate) fn choose(calls: &mut TunedCalls<'_>, state: &State, options: &CallOptions) -> Made {
    let place = calls.kinds.place(state.collective, state.bytes as usize, &CALL, || *state);
    let number = calls.count(place);
    calls.choose(place, number, options)
}

/// All ranks add up right while choices change, and all change at the same time.
#[test]
fn ranks_change_together_and_sums_stay_right() {
    const WORLD: usize = 4;
    let all = on_tuned_ranks(WORLD, |communicator, calls| {
        let options = CallOptions::default();
        until_tried(calls, |calls, iteration| {
            for elements in [64, 1 << 12, 1 << 16] {
                let mut data = vec![(communicator.rank() + iteration) as f64; elements];
                calls.all_reduce(&mut data, Reduction::Sum, &CALL, &options).unwrap();
                let sum = (0..WORLD).map(|rank| (rank + iteration) as f64).sum::<f64>();
                assert!(data.iter().all(|value| *value == sum), "iteration {iteration}, {elements} elements");
            }
            let input = vec![communicator.rank() as u8; 100];
            let mut output = vec![0; 100 * WORLD];
            calls.all_gather(&input, &mut output, &CALL, &options).unwrap();
            assert!(output.iter().enumerate().all(|(place, value)| usize::from(*value) == place / 100));
            let (all, mut own) = ([1.0f32; 50 * WORLD], [0.0; 50]);
            calls.reduce_scatter(&all, &mut own, Reduction::Sum, &CALL, &options).unwrap();
            assert!(own.iter().all(|value| *value == WORLD as f32));
        })
    });
    changed_together(&all);
}

/// Iterations, each with a boundary behind it, until something has been tried, and 61 at least: on a busy machine it takes longer
/// until anything is worth it. What the rank went by after each.
fn until_tried(calls: &mut TunedCalls<'_>, mut iteration: impl FnMut(&mut TunedCalls<'_>, usize)) -> Vec<(u64, u64)> {
    let mut went_by = Vec::new();
    for number in 0..1000 {
        iteration(calls, number);
        let version = calls.boundary().unwrap();
        went_by.push((version, calls.policy().fingerprint()));
        if number >= 60 && version > 1 {
            break;
        }
    }
    went_by
}

/// All ranks have gone by the same all the time, and something was tried.
fn changed_together(all: &[Vec<(u64, u64)>]) {
    assert!(all.iter().all(|rank| *rank == all[0]), "ranks were under different policies");
    assert!(all[0].last().unwrap().0 > 1, "nothing was ever tried: {:?}", all[0].last());
}

/// Whoever came early has waited for the last one: a call took what it took there, and the rest is nobody's choice.
#[test]
fn a_call_takes_as_long_as_on_the_rank_that_came_last() {
    const CALLS: u32 = 5;
    let seen = on_tuned_ranks(3, |communicator, calls| {
        let state = calls.state_of(CollectiveKind::AllReduce, 1 << 20, &CALL);
        for _ in 0..CALLS {
            let made = choose(calls, &state, &CallOptions::default());
            calls.made.push(made.took(Duration::from_millis([9, 2, 30][communicator.rank()])));
        }
        calls.boundary().unwrap();
        let leader = calls.leader.as_ref();
        leader.map(|leader| leader.learning.cost(&state.context(), &leader.situations).measured_s)
    });
    assert!(seen[0].is_some_and(|seconds| (seconds - f64::from(CALLS) * 2e-3).abs() < 1e-9), "{seen:?}");
    assert_eq!(seen[1..], [None, None]);
}

/// A call that is there takes so long.
fn call_of(calls: &mut TunedCalls<'_>, state: &State, took: impl Fn(Choice) -> Duration) {
    let made = choose(calls, state, &CallOptions::default());
    let took = took(made.choice);
    calls.made.push(made.took(took));
}

/// An all-reduce in every third iteration, while the ranks meet at each one: what halves its time is found as in every iteration.
#[test]
fn who_is_called_seldom_has_turns_too() {
    let halved = |choice| Duration::from_millis(if choice == Choice::Default { 4 } else { 2 });
    let all = on_tuned_ranks(2, |_, calls| {
        let often = calls.state_of(CollectiveKind::AllReduce, 1 << 10, &CALL);
        let seldom = calls.state_of(CollectiveKind::AllReduce, 1 << 20, &CALL);
        for boundary in 0..3 * 400 {
            call_of(calls, &often, |_| Duration::from_millis(1));
            if boundary % 3 == 0 {
                call_of(calls, &seldom, halved);
            }
            calls.boundary().unwrap();
        }
        calls.standing().choice(seldom.context().key(), 0)
    });
    assert!(all[0] != Choice::Default && all[0] == all[1], "{all:?}");
}

/// Turns wait for a context that is not called, and not for ever.
#[test]
fn turns_of_who_is_not_called_wait_and_are_given_up() {
    let all = on_tuned_ranks(2, |_, calls| {
        let often = calls.state_of(CollectiveKind::AllReduce, 1 << 10, &CALL);
        let once = calls.state_of(CollectiveKind::AllReduce, 1 << 20, &CALL);
        let is_tried = |calls: &TunedCalls<'_>| {
            let plays = calls.policies.current().of(&once.context()).copied().unwrap();
            plays != Plays::always(plays.context, plays.then)
        };
        // Until something is tried in it.
        for boundary in 0.. {
            assert!(boundary < 200, "nothing is ever tried");
            call_of(calls, &once, |_| Duration::from_millis(4));
            calls.boundary().unwrap();
            if is_tried(calls) {
                break;
            }
        }
        let mut tried = Vec::new();
        for _ in 0..WAITS_MAX + 1 {
            call_of(calls, &often, |_| Duration::from_millis(1));
            calls.boundary().unwrap();
            tried.push(is_tried(calls));
        }
        tried
    });
    let until = WAITS_MAX as usize;
    for tried in all {
        assert!(tried[..until].iter().all(|tried| *tried) && !tried[until], "{tried:?}");
    }
}

/// What the caller has chosen stays, and its time says nothing of other choices.
#[test]
fn calls_for_which_the_caller_has_chosen_are_left_alone() {
    let all = on_tuned_ranks(2, |communicator, calls| {
        // One rank alone may choose how its messages travel.
        let first = CallOptions { lanes: (communicator.rank() == 1).then_some(1), ..CallOptions::default() };
        for _ in 0..20 {
            calls.all_reduce(&mut [1.0f64; 512], Reduction::Sum, &CALL, &CallOptions::algorithm("ring")).unwrap();
            calls.all_reduce(&mut [1.0f64; 1 << 14], Reduction::Sum, &CALL, &first).unwrap();
            calls.boundary().unwrap();
        }
        let known = calls.tuner().map(|tuner| (tuner.courses().count(), tuner.lessons()));
        (communicator.rank(), known)
    });
    for (rank, known) in all {
        assert_eq!(known, (rank == 0).then(|| (0, Vec::new())), "times were learned that are nobody's");
    }
}

/// While something is tried, one rank begins to choose how its messages travel. Nothing is tried any more then, as nobody could say what
/// it takes; when it leaves that to the tuner again, something is.
#[test]
fn what_nobody_times_is_not_tried() {
    let all = on_tuned_ranks(2, |communicator, calls| {
        let state = calls.state_of(CollectiveKind::AllReduce, 8 << 14, &CALL);
        let is_tried = |calls: &TunedCalls<'_>| {
            let plays = calls.policies.current().of(&state.context()).copied();
            plays.is_some_and(|plays| plays != Plays::always(plays.context, plays.then))
        };
        let iterate = |calls: &mut TunedCalls<'_>, lanes: Option<u16>| {
            let own = CallOptions { lanes: lanes.filter(|_| communicator.rank() == 1), ..CallOptions::default() };
            for _ in 0..4 {
                let mut data = [1.0f64; 1 << 14];
                calls.all_reduce(&mut data, Reduction::Sum, &CALL, &own).unwrap();
                assert_eq!(data, [2.0; 1 << 14]);
            }
            calls.boundary().unwrap();
            is_tried(calls)
        };
        assert!((0..1000).any(|_| iterate(calls, None)), "nothing is ever tried");
        let tried: Vec<bool> = (0..40).map(|_| iterate(calls, Some(1))).collect();
        (tried, (0..1000).any(|_| iterate(calls, None)))
    });
    assert_eq!(all, [(vec![false; 40], true), (vec![false; 40], true)]);
}

#[test]
fn ranks_that_make_other_calls_are_told_so() {
    let all = on_tuned_ranks(2, |communicator, calls| {
        let local_batch = if communicator.rank() == 0 { 1 } else { 1 << 12 };
        let call = Call { local_batch, ..CALL };
        calls.all_reduce(&mut [1.0f64; 64], Reduction::Sum, &call, &CallOptions::default()).unwrap();
        calls.boundary().unwrap_err().to_string()
    });
    for error in all {
        assert!(error.contains("have not made the same calls"), "{error}");
    }
}

#[test]
fn a_message_is_one_call_to_both_of_its_ranks() {
    let all = on_tuned_ranks(2, |communicator, calls| {
        let options = CallOptions::default();
        for iteration in 0..40i32 {
            let mut data = vec![iteration; 1 << 14];
            if communicator.rank() == 0 {
                calls.send(&data, 1, &CALL, &options).unwrap();
            } else {
                data.fill(i32::MAX);
                calls.receive(&mut data, 0, &CALL, &options).unwrap();
                assert!(data.iter().all(|value| *value == iteration));
            }
            calls.boundary().unwrap();
        }
        calls.policy().fingerprint()
    });
    assert_eq!(all[0], all[1]);
}

#[test]
fn a_choice_fills_in_what_the_caller_has_left_open() {
    let family = Family { algorithm: number_of("ring"), protocol: WireProtocol::LowLatency };
    let action = Action { family, channels: 2, threads: 0, chunk_log2: 17 };
    let plain = CallOptions::default();
    let options = tuned_options(Choice::Play(action), CollectiveKind::AllReduce, &plain);
    assert_eq!((options.algorithm.as_deref(), options.protocol), (Some("ring"), Protocol::Inline));
    assert_eq!((options.lanes, options.reducing_threads, options.chunk_bytes), (Some(2), None, Some(1 << 17)));
    let own = CallOptions { lanes: Some(7), protocol: Protocol::Eager, ..plain.clone() };
    let options = tuned_options(Choice::Play(action), CollectiveKind::AllReduce, &own);
    assert_eq!((options.lanes, options.protocol), (Some(7), Protocol::Eager));
    // Numbers of another collective, and the default, change nothing.
    assert_eq!(tuned_options(Choice::Play(action), CollectiveKind::AllGather, &plain), plain);
    assert_eq!(tuned_options(Choice::Default, CollectiveKind::AllReduce, &plain), plain);
}

/// Short calls: the ranks meet at few of their boundaries, and those calls that follow what is tried take what stands.
#[test]
fn short_calls_meet_seldom_and_change_together() {
    const BOUNDARIES: usize = 1000;
    let all = on_ranks(2, |communicator| {
        let mut calls = TunedCalls::new(&communicator, 5);
        let (mut versions, mut meetings) = (Vec::new(), 0);
        for boundary in 0..BOUNDARIES {
            for _ in 0..8 {
                let mut data = [(communicator.rank() + boundary) as i64; 16];
                calls.all_reduce(&mut data, Reduction::Sum, &CALL, &CallOptions::default()).unwrap();
                assert_eq!(data, [2 * boundary as i64 + 1; 16]);
            }
            assert!(calls.made.len() <= Schedule::LENGTH_MAX, "{} calls are remembered", calls.made.len());
            versions.push(calls.boundary().unwrap());
            // What calls take that are not recorded.
            let state = calls.state_of(CollectiveKind::AllReduce, 128, &CALL);
            let place = calls.place(CollectiveKind::AllReduce, 128, &CALL);
            let stands = calls.policies.current().choice(state.context().key(), None);
            assert_eq!(calls.stands(place, &CallOptions::default()), stands, "boundary {boundary}");
            // After a meeting nothing is counted.
            meetings += usize::from(calls.kinds.called() == 0);
        }
        let state = calls.state_of(CollectiveKind::AllReduce, 128, &CALL);
        let stands = calls.policies.current().choice(state.context().key(), None);
        let choices = (0..64).map(|_| choose(&mut calls, &state, &CallOptions::default()).choice);
        let choices: Vec<Choice> = choices.skip(Schedule::LENGTH_MAX).collect();
        assert!(choices.iter().all(|choice| *choice == stands), "{choices:?}");
        (versions, meetings)
    });
    assert_eq!(all[0], all[1], "ranks were under different policies");
    assert!((1..BOUNDARIES / 4).contains(&all[0].1), "{} meetings", all[0].1);
}

/// What the network does, all ranks see alike; what is slow on one rank alone is its own affair.
#[test]
fn ranks_agree_how_much_others_are_in_the_way() {
    let all = on_tuned_ranks(2, |communicator, calls| {
        let context = calls.state_of(CollectiveKind::AllReduce, 1 << 20, &CALL).context();
        let late = if communicator.rank() == 1 { 3.0 } else { 1.0 };
        let mut levels = Vec::new();
        for times in [1.0, late, 3.0, 1.0] {
            for _ in 0..2 {
                let (choice, seconds) = (Choice::Default, 1e-3 * times);
                let call = |number| Made { context, number, choice, calls: 1, seconds, longest: 1.0 };
                calls.made.extend((0..16).map(call));
                calls.boundary().unwrap();
            }
            levels.push(calls.congestion());
        }
        levels
    });
    for levels in all {
        assert_eq!(levels, [Congestion::None, Congestion::None, Congestion::Heavy, Congestion::None]);
    }
}
