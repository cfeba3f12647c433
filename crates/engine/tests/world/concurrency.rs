//! Many operations at once: orders, urgency, credit.

use std::time::Duration;

use paceline_plan::CollectiveKind;

use crate::call::Call;
use crate::link::LinkModel;
use crate::random::{Random, schedules, with_seeds};
use crate::setup::Setup;
use crate::world::World;

const NUDGE: u64 = Duration::from_millis(2).as_nanos() as u64;

fn all_reduce(name: &str, world: usize, elements: usize, operation: u64) -> Call {
    let tile_elements = 500;
    Call { operation, tile_elements, ..Call::named(CollectiveKind::AllReduce, name, world, elements) }
}

#[test]
fn hundreds_of_small_operations_in_different_orders_with_hardly_any_credit() {
    with_seeds("hundreds_of_small_operations", schedules(3, 30), |seed| {
        let mut random = Random::new(seed);
        let n = 2 + random.below(4);
        let names = ["ring", "recursive-doubling", "direct", "binary-tree"];
        let calls: Vec<Call> =
            (0..200).map(|operation| all_reduce(random.pick(&names), n, 1 + random.below(60), operation)).collect();
        let eager_link_bytes = random.pick(&[0, 70, 150, 400]);
        let streams = random.pick(&[1, 2]);
        let calm = Setup::calm(n, seed);
        let link = LinkModel { streams, ..calm.link.clone() };
        let mut world = World::new(Setup { eager_link_bytes, link, ..calm });
        for rank in 0..n {
            let mut order: Vec<&Call> = calls.iter().collect();
            random.shuffle(&mut order);
            for call in order {
                let time = random.within(0..1_000_000);
                world.post_at(time, rank, call);
            }
        }
        world.run();
        calls.iter().for_each(|call| world.check(call));
        world.check_clean();
    });
}

#[test]
fn two_ranks_start_two_large_operations_in_different_orders() {
    with_seeds("two_ranks_start_two_large_operations", schedules(10, 100), |seed| {
        for setup in [Setup::calm(2, seed), Setup::calm(2, seed).with_references(300, true)] {
            let (x, y) = (all_reduce("ring", 2, 50_000, 1), all_reduce("direct", 2, 50_000, 2));
            let second = 1_000_000_000;
            let mut world = World::new(setup);
            for (time, rank, call) in [(0, 0, &x), (0, 1, &y), (second, 0, &y), (second, 1, &x)] {
                world.post_at(time, rank, call);
            }
            world.run();
            for call in [&x, &y] {
                world.check(call);
                // 200 kB at a byte per nanosecond; the other operation takes its half of the links.
                assert!((0..2).all(|rank| world.ended(rank, call).at < second + 5_000_000));
            }
            world.check_clean();
        }
    });
}

#[test]
fn a_late_urgent_operation_overtakes_a_long_one_in_the_middle_of_its_messages() {
    let whole = 400_000;
    let long = Call { tile_elements: whole, priority: 5, ..all_reduce("ring", 2, whole, 1) };
    let urgent = Call { priority: 0, ..all_reduce("recursive-doubling", 2, 100, 2) };
    let mut world = World::new(Setup::calm(2, 1));
    world.post(&long);
    let start = 300_000;
    (0..2).for_each(|rank| world.post_at(start, rank, &urgent));
    world.run();
    world.check(&long);
    world.check(&urgent);
    for rank in 0..2 {
        let took = world.ended(rank, &urgent).at - start;
        // A latency, what the link has accepted (8 kB), and one piece of work; one message of the long one takes 800 µs.
        assert!(took < 30_000, "the urgent operation took {took} ns");
        assert!(world.ended(rank, &long).at > 1_000_000);
    }
}

#[test]
fn an_urgent_operation_waits_for_no_local_work_but_what_is_under_way() {
    let long =
        Call { tile_elements: 100_000, priority: 5, ..Call::named(CollectiveKind::AllGather, "direct", 1, 100_000) };
    let urgent = Call { operation: 2, priority: 0, ..Call::named(CollectiveKind::AllReduce, "direct", 1, 10) };
    let mut world = World::new(Setup { work_slots: 1, ..Setup::calm(1, 1) });
    world.post(&long);
    world.post_at(1000, 0, &urgent);
    world.run();
    // A piece of 2 kB takes 200 ns at most; the long copy is 196 of them.
    assert!(world.ended(0, &urgent).at <= 1000 + 2 * 200 + 200);
    assert!(world.ended(0, &long).at > 15_000);
}

#[test]
fn an_eager_message_without_credit_waits_no_longer_than_a_nudge() {
    let mut world = World::new(Setup { eager_link_bytes: 0, ..Setup::calm(2, 1) });
    let call = all_reduce("recursive-doubling", 2, 10, 1);
    world.post(&call);
    world.run();
    world.check(&call);
    let took = world.ended(0, &call).at;
    assert!(NUDGE < took && took < NUDGE + 100_000, "{took} ns");
}

#[test]
fn a_small_operation_that_sends_much_over_one_link_does_not_wait_for_a_nudge() {
    // A ring sends nearly twice its bytes to one neighbour: more than an operation may send eagerly, if it were large.
    let elements = 250;
    let setup = Setup { eager_link_bytes: 50_000, ..Setup::calm(4, 1) };
    assert!(elements * 4 <= setup.eager_operation_bytes && elements * 4 * 6 / 4 > setup.eager_operation_bytes);
    let mut world = World::new(setup);
    let call = all_reduce("ring", 4, elements, 1);
    world.post(&call);
    world.run();
    world.check(&call);
    assert!(world.ended(0, &call).at < NUDGE);
}

#[test]
fn short_messages_of_a_large_operation_do_not_wait_for_nudges_on_links_with_references() {
    let mut world = World::new(Setup::calm(4, 1).with_references(1000, true));
    let call = Call { tile_elements: 400, window: 1, ..all_reduce("ring", 4, 20_000, 1) };
    world.post(&call);
    world.run();
    world.check(&call);
    // 50 tiles of 6 rounds of 100 elements at about 12 µs; with a nudge each it would be 600 ms.
    assert!(world.ended(0, &call).at < 10_000_000, "{} ns", world.ended(0, &call).at);
}

#[test]
fn nudges_that_come_too_late_leave_nothing_behind() {
    // Latency beyond the nudge: the root has long finished when the nudges of its receivers arrive.
    let calm = Setup::calm(3, 1);
    let link = LinkModel { latency: 5_000_000..5_000_001, ..calm.link.clone() };
    let mut world = World::new(Setup { link, ..calm });
    let calls: Vec<Call> = (0..100)
        .map(|operation| Call { operation, ..Call::named(CollectiveKind::Broadcast, "binomial", 3, 4) })
        .collect();
    for (index, call) in calls.iter().enumerate() {
        (0..3).for_each(|rank| world.post_at(index as u64 * 100_000, rank, call));
    }
    world.run();
    calls.iter().for_each(|call| world.check(call));
    assert!(world.ended(0, &calls[99]).at < 20_000_000);
    world.check_clean();
}

#[test]
fn a_rank_far_ahead_is_held_back_by_credit_and_loses_nothing() {
    with_seeds("a_rank_far_ahead_is_held_back", schedules(5, 50), |seed| {
        let n = 3;
        let calls: Vec<Call> = (0..300)
            .map(|operation| Call { operation, ..Call::named(CollectiveKind::Broadcast, "pipelined", n, 20) })
            .collect();
        let mut world = World::new(Setup { eager_link_bytes: 1000, ..Setup::calm(n, seed) });
        for call in &calls {
            world.post_at(0, 0, call);
            world.post_at(700_000_000, 1, call);
            world.post_at(50_000_000, 2, call);
        }
        world.run();
        calls.iter().for_each(|call| world.check(call));
        world.check_clean();
    });
}
