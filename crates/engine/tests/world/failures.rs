//! What goes wrong ends for everyone, soon, and says why.

use paceline_engine::{Failure, Waiting};
use paceline_plan::{CollectiveKind, DataType};

use crate::call::Call;
use crate::random::{Random, schedules, with_seeds};
use crate::setup::Setup;
use crate::world::{Event, World};

const SECOND: u64 = 1_000_000_000;

fn all_reduce(world: usize, elements: usize) -> Call {
    Call::named(CollectiveKind::AllReduce, "ring", world, elements)
}

fn failure<'a>(world: &'a World, rank: usize, call: &Call) -> &'a Failure {
    match &world.ended(rank, call).outcome {
        Err(failure) => failure,
        Ok(()) => panic!("rank {rank} succeeded"),
    }
}

#[test]
fn different_calls_under_one_key_are_told_to_both_ranks() {
    let ours = all_reduce(2, 100);
    let different = [
        Call { data_type: DataType::F32, ..ours.clone() },
        Call { tile_elements: 50, ..ours.clone() },
        all_reduce(2, 101),
        Call::named(CollectiveKind::AllReduce, "direct", 2, 100),
        Call::named(CollectiveKind::Barrier, "dissemination", 2, 0),
        all_reduce(2, 100_000),
    ];
    for theirs in different {
        // At the same time; and with one rank so early that its frames wait in the other's pool.
        for delay in [0, 1_000_000] {
            let mut world = World::new(Setup::calm(2, 3));
            world.post_at(0, 0, &ours);
            world.post_at(delay, 1, &theirs);
            world.run();
            for (rank, call, other) in [(0, &ours, &theirs), (1, &theirs, &ours)] {
                let expected = Failure::Mismatch {
                    rank: 1 - rank,
                    key: ours.key(),
                    ours: call.signature(),
                    theirs: other.signature(),
                };
                assert_eq!(*failure(&world, rank, call), expected, "rank {rank}, {delay} ns later");
                assert!(world.now < SECOND);
            }
        }
    }
}

#[test]
fn a_lost_peer_ends_everything_everywhere() {
    with_seeds("a_lost_peer_ends_everything_everywhere", schedules(60, 600), |seed| {
        let mut random = Random::new(seed);
        let n = 2 + random.below(4);
        let mut world = World::new(Setup::wild(n, seed).with_pieces_of_at_least(100));
        let calls: Vec<Call> = (0..3)
            .map(|operation| Call { operation, tile_elements: 100, ..all_reduce(n, random.pick(&[4, 2000])) })
            .collect();
        for call in &calls {
            (0..n).for_each(|rank| world.post_at(random.within(0..100_000), rank, call));
        }
        let victim = random.below(n);
        world.at(random.within(0..500_000), Event::Kill { rank: victim });
        world.run();
        for rank in (0..n).filter(|&rank| rank != victim) {
            for call in &calls {
                match &world.ended(rank, call).outcome {
                    Ok(()) => assert!(world.ended(rank, call).output == call.expected(rank), "a wrong result"),
                    // Also where another survivor was the first to notice.
                    Err(Failure::PeerLost { rank: lost, .. }) => assert_eq!(*lost, victim, "rank {rank}"),
                    Err(other) => panic!("rank {rank}: {other}"),
                }
            }
            assert_eq!(world.nodes[rank].engine.pending(), 0);
        }
        assert!(world.now < 10 * SECOND, "survivors end long before the deadline of a minute: {} ns", world.now);
    });
}

#[test]
fn the_deadline_names_who_is_waited_for_and_who_has_not_started() {
    // Rank 3 never starts. Rank 0 waits for 3 directly in a ring; 1 waits for 0, which has started.
    let call = Call { timeout: SECOND, ..all_reduce(4, 100) };
    let mut world = World::new(Setup { eager_operation_bytes: 0, ..Setup::calm(4, 3) });
    for rank in 0..3 {
        // Rank 0's deadline passes first.
        let timeout = SECOND + rank as u64 * 1_000_000;
        world.post_at(0, rank, &Call { timeout, ..call.clone() });
    }
    world.run();
    let Failure::Deadline { key, waiting } = failure(&world, 0, &call) else { panic!("no deadline") };
    assert_eq!(*key, call.key());
    assert!(waiting.contains(&Waiting { rank: 3, started: false }), "{waiting:?}");
    assert!(waiting.iter().all(|waiting| waiting.started == (waiting.rank != 3)), "{waiting:?}");
    let at = world.ended(0, &call).at;
    assert!((SECOND..SECOND + 2_000_000).contains(&at), "the deadline was a second, it ended after {at} ns");
    assert!(matches!(failure(&world, 1, &call), Failure::Aborted { rank: 0, .. }));
}

#[test]
fn a_peer_that_has_started_but_can_send_nothing_is_known_to_have_started() {
    // A chain from 2 over 0 to 1: rank 1 waits for 0, which has nothing for it yet, because 2 never starts.
    let call = Call { timeout: SECOND, ..Call::rooted(find(CollectiveKind::Broadcast, "pipelined"), 3, 100, 2) };
    let mut world = World::new(Setup::calm(3, 3));
    world.post_at(0, 1, &call);
    world.post_at(300_000_000, 0, &Call { timeout: 2 * SECOND, ..call.clone() });
    world.run();
    let Failure::Deadline { waiting, .. } = failure(&world, 1, &call) else { panic!("no deadline") };
    // And it has said for whom it waits itself.
    assert_eq!(*waiting, [Waiting { rank: 0, started: true }, Waiting { rank: 2, started: false }]);
}

fn find(kind: CollectiveKind, name: &str) -> &'static dyn paceline_collective::Algorithm {
    paceline_collective::registry::find(kind, name).expect("a known name")
}

#[test]
fn the_clock_is_asked_for_no_more_often_than_needed() {
    let call = Call { timeout: 10 * SECOND, ..all_reduce(2, 100) };
    let mut world = World::new(Setup::calm(2, 3));
    world.post_at(0, 0, &call);
    world.run();
    assert!(matches!(failure(&world, 0, &call), Failure::Deadline { .. }));
    // Nudges 2 ms, then 64 ms, 128 ms, … up to 1 s apart, each with a frame or two, and the look at the deadline.
    assert!(world.handled < 300, "{} events in ten idle seconds", world.handled);
}

#[test]
fn a_goodbye_of_a_peer_that_has_finished_ends_nothing() {
    with_seeds("a_goodbye_of_a_peer_that_has_finished", schedules(100, 1000), |seed| {
        let mut random = Random::new(seed);
        let n = 2 + random.below(4);
        let algorithms = [
            find(CollectiveKind::Broadcast, "binomial"),
            find(CollectiveKind::Broadcast, "pipelined"),
            find(CollectiveKind::AllReduce, "ring"),
            find(CollectiveKind::Gather, "binomial"),
            find(CollectiveKind::Reduce, "binomial"),
            find(CollectiveKind::Barrier, "dissemination"),
        ];
        let elements = random.pick(&[0, 5, 30]);
        let call = Call::new(random.pick(&algorithms), n, elements);
        let setup = Setup { eager_link_bytes: 50_000, eager_operation_bytes: 50_000, ..Setup::wild(n, seed) };
        let mut world = World::new(setup);
        let mut left = vec![false; n];
        for rank in 0..n {
            // Some start so late that their peers' part has long been done.
            world.post_at(random.pick(&[0, 1000, 30_000_000]), rank, &call);
        }
        // Whoever has finished leaves at once.
        for step in 1..2000 {
            world.run_until(step * 50_000);
            for (rank, left) in left.iter_mut().enumerate() {
                if !*left && world.nodes[rank].ended.contains_key(&call.operation) {
                    *left = true;
                    world.at(world.now, Event::Leave { rank });
                }
            }
        }
        world.run();
        world.check(&call);
        assert!(left.iter().all(|&left| left));
    });
}

#[test]
fn a_goodbye_of_a_peer_that_is_needed_ends_everything() {
    let call = all_reduce(3, 100);
    // It leaves while the others wait for it.
    let mut world = World::new(Setup::calm(3, 3));
    world.post_at(0, 0, &call);
    world.post_at(0, 1, &call);
    world.at(5_000_000, Event::Leave { rank: 2 });
    world.run();
    for rank in 0..2 {
        assert!(matches!(failure(&world, rank, &call), Failure::PeerLeft { rank: 2 } | Failure::Aborted { .. }));
    }
    assert!(world.now < SECOND);
    // It has left before they start.
    let mut world = World::new(Setup::calm(3, 3));
    world.at(0, Event::Leave { rank: 2 });
    world.post_at(5_000_000, 0, &call);
    world.run();
    assert_eq!(*failure(&world, 0, &call), Failure::PeerLeft { rank: 2 });
    // Those who do without it go on.
    let pair = all_reduce(2, 100).of_group(&[1, 0]);
    let mut world = World::new(Setup::calm(3, 3));
    world.at(0, Event::Leave { rank: 2 });
    (0..2).for_each(|rank| world.post_at(5_000_000, rank, &pair));
    world.run();
    world.check(&pair);
}

#[test]
fn an_abort_reaches_everyone_in_the_words_of_the_first() {
    let call = all_reduce(4, 100_000);
    let mut world = World::new(Setup::calm(4, 3));
    world.post(&call);
    world.at(50_000, Event::Cancel { rank: 2 });
    world.run();
    for rank in 0..4 {
        let reason = match failure(&world, rank, &call) {
            Failure::Cancelled { reason } | Failure::Aborted { reason, .. } => reason.clone(),
            // Half a frame was out, so the words could not follow.
            Failure::PeerLost { .. } => continue,
            other => panic!("rank {rank}: {other}"),
        };
        assert!(reason.contains("the test says so") || reason.contains("connection was closed"), "{reason}");
    }
    let late = Call { operation: 9, ..call };
    world.post(&late);
    world.run();
    (0..4).for_each(|rank| assert!(world.ended(rank, &late).outcome.is_err()));
}

#[test]
fn a_key_in_use_is_refused() {
    let call = all_reduce(2, 100);
    let mut world = World::new(Setup::calm(2, 3));
    world.post_at(0, 0, &call);
    world.run_until(1000);
    let request = call.request(0, world.time());
    let now = world.time();
    let refused = world.nodes[0].engine.post(request, now);
    assert!(matches!(refused, Err(Failure::Cancelled { .. })));
    world.post_at(2000, 1, &call);
    world.run();
    world.check(&call);
}
