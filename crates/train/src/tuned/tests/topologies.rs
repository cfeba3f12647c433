//! Ranks that are told how their hosts are wired: what follows that is a choice like any other, and only there.

use paceline_plan::{LinkCost, LinkCosts};
use paceline_tune::{Context, TopologyClass, Transport};

use super::*;
use crate::on_ranks::on_hosts;

const HOSTS: usize = 4;

/// As [`on_tuned_ranks`], on hosts with one rank each, wired like this.
fn on_told_ranks<R: Send>(topology: &str, rank: impl Fn(&Communicator, &mut TunedCalls<'_>) -> R + Sync) -> Vec<R> {
    on_hosts(HOSTS, topology, |communicator| with_calls(&communicator, &rank))
}

/// An all-reduce of so many bytes, as `call` makes it, is right on this rank; the algorithm that ran.
fn adds_up(
    communicator: &Communicator,
    bytes: usize,
    call: impl FnOnce(&mut [i64]) -> Result<(), CommError>,
) -> &'static str {
    let own = communicator.rank() as i64 + 1;
    let mut data: Vec<i64> = (0..(bytes / size_of::<i64>()) as i64).map(|element| element * own).collect();
    communicator.record_calls(1);
    call(&mut data).unwrap();
    let ranks: i64 = (1..=HOSTS as i64).sum();
    assert!(data.iter().zip(0..).all(|(sum, element)| *sum == element * ranks));
    communicator.latest_records(1)[0].algorithm
}

/// With all its knobs, one after the other, and as a policy says.
#[test]
fn what_follows_a_network_is_played_in_it_and_adds_up_right() {
    const BYTES: usize = 300_000;
    let (torus, bcube) = (TopologyClass::Torus, TopologyClass::Bcube);
    for (topology, name, class) in [("torus:2x2", "2d-torus", torus), ("bcube:2:2", "bcube", bcube)] {
        let played = on_told_ranks(topology, |communicator, calls| {
            let plain = CallOptions::default();
            let state = calls.state_of(CollectiveKind::AllReduce, BYTES, &CALL);
            assert_eq!(state.topology, class);
            let arms = calls.model().situation(&state).unwrap().arms;
            let actions = arms.iter().map(|arm| arm.action);
            let actions: Vec<Action> = actions.filter(|action| action.family.algorithm == number_of(name)).collect();
            let play = |action: &Action| {
                let choice = Choice::Play(*action);
                adds_up(communicator, BYTES, |data| calls.all_reduce_as(choice, data, Reduction::Sum, &plain))
            };
            let mut played: Vec<&'static str> = actions.iter().map(play).collect();
            assert!(played.len() > 3, "{played:?}");
            let policy = Policy::new(1, [(state.context(), Schedule::always(Choice::Play(actions[0])))]);
            assert_eq!(calls.rules_elsewhere(&policy), 0);
            assert!(calls.follow(Some(&policy)).unwrap());
            let followed = |data: &mut [i64]| calls.all_reduce(data, Reduction::Sum, &CALL, &plain);
            played.push(adds_up(communicator, BYTES, followed));
            played
        });
        assert!(played.iter().flatten().all(|algorithm| *algorithm == name), "{played:?}");
    }
}

/// Neither a rule for a torus says anything on flat hosts, nor one that would have them run what follows a torus.
#[test]
fn who_is_told_nothing_leaves_such_rules_alone() {
    const BYTES: usize = 8000;
    let played = on_told_ranks("flat", |communicator, calls| {
        let context = calls.state_of(CollectiveKind::AllReduce, BYTES, &CALL).context();
        assert_eq!(context.topology, TopologyClass::Flat);
        let family = Family { algorithm: number_of("2d-torus"), protocol: WireProtocol::Simple };
        let action = Action { family, channels: 0, threads: 0, chunk_log2: 16 };
        let contexts = [context, Context { topology: TopologyClass::Torus, ..context }];
        let policy = Policy::new(1, contexts.map(|context| (context, Schedule::always(Choice::Play(action)))));
        assert_eq!(calls.rules_elsewhere(&policy), 2);
        assert!(calls.follow(Some(&policy)).unwrap());
        let options = CallOptions::default();
        adds_up(communicator, BYTES, |data| calls.all_reduce(data, Reduction::Sum, &CALL, &options))
    });
    assert!(played.iter().all(|algorithm| *algorithm != "2d-torus"), "{played:?}");
}

/// Sums stay right while choices change, on all ranks at the same time.
#[test]
fn ranks_in_a_torus_change_together() {
    let all = on_told_ranks("torus:2x2", |communicator, calls| {
        let options = CallOptions::default();
        until_tried(calls, |calls, _| {
            for bytes in [64, 1 << 14, 1 << 18] {
                adds_up(communicator, bytes, |data| calls.all_reduce(data, Reduction::Sum, &CALL, &options));
            }
        })
    });
    changed_together(&all);
}

/// If it takes less than all else, a tuner that learns finds that out, and it stands on all ranks.
#[test]
fn what_follows_a_network_is_tried_like_any_other() {
    const BYTES: usize = 1 << 20;
    let all = on_told_ranks("torus:2x2", |communicator, calls| {
        // Links of which the model expects the same on a busy machine.
        let link = LinkCost { alpha: 2e-5, overhead: 2e-6, beta: 1e-9, gamma: 1e-10 };
        let (ranks, links) = (communicator.topology(), links_of(communicator));
        calls.model = OwnModel::measured(&LinkCosts::uniform(link), ranks, Transport::Tcp10g, links);
        let state = calls.state_of(CollectiveKind::AllReduce, BYTES, &CALL);
        let follows = |choice: Choice| match choice {
            Choice::Play(action) => action.family.algorithm == number_of("2d-torus"),
            Choice::Default => false,
        };
        let took = |choice: Choice| Duration::from_micros(if follows(choice) { 400 } else { 1000 });
        let stands = |calls: &TunedCalls<'_>| calls.standing().choice(state.context().key(), 0);
        let mut boundaries = 0;
        while !follows(stands(calls)) {
            assert!(boundaries < 400, "it is never found");
            (0..16).for_each(|_| call_of(calls, &state, took));
            calls.boundary().unwrap();
            boundaries += 1;
        }
        let (choice, options) = (stands(calls), CallOptions::default());
        let ran = adds_up(communicator, BYTES, |data| calls.all_reduce_as(choice, data, Reduction::Sum, &options));
        (boundaries, choice, ran)
    });
    assert!(all.iter().all(|rank| *rank == all[0]) && all[0].2 == "2d-torus", "{all:?}");
}

/// Each time they meet; sums stay right meanwhile. Where they need not yet, once.
#[test]
fn hosts_compare_their_clocks_again() {
    for (old_after, times) in [(Some(Duration::ZERO), 20), (Some(Duration::from_secs(3600)), 1)] {
        let compared = on_told_ranks("flat", |communicator, calls| {
            calls.clock.old_after = old_after;
            let moments = (0..20).map(|_| {
                let options = CallOptions::default();
                adds_up(communicator, 1 << 10, |data| calls.all_reduce(data, Reduction::Sum, &CALL, &options));
                calls.boundary().unwrap();
                calls.clock.compared_at()
            });
            moments.collect::<std::collections::BTreeSet<Instant>>().len()
        });
        assert_eq!(compared, [times; HOSTS], "{old_after:?}");
    }
}
