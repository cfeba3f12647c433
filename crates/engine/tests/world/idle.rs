//! What operations cost those who have not started them, because they compute.

use paceline_collective::registry::find;
use paceline_plan::CollectiveKind;

use crate::call::Call;
use crate::setup::Setup;
use crate::world::World;

const SECOND: u64 = 1_000_000_000;
const WORKERS: usize = 4;
const PARTITIONS: u64 = 400;

/// A shard opens all its partitions at once, and its workers start theirs after half a second of computation. Whatever it
/// says to them meanwhile wakes a thread on a machine that computes.
#[test]
fn a_shard_with_many_partitions_leaves_workers_that_compute_in_peace() {
    let push_pull = find(CollectiveKind::PushPull, "direct").expect("a known name");
    // Four tiles each: small ones come eagerly, large ones wait for grants.
    for (what, elements) in [("small", 200), ("large", 4000)] {
        let mut world = World::new(Setup { heartbeat: SECOND, ..Setup::calm(WORKERS + 1, 5) });
        let calls: Vec<Call> = (0..PARTITIONS)
            .map(|partition| Call {
                operation: 1 + partition,
                tile_elements: elements / 4,
                window: 4,
                ..Call::rooted(push_pull, WORKERS + 1, elements, WORKERS)
            })
            .collect();
        calls.iter().for_each(|call| world.post_at(1, WORKERS, call));
        let mut frames = [0; WORKERS];
        let mut woken = [0; WORKERS];
        for millisecond in 1..=500 {
            world.run_until(millisecond * SECOND / 1000);
            for worker in 0..WORKERS {
                let heard = world.link(WORKERS, worker).frames;
                woken[worker] += u32::from(heard > frames[worker]);
                frames[worker] = heard;
            }
        }
        println!("{what}: frames {frames:?}, woken in {woken:?} of 500 ms");
        // The first worker, whose turn it is, is granted its tiles once. Repetitions are few, as nobody reads them.
        assert!(frames[0] <= 4 * PARTITIONS + 4 * 64, "{what}: {frames:?}");
        assert!(frames[1..].iter().all(|&frames| frames <= 4 * 64), "{what}: {frames:?}");
        assert!(woken.iter().all(|&woken| woken <= 12), "{what}: {woken:?}");
        for (worker, call) in (0..WORKERS).flat_map(|worker| calls.iter().map(move |call| (worker, call))) {
            world.post_at(SECOND / 2, worker, call);
        }
        world.run_until(10 * SECOND);
        calls.iter().for_each(|call| world.check(call));
    }
}
