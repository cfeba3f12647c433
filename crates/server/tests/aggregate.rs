//! Shards that add: every worker gets the sum from left to right, to the bit, whatever arrives first.

mod support;

use std::time::{Duration, Instant};

use paceline_comm::CallOptions;
use paceline_plan::Plan;
use paceline_server::{Assignment, AssignmentError, Mode, ParameterServer, Roles, ServeOptions, ServerError};
use support::{LINKS, aggregate, plan, world_with_shards};

const SEED: u64 = 0x5eed_0001;

#[test]
fn every_worker_gets_the_sum_in_rank_order_whoever_comes_first() {
    println!("seed {SEED:#x}");
    for links in LINKS {
        for (workers, shards) in [(1, 1), (2, 1), (3, 2), (2, 3), (5, 2)] {
            let roles = Roles::new(workers, shards).unwrap();
            let plan = plan(1, &[30_000, 1, 0, 777, 150_000], 20_000, shards);
            let operations = plan.partitions().count() as u64;
            let served = world_with_shards(links, roles, &ServeOptions::default(), move |world, roles| {
                let assignment = Assignment { plan: plan.clone(), iterations: 0..4, mode: Mode::Aggregate };
                let server = ParameterServer::connect(world, roles).unwrap();
                assert_eq!((server.workers().rank(), server.workers().world_size()), (world.rank(), workers));
                assert_eq!(server.shard(shards - 1).world_size(), workers + 1);
                server.assign(&assignment).unwrap();
                (0..4).for_each(|iteration| aggregate(&server, world, &assignment, iteration, SEED));
                server.stop().unwrap();
            });
            let served: Vec<_> = served.into_iter().map(|served| served.expect("it serves to the end")).collect();
            assert_eq!(served.len(), shards);
            let all = served.iter().map(|served| served.operations).sum::<u64>();
            assert_eq!(all, 4 * operations, "{links:?}, {workers} workers, {shards} shards");
        }
    }
}

#[test]
fn assignments_follow_each_other() {
    let roles = Roles::new(2, 2).unwrap();
    let served = world_with_shards(LINKS[1], roles, &ServeOptions::default(), |world, roles| {
        let server = ParameterServer::connect(world, roles).unwrap();
        let first = plan(1, &[1000, 5000], 700, 2);
        let second = plan(2, &[6000], 999, 2);
        // More of the same, another plan in between, and nothing at all.
        for (plan, iterations) in [(&first, 0..2), (&first, 2..5), (&second, 0..3), (&second, 3..3), (&first, 7..8)] {
            let assignment = Assignment { plan: plan.clone(), iterations: iterations.clone(), mode: Mode::Aggregate };
            server.assign(&assignment).unwrap();
            iterations.for_each(|iteration| aggregate(&server, world, &assignment, iteration, SEED));
        }
        server.stop().unwrap();
    });
    assert!(served.iter().all(|served| served.as_ref().unwrap().assignments == 5), "{served:?}");
}

/// From one shard of three to all of them, to two, and back to the first plan: those that are left out wait, and take
/// the next order as the others do.
#[test]
fn a_plan_may_leave_shards_out() {
    let roles = Roles::new(2, 3).unwrap();
    let plan_of = |version, shards| plan(version, &[1000, 0, 50_000], 7000, shards);
    let (one, all, two) = (plan_of(1, 1), plan_of(2, 3), plan_of(3, 2));
    let work = [(one.clone(), 0..2), (all, 0..2), (two, 0..3), (one, 2..4)];
    for links in LINKS {
        let given = work.clone();
        let served = world_with_shards(links, roles, &ServeOptions::default(), move |world, roles| {
            let server = ParameterServer::connect(world, roles).unwrap();
            for (plan, iterations) in given.clone() {
                let assignment = Assignment { plan, iterations: iterations.clone(), mode: Mode::Aggregate };
                server.assign(&assignment).unwrap();
                iterations.for_each(|iteration| aggregate(&server, world, &assignment, iteration, SEED));
            }
            server.stop().unwrap();
        });
        for (shard, served) in served.into_iter().enumerate() {
            let own = |plan: &Plan| plan.partitions().filter(|(_, part)| part.shard == Some(shard)).count() as u64;
            let expected: u64 = work.iter().map(|(plan, given)| own(plan) * (given.end - given.start)).sum();
            let served = served.expect("it serves to the end");
            assert_eq!((served.assignments, served.operations), (4, expected), "{links:?}, shard {shard}");
        }
    }
}

#[test]
fn threads_and_tiles_of_the_shards_change_no_bit() {
    // Tiles that are too short for a second thread, and tiles for three.
    for chunk_bytes in [16 << 10, 1 << 20] {
        let (roles, chunk_bytes, algorithm) = (Roles::new(3, 1).unwrap(), Some(chunk_bytes), Some("direct".to_owned()));
        let options = ServeOptions { reducing_threads: Some(3), chunk_bytes, algorithm, ..ServeOptions::default() };
        let served = world_with_shards(LINKS[1], roles, &options, move |world, roles| {
            let server = ParameterServer::connect(world, roles).unwrap();
            let plan = plan(1, &[400_000], 400_000, 1);
            let assignment = Assignment { plan, iterations: 0..2, mode: Mode::Aggregate };
            server.assign(&assignment).unwrap();
            for iteration in 0..2 {
                let rank = world.rank();
                let buffer = support::filled(world, 0..400_000, |element| support::gradient(rank, iteration, element));
                let options = CallOptions { chunk_bytes, ..CallOptions::default() };
                let options = assignment.options(iteration, 0, options);
                let found = server.start_push_pull(0, buffer, &options).unwrap().wait().unwrap();
                support::assert_bits(&found, 0..400_000, |element| support::sum(3, iteration, element), "in tiles");
            }
            assert!(chunk_bytes < Some(1 << 20) || has_reducing_threads(), "one thread has added everything");
            server.stop().unwrap();
        });
        served.into_iter().for_each(|served| assert_eq!(served.unwrap().operations, 2));
    }
}

/// Are there threads in this process that share combinations? They stay until their communicator goes, and have their names
/// once they have run.
fn has_reducing_threads() -> bool {
    let named = || {
        let threads = std::fs::read_dir("/proc/self/task").expect("the threads of this process").flatten();
        let mut names = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("comm")).ok());
        names.any(|name| name.trim() == "paceline-reduce")
    };
    let until = Instant::now() + Duration::from_secs(20);
    while !named() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
    }
    named()
}

#[test]
fn workers_that_disagree_about_the_work_are_told() {
    let roles = Roles::new(2, 1).unwrap();
    let served = world_with_shards(LINKS[0], roles, &ServeOptions::default(), |world, roles| {
        let server = ParameterServer::connect(world, roles).unwrap();
        let assignment =
            Assignment { plan: plan(1, &[100 + world.rank()], 100, 1), iterations: 0..1, mode: Mode::Aggregate };
        let error = server.assign(&assignment).unwrap_err().to_string();
        let told = "rank 0 has given out another one; let all workers make the same plan";
        assert!(error.contains("rank 1 on ") && error.contains(told), "{error}");
    });
    let error = served[0].as_ref().unwrap_err().to_string();
    assert!(error.contains("let all workers make the same plan"), "{error}");
}

#[test]
fn work_that_cannot_be_done_is_refused_before_anything_is_sent() {
    for (shards, wanted) in [(1, 2), (3, 4), (3, 0)] {
        let roles = Roles::new(1, shards).unwrap();
        let served = world_with_shards(LINKS[0], roles, &ServeOptions::default(), move |world, roles| {
            let server = ParameterServer::connect(world, roles).unwrap();
            let plan = Plan { shards: wanted, ..plan(1, &[10], 10, 1) };
            let assignment = Assignment { plan, iterations: 0..1, mode: Mode::Aggregate };
            let error = server.assign(&assignment).unwrap_err();
            assert!(matches!(error, ServerError::Assignment { why: AssignmentError::Shards { .. }, .. }), "{error}");
        });
        // The shards learn why.
        for served in served {
            let error = served.unwrap_err().to_string();
            assert!(error.contains(&format!("its plan is for {wanted} shards, but there are {shards}")), "{error}");
        }
    }
}

#[test]
fn memory_that_there_is_not_is_told_to_the_workers() {
    let roles = Roles::new(2, 1).unwrap();
    let served = world_with_shards(LINKS[0], roles, &ServeOptions::default(), |world, roles| {
        let assignment = Assignment { plan: plan(1, &[1 << 60], 1 << 60, 1), iterations: 0..1, mode: Mode::Aggregate };
        // A worker that was slow to connect may hear of the shard's end there.
        let assigned = ParameterServer::connect(world, roles).and_then(|server| server.assign(&assignment));
        let error = assigned.unwrap_err();
        assert!(error.to_string().contains("rank 2") && error.to_string().contains("cannot allocate"), "{error}");
    });
    assert!(served[0].as_ref().unwrap_err().to_string().contains("cannot allocate"), "{served:?}");
}

#[test]
fn roles_that_do_not_fit_the_world_are_refused() {
    let roles = Roles::new(2, 1).unwrap();
    let served = world_with_shards(LINKS[0], roles, &ServeOptions::default(), |world, _| {
        let wrong = Roles::new(2, 2).unwrap();
        let error = ParameterServer::connect(world, wrong).unwrap_err();
        assert!(matches!(error, ServerError::Roles(_)), "{error}");
        assert!(error.to_string().contains("2 workers and 2 shards are 4 ranks, but the world has 3"), "{error}");
    });
    assert!(served[0].is_err());
}
