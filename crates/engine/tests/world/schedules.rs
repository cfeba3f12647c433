//! Random schedules that mix everything: operations of all kinds, groups, orders, stalls, references, losses.

use paceline_plan::CollectiveKind;

use crate::call::{Call, algorithms};
use crate::random::{Random, schedules, with_seeds};
use crate::setup::Setup;
use crate::world::{Event, World};

#[test]
fn random_schedules() {
    with_seeds("random_schedules", schedules(250, 2500), |seed| {
        let mut random = Random::new(seed);
        let n = 1 + random.below(6);
        let calls: Vec<Call> = (0..1 + random.below(12)).map(|op| random_call(&mut random, n, op as u64)).collect();
        let setup = Setup::wild(n, random.next()).with_pieces_of_at_least(64);
        let mut world = World::new(setup);
        let spread = random.pick(&[1, 100_000, 20_000_000]);
        for call in &calls {
            (0..call.world()).for_each(|rank| world.post_at(random.within(0..spread), rank, call));
        }
        let victim = (n > 1 && random.once_in(5)).then(|| random.below(n));
        if let Some(rank) = victim {
            let time = random.within(0..3_000_000);
            world.at(time, if random.once_in(3) { Event::Cancel { rank } } else { Event::Kill { rank } });
        }
        world.run();
        if victim.is_none() {
            calls.iter().for_each(|call| world.check(call));
            world.check_clean();
            return;
        }
        for call in &calls {
            for (group_rank, &rank) in call.group.iter().enumerate().filter(|&(_, &rank)| !world.nodes[rank].dead) {
                let ended = world.ended(rank, call);
                let right = !call.has_result(group_rank) || ended.output == call.expected(group_rank);
                assert!(ended.outcome.is_err() || right, "{} is wrong on rank {rank}", call.key());
            }
        }
    });
}

fn random_call(random: &mut Random, n: usize, operation: u64) -> Call {
    let mut group: Vec<usize> = (0..n).collect();
    if random.once_in(3) {
        random.shuffle(&mut group);
        group.truncate(1 + random.below(n));
    }
    let size = group.len();
    let algorithms: Vec<_> = algorithms(size).collect();
    let algorithm = random.pick(&algorithms);
    let rooted = matches!(
        algorithm.kind(),
        CollectiveKind::Broadcast | CollectiveKind::Reduce | CollectiveKind::Gather | CollectiveKind::Scatter
    );
    let elements = random.pick(&[0, 1, 3, 50, 400, 1500]);
    let call = Call::rooted(algorithm, size, elements, if rooted { random.below(size) } else { 0 });
    Call {
        operation,
        tile_elements: random.pick(&[1, 17, 100, 1000]).max(elements / 30),
        window: random.pick(&[1, 2, 3, 4, 9]),
        in_place: random.once_in(2),
        shared_memory: random.once_in(2),
        priority: random.below(3) as u32,
        seed: random.next(),
        ..call.of_group(&group)
    }
}
