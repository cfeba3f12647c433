//! Peers that say nothing any more, and operations that do not move.

use paceline_engine::{Failure, Waiting};
use paceline_plan::CollectiveKind;

use crate::call::Call;
use crate::link::LinkModel;
use crate::setup::Setup;
use crate::world::{Event, World};

const SECOND: u64 = 1_000_000_000;

/// Signs of life every second, two may be missed; reports after ten.
fn watched(world: usize) -> World {
    World::new(Setup { heartbeat: SECOND, stall_report: 10 * SECOND, ..Setup::calm(world, 3) })
}

/// Lets every rank see to its links.
fn wake(world: &mut World) {
    (0..world.nodes.len()).for_each(|rank| world.at(0, Event::Tick { rank }));
}

fn all_reduce(world: usize) -> Call {
    Call::named(CollectiveKind::AllReduce, "ring", world, 100)
}

#[test]
fn idle_links_stay_alive_at_the_price_of_one_frame_a_second() {
    let mut world = watched(3);
    wake(&mut world);
    world.run_until(1000 * SECOND);
    assert!(world.nodes.iter().all(|node| node.engine.failure().is_none()));
    // Each rank looks four times a second; each of the six directions carries a frame a second in three events.
    let per_second = world.handled / 1000;
    assert!((12..=40).contains(&per_second), "{per_second} events a second");
}

#[test]
fn a_frozen_rank_is_lost_within_three_seconds_also_when_nothing_is_pending() {
    for pending in [false, true] {
        let mut world = watched(4);
        wake(&mut world);
        let at = 7 * SECOND;
        world.at(at, Event::Freeze { rank: 2, until: u64::MAX });
        let call = all_reduce(4);
        if pending {
            [0, 1, 3].iter().for_each(|&rank| world.post_at(at + 1000, rank, &call));
        }
        world.run_until(at + SECOND);
        assert!(world.nodes.iter().all(|node| node.engine.failure().is_none()), "one second is no loss");
        world.run_until(at + 3 * SECOND);
        for rank in [0, 1, 3] {
            let failure = world.nodes[rank].engine.failure().unwrap_or_else(|| panic!("rank {rank} has not noticed"));
            let text = failure.to_string();
            assert!(
                text.contains("rank 2 is lost: it has given no sign of life for 2.") && text.contains(" s"),
                "{text}"
            );
        }
    }
}

#[test]
fn a_rank_that_was_not_scheduled_gives_the_others_time_and_is_given_up_by_them() {
    let mut world = watched(2);
    wake(&mut world);
    // Both stop, as on a machine that is suspended: nobody takes the other for lost.
    for rank in 0..2 {
        world.at(5 * SECOND, Event::Freeze { rank, until: 100 * SECOND });
    }
    world.run_until(200 * SECOND);
    assert!(world.nodes.iter().all(|node| node.engine.failure().is_none()));
    // One stops: it does not blame the other when it comes back, but learns that it was given up.
    world.at(200 * SECOND, Event::Freeze { rank: 1, until: 220 * SECOND });
    world.run_until(230 * SECOND);
    assert!(matches!(world.nodes[0].engine.failure(), Some(Failure::PeerLost { rank: 1, .. })));
    let told = world.nodes[1].engine.failure();
    assert!(matches!(told, Some(Failure::PeerLost { rank: 1, noticed_by: Some(0), .. })), "{told:?}");
}

#[test]
fn a_busy_peer_whose_links_speak_is_not_lost() {
    // It starts its part after two minutes; until then only its signs of life are heard.
    let mut world = watched(3);
    wake(&mut world);
    let call = Call { timeout: 300 * SECOND, ..all_reduce(3) };
    world.post_at(0, 0, &call);
    world.post_at(0, 1, &call);
    world.post_at(120 * SECOND, 2, &call);
    world.run_until(130 * SECOND);
    world.check(&call);
    world.check_clean();
}

#[test]
fn a_long_frame_on_a_slow_link_is_a_sign_of_life_all_the_way() {
    // 12 kB in pieces of ten bytes, each of which takes 50 ms on average.
    let calm = Setup::calm(2, 3);
    let mut world = World::new(Setup {
        heartbeat: SECOND,
        link: LinkModel { cut: 10..11, stall_once_in: 2, stall: 0..SECOND / 10, ..calm.link.clone() },
        frame_bytes: 1 << 20,
        eager_operation_bytes: 1 << 20,
        eager_link_bytes: 1 << 20,
        ..calm
    });
    wake(&mut world);
    let call = Call { timeout: 300 * SECOND, ..Call::named(CollectiveKind::SendReceive, "point-to-point", 2, 3000) };
    world.post_at(SECOND, 0, &call);
    world.post_at(SECOND, 1, &call);
    world.run_until(100 * SECOND);
    let at = world.ended(1, &call).at;
    assert!(at > 10 * SECOND, "the frame took {at} ns: too little to show anything");
    world.check(&call);
}

#[test]
fn ranks_with_different_intervals_agree() {
    // Rank 1 speaks every five seconds only, and says so.
    let mut world = watched(2);
    let config = Setup { heartbeat: 5 * SECOND, ..world.setup.clone() }.config(1);
    world.nodes[1].engine = paceline_engine::Engine::new(config);
    wake(&mut world);
    world.run_until(100 * SECOND);
    assert!(world.nodes.iter().all(|node| node.engine.failure().is_none()));
}

#[test]
fn an_operation_that_does_not_move_is_reported_at_growing_distances_by_everyone() {
    let n = 6;
    let mut world = watched(n);
    wake(&mut world);
    let call = Call { timeout: 200 * SECOND, ..all_reduce(n) };
    (0..n).filter(|&rank| rank != 4).for_each(|rank| world.post_at(SECOND, rank, &call));
    world.run_until(100 * SECOND);
    for rank in (0..n).filter(|&rank| rank != 4) {
        let reports = &world.nodes[rank].stalls;
        let seconds: Vec<u64> = reports.iter().map(|(at, _)| (at + SECOND / 4) / SECOND).collect();
        assert_eq!(seconds, [11, 21, 41, 81], "rank {rank}");
        for (_, stall) in reports {
            // Those who wait for it directly know; the others are told by those for whom they wait.
            assert!(stall.waiting.contains(&Waiting { rank: 4, started: false }), "rank {rank}: {stall}");
            let others = stall.waiting.iter().filter(|waiting| waiting.rank != 4);
            assert!(others.clone().all(|waiting| waiting.started), "rank {rank}: {stall}");
            assert!(stall.to_string().contains("rank 4 has not started it"), "{stall}");
        }
    }
    // It comes, and nothing is reported any more.
    world.post_at(100 * SECOND, 4, &call);
    world.run_until(150 * SECOND);
    world.check(&call);
    assert!(world.nodes.iter().all(|node| node.stalls.len() <= 4));
}

#[test]
fn a_stall_that_ends_and_begins_again_is_reported_anew() {
    let mut world = watched(2);
    wake(&mut world);
    for operation in 0..3 {
        let call = Call { operation, timeout: 200 * SECOND, ..all_reduce(2) };
        let start = operation * 20 * SECOND;
        world.post_at(start, 0, &call);
        world.post_at(start + 12 * SECOND, 1, &call);
    }
    world.run_until(100 * SECOND);
    let operations: Vec<u64> = world.nodes[0].stalls.iter().map(|(_, stall)| stall.key.operation).collect();
    assert_eq!(operations, [0, 1, 2]);
    assert!(world.nodes[1].stalls.is_empty());
}
