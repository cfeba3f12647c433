//! Random schedules that mix everything: operations of all kinds, groups, orders, stalls, references, losses.

use crate::call::{Call, Variety};
use crate::random::{Random, schedules, with_seeds};
use crate::setup::Setup;
use crate::world::{Event, World};

const VARIETY: Variety = Variety { elements: &[0, 1, 3, 50, 400, 1500], tiles_max: 30, windows: &[1, 2, 3, 4, 9] };

#[test]
fn random_schedules() {
    with_seeds("random_schedules", schedules(250, 2500), |seed| {
        let mut random = Random::new(seed);
        let n = 1 + random.below(6);
        let calls: Vec<Call> =
            (0..1 + random.below(12)).map(|op| Call::random(&mut random, n, op as u64, &VARIETY)).collect();
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
